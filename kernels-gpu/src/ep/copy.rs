//! The copy role: messages become rows.
//!
//! A row is what a message carries in its place in the output, and a message makes as many rows as the rank has of its
//! token's experts. The messages of all sources, in order, are dealt out to all warps of all copy blocks in runs of
//! equal length. So each warp has about the same work however the tokens are spread over experts and ranks, and no warp
//! asks another for more. Where a run begins, a search in `message_ends` finds the source.
//!
//! A warp writes the rows of a message one after the other: it reads the message from memory once, and for its other
//! rows from the cache next to it. Lane `k` looks after position `k` of the token's experts: it finds out which row
//! that makes, if any, while the message before is copied.
//!
//! Scales whose place several rows share go another way: see [`quads`](super::quads).
//!
//! What a message says is read with ordinary loads, as it was written during this launch or while it waited.

use super::arguments::{Counters, Peer, Rank, Shape, quotient};
use super::faults::Fault;
use super::format::TokenFormat;
use super::message::{MessageLayout, NO_SLOT};
use super::offsets::lay_out_nothing;
use super::output::{Message, Place, ReceivedMessage, write_payload, write_row};
use super::wait::{Awaited, Failure, Waiter};
use super::workers::Workers;
use crate::WARP;
use crate::search::Candidates;
use core::simd::u32x2;
use cuda_std::view::IndirectViewMut;
use cuda_std::{thread, warp};

/// All lanes of a warp.
const FULL_MASK: u32 = u32::MAX;

/// A copy block.
#[derive(Clone, Copy)]
pub(super) struct Copier<'a> {
    pub(super) shape: &'a Shape,
    pub(super) rank: &'a Rank,
    /// Where this rank receives.
    pub(super) own: Peer,
    pub(super) layout: MessageLayout,
    pub(super) counters: Counters,
}

/// What a lane reads of a message beside its payload.
#[derive(Clone, Copy)]
struct Header {
    /// The token on its source rank.
    token: u32,
    /// Of the token's experts, the one at the lane's position, and the slot there.
    id: u32,
    slot: u32,
}

/// The row that a message makes for the expert at a lane's position.
#[derive(Clone, Copy)]
struct LaneRow {
    exists: bool,
    place: Place,
}

