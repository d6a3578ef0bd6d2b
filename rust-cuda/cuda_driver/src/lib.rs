//! The CUDA driver symbols, resolved on first call, so that a binary starts without a driver
