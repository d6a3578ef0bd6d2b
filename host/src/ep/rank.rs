//! One rank of a group.

use super::batch::{Batch, BatchIdentity};
use super::combine::ReturnCounters;
use super::error::EpError;
use super::peers::{Phase, ReceiveMemory};
use super::received::{Dispatched, Pending, Received};
use super::state::GroupState;
use crate::buffer::DeviceBuffer;
use crate::error::DeviceError;
use crate::stream::Stream;
use kernels_gpu::ep::{Counters, Output, Rank};
use std::ptr;
use std::sync::Arc;

/// A rank: its receive buffer and counters, and its number.
///
/// Its operations queue work and return: they neither allocate device memory nor wait, and so can be captured in
/// a graph. What they check, they check before anything is queued.
#[derive(Debug)]
pub struct EpRank {
    number: usize,
    pub(super) state: Arc<GroupState>,
    messages: DeviceBuffer<u8>,
    counts: DeviceBuffer<u64>,
    counters: DeviceBuffer<u32>,
    /// With several nodes.
    send_rows: Option<DeviceBuffer<u8>>,
    /// What it sent last.
    batch: Option<BatchIdentity>,
}

/// A rank's counters, as they lie in device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// Slots reserved, by the receiver's local expert and its rank, then messages reserved, by the receiver. 0 between
    /// rounds.
    pub reserved: Vec<u32>,
    /// Rows up to and including those of each pair, in the last round.
    pub row_ends: Vec<u32>,
    /// Sender blocks that are done. 0 between rounds.
    pub sent: u32,
    /// Blocks that may still read the layout; the highest bit, if one gave up waiting for it. 0 between rounds.
    pub ready: u32,
}

impl EpRank {
    /// The rank, and its memory. What other ranks write comes from `memory`, in the order of
    /// [`addresses`](Self::addresses).
    pub(super) fn allocate(
        state: &Arc<GroupState>,
        number: usize,
        memory: &mut ReceiveMemory,
    ) -> Result<Self, EpError> {
        let (device, config) = (&state.device, &state.config);
        let message = config.message_layout().bytes as usize;
        let capacity = config.max_tokens_per_rank();
        let (pairs, sources) = (config.pairs(), config.sources());
        let several_nodes = config.ranks_per_node() < config.ranks();
        Ok(Self {
            number,
            state: Arc::clone(state),
            messages: memory.alloc(device, config.receive_bytes())?,
            counts: memory.alloc_filled(device, pairs, 0xFF)?,
            counters: device.alloc_filled(Counters::words(pairs as u32, sources as u32), 0)?,
            send_rows: several_nodes
                .then(|| device.alloc(capacity * message))
                .transpose()?,
            batch: None,
        })
    }

    /// Where it receives: messages and counts.
    pub(super) fn addresses(&self) -> [u64; 2] {
        [self.messages.as_ptr() as u64, self.counts.as_ptr() as u64]
    }

    /// Addresses of the send buffer, 0 for none, of the receive buffer and of the receive counts.
    pub(crate) fn buffer_addresses(&self) -> [u64; 3] {
        let send = self
            .send_rows
            .as_ref()
            .map_or(0, |rows| rows.as_ptr() as u64);
        let [messages, counts] = self.addresses();
        [send, messages, counts]
    }

    /// The same of combine, if the group combines.
    pub(crate) fn combine_addresses(&self) -> Option<[u64; 3]> {
        let memory = self.state.combine_memory().ok()?;
        Some(memory.buffer_addresses(self.number))
    }

    /// Its number.
    pub fn number(&self) -> usize {
        self.number
    }

    /// What it has sent and not received, if there is anything: what the last
    /// [`dispatch_async`](Self::dispatch_async) returned.
    pub fn pending(&self) -> Option<Pending> {
        let round = self.state.progress().pending(self.number)?;
        Some(self.pending_of(round))
    }

    fn pending_of(&self, round: u64) -> Pending {
        Pending {
            group: self.state.id,
            rank: self.number,
            round,
        }
    }

    /// Its arguments, without input and output.
    pub(super) fn arguments(&mut self) -> Rank {
        Rank {
            rank: self.number as u32,
            token_limit: 0,
            token_count: ptr::null(),
            tokens: ptr::null(),
            topk_ids: ptr::null(),
            input_scale: ptr::null(),
            peers: self.state.peers(),
            send_rows: self
                .send_rows
                .as_mut()
                .map_or(ptr::null_mut(), |rows| rows.as_mut_ptr().cast()),
            counters: self.counters.as_mut_ptr(),
            failure: self.state.failure(self.number),
            output: Output {
                tokens: ptr::null_mut(),
                scales: ptr::null_mut(),
                row_offsets: ptr::null_mut(),
                scales_offsets: ptr::null_mut(),
                expert_ids: ptr::null_mut(),
                src_info: ptr::null_mut(),
                pairs: ptr::null_mut(),
            },
        }
    }

