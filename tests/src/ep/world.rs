//! A case on a device: the ranks of a group, their inputs, and their outputs.

use anyhow::{Context as _, Result, ensure};
use half::bf16;
use tokenyard::ep::{
    Batch, EpConfig, EpError, EpGroup, LaunchShape, Pending, Received, TokenFormat,
};
use tokenyard::graph::Graph;
use tokenyard::reference::ep::{Order, ReceivedBytes};
use tokenyard::{Device, DeviceBuffer, Stream};

use super::case::EpCase;

/// A launch that leaves room for those of other ranks on the same GPU: ranks on streams of their own wait for
/// each other, and so must all be resident.
const SIDE_BY_SIDE: LaunchShape = LaunchShape {
    blocks_per_rank: 8,
    threads: 128,
};

/// How a dispatch is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Two launches for each rank, one after the other on one stream.
    Split,
    /// The same on a stream for each rank: everything that does not wait runs side by side.
    Streams,
    /// One cooperative launch for all.
    Fused,
    /// One cooperative launch to dispatch, and two for each rank, on one stream, to combine.
    FusedThenSplit,
}

impl Mode {
    /// Those that differ in dispatch.
    pub const ALL: [Mode; 3] = [Mode::Split, Mode::Streams, Mode::Fused];

    /// Those that can do what the case asks for: the shared expert is the fused launch's alone.
    pub fn of(case: &EpCase) -> &'static [Mode] {
        match case.setup.fused_shared_expert {
            true => &[Mode::Fused],
            false => &Self::ALL,
        }
    }

    /// The same, for those that differ in dispatch or combine.
    pub fn of_round_trip(case: &EpCase) -> &'static [Mode] {
        const ALL: [Mode; 4] = [
            Mode::Split,
            Mode::Streams,
            Mode::Fused,
            Mode::FusedThenSplit,
        ];
        match case.setup.fused_shared_expert {
            true => &ALL[2..],
            false => &ALL,
        }
    }

    /// Whether all ranks dispatch in one launch.
    pub(super) fn dispatches_at_once(self) -> bool {
        matches!(self, Mode::Fused | Mode::FusedThenSplit)
    }
}

/// What the outputs hold before a round, unless told: no value of any format is this throughout.
const BACKGROUND: u8 = 0xB7;

/// The ranks of a case, with outputs that rounds reuse.
pub struct World {
    pub(super) device: Device,
    pub(super) streams: Vec<Stream>,
    /// The ranks.
    pub group: EpGroup,
    pub(super) received: Vec<Received>,
}

/// A rank's tensors on the device.
#[derive(Debug)]
pub struct DeviceInput {
    tokens: DeviceBuffer<bf16>,
    topk_ids: DeviceBuffer<i32>,
    /// Where the format has one.
    factor: Option<DeviceBuffer<f32>>,
}

impl DeviceInput {
    /// Every rank's.
    ///
    /// # Errors
    /// As [`Device::upload`].
    pub fn upload(device: &Device, case: &EpCase) -> Result<Vec<Self>, EpError> {
        (0..case.ranks.len())
            .map(|rank| Self::of_rank(device, case, rank))
            .collect()
    }

    /// That of rank `rank`.
    fn of_rank(device: &Device, case: &EpCase, rank: usize) -> Result<Self, EpError> {
        let rank = &case.ranks[rank];
        let factor = (case.setup.format == TokenFormat::Nvfp4)
            .then(|| device.upload(&[case.setup.global_factor]));
        Ok(Self {
            tokens: device.upload(&rank.tokens)?,
            topk_ids: device.upload(&rank.topk_ids)?,
            factor: factor.transpose()?,
        })
    }

    /// As dispatch and combine take them.
    pub fn batch(&self) -> Batch<'_> {
        let batch = Batch::new(&self.tokens, &self.topk_ids);
        match &self.factor {
            Some(factor) => batch.input_scale(factor),
            None => batch,
        }
    }
}

impl Mode {
    /// The stream that a rank's work is on.
    pub(super) fn stream_of(self, rank: usize) -> usize {
        match self {
            Mode::Streams => rank,
            Mode::Split | Mode::Fused | Mode::FusedThenSplit => 0,
        }
    }
}

impl World {
    /// Ranks for a case.
    ///
    /// # Errors
    /// As the library's own.
    pub fn new(device: &Device, case: &EpCase) -> Result<Self> {
        Self::with_config(device, case, case.config()?)
    }

