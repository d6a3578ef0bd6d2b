//! The counts: how a rank learns that all of its rows are home.
//!
//! The sending block that finishes last knows that every row of its rank has arrived, and publishes how many there
//! were of each pair, those of which there were none too. It then zeroes `pairs`: they were combined. At a receiver,
//! block 0 waits for all counts and makes them ready for the next round; the other blocks wait for block 0.
//!
//! # Order
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | stores of a row, by many threads of a block | its thread 0 | barrier |
//! | thread 0 of each sending block | thread 0 of the last | `sent`: add, acquire and release, device |
//! | thread 0 of the last | its other threads | barrier |
//! | each of those | the receiver's thread that sees the count | count: store release, load acquire, system |
//! | the receiver's threads | thread 0 of block 0 | barrier |
//! | thread 0 of block 0 | thread 0 of the other blocks | `ready`: add release, load acquire, device |
//! | thread 0 of a block | its other threads, which load rows | barrier |

use super::super::arguments::{NOT_ARRIVED, Shape};
use super::super::faults::Fault;
use super::super::wait::{Awaited, Failure, Waiter};
use super::arguments::Combining;
use core::simd::u32x2;
use cuda_std::atomic::scoped::{Atomic, Global, Relaxed, Release, System};
use cuda_std::thread;

/// The count of `word` in `counts`.
///
/// # Safety
///
/// `counts` are the receive counts of a rank, and `word` is one of them.
#[inline(always)]
unsafe fn count(counts: *mut u64, word: u32) -> Atomic<u64, System, Global> {
    // SAFETY: the caller's obligation.
    unsafe { Atomic::from_global_ptr(counts.add(word as usize)) }
}

/// Reports that this block has sent its rows. The block that is last to do so publishes all counts and takes the pairs
/// away. All threads of a block call it together, behind a barrier that follows what it sent.
///
/// A rank whose dispatch failed publishes nothing: it has not sent what the others wait for.
///
/// # Safety
///
/// `shape` and `combining` are what an entry demands.
#[inline(always)]
pub(super) unsafe fn publish_if_last(shape: &Shape, combining: &Combining) {
    let rank = &combining.rank;
    // SAFETY: the caller's obligation.
    let (counters, pairs) = unsafe { (combining.counters(), combining.pairs(shape)) };
    if !counters.is_last_to_send(shape, Fault::CountsBeforeRows) {
        return;
    }
    if Failure::of(rank).is_recorded() {
        return;
    }
    let mut pair = thread::thread_idx_x();
    while pair < shape.pairs() {
        let (expert, source) = shape.split_pair(pair);
        let rows = pairs.load(pair as usize)[1];
        if !shape.plants(Fault::PairsNotTakenAway) {
            pairs.store(pair as usize, u32x2::splat(0));
        }
        let to = if shape.has(Shape::SKIP_A2A) {
            rank.rank
        } else {
            source
        };
        if !shape.is_masked(to) {
            // SAFETY: the caller's obligation: `[nl, sources]` counts.
            let count = unsafe {
                let counts = rank.load_peer(to, shape.ranks).counts;
                count(counts, shape.pair(expert, rank.rank))
            };
            count.store(rows as u64, Release);
        }
        pair += thread::block_dim_x();
    }
}

/// Waits until all rows of the rank are home. False if that took too long. All threads of the block call it together
/// and get the same answer.
///
/// # Safety
///
/// `shape` and `combining` are what an entry demands.
#[inline(always)]
pub(super) unsafe fn wait_for_rows(shape: &Shape, combining: &Combining) -> bool {
    // SAFETY: the caller's obligation.
    let ready = unsafe { combining.counters() }.ready();
    let failure = Failure::of(&combining.rank);
    let in_time = if thread::block_idx_x() == 0 {
        let failed_before = failure.is_recorded();
        // SAFETY: the caller's obligation.
        let all = !failed_before && unsafe { collect_counts(shape, combining, failure) };
        let all = thread::sync_threads_and(all as u32) != 0;
        if all && thread::thread_idx_x() == 0 {
            ready.publish(thread::grid_dim_x());
        }
        all
    } else {
        let waiter = Waiter {
            failure,
            what: Awaited::Returns,
            rank: combining.rank.rank,
            expert: 0,
            word: 0,
        };
        let late = thread::thread_idx_x() == 0
            && !shape.plants(Fault::ReductionBeforeCounts)
            && !ready.wait(waiter, shape);
        thread::sync_threads_or(late as u32) == 0
    };
    // There is nothing to read but that it is set, so a block is done with it at once. If others have given up, there
    // is a failure record, and nobody takes the tokens for combined.
    if in_time && thread::thread_idx_x() == 0 {
        ready.finish();
    }
    in_time
}

/// Waits for this thread's share of the counts, and makes them ready for the next round.
#[inline(always)]
unsafe fn collect_counts(shape: &Shape, combining: &Combining, failure: Failure) -> bool {
    let rank = &combining.rank;
    // SAFETY: by the contract of `wait_for_rows`.
    let own = unsafe { rank.load_peer(rank.rank, shape.ranks) };
    let mut word = thread::thread_idx_x();
    while word < shape.pairs() {
        let (expert, source) = shape.split_pair(word);
        let from = if shape.has(Shape::SKIP_A2A) {
            rank.rank
        } else {
            source
        };
        // SAFETY: by the contract of `wait_for_rows`.
        let count = unsafe { count(own.counts, word) };
        let waiter = Waiter {
            failure,
            what: Awaited::Returned,
            rank: from,
            expert: from * shape.local_experts + expert,
            word,
        };
        if !shape.is_masked(from) {
            if waiter.wait(count, NOT_ARRIVED, shape).is_none() {
                return false;
            }
            if !shape.plants(Fault::ReturnCountsNotRearmed) {
                count.store(NOT_ARRIVED, Relaxed);
            }
        }
        word += thread::block_dim_x();
    }
    true
}
