//! `mbarrier` objects: arrivals and transaction bytes, phase by phase.

use std::panic::Location;

use crate::context::Next;
use crate::device::Access;
use crate::engine::Engine;
use crate::fault::FaultKind;
use crate::fiber::FiberId;

/// Largest count of arrivals, and largest magnitude of the transaction count.
const MAX_COUNT: i64 = (1 << 20) - 1;

const BYTES: usize = size_of::<u64>();

/// Upper bytes of the word in shared memory that stands for a live object.
const MARK: u64 = 0xb477_0000_0000_0000;

type Where = &'static Location<'static>;

/// A live `mbarrier` of a block.
pub(crate) struct Mbarrier {
    word: *mut u64,
    /// Arrivals of every phase.
    count: u32,
    /// Arrivals that the current phase still lacks.
    pending: u32,
    /// Bytes that the current phase still expects; below zero when they came before they were expected.
    tx: i64,
    /// Number of the current phase.
    phase: u64,
}

impl Mbarrier {
    /// What the word holds while nobody tampers with it.
    fn image(&self) -> u64 {
        MARK | (self.phase & 0xffff) << 32 | u64::from(self.pending)
    }

    fn store(&self) {
        // SAFETY: `word` was checked when the object was made: eight aligned bytes of the block's shared
        // memory, which outlives the object.
        unsafe { self.word.write(self.image()) };
    }

    /// Ends the phase if nothing is missing.
    fn settle(&mut self) {
        if self.pending == 0 && self.tx == 0 {
            self.phase += 1;
            self.pending = self.count;
        }
        self.store();
    }
}

/// A misuse: its message.
type Misuse = String;

impl Engine {
    pub(crate) fn mbarrier_init(
        &mut self,
        id: FiberId,
        word: *mut u64,
        count: u32,
        location: Where,
    ) -> Next {
        let checked = self.access(id, (word.addr(), BYTES, BYTES), Access::Write, location);
        if checked != Next::Continue {
            return checked;
        }
        let slot = self.fibers[id].block;
        let block = &mut self.blocks[slot];
        let message = if block.shared.offset_of(word.addr(), BYTES).is_none() {
            "an mbarrier must be in the block's shared memory".to_owned()
        } else if count == 0 || i64::from(count) > MAX_COUNT {
            format!("an mbarrier of {count} arrivals: there must be 1 to {MAX_COUNT}")
        } else if block.mbarriers.iter().any(|object| object.word == word) {
            "the mbarrier is initialised twice, without an invalidation between".to_owned()
        } else {
            let object = Mbarrier {
                word,
                count,
                pending: count,
                tx: 0,
                phase: 0,
            };
            object.store();
            block.mbarriers.push(object);
            return Next::Continue;
        };
        self.fail(id, FaultKind::Mbarrier, location, message)
    }

    pub(crate) fn mbarrier_inval(&mut self, id: FiberId, word: *mut u64, location: Where) -> Next {
        let slot = self.fibers[id].block;
        let found = self.mbarrier(slot, word).map(|_| ());
        self.blocks[slot]
            .mbarriers
            .retain(|object| object.word != word);
        self.or_misuse(id, found, location)
    }

    /// Arrives, after adding `tx` to the bytes expected; `token` becomes the phase arrived in.
    pub(crate) fn mbarrier_arrive(
        &mut self,
        id: FiberId,
        word: *mut u64,
        tx: u32,
        token: &mut u64,
        location: Where,
    ) -> Next {
        let slot = self.fibers[id].block;
        let arrived = self.mbarrier(slot, word).and_then(|object| {
            if object.pending == 0 {
                return Err(format!(
                    "more arrivals than the {} of the phase, which still lacks {} bytes",
                    object.count, object.tx
                ));
            }
            object.tx += i64::from(tx);
            if object.tx > MAX_COUNT {
                return Err(format!("{} bytes expected exceed {MAX_COUNT}", object.tx));
            }
            *token = object.phase;
            object.pending -= 1;
            object.settle();
            Ok(())
        });
        self.scheduler.signal();
        self.or_misuse(id, arrived, location)
    }

    /// Tells whether the phase `phase_of(current)` names has ended.
    pub(crate) fn mbarrier_test(
        &mut self,
        id: FiberId,
        word: *mut u64,
        ended: impl FnOnce(u64) -> Result<bool, Misuse>,
        result: &mut bool,
        location: Where,
    ) -> Next {
        let slot = self.fibers[id].block;
        let tested = self.mbarrier(slot, word).and_then(|object| {
            *result = ended(object.phase)?;
            Ok(())
        });
        self.or_misuse(id, tested, location)
    }

    /// Bytes of an asynchronous copy have landed.
    pub(crate) fn complete_tx(
        &mut self,
        slot: usize,
        word: *mut u64,
        bytes: usize,
    ) -> Result<(), Misuse> {
        self.mbarrier(slot, word).and_then(|object| {
            object.tx -= bytes as i64;
            if object.tx < -MAX_COUNT {
                return Err(format!(
                    "{} bytes more than expected exceed {MAX_COUNT}",
                    -object.tx
                ));
            }
            object.settle();
            Ok(())
        })
    }

    /// The live object at an address.
    pub(crate) fn mbarrier(
        &mut self,
        slot: usize,
        word: *mut u64,
    ) -> Result<&mut Mbarrier, Misuse> {
        let objects = &mut self.blocks[slot].mbarriers;
        let Some(object) = objects.iter_mut().find(|object| object.word == word) else {
            return Err("there is no initialised mbarrier of this block at the address".to_owned());
        };
        // SAFETY: as in `Mbarrier::store`.
        if unsafe { word.read() } != object.image() {
            return Err("the mbarrier was overwritten by an ordinary store or copy".to_owned());
        }
        Ok(object)
    }

    fn or_misuse(&mut self, id: FiberId, result: Result<(), Misuse>, location: Where) -> Next {
        match result {
            Ok(()) => Next::Continue,
            Err(message) => self.fail(id, FaultKind::Mbarrier, location, message),
        }
    }
}

/// Whether the phase of a token has ended.
pub(crate) fn token_ended(token: u64, phase: u64) -> Result<bool, Misuse> {
    match phase.checked_sub(token) {
        Some(ended @ 0..=1) => Ok(ended == 1),
        _ => Err(format!(
            "the state belongs to phase {token}, but the mbarrier is in phase {phase}: only the current \
             phase and the one before can be waited for"
        )),
    }
}

/// Whether the phase of a parity has ended: the current one has the other parity.
pub(crate) fn parity_ended(parity: u32, phase: u64) -> Result<bool, Misuse> {
    match parity {
        0 | 1 => Ok(phase & 1 != u64::from(parity)),
        _ => Err(format!("parity {parity} is neither 0 nor 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_names_the_phase_before() {
        // Fresh: phase 0 has not ended, and "the phase before" has.
        assert_eq!(parity_ended(0, 0), Ok(false));
        assert_eq!(parity_ended(1, 0), Ok(true));
        assert_eq!(parity_ended(0, 1), Ok(true));
        assert_eq!(parity_ended(1, 1), Ok(false));
        assert!(parity_ended(2, 0).is_err());
    }

    #[test]
    fn tokens_name_two_phases() {
        assert_eq!(token_ended(3, 3), Ok(false));
        assert_eq!(token_ended(3, 4), Ok(true));
        assert!(token_ended(3, 5).is_err());
        assert!(token_ended(4, 3).is_err());
    }
}
