//! Conversions to and from narrow floats.

use cuda_std::prelude::*;
use cuda_std::{cfg, cvt::*};

use super::results::Results;

/// Words per thread of [`conversions`].
pub const CONVERSIONS: usize = 10;

/// Converts a word of input as FP32, or its low bytes as narrow floats. Conversions that the device
/// does not have report 0.
///
/// # Safety
///
/// `out` has room for [`CONVERSIONS`] words per thread.
#[kernel]
pub unsafe fn conversions(input: &[u32], out: *mut u32) {
    let i = thread::index_1d() as usize;
    if i >= input.len() {
        return;
    }
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, CONVERSIONS) };
    let bits = input[i];
    // Two different values, so that exchanged halves show.
    let (hi, lo) = (f32::from_bits(bits), f32::from_bits(bits ^ 0x8000_0001));

    results.push(cvt_rn_f16x2_f32(hi, lo));
    results.push(cvt_rz_f16x2_f32(hi, lo));
    results.push(cvt_rn_bf16x2_f32(hi, lo));
    results.push(cvt_f32_f16(bits as u16).to_bits());
    if cfg::has_e4m3_cvt() {
        results.push(u32::from(cvt_rn_satfinite_e4m3x2_f32(hi, lo)));
        results.push(cvt_rn_f16x2_e4m3x2(bits as u16));
    } else {
        results.push(0);
        results.push(0);
    }
    if cfg::has_fp4_cvt() {
        let e2m1 = cvt_rn_satfinite_e2m1x2_f32(hi, lo);
        let up = cvt_rp_satfinite_ue8m0x2_f32(hi, lo);
        let down = cvt_rz_satfinite_ue8m0x2_f32(hi, lo);
        results.push(u32::from(e2m1));
        results.push(u32::from(up) << 16 | u32::from(down));
        results.push(cvt_rn_f16x2_e2m1x2(bits as u8));
        results.push(cvt_rn_bf16x2_ue8m0x2(bits as u16));
    } else {
        for _ in 0..4 {
            results.push(0);
        }
    }
}
