//! Bulk asynchronous copies, tensor copies, their groups, barriers and fences.
//!
//! Pointers are generic, as everywhere in Rust; each block converts them to the space its instruction
//! wants, which ptxas folds away. All of them clobber memory.

use core::arch::asm;

/// `fence.proxy.async.shared::cta`; cc 9.0, PTX 8.0.
#[inline(always)]
pub fn fence_proxy_async_shared() {
    // SAFETY: a fence.
    unsafe {
        asm!(
            "fence.proxy.async.shared::cta;",
            options(nostack, preserves_flags)
        )
    }
}

/// `fence.proxy.async.global`; cc 9.0, PTX 8.0.
#[inline(always)]
pub fn fence_proxy_async_global() {
    // SAFETY: a fence.
    unsafe {
        asm!(
            "fence.proxy.async.global;",
            options(nostack, preserves_flags)
        )
    }
}

/// `fence.proxy.tensormap::generic.acquire.sys`; cc 9.0, PTX 8.3.
///
/// # Safety
///
/// `map` points at 128 readable bytes, 128-byte aligned.
#[inline(always)]
pub unsafe fn fence_proxy_tensormap_acquire(map: *const u8) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "fence.proxy.tensormap::generic.acquire.sys [{map}], 128;",
            map = in(reg64) map,
            options(nostack, preserves_flags)
        );
    }
}

/// `cp.async.bulk.global.shared::cta.bulk_group`; cc 9.0, PTX 8.0.
///
/// # Safety
///
/// Both ends are valid for `bytes` bytes until the group was waited for; everything is a multiple of
/// 16.
#[inline(always)]
pub unsafe fn cp_async_bulk_global_shared(dst: *mut u8, src: *const u8, bytes: u32) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 d, s; cvta.to.global.u64 d, {dst}; cvta.to.shared.u64 s, {src};",
            "cp.async.bulk.global.shared::cta.bulk_group [d], [s], {bytes}; }}",
            dst = in(reg64) dst,
            src = in(reg64) src,
            bytes = in(reg32) bytes,
            options(nostack, preserves_flags)
        );
    }
}

/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`; cc 9.0, PTX 8.0.
///
/// # Safety
///
/// Both ends are valid for `bytes` bytes until the barrier's phase completes; everything is a
/// multiple of 16. `mbarrier` is initialised.
#[inline(always)]
pub unsafe fn cp_async_bulk_shared_global(
    dst: *mut u8,
    src: *const u8,
    bytes: u32,
    mbarrier: *mut u64,
) {
    // SAFETY: forwarded to the caller. An address in the block's own shared memory is one in the
    // cluster's, too.
    unsafe {
        asm!(
            "{{ .reg .b64 d, s, b; cvta.to.shared.u64 d, {dst}; cvta.to.global.u64 s, {src};",
            "cvta.to.shared.u64 b, {mbarrier};",
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [d], [s], {bytes}, [b]; }}",
            dst = in(reg64) dst,
            src = in(reg64) src,
            bytes = in(reg32) bytes,
            mbarrier = in(reg64) mbarrier,
            options(nostack, preserves_flags)
        );
    }
}

/// Tensor copies of one rank, both ways.
macro_rules! tensor {
    ($($store:ident, $load:ident, $rank:literal, $dims:literal, $coordinates:literal, [$($index:literal $c:ident),*];)*) => {$(
        #[doc = concat!("`cp.async.bulk.tensor.", $rank, ".global.shared::cta.tile.bulk_group`; cc 9.0, PTX 8.0.")]
        ///
        /// # Safety
        ///
        /// `map` is a valid tensor map of this rank; `src` holds its box, 128-byte aligned, until
        /// the group was waited for.
        #[inline(always)]
        pub unsafe fn $store(map: *const u8, coordinates: [i32; $dims], src: *const u8) {
            // SAFETY: forwarded to the caller.
            unsafe {
                asm!(
                    "{{ .reg .b64 s; cvta.to.shared.u64 s, {src};",
                    concat!(
                        "cp.async.bulk.tensor.", $rank, ".global.shared::cta.tile.bulk_group [{map}, {{",
                        $coordinates, "}}], [s]; }}"
                    ),
                    map = in(reg64) map,
                    $($c = in(reg32) coordinates[$index],)*
                    src = in(reg64) src,
                    options(nostack, preserves_flags)
                );
            }
        }

        #[doc = concat!("`cp.async.bulk.tensor.", $rank, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes`; cc 9.0, PTX 8.0.")]
        ///
        /// # Safety
        ///
        /// `map` is a valid tensor map of this rank; `dst` has room for its box, 128-byte aligned,
        /// until the barrier's phase completes. `mbarrier` is initialised.
        #[inline(always)]
        pub unsafe fn $load(dst: *mut u8, map: *const u8, coordinates: [i32; $dims], mbarrier: *mut u64) {
            // SAFETY: forwarded to the caller.
            unsafe {
                asm!(
                    "{{ .reg .b64 d, b; cvta.to.shared.u64 d, {dst}; cvta.to.shared.u64 b, {mbarrier};",
                    concat!(
                        "cp.async.bulk.tensor.", $rank,
                        ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [d], [{map}, {{",
                        $coordinates, "}}], [b]; }}"
                    ),
                    dst = in(reg64) dst,
                    map = in(reg64) map,
                    $($c = in(reg32) coordinates[$index],)*
                    mbarrier = in(reg64) mbarrier,
                    options(nostack, preserves_flags)
                );
            }
        }
    )*};
}

