//! A SIMT emulator: runs CUDA-style kernels written in Rust on the CPU, one fiber per thread.

mod config;
pub mod device;
mod error;
mod fault;
mod geometry;
mod machine;

pub use config::{Config, Schedule, Target};
pub use error::Error;
pub use fault::{Fault, FaultKind, SourceLocation};
pub use geometry::{
    Dim3, MAX_BLOCK_DIM, MAX_BLOCK_THREADS, MAX_GRID_DIM, MAX_SHARED_BYTES, WARP_SIZE,
};
pub use machine::{Event, Launch, Machine, Stream};
