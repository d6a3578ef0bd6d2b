//! Orderings that an atomic operation cannot have.

use cuda_std::atomic::scoped::{AcqRel, Acquire, Atomic, Device, Release};

fn main() {
    let mut x = 0u32;
    let x = unsafe { Atomic::<u32, Device>::from_ptr(&mut x) };
    x.load(Release);
    x.load(AcqRel);
    x.store(1, Acquire);
    x.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    let mut y = 0.0f32;
    let y = unsafe { Atomic::<f32, Device>::from_ptr(&mut y) };
    y.fetch_or(1.0, AcqRel);
}
