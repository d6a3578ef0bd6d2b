//! What needs types: parameters that are not `Copy`.

use cuda_std::kernel;

pub struct Owned(u32);

#[kernel]
pub unsafe fn takes_owned(x: Owned, y: *const Owned) {
    let _ = (x, y);
}

fn main() {}
