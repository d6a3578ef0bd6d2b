//! Conversions between FP32 and the narrow formats E4M3, E2M1, UE8M0, FP16 and BF16.
//!
//! Names are the PTX mnemonics: `cvt_rn_satfinite_e4m3x2_f32` is `cvt.rn.satfinite.e4m3x2.f32`. Pairs
//! are packed as PTX packs them, the first argument in the upper half; parameters are called `hi` and
//! `lo` to say so. Each conversion concerns one thread and has no effect but its result.
//!
//! NaN results are canonical: `0x7f` in E4M3, `0x7` in E2M1, `0xff` in UE8M0, `0x7fff` in FP16 and
//! BF16, `0x7fff_ffff` in FP32; a NaN's sign and payload are lost.

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;

#[cfg(not(target_arch = "nvptx64"))]
mod twin;

/// Asks for the capability, then converts with the twin.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! emulated {
    ($has:ident, $instruction:literal, $result:expr) => {{
        crate::cfg::require(crate::cfg::$has, $instruction);
        $result
    }};
}

/// Two FP32 to E4M3, to nearest even; magnitudes above 448 and infinities become ±448.
///
/// PTX `cvt.rn.satfinite.e4m3x2.f32`, compute capability 8.9, PTX 8.1
/// ([`has_e4m3_cvt`](crate::cfg::has_e4m3_cvt)).
#[inline(always)]
#[track_caller]
pub fn cvt_rn_satfinite_e4m3x2_f32(hi: f32, lo: f32) -> u16 {
    by_target! {
        gpu: ptx::cvt_rn_satfinite_e4m3x2_f32(hi, lo),
        cpu: emulated!(
            has_e4m3_cvt,
            "cvt.rn.satfinite.e4m3x2.f32",
            u16::from_le_bytes([twin::e4m3_from_f32(lo), twin::e4m3_from_f32(hi)])
        ),
    }
}

/// Two E4M3 to FP16, exactly.
///
/// PTX `cvt.rn.f16x2.e4m3x2`, compute capability 8.9, PTX 8.1
/// ([`has_e4m3_cvt`](crate::cfg::has_e4m3_cvt)).
#[inline(always)]
#[track_caller]
pub fn cvt_rn_f16x2_e4m3x2(pair: u16) -> u32 {
    by_target! {
        gpu: ptx::cvt_rn_f16x2_e4m3x2(pair),
        cpu: emulated!(has_e4m3_cvt, "cvt.rn.f16x2.e4m3x2", {
            let [lo, hi] = pair.to_le_bytes();
            twin::pack(twin::f16_from_e4m3(hi), twin::f16_from_e4m3(lo))
        }),
    }
}

/// Two FP32 to E2M1, to nearest even; magnitudes above 6 and infinities become ±6. `hi` is in bits
/// 4 to 7 of the result.
///
/// PTX `cvt.rn.satfinite.e2m1x2.f32`, compute capability 10.0a, PTX 8.6
/// ([`has_fp4_cvt`](crate::cfg::has_fp4_cvt)).
#[inline(always)]
#[track_caller]
pub fn cvt_rn_satfinite_e2m1x2_f32(hi: f32, lo: f32) -> u8 {
    by_target! {
        gpu: ptx::cvt_rn_satfinite_e2m1x2_f32(hi, lo) as u8,
        cpu: emulated!(
            has_fp4_cvt,
            "cvt.rn.satfinite.e2m1x2.f32",
            twin::e2m1_from_f32(hi) << 4 | twin::e2m1_from_f32(lo)
        ),
    }
}

/// Two E2M1, the upper one in bits 4 to 7, to FP16, exactly.
///
/// PTX `cvt.rn.f16x2.e2m1x2`, compute capability 10.0a, PTX 8.6
/// ([`has_fp4_cvt`](crate::cfg::has_fp4_cvt)).
#[inline(always)]
#[track_caller]
pub fn cvt_rn_f16x2_e2m1x2(pair: u8) -> u32 {
    by_target! {
        gpu: ptx::cvt_rn_f16x2_e2m1x2(u16::from(pair)),
        cpu: emulated!(
            has_fp4_cvt,
            "cvt.rn.f16x2.e2m1x2",
            twin::pack(twin::f16_from_e2m1(pair >> 4), twin::f16_from_e2m1(pair & 0xf))
        ),
    }
}

