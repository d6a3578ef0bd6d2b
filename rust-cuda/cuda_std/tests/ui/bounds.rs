//! A bound that is wrong only once the constant is known.

use cuda_std::kernel;

const THREADS: u32 = 4096;

#[kernel(max_threads = THREADS)]
pub unsafe fn constant_out_of_range() {}

fn main() {}
