//! Shared memory of one block, and what is known about who wrote its bytes.

use std::alloc::{Layout, alloc, handle_alloc_error};

use crate::geometry::MAX_SHARED_BYTES;
use crate::memory;

/// Alignment of the dynamic array, enough for every swizzle mode of a tensor copy.
const ALIGNMENT: usize = 1024;

/// Unused bytes between two arrays, so that running over the end of one does not hit the next.
const RED_ZONE: usize = 64;

/// What one block gets: all that it may use, and room for red zones and alignment.
const ARENA_BYTES: usize = 2 * MAX_SHARED_BYTES.next_multiple_of(ALIGNMENT);
const LAYOUT: Layout = match Layout::from_size_align(ARENA_BYTES, ALIGNMENT) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// Bits of a shadow entry that hold the writing thread plus one.
const THREAD_BITS: u32 = 11;

struct StaticArray {
    site: usize,
    start: usize,
    bytes: usize,
    align: usize,
}

/// Why a static array cannot be had.
pub(crate) enum StaticError {
    /// Bytes that the block would need.
    Exceeds(usize),
    /// The alignment is not a power of two, or too large.
    Alignment,
}

/// A generic write to a byte of shared memory.
pub(crate) struct Writer {
    pub linear: u32,
    /// Proxy fences that the thread had executed before the write.
    pub fences: u32,
}

pub(crate) struct SharedMemory {
    base: *mut u8,
    dynamic: usize,
    statics: Vec<StaticArray>,
    /// First byte that no array has.
    end: usize,
    /// Bytes of all arrays.
    charged: usize,
    pattern: u64,
    /// For every byte below `end`: 0, or who wrote it last and after how many proxy fences.
    shadow: Vec<u32>,
}

