//! Indices, barriers of a block, fences.

use cuda_std::atomic::scoped::{Block, Device, System};
use cuda_std::prelude::*;
use cuda_std::{fence, view::SharedView};

use super::results::Results;

/// Words per thread of [`indices`].
pub const INDICES: usize = 34;

/// Every index and dimension.
///
/// # Safety
///
/// `out` has room for [`INDICES`] words per thread.
#[kernel]
pub unsafe fn indices(out: *mut u32) {
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, INDICES) };
    for axes in [
        [
            thread::thread_idx_x(),
            thread::thread_idx_y(),
            thread::thread_idx_z(),
        ],
        [
            thread::block_idx_x(),
            thread::block_idx_y(),
            thread::block_idx_z(),
        ],
        [
            thread::block_dim_x(),
            thread::block_dim_y(),
            thread::block_dim_z(),
        ],
        [
            thread::grid_dim_x(),
            thread::grid_dim_y(),
            thread::grid_dim_z(),
        ],
        thread::thread_idx().into(),
        thread::block_idx().into(),
        thread::block_dim().into(),
        thread::grid_dim().into(),
        thread::index_3d().into(),
    ] {
        for axis in axes {
            results.push(axis);
        }
    }
    let plane = thread::index_2d();
    results.push(plane.x);
    results.push(plane.y);
    results.push(thread::index());
    results.push(thread::index_1d());
    results.push(u32::from(thread::first()));
    results.push(thread::warp_size());
    results.push(cuda_std::warp::lane_id());
}

/// Words per thread of [`barriers`].
pub const BARRIERS: usize = 6;

/// Every barrier, for blocks of 64 threads. The second warp hands values to the first one through
/// named barriers.
///
/// # Safety
///
/// `out` has room for [`BARRIERS`] words per thread.
#[kernel(max_threads = 64)]
pub unsafe fn barriers(out: *mut u32) {
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, BARRIERS) };
    let t = thread::thread_idx_x();
    // SAFETY: every access is below 64 and separated from the others by a barrier.
    let mailbox = unsafe { SharedView::new(shared_array![u32; 64], 64) };

    mailbox.store(t as usize, 100 + t);
    thread::sync_threads();
    results.push(mailbox.load(63 - t as usize));

    results.push(thread::sync_threads_count(u32::from(t.is_multiple_of(3))));
    results.push(thread::sync_threads_and(u32::from(t < 64)));
    results.push(thread::sync_threads_or(u32::from(t == 17)));

    // SAFETY: both warps take part as a whole, one by arriving and one by waiting.
    unsafe {
        if t >= 32 {
            mailbox.store(t as usize, 200 + t);
            thread::named_barrier_arrive(1, 64);
            results.push(0);
        } else {
            thread::named_barrier_sync(1, 64);
            results.push(mailbox.load(32 + t as usize));
        }
        thread::named_barrier_sync(2, 64);
    }

    thread::grid_fence();
    thread::device_fence();
    thread::system_fence();
    fence::acq_rel(Block);
    fence::acq_rel(Device);
    fence::acq_rel(System);
    fence::sc(Block);
    fence::sc(Device);
    fence::sc(System);
    thread::nanosleep(100);
    results.push(1);
}
