//! Tokenyard's GPU kernels: grouped block-scaled quantization
