//! Tokenyard's kernels.
//!
//! The same source runs as PTX on a GPU and, one fiber per CUDA thread, in the emulator on a CPU.
//! Read it in this order:
//!
//! 1. [`scale_tile`]: where a block scale lies in memory (the 128x4 layout);
//! 2. [`formats`]: what NVFP4, MXFP4 and MXFP8 are, as pure functions;
//! 3. [`expert_search`]: how a thread block finds the expert whose rows it quantizes;
//! 4. [`quantize`]: the grouped quantizer, and the list of its entries;
//! 5. [`dequantize`] and [`route`]: the way back, and the routing tables that the quantizer reads;
//! 6. [`baseline`]: what the benchmarks hold the quantizer against;
//! 7. [`ep`]: tokens on their way to experts on other ranks;
//! 8. [`moe`]: router and experts, which make a layer of it.
//!
//! Constants and layouts that the host must agree on are public here and used from both sides.

#![no_std]
#![feature(portable_simd)]

pub mod baseline;
pub mod dequantize;
pub mod ep;
pub mod expert_search;
pub mod formats;
pub mod moe;
mod prefix_sum;
pub mod quantize;
pub mod route;
pub mod scale_tile;
mod search;

/// Lanes of a warp.
pub(crate) const WARP: u32 = 32;
