//! Printing, assertions, clocks, and ways to stop.

use cuda_std::cfg::ComputeCapability;
use cuda_std::{assert_eq, assert_ne, kernel, misc, print, println, thread};

use super::results::Results;
use cuda_std::view::GlobalView;

/// Prints a line from every thread.
///
/// # Safety
///
/// None beyond the launch's.
#[kernel]
pub unsafe fn prints(values: &[f32]) {
    let i = thread::index_1d() as usize;
    if i < values.len() {
        println!("thread {i}: {:.2} of {}%", values[i], values.len());
        print!("{}", if i.is_multiple_of(2) { "" } else { "\n" });
    }
}

/// Fails an assertion in the thread whose value is not `expected`.
///
/// # Safety
///
/// None beyond the launch's.
#[kernel]
pub unsafe fn asserts(values: &[u32], expected: u32) {
    let i = thread::index_1d() as usize;
    if i < values.len() {
        assert_eq!(values[i], expected);
        assert_ne!(values[i], !expected);
    }
}

/// Words per thread of [`clocks`].
pub const CLOCKS: usize = 3;

/// Whether the clocks advance, and the compute capability times ten.
///
/// # Safety
///
/// `out` has room for [`CLOCKS`] words per thread.
#[kernel]
pub unsafe fn clocks(out: *mut u32) {
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, CLOCKS) };
    let (clock, time) = (misc::clock(), misc::global_timer_ns());
    thread::nanosleep(2_000_000);
    results.push(u32::from(misc::clock() > clock));
    results.push(u32::from(misc::global_timer_ns() >= time));
    results.push(match ComputeCapability::from_cuda_arch_env() {
        ComputeCapability::Compute80 => 80,
        ComputeCapability::Compute89 => 89,
        ComputeCapability::Compute90 => 90,
        ComputeCapability::Compute100 => 100,
        _ => 0,
    });
    misc::profiler_counter(0);
    misc::profiler_counter(7);
}

/// Words of [`hidden`]'s input.
pub const HIDDEN: u32 = 4;

/// Adds up words, each time three times as much as before, in a loop whose constant bound is hidden.
///
/// # Safety
///
/// `words` holds [`HIDDEN`] words, `out` has room for one word per thread.
#[kernel]
pub unsafe fn hidden(words: *const u32, out: *mut u32) {
    // SAFETY: the kernel's contract.
    let (words, mut results) = unsafe {
        (
            GlobalView::new(words, HIDDEN as usize),
            Results::new(out, 1),
        )
    };
    let (mut sum, mut next) = (0u32, 0);
    while next < misc::hidden(HIDDEN) {
        sum = sum.wrapping_mul(3).wrapping_add(words.load(next as usize));
        next += 1;
    }
    results.push(sum);
}

/// Stops in the way asked for: 0 traps, 1 hits a breakpoint, 2 panics; anything else goes on.
///
/// # Safety
///
/// None beyond the launch's.
#[kernel]
pub unsafe fn stops(how: u32) {
    match how {
        0 => misc::trap(),
        1 => misc::breakpoint(),
        2 => panic!("asked to"),
        _ => {}
    }
}

/// Exists for `mem::total_smem_size`, which the emulator does not have.
///
/// # Safety
///
/// `out` has room for one word.
#[kernel]
pub unsafe fn shared_sizes(out: *mut u32) {
    // SAFETY: the kernel's contract.
    unsafe { *out = cuda_std::mem::total_smem_size() };
}
