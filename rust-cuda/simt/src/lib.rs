//! A SIMT emulator: runs CUDA-style kernels written in Rust on the CPU, one fiber per thread

mod access;
mod async_copy;
mod block;
mod config;
mod context;
pub mod device;
mod engine;
mod error;
mod fault;
mod fiber;
mod geometry;
mod machine;
mod mbarrier;
mod memory;
mod report;
mod scheduler;
mod shared;
mod stream;
mod warp;

pub use config::{Config, Schedule, Target};
pub use error::Error;
pub use fault::{Fault, FaultKind, SourceLocation};
pub use geometry::{
    Dim3, MAX_BLOCK_DIM, MAX_BLOCK_THREADS, MAX_GRID_DIM, MAX_SHARED_BYTES, WARP_SIZE,
};
pub use machine::Machine;
pub use stream::{Event, Launch, Stream};
