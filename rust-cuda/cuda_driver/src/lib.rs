//! The CUDA driver symbols, resolved on first call.
//!
//! `cust` and `cust_raw` link against `libcuda`, so a program that uses them neither links without
//! a CUDA toolkit nor starts without a driver. This crate defines the same symbols itself. Each is
//! a trampoline that loads `libcuda.so.1` when it is first called, remembers the address of the
//! real function, and jumps there with every argument untouched; later calls are a comparison and
//! a jump. Where there is no driver the functions return `CUDA_ERROR_NO_DEVICE`, so a program can ask
//! `cust::init` and fall back to something else.
//!
//! Two things are needed:
//!
//! 1. `extern crate cuda_driver as _;`, or any use of this crate, somewhere in the program, so that
//!    the symbols reach the linker.
//! 2. `CUDA_LIBRARY_PATH` naming this crate's folder `link` while `cust_raw` is built. It holds a
//!    linker script in place of `libcuda.so`.
//!
//! [`driver_available`] says whether a driver could be loaded, and if not, which files were tried.
//! [`extra`] has the few driver functions that `cust_raw` 0.11.3 lacks or leaves untyped.
//!
//! # Platforms
//!
//! Linux on x86-64 and aarch64; elsewhere the crate does not compile and says so. (On the other
//! systems the driver has another name or does not exist, and a trampoline is written for one
//! calling convention.)

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "cuda_driver has trampolines for 64-bit Linux on x86-64 and aarch64 only; \
     leave it out of the build for this target"
);

#[macro_use]
mod symbols;

mod errors;
pub mod extra;
mod loader;
mod trampoline;

pub use errors::{error_name, error_string};
pub use loader::{Attempt, NoDriver, driver_available};
