//! The block formats: an element type, a scale type, a block size, and the arithmetic of a scale.

use super::{
    Amax, E2m1, E4m3, E8m0, ElementFormat, InputFormat, Multiplier, PowerOfTwoScales, Rules,
};
use crate::scale_tile::TILE_BLOCKS;
use cuda_std::math;
use cuda_std::view::SharedView;

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
    pub factor: f32,
    /// Whether the elements are +0 whatever they were.
    pub dead: bool,
}

/// A block's scale in the common case, which takes few instructions to recognise and to compute.
///
/// If neither `common` nor `finite` is set, the rest means nothing, and
/// [`BlockFormat::block_scale`] has the answer.
#[derive(Clone, Copy, Debug)]
pub struct CommonScale {
    /// [`BlockFormat::multiplier`] says how to multiply the elements.
    pub common: bool,
    /// Elements are +0 if the block is `dead`, and otherwise [`Multiplier::Number`] does for them. Only where the format
    /// [`SATURATES`](BlockFormat::SATURATES); there it holds for common blocks as well, and does not depend on `common`,
    /// which would be kept for it through the common path.
    pub finite: bool,
    /// Whether the code is 0 and the largest magnitude is not. No common block is.
    pub dead: bool,
    /// The stored byte.
    pub code: u8,
    /// What elements are multiplied by.
    pub factor: f32,
}

/// A block-scaled format.
pub trait BlockFormat {
    /// What a thread block works out once for its expert, so that a common scale costs little.
    type Prepared: Copy;

    /// Whether there are blocks that are [`finite`](CommonScale::finite) and not common.
    const SATURATES: bool;

    /// Entries of a table in shared memory that the thread block fills once for its expert.
    const TABLE: usize;

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

    /// Entry `index` (below [`TABLE`](Self::TABLE)) of the table.
    fn table_entry(index: u32, tensor: TensorScale, rules: Rules) -> f32;

    /// Works out what [`common_scale`](Self::common_scale) needs.
    fn prepare(tensor: TensorScale, rules: Rules) -> Self::Prepared;

    /// The scale of a block, if it is a common one: of zeros, or of numbers of no extreme magnitude.
    /// What it says is what [`block_scale`](Self::block_scale) would say.
    fn common_scale<I: InputFormat>(
        amax: Amax,
        prepared: Self::Prepared,
        table: SharedView<f32>,
    ) -> CommonScale;

    /// What is known of the elements of a common block.
    fn multiplier(factor: f32) -> Multiplier;

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

/// The factor of a hardened MX block with scale code 0: `encode * 2^127`, kept finite.
#[inline(always)]
fn smallest_scale_reciprocal(encode: f32) -> f32 {
    (encode * E8m0::reciprocal(0)).min(f32::MAX)
}

/// NVFP4: E2M1 elements in blocks of 16, E4M3 scales, a tensor-wise f32 factor.
#[derive(Clone, Copy, Debug)]
pub struct NvFp4;

impl NvFp4 {
    /// Scale codes that keep products below 7: rounding makes those scales at most 1/8 too small (half
    /// of the last bit of the subnormal 4 * 2^-9), which makes the largest product 6 * (1 + 1/8) = 6.75
    /// at most. The largest code is not among them, as it stands for everything above it as well.
    const BELOW_7: core::ops::RangeInclusive<u32> = 0x04..=0x7D;

    /// What is rounded to the scale.
    #[inline(always)]
    fn scaled_amax(amax: f32, encode: f32) -> f32 {
        encode * amax * (1.0 / E2m1::MAX)
    }
}

/// What a thread block of NVFP4 works out for its expert.
#[derive(Clone, Copy, Debug)]
pub struct NvFp4Prepared {
    encode: f32,
    strict: bool,
}

impl BlockFormat for NvFp4 {
    type Prepared = NvFp4Prepared;
    type Element = E2m1;
    const BLOCK: u32 = 16;
    const SATURATES: bool = true;
    const TABLE: usize = 256;

    #[inline(always)]
    fn block_scale(amax: f32, tensor: TensorScale, rules: Rules) -> BlockScale {
        let code = E4m3::from_f32(Self::scaled_amax(amax, tensor.encode));
        let reciprocal = fp4_reciprocal(E4m3::to_f32(code), amax, tensor, rules);
        BlockScale {
            code,
            factor: reciprocal,
            dead: code == 0 && amax != 0.0 && !rules.strict(),
        }
    }

