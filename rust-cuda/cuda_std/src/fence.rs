//! Fences: order memory accesses of one thread without waiting for another.

use crate::atomic::scoped::Scope;
#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;

/// An acquire and release fence among the threads of `scope`.
///
/// PTX `fence.acq_rel.{cta,gpu,sys}`, compute capability 7.0, PTX 6.0. Between a relaxed load and
/// accesses that follow it, it makes the load an acquire; between accesses and a relaxed store that
/// follows them, it makes the store a release.
#[inline(always)]
pub fn acq_rel<S: Scope>(_scope: S) {
    by_target! {
        gpu: ptx::fence_acq_rel(S::REACH),
        cpu: emulated(),
    }
}

/// A sequentially consistent fence among the threads of `scope`.
///
/// PTX `fence.sc.{cta,gpu,sys}`, compute capability 7.0, PTX 6.0. Considerably slower than
/// [`acq_rel`].
#[inline(always)]
pub fn sc<S: Scope>(_scope: S) {
    by_target! {
        gpu: ptx::fence_sc(S::REACH),
        cpu: emulated(),
    }
}

/// The emulator runs one thread at a time in a total order, which no fence can strengthen.
#[cfg(not(target_arch = "nvptx64"))]
fn emulated() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Makes the thread's ordinary writes to shared memory visible to bulk copies that follow.
///
/// PTX `fence.proxy.async.shared::cta`, compute capability 9.0, PTX 8.0
/// ([`has_bulk_copy`](crate::cfg::has_bulk_copy)). Every thread that wrote must execute it *before*
/// the barrier behind which one thread starts the copy; likewise after
/// [`mbarrier::init`](crate::mbarrier::init).
#[inline(always)]
#[track_caller]
pub fn proxy_async_shared() {
    by_target! {
        gpu: ptx::fence_proxy_async_shared(),
        cpu: {
            crate::cfg::require(crate::cfg::has_bulk_copy, "fence.proxy.async.shared::cta");
            simt::device::fence_proxy_async();
        },
    }
}

/// Makes the thread's ordinary writes to global memory visible to bulk copies that follow.
///
/// PTX `fence.proxy.async.global`, compute capability 9.0, PTX 8.0
/// ([`has_bulk_copy`](crate::cfg::has_bulk_copy)). For data that the same launch wrote and then loads
/// by a bulk copy; the end of a launch orders everything by itself.
#[inline(always)]
#[track_caller]
pub fn proxy_async_global() {
    by_target! {
        gpu: ptx::fence_proxy_async_global(),
        cpu: {
            crate::cfg::require(crate::cfg::has_bulk_copy, "fence.proxy.async.global");
            simt::device::fence_proxy_async();
        },
    }
}

/// Makes the contents of a tensor map in global memory visible to tensor copies that follow.
///
/// PTX `fence.proxy.tensormap::generic.acquire.sys`, compute capability 9.0, PTX 8.3
/// ([`has_bulk_copy`](crate::cfg::has_bulk_copy)). Needed when the map's memory may have held another
/// map before: the copy engine caches maps by address. The scope is the system, as it is the host that
/// writes maps.
///
/// # Safety
///
/// `map` points at a readable tensor map, aligned to 128 bytes.
#[inline(always)]
#[track_caller]
pub unsafe fn proxy_tensor_map_acquire(map: *const crate::tma::TensorMap) {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { ptx::fence_proxy_tensormap_acquire(map.cast()) },
        cpu: {
            crate::cfg::require(
                crate::cfg::has_bulk_copy,
                "fence.proxy.tensormap::generic.acquire.sys",
            );
            simt::device::check(map.cast(), 128, 128, simt::device::Access::Read);
        },
    }
}
