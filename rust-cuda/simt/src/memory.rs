//! Global memory: allocations, red zones, the quarantine of what was freed.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};

use crate::fault::FaultKind;

/// What CUDA guarantees for `cuMemAlloc`.
pub(crate) const ALIGNMENT: usize = 256;

/// Bytes on either side of an allocation that belong to it but not to the kernel.
const RED_ZONE: usize = 256;

/// Freed bytes that are kept from reuse, so that late accesses are seen.
const QUARANTINE_BYTES: usize = 64 << 20;

/// Allocations whose bounds are looked at before the map is.
const RECENT: usize = 4;

struct Allocation {
    /// Number in order of allocation: messages name it, since addresses differ from run to run.
    serial: u64,
    base: *mut u8,
    layout: Layout,
    start: usize,
    bytes: usize,
    freed: bool,
    /// Whether the memory is somebody else's: it has no red zones, and is not ours to release.
    adopted: bool,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.adopted {
            // SAFETY: `base` came from `alloc` with this layout, and is freed only here.
            unsafe { dealloc(self.base, self.layout) };
        }
    }
}

pub(crate) struct Memory {
    seed: u64,
    /// By address of the low red zone. Live and quarantined.
    allocations: BTreeMap<usize, Allocation>,
    /// Keys of what was freed, oldest first.
    quarantine: VecDeque<usize>,
    quarantined: usize,
    live_bytes: usize,
    serial: u64,
    recent: [(usize, usize); RECENT],
}

impl Memory {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            allocations: BTreeMap::new(),
            quarantine: VecDeque::new(),
            quarantined: 0,
            live_bytes: 0,
            serial: 0,
            recent: [(0, 0); RECENT],
        }
    }

    /// Bytes in live allocations.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// A poisoned allocation, or `None` where the host has no memory left.
    pub fn alloc(&mut self, bytes: usize) -> Option<*mut u8> {
        let padded = bytes
            .checked_add(2 * RED_ZONE)?
            .checked_next_multiple_of(ALIGNMENT)?;
        let layout = Layout::from_size_align(padded, ALIGNMENT).ok()?;
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc(layout) };
        if base.is_null() {
            return None;
        }
        self.serial += 1;
        // SAFETY: `base` is the start of `padded` bytes that nobody else knows.
        unsafe { poison(base, padded, pattern(self.seed, self.serial)) };
        // SAFETY: the red zone is shorter than the allocation.
        let pointer = unsafe { base.add(RED_ZONE) };
        let start = pointer.expose_provenance();
        self.allocations.insert(
            base.addr(),
            Allocation {
                serial: self.serial,
                base,
                layout,
                start,
                bytes,
                freed: false,
                adopted: false,
            },
        );
        self.live_bytes += bytes;
        Some(pointer)
    }

    /// Counts memory that somebody else owns as an allocation. False if it is misaligned, or touches one.
    pub fn adopt(&mut self, pointer: *mut u8, bytes: usize) -> bool {
        let start = pointer.expose_provenance();
        let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT) else {
            return false;
        };
        if start == 0 || !start.is_multiple_of(ALIGNMENT) || self.touches(start, bytes) {
            return false;
        }
        self.serial += 1;
        self.allocations.insert(
            start,
            Allocation {
                serial: self.serial,
                base: pointer,
                layout,
                start,
                bytes,
                freed: false,
                adopted: true,
            },
        );
        true
    }

    /// Forgets adopted memory that starts at `address`; false if there is none.
    pub fn disown(&mut self, address: usize) -> bool {
        let adopted = |found: &Allocation| found.adopted;
        if !self.allocations.get(&address).is_some_and(adopted) {
            return false;
        }
        self.recent = [(0, 0); RECENT];
        self.allocations.remove(&address).is_some()
    }

    /// Quarantines the live allocation that starts at `address`; false if there is none.
    pub fn free(&mut self, address: usize) -> bool {
        let key = address.wrapping_sub(RED_ZONE);
        let ours = |found: &&mut Allocation| !found.freed && !found.adopted;
        let Some(allocation) = self.allocations.get_mut(&key).filter(ours) else {
            return false;
        };
        allocation.freed = true;
        self.live_bytes -= allocation.bytes;
        self.quarantined += allocation.layout.size();
        self.quarantine.push_back(key);
        self.recent = [(0, 0); RECENT];
        while self.quarantined > QUARANTINE_BYTES
            && let Some(oldest) = self.quarantine.pop_front()
            && let Some(evicted) = self.allocations.remove(&oldest)
        {
            self.quarantined -= evicted.layout.size();
        }
        true
    }

    /// Whether the range lies inside one live allocation.
    #[inline]
    pub fn contains(&mut self, address: usize, bytes: usize) -> bool {
        for i in 0..RECENT {
            let (start, end) = self.recent[i];
            if address >= start && address < end && bytes <= end - address {
                // Hot allocations move to the front, one place at a time.
                self.recent.swap(i, i.saturating_sub(1));
                return true;
            }
        }
        self.contains_slow(address, bytes)
    }

    #[cold]
    fn contains_slow(&mut self, address: usize, bytes: usize) -> bool {
        let Some(found) = self.find(address).filter(|found| !found.freed) else {
            return false;
        };
        let range = (found.start, found.start + found.bytes);
        let inside = address >= range.0 && address <= range.1 && bytes <= range.1 - address;
        if inside {
            self.recent[RECENT - 1] = range;
        }
        inside
    }

    /// The allocation whose bytes or red zones include `address`.
    fn find(&self, address: usize) -> Option<&Allocation> {
        let (&key, found) = self.allocations.range(..=address).next_back()?;
        (address < key + found.layout.size()).then_some(found)
    }

    /// Why a range that [`Self::contains`] rejects is wrong, if it is near any allocation.
    pub fn explain(&self, address: usize, bytes: usize) -> Option<(FaultKind, String)> {
        let found = self.find(address)?;
        let offset = address.wrapping_sub(found.start).cast_signed();
        let (kind, freed) = if found.freed {
            (FaultKind::UseAfterFree, ", which was freed")
        } else {
            (FaultKind::OutOfBounds, "")
        };
        let text = format!(
            "{bytes} bytes at byte {offset} of allocation #{} of {} bytes{freed}",
            found.serial, found.bytes
        );
        Some((kind, text))
    }

    /// Whether any byte of the range belongs to an allocation, live or quarantined, or its red zones.
    pub fn touches(&self, address: usize, bytes: usize) -> bool {
        let Some(end) = address.checked_add(bytes) else {
            return true;
        };
        self.find(address).is_some() || self.allocations.range(address..end).next().is_some()
    }
}

