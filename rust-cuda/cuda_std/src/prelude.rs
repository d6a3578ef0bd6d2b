//! What nearly every kernel uses.

pub use crate::simd::{u32x2, u32x4};
pub use crate::{kernel, shared_array, thread};
pub use half::{bf16, f16};
