//! Numeric formats: zero-sized types with constants and pure functions.
//!
//! * inputs: [`Bf16`], [`F16`], [`F32`], read eight elements at a time ([`InputFormat`]);
//! * elements: [`E2m1`] and [`E4m3`], written eight at a time ([`ElementFormat`]);
//! * block scales: [`E8m0`], and E4M3 again;
//! * what combines them: [`NvFp4`], [`MxFp4`], [`MxFp8`] ([`BlockFormat`]).
//!
//! A new block format is one more `impl BlockFormat` and one line in the list of entries at the end
//! of [`crate::quantize`].

mod amax;
mod block;
mod e2m1;
mod e4m3;
mod e8m0;
mod input;
mod rules;

pub use amax::Amax;
pub use block::{BlockFormat, BlockScale, MxFp4, MxFp8, NvFp4, TensorScale};
pub use e2m1::E2m1;
pub use e4m3::E4m3;
pub use e8m0::E8m0;
pub use input::{Bf16, F16, F32, InputFormat};
pub use rules::{DeadBlocks, NanPolicy, Rules, ScaleRounding};

/// Elements that one thread handles at a time: 16 bytes of a 16-bit input.
pub const CHUNK: u32 = 8;

/// What a block multiplies its elements by before they are rounded.
#[derive(Clone, Copy, Debug)]
pub enum Multiplier {
    /// A power of two, infinity, zero or NaN: the product with a 16-bit input is exact (or one of
    /// the special values), so that it may be rounded in half precision without rounding twice.
    PowerOfTwo(f32),
    /// Any value.
    Any(f32),
}

/// The element type of a block format.
pub trait ElementFormat {
    /// Eight elements as they are stored.
    type Packed: Copy + 'static;

    /// Multiplies eight input elements and rounds the products to nearest even, saturating.
    fn quantize_chunk<I: InputFormat>(chunk: I::Chunk, multiplier: Multiplier) -> Self::Packed;

    /// Eight zeros.
    fn zeros() -> Self::Packed;

    /// Widens element `index` (below 8) of a stored chunk.
    fn dequantize(packed: Self::Packed, index: u32) -> f32;
}
