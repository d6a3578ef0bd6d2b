//! The kernels of `tests/device`, which call every device function, under the emulator: each result is
//! compared with what CUDA defines, under several schedules.

mod harness;
#[path = "../device/src/kernels/mod.rs"]
mod kernels;

mod arithmetic;
mod atomics;
mod barriers;
mod collectives;
mod copies;
mod memory;
mod services;
