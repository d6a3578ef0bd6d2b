//! The input types, read in chunks of eight elements.

use super::{Amax, E2m1, PowerOfTwoScales};
use core::ops::RangeInclusive;
use core::simd::u32x4;
use cuda_std::view::GlobalView;
use cuda_std::{cvt, math};

/// A floating-point type that the quantizer reads.
pub trait InputFormat {
    /// Eight consecutive elements, as loaded.
    type Chunk: Copy;

    /// Codes of the E8M0 scales that [`mxfp4_chunk`](Self::mxfp4_chunk) takes the reciprocals of.
    const MXFP4_CODES: RangeInclusive<u32> = PowerOfTwoScales::common_codes::<E2m1>();

    /// 16-byte vectors in a chunk.
    const VECTORS: usize;

    /// Eight zeros.
    fn zeros() -> Self::Chunk;

    /// Reads chunk `index` of a tensor: `VECTORS` 16-byte accesses.
    fn load(tensor: GlobalView<u32x4>, index: usize) -> Self::Chunk;

    /// Sixteen bytes that depend on every bit of the chunk and on little arithmetic.
    fn folded(chunk: Self::Chunk) -> u32x4;

    /// Elements `2 * index` and `2 * index + 1`, widened; `index` is below 4.
    fn pair(chunk: Self::Chunk, index: usize) -> (f32, f32);

    /// The magnitudes of elements `2 * index` and `2 * index + 1`, widened; `index` is below 4.
    fn magnitudes(chunk: Self::Chunk, index: usize) -> (f32, f32);

    /// Eight E2M1 codes of the elements times `power`, a power of two. No product is NaN.
    fn mxfp4_chunk(chunk: Self::Chunk, power: f32) -> u32;

    /// The sign of element `i` in bit `4 * i + 3`, where an E2M1 code has it.
    fn signs(chunk: Self::Chunk) -> u32;

    /// The largest magnitude, a NaN winning over every number.
    fn amax_or_nan(chunk: Self::Chunk) -> Amax;

    /// The largest magnitude among the elements that are numbers. For the rare chunk with a NaN.
    #[inline(always)]
    fn amax_of_numbers(chunk: Self::Chunk) -> Amax {
        let number = |magnitude: f32| {
            if magnitude.is_nan() {
                Amax::NO_NUMBER
            } else {
                Amax::from_magnitude_bits(magnitude.to_bits())
            }
        };
        let pair = |index| {
            let (low, high) = Self::magnitudes(chunk, index);
            number(low).max(number(high))
        };
        pair(0).max(pair(1)).max(pair(2)).max(pair(3))
    }
}

/// Sign bits cleared in both halves of a word.
const MAGNITUDES: u32 = 0x7FFF_7FFF;

/// [`InputFormat::signs`] from the top bytes of the even elements and of the odd elements, each
/// gathered into a word.
#[inline(always)]
fn signs_from_bytes(even: u32, odd: u32) -> u32 {
    (even >> 4 & 0x0808_0808) | (odd & 0x8080_8080)
}

/// [`InputFormat::signs`] of eight 16-bit elements.
#[inline(always)]
fn signs_of_halves(chunk: u32x4) -> u32 {
    let [a, b, c, d] = chunk.to_array();
    // Upper bytes of the even elements in the low half, of the odd elements in the high half.
    let (ab, cd) = (math::prmt(a, b, 0x7351), math::prmt(c, d, 0x7351));
    signs_from_bytes(math::prmt(ab, cd, 0x5410), math::prmt(ab, cd, 0x7632))
}

/// The largest of eight 16-bit magnitudes in each half of a word, sign bits cleared; a NaN wins.
///
/// One instruction does for BF16 and FP16: non-negative values of either type are ordered as their
/// bits are, and so are the bits of an FP16 when they are taken for BF16.
#[inline(always)]
fn max_of_halves(chunk: u32x4) -> u32 {
    let [a, b, c, d] = (chunk & u32x4::splat(MAGNITUDES)).to_array();
    math::max_nan_bf16x2(math::max_nan_bf16x2(a, b), math::max_nan_bf16x2(c, d))
}

/// bfloat16: the upper half of an `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

impl Bf16 {
    /// Widens the two halves of a word, the low one first.
    #[inline(always)]
    const fn widen(word: u32) -> (f32, f32) {
        (
            f32::from_bits(word << 16),
            f32::from_bits(word & 0xFFFF_0000),
        )
    }
}

impl InputFormat for Bf16 {
    type Chunk = u32x4;
    const VECTORS: usize = 1;

    #[inline(always)]
    fn mxfp4_chunk(chunk: u32x4, power: f32) -> u32 {
        E2m1::chunk_in_pairs::<Self>(chunk, power)
    }

