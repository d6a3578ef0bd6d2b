//! What a caller chooses: the block-scaled format, the input's element type, and the policies for
//! rounding scales, for blocks too small to represent, and for NaN.
//!
//! Every choice prints as, and parses from, the lower-case name that the command line uses:
//!
//! ```
//! use tokenyard::options::{Format, ScaleRounding};
//!
//! assert_eq!("mxfp8".parse::<Format>()?, Format::Mxfp8);
//! assert_eq!(ScaleRounding::Even.to_string(), "even");
//! # Ok::<(), tokenyard::options::ParseOptionError>(())
//! ```

use std::fmt;
use std::str::FromStr;

/// A row's column count must be a multiple of this: eight elements are the unit in which kernels
/// load (16 bytes of BF16) and store (4 bytes of FP4), and at which a partial last block is masked.
pub const COLUMN_MULTIPLE: usize = 8;

/// A block-scaled output format: small elements that share one scale byte per block of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Format {
    /// E2M1 elements, 16 to a block, with an E4M3 block scale and an FP32 scale per tensor.
    Nvfp4,
    /// E2M1 elements, 32 to a block, with an E8M0 (power of two) block scale.
    Mxfp4,
    /// E4M3 elements, 32 to a block, with an E8M0 (power of two) block scale.
    Mxfp8,
}

impl Format {
    /// Every format, in documentation order.
    pub const ALL: [Format; 3] = [Format::Nvfp4, Format::Mxfp4, Format::Mxfp8];

    /// The lower-case name: `nvfp4`, `mxfp4` or `mxfp8`.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Nvfp4 => "nvfp4",
            Format::Mxfp4 => "mxfp4",
            Format::Mxfp8 => "mxfp8",
        }
    }

    /// Elements that share one scale byte (V): 16 for NVFP4, 32 for the MX formats.
    pub const fn block_size(self) -> usize {
        match self {
            Format::Nvfp4 => 16,
            Format::Mxfp4 | Format::Mxfp8 => 32,
        }
    }

    /// Columns that one 512-byte scale tile covers (T = 4V): 64 for NVFP4, 128 for the MX formats.
    pub const fn tile_columns(self) -> usize {
        4 * self.block_size()
    }

    /// Scale tiles side by side in a row of `columns` elements: Kt = ceil(columns / T).
    pub const fn column_tiles(self, columns: usize) -> usize {
        columns.div_ceil(self.tile_columns())
    }

    /// Bits of one element: 4 or 8.
    pub const fn element_bits(self) -> usize {
        match self {
            Format::Nvfp4 | Format::Mxfp4 => 4,
            Format::Mxfp8 => 8,
        }
    }

    /// Bytes of one quantized row. `columns` is even, as every multiple of [`COLUMN_MULTIPLE`] is.
    pub const fn bytes_per_row(self, columns: usize) -> usize {
        match self {
            Format::Nvfp4 | Format::Mxfp4 => columns / 2,
            Format::Mxfp8 => columns,
        }
    }

    /// Largest finite element magnitude: 6 for E2M1, 448 for E4M3.
    pub const fn element_max(self) -> f32 {
        match self {
            Format::Nvfp4 | Format::Mxfp4 => 6.0,
            Format::Mxfp8 => 448.0,
        }
    }

    /// Whether the per-expert factor `sf` takes part. MXFP8 ignores it.
    pub const fn uses_tensor_scale(self) -> bool {
        match self {
            Format::Nvfp4 | Format::Mxfp4 => true,
            Format::Mxfp8 => false,
        }
    }

    /// safetensors name of the element type: `U8` (two E2M1 codes to a byte) or `F8_E4M3`.
    pub const fn data_dtype(self) -> &'static str {
        match self {
            Format::Nvfp4 | Format::Mxfp4 => "U8",
            Format::Mxfp8 => "F8_E4M3",
        }
    }

    /// Name of the scale byte's encoding: `E4M3` or `E8M0`.
    pub const fn scale_encoding(self) -> &'static str {
        match self {
            Format::Nvfp4 => "E4M3",
            Format::Mxfp4 | Format::Mxfp8 => "E8M0",
        }
    }
}

