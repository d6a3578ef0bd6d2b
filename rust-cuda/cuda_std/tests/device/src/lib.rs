//! The kernels as a crate for `nvptx64`. The tests of `cuda_std` include the same module and run it in
//! the emulator.

#![no_std]

pub mod kernels;
