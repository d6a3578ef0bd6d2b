//! The kernel's side of an emulated device.
//!
//! These functions may be called only by a kernel that runs on a [`crate::Machine`]; elsewhere they panic.
//! Those that can report a fault are `#[track_caller]`, and a library that wraps them should be so too:
//! the reported source line is then the kernel's.
//!
//! A fault does not unwind the kernel: its thread is never resumed, and [`crate::Machine::synchronize`]
//! returns the fault. While a kernel's stack unwinds (after a panic, or when a machine is dropped), these
//! functions do nothing and return zeros.

mod asynchronous;
mod memory;
mod sync;

use std::panic::Location;

pub use asynchronous::{
    CopyPiece, async_copy_in, async_copy_out, bulk_commit_group, bulk_wait_group,
    fence_proxy_async, mbarrier_arrive, mbarrier_arrive_expect_tx, mbarrier_init, mbarrier_inval,
    mbarrier_try_wait, mbarrier_try_wait_parity,
};
pub use memory::{
    Access, check, dynamic_shared, dynamic_shared_bytes, is_global, is_shared, read, static_shared,
    write,
};
pub use sync::{
    BarrierVote, WarpValues, Yield, active_mask, named_barrier_arrive, named_barrier_sync,
    sync_threads, sync_threads_reduce, warp_exchange, yield_point,
};

use crate::config::Target;
use crate::context::{self, Next};
use crate::fault::FaultKind;
use crate::geometry::{Dim3, WARP_SIZE};

/// Whether the caller runs as a thread of an emulated kernel. The only function here that may be called
/// from anywhere.
pub fn on_device() -> bool {
    context::on_fiber()
}

/// Index of the thread within its block.
pub fn thread_idx() -> Dim3 {
    context::peek(|engine, id| engine.fibers[id].thread)
}

/// Index of the block within its grid.
pub fn block_idx() -> Dim3 {
    context::peek(|engine, id| engine.blocks[engine.fibers[id].block].index)
}

/// Extents of the block in threads.
pub fn block_dim() -> Dim3 {
    context::peek(|engine, id| engine.grids[engine.fibers[id].grid].block_dim)
}

/// Extents of the grid in blocks.
pub fn grid_dim() -> Dim3 {
    context::peek(|engine, id| engine.grids[engine.fibers[id].grid].grid_dim)
}

/// Index of the thread within its block as one number, x fastest.
pub fn linear_thread_id() -> u32 {
    context::peek(|engine, id| engine.fibers[id].linear)
}

/// Index of the thread within its warp. Warps are 32 consecutive linear thread indices.
pub fn lane_id() -> u32 {
    linear_thread_id() % WARP_SIZE
}

/// What the emulated device can do.
pub fn target() -> Target {
    context::peek(|engine, _| engine.config.target)
}

/// Cycles of the virtual clock since the machine was made. The clock runs at 1 GHz; every step of the
/// scheduler advances it by about half a microsecond divided by the number of live threads, faster while
/// everybody only waits. A yield point of kind [`Yield::Spin`]: loops that wait for a deadline end.
#[track_caller]
pub fn clock() -> u64 {
    yield_point(Yield::Spin);
    context::peek(|engine, _| engine.scheduler.now_ns())
}

/// Nanoseconds of virtual time since the machine was made. As [`clock`].
#[track_caller]
pub fn global_timer_ns() -> u64 {
    clock()
}

/// Suspends the thread for a random virtual time up to twice `ns` nanoseconds, as PTX `nanosleep` does.
/// Where everybody sleeps, time jumps to the first wake-up.
#[track_caller]
pub fn nanosleep(ns: u32) {
    let location = Location::caller();
    context::act(|engine, id| engine.nanosleep(id, ns, location));
}

/// Ends the kernel, and with it the machine, with a fault of kind [`FaultKind::Trap`].
///
/// # Panics
/// Where the thread's stack is already unwinding.
#[track_caller]
pub fn trap(message: &str) -> ! {
    let location = Location::caller();
    let fail = |engine: &mut crate::engine::Engine, id| -> Next {
        engine.fail(id, FaultKind::Trap, location, message.to_owned())
    };
    context::act(fail);
    panic!("trap while unwinding: {message}")
}

/// Appends to what [`crate::Machine::take_output`] returns.
pub fn print(args: std::fmt::Arguments<'_>) {
    // Formatting runs the kernel's own code, which may call into this module.
    let text = std::fmt::format(args);
    context::with(|engine, _| engine.output.push_str(&text));
}
