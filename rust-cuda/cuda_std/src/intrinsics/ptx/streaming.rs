//! Loads and stores with cache hints.

use core::arch::asm;

use crate::simd::{u32x2, u32x4};

/// `ld.global.nc.L1::no_allocate.b32`; cc 7.0, PTX 7.4.
///
/// # Safety
///
/// `ptr` is valid for reading, 4-byte aligned, in global memory nobody writes during the launch.
#[inline(always)]
pub unsafe fn ld_global_nc_b32(ptr: *const u32) -> u32 {
    let x: u32;
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; ld.global.nc.L1::no_allocate.b32 {x}, [a]; }}",
            ptr = in(reg64) ptr,
            x = lateout(reg32) x,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    x
}

/// `ld.global.nc.L1::no_allocate.v2.b32`; cc 7.0, PTX 7.4.
///
/// # Safety
///
/// `ptr` is valid for reading, 8-byte aligned, in global memory nobody writes during the launch.
#[inline(always)]
pub unsafe fn ld_global_nc_v2_b32(ptr: *const u32x2) -> u32x2 {
    let (x, y): (u32, u32);
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; ld.global.nc.L1::no_allocate.v2.b32 {{{x}, {y}}}, [a]; }}",
            ptr = in(reg64) ptr,
            x = lateout(reg32) x,
            y = lateout(reg32) y,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    u32x2::from_array([x, y])
}

/// `ld.global.nc.L1::no_allocate.v4.b32`; cc 7.0, PTX 7.4.
///
/// # Safety
///
/// `ptr` is valid for reading, 16-byte aligned, in global memory nobody writes during the launch.
#[inline(always)]
pub unsafe fn ld_global_nc_v4_b32(ptr: *const u32x4) -> u32x4 {
    let (x, y, z, w): (u32, u32, u32, u32);
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; ld.global.nc.L1::no_allocate.v4.b32 {{{x}, {y}, {z}, {w}}}, [a]; }}",
            ptr = in(reg64) ptr,
            x = lateout(reg32) x,
            y = lateout(reg32) y,
            z = lateout(reg32) z,
            w = lateout(reg32) w,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    u32x4::from_array([x, y, z, w])
}

/// `st.global.cs.b32`; any target.
///
/// # Safety
///
/// `ptr` is valid for writing, 4-byte aligned, in global memory.
#[inline(always)]
pub unsafe fn st_global_cs_b32(ptr: *mut u32, value: u32) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; st.global.cs.b32 [a], {x}; }}",
            ptr = in(reg64) ptr,
            x = in(reg32) value,
            options(nostack, preserves_flags)
        );
    }
}

/// `st.global.cs.v2.b32`; any target.
///
/// # Safety
///
/// `ptr` is valid for writing, 8-byte aligned, in global memory.
#[inline(always)]
pub unsafe fn st_global_cs_v2_b32(ptr: *mut u32x2, value: u32x2) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; st.global.cs.v2.b32 [a], {{{x}, {y}}}; }}",
            ptr = in(reg64) ptr,
            x = in(reg32) value[0],
            y = in(reg32) value[1],
            options(nostack, preserves_flags)
        );
    }
}

/// `st.global.cs.v4.b32`; any target.
///
/// # Safety
///
/// `ptr` is valid for writing, 16-byte aligned, in global memory.
#[inline(always)]
pub unsafe fn st_global_cs_v4_b32(ptr: *mut u32x4, value: u32x4) {
    // SAFETY: forwarded to the caller.
    unsafe {
        asm!(
            "{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; st.global.cs.v4.b32 [a], {{{x}, {y}, {z}, {w}}}; }}",
            ptr = in(reg64) ptr,
            x = in(reg32) value[0],
            y = in(reg32) value[1],
            z = in(reg32) value[2],
            w = in(reg32) value[3],
            options(nostack, preserves_flags)
        );
    }
}
