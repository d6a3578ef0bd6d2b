//! The arithmetic on a CPU, with the device's rounding, flushing and NaNs.

use half::{bf16, f16};

const F32_NAN: f32 = f32::from_bits(0x7fff_ffff);
const HALF_NAN: u16 = 0x7fff;
pub const F16_INFINITY: u16 = 0x7c00;
pub const BF16_INFINITY: u16 = 0x7f80;

fn canonical(x: f32) -> f32 {
    if x.is_nan() { F32_NAN } else { x }
}

fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0f32.copysign(x)
    } else {
        x
    }
}

pub fn rcp_rn_ftz(x: f32) -> f32 {
    canonical(flush(1.0 / flush(x)))
}

pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    canonical(a.mul_add(b, c))
}

/// Applies `f` to both halves.
pub fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    let hi = f((a >> 16) as u16, (b >> 16) as u16);
    let lo = f(a as u16, b as u16);
    u32::from(hi) << 16 | u32::from(lo)
}

fn widen(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

fn round_f16(x: f32) -> u16 {
    if x.is_nan() {
        HALF_NAN
    } else {
        f16::from_f32(x).to_bits()
    }
}

// FP32 has more than twice the precision of FP16 plus two bits, so rounding twice is rounding once.
pub fn add_f16(a: u16, b: u16) -> u16 {
    round_f16(widen(a) + widen(b))
}

pub fn mul_f16(a: u16, b: u16) -> u16 {
    round_f16(widen(a) * widen(b))
}

pub fn fma_f16x2(a: u32, b: u32, c: u32) -> u32 {
    let hi = fma_f16((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
    let lo = fma_f16(a as u16, b as u16, c as u16);
    u32::from(hi) << 16 | u32::from(lo)
}

fn fma_f16(a: u16, b: u16, c: u16) -> u16 {
    let (a, b, c) = (widen(a), widen(b), widen(c));
    // Eleven bits each: the product is exact.
    let product = a * b;
    let sum = product + c;
    if sum.is_nan() || sum.is_infinite() || sum == 0.0 {
        return round_f16(sum);
    }
    // The exact sum may span more than FP32. Its error says on which side of `sum` it lies, and
    // making the last bit odd where it is not exact keeps that through the second rounding.
    let error = f64::from(product) + f64::from(c) - f64::from(sum);
    let bits = sum.to_bits();
    let odd = if error == 0.0 || bits & 1 == 1 {
        bits
    } else if (error > 0.0) == (sum > 0.0) {
        bits + 1
    } else {
        bits - 1
    };
    round_f16(f32::from_bits(odd))
}

pub fn fma_bf16x2(a: u32, b: u32, c: u32) -> u32 {
    let hi = fma_bf16((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
    let lo = fma_bf16(a as u16, b as u16, c as u16);
    u32::from(hi) << 16 | u32::from(lo)
}

fn fma_bf16(a: u16, b: u16, c: u16) -> u16 {
    let widen = |x| f64::from(bf16::from_bits(x).to_f32());
    let (a, b, c) = (widen(a), widen(b), widen(c));
    // Eight bits each, and FP64 has more range as well: the product is exact.
    let product = a * b;
    let sum = product + c;
    if sum.is_nan() {
        return HALF_NAN;
    }
    // Knuth's two-sum: what the rounding of `sum` left out, exactly.
    let from_c = sum - product;
    let error = (product - (sum - from_c)) + (c - from_c);
    let narrow = sum as f32;
    // BF16 keeps 16 bits fewer than FP32, so an FP32 that is odd where it is not exact rounds as the
    // exact sum does.
    let beyond = (sum - f64::from(narrow), error);
    let odd = match beyond {
        _ if narrow.is_infinite() || narrow.to_bits() & 1 == 1 => narrow,
        (0.0, 0.0) => narrow,
        (difference, error) => {
            let above = if difference == 0.0 { error } else { difference } > 0.0;
            if above {
                narrow.next_up()
            } else {
                narrow.next_down()
            }
        }
    };
    bf16::from_f32(odd).to_bits()
}

fn is_nan<const INFINITY: u16>(x: u16) -> bool {
    x & 0x7fff > INFINITY
}

/// Orders non-NaN halves as their values, with -0 below +0.
fn order(x: u16) -> i16 {
    let x = x as i16;
    if x < 0 { !(x & 0x7fff) } else { x }
}

/// `a` and `b` if both are numbers, otherwise the one that is.
fn numbers<const INFINITY: u16>(a: u16, b: u16) -> Result<(u16, u16), u16> {
    match (is_nan::<INFINITY>(a), is_nan::<INFINITY>(b)) {
        (false, false) => Ok((a, b)),
        (true, true) => Err(HALF_NAN),
        (true, false) => Err(b),
        (false, true) => Err(a),
    }
}

pub fn min_half<const INFINITY: u16>(a: u16, b: u16) -> u16 {
    match numbers::<INFINITY>(a, b) {
        Ok((a, b)) if order(b) < order(a) => b,
        Ok((a, _)) => a,
        Err(only) => only,
    }
}

pub fn max_half<const INFINITY: u16>(a: u16, b: u16) -> u16 {
    match numbers::<INFINITY>(a, b) {
        Ok((a, b)) if order(b) > order(a) => b,
        Ok((a, _)) => a,
        Err(only) => only,
    }
}

pub fn max_nan_half<const INFINITY: u16>(a: u16, b: u16) -> u16 {
    if is_nan::<INFINITY>(a) || is_nan::<INFINITY>(b) {
        HALF_NAN
    } else {
        max_half::<INFINITY>(a, b)
    }
}

pub fn concat(hi: u32, lo: u32) -> u64 {
    u64::from(hi) << 32 | u64::from(lo)
}

pub fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = concat(b, a).to_le_bytes();
    let pick = |i: u32| {
        let nibble = selector >> (4 * i);
        let byte = bytes[(nibble & 7) as usize];
        if nibble & 8 == 0 {
            byte
        } else {
            // The arithmetic shift spreads the sign bit.
            ((byte as i8) >> 7) as u8
        }
    };
    u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
}
