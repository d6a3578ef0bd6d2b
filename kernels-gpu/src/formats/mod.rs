//! Numeric formats: zero-sized types with constants and pure functions.
//!
//! * inputs: [`Bf16`], [`F16`], [`F32`], read eight elements at a time ([`InputFormat`]);
//! * elements: [`E2m1`] and [`E4m3`], written eight at a time ([`ElementFormat`]);
//! * block scales: [`E8m0`], and E4M3 again;
//! * what combines them: [`NvFp4`], [`MxFp4`], [`MxFp8`] ([`BlockFormat`]).
//!
//! In the kernels, a new block format is one more `impl BlockFormat`, a line for each input type in
//! [`for_each_quantize_entry`](crate::for_each_quantize_entry), and one in the list at the end of [`crate::dequantize`].

mod amax;
mod block;
mod e2m1;
mod e4m3;
mod e8m0;
mod input;
mod rules;

pub use amax::Amax;
pub use block::{BlockFormat, BlockScale, CommonScale, MxFp4, MxFp8, NvFp4, TensorScale};
pub use e2m1::E2m1;
pub use e4m3::E4m3;
pub use e8m0::{E8m0, PowerOfTwoScales};
pub use input::{Bf16, F16, F32, InputFormat};
pub use rules::{DeadBlocks, NanPolicy, Rules, ScaleRounding};

use core::simd::u32x4;

/// Elements that are read and written together: 16 bytes of a 16-bit input.
pub const CHUNK: u32 = 8;

/// What a block multiplies its elements by before they are rounded, and what is known of the
/// products. The more is known, the fewer instructions the rounding takes.
#[derive(Clone, Copy, Debug)]
pub enum Multiplier {
    /// The reciprocal of a common scale ([`PowerOfTwoScales`]), a power of two. No product is NaN or
    /// reaches 8 (E2M1).
    PowerOfTwo(f32),
    /// No product is NaN or reaches 7 in magnitude.
    Below7(f32),
    /// No product is NaN.
    Number(f32),
    /// Nothing is known.
    Any(f32),
}

impl Multiplier {
    /// The number itself.
    #[inline(always)]
    pub const fn factor(self) -> f32 {
        let (Self::PowerOfTwo(factor)
        | Self::Below7(factor)
        | Self::Number(factor)
        | Self::Any(factor)) = self;
        factor
    }
}

/// The element type of a block format.
pub trait ElementFormat {
    /// The largest value.
    const MAX: f32;
    /// emax: the largest power of two is `2^EMAX`.
    const EMAX: u32;
    /// Mantissa bits.
    const MANTISSA_BITS: u32;

    /// A chunk as it is stored.
    type Packed: Copy + 'static;

    /// Two chunks side by side, stored in one access.
    type PackedPair: Copy + 'static;

    /// Multiplies a chunk and rounds the products to nearest even, saturating.
    fn quantize_chunk<I: InputFormat>(chunk: I::Chunk, multiplier: Multiplier) -> Self::Packed;

    /// A chunk of zeros.
    fn zeros() -> Self::Packed;

    /// Stored bytes that depend on every bit of `words`: what a traffic twin stores.
    fn folded(words: u32x4) -> Self::Packed;

    /// Puts two chunks side by side.
    fn concat(first: Self::Packed, second: Self::Packed) -> Self::PackedPair;

    /// Widens element `index` (below 8) of a stored chunk.
    fn dequantize(packed: Self::Packed, index: u32) -> f32;
}
