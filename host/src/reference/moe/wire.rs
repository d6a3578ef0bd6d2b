//! Tokens as the experts get them, and how coarse the grid is on which they were rounded.

use crate::ep::TokenFormat;
use crate::options::ScaleRounding;
use crate::reference::ep::{payload_bytes, quantize_token, scale_columns};
use crate::reference::formats::{bf16_widen, e2m1_decode, e4m3_decode, e8m0_decode};
use rayon::prelude::*;

/// What tokens are dispatched as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WireFormat {
    /// The format.
    pub format: TokenFormat,
    /// How the scales of the MX formats are rounded.
    pub scale_rounding: ScaleRounding,
    /// What NVFP4 multiplies amax by; 1 for the other formats.
    pub global_factor: f32,
}

/// Tokens after quantization, `[T, H]`, and what is known of it without having done it.
#[derive(Clone, Debug, PartialEq)]
pub struct WireTokens {
    /// What the elements are worth.
    pub values: Vec<f32>,
    /// Around what they are expected: the elements as they were, and for the largest of a block, from which the scale
    /// was made, what it has become.
    pub centers: Vec<f32>,
    /// How far from there: half the distance of the codes around the element; where an element is beyond the largest
    /// code, what was cut off. 0 for the largest of a block, and for BF16.
    pub half_steps: Vec<f32>,
}

/// One element of [`WireTokens`].
struct WireElement {
    value: f32,
    center: f32,
    half_step: f32,
}

impl WireTokens {
    /// Tokens with noise in place of quantization, uniform within half a step.
    pub fn noisy(&self, seed: u64) -> Vec<f32> {
        let mut random = fastrand::Rng::with_seed(seed);
        let elements = self.centers.iter().zip(&self.half_steps);
        elements
            .map(|(center, half_step)| center + (2.0 * random.f32() - 1.0) * half_step)
            .collect()
    }
}

/// An element type, as far as its grid goes.
struct Grid {
    mantissa_bits: i32,
    /// Of the least normal number; subnormals are as far apart as the least normals.
    least_exponent: i32,
    largest: f32,
}

impl Grid {
    const E2M1: Self = Self {
        mantissa_bits: 1,
        least_exponent: 0,
        largest: 6.0,
    };
    const E4M3: Self = Self {
        mantissa_bits: 3,
        least_exponent: -6,
        largest: 448.0,
    };

    fn half_step(&self, magnitude: f32) -> f32 {
        let exponent = match magnitude {
            0.0 => self.least_exponent,
            _ => (magnitude.log2().floor() as i32).max(self.least_exponent),
        };
        let half = 0.5 * ((exponent - self.mantissa_bits) as f32).exp2();
        half.max(magnitude - self.largest)
    }
}

impl WireFormat {
    /// The format with its usual rounding and no factor.
    pub fn new(format: TokenFormat) -> Self {
        Self {
            format,
            scale_rounding: match format {
                TokenFormat::Mxfp4 => ScaleRounding::Even,
                _ => ScaleRounding::Rceil,
            },
            global_factor: 1.0,
        }
    }

    /// The format as models use it for `tokens`, bfloat16 bit patterns: NVFP4 with the factor that takes the largest
    /// magnitude to the largest code under the largest scale, 448 * 6.
    pub fn for_tokens(format: TokenFormat, tokens: &[u16]) -> Self {
        let magnitudes = tokens.iter().map(|&bits| bf16_widen(bits).abs());
        let amax = magnitudes.filter(|it| it.is_finite()).fold(0.0, f32::max);
        let factor = Grid::E4M3.largest * Grid::E2M1.largest / amax;
        let usable = format == TokenFormat::Nvfp4 && factor.is_finite();
        Self {
            global_factor: if usable { factor } else { 1.0 },
            ..Self::new(format)
        }
    }