    #[inline(always)]
    fn zeros() -> u32x4 {
        u32x4::splat(0)
    }

    #[inline(always)]
    fn load(tensor: GlobalView<u32x4>, index: usize) -> u32x4 {
        tensor.load(index)
    }

    #[inline(always)]
    fn folded(chunk: u32x4) -> u32x4 {
        chunk
    }

    #[inline(always)]
    fn pair(chunk: u32x4, index: usize) -> (f32, f32) {
        Self::widen(chunk[index])
    }

    #[inline(always)]
    fn magnitudes(chunk: u32x4, index: usize) -> (f32, f32) {
        Self::widen(chunk[index] & MAGNITUDES)
    }

    #[inline(always)]
    fn signs(chunk: u32x4) -> u32 {
        signs_of_halves(chunk)
    }

    #[inline(always)]
    fn amax_or_nan(chunk: u32x4) -> Amax {
        let (low, high) = Self::widen(max_of_halves(chunk));
        Amax::from_magnitude_bits(low.to_bits()).max(Amax::from_magnitude_bits(high.to_bits()))
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
    const VECTORS: usize = 1;
    /// FP16 has fewer exponents than BF16: 2^14 and 2^-13 are the outermost powers of two whose double
    /// and half are normal.
    const MXFP4_CODES: RangeInclusive<u32> = 127 - 14..=127 + 13;

    #[inline(always)]
    fn mxfp4_chunk(chunk: u32x4, power: f32) -> u32 {
        E2m1::chunk_in_pairs::<Self>(chunk, power)
    }

    #[inline(always)]
    fn zeros() -> u32x4 {
        u32x4::splat(0)
    }

    #[inline(always)]
    fn load(tensor: GlobalView<u32x4>, index: usize) -> u32x4 {
        tensor.load(index)
    }

    #[inline(always)]
    fn folded(chunk: u32x4) -> u32x4 {
        chunk
    }

    #[inline(always)]
    fn pair(chunk: u32x4, index: usize) -> (f32, f32) {
        Self::widen(chunk[index])
    }

    #[inline(always)]
    fn magnitudes(chunk: u32x4, index: usize) -> (f32, f32) {
        Self::widen(chunk[index] & MAGNITUDES)
    }

    #[inline(always)]
    fn signs(chunk: u32x4) -> u32 {
        signs_of_halves(chunk)
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
    const VECTORS: usize = 2;

    #[inline(always)]
    fn mxfp4_chunk(chunk: (u32x4, u32x4), power: f32) -> u32 {
        E2m1::chunk_in_f32::<Self, true>(chunk, power)
    }

    #[inline(always)]
    fn zeros() -> (u32x4, u32x4) {
        (u32x4::splat(0), u32x4::splat(0))
    }

    #[inline(always)]
    fn load(tensor: GlobalView<u32x4>, index: usize) -> (u32x4, u32x4) {
        (tensor.load(index * 2), tensor.load(index * 2 + 1))
    }

    #[inline(always)]
    fn folded((low, high): (u32x4, u32x4)) -> u32x4 {
        low ^ high
    }

    #[inline(always)]
    fn pair(chunk: (u32x4, u32x4), index: usize) -> (f32, f32) {
        let half = if index < 2 { chunk.0 } else { chunk.1 };
        let first = index % 2 * 2;
        (f32::from_bits(half[first]), f32::from_bits(half[first + 1]))
    }

    #[inline(always)]
    fn magnitudes(chunk: (u32x4, u32x4), index: usize) -> (f32, f32) {
        let (low, high) = Self::pair(chunk, index);
        (low.abs(), high.abs())
    }

    #[inline(always)]
    fn signs(chunk: (u32x4, u32x4)) -> u32 {
        let [a, b, c, d] = chunk.0.to_array();
        let [e, f, g, h] = chunk.1.to_array();
        // The top bytes of four words.
        let gather =
            |a, b, c, d| math::prmt(math::prmt(a, b, 0x0073), math::prmt(c, d, 0x0073), 0x5410);
        signs_from_bytes(gather(a, c, e, g), gather(b, d, f, h))
    }

    #[inline(always)]
    fn amax_or_nan(chunk: (u32x4, u32x4)) -> Amax {
        let magnitudes = u32x4::splat(0x7FFF_FFFF);
        let [a, b, c, d] = (chunk.0 & magnitudes).to_array();
        let [e, f, g, h] = (chunk.1 & magnitudes).to_array();
        Amax::from_magnitude_bits(a.max(b).max(c.max(d)).max(e.max(f).max(g.max(h))))
    }
}