/// Element type of the rows to be quantized. Values are widened to FP32 exactly before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum InputType {
    /// bfloat16: the upper half of an FP32.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl InputType {
    /// Every input type, in documentation order.
    pub const ALL: [InputType; 3] = [InputType::Bf16, InputType::F16, InputType::F32];

    /// The lower-case name: `bf16`, `f16` or `f32`. In upper case it is the safetensors name.
    pub const fn name(self) -> &'static str {
        match self {
            InputType::Bf16 => "bf16",
            InputType::F16 => "f16",
            InputType::F32 => "f32",
        }
    }

    /// Bytes of one element: 2 or 4.
    pub const fn bytes(self) -> usize {
        match self {
            InputType::Bf16 | InputType::F16 => 2,
            InputType::F32 => 4,
        }
    }
}

/// How an MX block's power-of-two scale is chosen from the block's largest magnitude (amax).
///
/// NVFP4 has no such choice: its E4M3 scale is rounded to nearest, ties to even, so with NVFP4 only
/// the default is accepted ([`QuantizeOptions::check`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ScaleRounding {
    /// The smallest power of two at or above amax / element max. No finite element is ever clipped.
    #[default]
    Rceil,
    /// OCP MX v1.0: 2^(floor(log2 amax) - emax). Elements between the largest code and the next
    /// power of two are clipped.
    Floor,
    /// As `Floor`, after rounding amax to the element's mantissa width, halves upwards.
    Even,
}

impl ScaleRounding {
    /// Every rounding, in documentation order.
    pub const ALL: [ScaleRounding; 3] = [
        ScaleRounding::Rceil,
        ScaleRounding::Floor,
        ScaleRounding::Even,
    ];

    /// The lower-case name: `rceil`, `floor` or `even`.
    pub const fn name(self) -> &'static str {
        match self {
            ScaleRounding::Rceil => "rceil",
            ScaleRounding::Floor => "floor",
            ScaleRounding::Even => "even",
        }
    }
}

/// What becomes of a block that is not zero, but whose scale byte is 0x00, the least the encoding has.
///
/// Either way the block decodes to zero or nearly zero; the difference is in the element codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeadBlocks {
    /// NVFP4 stores +0 elements. MX quantizes with the finite inverse scale 2^127, so that even
    /// BF16 subnormals survive and no zero element turns into NaN.
    #[default]
    Hardened,
    /// The literal arithmetic: an infinite inverse scale sends nonzero elements to the largest
    /// code and zero elements to the NaN code.
    Strict,
}

impl DeadBlocks {
    /// Every policy, in documentation order.
    pub const ALL: [DeadBlocks; 2] = [DeadBlocks::Hardened, DeadBlocks::Strict];

    /// The lower-case name: `hardened` or `strict`.
    pub const fn name(self) -> &'static str {
        match self {
            DeadBlocks::Hardened => "hardened",
            DeadBlocks::Strict => "strict",
        }
    }
}

/// What a NaN element does to the other elements of its block.
///
/// Under both policies the NaN element itself becomes E4M3's NaN (0x7F) or, as E2M1 has none, +6 (0x7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NanPolicy {
    /// amax is taken over the elements that are numbers; only a block of nothing but NaN gets a NaN scale.
    #[default]
    Ignore,
    /// One NaN gives the block a NaN scale, so that all of it decodes to NaN.
    Propagate,
}

impl NanPolicy {
    /// Every policy, in documentation order.
    pub const ALL: [NanPolicy; 2] = [NanPolicy::Ignore, NanPolicy::Propagate];

    /// The lower-case name: `ignore` or `propagate`.
    pub const fn name(self) -> &'static str {
        match self {
            NanPolicy::Ignore => "ignore",
            NanPolicy::Propagate => "propagate",
        }
    }
}

