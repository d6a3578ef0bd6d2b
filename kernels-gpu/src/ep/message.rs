//! What one token is on its way to an expert: payload, block scales, where it came from, and where it goes.
//!
//! ```text
//! payload     0                the quantized row
//! scales      scales_offset    its block scales, in column order; absent for BF16
//! source      source_offset    i32: index of the token on its source rank
//! experts     topk_offset      K x u16: all experts of the token
//! ```
//!
//! Each part begins at a multiple of [`ALIGNMENT`]; what lies between two parts is zero. All copies of
//! a token's message are equal: a receiver finds its own position among the token's experts by looking for
//! its own id. Router weights do not travel.

use core::ops::Range;

/// Alignment of a message and of its parts, in bytes: the unit of vector accesses and of the copy engine.
pub const ALIGNMENT: u32 = 16;

/// Most experts of a token: one lane of a warp looks after each.
pub const MAX_TOP_K: u32 = 32;

/// Most experts: ids travel in 16 bits.
pub const MAX_EXPERTS: u32 = 1 << 16;

/// What a row of a format takes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireFormat {
    /// Bits of an element: 4, 8 or 16.
    pub element_bits: u32,
    /// Elements that share a block scale; 0 where there are none.
    pub block: u32,
    /// Bytes of a block scale.
    pub scale_bytes: u32,
    /// What the hidden size must be a multiple of, so that blocks are whole and payloads whole vectors.
    pub hidden_multiple: u32,
}

impl WireFormat {
    /// Bytes of the elements of a row.
    pub const fn payload_bytes(self, hidden: u32) -> u32 {
        hidden / 8 * self.element_bits
    }

    /// Block scales of a row.
    pub const fn scales(self, hidden: u32) -> u32 {
        match hidden.checked_div(self.block) {
            Some(scales) => scales,
            None => 0,
        }
    }
}

/// Where the parts of a message lie, in bytes.
///
/// ```
/// use kernels_gpu::ep::{Mxfp4, TokenFormat};
/// let layout = Mxfp4::WIRE.message(7168, 8);
/// assert_eq!((layout.payload_bytes, layout.scales_offset), (3584, 3584));
/// assert_eq!((layout.source_offset, layout.topk_offset, layout.bytes), (3808, 3824, 3840));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLayout {
    /// Bytes of the payload, which is first.
    pub payload_bytes: u32,
    /// Where the block scales begin.
    pub scales_offset: u32,
    /// Bytes of the block scales, without the padding after them.
    pub scale_bytes: u32,
    /// Where the index of the token on its source rank lies, an `i32`.
    pub source_offset: u32,
    /// Where the expert ids begin, `u16` each.
    pub topk_offset: u32,
    /// Bytes of the message.
    pub bytes: u32,
}

impl WireFormat {
    /// The layout for rows of `hidden` elements, each for `top_k` experts.
    #[inline(always)]
    pub const fn message(self, hidden: u32, top_k: u32) -> MessageLayout {
        let payload_bytes = self.payload_bytes(hidden);
        let scale_bytes = self.scales(hidden) * self.scale_bytes;
        let scales_offset = payload_bytes.next_multiple_of(ALIGNMENT);
        let source_offset = scales_offset + scale_bytes.next_multiple_of(ALIGNMENT);
        let topk_offset = source_offset + ALIGNMENT;
        MessageLayout {
            payload_bytes,
            scales_offset,
            scale_bytes,
            source_offset,
            topk_offset,
            bytes: topk_offset + (2 * top_k).next_multiple_of(ALIGNMENT),
        }
    }
}

impl MessageLayout {
    /// 16-byte words of a message.
    #[inline(always)]
    pub const fn words(&self) -> usize {
        (self.bytes / ALIGNMENT) as usize
    }

    /// Expert ids, those of the padding included.
    #[inline(always)]
    pub const fn padded_ids(&self) -> u32 {
        (self.bytes - self.topk_offset) / 2
    }

    /// The bytes between the block scales and the next part.
    #[inline(always)]
    pub const fn scale_padding(&self) -> Range<u32> {
        self.scales_offset + self.scale_bytes..self.source_offset
    }
}
