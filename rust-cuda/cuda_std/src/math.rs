//! Arithmetic that Rust has no exact word for: flushing reciprocals, packed halves, byte permutes.
//!
//! Each function concerns one thread and has no effect but its result. NaN results are canonical:
//! `0x7fff_ffff` in FP32, `0x7fff` in FP16 and BF16. Packed pairs are `u32`, one value in each half.
//! Bitwise expressions need no function here: ptxas fuses them into `lop3.b32`.

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;

#[cfg(not(target_arch = "nvptx64"))]
mod twin;

/// The correctly rounded reciprocal, with subnormal inputs and results flushed to zero of their sign.
///
/// ±0 and subnormals give ±infinity. PTX `rcp.rn.ftz.f32`, any target.
#[inline(always)]
pub fn rcp_rn_ftz(x: f32) -> f32 {
    by_target! {
        gpu: ptx::rcp_rn_ftz_f32(x),
        cpu: twin::rcp_rn_ftz(x),
    }
}

/// `a * b + c`, rounded once, with subnormals.
///
/// PTX `fma.rn.f32`, any target.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    by_target! {
        gpu: core::intrinsics::fmaf32(a, b, c),
        cpu: twin::fma(a, b, c),
    }
}

/// The whole product of two words.
///
/// What `u64::from(a) * u64::from(b)` says; but the compiler moves the widening of a factor that stays the same out of a loop,
/// and is left with a product of 64-bit numbers there, which takes more instructions.
///
/// PTX `mul.wide.u32`, any target.
#[inline(always)]
pub fn mul_wide(a: u32, b: u32) -> u64 {
    by_target! {
        gpu: ptx::mul_wide_u32(a, b),
        cpu: u64::from(a) * u64::from(b),
    }
}

/// The sums of two pairs of FP16, with subnormals.
///
/// PTX `add.rn.f16x2`, any target.
#[inline(always)]
pub fn add_f16x2(a: u32, b: u32) -> u32 {
    by_target! {
        gpu: ptx::add_rn_f16x2(a, b),
        cpu: twin::halves(a, b, twin::add_f16),
    }
}

/// The products of two pairs of FP16, with subnormals.
///
/// PTX `mul.rn.f16x2`, any target.
#[inline(always)]
pub fn mul_f16x2(a: u32, b: u32) -> u32 {
    by_target! {
        gpu: ptx::mul_rn_f16x2(a, b),
        cpu: twin::halves(a, b, twin::mul_f16),
    }
}

/// `a * b + c` of pairs of FP16, rounded once, with subnormals.
///
/// PTX `fma.rn.f16x2`, any target.
#[inline(always)]
pub fn fma_f16x2(a: u32, b: u32, c: u32) -> u32 {
    by_target! {
        gpu: ptx::fma_rn_f16x2(a, b, c),
        cpu: twin::fma_f16x2(a, b, c),
    }
}

/// The lesser of two FP16, in pairs. A number wins over NaN, -0 is less than +0.
///
/// PTX `min.f16x2`, compute capability 8.0, PTX 7.0.
#[inline(always)]
pub fn min_f16x2(a: u32, b: u32) -> u32 {
    by_target! {
        gpu: ptx::min_f16x2(a, b),
        cpu: twin::halves(a, b, twin::min_half::<{ twin::F16_INFINITY }>),
    }
}

/// The greater of two FP16, in pairs. A number wins over NaN, -0 is less than +0.
///
/// PTX `max.f16x2`, compute capability 8.0, PTX 7.0.
#[inline(always)]
pub fn max_f16x2(a: u32, b: u32) -> u32 {
    by_target! {
        gpu: ptx::max_f16x2(a, b),
        cpu: twin::halves(a, b, twin::max_half::<{ twin::F16_INFINITY }>),
    }
}

/// `a * b + c` of pairs of BF16, rounded once, with subnormals.
///
/// PTX `fma.rn.bf16x2`, compute capability 8.0, PTX 7.0.
#[inline(always)]
pub fn fma_bf16x2(a: u32, b: u32, c: u32) -> u32 {
    by_target! {
        gpu: ptx::fma_rn_bf16x2(a, b, c),
        cpu: twin::fma_bf16x2(a, b, c),
    }
}

/// The lesser of two BF16, in pairs. A number wins over NaN, -0 is less than +0.
///
/// PTX `min.bf16x2`, compute capability 8.0, PTX 7.0.
#[inline(always)]
pub fn min_bf16x2(a: u32, b: u32) -> u32 {
    by_target! {
        gpu: ptx::min_bf16x2(a, b),
        cpu: twin::halves(a, b, twin::min_half::<{ twin::BF16_INFINITY }>),
    }
}

/// The greater of two BF16, in pairs. A number wins over NaN, -0 is less than +0.
///
/// PTX `max.bf16x2`, compute capability 8.0, PTX 7.0.
#[inline(always)]
pub fn max_bf16x2(a: u32, b: u32) -> u32 {
    by_target! {
        gpu: ptx::max_bf16x2(a, b),
        cpu: twin::halves(a, b, twin::max_half::<{ twin::BF16_INFINITY }>),
    }
}

/// The greater of two BF16, in pairs. NaN wins over a number, -0 is less than +0.
///
/// PTX `max.NaN.bf16x2`, compute capability 8.0, PTX 7.0.
#[inline(always)]
pub fn max_nan_bf16x2(a: u32, b: u32) -> u32 {
    by_target! {
        gpu: ptx::max_nan_bf16x2(a, b),
        cpu: twin::halves(a, b, twin::max_nan_half::<{ twin::BF16_INFINITY }>),
    }
}

/// The magnitudes of two BF16: both sign bits cleared, NaN kept as it is.
///
/// A plain AND, which merges with its neighbours; PTX leaves open what `abs.bf16x2` makes of a NaN.
#[inline(always)]
pub const fn abs_bf16x2(x: u32) -> u32 {
    x & 0x7fff_7fff
}

/// Four bytes chosen from the eight of `b:a`.
///
/// Nibble i of `selector` names byte i of the result: 0 to 3 are the bytes of `a` from the lowest up,
/// 4 to 7 those of `b`; bit 3 of a nibble asks for the byte's sign bit eight times instead. PTX
/// `prmt.b32`, any target.
#[inline(always)]
pub fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    by_target! {
        gpu: ptx::prmt_b32(a, b, selector),
        cpu: twin::prmt(a, b, selector),
    }
}

/// The upper word of `hi:lo` shifted left by `shift` modulo 32.
///
/// PTX `shf.l.wrap.b32`, any target.
#[inline(always)]
pub fn funnel_shift_left(lo: u32, hi: u32, shift: u32) -> u32 {
    by_target! {
        gpu: ptx::shf_l_wrap_b32(lo, hi, shift),
        cpu: (twin::concat(hi, lo) << (shift & 31) >> 32) as u32,
    }
}

/// The lower word of `hi:lo` shifted right by `shift` modulo 32.
///
/// PTX `shf.r.wrap.b32`, any target.
#[inline(always)]
pub fn funnel_shift_right(lo: u32, hi: u32, shift: u32) -> u32 {
    by_target! {
        gpu: ptx::shf_r_wrap_b32(lo, hi, shift),
        cpu: (twin::concat(hi, lo) >> (shift & 31)) as u32,
    }
}
