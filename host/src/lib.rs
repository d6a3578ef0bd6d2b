//! Grouped NVFP4, MXFP4 and MXFP8 quantization for Mixture-of-Experts, on a GPU or on the CPU
