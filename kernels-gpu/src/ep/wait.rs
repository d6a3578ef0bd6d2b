//! Waiting for other threads, with a bound.
//!
//! A wait that lasts longer than the deadline writes down what it waited for, and gives up. The record is
//! written once: it is the first cause, and whoever else waits on this rank leaves when they see it. The host
//! reads it when it next waits for the rank.

use super::arguments::{Rank, Shape};
use cuda_std::atomic::scoped::{
    AcqRel, Acquire, Atomic, AtomicValue, Device, Global, Relaxed, Scope,
};
use cuda_std::misc::global_timer_ns;
use cuda_std::view::IndirectViewMut;

/// Polls between two looks at the clock and at the record.
const POLLS_PER_CHECK: u32 = 64;

/// What a wait was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Awaited {
    /// The number of messages from one rank for one expert.
    Count = 1,
    /// The offsets, from the block that computes them.
    Offsets = 2,
    /// That one rank has received the round before.
    Receipt = 8,
}

/// The record of a wait that was given up, [`Self::WORDS`] words. All zero: there was none.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    words: *mut u32,
}

impl Failure {
    /// Words of the record: [`Awaited`] or 0; the rank awaited; the global expert; the word's index.
    pub const WORDS: usize = 4;

    #[inline(always)]
    pub(super) fn of(rank: &Rank) -> Self {
        Self {
            words: rank.failure,
        }
    }

    /// The record at `words`.
    #[inline(always)]
    pub(super) fn at(words: *mut u32) -> Self {
        Self { words }
    }

    #[inline(always)]
    fn state(&self) -> Atomic<u32, Device, Global> {
        // SAFETY: the record is memory of the rank's, which the entry's caller vouches for.
        unsafe { Atomic::from_global_ptr(self.words) }
    }

    /// Whether there is a record.
    #[inline(always)]
    pub(super) fn is_recorded(&self) -> bool {
        self.state().load(Relaxed) != 0
    }

    #[inline(always)]
    fn record(&self, what: Awaited, rank: u32, expert: u32, word: u32) {
        if self
            .state()
            .compare_exchange(0, what as u32, AcqRel)
            .is_ok()
        {
            // SAFETY: as in `state`; only the thread that set the state gets here, and only the host reads.
            let words = unsafe { IndirectViewMut::new(self.words, Self::WORDS) };
            words.store(1, rank);
            words.store(2, expert);
            words.store(3, word);
        }
    }
}

/// What to write down if a wait takes too long.
#[derive(Clone, Copy)]
pub(super) struct Waiter {
    pub(super) failure: Failure,
    pub(super) what: Awaited,
    pub(super) rank: u32,
    pub(super) expert: u32,
    pub(super) word: u32,
}

impl Waiter {
    /// Waits until the word is something other than `nothing`, which it is now or will be. What was written
    /// before the word was released can be read afterwards. `None`: given up.
    #[inline(always)]
    pub(super) fn wait<T: AtomicValue + PartialEq, S: Scope>(
        self,
        word: Atomic<T, S, Global>,
        nothing: T,
        shape: &Shape,
    ) -> Option<T> {
        // Who waits for the offsets waits, through them, for the counts. The one who waits for a count
        // knows more of what is wrong, and shall be the first to give up.
        let patience = match self.what {
            Awaited::Count | Awaited::Receipt => shape.deadline_ns,
            Awaited::Offsets => shape.deadline_ns * 2,
        };
        // When the clock was first looked at. Most waits are over before that, and it is slow to read.
        let mut start = None;
        let mut polls = 0;
        loop {
            let value = word.load(Acquire);
            if value != nothing {
                return Some(value);
            }
            polls += 1;
            if polls % POLLS_PER_CHECK == 0 {
                if self.failure.is_recorded() {
                    return None;
                }
                let now = global_timer_ns();
                if patience != 0 && now - *start.get_or_insert(now) > patience {
                    self.failure
                        .record(self.what, self.rank, self.expert, self.word);
                    return None;
                }
            }
        }
    }
}
