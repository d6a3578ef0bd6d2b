//! The offset role: one block of a rank waits for all counts, and lays out the rows.
//!
//! With `c[e, r]` the rows from rank `r` for local expert `e`, expert-major, `P` their inclusive running
//! sum, `m[r]` the messages from rank `r`, `s` = 1 with a shared expert of `S` rows (else both 0):
//!
//! ```text
//! row_offsets = 0, S (if s), then for each expert the end of the rows of the experts before it and its own
//! row_ends[e, r]  = P[e, r]
//! message_ends[r] = m[0] + ... + m[r]
//! pairs[e, r]     = (1024 + row_offsets[e + s] + P[e, r] - P[e - 1, R - 1],  c[e, r])
//! ```
//!
//! Where the format wants it, the rows of each group, the shared expert's too, are rounded up.
//!
//! If the round fails, all of `row_offsets` and `pairs` are 0: no group has a row. The host learns of the failure
//! when it looks; a kernel that is queued behind this one would take what the round before left there for this
//! one's.

use super::arguments::{Counters, Counts, NOT_ARRIVED, PAIR_BIAS, Peer, Rank, Shape};
use super::faults::Fault;
use super::format::{ScaleLayout, TokenFormat};
use super::shared_memory::SharedMemory;
use super::wait::{Awaited, Failure, Waiter};
use super::workers::Workers;
use crate::WARP;
use crate::prefix_sum::block_exclusive_sum;
use crate::scale_tile::TILE_ROWS;
use core::simd::u32x2;
use cuda_std::atomic::scoped::{Atomic, Global, Relaxed, System};
use cuda_std::thread;
use cuda_std::view::IndirectViewMut;

/// The block that computes the offsets.
#[derive(Clone, Copy)]
pub(super) struct Offsets<'a> {
    pub(super) shape: &'a Shape,
    pub(super) rank: &'a Rank,
    /// Where this rank receives.
    pub(super) own: Peer,
    pub(super) counters: Counters,
    pub(super) shared: SharedMemory,
}

