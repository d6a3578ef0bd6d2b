//! Expert-parallel combine: what the experts made of the rows that they got goes back to the tokens' ranks, and
//! becomes one row again.
//!
//! It follows a dispatch, and takes up what that left: the rows' layout, where each row is from, how many there are
//! of each pair. To follow a row from `outputs` to `target`, read in this order:
//!
//! 1. [`arguments`]: the memory of a rank;
//! 2. [`format`]: what rows travel as;
//! 3. `rows`: a warp copies a piece of a row, or a block quantizes one, to its place at the token's rank;
//! 4. `counts`: the last block to finish publishes how many; at the receiver, block 0 waits for all;
//! 5. `reduce`: the token's rows are multiplied by its router weights and added.
//!
//! | entry | grid | does |
//! | --- | --- | --- |
//! | `ep_combine_async_*` | any number of blocks | 3, and the first half of 4; waits for nobody |
//! | `ep_combine_wait_*` | any number of blocks | the second half of 4 in block 0, and 5 |
//! | `ep_combine_*` | blocks by ranks, all resident | all |
//!
//! In skip mode nothing leaves a rank: it is its own only source.

pub mod arguments;
mod counts;
pub mod format;
mod reduce;
mod rows;
mod shared_memory;

pub use arguments::{Combining, WeightType};
pub use format::{Bf16, CombineFormat, F16, F32, Mxfp8, Nvfp4, QuantizedAs};
pub use shared_memory::shared_bytes;

use super::MAX_THREADS;
use super::arguments::Shape;
use super::wait::Failure;
use cuda_std::prelude::*;
use cuda_std::view::GlobalViewMut;
use reduce::Reducer;
use rows::RowSender;

/// The sending half.
///
/// # Safety
///
/// As for the entries.
#[inline(always)]
unsafe fn send<F: CombineFormat>(shape: &Shape, combining: &Combining) {
    // A receiver that may still read what this would write over.
    if shape.has(Shape::RECEIPTS) && Failure::of(&combining.rank).is_recorded() {
        return;
    }
    // SAFETY: the caller's obligation.
    unsafe {
        RowSender { shape, combining }.send_rows::<F>();
        counts::publish_if_last(shape, combining);
    }
}

/// The receiving half.
///
/// # Safety
///
/// As for the entries.
#[inline(always)]
unsafe fn receive<F: CombineFormat>(shape: &Shape, combining: &Combining) {
    // SAFETY: the caller's obligation.
    unsafe {
        if counts::wait_for_rows(shape, combining) {
            let rank = &combining.rank;
            let reducer = Reducer {
                shape,
                combining,
                rows: rank.load_peer(rank.rank, shape.ranks).messages,
                tokens: rank.load_token_count(),
            };
            reducer.reduce_tokens::<F>();
        }
    }
}

/// The formats: `async entry, wait entry, fused entry: format;`.
///
/// Expands to `$callback! { ... }` with this list, here to define the entries and in the host library to
/// find them.
#[macro_export]
macro_rules! for_each_combine_format {
    ($callback:ident) => {
        $callback! {
            ep_combine_async_bf16, ep_combine_wait_bf16, ep_combine_bf16: Bf16;
            ep_combine_async_f16, ep_combine_wait_f16, ep_combine_f16: F16;
            ep_combine_async_f32, ep_combine_wait_f32, ep_combine_f32: F32;
            ep_combine_async_mxfp8, ep_combine_wait_mxfp8, ep_combine_mxfp8: Mxfp8;
            ep_combine_async_nvfp4, ep_combine_wait_nvfp4, ep_combine_nvfp4: Nvfp4;
        }
    };
}

/// Writes the arguments of a rank to where a fused launch finds them, as
/// [`ep_bind_rank`](fn@super::ep_bind_rank) does for a dispatch.
///
/// Launch with one thread.
///
/// # Safety
///
/// `slot` has room for it.
#[kernel(max_threads = 1)]
pub unsafe fn ep_bind_combine(combining: Combining, slot: *mut Combining) {
    // SAFETY: the caller's obligation.
    unsafe { GlobalViewMut::new(slot, 1) }.store(0, combining);
}

macro_rules! define_entries {
    ($($send:ident, $receive:ident, $fused:ident: $format:ident;)*) => {$(
        #[doc = concat!("Sends a rank's rows home, as ", stringify!($format), ".")]
        ///
        /// Launch with any number of blocks of at most [`MAX_THREADS`] threads, whole warps, and
        /// [`shared_bytes`] of dynamic shared memory.
        ///
        /// # Safety
        ///
        /// * `shape` is one that the host library made: sizes divide as it demands.
        /// * The pointers of `combining` are what [`Combining`] says, aligned to 16 bytes. `topk_ids`, `weights` and
        ///   `target` are not used.
        /// * All ranks have equal shapes, and combine the same dispatch. The ranks it sends to do not read what the
        ///   previous combine sent them any more, and expect the counts of this one.
        #[kernel(max_threads = MAX_THREADS, min_blocks = 2)]
        pub unsafe fn $send(shape: Shape, combining: Combining) {
            // SAFETY: passed on to the caller.
            unsafe { send::<$format>(&shape, &combining) }
        }

        #[doc = concat!("Waits for a rank's rows, as ", stringify!($format), ", and adds them up.")]
        ///
        /// Launch with any number of blocks of at most [`MAX_THREADS`] threads, whole warps.
        ///
        /// # Safety
        ///
        #[doc = concat!("As for [`", stringify!($send), "`](fn@", stringify!($send), "), all pointers included.")]
        #[kernel(max_threads = MAX_THREADS, min_blocks = 2)]
        pub unsafe fn $receive(shape: Shape, combining: Combining) {
            // SAFETY: passed on to the caller.
            unsafe { receive::<$format>(&shape, &combining) }
        }

        #[doc = concat!("Sends and receives in one launch, as ", stringify!($format), ", for several ranks of a device.")]
        ///
        /// Launch with `(n, ranks)` blocks, `n` any number, which must all be resident, as they wait for each
        /// other; threads and shared memory as above.
        ///
        /// # Safety
        ///
        #[doc = concat!("As for [`", stringify!($receive), "`](fn@", stringify!($receive), "), for each of `ranks`, which [`ep_bind_combine`](fn@ep_bind_combine) wrote.")]
        #[kernel(max_threads = MAX_THREADS, min_blocks = 2)]
        pub unsafe fn $fused(shape: Shape, ranks: *const Combining) {
            // SAFETY: passed on to the caller. Nobody writes the ranks during the launch.
            unsafe {
                let combining = &*ranks.add(thread::block_idx_y() as usize);
                if !shape.is_masked(combining.rank.rank) {
                    send::<$format>(&shape, combining);
                    receive::<$format>(&shape, combining);
                }
            }
        }
    )*};
}

for_each_combine_format!(define_entries);
