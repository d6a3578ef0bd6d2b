//! One token in a format, and as a message.

use rayon::prelude::*;

use super::{RankTokens, Setup};
use crate::ep::TokenFormat;
use crate::options::{Format, QuantizeOptions, ScaleRounding};
use crate::reference::formats::{bf16_widen, e4m3_encode, e8m0_decode};
use crate::reference::scale::scale_code;
use crate::reference::{ReferenceError, quantize_block};

/// Every part of a message begins on a multiple of this.
const ALIGNMENT: usize = 16;
/// The largest E4M3 magnitude.
const E4M3_MAX: f32 = 448.0;
/// What stands in for a smaller amax in the blockwise FP8 scale.
const FP8_LEAST_AMAX: f32 = 1e-4;

/// Bytes of a token's elements.
pub fn payload_bytes(format: TokenFormat, hidden_size: usize) -> usize {
    match format {
        TokenFormat::Bf16 => 2 * hidden_size,
        TokenFormat::Fp8Block128 | TokenFormat::Mxfp8 => hidden_size,
        TokenFormat::Nvfp4 | TokenFormat::Mxfp4 => hidden_size / 2,
    }
}

/// Elements that share a scale, and bytes of the scale; `None` where there are no scales.
fn block(format: TokenFormat) -> Option<(usize, usize)> {
    match format {
        TokenFormat::Bf16 => None,
        TokenFormat::Fp8Block128 => Some((128, 4)),
        TokenFormat::Nvfp4 => Some((16, 1)),
        TokenFormat::Mxfp4 | TokenFormat::Mxfp8 => Some((32, 1)),
    }
}

/// KS: scales of a token, and bytes of one of them.
pub fn scale_columns(format: TokenFormat, hidden_size: usize) -> (usize, usize) {
    block(format).map_or((0, 0), |(elements, bytes)| (hidden_size / elements, bytes))
}

/// Where the parts of a message lie, in bytes from its start. All numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageParts {
    /// Bytes of the elements, which come first.
    pub payload_bytes: usize,
    /// Where the scales begin.
    pub scales_offset: usize,
    /// Bytes of the scales.
    pub scale_bytes: usize,
    /// Where the token's index on its rank lies, an i32.
    pub source_offset: usize,
    /// Where the K expert ids begin, a u16 each.
    pub topk_offset: usize,
    /// Where the K slots begin, a u32 each.
    pub slots_offset: usize,
    /// Bytes of the whole.
    pub bytes: usize,
}

impl MessageParts {
    /// The parts of a message of `top_k` ids.
    pub fn new(format: TokenFormat, hidden_size: usize, top_k: usize) -> Self {
        let payload_bytes = payload_bytes(format, hidden_size);
        let (columns, scale) = scale_columns(format, hidden_size);
        let scale_bytes = columns * scale;
        let scales_offset = payload_bytes.next_multiple_of(ALIGNMENT);
        let source_offset = scales_offset + scale_bytes.next_multiple_of(ALIGNMENT);
        let topk_offset = source_offset + ALIGNMENT;
        let slots_offset = topk_offset + (2 * top_k).next_multiple_of(ALIGNMENT);
        Self {
            payload_bytes,
            scales_offset,
            scale_bytes,
            source_offset,
            topk_offset,
            slots_offset,
            bytes: slots_offset + (4 * top_k).next_multiple_of(ALIGNMENT),
        }
    }
}

