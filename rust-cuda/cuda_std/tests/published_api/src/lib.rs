//! Kernels written against the API of the published `cuda_std` 0.2.2. See the README.

#![no_std]
#![allow(improper_ctypes_definitions)]

mod kernels;

pub use kernels::*;
