//! The formats that tokens travel in: what each makes of a row of BF16, and how the block scales lie in the
//! receiver's tensor.
//!
//! A *run* is what a lane handles at once: 16 elements, two chunks. Neighbouring lanes share a block.
//!
//! Arithmetic is exact to the definition, with no approximate instruction: reciprocals of NVFP4 are
//! correctly rounded (`rcp.rn`), blockwise FP8 divides (`div.rn`), and the rest are powers of two. A NaN
//! does not count towards a block's largest magnitude, and becomes the element format's NaN (E4M3: 0x7F) or
//! its largest value (E2M1: 0x7); a block of nothing but NaN counts as one with a NaN amax.

use super::message::{MessageLayout, WireFormat};
use crate::WARP;
use crate::formats::{
    self, Amax, BlockFormat, BlockScale, CHUNK, E4m3, E8m0, ElementFormat, InputFormat, Multiplier,
    MxFp4, MxFp8, NvFp4, Rules, TensorScale,
};
use core::simd::u32x4;
use cuda_std::view::{IndirectView, SharedView};
use cuda_std::{thread, warp};

/// Elements of a run.
const RUN: u32 = 2 * CHUNK;

/// How the block scales of the rows that a rank gets lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleLayout {
    /// There are none.
    None,
    /// `[rows, H / 32]` bytes; or, if the shape has slot rows, [slots](super::output::slot_offset).
    Rows,
    /// `[H / 128, scale_stride]` of 32 bits: transposed. The rows of a group begin at a multiple of 4.
    Transposed,
    /// [Tiles](crate::scale_tile) of 128 rows. The rows of a group begin in a tile of their own, and rows
    /// that its last tile has beyond them are zero.
    Tiles,
}

impl ScaleLayout {
    /// What the rows of a group are rounded up to: transposed scales begin at 16 bytes then.
    #[inline(always)]
    pub const fn row_multiple(self) -> u32 {
        match self {
            Self::Transposed => 4,
            _ => 1,
        }
    }

    /// Whether the scales of several rows share a vector of 16 bytes, so that they are written for
    /// four rows at a time (`quads`).
    #[inline(always)]
    pub const fn is_shared_by_rows(self) -> bool {
        matches!(self, Self::Transposed | Self::Tiles)
    }
}

/// What a caller chooses about the arithmetic.
#[derive(Clone, Copy)]
pub struct Encoding {
    /// How power-of-two scales are rounded.
    pub rules: Rules,
    /// The factor of NVFP4; 1 for the other formats.
    pub tensor_scale: TensorScale,
}

/// A message under construction in shared memory.
#[derive(Clone, Copy)]
pub struct StagedMessage {
    base: *mut u8,
    layout: MessageLayout,
}

impl StagedMessage {
    /// # Safety
    ///
    /// `base` is `layout.bytes` bytes of the block's shared memory, aligned to 16.
    #[inline(always)]
    pub(super) unsafe fn new(base: *mut u8, layout: MessageLayout) -> Self {
        Self { base, layout }
    }

    /// Where it lies.
    #[inline(always)]
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.base
    }

    /// The part of `bytes` bytes from `offset` on, in units of `T`.
    #[inline(always)]
    pub(super) fn part<T: Copy>(&self, offset: u32, bytes: u32) -> SharedView<T> {
        let len = bytes as usize / size_of::<T>();
        // SAFETY: by the contract of `new`: parts of the layout lie inside the message, aligned to 16.
        unsafe { SharedView::new(self.base.add(offset as usize).cast(), len) }
    }

    /// Where its parts lie.
    #[inline(always)]
    pub(super) fn layout(&self) -> &MessageLayout {
        &self.layout
    }

    /// The whole message.
    #[inline(always)]
    pub(super) fn words(&self) -> SharedView<u32x4> {
        self.part(0, self.layout.bytes)
    }

    #[inline(always)]
    fn payload<T: Copy>(&self) -> SharedView<T> {
        self.part(0, self.layout.payload_bytes)
    }

    #[inline(always)]
    fn scales<T: Copy>(&self) -> SharedView<T> {
        self.part(self.layout.scales_offset, self.layout.scale_bytes)
    }
}

/// A format that tokens travel in.
pub trait TokenFormat {
    /// Its sizes.
    const WIRE: WireFormat;

    /// How its scales lie at the receiver.
    const SCALES: ScaleLayout;

    /// Writes payload and scales of a token into a message. All threads of the block call it together, with
    /// the same arguments.
    fn stage(token: IndirectView<u32x4>, hidden: u32, encoding: Encoding, message: StagedMessage);
}

