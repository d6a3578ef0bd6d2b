//! Combine: what the experts made goes home.
//!
//! The right to combine a dispatch is its handle, which a combine consumes: there is no combine without a dispatch, and
//! no second one. Handles know their rank.

mod format;
mod memory;
mod operands;
mod record;
mod refused;

pub use format::{CombineFormat, RowElement};
pub use memory::ReturnCounters;
pub(super) use memory::{CombineMemory, argument_bytes};
pub use operands::{CombineOutput, CombineTarget, ExpertOutputs, RouterWeights};
pub(crate) use record::{DispatchRecord, ReturnRecord};
pub use refused::Refused;

use super::batch::{Batch, BatchIdentity};
use super::error::EpError;
use super::peers::Phase;
use super::received::{Dispatched, GroupDispatched, Received};
use super::state::GroupState;
use crate::backend::LaunchConfig;
use crate::stream::Stream;
use kernels_gpu::ep::combine::{Combining, ep_bind_combine};
use operands::{BoundTarget, Check};
use std::sync::Arc;

/// What one rank sent home, and what it gets home itself and has not added up yet.
#[derive(Debug)]
#[must_use = "rows that came home must be combined before the next ones come"]
pub struct PendingCombine<'r> {
    received: &'r mut Received,
    outputs: ExpertOutputs<'r>,
    state: Arc<GroupState>,
    rank: usize,
    batch: BatchIdentity,
    /// Combines of the rank before this one.
    index: u64,
    round: u64,
}

impl<'r> Dispatched<'r> {
    /// Sends what the experts made of the rows home to their tokens' ranks. Waits for no other rank: it ends by
    /// itself.
    ///
    /// All ranks combine the rounds that one of them combines, those that received nothing too: the others wait
    /// for their counts. It may be called on a rank once [`PendingCombine::wait`] was for the previous combine on
    /// all ranks. Whether those calls are on this stream or on others, this one's work begins behind theirs, and
    /// behind the rank's dispatch; see [streams](super#streams). It takes away the counts in [`Received::pairs`].
    ///
    /// # Errors
    ///
    /// [`Refused`], with the handle: outputs of another length, element type or device; a group that was not
    /// [made to combine](super::EpConfigBuilder::combine); a combine that begins too early, or of another round than
    /// that of other ranks, [`EpError::CombineOrder`].
    pub fn combine_async(
        mut self,
        stream: &Stream,
        outputs: impl Into<ExpertOutputs<'r>>,
    ) -> Result<PendingCombine<'r>, Refused<Self>> {
        let outputs = outputs.into();
        match self.send_home(stream, outputs) {
            Ok(index) => Ok(PendingCombine {
                received: self.received,
                outputs,
                state: self.state,
                rank: self.rank,
                batch: self.batch,
                index,
                round: self.round,
            }),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    fn send_home(&mut self, stream: &Stream, outputs: ExpertOutputs<'_>) -> Result<u64, EpError> {
        let state = Arc::clone(&self.state);
        let memory = state.combine_memory()?;
        state.device.check_same("the stream", stream.device())?;
        state.check_takes_part(self.rank)?;
        let combining = bind(&state, memory, self.rank, self.received, outputs)?;
        let mut progress = state.progress();
        let index = progress.next_combine(&state.config, self.rank, self.round)?;
        progress.queue_return(&state.config, self.rank, self.round, stream, || {
            let launches = &memory.launches;
            state.await_receipts(stream, self.rank, Phase::Combine)?;
            // SAFETY: everything has the sizes that the shape leads to: the outputs were checked, the rest was
            // allocated for it. The receivers are done with the previous combine, which `progress` sees to.
            unsafe { (launches.entries.send)(stream, launches.send, state.shape(), combining) }
        })?;
        Ok(index)
    }
}

impl PendingCombine<'_> {
    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Waits until all rows of this rank's tokens are home, and combines them. `batch` is the one that was
    /// dispatched: its ids say which positions count.
    ///
    /// Ranks that share a device must all have [sent](Dispatched::combine_async), in stream order, before the first
    /// one waits, as in a dispatch. When the stream has got there, `target` has the tokens; unless another rank did
    /// not send within the deadline, which [`EpGroup::check`](super::EpGroup::check) tells.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the handle: operands of another length, element type or device, another batch
    /// ([`EpError::OtherBatch`]), or a shared expert without weights.
    pub fn wait(
        mut self,
        stream: &Stream,
        batch: &Batch<'_>,
        target: CombineTarget<'_>,
    ) -> Result<(), Refused<Self>> {
        let result = self.add_up(stream, batch, target);
        result.map_err(|error| Refused::new(error, self))
    }

    fn add_up(
        &mut self,
        stream: &Stream,
        batch: &Batch<'_>,
        target: CombineTarget<'_>,
    ) -> Result<(), EpError> {
        let state = Arc::clone(&self.state);
        let memory = state.combine_memory()?;
        state.device.check_same("the stream", stream.device())?;
        state.check_takes_part(self.rank)?;
        let combining = bind(&state, memory, self.rank, self.received, self.outputs)?;
        let combining = aim(&state, memory, combining, self.batch, batch, target)?;
        let mut progress = state.progress();
        if progress.pending_combine(self.rank) != Some(self.index) {
            return Err(EpError::NotPending {
                rank: self.rank,
                round: self.round,
            });
        }
        progress.queue_reduce(self.rank, stream, || {
            let launches = &memory.launches;
            // SAFETY: as in `send_home`; batch and target were checked.
            unsafe {
                (launches.entries.receive)(stream, launches.receive, state.shape(), combining)
            }?;
            state.give_receipts(stream, self.rank, Phase::Combine)
        })?;
        Ok(())
    }
}