/// Eight bytes to fill memory number `serial` with: none of them zero, and different for every seed, so
/// that reading what was never written is seen.
pub(crate) fn pattern(seed: u64, serial: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed ^ serial.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    u64::from_ne_bytes(std::array::from_fn(|_| rng.u8(1..)))
}

/// Fills memory with a pattern.
///
/// # Safety
/// `base` must be aligned to 8 and valid for writes of `bytes` bytes, a multiple of 8.
pub(crate) unsafe fn poison(base: *mut u8, bytes: usize, pattern: u64) {
    // SAFETY: alignment and validity are the caller's promise; `u64` has no invalid values, and the
    // elements are written before they are read.
    let words = unsafe {
        std::slice::from_raw_parts_mut(base.cast::<std::mem::MaybeUninit<u64>>(), bytes / 8)
    };
    words.fill(std::mem::MaybeUninit::new(pattern));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_exact() {
        let mut memory = Memory::new(1);
        let start = memory.alloc(100).unwrap().addr();
        assert_eq!(start % ALIGNMENT, 0);
        assert!(memory.contains(start, 100));
        assert!(memory.contains(start + 99, 1));
        assert!(!memory.contains(start, 101));
        assert!(!memory.contains(start + 100, 1));
        assert!(!memory.contains(start - 1, 1));
        assert!(!memory.contains(start, usize::MAX));
        assert_eq!(memory.live_bytes(), 100);
    }

    #[test]
    fn empty_allocations_are_distinct_and_hold_nothing() {
        let mut memory = Memory::new(1);
        let (a, b) = (memory.alloc(0).unwrap(), memory.alloc(0).unwrap());
        assert_ne!(a, b);
        assert!(!memory.contains(a.addr(), 1));
        assert!(memory.free(a.addr()) && memory.free(b.addr()));
    }

    #[test]
    fn freed_memory_is_remembered() {
        let mut memory = Memory::new(1);
        let start = memory.alloc(64).unwrap().addr();
        assert!(!memory.free(start + 8));
        assert!(memory.free(start));
        assert!(!memory.free(start));
        assert!(!memory.contains(start, 1));
        let (kind, text) = memory.explain(start + 8, 4).unwrap();
        assert_eq!(kind, FaultKind::UseAfterFree);
        assert_eq!(
            text,
            "4 bytes at byte 8 of allocation #1 of 64 bytes, which was freed"
        );
        assert_eq!(memory.live_bytes(), 0);
    }

    #[test]
    fn adopted_memory_has_bounds_and_is_not_freed() {
        #[repr(align(256))]
        struct Page([u8; 512]);
        let mut page = Page([7; 512]);
        let pointer = page.0.as_mut_ptr();
        let mut memory = Memory::new(1);
        assert!(!memory.adopt(pointer.wrapping_add(16), 256), "misaligned");
        assert!(memory.adopt(pointer, 512));
        assert!(!memory.adopt(pointer.wrapping_add(256), 256), "overlap");
        assert!(memory.contains(pointer.addr() + 511, 1));
        assert!(!memory.contains(pointer.addr() + 511, 2));
        assert!(!memory.free(pointer.addr()));
        assert!(memory.disown(pointer.addr()) && !memory.disown(pointer.addr()));
        assert!(!memory.contains(pointer.addr(), 1));
        drop(memory);
        assert_eq!(page.0, [7; 512]);
    }

    #[test]
    fn the_quarantine_is_bounded() {
        let mut memory = Memory::new(1);
        for _ in 0..10 {
            let start = memory.alloc(QUARANTINE_BYTES / 4).unwrap().addr();
            assert!(memory.free(start));
            assert!(memory.quarantined <= QUARANTINE_BYTES);
        }
    }

    #[test]
    fn patterns_differ_and_have_no_zero_byte() {
        assert_ne!(pattern(1, 1), pattern(2, 1));
        assert_ne!(pattern(1, 1), pattern(1, 2));
        assert!((0..1000).all(|seed| pattern(seed, 3).to_ne_bytes().iter().all(|&byte| byte != 0)));
    }
}
