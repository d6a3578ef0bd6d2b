//! All ranks of a process.

use super::batch::Batch;
use super::config::EpConfig;
use super::error::EpError;
use super::launch::LaunchShape;
use super::part::Part;
use super::peers::{Phase, ReceiveMemory};
use super::rank::EpRank;
use super::received::{GroupDispatched, Received};
use super::state::{GroupState, argument_bytes};
use crate::backend::LaunchConfig;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::stream::Stream;
use kernels_gpu::ep::{Rank, ep_bind_rank};
use std::sync::Arc;

/// A group of ranks that exchange tokens, each with buffers of its own: all of them on one device; or, of a larger
/// group, those on one of several devices ([`across`](Self::across)) or in one of several processes
/// ([`join`](Self::join)).
///
/// ```
/// use half::bf16;
/// use tokenyard::Device;
/// use tokenyard::ep::{Batch, EpConfig, EpGroup, TokenFormat};
///
/// // Two ranks with two experts each; one token on either, for experts 0 and 3.
/// let config = EpConfig::builder(TokenFormat::Mxfp4)
///     .hidden_size(64).top_k(2).experts(4).ranks(2).max_tokens_per_rank(4).build()?;
/// let device = Device::emulator(0);
/// let stream = device.create_stream()?;
/// let mut group = EpGroup::new(&device, config)?;
///
/// let tokens = device.upload(&vec![bf16::ONE; 64])?;
/// let ids = device.upload(&[0, 3])?;
/// let batches = [Batch::new(&tokens, &ids), Batch::new(&tokens, &ids)];
/// let mut received = [group.allocate_received()?, group.allocate_received()?];
/// let dispatched = group.dispatch(&stream, &batches, &mut received)?;
/// group.check()?;
///
/// let row_offsets = |rank: usize| dispatched.received()[rank].row_offsets().download();
/// assert_eq!(row_offsets(0)?, [0, 2, 2]); // expert 0 got a token from each rank
/// assert_eq!(row_offsets(1)?, [0, 0, 2]); // and so did expert 3
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EpGroup {
    ranks: Vec<EpRank>,
    /// The ranks' arguments of the next fused launch.
    fused_arguments: DeviceBuffer<u8>,
    state: Arc<GroupState>,
}

impl EpGroup {
    /// A group with all its ranks on `device`.
    ///
    /// # Errors
    ///
    /// A device that cannot allocate what [`EpConfig::memory_plan`] says, or has no such kernel.
    pub fn new(device: &Device, config: EpConfig) -> Result<Self, EpError> {
        Self::with(device, config, None)
    }

    /// A group whose kernels run with this grid and block, instead of as many blocks as fit.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`EpError::LaunchShape`].
    pub fn with_launch(
        device: &Device,
        config: EpConfig,
        launch: LaunchShape,
    ) -> Result<Self, EpError> {
        Self::with(device, config, Some(launch))
    }

    fn with(
        device: &Device,
        config: EpConfig,
        launch: Option<LaunchShape>,
    ) -> Result<Self, EpError> {
        let ranks = 0..config.ranks();
        let part = Part::new(device, config, ranks, launch, &mut ReceiveMemory::Private)?;
        let addresses = part.addresses.clone();
        part.connect(&addresses, None)
    }

    /// A group of ranks that know each other.
    pub(super) fn assemble(state: Arc<GroupState>, ranks: Vec<EpRank>) -> Result<Self, EpError> {
        Ok(Self {
            fused_arguments: state.device.alloc(argument_bytes(ranks.len()))?,
            ranks,
            state,
        })
    }

    /// Its shape.
    pub fn config(&self) -> &EpConfig {
        &self.state.config
    }

    /// The same, as outputs share it.
    pub(crate) fn shared_config(&self) -> Arc<EpConfig> {
        Arc::clone(&self.state.config)
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.state.device
    }

    /// All ranks of this process, in order.
    pub fn ranks(&self) -> &[EpRank] {
        &self.ranks
    }

    /// All ranks of this process, in order.
    pub fn ranks_mut(&mut self) -> &mut [EpRank] {
        &mut self.ranks
    }

    /// Memory for what one rank receives.
    ///
    /// # Errors
    ///
    /// As [`Device::alloc`].
    pub fn allocate_received(&self) -> Result<Received, EpError> {
        Ok(Received::new(&self.state.device, &self.state.config)?)
    }

