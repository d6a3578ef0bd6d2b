//! Expert parallelism: tokens go to the ranks that have their experts.
//!
//! An [`EpGroup`] is made once for a shape, an [`EpConfig`], which says what it will allocate
//! ([`EpConfig::memory_plan`]). Each of its [ranks](EpRank) dispatches a [`Batch`], tokens and their experts' ids, and
//! gets a [`Received`]: rows by local expert, quantized on the way.
//!
//! | operation | launches | waits for other ranks |
//! | --- | --- | --- |
//! | [`EpRank::dispatch_async`], [`EpRank::dispatch_wait`] | one each, on each rank | the second |
//! | [`EpGroup::dispatch`] | one for all ranks | within the launch |
//!
//! No wait is without end: see [`EpConfigBuilder::deadline`] and [`EpGroup::check`].

mod batch;
mod config;
mod error;
mod format;
mod group;
mod ids;
mod launch;
mod plan;
mod rank;
mod received;
mod state;

pub use batch::Batch;
pub use config::{EpConfig, EpConfigBuilder, SlotOrder};
pub use error::{Awaited, EpConfigError, EpError};
pub use format::TokenFormat;
pub use group::EpGroup;
pub use ids::{IdError, check_ids};
#[cfg(feature = "fault-injection")]
pub use kernels_gpu::ep::Fault;
pub use kernels_gpu::ep::MessageLayout;
pub use launch::LaunchShape;
pub use plan::{MemoryPlan, PlannedBuffer};
pub use rank::{CounterState, EpRank};
pub(crate) use received::ReceivedParts;
pub use received::{Dispatched, GroupDispatched, Pending, Received};
