//! `ep.dispatch` and its siblings: an [`EpGroup`](crate::ep::EpGroup) by name.
//!
//! | Suffix | Format | `dispatch_dtype` | `dispatch_scale_dtype` |
//! |---|---|---|---|
//! | none | BF16 | `bfloat16` | not given |
//! | `.fp8` | blockwise FP8 | `float8_e4m3fn` | `float32` |
//! | `.nvfp4` | NVFP4 | `uint8` | `float8_e4m3fn` |
//! | `.mxfp4` | MXFP4 | `uint8` | `float8_e8m0fnu` |
//! | `.mxfp8` | MXFP8 | `float8_e4m3fn` | `float8_e8m0fnu` |
//!
//! `ep.dispatch` sends and receives in one launch, for all ranks of the group: its tensors are those of
//! rank 0, then those of rank 1, and so on. `ep.dispatch_async` and `ep.dispatch_wait` are for one rank, the
//! one that the [context](super::OpContext::with_ranks) names, and have no shared expert.
//!
//! The communication buffers are the group's, which is what the engine's init operation makes. The tables of
//! addresses must be those of the group ([`EpSession::pointer_tables`]): they are compared, so that an engine that
//! mixes up two groups is told. `atomic_counters` carries what combine needs of a dispatch; the words of the
//! protocol, which are private to it, are the group's.

mod execute;
mod infer;
mod schema;
mod session;

pub use session::{EpSession, PointerTables};

pub(super) use schema::OPERATIONS;

/// Which half of a dispatch an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Both,
    Send,
    Receive,
}

/// An operation of the family.
struct EpOperation {
    half: Half,
    format: crate::ep::TokenFormat,
}