    /// Sends and receives on all ranks: one cooperative launch, in which they wait for each other. `batches` and
    /// `received` are one for each rank.
    ///
    /// The result is that of [`dispatch_async`](EpRank::dispatch_async) and then
    /// [`dispatch_wait`](EpRank::dispatch_wait) on each rank; with a shared expert, this is the only way.
    ///
    /// Rounds may be on different streams: this one's work begins behind all earlier work of the group, on whatever
    /// stream that is; see [streams](super#streams).
    ///
    /// # Errors
    ///
    /// Inputs and outputs that do not fit the group or its device; [`EpError::NotResident`], more ranks than are
    /// resident at once; [`EpError::RoundOrder`], when a rank has sent and not received.
    pub fn dispatch<'r>(
        &mut self,
        stream: &Stream,
        batches: &[Batch<'_>],
        received: &'r mut [Received],
    ) -> Result<GroupDispatched<'r>, EpError> {
        let state = &self.state;
        state.check_usable()?;
        state.check_peers()?;
        state.device.check_same("the stream", stream.device())?;
        let ranks = self.ranks.len();
        if batches.len() != ranks || received.len() != ranks {
            return Err(EpError::RankCount {
                ranks,
                batches: batches.len(),
                received: received.len(),
            });
        }
        let fused = state.launches.fused.map_err(|limit| limit.error(ranks))?;
        // Everything is checked for all ranks before the first word is queued for one.
        let mut arguments = Vec::with_capacity(ranks);
        let mut identities = Vec::with_capacity(ranks);
        let operands = batches.iter().zip(received.iter_mut());
        for (own, (batch, output)) in self.ranks.iter_mut().zip(operands) {
            let batch = batch.bind(&state.device, &state.config, own.number())?;
            let output = output.bind(&state.device, &state.config, own.number())?;
            identities.push(batch.identity());
            let rank = batch.apply(own.arguments());
            arguments.push(Rank { output, ..rank });
        }
        let mut progress = state.progress();
        let mut round = 0;
        for rank in state.taking_part() {
            round = progress.next(&state.config, rank)?;
        }
        let slots: *mut Rank = self.fused_arguments.as_mut_ptr().cast();
        let one = LaunchConfig::line(1, 1, 0)?;
        progress.queue_round(stream, || {
            for (number, rank) in arguments.into_iter().enumerate() {
                let slot = slots.wrapping_add(number);
                // SAFETY: there is a slot for each rank, which earlier launches have read: `progress` puts this one
                // behind them.
                unsafe { stream.launch(one, ep_bind_rank::Args { rank, slot })? };
            }
            for rank in state.taking_part() {
                state.await_receipts(stream, rank, Phase::Dispatch)?;
            }
            // SAFETY: everything has the sizes that the shape leads to: inputs and outputs were checked, the rest
            // was allocated for it. The previous round is over, which `progress` and the receipts see to.
            unsafe { (state.launches.entries.fused)(stream, fused, state.shape(), slots) }?;
            for rank in state.taking_part() {
                state.give_receipts(stream, rank, Phase::Dispatch)?;
            }
            Ok(())
        })?;
        drop(progress);
        Ok(GroupDispatched {
            received,
            state: Arc::clone(state),
            round,
            batches: identities,
        })
    }

    /// Goes on without a rank, for good: from the next calls on, nobody sends to it or waits for it, and its experts'
    /// ids are nobody's. Its own calls are refused; in fused operations its operands are not used.
    ///
    /// For a rank of which is known that it will not come. What is queued already still waits for it, and a group in
    /// which such a wait reached the deadline is [unusable](EpError::Unusable): make a new one then.
    ///
    /// # Errors
    ///
    /// [`EpError::RankMask`]: no such rank, or a group of more than 64.
    pub fn mask_rank(&mut self, rank: usize) -> Result<(), EpError> {
        self.state.mask(rank)
    }

    /// The ranks that it goes on without.
    pub fn masked_ranks(&self) -> Vec<usize> {
        let takes_part = |rank: &usize| self.state.check_takes_part(*rank).is_ok();
        (0..self.config().ranks())
            .filter(|rank| !takes_part(rank))
            .collect()
    }

    /// Waits for the device, and says whether a rank gave up waiting for another.
    ///
    /// Call it before what was received is used, or whenever the device is waited for anyway.
    ///
    /// # Errors
    ///
    /// [`EpError::Deadline`], and from then on [`EpError::Unusable`] from every operation of the group.
    pub fn check(&self) -> Result<(), EpError> {
        self.state.check()
    }
}