impl Offsets<'_> {
    /// Lays out what the rank gets, and lets the copy blocks begin. False if a count did not arrive in time:
    /// then nobody begins, and the rank gets [nothing](lay_out_nothing). All threads of the block call it together
    /// and get the same answer.
    ///
    /// # Safety
    ///
    /// `shape` and `rank` are what an entry demands.
    #[inline(always)]
    pub(super) unsafe fn publish<F: TokenFormat>(self) -> bool {
        if !self.collect_counts() {
            // SAFETY: the caller's obligation; no other block writes these.
            unsafe { lay_out_nothing(self.shape, self.rank, Workers::block()) };
            return false;
        }
        self.lay_out_groups::<F>();
        // Everything above is released by the one store: thread 0 is behind the barrier that was last.
        if thread::thread_idx_x() == 0 {
            self.counters.ready().publish(thread::grid_dim_x());
        }
        // Only who reads the output needs these.
        self.lay_out_pairs();
        true
    }

    #[inline(always)]
    fn warps(self) -> u32 {
        thread::block_dim_x() / WARP
    }

    /// Waits for all counts, writes `row_ends` and `message_ends`, and makes the counts ready for the next round: each
    /// thread looks after every `block_dim`-th of them.
    #[inline(always)]
    fn collect_counts(self) -> bool {
        let (pairs, sources) = (self.shape.pairs(), self.shape.sources());
        let (row_ends, message_ends) = (self.counters.row_ends(), self.counters.message_ends());
        let failure = Failure::of(self.rank);
        // Under way together with the first of the counts.
        let failed_before = failure.is_recorded();
        let mut in_time = true;
        let (mut rows_before, mut messages_before) = (0, 0);
        let mut first = 0;
        while first < pairs {
            let pair = first + thread::thread_idx_x();
            let mut counts = Counts::from_word(0);
            if pair < pairs && in_time {
                match self.wait_for_counts(pair, failure) {
                    Some(arrived) => counts = arrived,
                    None => in_time = false,
                }
            }
            if thread::sync_threads_and((in_time && !failed_before) as u32) == 0 {
                return false;
            }
            let sum = |value| block_exclusive_sum(self.shared.scratch(), self.warps(), value);
            let (before, total) = sum(counts.rows);
            if pair < pairs {
                row_ends.store(pair as usize, rows_before + before + counts.rows);
            }
            rows_before += total;
            // The pairs of expert 0 are first.
            if first < sources {
                let (before, total) = sum(counts.messages);
                if pair < sources {
                    let end = messages_before + before + counts.messages;
                    message_ends.store(pair as usize, end);
                }
                messages_before += total;
            }
            first += thread::block_dim_x();
        }
        thread::sync_threads();
        true
    }

    /// The counts of a pair.
    #[inline(always)]
    fn wait_for_counts(self, pair: u32, failure: Failure) -> Option<Counts> {
        let (expert, source) = self.shape.split_pair(pair);
        if self.shape.is_masked(source) && !self.shape.has(Shape::SKIP_A2A) {
            return Some(Counts::from_word(0));
        }
        let word = pair as usize;
        // SAFETY: by the contract of `publish`: the counts are one for each pair.
        let count =
            unsafe { Atomic::<u64, System, Global>::from_global_ptr(self.own.counts.add(word)) };
        let waiter = Waiter {
            failure,
            what: Awaited::Count,
            rank: if self.shape.has(Shape::SKIP_A2A) {
                self.rank.rank
            } else {
                source
            },
            expert: self.rank.rank * self.shape.local_experts + expert,
            word: pair,
        };
        let arrived = waiter.wait(count, NOT_ARRIVED, self.shape)?;
        // Its only writer writes it again in a later round, which begins when this rank has taken part in
        // what lies between.
        if !self.shape.plants(Fault::CountsNotRearmed) {
            count.store(NOT_ARRIVED, Relaxed);
        }
        Some(Counts::from_word(arrived))
    }

    /// `row_offsets`, `expert_ids`, and for scales in tiles `scales_offsets`.
    #[inline(always)]
    fn lay_out_groups<F: TokenFormat>(self) {
        let (shape, output) = (self.shape, &self.rank.output);
        let (groups, routed) = (shape.groups() as usize, shape.first_routed_group());
        // SAFETY: by the contract of `publish`.
        let (row_offsets, expert_ids) = unsafe {
            (
                IndirectViewMut::new(output.row_offsets, groups + 1),
                IndirectViewMut::new(output.expert_ids, groups),
            )
        };
        // SAFETY: by the contract of `publish`.
        let tokens = unsafe { self.rank.load_token_count() };
        let (_, shared_rows) = shape.shared_rows(self.rank.rank, tokens);
        let mut rows_before = shared_rows.next_multiple_of(F::SCALES.row_multiple());
        let mut tiles_before = shared_rows.div_ceil(TILE_ROWS);
        if thread::thread_idx_x() == 0 {
            row_offsets.store(0, 0);
            if routed == 1 {
                self.lay_out_group::<F>(0, 0, 0);
                expert_ids.store(0, 0);
            }
        }
        let mut first = 0;
        while first < shape.local_experts {
            let expert = first + thread::thread_idx_x();
            let exists = expert < shape.local_experts;
            let rows = if exists { self.rows_of(expert) } else { 0 };
            let rounded = match shape.plants(Fault::UnpaddedGroups) {
                true => rows,
                false => rows.next_multiple_of(F::SCALES.row_multiple()),
            };
            let scratch = self.shared.scratch();
            let (before, total) = block_exclusive_sum(scratch, self.warps(), rounded);
            let (tiles, tile_total) = match F::SCALES {
                ScaleLayout::Tiles => {
                    block_exclusive_sum(scratch, self.warps(), rows.div_ceil(TILE_ROWS))
                }
                _ => (0, 0),
            };
            if exists {
                let group = expert + routed;
                self.lay_out_group::<F>(group, rows_before + before, tiles_before + tiles);
                expert_ids.store(group as usize, group as i32);
            }
            rows_before += total;
            tiles_before += tile_total;
            first += thread::block_dim_x();
        }
        if thread::thread_idx_x() == 0 {
            row_offsets.store(groups, rows_before);
        }
        thread::sync_threads();
    }

    #[inline(always)]
    fn lay_out_group<F: TokenFormat>(self, group: u32, first_row: u32, first_tile: u32) {
        let (output, groups) = (&self.rank.output, self.shape.groups() as usize);
        // SAFETY: by the contract of `publish`.
        let row_offsets = unsafe { IndirectViewMut::new(output.row_offsets, groups + 1) };
        row_offsets.store(group as usize, first_row);
        if F::SCALES == ScaleLayout::Tiles {
            // SAFETY: as above.
            let offsets = unsafe { IndirectViewMut::new(output.scales_offsets, groups) };
            offsets.store(
                group as usize,
                first_tile.wrapping_sub(first_row / TILE_ROWS),
            );
        }
    }

    /// Rows before those of local expert `expert`, of other experts.
    #[inline(always)]
    fn rows_before(self, expert: u32) -> u32 {
        self.counters
            .rows_before_pair(expert * self.shape.sources())
    }

    #[inline(always)]
    fn rows_of(self, expert: u32) -> u32 {
        self.rows_before(expert + 1) - self.rows_before(expert)
    }

    /// `pairs`.
    #[inline(always)]
    fn lay_out_pairs(self) {
        let (shape, output) = (self.shape, &self.rank.output);
        let row_ends = self.counters.row_ends();
        // SAFETY: by the contract of `publish`.
        let (row_offsets, pairs) = unsafe {
            (
                IndirectViewMut::new(output.row_offsets, shape.groups() as usize + 1),
                IndirectViewMut::new(output.pairs, shape.pairs() as usize),
            )
        };
        let mut pair = thread::thread_idx_x();
        while pair < shape.pairs() {
            let (expert, _) = shape.split_pair(pair);
            let end = row_ends.load(pair as usize);
            let start = self.counters.rows_before_pair(pair);
            let first = row_offsets.load((expert + shape.first_routed_group()) as usize);
            let last = PAIR_BIAS + first + (end - self.rows_before(expert));
            pairs.store(pair as usize, u32x2::from_array([last, end - start]));
            pair += thread::block_dim_x();
        }
    }
}

/// Makes `row_offsets` and `pairs` those of a round that failed: all zero.
///
/// # Safety
///
/// `shape` and `rank` are what an entry demands. Nobody else writes these outputs, or reads them during the launch.
#[inline(always)]
pub(super) unsafe fn lay_out_nothing(shape: &Shape, rank: &Rank, workers: Workers) {
    let (groups, pairs) = (shape.groups() as usize, shape.pairs() as usize);
    // SAFETY: the caller's obligation.
    let (row_offsets, handles) = unsafe {
        (
            IndirectViewMut::new(rank.output.row_offsets, groups + 1),
            IndirectViewMut::new(rank.output.pairs, pairs),
        )
    };
    workers.copy(
        groups + 1,
        |_| 0,
        |index, zero| row_offsets.store(index, zero),
    );
    workers.copy(
        pairs,
        |_| u32x2::splat(0),
        |index, zero| handles.store(index, zero),
    );
}
