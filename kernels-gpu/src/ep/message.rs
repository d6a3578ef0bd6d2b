//! What one token is on its way to a rank: payload, block scales, where it came from, and where it goes.
//!
//! ```text
//! payload     0                the quantized row
//! scales      scales_offset    its block scales, in column order; absent for BF16
//! source      source_offset    i32: index of the token on its source rank
//! experts     topk_offset      K x u16: all experts of the token
//! slots       slots_offset     K x u32: the number of the token's row among those of its rank for each expert
//! ```
//!
//! Each part begins at a multiple of [`ALIGNMENT`]; what lies between two parts is zero. A rank gets one message of a
//! token, however many of the token's experts it has, and all copies are equal: a receiver finds its own experts among
//! the ids. A position for which there is no row, as its id is no expert's or one that the token has named before, has
//! the slot [`NO_SLOT`]. Router weights do not travel.

use core::ops::Range;

/// Alignment of a message and of its parts, in bytes: the unit of vector accesses and of the copy engine.
pub const ALIGNMENT: u32 = 16;

/// Most experts of a token: one lane of a warp looks after each.
pub const MAX_TOP_K: u32 = 32;

/// Most experts: ids travel in 16 bits.
pub const MAX_EXPERTS: u32 = 1 << 16;

/// The slot of a position that has no row.
pub const NO_SLOT: u32 = u32::MAX;

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
/// assert_eq!((layout.source_offset, layout.topk_offset), (3808, 3824));
/// assert_eq!((layout.slots_offset, layout.bytes), (3840, 3872));
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
    /// Where the slots begin, `u32` each.
    pub slots_offset: u32,
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
        let slots_offset = topk_offset + (2 * top_k).next_multiple_of(ALIGNMENT);
        MessageLayout {
            payload_bytes,
            scales_offset,
            scale_bytes,
            source_offset,
            topk_offset,
            slots_offset,
            bytes: slots_offset + (4 * top_k).next_multiple_of(ALIGNMENT),
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
        (self.slots_offset - self.topk_offset) / 2
    }

    /// Slots, those of the padding included.
    #[inline(always)]
    pub const fn padded_slots(&self) -> u32 {
        (self.bytes - self.slots_offset) / 4
    }

    /// The bytes between the block scales and the next part.
    #[inline(always)]
    pub const fn scale_padding(&self) -> Range<u32> {
        self.scales_offset + self.scale_bytes..self.source_offset
    }
}
