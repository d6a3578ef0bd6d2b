//! The exponential function.
//!
//! That of `libm` signals floating-point exceptions by writing to memory, which on a GPU would be local memory; the
//! hardware's is approximate and not the emulator's. This one has neither flaw, at the price of an ulp.

use cuda_std::math::fma;

/// 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts, the first with 10 bits, so that its products with exponents are exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `e^x`, within 2 ulp; infinite above 88.73, subnormal below -87.34, and 0 below -104.
///
/// `x = n ln 2 + r`, with `r` within half of `ln 2`, and `e^r` by the polynomial of the Cephes library's `expf`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Comparisons rather than `clamp`: a NaN stays one.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let rounded = fma(x, core::f32::consts::LOG2_E, ROUNDER);
    let n = rounded - ROUNDER;
    let r = fma(n, -LN_2_LOW, fma(n, -LN_2_HIGH, x));
    let mut sum = 1.987_569_1e-4;
    sum = fma(sum, r, 1.398_199_9e-3);
    sum = fma(sum, r, 8.333_452e-3);
    sum = fma(sum, r, 4.166_579_6e-2);
    sum = fma(sum, r, 1.666_666_5e-1);
    sum = fma(sum, r, 0.5);
    sum = fma(sum * r, r, r) + 1.0;
    // 2^n need not be a normal number, but the powers of either half of n are.
    let exponent = rounded.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
    let half = exponent >> 1;
    sum * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

/// `2^exponent`, for the exponents of normal numbers; any number for others, which only a NaN leads to.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::exp;

    #[test]
    fn is_within_two_ulp() {
        let mut x = -87.3_f32;
        while x < 88.7 {
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(
                error <= 2.0 / f64::from(1 << 23),
                "e^{x} is off by {error:e}"
            );
            x += 1.0 / 1024.0 + x.abs() * 1e-5;
        }
    }

    #[test]
    fn ends_where_f32_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-104.0), 0.0);
        assert!(exp(-103.0) > 0.0);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
