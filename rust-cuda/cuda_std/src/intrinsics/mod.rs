//! The instructions behind the device functions, for `nvptx64` only.
//!
//! [`nvvm`] declares LLVM's intrinsics; every collective is one of them, since LLVM knows that they
//! must not be moved into or out of branches. [`ptx`] is inline assembly, which LLVM may move and
//! duplicate, and therefore holds only instructions that concern a single thread.

pub mod nvvm;
pub mod ptx;
