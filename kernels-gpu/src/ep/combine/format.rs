//! What rows travel home as.

use super::super::format::{Encoding, StagedMessage, TokenFormat};
use super::super::message::{ALIGNMENT, MessageLayout, WireFormat};
use super::super::{Mxfp8 as Mxfp8Tokens, Nvfp4 as Nvfp4Tokens};
use crate::formats::{
    self, BlockFormat, CHUNK, E2m1, E4m3, ElementFormat, InputFormat, MxFp8, NvFp4, Rules,
    TensorScale,
};
use core::simd::{u32x2, u32x4};
use cuda_std::cvt;
use cuda_std::view::{IndirectView, IndirectViewMut};

/// The type of expert outputs and of combined tokens, in chunks of eight elements.
pub trait RowElement: InputFormat {
    /// A chunk from a row.
    fn load(row: IndirectView<u32x4>, chunk: usize) -> Self::Chunk;

    /// A chunk to a row.
    fn store(row: IndirectViewMut<u32x4>, chunk: usize, elements: Self::Chunk);

    /// Rounds to nearest even.
    fn round(sums: [f32; 8]) -> Self::Chunk;
}

macro_rules! halves {
    ($($element:ty, $convert:path;)*) => {$(
        impl RowElement for $element {
            #[inline(always)]
            fn load(row: IndirectView<u32x4>, chunk: usize) -> u32x4 {
                row.load(chunk)
            }

            #[inline(always)]
            fn store(row: IndirectViewMut<u32x4>, chunk: usize, elements: u32x4) {
                row.store(chunk, elements);
            }

            #[inline(always)]
            fn round([a, b, c, d, e, f, g, h]: [f32; 8]) -> u32x4 {
                u32x4::from_array([$convert(b, a), $convert(d, c), $convert(f, e), $convert(h, g)])
            }
        }
    )*};
}

halves! {
    formats::Bf16, cvt::cvt_rn_bf16x2_f32;
    formats::F16, cvt::cvt_rn_f16x2_f32;
}

impl RowElement for formats::F32 {
    #[inline(always)]
    fn load(row: IndirectView<u32x4>, chunk: usize) -> (u32x4, u32x4) {
        (row.load(2 * chunk), row.load(2 * chunk + 1))
    }

    #[inline(always)]
    fn store(row: IndirectViewMut<u32x4>, chunk: usize, (low, high): (u32x4, u32x4)) {
        row.store(2 * chunk, low);
        row.store(2 * chunk + 1, high);
    }

    #[inline(always)]
    fn round(sums: [f32; 8]) -> (u32x4, u32x4) {
        let [a, b, c, d, e, f, g, h] = sums.map(f32::to_bits);
        (
            u32x4::from_array([a, b, c, d]),
            u32x4::from_array([e, f, g, h]),
        )
    }
}

/// A format that rows travel home in.
pub trait CombineFormat {
    /// The type of expert outputs and of combined tokens.
    type Element: RowElement;

    /// Eight elements of a row on its way.
    type Piece: Copy;

    /// The format that rows are quantized to, if they are.
    const QUANTIZED: Option<QuantizedAs>;

    /// Rows whose pieces a lane has under way at a time, 4 or 8: as many as registers hold.
    const AHEAD: u32 = 8;

    /// 16-byte words of a row on its way.
    fn row_words(hidden: u32) -> u32;

    /// Chunk `chunk` of a row that arrived.
    fn load(row: IndirectView<u32x4>, hidden: u32, chunk: u32) -> Self::Piece;

    /// Its elements `2 * index` and `2 * index + 1`; `index` is below 4.
    fn pair(piece: Self::Piece, index: usize) -> (f32, f32);

    /// The elements of a row that comes back by itself: as they were sent, whatever their bits, or dequantized and
    /// rounded.
    #[inline(always)]
    fn elements(piece: Self::Piece) -> <Self::Element as InputFormat>::Chunk {
        let ((a, b), (c, d)) = (Self::pair(piece, 0), Self::pair(piece, 1));
        let ((e, f), (g, h)) = (Self::pair(piece, 2), Self::pair(piece, 3));
        Self::Element::round([a, b, c, d, e, f, g, h])
    }

    /// Writes payload and block scales of a row into `message`. All threads of the block call it together. Only of
    /// formats that quantize.
    fn stage(row: IndirectView<u32x4>, hidden: u32, factor: f32, message: StagedMessage);
}

/// How a quantized row is made and laid out: as a token's [message](super::super::message) up to and with the word of
/// the source, which holds the factor of the row instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedAs {
    /// Its elements and block scales.
    pub wire: WireFormat,
    /// Whether a row has a factor of its own, a power of two that brings its largest magnitude under
    /// [`ROW_MAX`](Self::ROW_MAX).
    pub row_factor: bool,
}

impl QuantizedAs {
    /// The largest product of an element and a block scale of NVFP4: 6 * 448.
    pub const ROW_MAX: f32 = 2688.0;

    /// Where the parts of a row lie.
    #[inline(always)]
    pub const fn layout(self, hidden: u32) -> MessageLayout {
        self.wire.message(hidden, 1)
    }

    /// 16-byte words of a row: the parts of the message but the expert ids.
    #[inline(always)]
    pub const fn row_words(self, hidden: u32) -> u32 {
        self.layout(hidden).topk_offset / ALIGNMENT
    }
}

