//! A prefix sum over the threads of a block.

use crate::WARP;
use cuda_std::view::SharedView;
use cuda_std::{thread, warp};

/// The sum of `value` over the threads before this one, and over all threads of the block.
///
/// All threads of the block, `warps` whole warps, must call it together. `scratch` holds a word for each
/// warp.
#[inline(always)]
pub(crate) fn block_exclusive_sum(scratch: SharedView<u32>, warps: u32, value: u32) -> (u32, u32) {
    let thread = thread::thread_idx_x();
    let lane = thread % WARP;
    let mut inclusive = value;
    let mut distance = 1;
    while distance < WARP {
        // SAFETY: all lanes of the warp are here, as all threads of the block are.
        let (lower, exists) = unsafe { warp::warp_shuffle_up(u32::MAX, inclusive, distance, WARP) };
        if exists {
            inclusive += lower;
        }
        distance *= 2;
    }
    if lane == WARP - 1 {
        scratch.store((thread / WARP) as usize, inclusive);
    }
    thread::sync_threads();
    let mut before = 0;
    let mut total = 0;
    let mut other = 0;
    while other < warps {
        let sum = scratch.load(other as usize);
        if other < thread / WARP {
            before += sum;
        }
        total += sum;
        other += 1;
    }
    // The next call may not overwrite the sums before every thread has read them.
    thread::sync_threads();
    (before + inclusive - value, total)
}
