//! Shared memory: one copy per block, uninitialised when the block starts.
//!
//! Everything here is a raw pointer, and using it is `unsafe`:
//!
//! * other blocks have other memory behind the same pointer;
//! * a value must be written before it is read;
//! * [`sync_threads`](crate::thread::sync_threads) must stand between a write and a read by another
//!   thread, and again before the value is overwritten;
//! * accesses stay in bounds.
//!
//! Pointers from this module are known to the compiler as shared, so accesses through them and
//! through a [`SharedView`](crate::view::SharedView) are `ld.shared` and `st.shared`.

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;

/// Allocates `len` elements of shared memory statically and yields a `*mut T` to them.
///
/// `shared_array![f32; 256]`. The same place in the source always yields the same buffer, different
/// places yield different ones. Aligned for `T`. At most 48 KiB per kernel in all; larger buffers
/// must be [dynamic](dynamic_shared_mem). A kernel's buffers together are padded to 1024 bytes, the
/// alignment of the dynamic memory behind them.
///
/// ```no_run
/// # use cuda_std::prelude::*;
/// # let x = 1.0;
/// let tile = shared_array![f32; 256];
/// let t = thread::thread_idx_x() as usize;
/// unsafe { *tile.add(t) = x };
/// thread::sync_threads();
/// let mirrored = unsafe { *tile.add(255 - t) };
/// ```
#[macro_export]
macro_rules! shared_array {
    ($array_type:ty; $len:expr) => {{
        // Items have no hygiene: plain names could be those in `$len`.
        const __SHARED_ARRAY_LEN: usize = $len;
        // A buffer of no bytes would not have an address of its own.
        const { ::core::assert!(__SHARED_ARRAY_LEN * ::core::mem::size_of::<$array_type>() > 0) };
        #[cfg(target_arch = "nvptx64")]
        {
            $crate::shared::from_shared_address::<$array_type>($crate::__ptx_shared_buffer!(
                __SHARED_ARRAY_LEN * ::core::mem::size_of::<$array_type>(),
                ::core::mem::align_of::<$array_type>()
            ))
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            // A static that no other place in the source has.
            static __SHARED_ARRAY_SITE: u8 = 0;
            $crate::shared::emulated_array::<$array_type>(&__SHARED_ARRAY_SITE, __SHARED_ARRAY_LEN)
        }
    }};
}

#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
#[track_caller]
pub fn emulated_array<T>(site: &'static u8, len: usize) -> *mut T {
    let site = core::ptr::from_ref(site).addr();
    simt::device::static_shared(site, size_of::<T>() * len, align_of::<T>()).cast()
}

/// The pointer to an address of the shared window.
///
/// LLVM has no notion of a shared object declared in inline PTX. It does know one shared object, the
/// dynamic shared memory, an external array of unknown extent; seen from it, the static buffers are
/// parts of that array at other offsets. So the pointer is derived from it, and LLVM infers the
/// address space, where a pointer that came out of `asm!` would be accessed by generic instructions.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
#[inline(always)]
pub fn from_shared_address<T>(address: u32) -> *mut T {
    let offset = address.wrapping_sub(ptx::dynamic_shared_address());
    dynamic_shared_mem::<u8>()
        .wrapping_offset(offset as i32 as isize)
        .cast()
}

/// The dynamic shared memory of the block: as many bytes as the launch asked for, aligned to 1024.
///
/// Every call yields the same pointer.
#[inline(always)]
pub fn dynamic_shared_mem<T>() -> *mut T {
    by_target! {
        gpu: {
            /// The alignment that the largest swizzle of a tensor copy needs.
            #[repr(align(1024))]
            struct Aligned;
            core::intrinsics::gpu::gpu_launch_sized_workgroup_mem::<Aligned>().cast()
        },
        cpu: simt::device::dynamic_shared().cast(),
    }
}
