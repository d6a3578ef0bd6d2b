//! The copy role: messages become rows.
//!
//! A row is a message in its place in the output. The rows of all experts, in order, are dealt out to all warps of all copy blocks in runs of equal length.
//! So each warp has the same work however the tokens are spread over experts and ranks, and no warp asks
//! another for more. Where a run begins, a search in `row_ends` finds the expert and the source rank at once;
//! from there on, rows and slots are consecutive until the pair ends.
//!
//! Scales whose place several rows share go another way: see [`quads`](super::quads).
//!
//! What a message says is read with ordinary loads, as it was written during this launch or while it waited.

use super::arguments::{Counters, Peer, Rank, Shape};
use super::faults::Fault;
use super::format::TokenFormat;
use super::message::MessageLayout;
use super::offsets::lay_out_nothing;
use super::output::{Place, ReceivedMessage, write_payload, write_row};
use super::wait::{Awaited, Failure, Waiter};
use super::workers::Workers;
use crate::WARP;
use crate::search::Candidates;
use core::simd::{u32x2, u32x4};
use cuda_std::view::{IndirectView, IndirectViewMut};
use cuda_std::{thread, warp};

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

/// What a lane reads of where a message came from.
#[derive(Clone, Copy)]
struct Source {
    /// Of the token's experts, the one at the lane's position.
    id: u32,
    /// The token on its source rank.
    token: u32,
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
        // Rows are counted here as the pairs have them, without the shared expert's and without padding.
        let row_ends = self.counters.row_ends();
        let total = row_ends.load(self.shape.pairs() as usize - 1);
        let run = total.div_ceil(warps.max(1));
        let mut row = (warp * run).min(total);
        let end = (row + run).min(total);
        if row < end {
            let begins_early_enough = |pair| self.counters.rows_before_pair(pair) <= row;
            let mut pair = Candidates::below(self.shape.pairs()).last(begins_early_enough);
            while row < end {
                let pair_end = row_ends.load(pair as usize).min(end);
                // SAFETY: the caller's obligation; these are rows of the pair, and nobody else's.
                unsafe { self.copy_rows_of_pair::<F>(pair, row, pair_end) };
                row = pair_end;
                pair += 1;
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

    /// The message in slot `slot` of a pair.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows), and the slot holds a message.
    #[inline(always)]
    pub(super) unsafe fn message(self, pair: u32, slot: u32) -> ReceivedMessage {
        let first = pair as usize * self.shape.capacity as usize;
        let offset = (first + slot as usize) * self.layout.words();
        // SAFETY: the caller's obligation.
        unsafe { ReceivedMessage::new(self.own.messages.add(offset), self.layout) }
    }

    /// Copies routed rows `row..end`, counted without the shared expert and without padding, all of one pair.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows).
    #[inline(always)]
    unsafe fn copy_rows_of_pair<F: TokenFormat>(self, pair: u32, mut row: u32, end: u32) {
        let (shape, output) = (self.shape, &self.rank.output);
        let (expert, _) = shape.split_pair(pair);
        let group = expert + shape.first_routed_group();
        let group_start = self.row_offsets().load(group as usize);
        let rows_before = self.counters.rows_before_pair(expert * shape.sources());
        let first_row = self.counters.rows_before_pair(pair);
        while row < end {
            // SAFETY: the count says that this slot holds a message.
            let message = unsafe { self.message(pair, row - first_row) };
            let row_in_group = row - rows_before;
            let place = Place {
                row: group_start + row_in_group,
                group,
                row_in_group,
            };
            let source = self.load_source(message);
            // SAFETY: the caller's obligation.
            unsafe {
                if F::SCALES.is_shared_by_rows() {
                    write_payload(&self.layout, output, message, place, Workers::warp());
                } else {
                    write_row::<F, _>(shape, &self.layout, output, message, place, Workers::warp());
                }
            }
            self.write_source(source, expert, place.row);
            row += 1;
        }
    }

    /// Reads where a message came from. Apart from [`write_source`](Self::write_source), so that these loads and
    /// those of the row are under way together.
    #[inline(always)]
    fn load_source(self, message: ReceivedMessage) -> Source {
        let lane = thread::thread_idx_x() % WARP;
        let id = if lane < self.shape.top_k {
            let ids = message.view::<u16>();
            ids.load((self.layout.topk_offset / 2 + lane) as usize) as u32
        } else {
            u32::MAX
        };
        let source: IndirectView<u32x4> = message.view();
        let token = source.load((self.layout.source_offset / 16) as usize)[0];
        Source { id, token }
    }

    /// Writes where a row came from: the token on its source rank, and the position of this expert among the
    /// token's.
    #[inline(always)]
    fn write_source(self, source: Source, expert: u32, row: u32) {
        let id = self.rank.rank * self.shape.local_experts + expert;
        // SAFETY: all lanes are here: rows are handed out to whole warps.
        let found = unsafe { warp::warp_vote_ballot(u32::MAX, source.id == id) };
        if thread::thread_idx_x().is_multiple_of(WARP) {
            // SAFETY: by the contract of `copy_rows`: one for each row.
            let src_info =
                unsafe { IndirectViewMut::new(self.rank.output.src_info, row as usize + 1) };
            let position = found.trailing_zeros();
            src_info.store(row as usize, u32x2::from_array([source.token, position]));
        }
    }
}