    /// Ranks for a case, by another description.
    ///
    /// # Errors
    /// As the library's own.
    pub fn with_config(device: &Device, case: &EpCase, config: EpConfig) -> Result<Self> {
        Self::of(match case.launch {
            Some(shape) => EpGroup::with_launch(device, config, shape)?,
            None => EpGroup::new(device, config)?,
        })
    }

    /// The ranks of a group, or of a member of a larger one.
    ///
    /// # Errors
    /// As the library's own.
    pub fn of(group: EpGroup) -> Result<Self> {
        let device = group.device().clone();
        let streams = group.ranks().iter().map(|_| device.create_stream());
        let received = group.ranks().iter().map(|_| group.allocate_received());
        Ok(Self {
            streams: streams.collect::<Result<_, _>>()?,
            received: received.collect::<Result<_, _>>()?,
            device,
            group,
        })
    }

    /// One round, and nothing else: outputs are as the round before left them. Ranks that have sent already, as a
    /// round that was refused half way leaves them, do not send again.
    ///
    /// # Errors
    /// As the library's own.
    pub fn dispatch(&mut self, case: &EpCase, mode: Mode) -> Result<(), EpError> {
        let inputs = self.upload(case)?;
        self.queue(&inputs, mode)?;
        self.group.check()
    }

    /// Puts the inputs of a round on the device: those of its own ranks.
    fn upload(&self, case: &EpCase) -> Result<Vec<DeviceInput>, EpError> {
        let ranks = self.group.ranks().iter();
        ranks
            .map(|rank| DeviceInput::of_rank(&self.device, case, rank.number()))
            .collect()
    }

    /// The same, and a pattern in the outputs.
    ///
    /// # Errors
    /// As the library's own.
    pub fn prepare(&mut self, case: &EpCase) -> Result<Vec<DeviceInput>, EpError> {
        self.fill(BACKGROUND)?;
        self.upload(case)
    }

    /// A round of inputs that are on the device, which is not waited for.
    ///
    /// # Errors
    /// As the library's own.
    pub fn queue(&mut self, inputs: &[DeviceInput], mode: Mode) -> Result<(), EpError> {
        let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
        if mode.dispatches_at_once() {
            self.group
                .dispatch(&self.streams[0], &batches, &mut self.received)?;
            return Ok(());
        }
        let mut pending = Vec::new();
        for (number, batch) in batches.iter().enumerate() {
            let stream = &self.streams[mode.stream_of(number)];
            let rank = &mut self.group.ranks_mut()[number];
            pending.push(match rank.pending() {
                Some(sent) => sent,
                None => rank.dispatch_async(stream, batch)?,
            });
        }
        for (number, (pending, received)) in pending.into_iter().zip(&mut self.received).enumerate()
        {
            let stream = &self.streams[mode.stream_of(number)];
            self.group.ranks_mut()[number].dispatch_wait(stream, pending, received)?;
        }
        Ok(())
    }

