//! Threads that share a piece of work.

use crate::WARP;
use cuda_std::thread;

/// Threads that do something together: number `index` of `count`.
#[derive(Clone, Copy)]
pub(super) struct Workers {
    pub(super) index: u32,
    pub(super) count: u32,
}

impl Workers {
    /// This thread alone.
    #[inline(always)]
    pub(super) fn thread() -> Self {
        Self { index: 0, count: 1 }
    }

    /// The lanes of this thread's warp.
    #[inline(always)]
    pub(super) fn warp() -> Self {
        Self {
            index: thread::thread_idx_x() % WARP,
            count: WARP,
        }
    }

    /// The threads of the block.
    #[inline(always)]
    pub(super) fn block() -> Self {
        Self {
            index: thread::thread_idx_x(),
            count: thread::block_dim_x(),
        }
    }

    /// Loads and stores this worker's share of `len` things.
    #[inline(always)]
    pub(super) fn copy<T: Copy>(
        self,
        len: usize,
        load: impl Fn(usize) -> T,
        store: impl Fn(usize, T),
    ) {
        let mut index = self.index as usize;
        while index < len {
            store(index, load(index));
            index += self.count as usize;
        }
    }

    /// [`copy`](Self::copy) with several loads ahead of the stores: the compiler cannot know that source and
    /// destination are apart, and would wait for each load by itself.
    #[inline(always)]
    pub(super) fn copy_ahead<T: Copy>(
        self,
        len: usize,
        load: impl Fn(usize) -> T,
        store: impl Fn(usize, T),
    ) {
        let (len, step) = (len as u32, self.count);
        let mut index = self.index;
        while index < len {
            let at = |n: u32| (index + n * step < len).then(|| load((index + n * step) as usize));
            let (a, b, c, d) = (at(0), at(1), at(2), at(3));
            let (e, f, g, h) = (at(4), at(5), at(6), at(7));
            let put = |n: u32, value: Option<T>| {
                if let Some(value) = value {
                    store((index + n * step) as usize, value);
                }
            };
            put(0, a);
            put(1, b);
            put(2, c);
            put(3, d);
            put(4, e);
            put(5, f);
            put(6, g);
            put(7, h);
            index += 8 * step;
        }
    }
}
