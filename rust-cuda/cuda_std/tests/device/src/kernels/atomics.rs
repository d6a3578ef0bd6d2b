//! Atomics: every operation, type, ordering and scope.

use core::sync::atomic::Ordering;

use cuda_std::atomic::scoped::{
    AcqRel, Acquire, Atomic, AtomicInteger, AtomicValue, Block, Device, Relaxed, Release, Scope,
    SeqCst, System,
};
use cuda_std::atomic::{
    AtomicF32, AtomicF64, BlockAtomicF32, BlockAtomicF64, SystemAtomicF32, SystemAtomicF64,
};
use cuda_std::prelude::*;
use cuda_std::shared;

/// Eight-byte cells that [`integers`] uses: eight for each of four types.
pub const INTEGER_CELLS: usize = 32;

/// Every integer operation. Whatever the order of the threads, the cells end with the same values:
/// sum, minimum, maximum, OR, XOR, AND, count, last writer (all write the same).
///
/// # Safety
///
/// `cells` holds [`INTEGER_CELLS`] cells that nothing else touches.
#[kernel]
pub unsafe fn integers(cells: *mut u64) {
    let number = thread::index();
    // SAFETY: each call has eight cells of its own, which all threads access atomically.
    unsafe {
        operations::<u32, Device>(cells.cast(), 2, number, 1 << (number % 32));
        operations::<i32, System>(
            cells.add(8).cast(),
            2,
            number as i32 - 20,
            1 << (number % 32),
        );
        operations::<u64, Device>(
            cells.add(16),
            1,
            u64::from(number) << 20,
            1 << (number % 64),
        );
        operations::<i64, System>(
            cells.add(24).cast(),
            1,
            i64::from(number) - 20,
            1 << (number % 64),
        );
    }
}

/// `step` is the distance of two cells in values of `T`.
///
/// # Safety
///
/// `cells` holds eight cells that are accessed atomically only.
#[inline(always)]
unsafe fn operations<T, S>(cells: *mut T, step: usize, value: T, bit: T)
where
    T: AtomicInteger + From<u8> + core::ops::Add<Output = T>,
    S: Scope,
{
    // SAFETY: the caller provides eight cells.
    let cell = |i: usize| unsafe { Atomic::<T, S>::from_ptr(cells.add(i * step)) };
    let one = T::from(1);
    cell(0).fetch_add(value, Relaxed);
    cell(1).fetch_min(value, Acquire);
    cell(2).fetch_max(value, Release);
    cell(3).fetch_or(bit, AcqRel);
    cell(4).fetch_xor(bit, SeqCst);
    cell(5).fetch_and(bit, Relaxed);
    let mut seen = cell(6).load(Relaxed);
    while let Err(now) = cell(6).compare_exchange(seen, seen + one, AcqRel) {
        seen = now;
    }
    cell(7).swap(one, AcqRel);
    let written = cell(7).load(Acquire);
    cell(7).store(written, Release);
}

/// Words of dynamic shared memory that [`orderings`] needs.
pub const ORDERING_WORDS: usize = 4;

/// Every ordering of every kind of operation in every scope, in shared memory. Reports the counts
/// that the additions, exchanges and stores leave behind.
///
/// # Safety
///
/// `out` has room for [`ORDERING_WORDS`] words per block, and the launch provides as many in dynamic
/// shared memory.
#[kernel]
pub unsafe fn orderings(out: *mut u32) {
    let cells = shared::dynamic_shared_mem::<u32>();
    let t = thread::thread_idx_x() as usize;
    if t < ORDERING_WORDS {
        // SAFETY: words that nobody uses before the barrier.
        unsafe { *cells.add(t) = 0 };
    }
    thread::sync_threads();
    // SAFETY: all threads access the cells atomically until the next barrier.
    unsafe {
        in_scope::<Block>(cells);
        in_scope::<Device>(cells);
        in_scope::<System>(cells);
    }
    thread::sync_threads();
    if t < ORDERING_WORDS {
        let block = thread::block_idx_x() as usize;
        // SAFETY: the block's own words; the cells are quiet.
        unsafe { *out.add(block * ORDERING_WORDS + t) = *cells.add(t) };
    }
}

