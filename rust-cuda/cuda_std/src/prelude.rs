//! What nearly every kernel uses.
//!
//! The published prelude also had `assert_eq` and `assert_ne`. A name from a glob import that is also
//! in Rust's own prelude has become an error where it is used, so here they have to be imported by
//! name: `use cuda_std::{assert_eq, assert_ne};`. Without that, kernels get those of `core`, which end
//! the launch without a message.

pub use crate::simd::{u32x2, u32x4};
pub use crate::{kernel, print, println, shared_array, thread};
#[cfg(feature = "alloc")]
pub use alloc::{
    borrow::ToOwned,
    boxed::Box,
    format,
    rc::Rc,
    string::{String, ToString},
    vec::Vec,
};
pub use half::{bf16, f16};
