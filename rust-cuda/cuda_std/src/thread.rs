//! Where a thread is in its block and grid, and how it waits for the others.
//!
//! A launch runs a *grid* of *blocks* of *threads*. Threads of one block share memory and barriers;
//! 32 consecutive ones form a [warp](crate::warp).

use glam::{UVec2, UVec3};

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::{nvvm, ptx};

macro_rules! special_register {
    ($($(#[$doc:meta])* $name:ident = $sreg:ident, $emulated:ident.$axis:ident;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            by_target! {
                // SAFETY: reads a special register.
                gpu: unsafe { nvvm::$sreg() },
                cpu: simt::device::$emulated().$axis,
            }
        }
    )*};
}

special_register! {
    /// The thread's index in its block along x. PTX `%tid.x`.
    thread_idx_x = read_tid_x, thread_idx.x;
    /// The thread's index in its block along y. PTX `%tid.y`.
    thread_idx_y = read_tid_y, thread_idx.y;
    /// The thread's index in its block along z. PTX `%tid.z`.
    thread_idx_z = read_tid_z, thread_idx.z;
    /// The block's index in the grid along x. PTX `%ctaid.x`.
    block_idx_x = read_ctaid_x, block_idx.x;
    /// The block's index in the grid along y. PTX `%ctaid.y`.
    block_idx_y = read_ctaid_y, block_idx.y;
    /// The block's index in the grid along z. PTX `%ctaid.z`.
    block_idx_z = read_ctaid_z, block_idx.z;
    /// The threads of a block along x. PTX `%ntid.x`.
    block_dim_x = read_ntid_x, block_dim.x;
    /// The threads of a block along y. PTX `%ntid.y`.
    block_dim_y = read_ntid_y, block_dim.y;
    /// The threads of a block along z. PTX `%ntid.z`.
    block_dim_z = read_ntid_z, block_dim.z;
    /// The blocks of the grid along x. PTX `%nctaid.x`.
    grid_dim_x = read_nctaid_x, grid_dim.x;
    /// The blocks of the grid along y. PTX `%nctaid.y`.
    grid_dim_y = read_nctaid_y, grid_dim.y;
    /// The blocks of the grid along z. PTX `%nctaid.z`.
    grid_dim_z = read_nctaid_z, grid_dim.z;
}

/// The thread's index in its block.
#[inline(always)]
pub fn thread_idx() -> UVec3 {
    UVec3::new(thread_idx_x(), thread_idx_y(), thread_idx_z())
}

/// The block's index in the grid.
#[inline(always)]
pub fn block_idx() -> UVec3 {
    UVec3::new(block_idx_x(), block_idx_y(), block_idx_z())
}

/// The threads of a block along each axis.
#[inline(always)]
pub fn block_dim() -> UVec3 {
    UVec3::new(block_dim_x(), block_dim_y(), block_dim_z())
}

/// The blocks of the grid along each axis.
#[inline(always)]
pub fn grid_dim() -> UVec3 {
    UVec3::new(grid_dim_x(), grid_dim_y(), grid_dim_z())
}

/// A number that no other thread of the launch has, whatever the dimensions of block and grid.
///
/// Wraps around in launches of more than 2^32 threads.
#[inline(always)]
pub fn index() -> u32 {
    let (grid, block) = (grid_dim(), block_dim());
    let (b, t) = (block_idx(), thread_idx());
    let block_number = b.x + grid.x * (b.y + grid.y * b.z);
    let thread_number = t.x + block.x * (t.y + block.y * t.z);
    block_number * (block.x * block.y * block.z) + thread_number
}

/// The thread's index along x over the whole grid.
#[inline(always)]
pub fn index_1d() -> u32 {
    thread_idx_x() + block_idx_x() * block_dim_x()
}

/// The thread's index along x and y over the whole grid.
#[inline(always)]
pub fn index_2d() -> UVec2 {
    UVec2::new(index_1d(), thread_idx_y() + block_idx_y() * block_dim_y())
}

/// The thread's index along all axes over the whole grid.
#[inline(always)]
pub fn index_3d() -> UVec3 {
    index_2d().extend(thread_idx_z() + block_idx_z() * block_dim_z())
}

/// Whether this is thread 0 of block 0: true in exactly one thread of a launch.
#[inline(always)]
pub fn first() -> bool {
    block_idx() == UVec3::ZERO && thread_idx() == UVec3::ZERO
}

/// The threads of a warp: 32 on every device so far.
#[inline(always)]
pub fn warp_size() -> u32 {
    by_target! {
        // SAFETY: reads a special register.
        gpu: unsafe { nvvm::read_warpsize() },
        cpu: 32,
    }
}

