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
/// must be [dynamic](dynamic_shared_mem).
///
/// ```ignore
/// let tile = shared_array![f32; 256];
/// let t = thread::thread_idx_x() as usize;
/// unsafe { *tile.add(t) = x };
/// thread::sync_threads();
/// let mirrored = unsafe { *tile.add(255 - t) };
/// ```
#[macro_export]
macro_rules! shared_array {
    ($array_type:ty; $len:expr) => {{
        // A type and a static that no other place in the source has.
        struct Site;
        static SITE: u8 = 0;
        $crate::shared::static_array::<
            Site,
            $array_type,
            { ::core::mem::size_of::<$array_type>() * $len },
            { ::core::mem::align_of::<$array_type>() },
        >(&SITE)
    }};
}

#[doc(hidden)]
#[inline(always)]
#[track_caller]
pub fn static_array<Site, T, const BYTES: usize, const ALIGN: usize>(site: &'static u8) -> *mut T {
    const { assert!(BYTES > 0, "a shared array needs at least one byte") };
    by_target! {
        gpu: {
            let _ = site;
            from_shared_address(ptx::static_shared::<Site, BYTES, ALIGN>()).cast()
        },
        cpu: simt::device::static_shared(core::ptr::from_ref(site).addr(), BYTES, ALIGN).cast(),
    }
}

/// The pointer to an address of the shared window.
///
/// LLVM has no notion of a shared object declared in inline PTX. It does know one shared object, the
/// dynamic shared memory, an external array of unknown extent; seen from it, the static buffers are
/// parts of that array at other offsets. So the pointer is derived from it, and LLVM infers the
/// address space, where a pointer that came out of `asm!` would be accessed by generic instructions.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn from_shared_address(address: u32) -> *mut u8 {
    let offset = address.wrapping_sub(ptx::dynamic_shared_address());
    dynamic_shared_mem::<u8>().wrapping_offset(offset as i32 as isize)
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
