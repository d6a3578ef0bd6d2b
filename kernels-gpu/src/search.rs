//! Search with 32 probes at a time, one by each lane of a warp.

use crate::WARP;
use cuda_std::{thread, warp};

/// Among which indices the last one is that meets a condition, where none does behind one that does not.
///
/// A bisection waits for one read after another, `ceil(log2(n))` of them. Here every round reads 32 values at once
/// and leaves a 32nd of the range: two rounds up to 1024 indices.
#[derive(Clone, Copy)]
pub(crate) struct Candidates {
    first: u32,
    past: u32,
}

impl Candidates {
    /// The indices `0..count`, of which the first is taken to meet the condition.
    #[inline(always)]
    pub(crate) fn below(count: u32) -> Self {
        Self {
            first: 0,
            past: count,
        }
    }

    /// One round. Called by whole warps with the same range and condition; all lanes get the result.
    #[inline(always)]
    pub(crate) fn narrowed(self, meets: impl Fn(u32) -> bool) -> Self {
        let lane = thread::thread_idx_x() % WARP;
        // Each lane looks at the first index of its piece of `step`.
        let step = (self.past - self.first).div_ceil(WARP);
        let probe = self.first + lane * step;
        let met = probe < self.past && meets(probe);
        // SAFETY: whole warps call this, and all lanes have the same range.
        let ballot = unsafe { warp::warp_vote_ballot(u32::MAX, met) };
        let first = self.first + (ballot | 1).ilog2() * step;
        Self {
            first,
            past: self.past.min(first + step),
        }
    }

    /// The index, after as many rounds as it takes; 0 if there is none. Called as [`narrowed`](Self::narrowed).
    #[inline(always)]
    pub(crate) fn last(mut self, meets: impl Fn(u32) -> bool) -> u32 {
        while self.first + 1 < self.past {
            self = self.narrowed(&meets);
        }
        self.first
    }
}
