//! Compiles a Rust kernel crate to PTX with rustc's own backend, for use in a build script
