//! Options of `#[kernel]`.

use cuda_std::kernel;

#[kernel(max_threads = 0)]
pub unsafe fn no_threads() {}

#[kernel(max_threads = 2048)]
pub unsafe fn too_many_threads() {}

#[kernel(min_blocks = 2)]
pub unsafe fn blocks_of_unknown_size() {}

#[kernel(max_threads = 32, max_threads = 64)]
pub unsafe fn twice() {}

#[kernel(grid_dim = 4d)]
pub unsafe fn four_dimensions() {}

#[kernel(threads = 32)]
pub unsafe fn unknown() {}

fn main() {}
