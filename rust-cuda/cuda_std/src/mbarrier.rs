//! Barriers in shared memory that count arrivals and arriving bytes.
//!
//! An `mbarrier` is 8 bytes of shared memory, 8-byte aligned. A phase completes when the expected
//! number of threads has arrived and all bytes that were announced have landed; then the next phase
//! begins. A wait names a phase either by the state its own arrival returned, or by the phase's
//! parity: 0 for the first, 1 for the second, and so on in turn.
//!
//! ```no_run
//! # use cuda_std::{fence, mbarrier, thread, tma};
//! # let (bar, tile, source) = (core::ptr::null_mut(), core::ptr::null_mut(), core::ptr::null());
//! # let bytes = 4096;
//! if thread::thread_idx_x() == 0 {
//!     unsafe { mbarrier::init(bar, 1) };
//!     fence::proxy_async_shared();
//! }
//! thread::sync_threads();
//! if thread::thread_idx_x() == 0 {
//!     unsafe {
//!         mbarrier::arrive_expect_tx(bar, bytes);
//!         tma::bulk_load(tile, source, bytes, bar);
//!     }
//! }
//! while !unsafe { mbarrier::try_wait_parity(bar, 0) } {}
//! ```
//!
//! None of these is collective. All need [`cfg::has_bulk_copy`](crate::cfg::has_bulk_copy), though
//! [`init`], [`inval`] and [`arrive`] exist from compute capability 8.0 on.

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;

/// Makes `bar` a barrier whose phases expect `count` arrivals, 1 to 2^20 - 1.
///
/// PTX `mbarrier.init.shared::cta.b64`, compute capability 8.0, PTX 7.8.
///
/// # Safety
///
/// * `bar` is 8 bytes of the block's shared memory, 8-byte aligned, and not a barrier at present;
/// * other threads use it only behind a barrier such as
///   [`sync_threads`](crate::thread::sync_threads), copies only behind
///   [`fence::proxy_async_shared`](crate::fence::proxy_async_shared) by the caller.
#[inline(always)]
#[track_caller]
pub unsafe fn init(bar: *mut u64, count: u32) {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { ptx::mbarrier_init(bar, count) },
        cpu: simt::device::mbarrier_init(bar, count),
    }
}

/// Ends the use of `bar` as a barrier, so that its memory can serve something else.
///
/// PTX `mbarrier.inval.shared::cta.b64`, compute capability 8.0, PTX 7.8.
///
/// # Safety
///
/// `bar` is a barrier that no thread and no copy uses any more.
#[inline(always)]
#[track_caller]
pub unsafe fn inval(bar: *mut u64) {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { ptx::mbarrier_inval(bar) },
        cpu: simt::device::mbarrier_inval(bar),
    }
}

/// Arrives at `bar`, releasing the thread's writes to the block; returns the phase for [`try_wait`].
///
/// PTX `mbarrier.arrive.shared::cta.b64`, compute capability 8.0, PTX 7.8.
///
/// # Safety
///
/// `bar` is a barrier that still expects an arrival in its current phase.
#[inline(always)]
#[track_caller]
pub unsafe fn arrive(bar: *mut u64) -> u64 {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { ptx::mbarrier_arrive(bar) },
        cpu: simt::device::mbarrier_arrive(bar),
    }
}

/// Announces `bytes` that copies will deliver in the current phase, then arrives as [`arrive`] does.
///
/// PTX `mbarrier.arrive.expect_tx.shared::cta.b64`, compute capability 9.0, PTX 8.0.
///
/// # Safety
///
/// `bar` is a barrier that still expects an arrival in its current phase, and the bytes announced in
/// a phase stay below 2^20.
#[inline(always)]
#[track_caller]
pub unsafe fn arrive_expect_tx(bar: *mut u64, bytes: u32) -> u64 {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { ptx::mbarrier_arrive_expect_tx(bar, bytes) },
        cpu: {
            crate::cfg::require(crate::cfg::has_bulk_copy, "mbarrier.arrive.expect_tx");
            simt::device::mbarrier_arrive_expect_tx(bar, bytes)
        },
    }
}

/// Whether the phase in which `state` was obtained is complete; what was released or copied in it is
/// then visible.
///
/// PTX `mbarrier.try_wait.shared::cta.b64`, compute capability 9.0, PTX 7.8. May sleep for a while
/// before it returns `false`. The caller loops, with a bound where the other side could fail.
///
/// # Safety
///
/// `bar` is a barrier, `state` the result of an arrival of this thread in the current or the
/// preceding phase.
#[inline(always)]
#[track_caller]
pub unsafe fn try_wait(bar: *mut u64, state: u64) -> bool {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { ptx::mbarrier_try_wait(bar, state) },
        cpu: {
            crate::cfg::require(crate::cfg::has_bulk_copy, "mbarrier.try_wait");
            simt::device::mbarrier_try_wait(bar, state)
        },
    }
}

/// [`try_wait`] for the phase of the given parity, 0 or 1.
///
/// PTX `mbarrier.try_wait.parity.shared::cta.b64`, compute capability 9.0, PTX 7.8.
///
/// # Safety
///
/// `bar` is a barrier, `parity` that of its current or preceding phase.
#[inline(always)]
#[track_caller]
pub unsafe fn try_wait_parity(bar: *mut u64, parity: u32) -> bool {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { ptx::mbarrier_try_wait_parity(bar, parity) },
        cpu: {
            crate::cfg::require(crate::cfg::has_bulk_copy, "mbarrier.try_wait.parity");
            simt::device::mbarrier_try_wait_parity(bar, parity)
        },
    }
}
