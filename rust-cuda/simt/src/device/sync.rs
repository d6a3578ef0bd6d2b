//! Barriers, the warp collective, and yield points.

use std::panic::Location;

use crate::block::Arrival;
use crate::context;

/// Why a thread yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Yield {
    /// It looks at something that another thread may change: a load, a failed try-wait. Where nothing but
    /// this happens for [`crate::Config::spin_limit`] times, it is a livelock.
    Spin,
    /// It changes something that another thread may look at: a store, a read-modify-write.
    Progress,
}

/// Result of [`sync_threads_reduce`] over the threads that took part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BarrierVote {
    /// Threads whose predicate was true.
    pub count: u32,
    /// Whether it was true for all.
    pub all: bool,
    /// Whether it was true for any.
    pub any: bool,
}

/// Result of [`warp_exchange`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarpValues {
    /// By lane; 0 for lanes that `mask` does not name.
    pub values: [u64; 32],
    /// The lanes that met.
    pub mask: u32,
}

/// Waits for all threads of the block that have not exited (`bar.sync 0`).
///
/// Faults where a thread exits while others wait, and where threads meet here by different operations.
#[track_caller]
pub fn sync_threads() {
    arrive("sync_threads", 0, None, false, true);
}

/// As [`sync_threads`], and tells for how many threads `predicate` was true (`bar.red`).
#[track_caller]
pub fn sync_threads_reduce(predicate: bool) -> BarrierVote {
    arrive("sync_threads_reduce", 0, None, predicate, true);
    context::peek(|engine, id| engine.fibers[id].vote)
}

/// Waits at barrier `id` (0 to 15) until `threads` threads, a multiple of 32, have arrived
/// (`bar.sync id, threads`). Every thread counts for itself.
#[track_caller]
pub fn named_barrier_sync(id: u32, threads: u32) {
    arrive("a named barrier", id, Some(threads), false, true);
}

/// Arrives at barrier `id` without waiting (`bar.arrive id, threads`).
#[track_caller]
pub fn named_barrier_arrive(id: u32, threads: u32) {
    arrive("a named barrier", id, Some(threads), false, false);
}

#[track_caller]
fn arrive(op: &'static str, barrier: u32, expected: Option<u32>, predicate: bool, waits: bool) {
    let location = Location::caller();
    let arrival = Arrival {
        op,
        id: barrier,
        expected,
        predicate,
        waits,
    };
    context::act(|engine, id| engine.barrier_arrive(id, &arrival, location));
}

/// The one warp collective: waits for every lane of `mask`, and returns the values of all. Shuffles, votes,
/// matches, reductions and the warp barrier are computed from it.
///
/// `op` names the instruction. Faults where lanes of a mask meet under different instructions or masks,
/// where the mask names a lane that has exited or does not exist, and where it does not name the caller.
#[track_caller]
pub fn warp_exchange(op: &'static str, mask: u32, value: u64) -> WarpValues {
    let location = Location::caller();
    let mut met = WarpValues::default();
    // Whoever completes the exchange writes through this pointer, while this lane is suspended below.
    let out = &raw mut met;
    context::act(|engine, id| engine.warp_exchange(id, (op, mask, value), out, location));
    met
}

/// The lanes that execute this together. Threads of an emulated warp never run in lockstep, so it is the
/// calling lane alone, which is a legal answer of the instruction (`activemask`): code that is right with
/// this answer is right with every other.
pub fn active_mask() -> u32 {
    1 << super::lane_id()
}

/// Lets other threads run. Every atomic operation calls it before it happens. The next eight checked
/// accesses of the thread are not preempted, so that an operation may be made of several.
#[track_caller]
pub fn yield_point(kind: Yield) {
    let location = Location::caller();
    context::act(|engine, id| engine.yield_now(id, kind, location));
}
