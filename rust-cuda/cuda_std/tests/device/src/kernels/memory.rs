//! Views, shared memory, address spaces, the device heap.

use cuda_std::atomic::scoped::{Acquire, Atomic, Device, Global, Relaxed, Release};
use cuda_std::prelude::*;
use cuda_std::ptr::{
    AddressSpace, convert_generic_to_specific_address_space,
    convert_specific_address_space_to_generic, is_in_address_space,
};
use cuda_std::view::{GlobalView, GlobalViewMut, IndirectView, IndirectViewMut, SharedView, Word};
use cuda_std::{mem, shared};

use super::results::Results;

/// The largest block of [`views`], and the words of dynamic shared memory that it needs.
pub const LEN: usize = 64;

/// Copies `n` vectors of 16 bytes from `input` to `output`, each half through one kind of access,
/// exchanging neighbours through static and dynamic shared memory.
///
/// # Safety
///
/// `input` and `output` hold `n` vectors; the launch provides [`LEN`] words; blocks have an
/// even number of threads, at most [`LEN`].
#[kernel(max_threads = 64)]
pub unsafe fn views(input: *const u32x4, output: *mut u32x4, n: u32) {
    let n = n as usize;
    let i = thread::index_1d() as usize;
    let t = thread::thread_idx_x() as usize;
    // SAFETY: the kernel's contract; indices are compared with `n` below, and shared elements are
    // separated by barriers.
    let (input, output, pairs, first, second) = unsafe {
        (
            GlobalView::new(input, n),
            GlobalViewMut::new(output, n),
            GlobalView::new(input.cast::<u32x2>(), 2 * n),
            SharedView::new(shared_array![u32x4; LEN], LEN),
            SharedView::new(shared::dynamic_shared_mem::<u32>(), LEN),
        )
    };
    let mut vector = u32x4::from([0; 4]);
    if i < n {
        vector = if i.is_multiple_of(2) {
            input.load_streaming(i)
        } else {
            input.load(i)
        };
        let pair = pairs.load_streaming(2 * i);
        vector[3] ^= pair[0] ^ pair[1];
    }
    first.store(t, vector);
    second.store(t, vector[0]);
    thread::sync_threads();
    let mut other = first.load(t ^ 1);
    other[1] ^= second.load(t ^ 1);
    if i < n {
        if i.is_multiple_of(2) {
            output.store_streaming(i, other);
        } else {
            output.store(i, other);
        }
    }
}

/// Streams words and pairs of words from `input` to `output`.
///
/// # Safety
///
/// Both hold `2 * n` words, 8-byte aligned.
#[kernel]
pub unsafe fn streams(input: *const u32, output: *mut u32, n: u32) {
    let n = n as usize;
    let i = thread::index_1d() as usize;
    if i >= n {
        return;
    }
    // SAFETY: the kernel's contract.
    let (words, pairs, out_words, out_pairs) = unsafe {
        (
            GlobalView::new(input, 2 * n),
            GlobalView::new(input.cast::<u32x2>(), n),
            GlobalViewMut::new(output, 2 * n),
            GlobalViewMut::new(output.cast::<u32x2>(), n),
        )
    };
    if i.is_multiple_of(2) {
        out_pairs.store_streaming(i, pairs.load_streaming(i));
    } else {
        out_words.store_streaming(2 * i, words.load_streaming(2 * i));
        out_words.store_streaming(2 * i + 1, words.load_streaming(2 * i + 1));
    }
}

/// Words of a row of [`strided`].
pub const ROW: usize = 6;

