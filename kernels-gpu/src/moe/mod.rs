//! What stands around dispatch and combine in a Mixture-of-Experts layer: the router that chooses the experts,
//! and the experts.
//!
//! These kernels are here so that a whole layer can be run and checked. They are written to be read: a thread
//! makes one result, or four neighbouring ones, and adds up in one order, so that the emulator and a GPU give the
//! same bits. A model would have matrix instructions here.
//!
//! A layer is, with [`ep`](crate::ep) for the second and the last step and [`dequantize::rows`](crate::dequantize::rows)
//! for the third:
//!
//! | step | entry | result |
//! | --- | --- | --- |
//! | route | [`moe_router_logits()`], [`moe_router_topk()`] | K experts and weights for each token |
//! | dispatch | | quantized rows by local expert |
//! | widen | | `[rows, H]` in f32 |
//! | gate and up | [`moe_gate_up()`] | `silu(x Wg) * (x Wu)`: `[rows, I]` |
//! | down | [`moe_down()`] | `[rows, H]` in BF16 |
//! | combine | | the weighted sum for each token |
//!
//! Matrices are `[in, out]`, those of expert `e` at `e * in * out`: neighbouring threads, which make neighbouring
//! outputs, then read neighbouring weights.

mod exp;
mod experts;
mod router;

pub use experts::{moe_down, moe_gate_up};
pub use router::{moe_router_logits, moe_router_topk};

use cuda_std::thread;

/// Threads of a block, in all entries: what their launch bounds say.
pub const THREADS: u32 = 128;

/// Results of a thread of [`moe_gate_up()`] and [`moe_down()`]: a 16-byte vector of weights.
pub const OUTPUTS: u32 = 4;

/// Blocks for `results` threads.
pub const fn grid_size(results: u64) -> u64 {
    results.div_ceil(THREADS as u64)
}

/// The number of this thread in a one-dimensional grid of blocks of [`THREADS`].
#[inline(always)]
fn thread_number() -> usize {
    thread::block_idx_x() as usize * THREADS as usize + thread::thread_idx_x() as usize
}
