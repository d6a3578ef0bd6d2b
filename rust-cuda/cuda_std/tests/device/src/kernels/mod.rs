//! Kernels that between them call every device function of `cuda_std`.
//!
//! Every thread reports a fixed number of words, in the order of its calls, so the output of a GPU can
//! be compared with the emulator's word by word.

pub mod arithmetic;
pub mod atomics;
pub mod barriers;
pub mod collectives;
pub mod conversions;
pub mod copies;
pub mod floats;
#[cfg(feature = "alloc")]
pub mod heap;
pub mod memory;
pub mod results;
pub mod services;
