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
//! A group lives on one device, which plays all its ranks; nodes are virtual too. Several devices are not
//! supported yet.
//!
//! # Streams
//!
//! The calls of a group may be on one stream or on several. Work of one round begins when what it depends on is
//! done, as if all were on one stream: where the streams differ, the later call waits for an event that the earlier
//! one left behind it. What runs side by side is the work of different ranks in one round. Inputs and outputs are the
//! caller's: who reads an output on another stream than that of its `dispatch_wait` orders the two by an
//! [event](crate::Stream::record), or waits for the device.
//!
//! Calls that [`Stream::capture`](crate::Stream::capture) records count as made when they are recorded, and do not
//! count if the recording fails. They can neither wait for what is outside the graph nor be waited for: whoever
//! launches the graph puts it behind the group's earlier work and before its later work. A graph should hold whole
//! rounds.
//!
//! No wait is without end: see [`EpConfigBuilder::deadline`] and [`EpGroup::check`].

mod batch;
mod config;
mod devices;
mod error;
mod format;
mod group;
mod ids;
mod launch;
mod peers;
mod plan;
mod progress;
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
