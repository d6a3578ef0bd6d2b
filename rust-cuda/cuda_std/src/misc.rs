//! Clocks, counters, and ways to stop.

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;

/// Stops for a debugger.
///
/// PTX `brkpt`, any target; without a debugger the launch ends with an error. The emulator ends it
/// with a fault.
#[inline(always)]
#[track_caller]
pub fn breakpoint() {
    by_target! {
        gpu: ptx::brkpt(),
        cpu: simt::device::trap("breakpoint reached without a debugger"),
    }
}

/// Ends the launch, of all threads, with an error.
///
/// PTX `trap`, any target. The emulator reports a fault with this place in the source.
#[inline(always)]
#[track_caller]
pub fn trap() -> ! {
    by_target! {
        gpu: ptx::trap(),
        cpu: simt::device::trap("trap"),
    }
}

/// The value, behind the compiler's back: it cannot tell what comes out.
///
/// A loop that hides its condition's operand every time is neither unrolled nor replaced by straight-line
/// code. Unrolled, code for rare cases may need more registers than the common case, and those decide
/// how many blocks a multiprocessor runs. Costs a register move.
#[inline(always)]
pub fn hidden(value: u32) -> u32 {
    by_target! {
        gpu: ptx::hidden(value),
        cpu: core::hint::black_box(value),
    }
}

/// Adds one per warp to a counter of the profiler, 0 to 7.
///
/// PTX `pmevent`, any target. The emulator has no counters.
///
/// # Panics
///
/// If `counter` is above 7.
#[inline(always)]
#[track_caller]
pub fn profiler_counter(counter: u32) {
    assert!(counter <= 7, "profiler counters are numbered 0 to 7");
    #[cfg(target_arch = "nvptx64")]
    match counter {
        0 => ptx::pmevent::<0>(),
        1 => ptx::pmevent::<1>(),
        2 => ptx::pmevent::<2>(),
        3 => ptx::pmevent::<3>(),
        4 => ptx::pmevent::<4>(),
        5 => ptx::pmevent::<5>(),
        6 => ptx::pmevent::<6>(),
        _ => ptx::pmevent::<7>(),
    }
}

/// The clock cycles that the thread's multiprocessor has counted.
///
/// PTX `%clock64`, any target. Comparable within one block only. The emulator counts its steps.
#[inline(always)]
pub fn clock() -> u64 {
    by_target! {
        gpu: ptx::clock64(),
        cpu: simt::device::clock(),
    }
}

/// Nanoseconds on a clock that all multiprocessors share.
///
/// PTX `%globaltimer`, any target; its resolution is about a microsecond. For bounds on waiting. The
/// emulator's time is virtual and deterministic.
#[inline(always)]
pub fn global_timer_ns() -> u64 {
    by_target! {
        gpu: ptx::globaltimer(),
        cpu: simt::device::global_timer_ns(),
    }
}
