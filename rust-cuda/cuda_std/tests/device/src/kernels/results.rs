//! Where kernels report what they computed.

use cuda_std::thread;
use cuda_std::view::GlobalViewMut;

/// The words one thread reports, `words` of them from `words * thread::index()` on.
pub struct Results {
    view: GlobalViewMut<u32>,
    next: usize,
}

impl Results {
    /// # Safety
    ///
    /// `out` has room for `words` words of every thread of the launch, and nothing else touches it.
    #[inline(always)]
    pub unsafe fn new(out: *mut u32, words: usize) -> Self {
        let next = thread::index() as usize * words;
        Self {
            // SAFETY: the thread uses its own words only; the caller vouches for the memory.
            view: unsafe { GlobalViewMut::new(out, next + words) },
            next,
        }
    }

    /// Reports one word.
    #[inline(always)]
    #[track_caller]
    pub fn push(&mut self, word: u32) {
        self.view.store(self.next, word);
        self.next += 1;
    }

    /// Reports two words, the lower one first.
    #[inline(always)]
    #[track_caller]
    pub fn push_u64(&mut self, value: u64) {
        self.push(value as u32);
        self.push((value >> 32) as u32);
    }
}