    /// One fused round of batches that the caller made.
    ///
    /// # Errors
    /// As the library's own.
    pub fn dispatch_batches(
        &mut self,
        stream: &Stream,
        batches: &[Batch<'_>],
    ) -> Result<(), EpError> {
        self.group.dispatch(stream, batches, &mut self.received)?;
        self.group.check()
    }

    /// A fused round of batches that the caller made, recorded and not run.
    ///
    /// # Errors
    /// As the library's own.
    pub fn capture(&mut self, stream: &Stream, batches: &[Batch<'_>]) -> Result<Graph, EpError> {
        let Self {
            group, received, ..
        } = self;
        stream.capture(|| group.dispatch(stream, batches, received).map(drop))
    }

    /// The second half of a round for one rank, which is not waited for.
    ///
    /// # Errors
    /// As the library's own.
    pub fn wait(&mut self, rank: usize, stream: &Stream, pending: Pending) -> Result<(), EpError> {
        let received = &mut self.received[rank];
        self.group.ranks_mut()[rank].dispatch_wait(stream, pending, received)?;
        Ok(())
    }

    /// Fills every output with a byte.
    ///
    /// # Errors
    /// As the library's own.
    pub fn fill(&mut self, byte: u8) -> Result<(), EpError> {
        for received in &mut self.received {
            received.fill(byte)?;
        }
        Ok(())
    }

    /// A round over outputs full of a pattern, and everything compared with the reference: rows, scales,
    /// tables, handle words, unwritten bytes, counters, counts.
    ///
    /// # Errors
    /// As the library's own, or the first thing that differs.
    pub fn check_round(&mut self, case: &EpCase, mode: Mode) -> Result<()> {
        self.fill(BACKGROUND)?;
        self.dispatch(case, mode)?;
        self.compare_round(case)?;
        self.check_counters()
    }

    /// Holds what [`queue`](Self::queue) led to, over outputs that [`prepare`](Self::prepare) has filled, to the
    /// reference. Waits for the device. It does not look at the words that ranks wait for: one of another process may
    /// have begun the next round.
    ///
    /// # Errors
    /// As the library's own, or the first thing that differs.
    pub fn compare_round(&self, case: &EpCase) -> Result<()> {
        self.group.check()?;
        self.compare_outputs(case, BACKGROUND, &self.download()?)
    }

    /// Holds downloaded outputs to the reference, over outputs that were full of `background`.
    ///
    /// # Errors
    /// The first thing that differs.
    pub fn compare(&self, case: &EpCase, background: u8, found: &[ReceivedBytes]) -> Result<()> {
        self.compare_outputs(case, background, found)?;
        self.check_counters()
    }

    fn compare_outputs(
        &self,
        case: &EpCase,
        background: u8,
        found: &[ReceivedBytes],
    ) -> Result<()> {
        let (rows, quantized) = case.expected()?;
        let before = case.background(background);
        let local = self.group.ranks().iter().zip(found).zip(&self.received);
        for ((rank, found), received) in local {
            let rank = rank.number();
            let rows = &rows[rank];
            rows.check(&quantized, &before, found, case.order)?;
            let handles = received.pairs().download()?;
            let expected = rows.handles.iter().map(|&(end, count)| [end, count]);
            ensure!(
                handles == expected.collect::<Vec<_>>(),
                "rank {rank}: handle words {handles:?}, not {:?}",
                rows.handles
            );
        }
        Ok(())
    }

    /// Holds the words that a round must leave as it found them to that.
    ///
    /// # Errors
    /// The first word that is not.
    pub fn check_counters(&self) -> Result<()> {
        for (number, rank) in self.group.ranks().iter().enumerate() {
            let counts = rank.receive_counts()?;
            let pending = counts.iter().position(|&count| count != u64::MAX);
            ensure!(
                pending.is_none(),
                "rank {number}: count word {pending:?} of {counts:?}"
            );
            let counters = rank.counters()?;
            let reserved = counters.reserved.iter().position(|&word| word != 0);
            ensure!(
                reserved.is_none() && counters.sent == 0 && counters.ready == 0,
                "rank {number}: {counters:?}"
            );
        }
        Ok(())
    }

    /// Every rank's outputs, whole.
    ///
    /// # Errors
    /// As the library's own.
    pub fn download(&self) -> Result<Vec<ReceivedBytes>> {
        let ranks = self.received.iter().map(|received| {
            Ok(ReceivedBytes {
                tokens: received.tokens().download()?,
                scales: received.scales().download()?,
                row_offsets: received.row_offsets().download()?,
                expert_ids: received.expert_ids().download()?,
                src_info: received.src_info().download()?,
                scales_offsets: received.scales_offsets().download()?,
            })
        });
        ranks.collect()
    }

    /// A rank's outputs on the device.
    pub fn received(&self, rank: usize) -> &Received {
        &self.received[rank]
    }
}

impl EpCase {
    /// Runs it in every mode that it allows, on every device, and compares.
    ///
    /// # Errors
    /// A device that fails, or the first thing that differs.
    pub fn check(&self, devices: &[Device]) -> Result<()> {
        for device in devices {
            for &mode in Mode::of(self) {
                let case = match mode {
                    Mode::Streams => self.clone().side_by_side(device),
                    _ => self.clone(),
                };
                let run = || World::new(device, &case)?.check_round(&case, mode);
                run().with_context(|| format!("{self}; {mode:?}, on {}", device.description()))?;
            }
        }
        Ok(())
    }

    /// The same, launched so that [`Mode::Streams`] works on a GPU too.
    pub fn side_by_side(mut self, device: &Device) -> Self {
        if !device.is_emulator() {
            self.launch = self.launch.or(Some(SIDE_BY_SIDE));
        }
        self
    }

    /// The same with rows in the order of tokens.
    pub fn deterministic(mut self) -> Self {
        self.order = Order::Tokens;
        self
    }
}
