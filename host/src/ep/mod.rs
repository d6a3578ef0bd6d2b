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
//! | [`Dispatched::combine_async`], [`PendingCombine::wait`] | one each, on each rank | the second |
//! | [`GroupDispatched::combine`] | one for all ranks | within the launch |
//!
//! What the experts make of the rows goes home by a *combine*: the token's rows times its router weights become one.
//! The handle of a dispatch, [`Dispatched`], is the right to combine it, once.
//!
//! ```
//! use half::bf16;
//! use tokenyard::Device;
//! use tokenyard::ep::{
//!     Batch, CombineFormat, CombineTarget, EpConfig, EpError, EpGroup, ExpertOutputs, TokenFormat,
//! };
//!
//! # fn main() -> Result<(), EpError> {
//! // Two ranks with two experts each; one token on either, for experts 0 and 3.
//! let config = EpConfig::builder(TokenFormat::Mxfp4)
//!     .hidden_size(64).top_k(2).experts(4).ranks(2).max_tokens_per_rank(4)
//!     .combine(CombineFormat::Bf16)
//!     .build()?;
//! let device = Device::emulator(0);
//! let stream = device.create_stream()?;
//! let mut group = EpGroup::new(&device, config)?;
//!
//! let tokens = device.upload(&vec![bf16::ONE; 64])?;
//! let ids = device.upload(&[0, 3])?;
//! let weights = device.upload(&[0.25_f32, 0.5])?;
//! let batches = [Batch::new(&tokens, &ids), Batch::new(&tokens, &ids)];
//! let mut received = [group.allocate_received()?, group.allocate_received()?];
//! let dispatched = group.dispatch(&stream, &batches, &mut received)?;
//!
//! // Experts turn the rows of `dispatched.received()` into rows of BF16; here, into ones.
//! let rows = vec![bf16::ONE; group.config().output_rows() * 64];
//! let outputs = [device.upload(&rows)?, device.upload(&rows)?];
//!
//! let mut combined = [device.alloc::<bf16>(64)?, device.alloc::<bf16>(64)?];
//! let targets = combined.iter_mut().map(|out| CombineTarget::weighted(&weights, out));
//! let experts = outputs.each_ref().map(ExpertOutputs::from);
//! dispatched.combine(&stream, &experts, &batches, targets.collect())?;
//! group.check()?;
//! assert_eq!(combined[1].download()?, [bf16::from_f32(0.75); 64]);
//! # Ok(())
//! # }
//! ```
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
//! # Failures
//!
//! No wait is without end: see [`EpConfigBuilder::deadline`] and [`EpGroup::check`].
//!
//! | cause | what is returned, and by whom |
//! | --- | --- |
//! | a rank does not dispatch | [`check`](EpGroup::check): [`Deadline`](EpError::Deadline), [`Awaited::Count`] with its number; what those who waited received has no rows |
//! | a rank dies between dispatch and combine | `check`: `Deadline`, [`Awaited::Returned`] with its number; what they combined is not to be used |
//! | the group failed before | every operation: [`Unusable`](EpError::Unusable), with the first cause |
//! | a rank begins a round too early | `dispatch_async`: [`RoundOrder`](EpError::RoundOrder); `combine_async`: [`CombineOrder`](EpError::CombineOrder) |
//! | ranks combine different rounds | `combine_async`: [`CombineRound`](EpError::CombineRound) |
//! | an output of a group of another shape | `dispatch_wait`: [`OtherShape`](EpError::OtherShape) |
//! | another batch than was dispatched | `wait`: [`OtherBatch`](EpError::OtherBatch) |
//! | a call of a rank that the group [goes on without](EpGroup::mask_rank) | [`MaskedRank`](EpError::MaskedRank) |
//!
//! After a failure a group, its outputs and handles may be dropped in any order, and a new one be made: freeing waits
//! until the device is done, which the deadline bounds. A rank that is known to be gone can be
//! [masked](EpGroup::mask_rank), before others have waited for it in vain.

mod batch;
mod combine;
mod config;
mod dequantize;
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
pub(crate) use combine::{DispatchRecord, ReturnRecord};
pub use config::{EpConfig, EpConfigBuilder, SlotOrder};
pub use dequantize::DequantizeError;
pub use error::{Awaited, EpConfigError, EpError};
pub use format::TokenFormat;
pub use group::EpGroup;
pub use ids::{IdError, check_ids};
#[cfg(feature = "fault-injection")]
pub use kernels_gpu::ep::Fault;
pub use kernels_gpu::ep::{MessageLayout, NO_SLOT};
pub use launch::LaunchShape;
pub use plan::{MemoryPlan, PlannedBuffer};
pub use rank::{CounterState, EpRank};
pub(crate) use received::ReceivedParts;
pub use received::{Dispatched, GroupDispatched, Pending, Received};
