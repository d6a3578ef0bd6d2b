//! What the expansion of `#[kernel]` calls. Not part of the API.

use core::mem::{align_of, size_of};

/// Checks, in a constant, that a `T` can cross the kernel ABI.
pub const fn check_parameter<T: Copy>() {
    assert!(
        size_of::<T>() != 0,
        "a kernel parameter of size zero would not be passed at all"
    );
    // rustc's PTX backend fails on larger alignments.
    assert!(
        align_of::<T>() <= 16,
        "a kernel parameter aligned to more than 16 bytes cannot be passed by value: pass a pointer"
    );
}

/// Checks that a `&T` is one pointer.
pub const fn check_reference<T: Sized>() {}

/// Checks, in a constant, a launch bound against the hardware's limit.
pub const fn check_bound(bound: u32, max: u32) {
    assert!(
        bound >= 1 && bound <= max,
        "launch bound out of range: max_threads is 1 to 1024, min_blocks 1 to 32"
    );
}

/// Rebuilds a slice from the two arguments it was passed in.
///
/// An empty device buffer has a null address, which no slice may have.
///
/// # Safety
///
/// As for [`core::slice::from_raw_parts`], except that `ptr` may be null when `len` is zero.
#[inline(always)]
pub unsafe fn slice<'a, T>(ptr: *const T, len: usize) -> &'a [T] {
    let ptr = if len == 0 { core::ptr::dangling() } else { ptr };
    // SAFETY: forwarded to the caller; a dangling pointer is valid for an empty slice.
    unsafe { core::slice::from_raw_parts(ptr, len) }
}

/// A panic in a kernel ends the whole launch with an error.
///
/// With `-Cpanic=immediate-abort`, which `cuda_builder` sets, the compiler traps at the panic itself
/// and never comes here.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    crate::intrinsics::ptx::trap()
}