macro_rules! plain_formats {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl CombineFormat for $name {
            type Element = formats::$name;
            type Piece = <formats::$name as InputFormat>::Chunk;
            const QUANTIZED: Option<QuantizedAs> = None;
            const AHEAD: u32 = 8 / formats::$name::VECTORS as u32;

            #[inline(always)]
            fn row_words(hidden: u32) -> u32 {
                hidden / CHUNK * formats::$name::VECTORS as u32
            }

            #[inline(always)]
            fn load(row: IndirectView<u32x4>, _: u32, chunk: u32) -> Self::Piece {
                formats::$name::load(row, chunk as usize)
            }

            #[inline(always)]
            fn pair(piece: Self::Piece, index: usize) -> (f32, f32) {
                formats::$name::pair(piece, index)
            }

            #[inline(always)]
            fn elements(piece: Self::Piece) -> Self::Piece {
                piece
            }

            #[inline(always)]
            fn stage(_: IndirectView<u32x4>, _: u32, _: f32, _: StagedMessage) {}
        }
    )*};
}

plain_formats! {
    /// bfloat16 as it is.
    Bf16;
    /// IEEE binary16 as it is.
    F16;
    /// IEEE binary32 as it is.
    F32;
}

/// BF16 rows as E4M3 elements in blocks of 32 with power-of-two scales, rounded up: half the bytes and a bit.
#[derive(Clone, Copy, Debug)]
pub struct Mxfp8;

impl Mxfp8 {
    const AS: QuantizedAs = QuantizedAs {
        wire: Mxfp8Tokens::WIRE,
        row_factor: false,
    };
}

impl CombineFormat for Mxfp8 {
    type Element = formats::Bf16;
    type Piece = (u32x2, u8);
    const QUANTIZED: Option<QuantizedAs> = Some(Self::AS);

    #[inline(always)]
    fn row_words(hidden: u32) -> u32 {
        Self::AS.row_words(hidden)
    }

    #[inline(always)]
    fn load(row: IndirectView<u32x4>, hidden: u32, chunk: u32) -> Self::Piece {
        let scales = Self::AS.layout(hidden).scales_offset;
        // SAFETY: a row is written before it is read, aligned to 16 bytes, and any bytes are elements.
        let (payload, bytes) = unsafe { (row.cast::<u32x2>(), row.cast::<u8>()) };
        let scale = scales + chunk / (MxFp8::BLOCK / CHUNK);
        (payload.load(chunk as usize), bytes.load(scale as usize))
    }

    #[inline(always)]
    fn pair((payload, scale): Self::Piece, index: usize) -> (f32, f32) {
        let word = payload[index / 2] >> (index % 2 * 16);
        let scale = MxFp8::scale_to_f32(scale);
        (
            E4m3::to_f32(word as u8) * scale,
            E4m3::to_f32((word >> 8) as u8) * scale,
        )
    }

    #[inline(always)]
    fn stage(row: IndirectView<u32x4>, hidden: u32, _: f32, message: StagedMessage) {
        Mxfp8Tokens::stage(row, hidden, encoding(1.0), message);
    }
}

/// BF16 rows as E2M1 elements in blocks of 16 with E4M3 scales and a power of two for the row: a quarter of the
/// bytes and a bit.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4;

impl Nvfp4 {
    const AS: QuantizedAs = QuantizedAs {
        wire: Nvfp4Tokens::WIRE,
        row_factor: true,
    };
}

impl CombineFormat for Nvfp4 {
    type Element = formats::Bf16;
    type Piece = (u32, u8, f32);
    const QUANTIZED: Option<QuantizedAs> = Some(Self::AS);

    #[inline(always)]
    fn row_words(hidden: u32) -> u32 {
        Self::AS.row_words(hidden)
    }

    #[inline(always)]
    fn load(row: IndirectView<u32x4>, hidden: u32, chunk: u32) -> Self::Piece {
        let layout = Self::AS.layout(hidden);
        // SAFETY: as above.
        let (payload, bytes, words) =
            unsafe { (row.cast::<u32>(), row.cast::<u8>(), row.cast::<f32>()) };
        let scale = layout.scales_offset + chunk / (NvFp4::BLOCK / CHUNK);
        (
            payload.load(chunk as usize),
            bytes.load(scale as usize),
            words.load(layout.source_offset as usize / 4),
        )
    }

    #[inline(always)]
    fn pair((payload, scale, factor): Self::Piece, index: usize) -> (f32, f32) {
        // Powers of two and products of few bits: exact, in this order too.
        let scale = NvFp4::scale_to_f32(scale);
        let value = |index| E2m1::dequantize(payload, index) * scale * factor;
        (value(2 * index as u32), value(2 * index as u32 + 1))
    }

    #[inline(always)]
    fn stage(row: IndirectView<u32x4>, hidden: u32, factor: f32, message: StagedMessage) {
        Nvfp4Tokens::stage(row, hidden, encoding(factor), message);
    }
}

/// Scales as MXFP8 tokens have them unless told, of blocks whose elements are multiplied by `factor` first.
#[inline(always)]
fn encoding(factor: f32) -> Encoding {
    Encoding {
        rules: Rules::new(
            formats::ScaleRounding::Rceil,
            formats::DeadBlocks::Hardened,
            formats::NanPolicy::Ignore,
        ),
        tensor_scale: TensorScale::new(factor),
    }
}
