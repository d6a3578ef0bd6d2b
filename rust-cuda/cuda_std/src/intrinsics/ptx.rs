//! Inline PTX: one wrapper an instruction. It is nowhere else in this repository.
//!
//! Rules kept here:
//! * nothing collective, since `asm!` is not convergent;
//! * `pure` only where the result depends on the operands alone, or (`readonly`) on memory nobody
//!   writes meanwhile;
//! * `nomem` only where no memory is touched: everything else clobbers memory, which is what keeps
//!   LLVM from moving ordinary accesses across fences and copies;
//! * names are declared inside `{{ }}`, so that a block can be inlined twice into one function.

mod async_copy;
mod atomics;
mod global;

use core::arch::asm;

pub use async_copy::*;
pub use atomics::*;
pub use global::*;

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
    #[doc = "`fma.rn.bf16x2`; cc 8.0, PTX 7.0."]
    fn fma_rn_bf16x2(a: u32, reg32, b: u32, reg32, c: u32, reg32) -> u32, reg32 = "fma.rn.bf16x2 {d}, {a}, {b}, {c};";
    #[doc = "`min.bf16x2`; cc 8.0, PTX 7.0."]
    fn min_bf16x2(a: u32, reg32, b: u32, reg32) -> u32, reg32 = "min.bf16x2 {d}, {a}, {b};";
    #[doc = "`max.bf16x2`; cc 8.0, PTX 7.0."]
    fn max_bf16x2(a: u32, reg32, b: u32, reg32) -> u32, reg32 = "max.bf16x2 {d}, {a}, {b};";
    #[doc = "`max.NaN.bf16x2`; cc 8.0, PTX 7.0."]
    fn max_nan_bf16x2(a: u32, reg32, b: u32, reg32) -> u32, reg32 = "max.NaN.bf16x2 {d}, {a}, {b};";

    #[doc = "`mul.wide.u32`; any target."]
    fn mul_wide_u32(a: u32, reg32, b: u32, reg32) -> u64, reg64 = "mul.wide.u32 {d}, {a}, {b};";
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

/// Declares a shared buffer of the module and yields its address in the shared window; any target.
///
/// The buffer is named after a function that no other expansion has, so each place in the source has
/// one buffer, however often its code is inlined, and a kernel pays for the buffers whose names occur
/// in it.
#[doc(hidden)]
#[macro_export]
macro_rules! __ptx_shared_buffer {
    ($bytes:expr, $align:expr) => {{
        fn __shared_array_site() {}
        ::core::arch::global_asm!(
            ".shared .align {align} .b8 {site}_shared[{bytes}];",
            align = const $align,
            site = sym __shared_array_site,
            bytes = const $bytes,
        );
        let address: u32;
        // SAFETY: takes an address.
        unsafe {
            ::core::arch::asm!(
                "mov.u32 {address}, {site}_shared;",
                address = lateout(reg32) address,
                site = sym __shared_array_site,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        address
    }};
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

/// Reads a special register; not `pure`, since the value changes with time or launch.
macro_rules! special_registers {
    ($(
        #[doc = $doc:literal]
        fn $name:ident() -> $ty:ty, $class:ident = $template:literal;
    )*) => {$(
        #[doc = $doc]
        #[inline(always)]
        pub fn $name() -> $ty {
            let d: $ty;
            // SAFETY: reads a special register.
            unsafe {
                asm!($template, d = lateout($class) d, options(nomem, nostack, preserves_flags));
            }
            d
        }
    )*};
}

special_registers! {
    #[doc = "`%clock64`; any target."]
    fn clock64() -> u64, reg64 = "mov.u64 {d}, %clock64;";
    #[doc = "`%globaltimer`; any target."]
    fn globaltimer() -> u64, reg64 = "mov.u64 {d}, %globaltimer;";
    #[doc = "`%dynamic_smem_size`; any target, PTX 4.1."]
    fn dynamic_smem_size() -> u32, reg32 = "mov.u32 {d}, %dynamic_smem_size;";
    #[doc = "`%total_smem_size`; any target, PTX 4.1."]
    fn total_smem_size() -> u32, reg32 = "mov.u32 {d}, %total_smem_size;";
}

/// `mov.b32`, which LLVM cannot see through; any target.
#[inline(always)]
pub fn hidden(value: u32) -> u32 {
    let d: u32;
    // Not `pure`: LLVM would compute it once, ahead of a loop.
    // SAFETY: copies its operand.
    unsafe {
        asm!(
            "mov.b32 {d}, {value};",
            d = lateout(reg32) d,
            value = in(reg32) value,
            options(nomem, nostack, preserves_flags)
        );
    }
    d
}

/// `brkpt`; any target.
#[inline(always)]
pub fn brkpt() {
    // SAFETY: stops for a debugger; without one it ends the launch with an error.
    unsafe { asm!("brkpt;", options(nostack, preserves_flags)) }
}

/// `pmevent`; any target. The counter, 0 to 7, is part of the instruction.
#[inline(always)]
pub fn pmevent<const COUNTER: u32>() {
    // SAFETY: increments a profiler's counter.
    unsafe {
        asm!("pmevent {counter};", counter = const COUNTER, options(nomem, nostack, preserves_flags))
    }
}

/// Questions about and conversions between address spaces.
macro_rules! address_spaces {
    ($($is:ident, $to:ident, $from:ident, $space:literal;)*) => {$(
        #[doc = concat!("`isspacep.", $space, "`; any target.")]
        #[inline(always)]
        pub fn $is(ptr: *const u8) -> bool {
            let d: u32;
            // SAFETY: looks at the address alone.
            unsafe {
                asm!(
                    concat!("{{ .reg .pred p; isspacep.", $space, " p, {address}; selp.b32 {d}, 1, 0, p; }}"),
                    address = in(reg64) ptr.expose_provenance(),
                    d = lateout(reg32) d,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            d != 0
        }

        #[doc = concat!("`cvta.to.", $space, ".u64`; any target.")]
        #[inline(always)]
        pub fn $to(ptr: *const u8) -> *const u8 {
            let d;
            // SAFETY: computes an address.
            unsafe {
                asm!(
                    concat!("cvta.to.", $space, ".u64 {d}, {address};"),
                    address = in(reg64) ptr.expose_provenance(),
                    d = lateout(reg64) d,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            d
        }

        #[doc = concat!("`cvta.", $space, ".u64`; any target.")]
        #[inline(always)]
        pub fn $from(ptr: *const u8) -> *const u8 {
            let d;
            // SAFETY: computes an address.
            unsafe {
                asm!(
                    concat!("cvta.", $space, ".u64 {d}, {address};"),
                    address = in(reg64) ptr.expose_provenance(),
                    d = lateout(reg64) d,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            d
        }
    )*};
}

address_spaces! {
    isspacep_global, cvta_to_global, cvta_global, "global";
    isspacep_shared, cvta_to_shared, cvta_shared, "shared";
    isspacep_const, cvta_to_const, cvta_const, "const";
    isspacep_local, cvta_to_local, cvta_local, "local";
}