/// The three policies of a quantization. `QuantizeOptions::default()` is what most callers want.
///
/// Infinity needs no policy. In NVFP4 its block has the largest scale, 448, and it becomes ±6; in the
/// MX formats its block has a NaN scale and NaN codes (0x7F in MXFP8; 0x7, which reads as 6, in MXFP4,
/// where the scale is what says NaN).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QuantizeOptions {
    /// How an MX scale is chosen from amax.
    pub scale_rounding: ScaleRounding,
    /// What becomes of blocks below the format's range.
    pub dead_blocks: DeadBlocks,
    /// What a NaN element does to its block.
    pub nan_policy: NanPolicy,
}

impl QuantizeOptions {
    /// Says whether these options have a meaning for `format`.
    ///
    /// # Errors
    /// [`UnsupportedRounding`] for NVFP4 with any other scale rounding than the default.
    pub fn check(&self, format: Format) -> Result<(), UnsupportedRounding> {
        match (format, self.scale_rounding) {
            (Format::Nvfp4, rounding @ (ScaleRounding::Floor | ScaleRounding::Even)) => {
                Err(UnsupportedRounding { format, rounding })
            }
            _ => Ok(()),
        }
    }
}

/// A scale rounding that the format does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "scale rounding {rounding} is for power-of-two scales; {format} always rounds its {} scale to nearest even",
    format.scale_encoding()
)]
pub struct UnsupportedRounding {
    /// The format asked for.
    pub format: Format,
    /// The rounding asked for.
    pub rounding: ScaleRounding,
}

/// A text that names none of an option's values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a {option}; choose one of: {}", accepted.join(", "))]
pub struct ParseOptionError {
    /// Which option was being read, in words.
    pub option: &'static str,
    /// The text that was given.
    pub given: String,
    /// The names that would have been understood.
    pub accepted: Vec<&'static str>,
}

/// The value whose name is `given`, in whatever case.
pub(crate) fn parse<T: Copy>(
    option: &'static str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    given: &str,
) -> Result<T, ParseOptionError> {
    all.iter()
        .copied()
        .find(|&value| name(value).eq_ignore_ascii_case(given))
        .ok_or_else(|| ParseOptionError {
            option,
            given: given.to_owned(),
            accepted: all.iter().copied().map(name).collect(),
        })
}

impl FromStr for Format {
    type Err = ParseOptionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse("format", &Self::ALL, Self::name, text)
    }
}

impl FromStr for InputType {
    type Err = ParseOptionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse("input type", &Self::ALL, Self::name, text)
    }
}

impl FromStr for ScaleRounding {
    type Err = ParseOptionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse("scale rounding", &Self::ALL, Self::name, text)
    }
}

impl FromStr for DeadBlocks {
    type Err = ParseOptionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse("dead-block policy", &Self::ALL, Self::name, text)
    }
}

impl FromStr for NanPolicy {
    type Err = ParseOptionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse("NaN policy", &Self::ALL, Self::name, text)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for InputType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ScaleRounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for DeadBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for NanPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_ignore_case() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
            assert_eq!(format.name().to_uppercase().parse(), Ok(format));
        }
        for input in InputType::ALL {
            assert_eq!(input.to_string().parse(), Ok(input));
        }
        for rounding in ScaleRounding::ALL {
            assert_eq!(rounding.to_string().parse(), Ok(rounding));
        }
        for policy in DeadBlocks::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for policy in NanPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(format!("{:>7}|", Format::Nvfp4), "  nvfp4|");
    }

    #[test]
    fn unknown_names_say_what_would_do() {
        let error = "fp4".parse::<Format>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"fp4\" is not a format; choose one of: nvfp4, mxfp4, mxfp8"
        );
    }

    #[test]
    fn nvfp4_has_one_scale_rounding() {
        for rounding in ScaleRounding::ALL {
            let options = QuantizeOptions {
                scale_rounding: rounding,
                ..Default::default()
            };
            assert_eq!(
                options.check(Format::Nvfp4).is_ok(),
                rounding == ScaleRounding::Rceil
            );
            assert!(options.check(Format::Mxfp4).is_ok());
            assert!(options.check(Format::Mxfp8).is_ok());
        }
    }
}
