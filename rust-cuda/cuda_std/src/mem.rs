//! Memory allocated by threads, and sizes of shared memory.
//!
//! With the feature `alloc`, [`CUDAAllocator`] becomes the global allocator of a kernel crate and the
//! prelude offers `Box`, `Vec` and `String`. The standard library then has to be built with
//! `-Zbuild-std=core,alloc`. The device heap is small (8 MiB unless the host raises
//! `CU_LIMIT_MALLOC_HEAP_SIZE`) and slow: kernels that care for speed do not use it.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;

#[cfg(target_arch = "nvptx64")]
mod syscalls {
    use core::ffi::c_void;

    unsafe extern "C" {
        // The driver defines both when it loads the module.
        pub fn malloc(size: usize) -> *mut c_void;
        pub fn free(ptr: *mut c_void);
    }
}

/// The alignment of whatever [`malloc`] returns.
const MALLOC_ALIGN: usize = 16;

/// Allocates `size` bytes, 16-byte aligned, on the device heap; null if it is full.
///
/// Any thread may free the memory, also in a later launch. On a CPU the memory comes from the host's
/// heap: it is usable through pointers, but checked accesses (views, atomics) do not know it.
///
/// # Safety
///
/// Always sound to call; `unsafe` as in the published crate, since the memory is uninitialised.
#[inline]
pub unsafe fn malloc(size: usize) -> *mut c_void {
    by_target! {
        // SAFETY: has no preconditions.
        gpu: unsafe { syscalls::malloc(size) },
        cpu: host_heap::malloc(size),
    }
}

/// Frees memory that [`malloc`] returned; nothing happens for null.
///
/// # Safety
///
/// `ptr` came from [`malloc`], was not freed, and nobody uses the memory any more.
#[inline]
pub unsafe fn free(ptr: *mut c_void) {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { syscalls::free(ptr) },
        // SAFETY: forwarded to the caller.
        cpu: unsafe { host_heap::free(ptr) },
    }
}

/// The host's heap behind the interface of C, with the size in front of each allocation.
#[cfg(not(target_arch = "nvptx64"))]
mod host_heap {
    use super::{MALLOC_ALIGN, c_void};
    use core::alloc::Layout;

    fn layout(size: usize) -> Option<Layout> {
        Layout::from_size_align(size.checked_add(MALLOC_ALIGN)?, MALLOC_ALIGN).ok()
    }

    pub fn malloc(size: usize) -> *mut c_void {
        let Some(layout) = layout(size) else {
            return core::ptr::null_mut();
        };
        // SAFETY: the layout is not empty, the header being part of it.
        let start = unsafe { std::alloc::alloc(layout) };
        if start.is_null() {
            return core::ptr::null_mut();
        }
        // SAFETY: the allocation is large and aligned enough for the header, and continues after it.
        unsafe {
            start.cast::<usize>().write(size);
            start.add(MALLOC_ALIGN).cast()
        }
    }

    /// # Safety
    ///
    /// `ptr` is null or came from [`malloc`] and is not used any more.
    pub unsafe fn free(ptr: *mut c_void) {
        if ptr.is_null() {
            return;
        }
        // SAFETY: `malloc` wrote the size this far before the pointer it returned.
        let (start, size) = unsafe {
            let start = ptr.cast::<u8>().sub(MALLOC_ALIGN);
            (start, start.cast::<usize>().read())
        };
        if let Some(layout) = layout(size) {
            // SAFETY: allocated by `malloc` with this layout.
            unsafe { std::alloc::dealloc(start, layout) };
        }
    }
}

/// The device heap as a Rust allocator. Alignments above 16 are refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct CUDAAllocator;

// SAFETY: `malloc` returns distinct blocks of at least the size and alignment asked for, or null.
unsafe impl GlobalAlloc for CUDAAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > MALLOC_ALIGN {
            return core::ptr::null_mut();
        }
        // SAFETY: has no preconditions.
        unsafe { malloc(layout.size()).cast() }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, _layout: Layout) {
        // SAFETY: by the contract of the trait, `ptr` came from `alloc`.
        unsafe { free(ptr.cast()) }
    }
}

/// The global allocator of kernel crates.
#[cfg(all(feature = "alloc", target_arch = "nvptx64"))]
#[global_allocator]
pub static GLOBAL_ALLOCATOR: CUDAAllocator = CUDAAllocator;

/// The bytes of dynamic shared memory that the launch asked for. PTX `%dynamic_smem_size`, any target.
#[inline(always)]
pub fn dynamic_smem_size() -> u32 {
    by_target! {
        gpu: crate::intrinsics::ptx::dynamic_smem_size(),
        cpu: simt::device::dynamic_shared_bytes() as u32,
    }
}

/// The bytes of static and dynamic shared memory of a block, rounded up to the device's allocation
/// unit. PTX `%total_smem_size`, any target.
///
/// The emulator has no allocation unit, so this is for GPUs only.
#[crate::gpu_only]
#[inline(always)]
pub fn total_smem_size() -> u32 {
    crate::intrinsics::ptx::total_smem_size()
}
