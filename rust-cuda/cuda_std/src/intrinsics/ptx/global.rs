//! Loads and stores that name global memory.
//!
//! Of a pointer that comes out of memory, LLVM does not know the state space, and no attribute, assumption or
//! intrinsic of Rust's can tell it.

use core::arch::asm;

use crate::simd::{u32x2, u32x4};

macro_rules! global_accesses {
    ($($ty:ty, $class:ident, $bits:literal, $load:ident, $store:ident;)*) => {$(
        #[doc = concat!("`ld.global.", $bits, "`; any target.")]
        ///
        /// # Safety
        ///
        /// `ptr` is valid for reading, aligned to its size, in global memory.
        #[inline(always)]
        pub unsafe fn $load(ptr: *const $ty) -> $ty {
            let x: $ty;
            // SAFETY: forwarded to the caller.
            unsafe {
                asm!(
                    concat!("{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; ld.global.", $bits, " {x}, [a]; }}"),
                    ptr = in(reg64) ptr,
                    x = lateout($class) x,
                    options(readonly, nostack, preserves_flags)
                );
            }
            x
        }

        #[doc = concat!("`st.global.", $bits, "`; any target.")]
        ///
        /// # Safety
        ///
        /// `ptr` is valid for writing, aligned to its size, in global memory.
        #[inline(always)]
        pub unsafe fn $store(ptr: *mut $ty, value: $ty) {
            // SAFETY: forwarded to the caller.
            unsafe {
                asm!(
                    concat!("{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; st.global.", $bits, " [a], {x}; }}"),
                    ptr = in(reg64) ptr,
                    x = in($class) value,
                    options(nostack, preserves_flags)
                );
            }
        }
    )*};
}

global_accesses! {
    u16, reg16, "b16", ld_global_b16, st_global_b16;
    u32, reg32, "b32", ld_global_b32, st_global_b32;
    u64, reg64, "b64", ld_global_b64, st_global_b64;
}

/// `ld.global.b8`; any target.
///
/// # Safety
///
/// `ptr` is valid for reading, in global memory.
#[inline(always)]
pub unsafe fn ld_global_b8(ptr: *const u8) -> u8 {
    let x: u16;
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; ld.global.b8 {x}, [a]; }}",
            ptr = in(reg64) ptr,
            x = lateout(reg16) x,
            options(readonly, nostack, preserves_flags)
        );
    }
    x as u8
}

/// `st.global.b8`; any target.
///
/// # Safety
///
/// `ptr` is valid for writing, in global memory.
#[inline(always)]
pub unsafe fn st_global_b8(ptr: *mut u8, value: u8) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; st.global.b8 [a], {x}; }}",
            ptr = in(reg64) ptr,
            x = in(reg16) value as u16,
            options(nostack, preserves_flags)
        );
    }
}

/// `ld.global.v2.b32`; any target.
///
/// # Safety
///
/// `ptr` is valid for reading, 8-byte aligned, in global memory.
#[inline(always)]
pub unsafe fn ld_global_v2_b32(ptr: *const u32x2) -> u32x2 {
    let (x, y): (u32, u32);
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; ld.global.v2.b32 {{{x}, {y}}}, [a]; }}",
            ptr = in(reg64) ptr,
            x = lateout(reg32) x,
            y = lateout(reg32) y,
            options(readonly, nostack, preserves_flags)
        );
    }
    u32x2::from_array([x, y])
}

/// `st.global.v2.b32`; any target.
///
/// # Safety
///
/// `ptr` is valid for writing, 8-byte aligned, in global memory.
#[inline(always)]
pub unsafe fn st_global_v2_b32(ptr: *mut u32x2, value: u32x2) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; st.global.v2.b32 [a], {{{x}, {y}}}; }}",
            ptr = in(reg64) ptr,
            x = in(reg32) value[0],
            y = in(reg32) value[1],
            options(nostack, preserves_flags)
        );
    }
}

/// `ld.global.v4.b32`; any target.
///
/// # Safety
///
/// `ptr` is valid for reading, 16-byte aligned, in global memory.
#[inline(always)]
pub unsafe fn ld_global_v4_b32(ptr: *const u32x4) -> u32x4 {
    let (x, y, z, w): (u32, u32, u32, u32);
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; ld.global.v4.b32 {{{x}, {y}, {z}, {w}}}, [a]; }}",
            ptr = in(reg64) ptr,
            x = lateout(reg32) x,
            y = lateout(reg32) y,
            z = lateout(reg32) z,
            w = lateout(reg32) w,
            options(readonly, nostack, preserves_flags)
        );
    }
    u32x4::from_array([x, y, z, w])
}

/// `st.global.v4.b32`; any target.
///
/// # Safety
///
/// `ptr` is valid for writing, 16-byte aligned, in global memory.
#[inline(always)]
pub unsafe fn st_global_v4_b32(ptr: *mut u32x4, value: u32x4) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; st.global.v4.b32 [a], {{{x}, {y}, {z}, {w}}}; }}",
            ptr = in(reg64) ptr,
            x = in(reg32) value[0],
            y = in(reg32) value[1],
            z = in(reg32) value[2],
            w = in(reg32) value[3],
            options(nostack, preserves_flags)
        );
    }
}
