//! `Vec` and `Box` on the device heap.

use cuda_std::prelude::*;

/// Collects the divisors of each thread's number and reports their sum.
///
/// # Safety
///
/// `out` has room for one word per thread.
#[kernel]
pub unsafe fn collects(out: *mut u32) {
    let number = thread::index();
    let mut divisors = Vec::new();
    let mut candidate = 1;
    while candidate <= number {
        if number.is_multiple_of(candidate) {
            divisors.push(Box::new(candidate));
        }
        candidate += 1;
    }
    let sum = divisors.iter().map(|divisor| **divisor).sum();
    // SAFETY: the thread's own word.
    unsafe { *out.add(number as usize) = sum };
}
