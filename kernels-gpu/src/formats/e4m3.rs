//! E4M3: four exponent bits (bias 7), three mantissa bits, largest value 448. No infinity; NaN is
//! 0x7F. The element of MXFP8 and the block scale of NVFP4.

use super::{ElementFormat, InputFormat, Multiplier};
use core::simd::{u32x2, u32x4};
use cuda_std::{cfg, cvt};

/// The 8-bit float with four exponent and three mantissa bits ("e4m3fn").
#[derive(Clone, Copy, Debug)]
pub struct E4m3;

impl E4m3 {
    /// The code of NaN.
    pub const NAN: u8 = 0x7F;

    /// Rounds to nearest even, saturating to ±448; NaN gives 0x7F.
    ///
    /// ```
    /// use kernels_gpu::formats::E4m3;
    /// assert_eq!(E4m3::from_f32(448.0), 0x7E);
    /// assert_eq!(E4m3::from_f32(-1e9), 0xFE);
    /// assert_eq!(E4m3::from_f32(2f32.powi(-10)), 0x00); // a tie, to even
    /// ```
    #[inline(always)]
    pub fn from_f32(value: f32) -> u8 {
        Self::from_f32x2(0.0, value) as u8
    }

    /// Two values: `low` in bits 7..0, `high` in bits 15..8.
    #[inline(always)]
    pub(crate) fn from_f32x2(high: f32, low: f32) -> u16 {
        if cfg::has_e4m3_cvt() {
            cvt::cvt_rn_satfinite_e4m3x2_f32(high, low)
        } else {
            (Self::from_f32_software(high) as u16) << 8 | Self::from_f32_software(low) as u16
        }
    }

    /// The conversion in integer and f32 arithmetic, for devices without the instruction.
    #[inline(always)]
    fn from_f32_software(value: f32) -> u8 {
        if value.is_nan() {
            return Self::NAN;
        }
        let sign = (value.to_bits() >> 24) as u8 & 0x80;
        let magnitude = value.abs().min(Self::MAX);
        let code = if magnitude < 0.015625 {
            // Below 2^-6 the grid has a constant step of 2^-9. Adding 2^14 leaves exactly that step
            // as the last mantissa bit, so the addition itself rounds to nearest even.
            (magnitude + 16384.0).to_bits() - 16384f32.to_bits()
        } else {
            // Round the mantissa to three bits, half to even, then move the bias from 127 to 7.
            let bits = magnitude.to_bits();
            let odd = (bits >> 20) & 1;
            ((bits + 0x7_FFFF + odd) >> 20) - (120 << 3)
        };
        sign | code as u8
    }

    /// The value of a code.
    ///
    /// ```
    /// use kernels_gpu::formats::E4m3;
    /// assert_eq!(E4m3::to_f32(0x7E), 448.0);
    /// assert_eq!(E4m3::to_f32(0x81), -2f32.powi(-9));
    /// assert!(E4m3::to_f32(0x7F).is_nan());
    /// ```
    #[inline(always)]
    pub fn to_f32(code: u8) -> f32 {
        let magnitude = (code & 0x7F) as u32;
        if magnitude == Self::NAN as u32 {
            return f32::NAN;
        }
        // The code moved to the top of an f32 mantissa is the value times 2^-120, subnormals too.
        let scaled = f32::from_bits(magnitude << 20) * f32::from_bits((127 + 120) << 23);
        f32::from_bits(scaled.to_bits() | (code as u32 & 0x80) << 24)
    }
}

impl ElementFormat for E4m3 {
    const MAX: f32 = 448.0;
    const EMAX: u32 = 8;
    const MANTISSA_BITS: u32 = 3;

    type Packed = u32x2;
    type PackedPair = u32x4;

    #[inline(always)]
    fn quantize_chunk<I: InputFormat>(chunk: I::Chunk, multiplier: Multiplier) -> u32x2 {
        let factor = multiplier.factor();
        let pair = |index| {
            let (low, high) = I::pair(chunk, index);
            Self::from_f32x2(high * factor, low * factor) as u32
        };
        u32x2::from_array([pair(0) | pair(1) << 16, pair(2) | pair(3) << 16])
    }

    #[inline(always)]
    fn zeros() -> u32x2 {
        u32x2::splat(0)
    }

    #[inline(always)]
    fn folded(words: u32x4) -> u32x2 {
        let [a, b, c, d] = words.to_array();
        u32x2::from_array([a ^ b, c ^ d])
    }

    #[inline(always)]
    fn concat(first: u32x2, second: u32x2) -> u32x4 {
        u32x4::from_array([first[0], first[1], second[0], second[1]])
    }

    #[inline(always)]
    fn dequantize(packed: u32x2, index: u32) -> f32 {
        let word = if index < 4 { packed[0] } else { packed[1] };
        Self::to_f32((word >> (index % 4 * 8)) as u8)
    }
}