    /// What a scale in bytes is worth to an element.
    fn scale(&self, bytes: &[u8]) -> f32 {
        match (self.format, bytes) {
            (TokenFormat::Nvfp4, &[code]) => e4m3_decode(code) / self.global_factor,
            (_, &[code]) => e8m0_decode(code),
            (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => unreachable!("a scale has one byte or four"),
        }
    }

    /// Quantizes `tokens`, `[T, H]` bfloat16 bit patterns, and widens them again.
    ///
    /// # Panics
    ///
    /// If blocks of the format do not divide H.
    pub fn pass(&self, tokens: &[u16], hidden_size: usize) -> WireTokens {
        let passed: Vec<_> = tokens
            .par_chunks(hidden_size)
            .flat_map_iter(|token| self.pass_one(token))
            .collect();
        WireTokens {
            values: passed.iter().map(|it| it.value).collect(),
            centers: passed.iter().map(|it| it.center).collect(),
            half_steps: passed.iter().map(|it| it.half_step).collect(),
        }
    }

    fn pass_one(&self, token: &[u16]) -> Vec<WireElement> {
        let (blocks, scale_bytes) = scale_columns(self.format, token.len());
        let mut payload = vec![0; payload_bytes(self.format, token.len())];
        let mut scales = vec![0; blocks * scale_bytes];
        let (rounding, factor) = (self.scale_rounding, self.global_factor);
        quantize_token(
            self.format,
            rounding,
            factor,
            token,
            &mut payload,
            &mut scales,
        );
        let token: Vec<f32> = token.iter().map(|&bits| bf16_widen(bits)).collect();
        if blocks == 0 {
            let unchanged = |&value: &f32| WireElement {
                value,
                center: value,
                half_step: 0.0,
            };
            return token.iter().map(unchanged).collect();
        }
        let block_size = token.len() / blocks;
        let mut elements = Vec::with_capacity(token.len());
        for (block, values) in token.chunks(block_size).enumerate() {
            let scale = self.scale(&scales[block * scale_bytes..][..scale_bytes]);
            let amax = values.iter().fold(0.0, |max: f32, it| max.max(it.abs()));
            for (index, &original) in values.iter().enumerate() {
                let (code, grid) = self.element(&payload, block * block_size + index);
                let value = code * scale;
                elements.push(if original.abs() == amax {
                    WireElement {
                        value,
                        center: value,
                        half_step: 0.0,
                    }
                } else {
                    WireElement {
                        value,
                        center: original,
                        half_step: grid.half_step(original.abs() / scale) * scale,
                    }
                });
            }
        }
        elements
    }

    /// What the code of an element is worth, without its scale, and the grid that it is of.
    fn element(&self, payload: &[u8], index: usize) -> (f32, Grid) {
        match self.format {
            TokenFormat::Mxfp4 | TokenFormat::Nvfp4 => {
                let code = payload[index / 2] >> (4 * (index % 2)) & 0xF;
                (e2m1_decode(code), Grid::E2M1)
            }
            _ => (e4m3_decode(payload[index]), Grid::E4M3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    /// Every element is within half a step of what it was.
    #[test]
    fn no_element_moves_farther_than_half_a_step() {
        let mut random = fastrand::Rng::with_seed(5);
        let tokens: Vec<u16> = (0..4 * 256)
            .map(|_| bf16::from_f32((random.f32() - 0.5) * 8.0).to_bits())
            .collect();
        for format in TokenFormat::ALL {
            let wire = WireFormat::new(format);
            let passed = wire.pass(&tokens, 256);
            let mut moved = 0;
            for (index, &bits) in tokens.iter().enumerate() {
                let center = passed.centers[index];
                let error = (passed.values[index] - center).abs();
                let half_step = passed.half_steps[index];
                // The element was multiplied by a rounded reciprocal.
                assert!(
                    error <= half_step * 1.000_01,
                    "{format} {index}: {center} moved by {error}, half a step is {half_step}"
                );
                moved += usize::from(passed.values[index] != bf16_widen(bits));
            }
            assert_eq!(moved > 0, format != TokenFormat::Bf16, "{format}");
        }
    }
}
