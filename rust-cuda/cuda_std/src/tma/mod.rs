//! Bulk asynchronous copies between shared and global memory.
//!
//! The copy engine moves whole ranges or boxes of a tensor while the threads go on. A store joins the
//! issuing thread's *bulk group*; [`commit_group`] closes the group and [`wait_group`] waits for older
//! ones. A load reports to an [`mbarrier`](crate::mbarrier).
//!
//! ```no_run
//! # use cuda_std::{fence, thread, tma, view::SharedView};
//! # let tile = unsafe { SharedView::new(core::ptr::null_mut::<u32>(), 64) };
//! # let (i, value, destination, bytes) = (0, 1, core::ptr::null_mut(), 256);
//! // Every thread writes its part and makes it visible to the copy engine.
//! tile.store(i, value);
//! fence::proxy_async_shared();
//! thread::sync_threads();
//! if thread::thread_idx_x() == 0 {
//!     unsafe { tma::bulk_store(destination, tile.as_ptr().cast(), bytes) };
//!     tma::commit_group();
//!     // From here on the tile may be overwritten.
//!     tma::wait_group_read::<0>();
//! }
//! ```
//!
//! What is said of tensor copies beyond the manual was measured on an H200, with the kernels of
//! `tests/device`: illegal coordinates end the launch with an illegal instruction, and stores write whole
//! chunks of 16 bytes.
//!
//! None of these is collective: one thread issues a copy for all. All need compute capability 9.0
//! ([`cfg::has_bulk_copy`](crate::cfg::has_bulk_copy)) and PTX 8.0.

#[cfg(not(target_arch = "nvptx64"))]
mod emulated;
mod map;

#[cfg(not(target_arch = "nvptx64"))]
pub use emulated::{TensorMapDesc, TensorMapError};
pub use map::{Swizzle, TensorMap};

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;

/// Asks for the capability, then copies with the twin.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! emulate {
    ($instruction:literal, $call:expr) => {{
        crate::cfg::require(crate::cfg::has_bulk_copy, $instruction);
        $call
    }};
}

/// Starts copying `bytes` bytes from shared to global memory, as part of the thread's bulk group.
///
/// PTX `cp.async.bulk.global.shared::cta.bulk_group`.
///
/// # Safety
///
/// * `dst`, `src` and `bytes` are multiples of 16; both ranges are valid;
/// * what `src` holds was fenced by its writers
///   ([`fence::proxy_async_shared`](crate::fence::proxy_async_shared)) and is not overwritten until
///   [`wait_group_read`];
/// * nobody reads or writes `dst` until [`wait_group`], or the end of the launch.
#[inline(always)]
#[track_caller]
pub unsafe fn bulk_store(dst: *mut u8, src: *const u8, bytes: u32) {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { ptx::cp_async_bulk_global_shared(dst, src, bytes) },
        cpu: emulate!(
            "cp.async.bulk.global.shared::cta",
            emulated::bulk_store(dst, src, bytes)
        ),
    }
}

/// Starts copying `bytes` bytes from global to shared memory; they count towards the bytes that
/// `mbarrier` was told to expect.
///
/// PTX `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`.
///
/// # Safety
///
/// * `dst`, `src` and `bytes` are multiples of 16; both ranges are valid;
/// * `mbarrier` is initialised, and its current phase is told to expect the bytes
///   ([`mbarrier::arrive_expect_tx`](crate::mbarrier::arrive_expect_tx));
/// * nobody writes `src`, or reads or writes `dst`, until that phase is complete.
#[inline(always)]
#[track_caller]
pub unsafe fn bulk_load(dst: *mut u8, src: *const u8, bytes: u32, mbarrier: *mut u64) {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { ptx::cp_async_bulk_shared_global(dst, src, bytes, mbarrier) },
        cpu: emulate!(
            "cp.async.bulk.shared::cluster.global",
            emulated::bulk_load(dst, src, bytes, mbarrier)
        ),
    }
}