/// Waits until every thread of the block has come here; what they wrote before is visible to all
/// of them afterwards.
///
/// PTX `bar.sync 0`, any target. Collective over the block: every thread that has not exited must
/// call it from the same place the same number of times.
#[inline(always)]
#[track_caller]
pub fn sync_threads() {
    by_target! {
        // SAFETY: barrier 0 always exists. Divergence hangs, which is not undefined behaviour.
        gpu: unsafe { nvvm::barrier_sync_all(0) },
        cpu: simt::device::sync_threads(),
    }
}

/// [`sync_threads`] that returns in how many threads `predicate` is not zero.
///
/// PTX `bar.red.popc.u32`, any target. Collective over the block.
#[inline(always)]
#[track_caller]
pub fn sync_threads_count(predicate: u32) -> u32 {
    by_target! {
        // SAFETY: as for `sync_threads`.
        gpu: unsafe { nvvm::barrier_red_popc_all(0, predicate != 0) },
        cpu: simt::device::sync_threads_reduce(predicate != 0).count,
    }
}

/// [`sync_threads`] that returns 1 if `predicate` is not zero in every thread, otherwise 0.
///
/// PTX `bar.red.and.pred`, any target. Collective over the block.
#[inline(always)]
#[track_caller]
pub fn sync_threads_and(predicate: u32) -> u32 {
    by_target! {
        // SAFETY: as for `sync_threads`.
        gpu: u32::from(unsafe { nvvm::barrier_red_and_all(0, predicate != 0) }),
        cpu: u32::from(simt::device::sync_threads_reduce(predicate != 0).all),
    }
}

/// [`sync_threads`] that returns 1 if `predicate` is not zero in any thread, otherwise 0.
///
/// PTX `bar.red.or.pred`, any target. Collective over the block.
#[inline(always)]
#[track_caller]
pub fn sync_threads_or(predicate: u32) -> u32 {
    by_target! {
        // SAFETY: as for `sync_threads`.
        gpu: u32::from(unsafe { nvvm::barrier_red_or_all(0, predicate != 0) }),
        cpu: u32::from(simt::device::sync_threads_reduce(predicate != 0).any),
    }
}

/// Waits at barrier `id` until `threads` threads have arrived or wait there.
///
/// PTX `bar.sync id, threads`, any target. Collective over whole warps: a warp counts with all its
/// threads.
///
/// # Safety
///
/// * `id` is 1 to 15 (0 belongs to [`sync_threads`]) and equal in all participants of this round;
/// * `threads` is a multiple of 32, not above the block's size, and equal in all participants;
/// * all threads of a participating warp call it together.
#[inline(always)]
#[track_caller]
pub unsafe fn named_barrier_sync(id: u32, threads: u32) {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { nvvm::barrier_sync_count(id, threads) },
        cpu: simt::device::named_barrier_sync(id, threads),
    }
}

/// Arrives at barrier `id` without waiting; the last of `threads` arrivals releases those who wait in
/// [`named_barrier_sync`].
///
/// PTX `bar.arrive id, threads`, any target. Collective over whole warps.
///
/// # Safety
///
/// As for [`named_barrier_sync`].
#[inline(always)]
#[track_caller]
pub unsafe fn named_barrier_arrive(id: u32, threads: u32) {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { nvvm::barrier_arrive_count(id, threads) },
        cpu: simt::device::named_barrier_arrive(id, threads),
    }
}

/// A sequentially consistent memory fence among the threads of the device.
///
/// PTX `membar.gl` (= `fence.sc.gpu`), any target. Waits for nobody. A grid has no scope of its own,
/// so this is [`device_fence`] under its published name.
#[inline(always)]
pub fn grid_fence() {
    device_fence();
}

/// A sequentially consistent memory fence among the threads of the device.
///
/// PTX `membar.gl` (= `fence.sc.gpu`), any target. Waits for nobody.
#[inline(always)]
pub fn device_fence() {
    by_target! {
        // SAFETY: a fence.
        gpu: unsafe { nvvm::membar_gl() },
        cpu: emulated_fence(),
    }
}

/// A sequentially consistent memory fence among the threads of all devices and of the host.
///
/// PTX `membar.sys` (= `fence.sc.sys`), any target. Waits for nobody.
#[inline(always)]
pub fn system_fence() {
    by_target! {
        // SAFETY: a fence.
        gpu: unsafe { nvvm::membar_sys() },
        cpu: emulated_fence(),
    }
}

/// The emulator runs one thread at a time in a total order, which no fence can strengthen.
#[cfg(not(target_arch = "nvptx64"))]
fn emulated_fence() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Suspends the thread for about `nanos` nanoseconds: between 0 and twice as long, at most 1 ms.
///
/// PTX `nanosleep.u32`, compute capability 7.0, PTX 6.3. For back-off in loops that wait for another
/// thread.
#[inline(always)]
#[track_caller]
pub fn nanosleep(nanos: u32) {
    by_target! {
        gpu: ptx::nanosleep(nanos),
        cpu: simt::device::nanosleep(nanos),
    }
}
