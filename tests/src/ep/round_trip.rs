//! Dispatch and combine on a device.

use anyhow::{Context as _, Result, ensure};
use half::bf16;
use tokenyard::ep::{Batch, EpError, EpGroup, Received, TokenFormat};
use tokenyard::graph::Graph;
use tokenyard::{Device, DeviceBuffer, Stream};

use super::case::EpCase;
use super::returns::{DeviceReturns, Returns};
use super::world::{DeviceInput, Mode, World};
use crate::values::{DeviceRows, Rows};

/// What comes back is written over.
const BACKGROUND: u8 = 0x9D;

impl World {
    /// Queues a round trip of batches that the caller made, and does not wait for it.
    ///
    /// # Errors
    /// As the library's own.
    pub fn queue_round_trip(
        &mut self,
        batches: &[Batch<'_>],
        mode: Mode,
        returns: &mut DeviceReturns,
    ) -> Result<(), EpError> {
        self.queue_round_trip_between(batches, mode, returns, |_| Ok(()))
    }

    /// The same, with something queued on a rank's stream before each of its steps.
    ///
    /// # Errors
    /// As the library's own, or what `before` says.
    pub fn queue_round_trip_between(
        &mut self,
        batches: &[Batch<'_>],
        mode: Mode,
        returns: &mut DeviceReturns,
        mut before: impl FnMut(&Stream) -> Result<(), EpError>,
    ) -> Result<(), EpError> {
        if mode == Mode::Fused {
            let stream = &self.streams[0];
            before(stream)?;
            return queue_fused(
                &mut self.group,
                &mut self.received,
                stream,
                batches,
                returns,
            );
        }
        let Self {
            group,
            streams,
            received,
            ..
        } = self;
        let stream = |rank: usize| &streams[mode.stream_of(rank)];
        let (outputs, targets) = returns.operands();
        let mut dispatched = Vec::new();
        if mode.dispatches_at_once() {
            before(stream(0))?;
            let all = group.dispatch(stream(0), batches, received)?;
            dispatched.extend(all.into_ranks());
        } else {
            let mut pending = Vec::new();
            for (rank, batch) in batches.iter().enumerate() {
                before(stream(rank))?;
                pending.push(group.ranks_mut()[rank].dispatch_async(stream(rank), batch)?);
            }
            for (rank, (pending, received)) in pending.into_iter().zip(received).enumerate() {
                before(stream(rank))?;
                let handle = &mut group.ranks_mut()[rank];
                dispatched.push(handle.dispatch_wait(stream(rank), pending, received)?);
            }
        }
        let mut sent = Vec::new();
        for (rank, (dispatched, outputs)) in dispatched.into_iter().zip(outputs).enumerate() {
            before(stream(rank))?;
            sent.push(dispatched.combine_async(stream(rank), outputs)?);
        }
        for (rank, (sent, target)) in sent.into_iter().zip(targets).enumerate() {
            before(stream(rank))?;
            sent.wait(stream(rank), &batches[rank], target)?;
        }
        Ok(())
    }

    /// A fused round trip of batches that the caller made, recorded and not run.
    ///
    /// # Errors
    /// As the library's own.
    pub fn capture_round_trip(
        &mut self,
        stream: &Stream,
        batches: &[Batch<'_>],
        returns: &mut DeviceReturns,
    ) -> Result<Graph, EpError> {
        let Self {
            group, received, ..
        } = self;
        stream.capture(|| queue_fused(group, received, stream, batches, returns))
    }

    /// A round trip, and nothing else: outputs are as the round before left them.
    ///
    /// # Errors
    /// As the library's own.
    pub fn round_trip(
        &mut self,
        case: &EpCase,
        mode: Mode,
        returns: &mut DeviceReturns,
    ) -> Result<(), EpError> {
        let inputs = DeviceInput::upload(&self.device, case)?;
        let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
        self.queue_round_trip(&batches, mode, returns)?;
        self.group.check()
    }

    /// A round trip over outputs full of a pattern, compared with the reference, and the state that it leaves. Returns
    /// what came back.
    ///
    /// # Errors
    /// As the library's own, or the first thing that differs.
    pub fn check_round_trip(
        &mut self,
        case: &EpCase,
        mode: Mode,
        returns: &Returns,
    ) -> Result<Vec<Rows>> {
        let mut on_device = returns.upload(case, &self.device, BACKGROUND)?;
        self.round_trip(case, mode, &mut on_device)?;
        let found = on_device.download()?;
        returns.check(case, &self.sources()?, BACKGROUND, &found)?;
        self.check_combined()?;
        Ok(found)
    }

    /// Of every rank, where its rows are from.
    ///
    /// # Errors
    /// As the library's own.
    pub fn sources(&self) -> Result<Vec<Vec<[i32; 2]>>> {
        let ranks = self.received.iter();
        ranks.map(|it| Ok(it.src_info().download()?)).collect()
    }

    /// Holds the words that a combine must leave to that: no pairs to combine again, no count taken for the next
    /// round's, counters as they were.
    ///
    /// # Errors
    /// The first word that is not.
    pub fn check_combined(&self) -> Result<()> {
        self.check_counters()?;
        for (number, rank) in self.group.ranks().iter().enumerate() {
            let pairs = self.received[number].pairs().download()?;
            ensure!(
                pairs.iter().all(|pair| *pair == [0, 0]),
                "rank {number}: pairs {pairs:?} after combine"
            );
            let counts = rank.return_counts()?;
            let pending = counts.iter().position(|&count| count != u64::MAX);
            ensure!(
                pending.is_none(),
                "rank {number}: return count word {pending:?} of {counts:?}"
            );
            let counters = rank.return_counters()?;
            ensure!(
                counters.sent == 0 && counters.ready == 0,
                "rank {number}: {counters:?}"
            );
        }
        Ok(())
    }

    /// Expert outputs of experts that change nothing: the rows themselves, which must have travelled as BF16.
    ///
    /// # Errors
    /// As the library's own; rows of another format.
    pub fn identity_outputs(&self) -> Result<Vec<DeviceRows>> {
        let format = self.group.config().format();
        ensure!(format == TokenFormat::Bf16, "rows are {format}");
        let ranks = self.received.iter().map(|received| {
            let tokens = received.tokens();
            let start = tokens.as_ptr().cast_mut().cast::<bf16>();
            let len = tokens.len() / size_of::<bf16>();
            // SAFETY: the memory is that of `tokens`, which the world keeps; its users are finished with the view
            // when they are finished with the world. Nobody writes through it.
            let view = unsafe { DeviceBuffer::from_raw(tokens.device(), start, len)? };
            Ok(DeviceRows::Bf16(view))
        });
        ranks.collect()
    }
}

fn queue_fused(
    group: &mut EpGroup,
    received: &mut [Received],
    stream: &Stream,
    batches: &[Batch<'_>],
    returns: &mut DeviceReturns,
) -> Result<(), EpError> {
    let (outputs, targets) = returns.operands();
    let dispatched = group.dispatch(stream, batches, received)?;
    dispatched.combine(stream, &outputs, batches, targets)?;
    Ok(())
}

impl EpCase {
    /// Round trips in every mode that the case allows, on every device, each compared with the reference.
    ///
    /// # Errors
    /// A device that fails, or the first thing that differs.
    pub fn check_round_trips(&self, devices: &[Device], returns: &Returns) -> Result<()> {
        let weights = returns.weights.as_ref().and_then(|ranks| ranks.first());
        let weights = weights.map_or("without weights".to_owned(), |weights| {
            format!("weights {}", weights.input_type())
        });
        for device in devices {
            // Ranks side by side take another launch, and so another group.
            let (streams, others): (Vec<_>, Vec<_>) = Mode::of_round_trip(self)
                .iter()
                .partition(|&&mode| mode == Mode::Streams);
            let side_by_side = self.clone().side_by_side(device);
            for (case, modes) in [(self, others), (&side_by_side, streams)] {
                let mut world = None;
                for mode in modes {
                    let mut run = || -> Result<()> {
                        let world = match &mut world {
                            Some(world) => world,
                            none => none.insert(World::new(device, case)?),
                        };
                        world.check_round_trip(case, mode, returns)?;
                        Ok(())
                    };
                    run().with_context(|| {
                        let device = device.description();
                        format!("{self}; {weights}; {mode:?}, on {device}")
                    })?;
                }
            }
        }
        Ok(())
    }
}