/// The magnitudes of two FP32 to UE8M0, upwards to a power of two.
///
/// Magnitudes up to 2^-127 become byte 0, above 2^127 and infinities byte 254.
///
/// PTX `cvt.rp.satfinite.ue8m0x2.f32`, compute capability 10.0a, PTX 8.6
/// ([`has_fp4_cvt`](crate::cfg::has_fp4_cvt)).
#[inline(always)]
#[track_caller]
pub fn cvt_rp_satfinite_ue8m0x2_f32(hi: f32, lo: f32) -> u16 {
    by_target! {
        gpu: ptx::cvt_rp_satfinite_ue8m0x2_f32(hi, lo),
        cpu: emulated!(
            has_fp4_cvt,
            "cvt.rp.satfinite.ue8m0x2.f32",
            u16::from_le_bytes([twin::ue8m0_up_from_f32(lo), twin::ue8m0_up_from_f32(hi)])
        ),
    }
}

/// The magnitudes of two FP32 to UE8M0, downwards to a power of two.
///
/// Magnitudes below 2^-126 become byte 0, infinities byte 254.
///
/// PTX `cvt.rz.satfinite.ue8m0x2.f32`, compute capability 10.0a, PTX 8.6
/// ([`has_fp4_cvt`](crate::cfg::has_fp4_cvt)).
#[inline(always)]
#[track_caller]
pub fn cvt_rz_satfinite_ue8m0x2_f32(hi: f32, lo: f32) -> u16 {
    by_target! {
        gpu: ptx::cvt_rz_satfinite_ue8m0x2_f32(hi, lo),
        cpu: emulated!(
            has_fp4_cvt,
            "cvt.rz.satfinite.ue8m0x2.f32",
            u16::from_le_bytes([twin::ue8m0_down_from_f32(lo), twin::ue8m0_down_from_f32(hi)])
        ),
    }
}

/// Two UE8M0 to BF16, exactly; byte 0 is the subnormal 2^-127.
///
/// PTX `cvt.rn.bf16x2.ue8m0x2`, compute capability 10.0a, PTX 8.6
/// ([`has_fp4_cvt`](crate::cfg::has_fp4_cvt)).
#[inline(always)]
#[track_caller]
pub fn cvt_rn_bf16x2_ue8m0x2(pair: u16) -> u32 {
    by_target! {
        gpu: ptx::cvt_rn_bf16x2_ue8m0x2(pair),
        cpu: emulated!(has_fp4_cvt, "cvt.rn.bf16x2.ue8m0x2", {
            let [lo, hi] = pair.to_le_bytes();
            twin::pack(twin::bf16_from_ue8m0(hi), twin::bf16_from_ue8m0(lo))
        }),
    }
}

/// Two FP32 to FP16, to nearest even; magnitudes of 65520 and above become infinite.
///
/// PTX `cvt.rn.f16x2.f32`, compute capability 8.0, PTX 7.0.
#[inline(always)]
pub fn cvt_rn_f16x2_f32(hi: f32, lo: f32) -> u32 {
    by_target! {
        gpu: ptx::cvt_rn_f16x2_f32(hi, lo),
        cpu: twin::pack(twin::f16_from_f32(hi), twin::f16_from_f32(lo)),
    }
}

/// Two FP32 to FP16, toward zero; finite values stay finite.
///
/// PTX `cvt.rz.f16x2.f32`, compute capability 8.0, PTX 7.0.
#[inline(always)]
pub fn cvt_rz_f16x2_f32(hi: f32, lo: f32) -> u32 {
    by_target! {
        gpu: ptx::cvt_rz_f16x2_f32(hi, lo),
        cpu: twin::pack(twin::f16_toward_zero_from_f32(hi), twin::f16_toward_zero_from_f32(lo)),
    }
}

/// Two FP32 to BF16, to nearest even.
///
/// PTX `cvt.rn.bf16x2.f32`, compute capability 8.0, PTX 7.0.
#[inline(always)]
pub fn cvt_rn_bf16x2_f32(hi: f32, lo: f32) -> u32 {
    by_target! {
        gpu: ptx::cvt_rn_bf16x2_f32(hi, lo),
        cpu: twin::pack(twin::bf16_from_f32(hi), twin::bf16_from_f32(lo)),
    }
}

/// One FP16 to FP32, exactly.
///
/// PTX `cvt.f32.f16`, any target.
#[inline(always)]
pub fn cvt_f32_f16(bits: u16) -> f32 {
    by_target! {
        gpu: ptx::cvt_f32_f16(bits),
        cpu: twin::f32_from_f16(bits),
    }
}