/// Quantizes one token, given as bfloat16 bit patterns. `payload` and `scales` are as long as the
/// format says; of FP4 elements the even one is in the low four bits of a byte.
///
/// | Format | Scale of a block | Element |
/// |---|---|---|
/// | BF16 | none | as it is |
/// | MXFP4 | E8M0 by `rounding` from amax | E2M1 of x / scale |
/// | MXFP8 | E8M0 by `rounding` from amax, usually amax / 448 rounded up | E4M3 of x / scale; a dead block is all zero bytes |
/// | NVFP4 | E4M3 of g * amax / 6 | E2M1 of x / (scale / g) |
/// | blockwise FP8 | FP32: max(amax, 1e-4) / 448 | E4M3 of x / scale |
///
/// A block is dead when its scale would be E8M0's least, 2^-127, though it is not zero, or when amax is no
/// finite number.
///
/// # Panics
/// Panics when the lengths do not fit the format.
pub fn quantize_token(
    format: TokenFormat,
    rounding: ScaleRounding,
    global_factor: f32,
    token: &[u16],
    payload: &mut [u8],
    scales: &mut [u8],
) {
    assert_eq!(payload.len(), payload_bytes(format, token.len()), "payload");
    let (columns, scale_bytes) = scale_columns(format, token.len());
    assert_eq!(scales.len(), columns * scale_bytes, "scales");
    let Some((elements, _)) = block(format) else {
        for (bytes, bits) in payload.chunks_exact_mut(2).zip(token) {
            bytes.copy_from_slice(&bits.to_le_bytes());
        }
        return;
    };
    let blocks = token.chunks_exact(elements);
    let targets = payload.chunks_exact_mut(payload_bytes(format, elements));
    for ((block, payload), scale) in blocks
        .zip(targets)
        .zip(scales.chunks_exact_mut(scale_bytes))
    {
        let values: Vec<f32> = block.iter().map(|&bits| bf16_widen(bits)).collect();
        let mut codes = vec![0; elements];
        let options = QuantizeOptions {
            scale_rounding: rounding,
            ..QuantizeOptions::default()
        };
        match format {
            TokenFormat::Mxfp4 => {
                scale[0] = quantize_block(Format::Mxfp4, options, 1.0, &values, &mut codes);
            }
            TokenFormat::Nvfp4 => {
                let options = QuantizeOptions::default();
                scale[0] =
                    quantize_block(Format::Nvfp4, options, global_factor, &values, &mut codes);
            }
            TokenFormat::Mxfp8 => scale[0] = mxfp8(rounding, &values, &mut codes),
            _ => scale.copy_from_slice(&blockwise_fp8(&values, &mut codes).to_le_bytes()),
        }
        match elements / payload.len() {
            2 => {
                for (byte, pair) in payload.iter_mut().zip(codes.chunks_exact(2)) {
                    *byte = pair[0] | pair[1] << 4;
                }
            }
            _ => payload.copy_from_slice(&codes),
        }
    }
}

/// The largest magnitude of the elements that are numbers; NaN when there are none.
fn amax(values: &[f32]) -> f32 {
    let numbers = values.iter().filter(|value| !value.is_nan());
    numbers
        .map(|value| value.abs())
        .reduce(f32::max)
        .unwrap_or(f32::NAN)
}

fn mxfp8(rounding: ScaleRounding, values: &[f32], codes: &mut [u8]) -> u8 {
    let amax = amax(values);
    let scale = scale_code(Format::Mxfp8, rounding, amax, 1.0);
    if amax != 0.0 && (scale == 0 || !amax.is_finite()) {
        codes.fill(0);
        return 0;
    }
    // A block of zeros: the factor is 0, which leaves the signs.
    let factor = if amax == 0.0 {
        0.0
    } else {
        1.0 / e8m0_decode(scale)
    };
    for (code, value) in codes.iter_mut().zip(values) {
        *code = e4m3_encode(value * factor);
    }
    scale
}

fn blockwise_fp8(values: &[f32], codes: &mut [u8]) -> f32 {
    // NaN loses against any number here, so a block of nothing else gets the least scale.
    let scale = amax(values).max(FP8_LEAST_AMAX) / E4M3_MAX;
    for (code, value) in codes.iter_mut().zip(values) {
        *code = e4m3_encode((value / scale).clamp(-E4M3_MAX, E4M3_MAX));
    }
    scale
}

/// All tokens of a rank, quantized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizedTokens {
    payload: Vec<u8>,
    scales: Vec<u8>,
    payload_bytes: usize,
    scale_bytes: usize,
}

impl QuantizedTokens {
    /// Quantizes what `rank` has.
    ///
    /// # Errors
    /// As [`RankTokens::count`].
    pub fn new(setup: &Setup, rank: &RankTokens<'_>) -> Result<Self, ReferenceError> {
        let tokens = rank.count(setup)?;
        let parts = MessageParts::new(setup.format, setup.hidden_size, setup.top_k);
        let (payload_bytes, scale_bytes) = (parts.payload_bytes, parts.scale_bytes);
        let quantized: Vec<_> = rank
            .tokens
            .par_chunks(setup.hidden_size)
            .map(|token| {
                let (mut payload, mut scales) = (vec![0; payload_bytes], vec![0; scale_bytes]);
                let (rounding, factor) = (setup.scale_rounding, setup.global_factor);
                quantize_token(
                    setup.format,
                    rounding,
                    factor,
                    token,
                    &mut payload,
                    &mut scales,
                );
                (payload, scales)
            })
            .collect();
        debug_assert_eq!(quantized.len(), tokens);
        let (payload, scales): (Vec<_>, Vec<_>) = quantized.into_iter().unzip();
        Ok(Self {
            payload: payload.concat(),
            scales: scales.concat(),
            payload_bytes,
            scale_bytes,
        })
    }

    /// The elements of a token.
    pub fn payload(&self, token: usize) -> &[u8] {
        &self.payload[token * self.payload_bytes..][..self.payload_bytes]
    }

    /// The scales of a token, in the order of its blocks.
    pub fn scales(&self, token: usize) -> &[u8] {
        &self.scales[token * self.scale_bytes..][..self.scale_bytes]
    }
}
