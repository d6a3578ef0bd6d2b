//! The input types, read in chunks of eight elements.

use super::{Amax, CHUNK, E2m1, PowerOfTwoScales};
use core::ops::RangeInclusive;
use core::simd::u32x4;
use cuda_std::view::GlobalView;
use cuda_std::{cvt, math, misc};

/// A floating-point type that the quantizer reads.
pub trait InputFormat: Copy {
    /// Eight consecutive elements, as loaded.
    type Chunk: Copy;

    /// Codes of the E8M0 scales that [`mxfp4_chunk`](Self::mxfp4_chunk) takes the reciprocals of.
    const MXFP4_CODES: RangeInclusive<u32> = PowerOfTwoScales::common_codes::<E2m1>();

    /// 16-byte vectors in a chunk.
    const VECTORS: usize;

    /// Eight zeros.
    fn zeros() -> Self::Chunk;

    /// Reads the chunk at a byte offset: `VECTORS` 16-byte accesses.
    fn load_at(tensor: GlobalView<u32x4>, offset: usize) -> Self::Chunk;

    /// Sixteen bytes that depend on every bit of the chunk and on little arithmetic.
    fn folded(chunk: Self::Chunk) -> u32x4;

    /// The chunk with its last six elements first: what was pair 1 is pair 0.
    fn rotated(chunk: Self::Chunk) -> Self::Chunk;

    /// Elements `2 * index` and `2 * index + 1`, widened; `index` is below 4.
    fn pair(chunk: Self::Chunk, index: usize) -> (f32, f32);

    /// The magnitudes of elements `2 * index` and `2 * index + 1`, widened; `index` is below 4.
    fn magnitudes(chunk: Self::Chunk, index: usize) -> (f32, f32);

    /// Eight E2M1 codes of the elements times `power`, a power of two. No product is NaN.
    fn mxfp4_chunk(chunk: Self::Chunk, power: f32) -> u32;

    /// The sign of element `i` in bit `4 * i + 3`, where an E2M1 code has it.
    fn signs(chunk: Self::Chunk) -> u32;

    /// The largest magnitude in two chunks, a NaN winning over every number.
    fn amax_or_nan(first: Self::Chunk, second: Self::Chunk) -> Amax;

    /// The largest magnitude among the elements that are numbers. Kept a loop, as it is for the rare chunk with
    /// a NaN.
    #[inline(always)]
    fn amax_of_numbers(mut chunk: Self::Chunk) -> Amax {
        let number = |magnitude: f32| {
            if magnitude.is_nan() {
                Amax::NO_NUMBER
            } else {
                Amax::from_magnitude_bits(magnitude.to_bits())
            }
        };
        let mut amax = Amax::NO_NUMBER;
        let mut pairs = CHUNK / 2;
        while misc::hidden(pairs) > 0 {
            let (low, high) = Self::magnitudes(chunk, 0);
            amax = amax.max(number(low).max(number(high)));
            chunk = Self::rotated(chunk);
            pairs -= 1;
        }
        amax
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

/// The bits of the largest of sixteen 16-bit magnitudes; a NaN wins.
///
/// One instruction does for BF16 and FP16: non-negative values of either type are ordered as their
/// bits are, and so are the bits of an FP16 when they are taken for BF16.
#[inline(always)]
fn max_of_halves(first: u32x4, second: u32x4) -> u16 {
    let [a, b, c, d] = (first & u32x4::splat(MAGNITUDES)).to_array();
    let [e, f, g, h] = (second & u32x4::splat(MAGNITUDES)).to_array();
    let max = math::max_nan_bf16x2;
    // In threes, as there is an instruction for that.
    let pairs = max(max(max(max(a, b), c), max(max(d, e), f)), max(g, h));
    (max(pairs, pairs.rotate_left(16)) >> 16) as u16
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

/// What formats of two elements to a word have in common: a chunk is one vector.
macro_rules! halves {
    () => {
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
        fn load_at(tensor: GlobalView<u32x4>, offset: usize) -> u32x4 {
            tensor.load_at(offset)
        }

        #[inline(always)]
        fn folded(chunk: u32x4) -> u32x4 {
            chunk
        }

        #[inline(always)]
        fn rotated(chunk: u32x4) -> u32x4 {
            let [a, b, c, d] = chunk.to_array();
            u32x4::from_array([b, c, d, a])
        }

        #[inline(always)]
        fn pair(chunk: u32x4, index: usize) -> (f32, f32) {
            Self::widen(chunk[index])
        }

        #[inline(always)]
        fn magnitudes(chunk: u32x4, index: usize) -> (f32, f32) {
            let (low, high) = Self::widen(chunk[index]);
            (low.abs(), high.abs())
        }

        #[inline(always)]
        fn signs(chunk: u32x4) -> u32 {
            signs_of_halves(chunk)
        }
    };
}

impl InputFormat for Bf16 {
    halves!();

    #[inline(always)]
    fn amax_or_nan(first: u32x4, second: u32x4) -> Amax {
        Amax::from_magnitude_bits((max_of_halves(first, second) as u32) << 16)
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
    halves!();

    /// FP16 has fewer exponents than BF16: 2^14 and 2^-13 are the outermost powers of two whose double
    /// and half are normal.
    const MXFP4_CODES: RangeInclusive<u32> = 127 - 14..=127 + 13;

    #[inline(always)]
    fn amax_or_nan(first: u32x4, second: u32x4) -> Amax {
        let largest = cvt::cvt_f32_f16(max_of_halves(first, second));
        Amax::from_magnitude_bits(largest.to_bits())
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
    fn load_at(tensor: GlobalView<u32x4>, offset: usize) -> (u32x4, u32x4) {
        (tensor.load_at(offset), tensor.load_at(offset + 16))
    }

    #[inline(always)]
    fn folded((low, high): (u32x4, u32x4)) -> u32x4 {
        low ^ high
    }

    #[inline(always)]
    fn rotated((low, high): (u32x4, u32x4)) -> (u32x4, u32x4) {
        let [a, b, c, d] = low.to_array();
        let [e, f, g, h] = high.to_array();
        (
            u32x4::from_array([c, d, e, f]),
            u32x4::from_array([g, h, a, b]),
        )
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
    fn amax_or_nan(first: (u32x4, u32x4), second: (u32x4, u32x4)) -> Amax {
        let largest = |chunk: (u32x4, u32x4)| {
            let magnitudes = u32x4::splat(0x7FFF_FFFF);
            let [a, b, c, d] = (chunk.0 & magnitudes).to_array();
            let [e, f, g, h] = (chunk.1 & magnitudes).to_array();
            a.max(b).max(c.max(d)).max(e.max(f).max(g.max(h)))
        };
        Amax::from_magnitude_bits(largest(first).max(largest(second)))
    }
}