tensor! {
    tensor_store_2d, tensor_load_2d, "2d", 2, "{c0}, {c1}", [0 c0, 1 c1];
    tensor_store_3d, tensor_load_3d, "3d", 3, "{c0}, {c1}, {c2}", [0 c0, 1 c1, 2 c2];
    tensor_store_4d, tensor_load_4d, "4d", 4, "{c0}, {c1}, {c2}, {c3}", [0 c0, 1 c1, 2 c2, 3 c3];
}

/// `cp.async.bulk.commit_group`; cc 9.0, PTX 8.0.
#[inline(always)]
pub fn cp_async_bulk_commit_group() {
    // SAFETY: closes the thread's group.
    unsafe {
        asm!(
            "cp.async.bulk.commit_group;",
            options(nostack, preserves_flags)
        )
    }
}

/// `cp.async.bulk.wait_group`; cc 9.0, PTX 8.0.
#[inline(always)]
pub fn cp_async_bulk_wait_group<const PENDING: u32>() {
    // SAFETY: waits.
    unsafe {
        asm!("cp.async.bulk.wait_group {n};", n = const PENDING, options(nostack, preserves_flags));
    }
}

/// `cp.async.bulk.wait_group.read`; cc 9.0, PTX 8.0.
#[inline(always)]
pub fn cp_async_bulk_wait_group_read<const PENDING: u32>() {
    // SAFETY: waits.
    unsafe {
        asm!("cp.async.bulk.wait_group.read {n};", n = const PENDING, options(nostack, preserves_flags));
    }
}

/// `mbarrier.init.shared::cta.b64`; cc 8.0, PTX 7.8 for `::cta`.
///
/// # Safety
///
/// `bar` is 8 bytes of the block's shared memory, 8-byte aligned, not a barrier in use.
#[inline(always)]
pub unsafe fn mbarrier_init(bar: *mut u64, count: u32) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 b; cvta.to.shared.u64 b, {bar}; mbarrier.init.shared::cta.b64 [b], {count}; }}",
            bar = in(reg64) bar,
            count = in(reg32) count,
            options(nostack, preserves_flags)
        );
    }
}

/// `mbarrier.inval.shared::cta.b64`; cc 8.0, PTX 7.8 for `::cta`.
///
/// # Safety
///
/// `bar` is an initialised barrier that no thread or copy uses.
#[inline(always)]
pub unsafe fn mbarrier_inval(bar: *mut u64) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 b; cvta.to.shared.u64 b, {bar}; mbarrier.inval.shared::cta.b64 [b]; }}",
            bar = in(reg64) bar,
            options(nostack, preserves_flags)
        );
    }
}

/// `mbarrier.arrive.shared::cta.b64`, release at block scope; cc 8.0, PTX 7.8 for `::cta`.
///
/// # Safety
///
/// `bar` is an initialised barrier that still expects an arrival in this phase.
#[inline(always)]
pub unsafe fn mbarrier_arrive(bar: *mut u64) -> u64 {
    let state: u64;
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 b; cvta.to.shared.u64 b, {bar}; mbarrier.arrive.shared::cta.b64 {state}, [b]; }}",
            bar = in(reg64) bar,
            state = lateout(reg64) state,
            options(nostack, preserves_flags)
        );
    }
    state
}

/// `mbarrier.arrive.expect_tx.shared::cta.b64`, release at block scope; cc 9.0, PTX 8.0.
///
/// # Safety
///
/// `bar` is an initialised barrier that still expects an arrival in this phase.
#[inline(always)]
pub unsafe fn mbarrier_arrive_expect_tx(bar: *mut u64, bytes: u32) -> u64 {
    let state: u64;
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 b; cvta.to.shared.u64 b, {bar};",
            "mbarrier.arrive.expect_tx.shared::cta.b64 {state}, [b], {bytes}; }}",
            bar = in(reg64) bar,
            bytes = in(reg32) bytes,
            state = lateout(reg64) state,
            options(nostack, preserves_flags)
        );
    }
    state
}

/// `mbarrier.try_wait.shared::cta.b64`, acquire at block scope; cc 9.0, PTX 7.8.
///
/// # Safety
///
/// `bar` is an initialised barrier, `state` the result of an arrival in the current or the preceding
/// phase.
#[inline(always)]
pub unsafe fn mbarrier_try_wait(bar: *mut u64, state: u64) -> bool {
    let done: u32;
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 b; .reg .pred p; cvta.to.shared.u64 b, {bar};",
            "mbarrier.try_wait.shared::cta.b64 p, [b], {state}; selp.b32 {done}, 1, 0, p; }}",
            bar = in(reg64) bar,
            state = in(reg64) state,
            done = lateout(reg32) done,
            options(nostack, preserves_flags)
        );
    }
    done != 0
}

/// `mbarrier.try_wait.parity.shared::cta.b64`, acquire at block scope; cc 9.0, PTX 7.8.
///
/// # Safety
///
/// `bar` is an initialised barrier, `parity` that of the current or the preceding phase.
#[inline(always)]
pub unsafe fn mbarrier_try_wait_parity(bar: *mut u64, parity: u32) -> bool {
    let done: u32;
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 b; .reg .pred p; cvta.to.shared.u64 b, {bar};",
            "mbarrier.try_wait.parity.shared::cta.b64 p, [b], {parity}; selp.b32 {done}, 1, 0, p; }}",
            bar = in(reg64) bar,
            parity = in(reg32) parity,
            done = lateout(reg32) done,
            options(nostack, preserves_flags)
        );
    }
    done != 0
}
