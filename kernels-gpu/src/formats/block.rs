//! The block formats: an element type, a scale type, a block size, and the arithmetic of a scale.

use super::{E2m1, E4m3, E8m0, ElementFormat, Multiplier, Rules};
use crate::scale_tile::TILE_BLOCKS;
use cuda_std::math;

/// The tensor-wise factor of an expert.
#[derive(Clone, Copy, Debug)]
pub struct TensorScale {
    /// Multiplies amax before the block scale is formed ("encode factor").
    encode: f32,
    /// Its reciprocal.
    decode: f32,
}

impl TensorScale {
    /// From the encode factor, which must be finite and above 0 to mean anything.
    #[inline(always)]
    pub fn new(encode: f32) -> Self {
        Self {
            encode,
            decode: math::rcp_rn_ftz(encode),
        }
    }
}

/// A block's scale as stored, and what it makes of the block's elements.
#[derive(Clone, Copy, Debug)]
pub struct BlockScale {
    /// The stored byte.
    pub code: u8,
    /// What elements are multiplied by.
    pub multiplier: Multiplier,
    /// Whether the elements are +0 whatever they were.
    pub dead: bool,
}

/// A block-scaled format.
pub trait BlockFormat {
    /// The element type.
    type Element: ElementFormat;

    /// Elements that share a scale.
    const BLOCK: u32;

    /// Columns that one scale tile covers.
    const TILE_COLUMNS: u32 = Self::BLOCK * TILE_BLOCKS;

    /// The scale of a block with largest magnitude `amax` (NaN if the block's scale must be NaN).
    ///
    /// A *dead* block is one whose scale rounds to code 0 although `amax` is not 0. Under
    /// [`DeadBlocks::Strict`](super::DeadBlocks::Strict) its reciprocal is infinite (but for MXFP4 with
    /// a small factor), and zeros in the block turn into NaN codes. Hardened, the elements of NVFP4
    /// become +0 (the block decodes to zero anyway), and those of the MX formats are scaled by the
    /// exact reciprocal of the stored scale, 2^127 (times the factor), so that even subnormals of BF16
    /// survive. Hardened reciprocals are also finite where an enormous factor would make them infinite.
    fn block_scale(amax: f32, tensor: TensorScale, rules: Rules) -> BlockScale;

    /// The value of a scale byte.
    fn scale_to_f32(code: u8) -> f32;

    /// Undoes the tensor-wise factor: `value / encode` where the format has one.
    fn undo_tensor_scale(value: f32, encode: f32) -> f32;
}

/// The reciprocal that multiplies the elements of an FP4 block with scale `scale`.
#[inline(always)]
fn fp4_reciprocal(scale: f32, amax: f32, tensor: TensorScale, rules: Rules) -> f32 {
    if amax == 0.0 {
        return 0.0;
    }
    let reciprocal = math::rcp_rn_ftz(scale * tensor.decode);
    if !rules.strict() && reciprocal == f32::INFINITY {
        // An enormous factor, whose reciprocal was flushed: the same without flushing, and finite.
        (1.0 / (scale * (1.0 / tensor.encode))).min(f32::MAX)
    } else {
        reciprocal
    }
}

/// The multiplier of a hardened MX block with scale code 0: `encode * 2^127`, kept finite.
#[inline(always)]
fn smallest_scale_reciprocal(encode: f32) -> f32 {
    (encode * E8m0::reciprocal(0)).min(f32::MAX)
}

/// NVFP4: E2M1 elements in blocks of 16, E4M3 scales, a tensor-wise f32 factor.
#[derive(Clone, Copy, Debug)]
pub struct NvFp4;

impl BlockFormat for NvFp4 {
    type Element = E2m1;
    const BLOCK: u32 = 16;

