//! The functions of `GpuFloat`.

use cuda_std::GpuFloat;
use cuda_std::prelude::*;

use super::results::Results;

/// Values per thread of [`functions_f32`] and [`functions_f64`].
pub const FUNCTIONS: usize = 39;

/// Every method of `GpuFloat`, on two values of input per thread.
#[inline(always)]
fn functions<F: GpuFloat>(x: F, y: F) -> [F; FUNCTIONS] {
    let (sine, cosine) = GpuFloat::sin_cos(x);
    [
        GpuFloat::floor(x),
        GpuFloat::ceil(x),
        GpuFloat::round(x),
        GpuFloat::trunc(x),
        GpuFloat::fract(x),
        GpuFloat::abs(x),
        GpuFloat::signum(x),
        GpuFloat::copysign(x, y),
        GpuFloat::mul_add(x, y, x),
        GpuFloat::div_euclid(x, y),
        GpuFloat::rem_euclid(x, y),
        GpuFloat::powi(x, 5),
        GpuFloat::powf(x, y),
        GpuFloat::sqrt(x),
        GpuFloat::exp(x),
        GpuFloat::exp2(x),
        GpuFloat::ln(x),
        GpuFloat::log(x, y),
        GpuFloat::log2(x),
        GpuFloat::log10(x),
        GpuFloat::cbrt(x),
        GpuFloat::hypot(x, y),
        GpuFloat::sin(x),
        GpuFloat::cos(x),
        GpuFloat::tan(x),
        GpuFloat::asin(x),
        GpuFloat::acos(x),
        GpuFloat::atan(x),
        GpuFloat::atan2(x, y),
        sine,
        cosine,
        GpuFloat::exp_m1(x),
        GpuFloat::ln_1p(x),
        GpuFloat::sinh(x),
        GpuFloat::cosh(x),
        GpuFloat::tanh(x),
        GpuFloat::asinh(x),
        GpuFloat::acosh(x),
        GpuFloat::atanh(x),
    ]
}

/// [`functions`] of FP32, one word per value.
///
/// # Safety
///
/// `out` has room for [`FUNCTIONS`] words per thread.
#[kernel]
pub unsafe fn functions_f32(input: &[f32], out: *mut u32) {
    let i = 2 * thread::index_1d() as usize;
    if i + 1 >= input.len() {
        return;
    }
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, FUNCTIONS) };
    for value in functions(input[i], input[i + 1]) {
        results.push(value.to_bits());
    }
}

/// [`functions`] of FP64, two words per value.
///
/// # Safety
///
/// `out` has room for twice [`FUNCTIONS`] words per thread.
#[kernel]
pub unsafe fn functions_f64(input: &[f64], out: *mut u32) {
    let i = 2 * thread::index_1d() as usize;
    if i + 1 >= input.len() {
        return;
    }
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, 2 * FUNCTIONS) };
    for value in functions(input[i], input[i + 1]) {
        results.push_u64(value.to_bits());
    }
}
