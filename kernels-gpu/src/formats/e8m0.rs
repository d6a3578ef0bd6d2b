//! E8M0: a power of two, `2^(code - 127)`. No sign, no zero, no infinity; 0xFF is NaN.

use super::{Amax, CommonScale, ElementFormat, ScaleRounding};
use core::ops::RangeInclusive;
use cuda_std::{cfg, cvt};

/// The scale type of the MX formats.
#[derive(Clone, Copy, Debug)]
pub struct E8m0;

impl E8m0 {
    /// The code of NaN.
    pub const NAN: u8 = 0xFF;

    const EXPONENT: u32 = 0x7F80_0000;

    /// Rounds a non-negative value up to a power of two. Infinity and NaN give NaN.
    ///
    /// ```
    /// use kernels_gpu::formats::E8m0;
    /// assert_eq!(E8m0::round_up(1.0), 127);
    /// assert_eq!(E8m0::round_up(1.001), 128);
    /// assert_eq!(E8m0::round_up(f32::INFINITY), 0xFF);
    /// ```
    #[inline(always)]
    pub fn round_up(value: f32) -> u8 {
        let bits = value.to_bits();
        if bits & Self::EXPONENT == Self::EXPONENT {
            return Self::NAN;
        }
        if cfg::has_fp4_cvt() {
            return cvt::cvt_rp_satfinite_ue8m0x2_f32(0.0, value) as u8;
        }
        // A normal number goes up when any mantissa bit is set; a subnormal only above 2^-127,
        // since code 0 is 2^-127 itself. Both are "adding what is missing to the next exponent".
        let step = if bits > 0x0040_0000 { 0x007F_FFFF } else { 0 };
        // The largest code is 254: a value above 2^127 has nothing above it to go to.
        let code = (bits + step) >> 23;
        if code > 254 { 254 } else { code as u8 }
    }

    /// The scale code for a block of `E` whose largest magnitude is `amax`.
    #[inline(always)]
    pub fn from_amax<E: ElementFormat>(amax: f32, rounding: ScaleRounding) -> u8 {
        let bits = amax.to_bits();
        if bits & Self::EXPONENT == Self::EXPONENT {
            return Self::NAN;
        }
        let rounded = match rounding {
            // The reciprocal of 6 or 448 is itself rounded, and yet, for every 16-bit amax, the
            // code equals that of the exact quotient (checked exhaustively by the tests).
            ScaleRounding::Rceil => return Self::round_up(amax * (1.0 / E::MAX)),
            ScaleRounding::Floor => bits,
            // Half up: adding half of the last element bit carries into the exponent at a tie.
            ScaleRounding::Even => bits + half_of_last_bit::<E>(),
        };
        (rounded >> 23).saturating_sub(E::EMAX) as u8
    }

    /// The value of a code.
    ///
    /// ```
    /// use kernels_gpu::formats::E8m0;
    /// assert_eq!(E8m0::to_f32(0), 2f32.powi(-127));
    /// assert_eq!(E8m0::to_f32(254), 2f32.powi(127));
    /// assert!(E8m0::to_f32(255).is_nan());
    /// ```
    #[inline(always)]
    pub const fn to_f32(code: u8) -> f32 {
        match code {
            0 => f32::from_bits(0x0040_0000),
            Self::NAN => f32::NAN,
            _ => f32::from_bits((code as u32) << 23),
        }
    }

    /// `1 / value`, exactly, for codes 0 to 254; NaN for NaN.
    ///
    /// ```
    /// use kernels_gpu::formats::E8m0;
    /// assert_eq!(E8m0::reciprocal(0), 2f32.powi(127));
    /// assert_eq!(E8m0::reciprocal(254), 2f32.powi(-127));
    /// ```
    #[inline(always)]
    pub const fn reciprocal(code: u8) -> f32 {
        if code == Self::NAN {
            f32::NAN
        } else {
            Self::to_f32(254 - code)
        }
    }
}

/// Half of the last mantissa bit of `E`, in an `f32` of the same exponent.
const fn half_of_last_bit<E: ElementFormat>() -> u32 {
    1 << (22 - E::MANTISSA_BITS)
}

/// [`E8m0::from_amax`] where nothing special happens: all three roundings are then
/// `exponent(bits(amax * factor) + bias) - offset`, three instructions.
#[derive(Clone, Copy, Debug)]
pub struct PowerOfTwoScales {
    factor: f32,
    bias: u32,
    offset: u32,
}

impl PowerOfTwoScales {
    /// No block is a common one: NaN has no common exponent.
    pub const NEVER: Self = Self {
        factor: f32::NAN,
        bias: 0,
        offset: 0,
    };

    /// For blocks of `E`.
    #[inline(always)]
    pub const fn new<E: ElementFormat>(rounding: ScaleRounding) -> Self {
        let (factor, bias, offset) = match rounding {
            // All that is missing to the next exponent, so that any mantissa bit carries.
            ScaleRounding::Rceil => (1.0 / E::MAX, 0x007F_FFFF, 0),
            ScaleRounding::Floor => (1.0, 0, E::EMAX),
            ScaleRounding::Even => (1.0, half_of_last_bit::<E>(), E::EMAX),
        };
        Self {
            factor,
            bias,
            offset,
        }
    }

    /// Codes at which the three instructions are right: from below, quotients are normal numbers;
    /// from above, infinity and NaN, whose exponent is 255, are out even after `EMAX` was subtracted.
    pub const fn common_codes<E: ElementFormat>() -> RangeInclusive<u32> {
        2..=254 - E::EMAX
    }

    /// The scale of a block, common if it is zero or its code is one of `codes`.
    #[inline(always)]
    pub fn common_scale(self, amax: Amax, codes: RangeInclusive<u32>) -> CommonScale {
        let zero = amax == Amax::ZERO && !self.factor.is_nan();
        let bits = (amax.to_f32() * self.factor).to_bits();
        let code = (bits.wrapping_add(self.bias) >> 23).wrapping_sub(self.offset);
        // Zeros stay zeros under any factor.
        let reciprocal = if zero {
            1.0
        } else {
            f32::from_bits(254u32.wrapping_sub(code) << 23)
        };
        CommonScale {
            common: zero || codes.contains(&code),
            finite: false,
            dead: false,
            code: if zero { 0 } else { code as u8 },
            factor: reciprocal,
        }
    }
}
