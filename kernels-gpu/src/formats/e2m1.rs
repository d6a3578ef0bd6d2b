//! E2M1: two exponent bits (bias 1) and one mantissa bit. The eight magnitudes are 0, 0.5, 1, 1.5,
//! 2, 3, 4 and 6; bit 3 is the sign. No infinity and no NaN: both become the largest magnitude.
//!
//! # Rounding without a conversion instruction
//!
//! Only the architecture-specific 10.x and 12.x targets convert to E2M1. Elsewhere the code of a
//! magnitude `t` is computed as
//!
//! ```text
//! code = min( round(2 t), round(t + 2), round(t / 2 + 4), 7 )
//! ```
//!
//! The codes 0 to 4 lie 0.5 apart, 4 to 6 lie 1 apart, 6 and 7 lie 2 apart. Each term is the straight
//! line through one of these three stretches, and the lowest line at `t` is the one whose stretch
//! `t` is in. Rounding is monotone, so it may be done before the minimum is taken. It is done by
//! adding a constant so large that the last mantissa bit of the sum counts whole codes; sum and
//! rounding are one instruction, to nearest even. As a tie between two codes goes to the even code,
//! and an even code is one with a zero mantissa bit, this is the rounding that the format asks for.

use super::{Bf16, CHUNK, ElementFormat, F16, InputFormat, Multiplier};
use core::simd::{u32x2, u32x4};
use cuda_std::{cfg, cvt, math, misc};

/// The 4-bit float with two exponent bits and one mantissa bit.
#[derive(Clone, Copy, Debug)]
pub struct E2m1;

impl E2m1 {
    /// Rounds to nearest even, saturating to ±6. The sign of a zero is kept; NaN gives +6 (0x7).
    ///
    /// ```
    /// use kernels_gpu::formats::E2m1;
    /// assert_eq!(E2m1::from_f32(2.5), 0x4);   // a tie between 2 and 3
    /// assert_eq!(E2m1::from_f32(-0.1), 0x8);
    /// assert_eq!(E2m1::from_f32(f32::NAN), 0x7);
    /// ```
    #[inline(always)]
    pub fn from_f32(value: f32) -> u8 {
        let sign = if value.is_nan() {
            0
        } else {
            value.to_bits() >> 28 & 0x8
        };
        (sign | Self::magnitude_code(value.abs())) as u8
    }

    /// The value of a code (bits 3..0).
    ///
    /// ```
    /// use kernels_gpu::formats::E2m1;
    /// assert_eq!((0..8).map(E2m1::to_f32).sum::<f32>(), 18.0);
    /// assert_eq!(E2m1::to_f32(0xB), -1.5);
    /// ```
    #[inline(always)]
    pub fn to_f32(code: u8) -> f32 {
        // The three low bits moved to the top of an f32 mantissa are the value times 2^-126.
        let scaled = f32::from_bits((code as u32 & 0x7) << 22) * f32::from_bits((127 + 126) << 23);
        f32::from_bits(scaled.to_bits() | (code as u32 & 0x8) << 28)
    }

    /// The three lines, in f32: exact for every magnitude. NaN counts as 6.
    #[inline(always)]
    fn magnitude_code(magnitude: f32) -> u32 {
        Self::lowest_line::<false>(magnitude.min(Self::MAX)) - ONES.to_bits()
    }

    /// The lowest of the three lines at a magnitude that is not NaN, as the bits of `ONES + code`.
    ///
    /// The lines exceed code 7 from magnitude 7 on; `SATURATE` caps them there.
    ///
    /// Compared as integers, in which order positive numbers are too: that makes one instruction
    /// of the two minima.
    #[inline(always)]
    fn lowest_line<const SATURATE: bool>(magnitude: f32) -> u32 {
        let low = math::fma(magnitude, 2.0, ONES).to_bits();
        let middle = (magnitude + (ONES + 2.0)).to_bits();
        let high = math::fma(magnitude, 0.5, ONES + 4.0).to_bits();
        let lowest = low.min(middle).min(high);
        if SATURATE {
            lowest.min((ONES + 7.0).to_bits())
        } else {
            lowest
        }
    }

    /// Eight codes, whatever the products are. Kept a loop, as it is for rare cases.
    #[inline(always)]
    fn chunk_with_care<I: InputFormat>(mut chunk: I::Chunk, factor: f32) -> u32 {
        let mut codes = 0;
        let mut pairs = CHUNK / 2;
        while misc::hidden(pairs) > 0 {
            let (low, high) = I::pair(chunk, 0);
            let pair =
                Self::from_f32(low * factor) as u32 | (Self::from_f32(high * factor) as u32) << 4;
            codes = codes >> 8 | pair << 24;
            chunk = I::rotated(chunk);
            pairs -= 1;
        }
        codes
    }

    /// Eight codes from products that are not NaN, by the three lines in f32. Without `SATURATE` they
    /// must be below 7 in magnitude.
    #[inline(always)]
    pub(super) fn chunk_in_f32<I: InputFormat, const SATURATE: bool>(
        chunk: I::Chunk,
        factor: f32,
    ) -> u32 {
        // Each line's bits are those of `ONES` plus a code. Shifting and adding the bits as they are
        // collects the codes, and a constant, which is subtracted once.
        const EIGHT_ONES: u32 = ONES.to_bits().wrapping_mul(0x1111_1111);
        let append = |codes: u32, magnitude: f32| {
            (codes << 4).wrapping_add(Self::lowest_line::<SATURATE>(magnitude * factor))
        };
        let append_pair = |codes, index| {
            let (low, high) = I::magnitudes(chunk, index);
            append(append(codes, high), low)
        };
        let codes = append_pair(append_pair(append_pair(append_pair(0, 3), 2), 1), 0);
        codes.wrapping_sub(EIGHT_ONES) | I::signs(chunk)
    }