/// The two chunks of a run, zeros where there is none.
#[inline(always)]
fn load_run(token: IndirectView<u32x4>, run: u32, exists: bool) -> (u32x4, u32x4) {
    if exists {
        let chunk = run as usize * 2;
        (token.load(chunk), token.load(chunk + 1))
    } else {
        (formats::Bf16::zeros(), formats::Bf16::zeros())
    }
}

/// The largest magnitude of a block of `LANES` runs, and whether this lane's run has a NaN.
///
/// Called by whole warps.
#[inline(always)]
fn block_amax<const LANES: u32>((first, second): (u32x4, u32x4)) -> (Amax, bool) {
    let mut amax = formats::Bf16::amax_or_nan(first, second);
    let has_nan = amax.is_nan();
    if has_nan {
        amax = formats::Bf16::amax_of_numbers(first).max(formats::Bf16::amax_of_numbers(second));
    }
    let mut distance = 1;
    while distance < LANES {
        // SAFETY: every lane of the warp is here: runs are handed out to whole warps.
        let (other, _) =
            unsafe { warp::warp_shuffle_xor(u32::MAX, amax.to_word(), distance, WARP) };
        amax = amax.max(Amax::from_word(other));
        distance *= 2;
    }
    (amax, has_nan)
}

/// Calls `f(run, exists, chunks)` for this thread's runs of a token, for whole warps, the last run rounded up.
///
/// Two runs are loaded before the first is worked on.
#[inline(always)]
fn for_each_run(
    token: IndirectView<u32x4>,
    hidden: u32,
    mut f: impl FnMut(u32, bool, (u32x4, u32x4)),
) {
    let runs = hidden / RUN;
    let rounded = runs.next_multiple_of(WARP);
    let mut run = thread::thread_idx_x();
    while run < rounded {
        let next = run + thread::block_dim_x();
        let this_run = load_run(token, run, run < runs);
        let next_run = load_run(token, next, next < runs);
        f(run, run < runs, this_run);
        if next < rounded {
            f(next, next < runs, next_run);
        }
        run = next + thread::block_dim_x();
    }
}

impl WireFormat {
    /// Rows of a block format with byte scales: whole blocks, and whole vectors of 16 bytes of elements.
    const fn of_blocks<F: BlockFormat>() -> Self {
        let element_bits = 8 * size_of::<<F::Element as ElementFormat>::Packed>() as u32 / CHUNK;
        let vector = 128 / element_bits;
        Self {
            element_bits,
            block: F::BLOCK,
            scale_bytes: 1,
            // Both are powers of two.
            hidden_multiple: if F::BLOCK > vector { F::BLOCK } else { vector },
        }
    }
}

/// [`TokenFormat::stage`] of a block format whose blocks are `LANES` runs. `amend` has the last word on the scale
/// of a block with a given amax.
#[inline(always)]
fn stage_blocks<F: BlockFormat, const LANES: u32>(
    token: IndirectView<u32x4>,
    hidden: u32,
    encoding: Encoding,
    message: StagedMessage,
    amend: impl Fn(BlockScale, f32) -> BlockScale,
) {
    const { assert!(F::BLOCK == LANES * RUN, "a block is whole runs") };
    let payload = message.payload::<<F::Element as ElementFormat>::PackedPair>();
    let scales = message.scales::<u8>();
    for_each_run(token, hidden, |run, exists, chunks| {
        let (amax, has_nan) = block_amax::<LANES>(chunks);
        let amax = amax.to_f32();
        let scale = F::block_scale(amax, encoding.tensor_scale, encoding.rules);
        let scale = amend(scale, amax);
        let factor = scale.factor;
        // Of numbers no product is NaN, unless one of the two is infinite. A NaN is not below anything.
        let multiplier = if !has_nan && amax <= f32::MAX && factor <= f32::MAX {
            Multiplier::Number(factor)
        } else {
            Multiplier::Any(factor)
        };
        let quantize = |chunk| {
            if scale.dead {
                F::Element::zeros()
            } else {
                F::Element::quantize_chunk::<formats::Bf16>(chunk, multiplier)
            }
        };
        if exists {
            payload.store(
                run as usize,
                F::Element::concat(quantize(chunks.0), quantize(chunks.1)),
            );
            if run.is_multiple_of(LANES) {
                scales.store((run / LANES) as usize, scale.code);
            }
        }
    });
}

/// BF16 as it is.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

impl TokenFormat for Bf16 {
    const WIRE: WireFormat = WireFormat {
        element_bits: 16,
        block: 0,
        scale_bytes: 0,
        hidden_multiple: CHUNK,
    };
    const SCALES: ScaleLayout = ScaleLayout::None;

