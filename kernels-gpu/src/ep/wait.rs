//! Waiting for other threads, with a bound.
//!
//! A wait that is over its time writes down what it waited for, and ends. The rank's record is written once, by the
//! first whose time is over; the other waits of the rank see it at their next look, and give up too. It stays, so
//! that a later launch for the rank gives up at once. The host reads it in `EpGroup::check`.
//!
//! Time is looked at once in `POLLS_PER_CHECK` polls, and counts from the first look: a wait lasts no less than
//! its deadline, and longer by what some polls take.

use super::arguments::{Rank, Shape};
use cuda_std::atomic::scoped::{
    AcqRel, Acquire, Atomic, AtomicValue, Device, Global, Relaxed, Release, Scope,
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
    /// In a combine: the number of rows from one rank's expert.
    Returned = 3,
    /// In a combine: the block that waits for those numbers.
    Returns = 4,
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
        // Who waits for another block of its rank waits, through it, for the counts. The one who waits for a count
        // knows more of what is wrong, and shall be the first to give up.
        let patience = match self.what {
            Awaited::Count | Awaited::Returned | Awaited::Receipt => shape.deadline_ns,
            Awaited::Offsets | Awaited::Returns => shape.deadline_ns.saturating_mul(2),
        };
        // When the clock was first looked at. Most waits are over before that, and it is slow to read.
        let mut start = None;
        let mut polls_to_check = POLLS_PER_CHECK;
        loop {
            let value = word.load(Acquire);
            if value != nothing {
                return Some(value);
            }
            polls_to_check -= 1;
            if polls_to_check == 0 {
                polls_to_check = POLLS_PER_CHECK;
                if self.failure.is_recorded() {
                    return None;
                }
                let now = global_timer_ns();
                // The timer may be set back, as it follows a clock outside the GPU: no time has passed then.
                let waited = now.saturating_sub(*start.get_or_insert(now));
                if patience != 0 && waited > patience {
                    self.failure
                        .record(self.what, self.rank, self.expert, self.word);
                    return None;
                }
            }
        }
    }
}

/// What one block of a rank lays out for all of them, and whether it is there: a word that is zero before and
/// after, and in between the number of blocks that may still read the layout.
///
/// Publishing and giving up exclude each other. A block that gives up marks the word if nothing is published;
/// if something is, it goes on, though the record says that it waited too long. So the block that publishes learns, from what it finds in the
/// word when it has done its own share, whether all others have theirs. The mark is never taken off: the rank has a
/// failure record by then.
#[derive(Clone, Copy)]
pub(super) struct Published {
    word: Atomic<u32, Device, Global>,
}

impl Published {
    /// Added to the number of blocks, which is smaller, when one of them did not wait any longer.
    const GIVEN_UP: u32 = 1 << 31;

    #[inline(always)]
    pub(super) fn new(word: Atomic<u32, Device, Global>) -> Self {
        Self { word }
    }

    /// Lets `blocks` blocks read what was written before. An addition and not a store, to keep the mark.
    #[inline(always)]
    pub(super) fn publish(self, blocks: u32) {
        self.word.fetch_add(blocks, Release);
    }

    /// Waits for [`publish`](Self::publish). False: this block, or another one, has given up.
    #[inline(always)]
    pub(super) fn wait(self, waiter: Waiter, shape: &Shape) -> bool {
        let word = match waiter.wait(self.word, 0, shape) {
            Some(word) => word,
            None => match self.word.compare_exchange(0, Self::GIVEN_UP, AcqRel) {
                Ok(_) => return false,
                Err(word) => word,
            },
        };
        word & Self::GIVEN_UP == 0
    }

    /// Says that the block, each of whose threads is done, does not read any more. False, for the block that
    /// published: others never began.
    #[inline(always)]
    pub(super) fn finish(self) -> bool {
        self.word.fetch_add(u32::MAX, Relaxed) & Self::GIVEN_UP == 0
    }
}
