//! The CUDA device library for kernels written in Rust, on rustc's own PTX backend and on the CPU
