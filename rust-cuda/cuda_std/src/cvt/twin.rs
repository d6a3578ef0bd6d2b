//! The conversions in integer arithmetic.

use half::f16;

const F16_NAN: u16 = 0x7fff;

/// How a magnitude is rounded to fewer bits.
#[derive(Clone, Copy)]
enum Rounding {
    NearestEven,
    TowardZero,
}

/// The code, without sign, of a finite magnitude in a format with `mantissa` mantissa bits and the
/// given exponent bias, as if its exponent had no upper end.
///
/// A significand that rounds up to the next power of two carries into the exponent field by itself,
/// since the fields are adjacent; so do subnormals into the least normal number.
fn narrow(magnitude: u32, mantissa: u32, bias: i32, rounding: Rounding) -> u32 {
    let field = magnitude >> 23;
    let significand = magnitude & 0x7f_ffff | u32::from(field != 0) << 23;
    let exponent = field.max(1) as i32 - 127;
    let least_normal = 1 - bias;
    let below = (least_normal - exponent).max(0) as u32;
    // From 25 on all that matters is gone, and the shift would leave the word.
    let shift = (23 - mantissa + below).min(25);
    let kept = significand >> shift;
    let lost = significand & ((1 << shift) - 1);
    let half = 1 << (shift - 1);
    let round_up = match rounding {
        Rounding::NearestEven => lost > half || lost == half && kept & 1 == 1,
        Rounding::TowardZero => false,
    };
    let exponent_steps = (exponent.max(least_normal) - least_normal) as u32;
    (exponent_steps << mantissa) + kept + u32::from(round_up)
}

fn split(x: f32) -> (u32, u32) {
    (x.to_bits() >> 31, x.to_bits() & 0x7fff_ffff)
}

pub fn pack(hi: u16, lo: u16) -> u32 {
    u32::from(hi) << 16 | u32::from(lo)
}

pub fn e4m3_from_f32(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let (sign, magnitude) = split(x);
    let code = if x.is_infinite() {
        0x7e
    } else {
        narrow(magnitude, 3, 7, Rounding::NearestEven).min(0x7e)
    };
    (sign << 7 | code) as u8
}

pub fn f16_from_e4m3(code: u8) -> u16 {
    let (sign, magnitude) = (u16::from(code & 0x80) << 8, u16::from(code & 0x7f));
    match magnitude {
        0x7f => F16_NAN,
        // FP16 reaches far below E4M3's subnormals, m * 2^-9.
        0..8 => sign | f16::from_f32(f32::from(magnitude) / 512.0).to_bits(),
        // The biases are 7 and 15, the mantissas 3 and 10 bits.
        _ => sign | ((magnitude << 7) + ((15 - 7) << 10)),
    }
}

pub fn e2m1_from_f32(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7;
    }
    let (sign, magnitude) = split(x);
    let code = if x.is_infinite() {
        0x7
    } else {
        narrow(magnitude, 1, 1, Rounding::NearestEven).min(0x7)
    };
    (sign << 3 | code) as u8
}

pub fn f16_from_e2m1(code: u8) -> u16 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    u16::from(code & 0x8) << 12 | f16::from_f32(MAGNITUDES[usize::from(code & 0x7)]).to_bits()
}

pub fn ue8m0_up_from_f32(x: f32) -> u8 {
    let (field, mantissa) = exponent_and_mantissa(x);
    match field {
        0xff if mantissa != 0 => 0xff,
        0xff => 0xfe,
        // Subnormals: 2^-127 is mantissa 0x400000.
        0 => u8::from(mantissa > 0x40_0000),
        _ => (field + u32::from(mantissa != 0)).min(0xfe) as u8,
    }
}

pub fn ue8m0_down_from_f32(x: f32) -> u8 {
    let (field, mantissa) = exponent_and_mantissa(x);
    match field {
        0xff if mantissa != 0 => 0xff,
        0xff => 0xfe,
        _ => field as u8,
    }
}

fn exponent_and_mantissa(x: f32) -> (u32, u32) {
    let (_, magnitude) = split(x);
    (magnitude >> 23, magnitude & 0x7f_ffff)
}

pub fn bf16_from_ue8m0(byte: u8) -> u16 {
    match byte {
        0 => 0x0040,
        0xff => 0x7fff,
        _ => u16::from(byte) << 7,
    }
}

pub fn f16_from_f32(x: f32) -> u16 {
    f16_rounded(x, Rounding::NearestEven, 0x7c00)
}

pub fn f16_toward_zero_from_f32(x: f32) -> u16 {
    f16_rounded(x, Rounding::TowardZero, 0x7bff)
}

/// `overflow` is the code of finite values beyond the format's range.
fn f16_rounded(x: f32, rounding: Rounding, overflow: u32) -> u16 {
    if x.is_nan() {
        return F16_NAN;
    }
    let (sign, magnitude) = split(x);
    let code = if x.is_infinite() {
        0x7c00
    } else {
        narrow(magnitude, 10, 15, rounding).min(overflow)
    };
    (sign << 15 | code) as u16
}

pub fn bf16_from_f32(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    let bits = x.to_bits();
    let round_up = 0x7fff + (bits >> 16 & 1);
    ((bits + round_up) >> 16) as u16
}

pub fn f32_from_f16(bits: u16) -> f32 {
    let x = f16::from_bits(bits);
    if x.is_nan() {
        f32::from_bits(0x7fff_ffff)
    } else {
        x.to_f32()
    }
}