    #[inline(always)]
    fn block_scale(amax: f32, tensor: TensorScale, rules: Rules) -> BlockScale {
        // Codes of normal numbers below the largest one, which stands for everything above as well.
        const UNSATURATED_NORMALS: core::ops::RangeInclusive<u8> = 0x08..=0x7D;
        let code = E4m3::from_f32(tensor.encode * amax * (1.0 / E2m1::MAX));
        let reciprocal = fp4_reciprocal(E4m3::to_f32(code), amax, tensor, rules);
        BlockScale {
            code,
            // Rounding to three mantissa bits makes a scale at most 1/16 too small, so the largest
            // product is 6 / (1 - 1/16) = 6.4.
            multiplier: if UNSATURATED_NORMALS.contains(&code) && reciprocal <= f32::MAX {
                Multiplier::Below7(reciprocal)
            } else {
                Multiplier::Any(reciprocal)
            },
            dead: code == 0 && amax != 0.0 && !rules.strict(),
        }
    }

    #[inline(always)]
    fn scale_to_f32(code: u8) -> f32 {
        E4m3::to_f32(code)
    }

    #[inline(always)]
    fn undo_tensor_scale(value: f32, encode: f32) -> f32 {
        value / encode
    }
}

/// MXFP4: E2M1 elements in blocks of 32, E8M0 scales.
///
/// The tensor-wise factor is not part of OCP MX; pass 1 for plain MX.
#[derive(Clone, Copy, Debug)]
pub struct MxFp4;

impl BlockFormat for MxFp4 {
    type Element = E2m1;
    const BLOCK: u32 = 32;

    #[inline(always)]
    fn block_scale(amax: f32, tensor: TensorScale, rules: Rules) -> BlockScale {
        let code = E8m0::from_amax(
            tensor.encode * amax,
            rules.scale_rounding(),
            E2m1::MAX,
            E2m1::EMAX,
            E2m1::MANTISSA_BITS,
        );
        let multiplier = if tensor.encode == 1.0 {
            mx_multiplier(code, amax, rules)
        } else if code == 0 && amax != 0.0 && !rules.strict() {
            Multiplier::Any(smallest_scale_reciprocal(tensor.encode))
        } else {
            Multiplier::Any(fp4_reciprocal(E8m0::to_f32(code), amax, tensor, rules))
        };
        BlockScale {
            code,
            multiplier,
            dead: false,
        }
    }

    #[inline(always)]
    fn scale_to_f32(code: u8) -> f32 {
        E8m0::to_f32(code)
    }

    #[inline(always)]
    fn undo_tensor_scale(value: f32, encode: f32) -> f32 {
        value / encode
    }
}

/// MXFP8: E4M3 elements in blocks of 32, E8M0 scales. No tensor-wise factor.
#[derive(Clone, Copy, Debug)]
pub struct MxFp8;

impl BlockFormat for MxFp8 {
    type Element = E4m3;
    const BLOCK: u32 = 32;

    #[inline(always)]
    fn block_scale(amax: f32, _: TensorScale, rules: Rules) -> BlockScale {
        let code = E8m0::from_amax(
            amax,
            rules.scale_rounding(),
            E4m3::MAX,
            E4m3::EMAX,
            E4m3::MANTISSA_BITS,
        );
        BlockScale {
            code,
            multiplier: mx_multiplier(code, amax, rules),
            dead: false,
        }
    }

    #[inline(always)]
    fn scale_to_f32(code: u8) -> f32 {
        E8m0::to_f32(code)
    }

    #[inline(always)]
    fn undo_tensor_scale(value: f32, _: f32) -> f32 {
        value
    }
}

/// The multiplier of a power-of-two scale, without a tensor-wise factor.
#[inline(always)]
fn mx_multiplier(code: u8, amax: f32, rules: Rules) -> Multiplier {
    if amax == 0.0 {
        Multiplier::PowerOfTwo(0.0)
    } else if code == 0 && rules.strict() {
        // What a reciprocal that flushes subnormals makes of 2^-127. Zero times it is NaN.
        Multiplier::Any(f32::INFINITY)
    } else if code == E8m0::NAN {
        Multiplier::Any(f32::NAN)
    } else {
        Multiplier::PowerOfTwo(E8m0::reciprocal(code))
    }
}