/// # Safety
///
/// `cells` holds [`ORDERING_WORDS`] words that are accessed atomically only.
#[inline(always)]
unsafe fn in_scope<S: Scope>(cells: *mut u32) {
    // SAFETY: the caller's.
    let [sum, exchanged, stored, seen] =
        [0, 1, 2, 3].map(|i| unsafe { Atomic::<u32, S>::from_ptr(cells.add(i)) });
    sum.fetch_add(1, Relaxed);
    sum.fetch_add(1, Acquire);
    sum.fetch_add(1, Release);
    sum.fetch_add(1, AcqRel);
    sum.fetch_add(1, SeqCst);
    // Succeeds for the first thread; the others find 7 there and leave it.
    let _ = exchanged.compare_exchange(0, 7, Relaxed);
    let _ = exchanged.compare_exchange(0, 7, Acquire);
    let _ = exchanged.compare_exchange(0, 7, Release);
    let _ = exchanged.compare_exchange(0, 7, AcqRel);
    let _ = exchanged.compare_exchange(0, 7, SeqCst);
    stored.store(9, Relaxed);
    stored.store(9, Release);
    stored.store(9, SeqCst);
    let loaded = stored.load(Relaxed) + stored.load(Acquire) + stored.load(SeqCst);
    seen.swap(loaded, Relaxed);
}

/// Cells of 8 bytes that [`floats`] uses.
pub const FLOAT_CELLS: usize = 8;

/// Float atomics, scoped and published. Every thread adds small integers, so that sums are exact in
/// any order.
///
/// # Safety
///
/// `cells` holds [`FLOAT_CELLS`] zeros that nothing else touches; the launch has one block.
#[kernel]
pub unsafe fn floats(cells: *mut u64) {
    let number = thread::index() as f32;
    // SAFETY: each cell is accessed by one kind of atomic; block scope is enough in one block.
    unsafe {
        accumulate(cells.cast::<f32>(), number);
        accumulate(cells.add(1).cast::<f64>(), f64::from(number));

        let device = &*cells.add(2).cast::<AtomicF32>();
        device.fetch_add(number, Ordering::Relaxed);
        device.fetch_sub(1.0, Ordering::SeqCst);
        let device = &*cells.add(3).cast::<AtomicF64>();
        device.fetch_add(f64::from(number), Ordering::AcqRel);

        let block = &*cells.add(4).cast::<BlockAtomicF32>();
        block.fetch_or(f32::from_bits(1 << 3), Ordering::Acquire);
        block.fetch_and(f32::from_bits(0xff), Ordering::Release);
        let block = &*cells.add(5).cast::<BlockAtomicF64>();
        block.fetch_xor(0.0, Ordering::Relaxed);
        block.store(f64::from_bits(5), Ordering::Release);

        let system = &*cells.add(6).cast::<SystemAtomicF32>();
        system.store(system.load(Ordering::Acquire), Ordering::SeqCst);
        let system = &*cells.add(7).cast::<SystemAtomicF64>();
        system.fetch_add(2.0, Ordering::SeqCst);
    }
}

/// # Safety
///
/// `cell` is accessed atomically only.
unsafe fn accumulate<T: AtomicValue>(cell: *mut T, value: T) {
    // SAFETY: the caller's.
    let cell = unsafe { Atomic::<T, Device>::from_ptr(cell) };
    cell.fetch_add(value, Relaxed);
}

/// Producers and a consumer in different blocks: all but the last block deposit a value and announce
/// it; the last waits for all of them and adds up what it finds.
///
/// # Safety
///
/// `deposits` holds a word per block, `arrived` one zero, `out` one word; all blocks are resident at
/// once.
#[kernel(max_threads = 1)]
pub unsafe fn handshake(deposits: *mut u32, arrived: *mut u32, out: *mut u32) {
    let (block, last) = (thread::block_idx_x(), thread::grid_dim_x() - 1);
    // SAFETY: all blocks access it atomically.
    let arrived = unsafe { Atomic::<u32, Device>::from_ptr(arrived) };
    if block < last {
        // SAFETY: the block's own word, released by the addition.
        unsafe { *deposits.add(block as usize) = block + 1 };
        arrived.fetch_add(1, Release);
        return;
    }
    while arrived.load(Acquire) < last {
        thread::nanosleep(50);
    }
    let mut sum = 0;
    let mut i = 0;
    while i < last {
        // SAFETY: deposited before the announcement that was acquired.
        sum += unsafe { *deposits.add(i as usize) };
        i += 1;
    }
    // SAFETY: nobody else writes it.
    unsafe { *out = sum };
}
