//! The monitor: tells the receivers how many messages there are for them, and how many rows these make.
//!
//! It is the sender block that finishes last. When it knows that it is, every message of this rank has
//! arrived, and the number of slots reserved for an expert is the number of rows for it. A receiver lays
//! out its rows once it has *all* counts, so nothing would be gained by telling it of some earlier; and
//! a monitor that is not a block of its own has nobody to wait for, needs no counter for each message,
//! and need not read the table of ids once for each expert.
//!
//! # Order
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | messages, by many threads of a block | its thread 0 | completion of the copies; barrier |
//! | thread 0 of each sender block | thread 0 of the last | `sent`: add, acquire and release, device |
//! | thread 0 of the last | its other threads | barrier |
//! | each of those | the receiver's thread that sees the count | count: store release, load acquire, system |
//!
//! Every count is released by itself: a receiver that sees one may rely on it whatever it saw of the others.

use super::arguments::{Counters, Counts, Rank, Shape};
use super::faults::Fault;
use cuda_std::atomic::scoped::{Atomic, Device, Global, Relaxed, Release, System};
use cuda_std::thread;

/// Reports that this block has sent everything. The block that is last to do so publishes all counts, those
/// that are 0 too, and makes the counters ready for the next round. All threads of a block call it together,
/// behind a barrier that follows what it sent.
///
/// # Safety
///
/// `shape` and `rank` are what an entry demands.
#[inline(always)]
pub(super) unsafe fn publish_if_last(shape: &Shape, rank: &Rank, counters: Counters) {
    if !counters.is_last_to_send(shape, Fault::FirstBlockPublishes) {
        return;
    }
    // The pairs of this rank as a sender: an expert of another rank, and that rank.
    let mut pair = thread::thread_idx_x();
    while pair < shape.pairs() {
        let (expert, receiver) = shape.split_pair(pair);
        let take = |reserved: Atomic<u32, Device, Global>| {
            let count = reserved.load(Relaxed);
            if !shape.plants(Fault::SlotsNotReset) {
                reserved.store(0, Relaxed);
            }
            count
        };
        let rows = take(counters.reserved_slots(pair));
        let messages = match expert {
            0 => take(counters.reserved_messages(receiver)),
            _ => 0,
        };
        let to = match shape.has(Shape::SKIP_A2A) {
            true => rank.rank,
            false => receiver,
        };
        let word = shape.pair(expert, rank.rank);
        if !shape.is_masked(to) {
            // SAFETY: the caller's obligation: `[nl, sources]` words.
            let count = unsafe {
                let counts = rank.load_peer(to, shape.ranks).counts;
                Atomic::<u64, System, Global>::from_global_ptr(counts.add(word as usize))
            };
            count.store(Counts { rows, messages }.to_word(), Release);
        }
        pair += thread::block_dim_x();
    }
}
