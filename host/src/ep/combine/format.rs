//! The formats that rows travel home in.

use crate::options::{ParseOptionError, parse};
use kernels_gpu::ep::combine::{self as kernels, CombineFormat as _, QuantizedAs};
use std::fmt;
use std::str::FromStr;

/// What the rows that experts made travel home as, and what tokens are summed to.
///
/// Rows of the first three travel as they are. The other two are BF16 rows, quantized on their way and widened
/// before they are added: half, or a quarter, of the bytes, and an error that the sum inherits, weighted. Of a row's
/// element `x`, in a block whose largest magnitude is `m`, in a row whose largest is `r`, no more than this is lost:
///
/// | format | elements, block scales | error of an element at the most |
/// | --- | --- | --- |
/// | [`Mxfp8`](Self::Mxfp8) | E4M3, E8M0 for every 32, rounded up | `max(abs(x) / 16, m / 2^17)`, if `m` is at least 2^-118; otherwise `m`: the block becomes zeros |
/// | [`Nvfp4`](Self::Nvfp4) | E2M1, E4M3 for every 16, a power of two for the row | `0.18 m`, if `m` is at least `r / 2^13` and `r` at least 2^-110; otherwise `m` |
///
/// E4M3 rounds a normal number by 1/16 at the most, and its subnormal ones by 2^-10, where a block's largest is scaled
/// to more than 224. E2M1 rounds by 1 at the most, where a block's largest is scaled to 6, give or take the 1/16 by
/// which the scale is rounded. Infinities and NaN do not survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CombineFormat {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32: what is summed is not rounded once more.
    F32,
    /// BF16 rows, quantized to E4M3 with an E8M0 scale for every 32.
    Mxfp8,
    /// BF16 rows, quantized to E2M1 with an E4M3 scale for every 16 and a power of two for each row.
    Nvfp4,
}

/// The type of expert outputs and combined tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowElement {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl fmt::Display for RowElement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        })
    }
}

impl CombineFormat {
    /// Every format, in documentation order.
    pub const ALL: [Self; 5] = [Self::Bf16, Self::F16, Self::F32, Self::Mxfp8, Self::Nvfp4];

    /// The lower-case name: `bf16`, `f16`, `f32`, `mxfp8` or `nvfp4`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// The type of expert outputs and combined tokens.
    pub const fn element(self) -> RowElement {
        match self {
            Self::Bf16 | Self::Mxfp8 | Self::Nvfp4 => RowElement::Bf16,
            Self::F16 => RowElement::F16,
            Self::F32 => RowElement::F32,
        }
    }

    pub(in crate::ep) const fn quantized(self) -> Option<QuantizedAs> {
        match self {
            Self::Bf16 => kernels::Bf16::QUANTIZED,
            Self::F16 => kernels::F16::QUANTIZED,
            Self::F32 => kernels::F32::QUANTIZED,
            Self::Mxfp8 => kernels::Mxfp8::QUANTIZED,
            Self::Nvfp4 => kernels::Nvfp4::QUANTIZED,
        }
    }

    /// What the hidden size must be a multiple of: 8, or 32 where rows are quantized.
    pub const fn hidden_multiple(self) -> usize {
        match self.quantized() {
            None => 8,
            Some(quantized) => quantized.wire.hidden_multiple as usize,
        }
    }

    /// Bytes of a row of `hidden_size` elements on its way.
    pub fn row_bytes(self, hidden_size: usize) -> usize {
        let hidden = hidden_size as u32;
        let words = match self {
            Self::Bf16 => kernels::Bf16::row_words(hidden),
            Self::F16 => kernels::F16::row_words(hidden),
            Self::F32 => kernels::F32::row_words(hidden),
            Self::Mxfp8 => kernels::Mxfp8::row_words(hidden),
            Self::Nvfp4 => kernels::Nvfp4::row_words(hidden),
        };
        16 * words as usize
    }

    /// Dynamic shared memory of its kernels.
    pub(in crate::ep) const fn shared_bytes(self, hidden: u32) -> usize {
        match self {
            Self::Bf16 => kernels::shared_bytes::<kernels::Bf16>(hidden),
            Self::F16 => kernels::shared_bytes::<kernels::F16>(hidden),
            Self::F32 => kernels::shared_bytes::<kernels::F32>(hidden),
            Self::Mxfp8 => kernels::shared_bytes::<kernels::Mxfp8>(hidden),
            Self::Nvfp4 => kernels::shared_bytes::<kernels::Nvfp4>(hidden),
        }
    }
}

impl fmt::Display for CombineFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for CombineFormat {
    type Err = ParseOptionError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        parse("combine format", &Self::ALL, Self::name, given)
    }
}