impl GroupDispatched<'_> {
    /// Sends home and combines on all ranks: one cooperative launch, in which they wait for each other. `outputs`,
    /// `batches` and `targets` are one for each rank; the batches are those that were dispatched.
    ///
    /// The result is that of [`Dispatched::combine_async`] and then [`PendingCombine::wait`] on each rank. Its work
    /// begins behind all earlier work of the group, on whatever stream that is.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the handle: what the split operations refuse, and [`EpError::NotResident`], more ranks than
    /// are resident at once.
    pub fn combine(
        mut self,
        stream: &Stream,
        outputs: &[ExpertOutputs<'_>],
        batches: &[Batch<'_>],
        targets: Vec<CombineTarget<'_>>,
    ) -> Result<(), Refused<Self>> {
        let result = self.combine_all(stream, outputs, batches, targets);
        result.map_err(|error| Refused::new(error, self))
    }

    fn combine_all(
        &mut self,
        stream: &Stream,
        outputs: &[ExpertOutputs<'_>],
        batches: &[Batch<'_>],
        targets: Vec<CombineTarget<'_>>,
    ) -> Result<(), EpError> {
        let state = Arc::clone(&self.state);
        let memory = state.combine_memory()?;
        state.device.check_same("the stream", stream.device())?;
        let ranks = self.received.len();
        if [outputs.len(), batches.len(), targets.len()] != [ranks; 3] {
            return Err(EpError::CombineCount {
                ranks,
                outputs: outputs.len(),
                batches: batches.len(),
                targets: targets.len(),
            });
        }
        let fused = memory.launches.fused.map_err(|limit| limit.error(ranks))?;
        // Everything is checked for all ranks before the first word is queued for one.
        let mut arguments = Vec::with_capacity(ranks);
        for (index, target) in targets.into_iter().enumerate() {
            let rank = state.local.start + index;
            let received = &mut self.received[index];
            let combining = bind(&state, memory, rank, received, outputs[index])?;
            let (identity, batch) = (self.batches[index], &batches[index]);
            let combining = aim(&state, memory, combining, identity, batch, target)?;
            arguments.push(combining);
        }
        let mut progress = state.progress();
        for rank in state.taking_part() {
            progress.next_combine(&state.config, rank, self.round)?;
        }
        let slots = memory.argument_slots();
        let one = LaunchConfig::line(1, 1, 0)?;
        progress.queue_combine(stream, || {
            for (number, combining) in arguments.into_iter().enumerate() {
                let slot = slots.wrapping_add(number);
                // SAFETY: there is a slot for each rank, which earlier launches have read: `progress` puts this one
                // behind them.
                unsafe { stream.launch(one, ep_bind_combine::Args { combining, slot })? };
            }
            for rank in state.taking_part() {
                state.await_receipts(stream, rank, Phase::Combine)?;
            }
            // SAFETY: as for the split operations.
            unsafe { (memory.launches.entries.fused)(stream, fused, state.shape(), slots) }?;
            for rank in state.taking_part() {
                state.give_receipts(stream, rank, Phase::Combine)?;
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// The arguments of a rank that sends `outputs` home.
fn bind(
    state: &GroupState,
    memory: &CombineMemory,
    rank: usize,
    received: &mut Received,
    outputs: ExpertOutputs<'_>,
) -> Result<Combining, EpError> {
    let config = &*state.config;
    let (rows, failure) = (config.output_rows(), state.failure(rank));
    let output = received.bind(&state.device, &state.config, rank)?;
    let outputs = outputs.bind(&state.device, check(state, memory, rank), rows)?;
    Ok(memory.bind(rank, failure, output, outputs, rows))
}

/// Those arguments with what the rank makes of the rows that come home to it.
fn aim(
    state: &GroupState,
    memory: &CombineMemory,
    combining: Combining,
    dispatched: BatchIdentity,
    batch: &Batch<'_>,
    target: CombineTarget<'_>,
) -> Result<Combining, EpError> {
    let (config, rank) = (&*state.config, combining.rank.rank as usize);
    if config.fused_shared_expert() && !target.is_weighted() {
        return Err(EpError::SharedExpertNeedsWeights { rank });
    }
    let batch = batch.bind(&state.device, config, rank)?;
    if batch.identity() != dispatched {
        return Err(EpError::OtherBatch { rank });
    }
    let (tokens, top_k) = (batch.tokens(), config.top_k());
    let BoundTarget {
        weights,
        weight_type,
        target,
    } = target.bind(&state.device, check(state, memory, rank), tokens, top_k)?;
    Ok(Combining {
        rank: batch.apply(combining.rank),
        weights,
        weight_type: weight_type as u32,
        target: target.cast(),
        ..combining
    })
}

fn check(state: &GroupState, memory: &CombineMemory, rank: usize) -> Check {
    Check {
        rank,
        hidden_size: state.config.hidden_size(),
        element: memory.format.element(),
    }
}
