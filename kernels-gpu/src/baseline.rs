//! What the quantizer is measured against: a plain copy, and a kernel that does nothing.
//!
//! The closest bound, the quantizer's traffic twin, stands beside it in [`quantize`](crate::quantize).

use core::simd::u32x4;
use cuda_std::prelude::*;
use cuda_std::view::{GlobalView, GlobalViewMut};

/// Threads of a block of [`copy()`].
pub const COPY_THREADS: u32 = 256;

/// Words of 16 bytes that a thread has in flight.
const IN_FLIGHT: u32 = 4;

/// Thread blocks that copy `words` words of 16 bytes.
pub const fn copy_grid_size(words: u32) -> u64 {
    words.div_ceil(COPY_THREADS * IN_FLIGHT) as u64
}

/// Copies `words` words of 16 bytes, four to a thread, all of them loaded before the first is stored.
///
/// Launch with [`copy_grid_size`] blocks of [`COPY_THREADS`] threads.
///
/// # Safety
///
/// `from` and `to` hold `words` words (below 2^31) each and do not overlap. Nothing writes `from`, and
/// nothing else writes `to`, during the launch.
#[kernel(max_threads = 256)]
pub unsafe fn copy(from: *const u32x4, to: *mut u32x4, words: u32) {
    // SAFETY: the caller's obligation.
    let (from, to) = unsafe {
        (
            GlobalView::new(from, words as usize),
            GlobalViewMut::new(to, words as usize),
        )
    };
    let first = thread::block_idx_x() * (COPY_THREADS * IN_FLIGHT) + thread::thread_idx_x();
    let (second, third, fourth) = (
        first + COPY_THREADS,
        first + 2 * COPY_THREADS,
        first + 3 * COPY_THREADS,
    );
    if fourth < words {
        let a = from.load_streaming(first as usize);
        let b = from.load_streaming(second as usize);
        let c = from.load_streaming(third as usize);
        let d = from.load_streaming(fourth as usize);
        to.store_streaming(first as usize, a);
        to.store_streaming(second as usize, b);
        to.store_streaming(third as usize, c);
        to.store_streaming(fourth as usize, d);
    } else {
        let mut word = first;
        while word < words {
            to.store_streaming(word as usize, from.load_streaming(word as usize));
            word += COPY_THREADS;
        }
    }
}

/// Threads of a block of [`empty()`].
pub const EMPTY_THREADS: u32 = 32;

/// Does nothing: what a launch costs.
///
/// Launch with one block of [`EMPTY_THREADS`] threads.
///
/// # Safety
///
/// There is nothing to promise; a kernel is unsafe to call by its kind.
#[kernel(max_threads = 32)]
pub unsafe fn empty() {}
