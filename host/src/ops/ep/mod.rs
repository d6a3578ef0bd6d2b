//! `ep.dispatch`, `ep.combine` and their siblings: an [`EpGroup`](crate::ep::EpGroup) by name.
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
//!
//! `ep.combine`, `ep.combine_async` and `ep.combine_wait` bring the rows home, whatever the tokens were dispatched as.
//! The session knows which dispatch a rank has not combined; the tables of addresses are those of
//! [`EpSession::combine_pointer_tables`].

mod combine;
mod execute;
mod infer;
mod schema;
mod session;

pub use session::{EpSession, PointerTables};

pub(super) use schema::OPERATIONS;

/// Which half of a dispatch or combine an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Both,
    Send,
    Receive,
}

impl Half {
    /// How many times the operands are given: once for each rank of the group for a fused operation.
    fn instances(self, context: &super::OpContext<'_>) -> usize {
        match (&context.session, self) {
            (Some((session, _)), Half::Both) => session.group.config().ranks(),
            _ => 1,
        }
    }
}

/// A dispatch operation.
struct EpOperation {
    half: Half,
    format: crate::ep::TokenFormat,
}