    /// Sends this rank's tokens. Waits for no other rank: it ends by itself.
    ///
    /// All ranks send in every round, those without tokens too: the others wait for their counts. A round may
    /// begin on a rank once [`dispatch_wait`](Self::dispatch_wait) was called for the previous one on all ranks.
    /// Whether those calls are on this stream or on others, this one's work begins behind theirs; see
    /// [streams](super#streams).
    ///
    /// # Errors
    ///
    /// Inputs that do not fit the group, another device's, a shared expert (only the fused operation has one), or a
    /// round that begins too early: [`EpError::RoundOrder`].
    pub fn dispatch_async(
        &mut self,
        stream: &Stream,
        batch: &Batch<'_>,
    ) -> Result<Pending, EpError> {
        let state = Arc::clone(&self.state);
        state.check_usable()?;
        state.check_peers()?;
        state.device.check_same("the stream", stream.device())?;
        state.check_takes_part(self.number)?;
        if state.config.fused_shared_expert() {
            return Err(EpError::SharedExpertNeedsFused);
        }
        let batch = batch.bind(&state.device, &state.config, self.number)?;
        let identity = batch.identity();
        let rank = batch.apply(self.arguments());
        let mut progress = state.progress();
        let round = progress.next(&state.config, self.number)?;
        progress.queue_send(&state.config, self.number, stream, || {
            let launches = &state.launches;
            state.await_receipts(stream, self.number, Phase::Dispatch)?;
            // SAFETY: everything has the sizes that the shape leads to: the inputs were checked, the rest was
            // allocated for it. The receivers are done with the previous round, which `progress` sees to.
            unsafe { (launches.entries.send)(stream, launches.send, state.shape(), rank) }
        })?;
        self.batch = Some(identity);
        Ok(self.pending_of(round))
    }

    /// Receives what all ranks sent this one in the round of `pending`.
    ///
    /// Ranks that share a device must all have sent, in stream order, before the first one receives: one that
    /// waits may occupy the whole device, and those it waits for would never start.
    ///
    /// When the stream has got there, `received` holds it; unless another rank did not send within the deadline,
    /// which [`EpGroup::check`](super::EpGroup::check) tells. Row offsets and handle words are all 0 then, for
    /// kernels behind this call that begin before anybody checks.
    ///
    /// # Errors
    ///
    /// A handle of another rank or group, one whose round was received already, an output for another shape or on
    /// another device. What was sent can still be received then: `pending` stays what it is, and
    /// [`pending`](Self::pending) gives it again.
    pub fn dispatch_wait<'r>(
        &mut self,
        stream: &Stream,
        pending: Pending,
        received: &'r mut Received,
    ) -> Result<Dispatched<'r>, EpError> {
        let state = Arc::clone(&self.state);
        state.check_usable()?;
        state.device.check_same("the stream", stream.device())?;
        state.check_takes_part(self.number)?;
        if pending.group != state.id || pending.rank != self.number {
            return Err(EpError::ForeignHandle {
                rank: self.number,
                sender: pending.rank,
                same_group: pending.group == state.id,
            });
        }
        let rank = Rank {
            output: received.bind(&state.device, &state.config, self.number)?,
            ..self.arguments()
        };
        let mut progress = state.progress();
        let not_pending = EpError::NotPending {
            rank: self.number,
            round: pending.round,
        };
        let Some(batch) = self.batch else {
            return Err(not_pending);
        };
        if progress.pending(self.number) != Some(pending.round) {
            return Err(not_pending);
        }
        progress.queue_receive(self.number, stream, || {
            let launches = &state.launches;
            // SAFETY: as in `dispatch_async`; the output was checked.
            unsafe { (launches.entries.receive)(stream, launches.receive, state.shape(), rank) }?;
            state.give_receipts(stream, self.number, Phase::Dispatch)
        })?;
        drop(progress);
        Ok(Dispatched {
            received,
            state,
            rank: self.number,
            round: pending.round,
            batch,
        })
    }

    /// The messages received, `[sources, C, message]`. Waits for the device.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::download`].
    pub fn receive_buffer(&self) -> Result<Vec<u8>, DeviceError> {
        let mut messages = self.messages.download()?;
        messages.truncate(self.state.config.message_bytes());
        Ok(messages)
    }

    /// The receive counts, `[local experts, sources]`; all ones between rounds. Waits for the device.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::download`].
    pub fn receive_counts(&self) -> Result<Vec<u64>, DeviceError> {
        self.counts.download()
    }

    /// The receive counts of combine, `[local experts, sources]` by the sender's expert and rank; all ones between
    /// combines. Waits for the device.
    ///
    /// # Errors
    ///
    /// A group that does not combine, and as [`DeviceBuffer::download`].
    pub fn return_counts(&self) -> Result<Vec<u64>, EpError> {
        self.state.combine_memory()?.counts(self.number)
    }

    /// The counters of combine. Waits for the device.
    ///
    /// # Errors
    ///
    /// As [`return_counts`](Self::return_counts).
    pub fn return_counters(&self) -> Result<ReturnCounters, EpError> {
        self.state.combine_memory()?.counters(self.number)
    }

    /// The counters. Waits for the device.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::download`].
    pub fn counters(&self) -> Result<CounterState, DeviceError> {
        let words = self.counters.download()?;
        let (pairs, sources) = (self.state.config.pairs(), self.state.config.sources());
        let reserved = pairs + sources;
        let [pairs_word, sources_word] = [pairs as u32, sources as u32];
        Ok(CounterState {
            reserved: words[..reserved].to_vec(),
            row_ends: words[reserved..][..pairs].to_vec(),
            sent: words[Counters::sent_word(pairs_word, sources_word)],
            ready: words[Counters::ready_word(pairs_word, sources_word)],
        })
    }
}