/// Reverses the words of each row, through byte offsets and parts of views, a row a thread; the last two
/// of a row go to the neighbour's, through shared memory. Leaves out the first `skipped` rows of the
/// input.
///
/// # Safety
///
/// `input` holds `skipped + rows` rows of [`ROW`] words and `output` holds `rows`, both 8-byte aligned;
/// blocks have an even number of threads, at most [`LEN`].
#[kernel(max_threads = 64)]
pub unsafe fn strided(input: *const u32, output: *mut u32, rows: u32, skipped: u32) {
    const PITCH: usize = ROW * size_of::<u32>();
    const PAIR: usize = size_of::<u32x2>();
    let (rows, skipped) = (rows as usize, skipped as usize);
    let row = thread::index_1d() as usize;
    let t = thread::thread_idx_x() as usize;
    // SAFETY: the kernel's contract; rows are compared with `rows` below, and shared elements are
    // separated by a barrier. Rows are whole pairs, and so is what is skipped.
    let (input, pairs_in, output, pairs_out, exchange, pairs) = unsafe {
        let input = GlobalView::new(input, (skipped + rows) * ROW).skip(skipped * ROW);
        let output = GlobalViewMut::new(output, rows * ROW);
        let exchange = SharedView::new(shared_array![u32x2; LEN].cast::<u32>(), 2 * LEN);
        (
            input,
            input.cast::<u32x2>(),
            output,
            output.cast::<u32x2>(),
            exchange,
            exchange.cast::<u32x2>(),
        )
    };
    let start = row * PITCH;
    if row < rows {
        let first = pairs_in.load_at(start);
        pairs_out.store_at(start + 2 * PAIR, u32x2::from([first[1], first[0]]));
        output.store_at(start + PAIR, input.load_at(start + PAIR + 4));
        output.store_at(start + PAIR + 4, input.skip(2).load_at(start));
        pairs.store_at(t * PAIR, pairs_in.skip(2).load_at(start));
    }
    thread::sync_threads();
    if row < rows {
        let neighbour = if row ^ 1 < rows { t ^ 1 } else { t } * PAIR;
        output.store_at(start, exchange.skip(1).load_at(neighbour));
        output.store_at(start + 4, exchange.load_at(neighbour));
    }
}

/// Bytes that a thread of [`indirect`] copies.
pub const INDIRECT: usize = 48;

/// Copies what `tables[0]` points to, to where `tables[1]` does, by words of every size, and counts the threads at
/// `tables[2]`.
///
/// # Safety
///
/// The first two hold [`INDIRECT`] bytes for each thread, 16-byte aligned, the last a word that is 0.
#[kernel]
pub unsafe fn indirect(tables: *const *mut u8) {
    let thread = thread::index_1d() as usize;
    // SAFETY: the kernel's contract.
    let (from, to, counter) = unsafe {
        let tables = GlobalView::new(tables, 3);
        let offset = thread * INDIRECT;
        (
            tables.load(0).add(offset),
            tables.load(1).add(offset),
            Atomic::<u32, Device, Global>::from_global_ptr(tables.load(2).cast()),
        )
    };
    /// # Safety
    ///
    /// Both pointers are valid for a `T` at byte `offset`.
    #[inline(always)]
    unsafe fn copy<T: Word>(from: *mut u8, to: *mut u8, offset: usize) {
        // SAFETY: the caller's obligation.
        let (from, to) = unsafe {
            (
                IndirectView::<T>::new(from.add(offset).cast(), 1),
                IndirectViewMut::<T>::new(to.add(offset).cast(), 1),
            )
        };
        to.store(0, from.load(0));
    }
    // SAFETY: the kernel's contract; the offsets are multiples of the sizes.
    unsafe {
        copy::<u32x4>(from, to, 0);
        copy::<u32x2>(from, to, 16);
        copy::<u64>(from, to, 24);
        copy::<u32>(from, to, 32);
        copy::<f32>(from, to, 36);
        copy::<i32>(from, to, 40);
        copy::<u16>(from, to, 44);
        copy::<u8>(from, to, 46);
        copy::<u8>(from, to, 47);
    }
    if counter.load(Acquire) == u32::MAX {
        counter.store(0, Release);
    }
    counter.fetch_add(1, Relaxed);
}

/// Words per thread of [`spaces`].
pub const SPACES: usize = 15;

/// Questions about address spaces, there and back, and the device heap.
///
/// # Safety
///
/// `out` has room for [`SPACES`] words per thread.
#[kernel]
pub unsafe fn spaces(out: *mut u32) {
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, SPACES) };
    let shared = shared_array![u32; 1];
    let mut local = 5u32;
    let local = &raw mut local;
    let spaces = [
        AddressSpace::Global,
        AddressSpace::Shared,
        AddressSpace::Local,
    ];
    for (ptr, home) in [out, shared, local].into_iter().zip(spaces) {
        for space in spaces {
            // SAFETY: all three are valid for a word.
            results.push(u32::from(unsafe { is_in_address_space(ptr, space) }));
        }
        // SAFETY: `ptr` points into `home`.
        let back = unsafe {
            convert_specific_address_space_to_generic(
                convert_generic_to_specific_address_space(ptr, home),
                home,
            )
        };
        results.push(u32::from(core::ptr::eq(back, ptr)));
    }
    // SAFETY: the word is written before it is read, and freed once.
    unsafe {
        results.push(u32::from(is_in_address_space(out, AddressSpace::Constant)));
        let word = mem::malloc(4).cast::<u32>();
        // Volatile, since LLVM sees through allocations that it can do without.
        word.write_volatile(thread::index());
        results.push(word.read_volatile());
        mem::free(word.cast());
    }
    results.push(mem::dynamic_smem_size());
}
