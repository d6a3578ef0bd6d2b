//! `cargo xtask bench`: how fast the kernels are, against what memory allows.
//!
//! A case is a shape in a format. Its outputs are compared with the reference before anything is timed;
//! then the kernel, its traffic twin, a plain copy of as many bytes and, where a launch is most of the
//! time, an empty kernel take turns, each replayed from a CUDA graph over buffers that together are
//! several times the size of the L2 cache.

pub mod cases;
pub mod check;
pub mod dump;
pub mod ep;
pub mod input;
pub mod measure;
pub mod record;
pub mod stats;
pub mod table;