macro_rules! tensor_copies {
    ($($rank:literal $store:ident $load:ident $ptx_rank:literal;)*) => {$(
        #[doc = concat!(
            "Starts storing a box from shared memory into a tensor of rank ", $rank,
            ", as part of the thread's bulk group."
        )]
        ///
        /// `coordinates` are the element coordinates of the box's first element, innermost dimension
        /// first; whatever lies outside the tensor is not written. Along the innermost dimension that
        /// goes by chunks of 16 bytes: one that begins inside the tensor is written whole, so padding
        /// after a row whose size is no multiple of 16 bytes is overwritten.
        ///
        #[doc = concat!("PTX `cp.async.bulk.tensor.", $ptx_rank, ".global.shared::cta.tile.bulk_group`.")]
        ///
        /// # Safety
        ///
        /// As for [`bulk_store`]; moreover
        ///
        /// * `map` is a valid tensor map of this rank in global memory;
        /// * `src` is aligned to 128 bytes;
        /// * no coordinate is negative, and the innermost is a multiple of 16 bytes.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $store(map: *const TensorMap, coordinates: [i32; $rank], src: *const u8) {
            by_target! {
                // SAFETY: forwarded to the caller.
                gpu: unsafe { ptx::$store(map.cast(), coordinates, src) },
                cpu: emulate!(
                    "cp.async.bulk.tensor.global.shared::cta",
                    // SAFETY: forwarded to the caller.
                    unsafe { emulated::tensor_store(map, &coordinates, src) }
                ),
            }
        }

        #[doc = concat!("Starts loading a box of a tensor of rank ", $rank, " into shared memory.")]
        ///
        /// `coordinates` are the element coordinates of the box's first element, innermost dimension
        /// first; whatever lies outside the tensor reads as zero. The whole box counts towards the
        /// bytes that `mbarrier` was told to expect.
        ///
        #[doc = concat!("PTX `cp.async.bulk.tensor.", $ptx_rank, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes`.")]
        ///
        /// # Safety
        ///
        /// As for [`bulk_load`]; moreover
        ///
        /// * `map` is a valid tensor map of this rank in global memory;
        /// * `dst` is aligned to 128 bytes;
        /// * the innermost coordinate is a multiple of 16 bytes.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $load(
            dst: *mut u8,
            map: *const TensorMap,
            coordinates: [i32; $rank],
            mbarrier: *mut u64,
        ) {
            by_target! {
                // SAFETY: forwarded to the caller.
                gpu: unsafe { ptx::$load(dst, map.cast(), coordinates, mbarrier) },
                cpu: emulate!(
                    "cp.async.bulk.tensor.shared::cluster.global",
                    // SAFETY: forwarded to the caller.
                    unsafe { emulated::tensor_load(dst, map, &coordinates, mbarrier) }
                ),
            }
        }
    )*};
}

tensor_copies! {
    2 tensor_store_2d tensor_load_2d "2d";
    3 tensor_store_3d tensor_load_3d "3d";
    4 tensor_store_4d tensor_load_4d "4d";
}

/// Closes the thread's current bulk group; stores that follow join a new one.
///
/// PTX `cp.async.bulk.commit_group`.
#[inline(always)]
#[track_caller]
pub fn commit_group() {
    by_target! {
        gpu: ptx::cp_async_bulk_commit_group(),
        cpu: emulate!("cp.async.bulk.commit_group", simt::device::bulk_commit_group()),
    }
}

/// Waits until at most the `PENDING` latest groups of the thread are unfinished; the stores of the
/// others are complete and visible to the thread.
///
/// PTX `cp.async.bulk.wait_group PENDING`.
#[inline(always)]
#[track_caller]
pub fn wait_group<const PENDING: u32>() {
    by_target! {
        gpu: ptx::cp_async_bulk_wait_group::<PENDING>(),
        cpu: emulate!(
            "cp.async.bulk.wait_group",
            simt::device::bulk_wait_group(PENDING, false)
        ),
    }
}

/// Waits until at most the `PENDING` latest groups of the thread still have to read their source; that
/// of the others may be overwritten.
///
/// PTX `cp.async.bulk.wait_group.read PENDING`.
#[inline(always)]
#[track_caller]
pub fn wait_group_read<const PENDING: u32>() {
    by_target! {
        gpu: ptx::cp_async_bulk_wait_group_read::<PENDING>(),
        cpu: emulate!(
            "cp.async.bulk.wait_group.read",
            simt::device::bulk_wait_group(PENDING, true)
        ),
    }
}