    /// The reciprocal for scale code `index`: negative where the block is saturating, NaN where products
    /// could be NaN.
    #[inline(always)]
    fn table_entry(index: u32, tensor: TensorScale, rules: Rules) -> f32 {
        let any_amax = f32::MAX;
        let reciprocal = fp4_reciprocal(E4m3::to_f32(index as u8), any_amax, tensor, rules);
        let usable = reciprocal > 0.0 && reciprocal <= f32::MAX;
        match index {
            0 => 0.0,
            _ if usable && Self::BELOW_7.contains(&index) => reciprocal,
            // The largest code. Those above are NaN or negative and come of factors without meaning.
            _ if usable && index <= 0x7E => -reciprocal,
            _ => f32::NAN,
        }
    }

    #[inline(always)]
    fn prepare(tensor: TensorScale, rules: Rules) -> NvFp4Prepared {
        NvFp4Prepared {
            encode: tensor.encode,
            strict: rules.strict(),
        }
    }

    #[inline(always)]
    fn common_scale<I: InputFormat>(
        amax: Amax,
        prepared: NvFp4Prepared,
        table: SharedView<f32>,
    ) -> CommonScale {
        let code = E4m3::word_from_f32(Self::scaled_amax(amax.to_f32(), prepared.encode));
        let entry = table.load(code as usize);
        let dead = code == 0 && amax != Amax::ZERO;
        CommonScale {
            common: entry >= 0.0 && !dead,
            finite: !entry.is_nan() && !(dead && prepared.strict),
            dead,
            code: code as u8,
            factor: entry.abs(),
        }
    }

    #[inline(always)]
    fn multiplier(factor: f32) -> Multiplier {
        Multiplier::Below7(factor)
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
    type Prepared = PowerOfTwoScales;
    type Element = E2m1;
    const BLOCK: u32 = 32;
    const SATURATES: bool = false;
    const TABLE: usize = 0;

    #[inline(always)]
    fn block_scale(amax: f32, tensor: TensorScale, rules: Rules) -> BlockScale {
        let code = E8m0::from_amax::<E2m1>(tensor.encode * amax, rules.scale_rounding());
        let factor = if tensor.encode == 1.0 {
            mx_factor(code, amax, rules)
        } else if code == 0 && amax != 0.0 && !rules.strict() {
            smallest_scale_reciprocal(tensor.encode)
        } else {
            fp4_reciprocal(E8m0::to_f32(code), amax, tensor, rules)
        };
        BlockScale {
            code,
            factor,
            dead: false,
        }
    }

    #[inline(always)]
    fn table_entry(_: u32, _: TensorScale, _: Rules) -> f32 {
        0.0
    }

    #[inline(always)]
    fn prepare(tensor: TensorScale, rules: Rules) -> PowerOfTwoScales {
        if tensor.encode == 1.0 {
            PowerOfTwoScales::new::<E2m1>(rules.scale_rounding())
        } else {
            PowerOfTwoScales::NEVER
        }
    }

    #[inline(always)]
    fn common_scale<I: InputFormat>(
        amax: Amax,
        scales: PowerOfTwoScales,
        _: SharedView<f32>,
    ) -> CommonScale {
        scales.common_scale(amax, I::MXFP4_CODES)
    }

    #[inline(always)]
    fn multiplier(factor: f32) -> Multiplier {
        Multiplier::PowerOfTwo(factor)
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
    type Prepared = PowerOfTwoScales;
    type Element = E4m3;
    const BLOCK: u32 = 32;
    const SATURATES: bool = false;
    const TABLE: usize = 0;

    #[inline(always)]
    fn block_scale(amax: f32, _: TensorScale, rules: Rules) -> BlockScale {
        let code = E8m0::from_amax::<E4m3>(amax, rules.scale_rounding());
        BlockScale {
            code,
            factor: mx_factor(code, amax, rules),
            dead: false,
        }
    }

    #[inline(always)]
    fn table_entry(_: u32, _: TensorScale, _: Rules) -> f32 {
        0.0
    }

    #[inline(always)]
    fn prepare(_: TensorScale, rules: Rules) -> PowerOfTwoScales {
        PowerOfTwoScales::new::<E4m3>(rules.scale_rounding())
    }

    #[inline(always)]
    fn common_scale<I: InputFormat>(
        amax: Amax,
        scales: PowerOfTwoScales,
        _: SharedView<f32>,
    ) -> CommonScale {
        scales.common_scale(amax, PowerOfTwoScales::common_codes::<E4m3>())
    }

    #[inline(always)]
    fn multiplier(factor: f32) -> Multiplier {
        Multiplier::PowerOfTwo(factor)
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

/// What elements are multiplied by for a power-of-two scale, without a tensor-wise factor.
#[inline(always)]
fn mx_factor(code: u8, amax: f32, rules: Rules) -> f32 {
    if amax == 0.0 {
        0.0
    } else if code == 0 && rules.strict() {
        // What a reciprocal that flushes subnormals makes of 2^-127. Zero times it is NaN.
        f32::INFINITY
    } else {
        // NaN for the scale NaN, which infinities have too.
        E8m0::reciprocal(code)
    }
}
