//! How far the ranks of a group are, and on which streams.

use super::config::EpConfig;
use super::error::EpError;
use crate::backend::Handle;
use crate::error::DeviceError;
use crate::stream::{Event, Recording, Stream};
use std::ops::Range;
use std::sync::Arc;

/// What every rank has sent and received, as far as it is queued.
///
/// A rank that sends writes over what the previous round left in the buffers of others, so it must not do so
/// before they have received that. Calls on one stream follow each other; for those on different streams, each
/// leaves an event behind it, which the calls that must follow wait for.
///
/// Calls that a [graph](crate::graph::Graph) records count when they are recorded. They do not run then, so they
/// neither wait for events nor leave any: whoever launches the graph orders it. If the recording is given up, they
/// do not count.
pub(super) struct Progress {
    ranks: Vec<[Steps; 2]>,
    /// The ranks of this process. Others order themselves by receipts.
    local: Range<usize>,
    /// Calls that were recorded, until it is known whether there will be a graph of them.
    recorded: Vec<(Arc<Recording>, Call)>,
}

/// Half of a rank's round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Send,
    Receive,
}

impl Half {
    const BOTH: [Self; 2] = [Self::Send, Self::Receive];
}

/// A rank's half of a round.
#[derive(Clone, Copy)]
struct Call {
    rank: usize,
    half: Half,
    round: u64,
}

/// The sends of one rank, or its receives.
#[derive(Default)]
struct Steps {
    /// How many.
    count: u64,
    /// Where the last two are, by the parity of their rounds. A rank that is about to send follows what the others
    /// received in the round before. One of them may have been told to receive this round already, which waits for
    /// the very send: it must not be followed.
    marks: [Option<Mark>; 2],
}

impl Steps {
    fn mark(&mut self, round: u64) -> &mut Option<Mark> {
        &mut self.marks[(round % 2) as usize]
    }
}

/// A point of a stream.
#[derive(Clone)]
struct Mark {
    /// Streams that are gone have waited for their work, so it does no harm if another has their handle.
    stream: Handle,
    event: Arc<Event>,
}

impl Progress {
    /// Of `ranks` ranks, those of this process are `local`.
    pub(super) fn new(ranks: usize, local: Range<usize>) -> Self {
        Self {
            local,
            ranks: (0..ranks).map(|_| Default::default()).collect(),
            recorded: Vec::new(),
        }
    }

    fn steps(&mut self, call: Call) -> &mut Steps {
        &mut self.ranks[call.rank][call.half as usize]
    }

    fn count(&self, rank: usize, half: Half) -> u64 {
        self.ranks[rank][half as usize].count
    }

    /// Takes back what was recorded for graphs that will never be.
    pub(super) fn settle(&mut self) {
        for (recording, call) in std::mem::take(&mut self.recorded) {
            match recording.outcome() {
                None => self.recorded.push((recording, call)),
                Some(true) => {}
                Some(false) => self.steps(call).count -= 1,
            }
        }
    }

    /// The round that `rank` has sent and not received.
    pub(super) fn pending(&self, rank: usize) -> Option<u64> {
        let [sent, received] = Half::BOTH.map(|half| self.count(rank, half));
        (received < sent).then_some(received)
    }

    /// The round that `rank` would send now, if those it sends to have received the one before.
    pub(super) fn next(&self, config: &EpConfig, rank: usize) -> Result<u64, EpError> {
        let round = self.count(rank, Half::Send);
        let mut receivers = self.receivers(config, rank);
        match receivers.find(|&other| self.count(other, Half::Receive) < round) {
            None => Ok(round),
            Some(other) => Err(EpError::RoundOrder {
                rank,
                round,
                other,
                behind: self.count(other, Half::Receive),
            }),
        }
    }

    /// The ranks of this process that `rank` sends to.
    fn receivers(&self, config: &EpConfig, rank: usize) -> Range<usize> {
        match config.skip_a2a() {
            true => rank..rank + 1,
            false => self.local.clone(),
        }
    }

    /// Queues that `rank` sends: behind its previous send, and behind the receives of what that sent.
    pub(super) fn queue_send(
        &mut self,
        config: &EpConfig,
        rank: usize,
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let round = self.count(rank, Half::Send);
        let mut earlier = Vec::new();
        if let Some(round) = round.checked_sub(1) {
            let call = |rank, half| Call { rank, half, round };
            earlier.push(call(rank, Half::Send));
            let receivers = self.receivers(config, rank);
            earlier.extend(receivers.map(|other| call(other, Half::Receive)));
        }
        let half = Half::Send;
        self.queue(stream, &earlier, &[Call { rank, half, round }], launch)
    }

    /// Queues that `rank` receives: behind its send, which is behind its previous receive. Not behind the sends
    /// of others, as the kernel waits for those.
    pub(super) fn queue_receive(
        &mut self,
        rank: usize,
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let round = self.count(rank, Half::Receive);
        let [send, receive] = Half::BOTH.map(|half| Call { rank, half, round });
        self.queue(stream, &[send], &[receive], launch)
    }

    /// Queues that all ranks send and receive: behind everything.
    pub(super) fn queue_round(
        &mut self,
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut calls = Vec::new();
        for rank in self.local.clone() {
            for half in Half::BOTH {
                let round = self.count(rank, half);
                calls.push(Call { rank, half, round });
            }
        }
        let previous = calls.iter().filter_map(|call| {
            let round = call.round.checked_sub(1)?;
            Some(Call { round, ..*call })
        });
        let earlier: Vec<_> = previous.collect();
        self.queue(stream, &earlier, &calls, launch)
    }

    /// Queues what `launch` launches, which is `calls`, behind the calls `earlier`, on whatever streams these are.
    fn queue(
        &mut self,
        stream: &Stream,
        earlier: &[Call],
        calls: &[Call],
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let recording = stream.recording();
        if recording.is_none() {
            // Calls of several ranks share an event if they were one launch.
            let mut awaited = Vec::new();
            for &call in earlier {
                if let Some(Mark { stream: on, event }) = self.steps(call).mark(call.round)
                    && *on != stream.handle()
                    && !awaited.iter().any(|other| Arc::ptr_eq(other, event))
                {
                    awaited.push(Arc::clone(event));
                }
            }
            for event in awaited {
                stream.wait(&event)?;
            }
        }
        launch()?;
        for &call in calls {
            self.steps(call).count += 1;
        }
        if let Some(recording) = recording {
            let calls = calls.iter().map(|&call| (Arc::clone(&recording), call));
            self.recorded.extend(calls);
            return Ok(());
        }
        // Only a device that has failed for good refuses to record an event.
        let mark = Mark {
            stream: stream.handle(),
            event: Arc::new(stream.record_untimed()?),
        };
        for &call in calls {
            *self.steps(call).mark(call.round) = Some(mark.clone());
        }
        Ok(())
    }
}
