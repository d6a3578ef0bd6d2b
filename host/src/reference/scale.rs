//! From a block's largest magnitude to its scale byte, and from the byte to the factor that the
//! elements are multiplied by. All arithmetic is FP32, rounded to nearest even, one operation at a
//! time, subnormals kept except where [`reciprocal`] says otherwise.

use super::formats::{
    E8M0_NAN, e4m3_decode, e4m3_encode, e8m0_decode, e8m0_encode_down, e8m0_encode_up,
};
use crate::options::{DeadBlocks, Format, NanPolicy, ScaleRounding};

/// The largest magnitude of a block of up to `block_size` elements, 0 for an empty one.
///
/// NaN is passed over or, under [`NanPolicy::Propagate`], decides the result. A whole block of
/// nothing but NaN has amax NaN under either policy; the elements that a partial block lacks count
/// as zeros, so that it always holds a number.
pub fn amax(block: &[f32], block_size: usize, nan_policy: NanPolicy) -> f32 {
    let nans = block.iter().filter(|value| value.is_nan()).count();
    if nans == block_size || (nans > 0 && nan_policy == NanPolicy::Propagate) {
        return f32::NAN;
    }
    block
        .iter()
        .filter(|value| !value.is_nan())
        .fold(0.0, |amax, value| amax.max(value.abs()))
}

/// The scale byte for a block with this `amax`, in the format's scale encoding.
///
/// `sf` is the expert's tensor scale; MXFP8 ignores it. NVFP4 rounds to nearest even whatever
/// `rounding` says ([`QuantizeOptions::check`](crate::options::QuantizeOptions::check) refuses the
/// others).
pub fn scale_code(format: Format, rounding: ScaleRounding, amax: f32, sf: f32) -> u8 {
    match format {
        Format::Nvfp4 => e4m3_encode(sf * amax * (1.0 / 6.0)),
        Format::Mxfp4 => power_of_two_scale(rounding, sf * amax, &E2M1),
        Format::Mxfp8 => power_of_two_scale(rounding, amax, &E4M3),
    }
}

/// What an MX scale has to know of the element format.
struct Element {
    /// Largest finite value.
    max: f32,
    /// floor(log2(max)).
    max_exponent: u8,
    /// The significand from which rounding to the element's mantissa width, halves upwards, gives 2.
    carry: f64,
}

/// One mantissa bit: the significands are 1 and 1.5, so half way to 2 is 1.75.
const E2M1: Element = Element {
    max: 6.0,
    max_exponent: 2,
    carry: 1.75,
};
/// Three mantissa bits: the largest significand is 1.875, so half way to 2 is 1.9375.
const E4M3: Element = Element {
    max: 448.0,
    max_exponent: 8,
    carry: 1.9375,
};

/// The E8M0 scale for a block whose largest magnitude, tensor scale included, is `v`.
fn power_of_two_scale(rounding: ScaleRounding, v: f32, element: &Element) -> u8 {
    if !v.is_finite() {
        return E8M0_NAN;
    }
    match rounding {
        ScaleRounding::Rceil => e8m0_encode_up(v * (1.0 / element.max)),
        ScaleRounding::Floor => e8m0_encode_down(v).saturating_sub(element.max_exponent),
        ScaleRounding::Even => {
            let floor = e8m0_encode_down(v);
            let rounds_up = f64::from(v.abs()) >= element.carry * f64::from(e8m0_decode(floor));
            (floor + u8::from(rounds_up)).saturating_sub(element.max_exponent)
        }
    }
}

/// The value of a scale byte: f(code).
pub fn scale_value(format: Format, code: u8) -> f32 {
    match format {
        Format::Nvfp4 => e4m3_decode(code),
        Format::Mxfp4 | Format::Mxfp8 => e8m0_decode(code),
    }
}

/// 1/x, correctly rounded, except that a subnormal x counts as zero and a subnormal result becomes
/// zero, both with their sign: what PTX calls `rcp.rn.ftz.f32`.
pub fn reciprocal(x: f32) -> f32 {
    let flush = |value: f32| {
        if value.is_subnormal() {
            0.0_f32.copysign(value)
        } else {
            value
        }
    };
    flush(1.0 / flush(x))
}

/// The factor that a block's elements are multiplied by before they are rounded, or `None` for a
/// block that is stored as +0 elements whatever it holds.
///
/// `amax` and `code` belong together: `code` is what [`scale_code`] made of `amax` and `sf`.
pub fn inverse_scale(
    format: Format,
    dead_blocks: DeadBlocks,
    amax: f32,
    code: u8,
    sf: f32,
) -> Option<f32> {
    if amax == 0.0 {
        return Some(0.0);
    }
    let value = scale_value(format, code);
    let literal = match format {
        Format::Nvfp4 | Format::Mxfp4 => reciprocal(value * reciprocal(sf)),
        Format::Mxfp8 => reciprocal(value),
    };
    if dead_blocks == DeadBlocks::Strict {
        return Some(literal);
    }
    match format {
        Format::Nvfp4 if code == 0x00 => None,
        // Byte 0 is 2^-127, whose reciprocal is a finite number although the flushing one is not.
        Format::Mxfp4 if code == 0x00 => Some((sf * e8m0_decode(254)).min(f32::MAX)),
        Format::Mxfp8 if code == 0x00 => Some(e8m0_decode(254)),
        // A tensor scale so large that its reciprocal, or the product with it, is flushed: the same
        // without flushing, and finite.
        Format::Nvfp4 | Format::Mxfp4 if literal == f32::INFINITY => {
            Some((1.0 / (value * (1.0 / sf))).min(f32::MAX))
        }
        _ => Some(literal),
    }
}
