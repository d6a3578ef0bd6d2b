#![doc = include_str!("../README.md")]
//!
//! # How it is built
//!
//! * `machine`, `stream`: what the host calls, and the queues that it fills.
//! * `engine`: everything a machine owns, and the loop that drives it.
//! * `scheduler`: which fiber is next, virtual time, and telling a livelock from patience.
//! * `fiber`, `context`: threads on stacks of their own, and their way to the engine.
//! * `block`, `warp`: residency, barriers, the warp collective.
//! * `memory`, `shared`, `access`: what can be accessed, and the checks.
//! * `async_copy`, `mbarrier`: copies that land late, and what they complete.
//! * `report`: faults.

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

pub use block::MAX_RESIDENT_THREADS;
pub use config::{Config, Schedule, Target};
pub use error::Error;
pub use fault::{Fault, FaultKind, SourceLocation};
pub use geometry::{
    Dim3, MAX_BLOCK_DIM, MAX_BLOCK_THREADS, MAX_GRID_DIM, MAX_SHARED_BYTES, WARP_SIZE,
};
pub use machine::Machine;
pub use stream::{Event, Launch, Stream};
