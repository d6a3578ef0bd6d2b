//! Packed arithmetic, reciprocals, byte permutes.

use cuda_std::math::*;
use cuda_std::prelude::*;

use super::results::Results;

/// Words per thread of [`arithmetic`].
pub const ARITHMETIC: usize = 17;

/// Every function of `math`, on three consecutive words of input per thread.
///
/// # Safety
///
/// `out` has room for [`ARITHMETIC`] words per thread.
#[kernel]
pub unsafe fn arithmetic(input: &[u32], out: *mut u32) {
    let i = 3 * thread::index_1d() as usize;
    if i + 2 >= input.len() {
        return;
    }
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, ARITHMETIC) };
    let (a, b, c) = (input[i], input[i + 1], input[i + 2]);
    let float = f32::from_bits;
    results.push(rcp_rn_ftz(float(a)).to_bits());
    results.push(fma(float(a), float(b), float(c)).to_bits());
    results.push(add_f16x2(a, b));
    results.push(mul_f16x2(a, b));
    results.push(fma_f16x2(a, b, c));
    results.push(min_f16x2(a, b));
    results.push(max_f16x2(a, b));
    results.push(max_bf16x2(a, b));
    results.push(max_nan_bf16x2(a, b));
    results.push(abs_bf16x2(a));
    results.push(prmt(a, b, c));
    results.push(funnel_shift_left(a, b, c));
    results.push(funnel_shift_right(a, b, c));
    results.push(fma_bf16x2(a, b, c));
    results.push(min_bf16x2(a, b));
    let product = mul_wide(a, b);
    results.push(product as u32);
    results.push((product >> 32) as u32);
}
