//! The input types, read in chunks of eight elements.

use super::{Amax, Rules};
use core::simd::u32x4;
use cuda_std::view::GlobalView;
use cuda_std::{cvt, math};

/// A floating-point type that the quantizer reads.
pub trait InputFormat {
    /// Eight consecutive elements, as loaded.
    type Chunk: Copy;

    /// Whether at most 11 significant bits are needed, so that a value times a power of two fits a
    /// half (its range aside).
    const FITS_HALF: bool;

    /// 16-byte words in a chunk.
    const WORDS: usize;

    /// Eight zeros.
    fn zeros() -> Self::Chunk;

    /// Reads chunk `index` of a tensor: `WORDS` 16-byte accesses.
    fn load(tensor: GlobalView<u32x4>, index: usize) -> Self::Chunk;

    /// Elements `2 * index` and `2 * index + 1`, widened; `index` is below 4.
    fn pair(chunk: Self::Chunk, index: usize) -> (f32, f32);

    /// The largest magnitude, a NaN winning over every number.
    fn amax_or_nan(chunk: Self::Chunk) -> Amax;

    /// The largest magnitude under a NaN policy.
    #[inline(always)]
    fn amax(chunk: Self::Chunk, rules: Rules) -> Amax {
        let amax = Self::amax_or_nan(chunk);
        if amax.is_nan() && !rules.propagate_nan() {
            amax_of_numbers::<Self>(chunk)
        } else {
            amax
        }
    }
}

/// The largest magnitude among the elements that are numbers. Rare, so kept small, not fast.
#[inline(always)]
fn amax_of_numbers<I: InputFormat + ?Sized>(chunk: I::Chunk) -> Amax {
    let magnitude = |value: f32| {
        if value.is_nan() {
            Amax::NOTHING
        } else {
            Amax::from_magnitude_bits(value.abs().to_bits())
        }
    };
    let pair = |index| {
        let (low, high) = I::pair(chunk, index);
        magnitude(low).max(magnitude(high))
    };
    pair(0).max(pair(1)).max(pair(2)).max(pair(3))
}

/// The largest of eight 16-bit magnitudes in each half of a word, sign bits cleared; a NaN wins.
///
/// One instruction does for BF16 and FP16: non-negative values of either type are ordered as their
/// bits are, and so are the bits of an FP16 when they are taken for BF16.
#[inline(always)]
fn max_of_halves(chunk: u32x4) -> u32 {
    let [a, b, c, d] = (chunk & u32x4::splat(0x7FFF_7FFF)).to_array();
    math::max_nan_bf16x2(math::max_nan_bf16x2(a, b), math::max_nan_bf16x2(c, d))
}

/// bfloat16: the upper half of an `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

impl Bf16 {
    /// Widens the bits of a bfloat16.
    #[inline(always)]
    pub const fn to_f32(bits: u16) -> f32 {
        f32::from_bits((bits as u32) << 16)
    }
}

impl InputFormat for Bf16 {
    type Chunk = u32x4;
    const FITS_HALF: bool = true;
    const WORDS: usize = 1;

    #[inline(always)]
    fn zeros() -> u32x4 {
        u32x4::splat(0)
    }

    #[inline(always)]
    fn load(tensor: GlobalView<u32x4>, index: usize) -> u32x4 {
        tensor.load(index)
    }

    #[inline(always)]
    fn pair(chunk: u32x4, index: usize) -> (f32, f32) {
        let word = chunk[index];
        (
            Self::to_f32(word as u16),
            f32::from_bits(word & 0xFFFF_0000),
        )
    }

    #[inline(always)]
    fn amax_or_nan(chunk: u32x4) -> Amax {
        let max = max_of_halves(chunk);
        let (low, high) = (max << 16, max & 0xFFFF_0000);
        Amax::from_magnitude_bits(low).max(Amax::from_magnitude_bits(high))
    }
}

/// IEEE 754 binary16.
#[derive(Clone, Copy, Debug)]
pub struct F16;

impl F16 {
    /// Widens the two halves of a word, the low one first.
    #[inline(always)]
    fn widen(word: u32) -> (f32, f32) {
        (
            cvt::cvt_f32_f16(word as u16),
            cvt::cvt_f32_f16((word >> 16) as u16),
        )
    }
}

impl InputFormat for F16 {
    type Chunk = u32x4;
    const FITS_HALF: bool = true;
    const WORDS: usize = 1;

    #[inline(always)]
    fn zeros() -> u32x4 {
        u32x4::splat(0)
    }

    #[inline(always)]
    fn load(tensor: GlobalView<u32x4>, index: usize) -> u32x4 {
        tensor.load(index)
    }

    #[inline(always)]
    fn pair(chunk: u32x4, index: usize) -> (f32, f32) {
        Self::widen(chunk[index])
    }

    #[inline(always)]
    fn amax_or_nan(chunk: u32x4) -> Amax {
        let (low, high) = Self::widen(max_of_halves(chunk));
        Amax::from_magnitude_bits(low.to_bits()).max(Amax::from_magnitude_bits(high.to_bits()))
    }
}

/// IEEE 754 binary32.
#[derive(Clone, Copy, Debug)]
pub struct F32;

impl InputFormat for F32 {
    type Chunk = (u32x4, u32x4);
    const FITS_HALF: bool = false;
    const WORDS: usize = 2;

    #[inline(always)]
    fn zeros() -> (u32x4, u32x4) {
        (u32x4::splat(0), u32x4::splat(0))
    }

    #[inline(always)]
    fn load(tensor: GlobalView<u32x4>, index: usize) -> (u32x4, u32x4) {
        (tensor.load(index * 2), tensor.load(index * 2 + 1))
    }

    #[inline(always)]
    fn pair(chunk: (u32x4, u32x4), index: usize) -> (f32, f32) {
        let half = if index < 2 { chunk.0 } else { chunk.1 };
        let first = index % 2 * 2;
        (f32::from_bits(half[first]), f32::from_bits(half[first + 1]))
    }

    #[inline(always)]
    fn amax_or_nan(chunk: (u32x4, u32x4)) -> Amax {
        let magnitudes = u32x4::splat(0x7FFF_FFFF);
        let [a, b, c, d] = (chunk.0 & magnitudes).to_array();
        let [e, f, g, h] = (chunk.1 & magnitudes).to_array();
        Amax::from_magnitude_bits(a.max(b).max(c.max(d)).max(e.max(f).max(g.max(h))))
    }
}
