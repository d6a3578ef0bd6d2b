//! Inline PTX: one wrapper an instruction.
//!
//! Rules kept here:
//! * nothing collective, since `asm!` is not convergent;
//! * `pure` only where the result depends on the operands alone, or (`readonly`) on memory nobody
//!   writes meanwhile;
//! * `nomem` only where no memory is touched: everything else clobbers memory, which is what keeps
//!   LLVM from moving ordinary accesses across fences and copies;
//! * names are declared inside `{{ }}`, so that a block can be inlined twice into one function.

use core::arch::asm;

use crate::simd::{u32x2, u32x4};

/// Wrappers of instructions that compute a value from values.
macro_rules! pure {
    ($(
        #[doc = $doc:literal]
        fn $name:ident($($arg:ident: $ty:ty, $class:ident),*) -> $ret:ty, $ret_class:ident = $template:literal;
    )*) => {$(
        #[doc = $doc]
        #[inline(always)]
        pub fn $name($($arg: $ty),*) -> $ret {
            let d: $ret;
            // SAFETY: computes `d` from its operands.
            unsafe {
                asm!(
                    $template,
                    d = lateout($ret_class) d,
                    $($arg = in($class) $arg,)*
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            d
        }
    )*};
}

pure! {
    #[doc = "`rcp.rn.ftz.f32`; any target."]
    fn rcp_rn_ftz_f32(a: f32, reg32) -> f32, reg32 = "rcp.rn.ftz.f32 {d}, {a};";

    #[doc = "`add.rn.f16x2`; cc 5.3, PTX 4.2."]
    fn add_rn_f16x2(a: u32, reg32, b: u32, reg32) -> u32, reg32 = "add.rn.f16x2 {d}, {a}, {b};";
    #[doc = "`mul.rn.f16x2`; cc 5.3, PTX 4.2."]
    fn mul_rn_f16x2(a: u32, reg32, b: u32, reg32) -> u32, reg32 = "mul.rn.f16x2 {d}, {a}, {b};";
    #[doc = "`fma.rn.f16x2`; cc 5.3, PTX 4.2."]
    fn fma_rn_f16x2(a: u32, reg32, b: u32, reg32, c: u32, reg32) -> u32, reg32 = "fma.rn.f16x2 {d}, {a}, {b}, {c};";
    #[doc = "`min.f16x2`; cc 8.0, PTX 7.0."]
    fn min_f16x2(a: u32, reg32, b: u32, reg32) -> u32, reg32 = "min.f16x2 {d}, {a}, {b};";
    #[doc = "`max.f16x2`; cc 8.0, PTX 7.0."]
    fn max_f16x2(a: u32, reg32, b: u32, reg32) -> u32, reg32 = "max.f16x2 {d}, {a}, {b};";
    #[doc = "`max.bf16x2`; cc 8.0, PTX 7.0."]
    fn max_bf16x2(a: u32, reg32, b: u32, reg32) -> u32, reg32 = "max.bf16x2 {d}, {a}, {b};";
    #[doc = "`max.NaN.bf16x2`; cc 8.0, PTX 7.0."]
    fn max_nan_bf16x2(a: u32, reg32, b: u32, reg32) -> u32, reg32 = "max.NaN.bf16x2 {d}, {a}, {b};";

    #[doc = "`prmt.b32`; any target."]
    fn prmt_b32(a: u32, reg32, b: u32, reg32, selector: u32, reg32) -> u32, reg32 = "prmt.b32 {d}, {a}, {b}, {selector};";
    #[doc = "`shf.l.wrap.b32`; any target."]
    fn shf_l_wrap_b32(lo: u32, reg32, hi: u32, reg32, shift: u32, reg32) -> u32, reg32 = "shf.l.wrap.b32 {d}, {lo}, {hi}, {shift};";
    #[doc = "`shf.r.wrap.b32`; any target."]
    fn shf_r_wrap_b32(lo: u32, reg32, hi: u32, reg32, shift: u32, reg32) -> u32, reg32 = "shf.r.wrap.b32 {d}, {lo}, {hi}, {shift};";

    #[doc = "`cvt.rn.satfinite.e4m3x2.f32`; cc 8.9, PTX 8.1 (cc 9.0: PTX 7.8)."]
    fn cvt_rn_satfinite_e4m3x2_f32(hi: f32, reg32, lo: f32, reg32) -> u16, reg16 = "cvt.rn.satfinite.e4m3x2.f32 {d}, {hi}, {lo};";
    #[doc = "`cvt.rn.f16x2.e4m3x2`; cc 8.9, PTX 8.1 (cc 9.0: PTX 7.8)."]
    fn cvt_rn_f16x2_e4m3x2(a: u16, reg16) -> u32, reg32 = "cvt.rn.f16x2.e4m3x2 {d}, {a};";
    #[doc = "`cvt.rn.satfinite.e2m1x2.f32`; cc 10.0a, PTX 8.6."]
    fn cvt_rn_satfinite_e2m1x2_f32(hi: f32, reg32, lo: f32, reg32) -> u32, reg32 =
        "{{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, {hi}, {lo}; cvt.u32.u8 {d}, pair; }}";
    #[doc = "`cvt.rn.f16x2.e2m1x2`; cc 10.0a, PTX 8.6."]
    fn cvt_rn_f16x2_e2m1x2(a: u16, reg16) -> u32, reg32 =
        "{{ .reg .b8 pair, unused; mov.b16 {{pair, unused}}, {a}; cvt.rn.f16x2.e2m1x2 {d}, pair; }}";
    #[doc = "`cvt.rp.satfinite.ue8m0x2.f32`; cc 10.0a, PTX 8.6."]
    fn cvt_rp_satfinite_ue8m0x2_f32(hi: f32, reg32, lo: f32, reg32) -> u16, reg16 = "cvt.rp.satfinite.ue8m0x2.f32 {d}, {hi}, {lo};";
    #[doc = "`cvt.rz.satfinite.ue8m0x2.f32`; cc 10.0a, PTX 8.6."]
    fn cvt_rz_satfinite_ue8m0x2_f32(hi: f32, reg32, lo: f32, reg32) -> u16, reg16 = "cvt.rz.satfinite.ue8m0x2.f32 {d}, {hi}, {lo};";
    #[doc = "`cvt.rn.bf16x2.ue8m0x2`; cc 10.0a, PTX 8.6."]
    fn cvt_rn_bf16x2_ue8m0x2(a: u16, reg16) -> u32, reg32 = "cvt.rn.bf16x2.ue8m0x2 {d}, {a};";
    #[doc = "`cvt.rn.f16x2.f32`; cc 8.0, PTX 7.0."]
    fn cvt_rn_f16x2_f32(hi: f32, reg32, lo: f32, reg32) -> u32, reg32 = "cvt.rn.f16x2.f32 {d}, {hi}, {lo};";
    #[doc = "`cvt.rz.f16x2.f32`; cc 8.0, PTX 7.0."]
    fn cvt_rz_f16x2_f32(hi: f32, reg32, lo: f32, reg32) -> u32, reg32 = "cvt.rz.f16x2.f32 {d}, {hi}, {lo};";
    #[doc = "`cvt.rn.bf16x2.f32`; cc 8.0, PTX 7.0."]
    fn cvt_rn_bf16x2_f32(hi: f32, reg32, lo: f32, reg32) -> u32, reg32 = "cvt.rn.bf16x2.f32 {d}, {hi}, {lo};";
    #[doc = "`cvt.f32.f16`; any target."]
    fn cvt_f32_f16(a: u16, reg16) -> f32, reg32 = "cvt.f32.f16 {d}, {a};";
}

/// `trap`; any target. Ends the launch with an error.
#[inline(always)]
pub fn trap() -> ! {
    // SAFETY: does not return; `exit` after it tells ptxas so.
    unsafe { asm!("trap; exit;", options(noreturn, nostack)) }
}

/// `nanosleep.u32`; cc 7.0, PTX 6.3.
#[inline(always)]
pub fn nanosleep(nanos: u32) {
    // SAFETY: only takes time. Clobbers memory, so that a polled value is read again.
    unsafe {
        asm!("nanosleep.u32 {nanos};", nanos = in(reg32) nanos, options(nostack, preserves_flags))
    }
}

/// The address in the shared window of a buffer of `BYTES` bytes, one buffer per block for each
/// `Site`.
///
/// The buffer is declared inside the function. So the function must exist once and be called:
/// every inlined copy of it would declare a buffer of its own.
#[inline(never)]
pub fn static_shared<Site, const BYTES: usize, const ALIGN: usize>() -> u32 {
    let address: u32;
    // SAFETY: takes an address. Not `pure`: two equal blocks must not be merged into one buffer.
    unsafe {
        asm!(
            "{{ .shared .align {align} .b8 buffer[{bytes}]; mov.u32 {address}, buffer; }}",
            align = const ALIGN,
            bytes = const BYTES,
            address = lateout(reg32) address,
            options(nomem, nostack, preserves_flags)
        );
    }
    address
}

/// The address in the shared window of the dynamic shared memory.
#[inline(always)]
pub fn dynamic_shared_address() -> u32 {
    let address: u32;
    // SAFETY: takes an address. The symbol is the one LLVM emits for
    // `gpu_launch_sized_workgroup_mem`, which every caller of this also calls.
    unsafe {
        asm!(
            "mov.u32 {address}, gpu_launch_sized_workgroup_mem;",
            address = lateout(reg32) address,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    address
}

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