impl SharedMemory {
    pub fn new() -> Self {
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc(LAYOUT) };
        if base.is_null() {
            handle_alloc_error(LAYOUT);
        }
        Self {
            base,
            dynamic: 0,
            statics: Vec::new(),
            end: 0,
            charged: 0,
            pattern: 0,
            shadow: Vec::new(),
        }
    }

    /// Makes it the shared memory of a new block.
    pub fn reset(&mut self, dynamic: usize, pattern: u64) {
        self.dynamic = dynamic;
        self.statics.clear();
        self.end = 0;
        self.charged = dynamic;
        self.pattern = pattern;
        self.shadow.clear();
        self.grow(dynamic);
    }

    /// Takes the bytes up to `end` into use, poisoned.
    fn grow(&mut self, end: usize) {
        let from = self.end.next_multiple_of(8);
        let to = end.next_multiple_of(8);
        debug_assert!(to <= ARENA_BYTES);
        // SAFETY: `from <= to <= ARENA_BYTES`, both multiples of 8, and the base is aligned.
        unsafe { memory::poison(self.base.add(from), to - from, self.pattern) };
        self.end = to;
        self.shadow.resize(to, 0);
    }

    /// Fills everything in use with another pattern, as if the next block had taken it over.
    pub fn repoison(&mut self, pattern: u64) {
        // SAFETY: `end` is a multiple of 8 within the arena.
        unsafe { memory::poison(self.base, self.end, pattern) };
    }

    pub fn dynamic(&self) -> (*mut u8, usize) {
        (self.base, self.dynamic)
    }

    /// The array of a site, size and alignment: the same one whenever the same block asks.
    pub fn static_array(
        &mut self,
        site: usize,
        bytes: usize,
        align: usize,
    ) -> Result<*mut u8, StaticError> {
        let key = (site, bytes, align);
        let known = self
            .statics
            .iter()
            .find(|array| (array.site, array.bytes, array.align) == key);
        let start = match known {
            Some(array) => array.start,
            None => self.add_static(site, bytes, align)?,
        };
        // SAFETY: every array lies within the arena.
        Ok(unsafe { self.base.add(start) })
    }

    fn add_static(
        &mut self,
        site: usize,
        bytes: usize,
        align: usize,
    ) -> Result<usize, StaticError> {
        if !align.is_power_of_two() || align > ALIGNMENT {
            return Err(StaticError::Alignment);
        }
        let charged = self.charged.saturating_add(bytes);
        let start = (self.end + RED_ZONE).next_multiple_of(align);
        if charged > MAX_SHARED_BYTES || start + bytes > ARENA_BYTES - 8 {
            return Err(StaticError::Exceeds(charged));
        }
        self.charged = charged;
        self.grow(start + bytes);
        self.statics.push(StaticArray {
            site,
            start,
            bytes,
            align,
        });
        Ok(start)
    }

    /// Offset of a range that lies inside one array.
    #[inline]
    pub fn offset_of(&self, address: usize, bytes: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.base.addr());
        let inside = |start: usize, length: usize| {
            offset >= start && offset - start <= length && bytes <= length - (offset - start)
        };
        if offset >= self.end {
            return None;
        }
        let found = inside(0, self.dynamic)
            || self
                .statics
                .iter()
                .any(|array| inside(array.start, array.bytes));
        found.then_some(offset)
    }

    /// Offset of any address in the arena, used or not.
    pub fn arena_offset(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.base.addr());
        (offset < ARENA_BYTES).then_some(offset)
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.charged
    }

    /// Notes a generic write by a thread that has executed `fences` proxy fences.
    #[inline]
    pub fn note_write(&mut self, offset: usize, bytes: usize, linear: u32, fences: u32) {
        let entry = fences << THREAD_BITS | (linear + 1);
        self.shadow[offset..offset + bytes].fill(entry);
    }

    /// Notes a write that needs no fence, because a copy engine made it.
    pub fn note_async_write(&mut self, offset: usize, bytes: usize) {
        self.shadow[offset..offset + bytes].fill(0);
    }

    /// The generic writes to a range, without repetition of neighbours, each with its first offset.
    pub fn writers(&self, offset: usize, bytes: usize) -> impl Iterator<Item = (usize, Writer)> {
        let entries = &self.shadow[offset..offset + bytes];
        entries
            .chunk_by(|a, b| a == b)
            .scan(offset, |at, run| {
                let first = *at;
                *at += run.len();
                Some((first, run[0]))
            })
            .filter(|&(_, entry)| entry != 0)
            .map(|(first, entry)| {
                let linear = (entry & ((1 << THREAD_BITS) - 1)) - 1;
                (
                    first,
                    Writer {
                        linear,
                        fences: entry >> THREAD_BITS,
                    },
                )
            })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.base, LAYOUT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_separate_and_aligned() {
        let mut shared = SharedMemory::new();
        shared.reset(100, u64::MAX);
        let (dynamic, bytes) = shared.dynamic();
        assert_eq!((dynamic.addr() % ALIGNMENT, bytes), (0, 100));
        let a = shared.static_array(1, 10, 4).ok().unwrap();
        let b = shared.static_array(2, 512, 128).ok().unwrap();
        assert_eq!(a, shared.static_array(1, 10, 4).ok().unwrap());
        assert_eq!(b.addr() % 128, 0);
        assert!(shared.offset_of(dynamic.addr() + 99, 1).is_some());
        assert!(shared.offset_of(dynamic.addr() + 99, 2).is_none());
        assert!(shared.offset_of(a.addr(), 10).is_some());
        assert!(shared.offset_of(a.addr() + 4, 10).is_none());
        assert!(shared.offset_of(b.addr(), 512).is_some());
        assert_eq!(shared.bytes(), 100 + 10 + 512);
        // Another size, as of another instance of generic code: another array.
        assert_ne!(a, shared.static_array(1, 11, 4).ok().unwrap());
        assert!(matches!(
            shared.static_array(3, 4, 3),
            Err(StaticError::Alignment)
        ));
        assert!(shared.static_array(3, MAX_SHARED_BYTES, 4).is_err());
        shared.reset(MAX_SHARED_BYTES, 1);
        assert!(shared.static_array(4, 1, 1).is_err());
    }

    #[test]
    fn writers_are_told_apart() {
        let mut shared = SharedMemory::new();
        shared.reset(64, 1);
        shared.note_write(0, 8, 0, 0);
        shared.note_write(8, 8, 1023, 5);
        shared.note_async_write(4, 4);
        let seen: Vec<_> = shared
            .writers(0, 64)
            .map(|(at, by)| (at, by.linear, by.fences))
            .collect();
        assert_eq!(seen, [(0, 0, 0), (8, 1023, 5)]);
    }
}
