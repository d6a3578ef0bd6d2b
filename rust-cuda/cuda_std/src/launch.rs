//! Typed kernel launches, for host code.
//!
//! `#[kernel]` on `fn foo(x: &[f32], y: *mut f32, n: u32)` makes, on every target but `nvptx64`, a
//! `struct foo::Args { x: *const f32, x_len: usize, y: *mut f32, n: u32 }` that implements
//! [`KernelArgs`]. A backend launches it without knowing the kernel: a GPU through
//! [`with_params`](KernelArgs::with_params), the emulator through [`call`](KernelArgs::call).

use core::ffi::c_void;

/// One argument of a kernel's entry point. A slice parameter is two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// The parameter's name; the length of a slice `x` is called `x_len`.
    pub name: &'static str,
    /// Its type as the kernel spells it, `*const f32` for instance.
    pub ty: &'static str,
    /// Its size in bytes.
    pub size: usize,
    /// Its alignment in bytes, at most 16.
    pub align: usize,
}

/// What is known about a kernel without launching it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelInfo {
    /// The name of the entry point in the PTX module.
    pub name: &'static str,
    /// The largest block it may be launched with, where the kernel states one.
    pub max_threads: Option<u32>,
    /// The blocks that should fit on one multiprocessor, where the kernel states it.
    pub min_blocks: Option<u32>,
    /// The arguments of the entry point, in order.
    pub params: &'static [Param],
}

/// The arguments of one launch of one kernel. Implemented by `#[kernel]`.
///
/// # Safety
///
/// [`KERNEL`](Self::KERNEL) must describe the entry point truthfully, and
/// [`with_params`](Self::with_params) must hand out one valid pointer per entry of
/// [`KernelInfo::params`], to a value of that size and alignment.
pub unsafe trait KernelArgs: Copy + Send + Sync + 'static {
    /// The kernel these arguments belong to.
    const KERNEL: KernelInfo;

    /// Calls `f` with a pointer to each argument, in the order of [`KernelInfo::params`].
    ///
    /// This is the form `cuLaunchKernel` takes, which copies the arguments before it returns. The
    /// pointers are valid during the call of `f` and are for reading only.
    fn with_params<R>(&self, f: impl FnOnce(&mut [*mut c_void]) -> R) -> R;

    /// Runs the kernel's body once, as one thread.
    ///
    /// # Safety
    ///
    /// The kernel's own safety contract holds for these arguments, and the caller runs on a thread
    /// of the emulator if the kernel asks for its index, meets other threads or uses checked memory.
    unsafe fn call(self);
}
