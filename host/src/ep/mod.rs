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
//! # Where ranks live
//!
//! | made by | ranks | who orders rounds |
//! | --- | --- | --- |
//! | [`EpGroup::new`] | all on one device | the host, by streams and events |
//! | [`EpGroup::across`] | on several devices of this process, evenly | the devices themselves, by receipts |
//! | [`EpGroup::join`] | one in each of several processes of this host | the same |
//!
//! Nodes are virtual so far: what would go over a network goes through memory too.
//!
//! *Receipts*: a rank that sends writes over what it sent in the round before. Where one host queues the work of all
//! ranks, it makes the send wait for the receives. Elsewhere each receiver tells every sender, on the device, that it
//! has received, and a sender waits for that before it sends again. If that lasts longer than the deadline, it does
//! not send. A fused dispatch of ranks on several devices is one launch for each device.
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
mod combine;
mod config;
mod devices;
mod error;
mod format;
mod group;
mod ids;
mod launch;
mod part;
mod peers;
mod plan;
mod progress;
mod rank;
mod received;
mod state;

pub use batch::Batch;
pub use combine::{
    CombineFormat, CombineOutput, CombineTarget, ExpertOutputs, PendingCombine, Refused,
    ReturnCounters, RouterWeights, RowElement,
};
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
