//! Expert-parallel dispatch: tokens on their way to the experts that were chosen for them, on whatever rank
//! those live; and [`combine`], their way back.
//!
//! Each rank has T tokens and K expert ids for each. It quantizes a token once, and delivers one copy to each rank
//! that has some of its experts. What a rank got it lays out by expert, in a row for each. To follow one token from `tokens` to
//! `output.tokens`, read in this order:
//!
//! 1. [`message`]: what is sent;
//! 2. [`arguments`]: the memory of a rank;
//! 3. `send`: a block makes the message ([`TokenFormat::stage`], in `format`) and sends its copies to their
//!    ranks; `shared_expert`: its own use for it; `network`: if the rank is of another node;
//! 4. `monitor`: the last sender block publishes the counts;
//! 5. `offsets`: at the receiver, one block waits for all counts and lays out the rows;
//! 6. `copy`: the others wait for that, and all of them turn messages into rows (`output`; `quads` for scales that
//!    are not in rows);
//! 7. [`wait`]: how each of these waits ends if the other side never comes.
//!
//! The entries put these roles together:
//!
//! | entry | grid | does |
//! | --- | --- | --- |
//! | `ep_dispatch_async_*` | any number of blocks | 3, 4; waits for nobody |
//! | `ep_dispatch_wait_*` | any number of blocks, block 0 of which must not begin behind blocks that wait for it | 5 in block 0, and 6 |
//! | `ep_dispatch_*` | blocks by ranks, all resident | 3 to 6 |

pub mod arguments;
pub mod combine;
mod copy;
mod election;
mod faults;
mod format;
pub mod message;
mod monitor;
mod network;
mod offsets;
mod output;
mod quads;
pub mod receipt;
mod send;
mod shared_expert;
mod shared_memory;
pub mod wait;
mod workers;

pub use arguments::{Counters, NOT_ARRIVED, Output, PAIR_BIAS, Peer, Rank, Shape};
pub use faults::Fault;
pub use format::{
    Bf16, Encoding, Fp8Block128, Mxfp4, Mxfp8, Nvfp4, ScaleLayout, StagedMessage, TokenFormat,
};
pub use message::{MAX_EXPERTS, MAX_TOP_K, MessageLayout, NO_SLOT, WireFormat};
pub use output::slot_offset;
pub use shared_memory::shared_bytes;

use copy::Copier;
use cuda_std::prelude::*;
use cuda_std::view::GlobalViewMut;
use offsets::Offsets;
use send::Sender;
use shared_memory::SharedMemory;
use wait::Failure;

/// Threads of a block, at the most; whole warps.
pub const MAX_THREADS: u32 = 256;

/// The sending half. `KEEP_OWN`: with the rank's own use for its tokens, the shared expert.
///
/// # Safety
///
/// As for the entries.
#[inline(always)]
unsafe fn send<F: TokenFormat, const KEEP_OWN: bool>(shape: &Shape, rank: &Rank) {
    // A receiver that may still read what this would write over.
    if shape.has(Shape::RECEIPTS) && Failure::of(rank).is_recorded() {
        return;
    }
    let layout = F::WIRE.message(shape.hidden, shape.top_k);
    // SAFETY: the caller's obligation.
    unsafe {
        let counters = Counters::of(shape, rank);
        let sender = Sender {
            shape,
            rank,
            layout,
            counters,
            shared: SharedMemory::new(layout),
        };
        sender.send_tokens::<F, KEEP_OWN>();
        monitor::publish_if_last(shape, rank, counters);
    }
}

/// The receiving half.
///
/// # Safety
///
/// As for the entries.
#[inline(always)]
unsafe fn receive<F: TokenFormat>(shape: &Shape, rank: &Rank) {
    let layout = F::WIRE.message(shape.hidden, shape.top_k);
    // SAFETY: the caller's obligation.
    unsafe {
        let counters = Counters::of(shape, rank);
        let own = rank.load_peer(rank.rank, shape.ranks);
        let copier = Copier {
            shape,
            rank,
            own,
            layout,
            counters,
        };
        let ready = if thread::block_idx_x() == 0 {
            let shared = SharedMemory::new(layout);
            let offsets = Offsets {
                shape,
                rank,
                own,
                counters,
                shared,
            };
            offsets.publish::<F>()
        } else {
            copier.wait_for_offsets()
        };
        if ready {
            copier.copy_rows::<F>();
        }
    }
}

