//! The formats that tokens travel in.

use crate::options::{ParseOptionError, parse};
use kernels_gpu::ep::{self as kernels, ScaleLayout, TokenFormat as _, WireFormat};
use std::fmt;
use std::str::FromStr;

/// What a token is quantized to before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TokenFormat {
    /// As it is: no scales.
    Bf16,
    /// E4M3 elements, an f32 scale for every 128: `max(amax, 1e-4) / 448`.
    Fp8Block128,
    /// E2M1 elements, an E4M3 scale for every 16, a factor for the whole tensor.
    Nvfp4,
    /// E2M1 elements, an E8M0 scale for every 32.
    Mxfp4,
    /// E4M3 elements, an E8M0 scale for every 32.
    Mxfp8,
}

impl TokenFormat {
    /// Every format, in documentation order.
    pub const ALL: [Self; 5] = [
        Self::Bf16,
        Self::Fp8Block128,
        Self::Nvfp4,
        Self::Mxfp4,
        Self::Mxfp8,
    ];

    /// The lower-case name: `bf16`, `fp8`, `nvfp4`, `mxfp4` or `mxfp8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8Block128 => "fp8",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
        }
    }

    pub(crate) const fn wire(self) -> WireFormat {
        match self {
            Self::Bf16 => kernels::Bf16::WIRE,
            Self::Fp8Block128 => kernels::Fp8Block128::WIRE,
            Self::Nvfp4 => kernels::Nvfp4::WIRE,
            Self::Mxfp4 => kernels::Mxfp4::WIRE,
            Self::Mxfp8 => kernels::Mxfp8::WIRE,
        }
    }

    pub(crate) const fn scale_layout(self) -> ScaleLayout {
        match self {
            Self::Bf16 => kernels::Bf16::SCALES,
            Self::Fp8Block128 => kernels::Fp8Block128::SCALES,
            Self::Nvfp4 => kernels::Nvfp4::SCALES,
            Self::Mxfp4 => kernels::Mxfp4::SCALES,
            Self::Mxfp8 => kernels::Mxfp8::SCALES,
        }
    }

    /// What the hidden size must be a multiple of: 8 for BF16, 128 for blockwise FP8, 32 for the others.
    pub const fn hidden_multiple(self) -> usize {
        self.wire().hidden_multiple as usize
    }

    /// Bytes of a quantized row of `hidden_size` elements, without its scales.
    pub const fn payload_bytes(self, hidden_size: usize) -> usize {
        hidden_size / 8 * self.wire().element_bits as usize
    }

    /// Block scales of a row of `hidden_size` elements.
    pub const fn scales_per_row(self, hidden_size: usize) -> usize {
        match self.wire().block {
            0 => 0,
            block => hidden_size / block as usize,
        }
    }

    /// Whether scales are powers of two, so that there is a choice of how to round them.
    pub const fn is_mx(self) -> bool {
        matches!(self, Self::Mxfp4 | Self::Mxfp8)
    }
}

impl fmt::Display for TokenFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for TokenFormat {
    type Err = ParseOptionError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        parse("token format", &Self::ALL, Self::name, given)
    }
}
