//! Receipts: what orders two rounds of ranks in different processes.
//!
//! A rank that sends writes over what it sent in the round before, so its receivers must be done with that. Where one
//! host queues the work of all ranks, it orders them by events. Between processes the ranks order themselves: who
//! has received tells everybody, and who sends waits for that. Each rank has a word for each receiver:
//!
//! | word `p` of rank `r`, and its only writers | |
//! | --- | --- |
//! | [`GIVEN`], at first, and by rank `p` | `p` has received what `r` sent last |
//! | [`AWAITED`], by rank `r` | `r` has waited for that, and may send the next |
//!
//! The two take turns: `r` sends after it has waited, and `p` gives the receipt for that round after it was sent.

use super::arguments::Shape;
use super::wait::{Awaited, Failure, Waiter};
use crate::WARP;
use cuda_std::atomic::scoped::{Atomic, Global, Relaxed, Release, System};
use cuda_std::prelude::*;
use cuda_std::view::IndirectView;

/// Threads of the one block that these kernels take.
pub const THREADS: u32 = WARP;

/// A receipt that its receiver has given.
pub const GIVEN: u64 = 1;

/// A receipt that its sender waits for, or will wait for.
pub const AWAITED: u64 = 0;

/// The receipts of one rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Receipts {
    /// The rank.
    pub rank: u32,
    /// `[R]`: where the words of every rank are, as addresses on this device.
    pub tables: *const u64,
    /// [`Failure::WORDS`] words.
    pub failure: *mut u32,
}

impl Receipts {
    /// The word of rank `owner` for rank `receiver`.
    ///
    /// # Safety
    ///
    /// `tables` is what the field's documentation says; both are below `ranks`.
    #[inline(always)]
    unsafe fn word(&self, owner: u32, receiver: u32, ranks: u32) -> Atomic<u64, System, Global> {
        // SAFETY: the caller's obligation.
        unsafe {
            let tables = IndirectView::<u64>::new(self.tables, ranks as usize);
            let words = tables.load(owner as usize) as *mut u64;
            Atomic::from_global_ptr(words.add(receiver as usize))
        }
    }
}

/// Waits until every rank has received what this one sent in the round before.
///
/// If one does not within the deadline, that is recorded, and what is launched next does not send.
///
/// Launch with one block of [`THREADS`] threads, before the rank sends.
///
/// # Safety
///
/// The pointers of `receipts` are what [`Receipts`] says. `shape` is that of all ranks.
#[kernel(max_threads = THREADS)]
pub unsafe fn ep_await_receipts(shape: Shape, receipts: Receipts) {
    let failure = Failure::at(receipts.failure);
    let mut rank = thread::thread_idx_x();
    while rank < shape.ranks {
        if shape.is_masked(rank) {
            rank += THREADS;
            continue;
        }
        // SAFETY: the caller's obligation.
        let word = unsafe { receipts.word(receipts.rank, rank, shape.ranks) };
        let waiter = Waiter {
            failure,
            what: Awaited::Receipt,
            rank,
            expert: 0,
            word: rank,
        };
        if waiter.wait(word, AWAITED, &shape).is_none() {
            return;
        }
        // Rank `rank` writes it again when it has received what this one sends next.
        word.store(AWAITED, Relaxed);
        rank += THREADS;
    }
}

/// Tells every rank that this one has received what it sent.
///
/// Launch with one block of [`THREADS`] threads, after the rank has received.
///
/// # Safety
///
/// As for [`ep_await_receipts`](fn@ep_await_receipts).
#[kernel(max_threads = THREADS)]
pub unsafe fn ep_give_receipts(shape: Shape, receipts: Receipts) {
    // A rank that gave up has not received.
    if Failure::at(receipts.failure).is_recorded() {
        return;
    }
    let mut rank = thread::thread_idx_x();
    while rank < shape.ranks {
        // SAFETY: the caller's obligation.
        let word = unsafe { receipts.word(rank, receipts.rank, shape.ranks) };
        word.store(GIVEN, Release);
        rank += THREADS;
    }
}
