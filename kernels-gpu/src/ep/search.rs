//! Search with 32 probes at a time.

use crate::WARP;
use cuda_std::{thread, warp};

/// The first index whose value is above `value`, of `len` ascending ones that `load` gives; `len` if there is
/// none.
///
/// One round trip to memory narrows 32-fold: two for 1024 values. Called by whole warps with the same
/// arguments; all lanes get the result.
#[inline(always)]
pub(super) fn first_above(len: usize, load: impl Fn(usize) -> u32, value: u32) -> usize {
    let lane = (thread::thread_idx_x() % WARP) as usize;
    let (mut first, mut len) = (0, len);
    while len > 0 {
        // Each lane looks at the last value of its piece of `step`.
        let step = len.div_ceil(WARP as usize);
        let last = (lane + 1) * step - 1;
        let below = last < len && load(first + last) <= value;
        // SAFETY: all lanes are here: they share the arguments, hence `len`.
        let pieces = unsafe { warp::warp_vote_ballot(u32::MAX, below) }.count_ones() as usize;
        first += pieces * step;
        len = (len - pieces * step).min(step - 1);
    }
    first
}
