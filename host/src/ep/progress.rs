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
    ranks: Vec<[Steps; 4]>,
    /// The ranks of this process. Others order themselves by receipts.
    local: Range<usize>,
    /// Which round the last two combines are of, by the parity of their number.
    combined: [u64; 2],
    /// Ranks that the group goes on without: nobody waits for what they do.
    masked: Vec<bool>,
    /// Calls that were recorded, until it is known whether there will be a graph of them.
    recorded: Vec<(Arc<Recording>, Call)>,
}

/// Half of a rank's dispatch or combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Tokens go to their experts.
    Send,
    /// Tokens from all ranks are laid out.
    Receive,
    /// What experts made goes home.
    Return,
    /// What comes home from all ranks is added up.
    Reduce,
}

impl Half {
    const DISPATCH: [Self; 2] = [Self::Send, Self::Receive];
    const COMBINE: [Self; 2] = [Self::Return, Self::Reduce];
    const ALL: [Self; 4] = [Self::Send, Self::Receive, Self::Return, Self::Reduce];
}

/// A rank's half of a round. Combines are counted by themselves, as not every dispatch is combined.
#[derive(Clone, Copy)]
struct Call {
    rank: usize,
    half: Half,
    round: u64,
}

/// The calls of one rank for one half.
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
            combined: [0; 2],
            masked: vec![false; ranks],
            recorded: Vec::new(),
        }
    }

    fn steps(&mut self, call: Call) -> &mut Steps {
        &mut self.ranks[call.rank][call.half as usize]
    }

    fn count(&self, rank: usize, half: Half) -> u64 {
        self.ranks[rank][half as usize].count
    }

    /// Goes on without a rank.
    pub(super) fn mask(&mut self, rank: usize) {
        self.masked[rank] = true;
    }

    /// The ranks that `rank` sends to, as far as this host orders them.
    fn receivers(&self, config: &EpConfig, rank: usize) -> Vec<usize> {
        let ranks = match config.skip_a2a() {
            true => rank..rank + 1,
            false => self.local.clone(),
        };
        ranks.filter(|&rank| !self.masked[rank]).collect()
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
        let [sent, received] = Half::DISPATCH.map(|half| self.count(rank, half));
        (received < sent).then_some(received)
    }

    /// The round that `rank` would send now, if those it sends to have received the one before.
    pub(super) fn next(&self, config: &EpConfig, rank: usize) -> Result<u64, EpError> {
        let round = self.count(rank, Half::Send);
        let mut receivers = self.receivers(config, rank).into_iter();
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
            let receivers = self.receivers(config, rank).into_iter();
            earlier.extend(receivers.map(|other| call(other, Half::Receive)));
        }
        let half = Half::Send;
        self.queue(stream, &earlier, &[Call { rank, half, round }], launch)
    }

    /// Queues that `rank` receives: behind its send, which is behind its previous receive, and behind the last rows
    /// that it sent home, as those were from the same output perhaps. Not behind the sends of others, as the kernel
    /// waits for those.
    pub(super) fn queue_receive(
        &mut self,
        rank: usize,
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let round = self.count(rank, Half::Receive);
        let [send, receive] = Half::DISPATCH.map(|half| Call { rank, half, round });
        let earlier: Vec<_> = [Some(send), self.last(rank, Half::Return)]
            .into_iter()
            .flatten()
            .collect();
        self.queue(stream, &earlier, &[receive], launch)
    }

    /// Queues that all ranks send and receive: behind everything.
    pub(super) fn queue_round(
        &mut self,
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.queue_all(Half::DISPATCH, stream, launch)
    }

    /// Queues that all ranks combine: behind everything.
    pub(super) fn queue_combine(
        &mut self,
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.queue_all(Half::COMBINE, stream, launch)
    }

    fn queue_all(
        &mut self,
        halves: [Half; 2],
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let (mut earlier, mut calls) = (Vec::new(), Vec::new());
        for rank in self.local.clone() {
            earlier.extend(
                Half::ALL
                    .into_iter()
                    .filter_map(|half| self.last(rank, half)),
            );
            calls.extend(halves.map(|half| Call {
                rank,
                half,
                round: self.count(rank, half),
            }));
        }
        self.queue(stream, &earlier, &calls, launch)
    }

    /// The last call of `rank` for a half.
    fn last(&self, rank: usize, half: Half) -> Option<Call> {
        let round = self.count(rank, half).checked_sub(1)?;
        Some(Call { rank, half, round })
    }

    /// The number of the combine that `rank` has sent rows home for and not waited for.
    pub(super) fn pending_combine(&self, rank: usize) -> Option<u64> {
        let [sent, reduced] = Half::COMBINE.map(|half| self.count(rank, half));
        (reduced < sent).then_some(reduced)
    }

    /// The number of the combine that `rank` would send rows home for now, of round `round`: if those that it sends
    /// to have waited for the one before, and no rank combines another round in its place.
    pub(super) fn next_combine(
        &mut self,
        config: &EpConfig,
        rank: usize,
        round: u64,
    ) -> Result<u64, EpError> {
        let number = self.count(rank, Half::Return);
        let mut receivers = self.receivers(config, rank).into_iter();
        if let Some(other) = receivers.find(|&other| self.count(other, Half::Reduce) < number) {
            return Err(EpError::CombineOrder {
                rank,
                combines: number,
                other,
                behind: self.count(other, Half::Reduce),
            });
        }
        let mut others = (0..self.ranks.len()).filter(|&other| !self.masked[other]);
        let begun = others.any(|other| self.count(other, Half::Return) > number);
        let expected = &mut self.combined[(number % 2) as usize];
        // In skip mode ranks know nothing of each other.
        match begun && !config.skip_a2a() && *expected != round {
            true => Err(EpError::CombineRound {
                rank,
                round,
                expected: *expected,
            }),
            false => {
                *expected = round;
                Ok(number)
            }
        }
    }

    /// Queues that `rank` sends home what its experts made in round `round`: behind its receive of that round, behind
    /// its previous return, and behind what those that it sends to made of that.
    pub(super) fn queue_return(
        &mut self,
        config: &EpConfig,
        rank: usize,
        round: u64,
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let number = self.count(rank, Half::Return);
        let call = |rank, half, round| Call { rank, half, round };
        let mut earlier = vec![call(rank, Half::Receive, round)];
        if let Some(number) = number.checked_sub(1) {
            earlier.push(call(rank, Half::Return, number));
            let receivers = self.receivers(config, rank).into_iter();
            earlier.extend(receivers.map(|other| call(other, Half::Reduce, number)));
        }
        let this = call(rank, Half::Return, number);
        self.queue(stream, &earlier, &[this], launch)
    }

    /// Queues that `rank` adds up what came home: behind what it sent home itself. Not behind what others send, as the
    /// kernel waits for that.
    pub(super) fn queue_reduce(
        &mut self,
        rank: usize,
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let round = self.count(rank, Half::Reduce);
        let [returned, reduce] = Half::COMBINE.map(|half| Call { rank, half, round });
        self.queue(stream, &[returned], &[reduce], launch)
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
