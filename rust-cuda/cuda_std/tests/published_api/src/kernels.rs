//! The kernels. Nothing here is newer than `cuda_std` 0.2.2.

use core::sync::atomic::Ordering;

use cuda_std::atomic::AtomicF32;
use cuda_std::prelude::*;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::{GpuFloat, shared_array};

/// `c[i] = a[i] + b[i]`.
///
/// # Safety
///
/// `b` is as long as `a`, and `c` holds as many elements.
#[kernel]
pub unsafe fn add(a: &[f32], b: &[f32], c: *mut f32) {
    let i = thread::index_1d() as usize;
    if i < a.len() {
        // SAFETY: the kernel's contract; no other thread has this index.
        let element = unsafe { &mut *c.add(i) };
        *element = a[i] + b[i];
    }
}

/// The sum of each block's elements, by halving the active threads.
///
/// # Safety
///
/// Blocks have 128 threads; `sums` holds an element per block.
#[kernel]
pub unsafe fn block_sums(values: &[f32], sums: *mut f32) {
    let partial = shared_array![f32; 128];
    let t = thread::thread_idx_x() as usize;
    let i = thread::index() as usize;
    let value = if i < values.len() { values[i] } else { 0.0 };
    // SAFETY: `t` is below 128, and the element is the thread's own until the barrier.
    unsafe { *partial.add(t) = value };
    thread::sync_threads();
    let mut active = 64;
    while active > 0 {
        if t < active {
            // SAFETY: both are below 128; the upper one is not written in this round.
            unsafe { *partial.add(t) += *partial.add(t + active) };
        }
        thread::sync_threads();
        active /= 2;
    }
    if t == 0 {
        // SAFETY: the block's own sum.
        unsafe { *sums.add(thread::block_idx_x() as usize) = *partial };
    }
}

/// Reverses each block's elements through dynamic shared memory, and counts the negative ones.
///
/// # Safety
///
/// `values` holds an element per thread, `negative` one per block; the launch provides a word of
/// dynamic shared memory per thread.
#[kernel]
pub unsafe fn reverse_blocks(values: *mut i32, negative: *mut u32) {
    let buffer = dynamic_shared_mem::<i32>();
    let (t, last) = (
        thread::thread_idx_x() as usize,
        thread::block_dim_x() as usize - 1,
    );
    let i = thread::index_1d() as usize;
    // SAFETY: the kernel's contract; the barrier separates writes from reads.
    unsafe {
        let value = *values.add(i);
        *buffer.add(t) = value;
        let count = thread::sync_threads_count((value < 0) as u32);
        *values.add(i) = *buffer.add(last - t);
        if t == 0 {
            *negative.add(thread::block_idx_x() as usize) = count;
        }
    }
}

/// Transposes a matrix of `rows` by `columns`, taking the root of each element.
///
/// # Safety
///
/// `output` holds as many elements as `input`, which holds `rows * columns`.
#[kernel]
pub unsafe fn transposed_roots(input: &[f32], output: *mut f32, rows: u32, columns: u32) {
    let at = thread::index_2d();
    if at.x < columns && at.y < rows {
        let value = input[(at.y * columns + at.x) as usize];
        // SAFETY: in bounds, and no other thread has these indices.
        unsafe { *output.add((at.x * rows + at.y) as usize) = GpuFloat::sqrt(value) };
    }
}

/// Adds all elements to one total, and lets the first thread leave a mark.
///
/// # Safety
///
/// `total` and `mark` hold one element each.
#[kernel]
pub unsafe fn total(values: &[f32], total: *mut f32, mark: *mut u32) {
    // SAFETY: all threads access it atomically.
    let total = unsafe { &*(total as *const AtomicF32) };
    let i = thread::index_1d() as usize;
    if i < values.len() {
        total.fetch_add(values[i], Ordering::Relaxed);
    }
    if thread::first() {
        // SAFETY: one thread does this.
        unsafe { *mark = thread::grid_dim().x * thread::block_dim().x };
    }
}