impl Copier<'_> {
    /// Waits until the offsets are there. False if that took too long. All threads of the block call it together
    /// and get the same answer.
    #[inline(always)]
    pub(super) fn wait_for_offsets(self) -> bool {
        if self.shape.plants(Fault::RowsBeforeLayout) {
            return true;
        }
        let waiter = Waiter {
            failure: Failure::of(self.rank),
            what: Awaited::Offsets,
            rank: self.rank.rank,
            expert: 0,
            word: 0,
        };
        let late = thread::thread_idx_x() == 0 && !self.counters.ready().wait(waiter, self.shape);
        thread::sync_threads_or(late as u32) == 0
    }

    /// Copies this block's share of the rows. All threads of the block call it together, when the offsets are
    /// there.
    ///
    /// # Safety
    ///
    /// `shape` and `rank` are what an entry demands.
    #[inline(always)]
    pub(super) unsafe fn copy_rows<F: TokenFormat>(self) {
        let warps = thread::grid_dim_x() * (thread::block_dim_x() / WARP);
        let warp =
            thread::block_idx_x() * (thread::block_dim_x() / WARP) + thread::thread_idx_x() / WARP;
        let (sources, ends) = (self.shape.sources(), self.counters.message_ends());
        let total = ends.load(sources as usize - 1);
        let run = total.div_ceil(warps.max(1));
        let mut message = (warp * run).min(total);
        let end = (message + run).min(total);
        if message < end {
            let begins_early_enough = |source| self.counters.messages_before(source) <= message;
            let mut source = Candidates::below(sources).last(begins_early_enough);
            while message < end {
                let first = self.counters.messages_before(source);
                let source_end = ends.load(source as usize).min(end);
                // SAFETY: the caller's obligation; these messages are this warp's alone.
                unsafe { self.copy_messages::<F>(source, message - first, source_end - first) };
                message = source_end;
                source += 1;
            }
        }
        if F::SCALES.is_shared_by_rows() {
            // SAFETY: the caller's obligation.
            unsafe { self.copy_scale_quads::<F>(warp, warps) };
        }
        // No thread of this block reads the offsets after this, or writes them.
        thread::sync_threads();
        if thread::thread_idx_x() == 0 && !self.counters.ready().finish() {
            // SAFETY: the caller's obligation; this is the block that laid them out, and the others have given up.
            unsafe { lay_out_nothing(self.shape, self.rank, Workers::thread()) };
        }
    }

    /// Where the rows of each group begin.
    #[inline(always)]
    pub(super) fn row_offsets(self) -> IndirectViewMut<u32> {
        let groups = self.shape.groups() as usize;
        // SAFETY: by the contract of `copy_rows`. Written by the offset block before it said that they are ready.
        unsafe { IndirectViewMut::new(self.rank.output.row_offsets, groups + 1) }
    }

    /// Message `number` of a source.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows), and there is such a message.
    #[inline(always)]
    pub(super) unsafe fn message(self, source: u32, number: u32) -> ReceivedMessage {
        let first = source as usize * self.shape.capacity as usize;
        let offset = (first + number as usize) * self.layout.words();
        // SAFETY: the caller's obligation.
        unsafe { ReceivedMessage::new(self.own.messages.add(offset), self.layout) }
    }

    /// Copies messages `number..end` of a source to their rows.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows), and these are messages that nobody else copies.
    #[inline(always)]
    unsafe fn copy_messages<F: TokenFormat>(self, source: u32, mut number: u32, end: u32) {
        let (shape, output) = (self.shape, &self.rank.output);
        let end = end.min(shape.capacity);
        if number >= end {
            return;
        }
        // SAFETY: the count says that there is such a message.
        let at = |number| unsafe { self.message(source, number) };
        let mut header = self.load_header(at(number));
        while number < end {
            let (message, lane_row) = (at(number), self.lane_row(source, header));
            let token = header.token;
            number += 1;
            if number < end {
                header = self.load_header(at(number));
            }
            self.write_source(token, lane_row);
            // SAFETY: all lanes are here: messages are handed out to whole warps.
            let mut rows = unsafe { warp::warp_vote_ballot(FULL_MASK, lane_row.exists) };
            while rows != 0 {
                let place = lane_row.place.of_lane(rows.trailing_zeros());
                let workers = Workers::warp();
                // SAFETY: the caller's obligation; the row is this message's alone.
                unsafe {
                    if F::SCALES.is_shared_by_rows() {
                        write_payload(&self.layout, output, message, place, workers);
                    } else {
                        write_row::<F, _>(shape, &self.layout, output, message, place, workers);
                    }
                }
                rows &= rows - 1;
            }
        }
    }

    /// Reads what a message says beside its payload.
    #[inline(always)]
    fn load_header(self, message: ReceivedMessage) -> Header {
        let lane = thread::thread_idx_x() % WARP;
        let (id, slot) = match lane < self.shape.top_k {
            true => (
                message
                    .view::<u16>()
                    .load((self.layout.topk_offset / 2 + lane) as usize) as u32,
                message
                    .view::<u32>()
                    .load((self.layout.slots_offset / 4 + lane) as usize),
            ),
            false => (0, NO_SLOT),
        };
        let source = message.vector((self.layout.source_offset / 16) as usize);
        Header {
            token: source[0],
            id,
            slot,
        }
    }

    /// The row for the expert at this lane's position, if it is one of this rank's.
    #[inline(always)]
    fn lane_row(self, source: u32, header: Header) -> LaneRow {
        let shape = self.shape;
        let (owner, expert) = quotient(header.id, shape.local_experts);
        // Of an expert of another rank it is the row of some pair, which is not looked at.
        let pair = expert * shape.sources() + source;
        let group = expert + shape.first_routed_group();
        let first = self.counters.rows_before_pair(pair);
        let rows = self.counters.row_ends().load(pair as usize) - first;
        // No message writes to the rows of another pair, whatever it says; `NO_SLOT` is below no number.
        let exists = owner == self.rank.rank && header.slot < rows;
        let slot = if exists { header.slot } else { 0 };
        let row_in_group = first - self.counters.rows_before_pair(expert * shape.sources()) + slot;
        LaneRow {
            exists,
            place: Place {
                row: self.row_offsets().load(group as usize) + row_in_group,
                group,
                row_in_group,
            },
        }
    }

    /// Writes where the rows of a message came from: the token on its source rank, and the position of the row's
    /// expert among the token's.
    #[inline(always)]
    fn write_source(self, token: u32, lane_row: LaneRow) {
        if lane_row.exists {
            let row = lane_row.place.row as usize;
            // SAFETY: by the contract of `copy_rows`: one for each row.
            let src_info = unsafe { IndirectViewMut::new(self.rank.output.src_info, row + 1) };
            let position = thread::thread_idx_x() % WARP;
            src_info.store(row, u32x2::from_array([token, position]));
        }
    }
}
