//! Tokenyard's conformance suite: one binary for the emulator and the GPU