    /// Eight codes of 16-bit elements times a power of two, two at a time.
    ///
    /// The lines are drawn over the elements themselves: multiplying by the power of two is exact, so
    /// it can be left to the multiply-adds that the lines consist of.
    #[inline(always)]
    pub(super) fn chunk_in_pairs<P: Pairs>(chunk: u32x4, power: f32) -> u32 {
        let [a, b, c, d] = chunk.to_array();
        let once = P::power_of_two(power);
        let double = once + P::EXPONENT_STEP;
        let half = once - P::EXPONENT_STEP;

        // The codes of a word's two elements, in bits 2..0 and 18..16. Above them is noise.
        let codes = |word| {
            let magnitudes = word & SIGNLESS;
            let low = P::fma(magnitudes, double, P::ONES);
            let middle = P::fma(magnitudes, once, P::ONES + 2 * EACH);
            let high = P::fma(magnitudes, half, P::ONES + 4 * EACH);
            P::min(P::min(low, middle), P::min(high, P::ONES + 7 * EACH))
        };
        // Two words' codes, one in each byte: elements 0, 2, 1, 3. Their signs go into bit 3 there.
        let four = |first: u32, second: u32| {
            let codes = math::prmt(codes(first), codes(second), 0x6240);
            let signs = math::prmt(first, second, 0xFBD9);
            codes | signs & 0x0808_0808
        };
        let (first, second) = (four(a, b), four(c, d));
        let even = math::prmt(first, second, 0x5410);
        let odd = math::prmt(first, second, 0x7632);
        even | odd << 4
    }

    /// Eight codes by the conversion instruction.
    #[inline(always)]
    fn chunk_in_hardware<I: InputFormat>(chunk: I::Chunk, factor: f32) -> u32 {
        let byte = |index| {
            let (low, high) = I::pair(chunk, index);
            cvt::cvt_rn_satfinite_e2m1x2_f32(high * factor, low * factor) as u32
        };
        byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
    }
}

/// Sign bits cleared in both halves of a word.
const SIGNLESS: u32 = 0x7FFF_7FFF;

/// 1 in both halves of a word: one unit in the last place of each of a pair.
const EACH: u32 = 0x0001_0001;

/// Arithmetic on two 16-bit floats in a word.
pub(super) trait Pairs {
    /// In both halves, the number whose last mantissa bit counts ones.
    const ONES: u32;
    /// In both halves, what doubles a normal number when it is added to its bits.
    const EXPONENT_STEP: u32;

    /// `power`, a power of two, in both halves. It, its half and its double are normal in this type.
    fn power_of_two(power: f32) -> u32;
    /// `a * b + c`, rounded once.
    fn fma(a: u32, b: u32, c: u32) -> u32;
    /// The lesser.
    fn min(a: u32, b: u32) -> u32;
}

impl Pairs for Bf16 {
    const ONES: u32 = 0x4300 * EACH; // 128
    const EXPONENT_STEP: u32 = 0x0080 * EACH;

    #[inline(always)]
    fn power_of_two(power: f32) -> u32 {
        math::prmt(power.to_bits(), 0, 0x3232)
    }

    #[inline(always)]
    fn fma(a: u32, b: u32, c: u32) -> u32 {
        math::fma_bf16x2(a, b, c)
    }

    #[inline(always)]
    fn min(a: u32, b: u32) -> u32 {
        math::min_bf16x2(a, b)
    }
}

impl Pairs for F16 {
    const ONES: u32 = 0x6400 * EACH; // 1024
    const EXPONENT_STEP: u32 = 0x0400 * EACH;

    #[inline(always)]
    fn power_of_two(power: f32) -> u32 {
        cvt::cvt_rn_f16x2_f32(power, power)
    }

    #[inline(always)]
    fn fma(a: u32, b: u32, c: u32) -> u32 {
        math::fma_f16x2(a, b, c)
    }

    #[inline(always)]
    fn min(a: u32, b: u32) -> u32 {
        math::min_f16x2(a, b)
    }
}

/// 1.5 * 2^23: the last mantissa bit of a sum near it counts ones.
const ONES: f32 = 12_582_912.0;

impl ElementFormat for E2m1 {
    const MAX: f32 = 6.0;
    const EMAX: u32 = 2;
    const MANTISSA_BITS: u32 = 1;

    type Packed = u32;
    type PackedPair = u32x2;

    #[inline(always)]
    fn quantize_chunk<I: InputFormat>(chunk: I::Chunk, multiplier: Multiplier) -> u32 {
        let factor = multiplier.factor();
        match multiplier {
            _ if cfg::has_fp4_cvt() => Self::chunk_in_hardware::<I>(chunk, factor),
            Multiplier::PowerOfTwo(_) => I::mxfp4_chunk(chunk, factor),
            Multiplier::Below7(_) => Self::chunk_in_f32::<I, false>(chunk, factor),
            Multiplier::Number(_) => Self::chunk_in_f32::<I, true>(chunk, factor),
            Multiplier::Any(_) => Self::chunk_with_care::<I>(chunk, factor),
        }
    }

    #[inline(always)]
    fn zeros() -> u32 {
        0
    }

    #[inline(always)]
    fn folded(words: u32x4) -> u32 {
        let [a, b, c, d] = words.to_array();
        a ^ b ^ c ^ d
    }

    #[inline(always)]
    fn concat(first: u32, second: u32) -> u32x2 {
        u32x2::from_array([first, second])
    }

    #[inline(always)]
    fn dequantize(packed: u32, index: u32) -> f32 {
        Self::to_f32((packed >> (index * 4)) as u8)
    }
}
