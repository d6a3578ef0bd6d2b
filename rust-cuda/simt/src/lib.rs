//! A SIMT emulator: runs CUDA-style kernels written in Rust on the CPU, one fiber per thread
