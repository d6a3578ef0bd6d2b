//! Parameters that the kernel ABI cannot carry.

use cuda_std::kernel;

#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Aligned([u8; 64]);

#[derive(Clone, Copy)]
pub struct Nothing;

#[kernel]
pub unsafe fn takes_aligned(x: Aligned) {
    let _ = x;
}

#[kernel]
pub unsafe fn takes_nothing(x: Nothing) {
    let _ = x;
}

#[kernel]
pub unsafe fn takes_text(x: &str) {
    let _ = x;
}

fn main() {}
