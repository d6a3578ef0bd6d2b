//! The number formats, from their definitions: a code's value is looked up, and a value's code is
//! found by comparing it with the values that codes have.
//!
//! | Format | Layout | Values |
//! |---|---|---|
//! | E2M1 | sign, 2 exponent bits (bias 1), 1 mantissa bit | 0, 0.5, 1, 1.5, 2, 3, 4, 6; no NaN, no Inf |
//! | E4M3 | sign, 4 exponent bits (bias 7), 3 mantissa bits | 0 to 448 in 127 steps, NaN; no Inf |
//! | E8M0 | 8 exponent bits (bias 127) | 2^-127 to 2^127, NaN; no zero, no sign |

/// The E2M1 code that stands in for NaN, which the format does not have: +6.
pub const E2M1_NAN: u8 = 0x7;
/// The E4M3 code for NaN.
pub const E4M3_NAN: u8 = 0x7F;
/// The E8M0 code for NaN.
pub const E8M0_NAN: u8 = 0xFF;

/// Magnitudes of the E2M1 codes 0x0 to 0x7.
const E2M1_VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Magnitudes of the E4M3 codes 0x00 to 0x7E, in ascending order.
const E4M3_VALUES: [f32; 127] = {
    let mut values = [0.0; 127];
    let mut code = 0;
    while code < values.len() {
        let (exponent, mantissa) = (code as i32 / 8, code as i32 % 8);
        values[code] = if exponent == 0 {
            mantissa as f32 * power_of_two(-9)
        } else {
            (8 + mantissa) as f32 * power_of_two(exponent - 10)
        };
        code += 1;
    }
    values
};

/// Values of the E8M0 codes 0x00 to 0xFE, in ascending order. The first is an FP32 subnormal.
const E8M0_VALUES: [f32; 255] = {
    let mut values = [0.0; 255];
    let mut code = 0;
    while code < values.len() {
        values[code] = power_of_two(code as i32 - 127);
        code += 1;
    }
    values
};

/// 2^exponent, exactly; -149 <= exponent <= 127.
const fn power_of_two(exponent: i32) -> f32 {
    let mut value = 1.0;
    let mut step = 0;
    while step < exponent.abs() {
        value *= if exponent < 0 { 0.5 } else { 2.0 };
        step += 1;
    }
    value
}

/// Index of the value nearest to `magnitude`, the even index when two are equally near, the last
/// when `magnitude` is beyond it. `values` ascend from 0; `magnitude` is not NaN and not negative.
fn nearest(values: &[f32], magnitude: f32) -> u8 {
    let above = values.partition_point(|&value| value <= magnitude);
    let below = above - 1;
    if above == values.len() {
        return below as u8;
    }
    // Exact: neighbouring values differ by one unit in a mantissa of at most four bits.
    let midpoint = (values[below] + values[above]) / 2.0;
    let up = magnitude > midpoint || (magnitude == midpoint && below % 2 == 1);
    if up { above as u8 } else { below as u8 }
}

/// FP32 to E2M1: to nearest, ties to even, beyond 6 (Inf included) to 6. The sign is kept, on
/// results that round to zero too. NaN gives [`E2M1_NAN`] whatever its sign.
pub fn e2m1_encode(value: f32) -> u8 {
    if value.is_nan() {
        return E2M1_NAN;
    }
    let sign = if value.is_sign_negative() { 0x8 } else { 0x0 };
    sign | nearest(&E2M1_VALUES, value.abs())
}

/// The value of an E2M1 code, which is in the low four bits.
pub fn e2m1_decode(code: u8) -> f32 {
    let magnitude = E2M1_VALUES[usize::from(code & 0x7)];
    if code & 0x8 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// FP32 to E4M3: to nearest, ties to even, beyond 448 (Inf included) to 448. The sign is kept, on
/// results that round to zero too. NaN gives [`E4M3_NAN`] whatever its sign.
pub fn e4m3_encode(value: f32) -> u8 {
    if value.is_nan() {
        return E4M3_NAN;
    }
    let sign = if value.is_sign_negative() { 0x80 } else { 0x00 };
    sign | nearest(&E4M3_VALUES, value.abs())
}

/// The value of an E4M3 code; NaN for 0x7F and 0xFF.
pub fn e4m3_decode(code: u8) -> f32 {
    let magnitude = E4M3_VALUES
        .get(usize::from(code & 0x7F))
        .copied()
        .unwrap_or(f32::NAN);
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// FP32 to E8M0, towards +infinity: the least power of two that is not below the magnitude.
///
/// Zero gives 0x00, as does everything up to 2^-127. Finite values above 2^127 give 0xFE, although
/// that is below them. Inf and NaN give [`E8M0_NAN`]. The sign is ignored.
pub fn e8m0_encode_up(value: f32) -> u8 {
    if !value.is_finite() {
        return E8M0_NAN;
    }
    E8M0_VALUES
        .partition_point(|&power| power < value.abs())
        .min(0xFE) as u8
}

/// FP32 to E8M0, towards zero: the greatest power of two that is not above the magnitude, or 0x00
/// where there is none. Inf and NaN give [`E8M0_NAN`]. The sign is ignored.
pub fn e8m0_encode_down(value: f32) -> u8 {
    if !value.is_finite() {
        return E8M0_NAN;
    }
    E8M0_VALUES
        .partition_point(|&power| power <= value.abs())
        .saturating_sub(1) as u8
}

/// The value of an E8M0 code: 2^(code - 127), NaN for 0xFF. Code 0x00 is 2^-127, not zero.
pub fn e8m0_decode(code: u8) -> f32 {
    E8M0_VALUES
        .get(usize::from(code))
        .copied()
        .unwrap_or(f32::NAN)
}

/// BF16 to FP32, exactly: BF16 is FP32 without its lower 16 mantissa bits.
pub fn bf16_widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// FP16 (IEEE binary16: sign, 5 exponent bits with bias 15, 10 mantissa bits) to FP32, exactly.
pub fn f16_widen(bits: u16) -> f32 {
    let exponent = usize::from(bits >> 10 & 0x1F);
    let mantissa = f32::from(bits & 0x3FF);
    let magnitude = match exponent {
        0 => mantissa * E8M0_VALUES[127 - 24],
        31 if mantissa == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + mantissa) * E8M0_VALUES[127 - 25 + exponent],
    };
    if bits & 0x8000 == 0 {
        magnitude
    } else {
        -magnitude
    }
}
