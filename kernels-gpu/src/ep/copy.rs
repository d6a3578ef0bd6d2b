//! The copy role: messages become rows.
//!
//! The rows of all experts, in order, are dealt out to all warps of all copy blocks in runs of equal length.
//! So each warp has the same work however the tokens are spread over experts and ranks, and no warp asks
//! another for more. Where a run begins, a search in `row_ends` finds the expert and the source rank at once;
//! from there on, rows and slots are consecutive until the pair ends.
//!
//! What a message says is read with ordinary loads, as it was written during this launch or while it waited.

use super::arguments::{Counters, PAIR_BIAS, Rank, Shape};
use super::faults::Fault;
use super::format::{ScaleLayout, TokenFormat};
use super::message::MessageLayout;
use super::output::{Place, ReceivedMessage, write_row, zero_tile_row};
use super::search::first_above;
use super::wait::{Awaited, Failure, Waiter};
use super::workers::Workers;
use crate::WARP;
use crate::scale_tile::TILE_ROWS;
use core::simd::{u32x2, u32x4};
use cuda_std::atomic::scoped::Relaxed;
use cuda_std::view::{GlobalView, GlobalViewMut};
use cuda_std::{thread, warp};

/// A copy block.
#[derive(Clone, Copy)]
pub(super) struct Copier<'a> {
    pub(super) shape: &'a Shape,
    pub(super) rank: &'a Rank,
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
        let late = thread::thread_idx_x() == 0
            && waiter.wait(self.counters.ready(), 0, self.shape).is_none();
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
        let row_ends = self.counters.row_ends();
        let total = row_ends.load(self.shape.pairs() as usize - 1);
        let run = total.div_ceil(warps);
        let mut row = (warp * run).min(total);
        let end = (row + run).min(total);
        if row < end {
            let mut pair = first_above(row_ends, row);
            while row < end {
                let pair_end = row_ends.load(pair).min(end);
                // SAFETY: the caller's obligation; these are rows of the pair, and nobody else's.
                unsafe { self.copy_rows_of_pair::<F>(pair as u32, row, pair_end) };
                row = pair_end;
                pair += 1;
            }
        }
        if F::SCALES == ScaleLayout::Tiles && !self.shape.plants(Fault::TileEndsNotCleared) {
            // SAFETY: the caller's obligation.
            unsafe { self.zero_tile_ends::<F>(warp, warps) };
        }
        // No thread of this block reads the offsets after this.
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            self.counters.ready().fetch_add(u32::MAX, Relaxed);
        }
    }

    /// The scale tile in which a group begins.
    #[inline(always)]
    fn first_tile<F: TokenFormat>(self, group: u32, first_row: u32) -> u32 {
        if F::SCALES != ScaleLayout::Tiles {
            return 0;
        }
        // SAFETY: by the contract of `copy_rows`.
        let offsets = unsafe {
            GlobalViewMut::new(
                self.rank.output.scales_offsets,
                self.shape.groups() as usize,
            )
        };
        (first_row / TILE_ROWS).wrapping_add(offsets.load(group as usize))
    }

    /// Copies routed rows `row..end`, counted without the shared expert and without padding, all of one pair.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows).
    #[inline(always)]
    unsafe fn copy_rows_of_pair<F: TokenFormat>(self, pair: u32, mut row: u32, end: u32) {
        let (shape, rank, output) = (self.shape, self.rank, &self.rank.output);
        let expert = pair / shape.sources();
        let group = expert + shape.first_routed_group();
        // SAFETY: the caller's obligation. Written by the offset block before it said that they are ready.
        let (row_offsets, pairs, peers) = unsafe {
            (
                GlobalViewMut::new(output.row_offsets, shape.groups() as usize + 1),
                GlobalViewMut::<u32x2>::new(output.pairs, shape.pairs() as usize),
                GlobalView::new(rank.peers, shape.ranks as usize),
            )
        };
        let group_start = row_offsets.load(group as usize);
        let [biased_end, count] = pairs.load(pair as usize).to_array();
        let pair_end = self.counters.row_ends().load(pair as usize);
        let first_tile = self.first_tile::<F>(group, group_start);
        let messages = peers.load(rank.rank as usize).messages;
        let cell = pair as usize * shape.capacity as usize;
        while row < end {
            let to_end = pair_end - row;
            let slot = count - to_end;
            let output_row = biased_end - PAIR_BIAS - to_end;
            // SAFETY: the count says that this slot holds a message.
            let message = unsafe {
                let offset = (cell + slot as usize) * self.layout.words();
                ReceivedMessage::new(messages.add(offset), self.layout)
            };
            let place = Place {
                row: output_row,
                group,
                row_in_group: output_row - group_start,
                first_tile,
            };
            let source = self.load_source(message);
            // SAFETY: the caller's obligation.
            unsafe {
                write_row::<F, _>(shape, &self.layout, output, message, place, Workers::warp())
            };
            self.write_source(source, expert, output_row);
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
        let source: GlobalView<u32x4> = message.view();
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
                unsafe { GlobalViewMut::new(self.rank.output.src_info, row as usize + 1) };
            let position = found.trailing_zeros();
            src_info.store(row as usize, u32x2::from_array([source.token, position]));
        }
    }

    /// Zeroes the scales that the last tile of each group has beyond the group.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows).
    #[inline(always)]
    unsafe fn zero_tile_ends<F: TokenFormat>(self, warp: u32, warps: u32) {
        let (shape, output) = (self.shape, &self.rank.output);
        // SAFETY: the caller's obligation.
        let row_offsets =
            unsafe { GlobalViewMut::new(output.row_offsets, shape.groups() as usize + 1) };
        // The rows after a group in its last tile, one after the other: fewer than a tile for each group.
        let mut next = warp;
        while next < shape.groups() * TILE_ROWS {
            let (group, row_in_tile) = (next / TILE_ROWS, next % TILE_ROWS);
            let first_row = row_offsets.load(group as usize);
            let rows = row_offsets.load(group as usize + 1) - first_row;
            if row_in_tile >= rows % TILE_ROWS && !rows.is_multiple_of(TILE_ROWS) {
                let place = Place {
                    row: 0,
                    group,
                    row_in_group: rows - rows % TILE_ROWS + row_in_tile,
                    first_tile: self.first_tile::<F>(group, first_row),
                };
                // SAFETY: the caller's obligation.
                unsafe { zero_tile_row::<F>(shape, output, place, Workers::warp()) };
            }
            next += warps;
        }
    }
}