    #[inline(always)]
    fn stage(token: IndirectView<u32x4>, hidden: u32, _: Encoding, message: StagedMessage) {
        let payload = message.payload::<u32x4>();
        let chunks = hidden / CHUNK;
        let mut chunk = thread::thread_idx_x();
        // Two loads are under way at a time.
        while chunk < chunks {
            let next = chunk + thread::block_dim_x();
            let this_chunk = token.load(chunk as usize);
            let next_chunk = (next < chunks).then(|| token.load(next as usize));
            payload.store(chunk as usize, this_chunk);
            if let Some(elements) = next_chunk {
                payload.store(next as usize, elements);
            }
            chunk = next + thread::block_dim_x();
        }
    }
}

/// E4M3 elements in blocks of 128, each with an f32 scale: `scale = max(amax, 1e-4) / 448`,
/// `element = E4M3(x / scale)`.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Block128;

impl Fp8Block128 {
    /// The least amax, so that no scale is 0.
    const LEAST_AMAX: f32 = 1e-4;
}

impl TokenFormat for Fp8Block128 {
    const WIRE: WireFormat = WireFormat {
        element_bits: 8,
        block: 128,
        scale_bytes: 4,
        hidden_multiple: 128,
    };
    const SCALES: ScaleLayout = ScaleLayout::Transposed;

    #[inline(always)]
    fn stage(token: IndirectView<u32x4>, hidden: u32, _: Encoding, message: StagedMessage) {
        const LANES: u32 = Fp8Block128::WIRE.block / RUN;
        let payload = message.payload::<u32x4>();
        let scales = message.scales::<f32>();
        for_each_run(token, hidden, |run, exists, chunks| {
            let amax = block_amax::<LANES>(chunks).0.to_f32();
            // Not `f32::max`: which of a NaN and a number that gives is left to the target.
            let amax = if amax > Self::LEAST_AMAX {
                amax
            } else {
                Self::LEAST_AMAX
            };
            let scale = amax / E4m3::MAX;
            let word = |chunk, index| {
                let (a, b) = formats::Bf16::pair(chunk, index);
                let (c, d) = formats::Bf16::pair(chunk, index + 1);
                E4m3::from_f32x2(b / scale, a / scale) as u32
                    | (E4m3::from_f32x2(d / scale, c / scale) as u32) << 16
            };
            if exists {
                payload.store(
                    run as usize,
                    u32x4::from_array([
                        word(chunks.0, 0),
                        word(chunks.0, 2),
                        word(chunks.1, 0),
                        word(chunks.1, 2),
                    ]),
                );
                if run.is_multiple_of(LANES) {
                    scales.store((run / LANES) as usize, scale);
                }
            }
        });
    }
}

/// E2M1 elements in blocks of 16, E4M3 scales, and a factor for the whole tensor.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4;

impl TokenFormat for Nvfp4 {
    const WIRE: WireFormat = WireFormat::of_blocks::<NvFp4>();
    const SCALES: ScaleLayout = ScaleLayout::Tiles;

    #[inline(always)]
    fn stage(token: IndirectView<u32x4>, hidden: u32, encoding: Encoding, message: StagedMessage) {
        stage_blocks::<NvFp4, 1>(token, hidden, encoding, message, |scale, _| scale);
    }
}

/// E2M1 elements in blocks of 32, power-of-two scales.
#[derive(Clone, Copy, Debug)]
pub struct Mxfp4;

impl TokenFormat for Mxfp4 {
    const WIRE: WireFormat = WireFormat::of_blocks::<MxFp4>();
    const SCALES: ScaleLayout = ScaleLayout::Rows;

    #[inline(always)]
    fn stage(token: IndirectView<u32x4>, hidden: u32, encoding: Encoding, message: StagedMessage) {
        stage_blocks::<MxFp4, 2>(token, hidden, encoding, message, |scale, _| scale);
    }
}

/// E4M3 elements in blocks of 32, power-of-two scales. A block that no finite scale serves, because its
/// largest magnitude is below the range of E8M0 or not finite, is zero, scale byte included.
#[derive(Clone, Copy, Debug)]
pub struct Mxfp8;

impl TokenFormat for Mxfp8 {
    const WIRE: WireFormat = WireFormat::of_blocks::<MxFp8>();
    const SCALES: ScaleLayout = ScaleLayout::Rows;

    #[inline(always)]
    fn stage(token: IndirectView<u32x4>, hidden: u32, encoding: Encoding, message: StagedMessage) {
        stage_blocks::<MxFp8, 2>(token, hidden, encoding, message, |scale, amax| {
            let dead = scale.code == E8m0::NAN || (scale.code == 0 && amax != 0.0);
            BlockScale {
                code: if dead { 0 } else { scale.code },
                dead,
                ..scale
            }
        });
    }
}