/// The formats: `async entry, wait entry, fused entry: format;`.
///
/// Expands to `$callback! { ... }` with this list, here to define the entries and in the host library to
/// find them.
#[macro_export]
macro_rules! for_each_ep_format {
    ($callback:ident) => {
        $callback! {
            ep_dispatch_async_bf16, ep_dispatch_wait_bf16, ep_dispatch_bf16: Bf16;
            ep_dispatch_async_fp8, ep_dispatch_wait_fp8, ep_dispatch_fp8: Fp8Block128;
            ep_dispatch_async_nvfp4, ep_dispatch_wait_nvfp4, ep_dispatch_nvfp4: Nvfp4;
            ep_dispatch_async_mxfp4, ep_dispatch_wait_mxfp4, ep_dispatch_mxfp4: Mxfp4;
            ep_dispatch_async_mxfp8, ep_dispatch_wait_mxfp8, ep_dispatch_mxfp8: Mxfp8;
        }
    };
}

/// Writes the arguments of a rank to where a fused launch finds them: that has those of several ranks, and a
/// block cannot choose one of several parameters by its index.
///
/// Launch with one thread.
///
/// # Safety
///
/// `slot` has room for a rank.
#[kernel(max_threads = 1)]
pub unsafe fn ep_bind_rank(rank: Rank, slot: *mut Rank) {
    // SAFETY: the caller's obligation.
    unsafe { GlobalViewMut::new(slot, 1) }.store(0, rank);
}

macro_rules! define_entries {
    ($($send:ident, $receive:ident, $fused:ident: $format:ident;)*) => {$(
        #[doc = concat!("Sends a rank's tokens to their experts, as ", stringify!($format), ".")]
        ///
        /// Launch with any number of blocks of at most [`MAX_THREADS`] threads, whole warps, and
        /// [`shared_bytes`] of dynamic shared memory.
        ///
        /// # Safety
        ///
        /// * `shape` is one that the host library made: sizes divide as it demands.
        /// * The pointers of `rank` are what [`Rank`], [`Output`] and [`Peer`] say, aligned to 16 bytes.
        ///   `rank.output` is not used.
        /// * All ranks have equal shapes. The ranks it sends to do not read what the previous round sent
        ///   them any more, and expect the counts of this one.
        #[kernel(max_threads = MAX_THREADS, min_blocks = 2)]
        pub unsafe fn $send(shape: Shape, rank: Rank) {
            // SAFETY: passed on to the caller.
            unsafe { send::<$format, false>(&shape, &rank) }
        }

        #[doc = concat!("Waits for what a rank was sent, as ", stringify!($format), ", and lays it out.")]
        ///
        /// Launch with any number of blocks of at most [`MAX_THREADS`] threads, whole warps, and
        /// [`shared_bytes`] of dynamic shared memory.
        ///
        /// # Safety
        ///
        #[doc = concat!("As for [`", stringify!($send), "`](fn@", stringify!($send), "), `rank.output` included.")]
        #[kernel(max_threads = MAX_THREADS, min_blocks = 2)]
        pub unsafe fn $receive(shape: Shape, rank: Rank) {
            // SAFETY: passed on to the caller.
            unsafe { receive::<$format>(&shape, &rank) }
        }

        #[doc = concat!("Sends and receives in one launch, as ", stringify!($format), ", for several ranks of a device.")]
        ///
        /// Launch with `(n, ranks)` blocks, `n` any number, which must all be resident, as they wait for each
        /// other; threads and shared memory as above.
        ///
        /// # Safety
        ///
        #[doc = concat!("As for [`", stringify!($receive), "`](fn@", stringify!($receive), "), for each of `ranks`, which [`ep_bind_rank`](fn@ep_bind_rank) wrote.")]
        #[kernel(max_threads = MAX_THREADS, min_blocks = 2)]
        pub unsafe fn $fused(shape: Shape, ranks: *const Rank) {
            // SAFETY: passed on to the caller. Nobody writes the ranks during the launch.
            unsafe {
                let rank = &*ranks.add(thread::block_idx_y() as usize);
                if !shape.is_masked(rank.rank) {
                    send::<$format, true>(&shape, rank);
                    receive::<$format>(&shape, rank);
                }
            }
        }
    )*};
}

for_each_ep_format!(define_entries);
