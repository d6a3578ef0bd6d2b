//! Bulk asynchronous copies and `mbarrier` objects.

use std::panic::Location;

use super::sync::{Yield, yield_point};
use crate::context::{self, Next};
use crate::mbarrier::{parity_ended, token_ended};

/// A contiguous part of a bulk copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPiece {
    /// First byte written.
    pub dst: *mut u8,
    /// First byte read.
    pub src: *const u8,
    /// Length in bytes.
    pub bytes: usize,
}

/// The thread's generic writes to shared memory so far become visible to asynchronous copies
/// (`fence.proxy.async`).
pub fn fence_proxy_async() {
    context::with(|engine, id| engine.fence_proxy_async(id));
}

/// Copies shared to global memory asynchronously, as one operation of the thread's open bulk group
/// (`cp.async.bulk.global.shared::cta.bulk_group`, or a tensor store cut into pieces).
///
/// The source is read, and the destination written, at the last moment that the waits of the thread allow
/// or at a random one before. Without a wait both happen after the block has exited, when its shared memory
/// may have been taken over: the copy then carries poison.
///
/// Faults where a side of a piece is out of bounds, and where a source byte was stored by a thread that has
/// executed no [`fence_proxy_async`] since.
#[track_caller]
pub fn async_copy_out(pieces: &[CopyPiece]) {
    let location = Location::caller();
    context::act(|engine, id| engine.async_copy_out(id, pieces, location));
}

/// Closes the thread's open bulk group (`cp.async.bulk.commit_group`).
pub fn bulk_commit_group() {
    context::with(|engine, id| engine.bulk_commit_group(id));
}

/// Waits until at most the `pending` latest groups of the thread are incomplete
/// (`cp.async.bulk.wait_group`). With `read_only` (`.read`) a group counts as complete once its source has
/// been read.
#[track_caller]
pub fn bulk_wait_group(pending: u32, read_only: bool) {
    yield_point(Yield::Progress);
    context::with(|engine, id| engine.bulk_wait_group(id, pending, read_only));
}

/// Copies global to shared memory asynchronously, and sets the ranges `zero` (address, bytes) to zero, as
/// one operation. When it lands, at a random moment, it completes the bytes of all pieces and ranges on
/// `mbarrier` (`cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes`, or a tensor load cut into
/// pieces).
///
/// Faults where a range is out of bounds, where there is no initialised mbarrier, and where the block exits
/// before the copy has landed.
#[track_caller]
pub fn async_copy_in(pieces: &[CopyPiece], zero: &[(*mut u8, usize)], mbarrier: *mut u64) {
    let location = Location::caller();
    context::act(|engine, id| engine.async_copy_in(id, pieces, zero, mbarrier, location));
}

/// Makes an `mbarrier` of 8 aligned bytes of shared memory. Its phases end when `count` threads have arrived
/// and all expected bytes have landed.
///
/// Faults where the address is not in shared memory or holds a live mbarrier, and where `count` is not from
/// 1 to 2²⁰ − 1.
#[track_caller]
pub fn mbarrier_init(bar: *mut u64, count: u32) {
    let location = Location::caller();
    context::act(|engine, id| engine.mbarrier_init(id, bar, count, location));
}

/// Ends the life of an `mbarrier`; its memory may be used for other things.
#[track_caller]
pub fn mbarrier_inval(bar: *mut u64) {
    let location = Location::caller();
    context::act(|engine, id| engine.mbarrier_inval(id, bar, location));
}

/// Arrives, and returns the state for [`mbarrier_try_wait`]. A yield point.
///
/// Faults where more threads arrive than the mbarrier was made for, and where there is no mbarrier.
#[track_caller]
pub fn mbarrier_arrive(bar: *mut u64) -> u64 {
    mbarrier_arrive_expect_tx(bar, 0)
}

/// As [`mbarrier_arrive`], after adding `tx_bytes` to the bytes that the phase waits for.
#[track_caller]
pub fn mbarrier_arrive_expect_tx(bar: *mut u64, tx_bytes: u32) -> u64 {
    yield_point(Yield::Progress);
    let location = Location::caller();
    let mut token = 0;
    context::act(|engine, id| engine.mbarrier_arrive(id, bar, tx_bytes, &mut token, location));
    token
}

/// Whether the phase of `state` has ended. A yield point of kind [`Yield::Spin`].
#[track_caller]
pub fn mbarrier_try_wait(bar: *mut u64, state: u64) -> bool {
    try_wait(bar, |phase| token_ended(state, phase))
}

/// Whether the phase of `parity` (0 or 1) has ended: the first phase has parity 0. A yield point of kind
/// [`Yield::Spin`].
#[track_caller]
pub fn mbarrier_try_wait_parity(bar: *mut u64, parity: u32) -> bool {
    try_wait(bar, |phase| parity_ended(parity, phase))
}

#[track_caller]
fn try_wait(bar: *mut u64, ended: impl Fn(u64) -> Result<bool, String>) -> bool {
    yield_point(Yield::Spin);
    let location = Location::caller();
    let mut result = false;
    context::act(|engine, id| -> Next {
        engine.mbarrier_test(id, bar, &ended, &mut result, location)
    });
    result
}
