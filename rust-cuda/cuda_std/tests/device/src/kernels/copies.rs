//! Bulk and tensor copies with their barriers and fences.

use cuda_std::prelude::*;
use cuda_std::tma::TensorMap;
use cuda_std::view::SharedView;
use cuda_std::{cfg, fence, mbarrier, shared, tma};

/// Threads of a block, and words that [`bulk`] moves per block.
pub const BLOCK: usize = 128;

/// Loads [`BLOCK`] words per block by a bulk copy, adds one to each and stores them by a bulk copy.
/// Does nothing on devices without bulk copies.
///
/// # Safety
///
/// `input` and `output` hold [`BLOCK`] words per block, 16-byte aligned; blocks have as many threads;
/// the launch provides twice as many words of dynamic shared memory.
#[kernel(max_threads = 128)]
pub unsafe fn bulk(input: *const u32, output: *mut u32) {
    if !cfg::has_bulk_copy() {
        return;
    }
    let t = thread::thread_idx_x() as usize;
    let start = thread::block_idx_x() as usize * BLOCK;
    let bytes = (4 * BLOCK) as u32;
    let bar = shared_array![u64; 1];
    // SAFETY: the kernel's contract. Both views are written behind the barrier that ends the load, or
    // by the copy.
    let (loaded, stored) = unsafe {
        let base = shared::dynamic_shared_mem::<u32>();
        (
            SharedView::new(base, BLOCK),
            SharedView::new(base.add(BLOCK), BLOCK),
        )
    };
    // SAFETY: one thread initialises the barrier before all others see it; the phase expects one
    // arrival and the bytes of the copy; everything is a multiple of 16.
    unsafe {
        if t == 0 {
            mbarrier::init(bar, 1);
            fence::proxy_async_shared();
        }
        thread::sync_threads();
        if t == 0 {
            mbarrier::arrive_expect_tx(bar, bytes);
            tma::bulk_load(loaded.as_ptr().cast(), input.add(start).cast(), bytes, bar);
        }
        while !mbarrier::try_wait_parity(bar, 0) {}
    }
    stored.store(t, loaded.load(t) + 1);
    fence::proxy_async_shared();
    thread::sync_threads();
    if t == 0 {
        // SAFETY: all writes were fenced by their threads; the memory outlives the wait.
        unsafe {
            tma::bulk_store(output.add(start).cast(), stored.as_ptr().cast(), bytes);
            mbarrier::inval(bar);
        }
        tma::commit_group();
        tma::wait_group_read::<0>();
        tma::wait_group::<0>();
    }
}

/// Threads meet at a barrier twice, naming the phase by the state of their arrival.
///
/// # Safety
///
/// `out` has room for a word per thread; blocks have [`BLOCK`] threads.
#[kernel(max_threads = 128)]
pub unsafe fn meetings(out: *mut u32) {
    if !cfg::has_bulk_copy() {
        return;
    }
    let t = thread::thread_idx_x() as usize;
    let bar = shared_array![u64; 1];
    // SAFETY: an element is read a phase after it was written, by one thread.
    let cells = unsafe { SharedView::new(shared_array![u32; 128], BLOCK) };
    // SAFETY: the barrier expects every thread once per phase.
    unsafe {
        if t == 0 {
            mbarrier::init(bar, BLOCK as u32);
        }
        thread::sync_threads();
        cells.store(t, t as u32);
        let state = mbarrier::arrive(bar);
        while !mbarrier::try_wait(bar, state) {}
        let other = cells.load((t + 1) % BLOCK);
        let state = mbarrier::arrive(bar);
        while !mbarrier::try_wait(bar, state) {}
        cells.store(t, other);
        *out.add(thread::index_1d() as usize) = other;
    }
}

macro_rules! tensor_kernels {
    ($($name:ident $load:ident $store:ident $rank:literal;)*) => {$(
        #[doc = concat!("Loads a box of a tensor of rank ", $rank, " and stores it into another at other coordinates.")]
        ///
        /// # Safety
        ///
        /// The maps describe boxes of `bytes` bytes; the launch provides as many in dynamic shared
        /// memory.
        #[kernel]
        pub unsafe fn $name(
            from: *const TensorMap,
            to: *const TensorMap,
            load_at: *const i32,
            store_at: *const i32,
            bytes: u32,
        ) {
            if !cfg::has_bulk_copy() {
                return;
            }
            let bar = shared_array![u64; 1];
            let tile = shared::dynamic_shared_mem::<u8>();
            if thread::thread_idx_x() != 0 {
                return;
            }
            // SAFETY: a single thread does everything in order; the launch provides maps, coordinates
            // and memory.
            unsafe {
                let coordinates = |at: *const i32| core::array::from_fn(|i| *at.add(i));
                fence::proxy_tensor_map_acquire(from);
                fence::proxy_tensor_map_acquire(to);
                mbarrier::init(bar, 1);
                fence::proxy_async_shared();
                let state = mbarrier::arrive_expect_tx(bar, bytes);
                tma::$load(tile, from, coordinates(load_at), bar);
                while !mbarrier::try_wait(bar, state) {}
                fence::proxy_async_global();
                tma::$store(to, coordinates(store_at), tile);
            }
            tma::commit_group();
            tma::wait_group::<0>();
        }
    )*};
}

tensor_kernels! {
    tensor_2d tensor_load_2d tensor_store_2d 2;
    tensor_3d tensor_load_3d tensor_store_3d 3;
    tensor_4d tensor_load_4d tensor_store_4d 4;
}
