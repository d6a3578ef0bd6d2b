//! One row of what a rank gets: payload and block scales, from wherever its message is.

use super::arguments::{Output, Shape};
use super::format::{ScaleLayout, StagedMessage, TokenFormat};
use super::message::MessageLayout;
use super::workers::Workers;
use crate::scale_tile::{self, TILE_BLOCKS, TILE_ROWS};
use core::simd::u32x4;
use cuda_std::view::{GlobalView, GlobalViewMut};

/// Bytes from the start of the scales to the scale of row `row` (below `slot_rows`) and block `block` of a
/// group, in the slot layout for rows of `blocks` scales.
///
/// That is the order in which a 16x16x128 matrix instruction reads them: cells of four bytes hold the rows
/// `r` and `r + 16` of blocks `k` and `k + 4`.
///
/// ```
/// use kernels_gpu::ep::slot_offset;
/// assert_eq!(slot_offset(0, 37, 13, 224, 128), 7510);
/// assert_eq!(slot_offset(2, 47, 223, 224, 128), 71678);
/// ```
#[inline(always)]
pub const fn slot_offset(group: u32, row: u32, block: u32, blocks: u32, slot_rows: u32) -> usize {
    let slot = group as usize * slot_rows as usize * blocks as usize;
    let band = (row / 32) as usize * 32 * blocks as usize;
    let atom = block / 8 * 256 + block % 4 * 64 + row % 16 * 4 + block / 4 % 2 * 2 + row / 16 % 2;
    slot + band + atom as usize
}

/// A whole message, to read.
pub(super) trait Message: Copy {
    /// 16-byte word `index`.
    fn vector(self, index: usize) -> u32x4;
    /// 4-byte word `index`.
    fn word(self, index: usize) -> u32;
    /// Byte `index`.
    fn byte(self, index: usize) -> u8;
}

/// A message that arrived. It was written during the launch, so it is read with ordinary loads, which
/// follow the acquire that told of it; the read-only path would not.
#[derive(Clone, Copy)]
pub(super) struct ReceivedMessage {
    base: *const u32x4,
    layout: MessageLayout,
}

impl ReceivedMessage {
    /// # Safety
    ///
    /// `base` is a message that arrived, and stays as it is.
    #[inline(always)]
    pub(super) unsafe fn new(base: *const u32x4, layout: MessageLayout) -> Self {
        Self { base, layout }
    }

    /// The message in units of `T`.
    #[inline(always)]
    pub(super) fn view<T: Copy>(self) -> GlobalView<T> {
        let len = self.layout.bytes as usize / size_of::<T>();
        // SAFETY: by the contract of `new`; `T` is at most 16 bytes.
        unsafe { GlobalView::new(self.base.cast(), len) }
    }
}

impl Message for ReceivedMessage {
    #[inline(always)]
    fn vector(self, index: usize) -> u32x4 {
        self.view().load(index)
    }

    #[inline(always)]
    fn word(self, index: usize) -> u32 {
        self.view().load(index)
    }

    #[inline(always)]
    fn byte(self, index: usize) -> u8 {
        self.view().load(index)
    }
}

impl Message for StagedMessage {
    #[inline(always)]
    fn vector(self, index: usize) -> u32x4 {
        self.words().load(index)
    }

    #[inline(always)]
    fn word(self, index: usize) -> u32 {
        self.part(0, self.layout().bytes).load(index)
    }

    #[inline(always)]
    fn byte(self, index: usize) -> u8 {
        self.part(0, self.layout().bytes).load(index)
    }
}

/// Where a row goes.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Row in the tokens tensor.
    pub(super) row: u32,
    /// Its group, and its number in the group.
    pub(super) group: u32,
    pub(super) row_in_group: u32,
    /// The scale tile in which the group begins, for scales in tiles.
    pub(super) first_tile: u32,
}

/// Writes payload and scales of a message to their place.
///
/// # Safety
///
/// `output` is what [`Output`] says for this shape and format, and `place` lies inside it. Nobody else writes
/// there.
#[inline(always)]
pub(super) unsafe fn write_row<F: TokenFormat, M: Message>(
    shape: &Shape,
    layout: &MessageLayout,
    output: &Output,
    message: M,
    place: Place,
    workers: Workers,
) {
    let vectors = (layout.payload_bytes / 16) as usize;
    let first = place.row as usize * vectors;
    // SAFETY: the caller's obligation.
    let tokens = unsafe { GlobalViewMut::new(output.tokens, first + vectors) };
    workers.copy_ahead(
        vectors,
        |index| message.vector(index),
        |index, value| tokens.store(first + index, value),
    );

    let blocks = F::WIRE.scales(shape.hidden);
    let first_byte = layout.scales_offset as usize;
    let first_word = first_byte / 4;
    match F::SCALES {
        ScaleLayout::None => {}
        ScaleLayout::Rows if shape.slot_rows != 0 => {
            let bytes = shape.groups() as usize * shape.slot_rows as usize * blocks as usize;
            // SAFETY: the caller's obligation. Bytes, as a cell has rows that others may be writing.
            let scales = unsafe { GlobalViewMut::new(output.scales, bytes) };
            workers.copy(
                blocks as usize,
                |block| message.byte(first_byte + block),
                |block, value| {
                    let (group, row) = (place.group, place.row_in_group);
                    let offset = slot_offset(group, row, block as u32, blocks, shape.slot_rows);
                    scales.store(offset, value);
                },
            );
        }
        ScaleLayout::Rows if blocks.is_multiple_of(4) => {
            let words = (blocks / 4) as usize;
            let first = place.row as usize * words;
            // SAFETY: the caller's obligation.
            let scales = unsafe { GlobalViewMut::new(output.scales.cast::<u32>(), first + words) };
            workers.copy(
                words,
                |word| message.word(first_word + word),
                |word, value| scales.store(first + word, value),
            );
        }
        ScaleLayout::Rows => {
            let first = place.row as usize * blocks as usize;
            // SAFETY: the caller's obligation.
            let scales = unsafe { GlobalViewMut::new(output.scales, first + blocks as usize) };
            workers.copy(
                blocks as usize,
                |block| message.byte(first_byte + block),
                |block, value| scales.store(first + block, value),
            );
        }
        ScaleLayout::Transposed => {
            let stride = shape.scale_stride as usize;
            // SAFETY: the caller's obligation.
            let scales = unsafe {
                GlobalViewMut::new(output.scales.cast::<u32>(), blocks as usize * stride)
            };
            workers.copy(
                blocks as usize,
                |block| message.word(first_word + block),
                |block, value| scales.store(block * stride + place.row as usize, value),
            );
        }
        ScaleLayout::Tiles => {
            // What the message has after its scales is zero, and so is what a tile has.
            let column_tiles = blocks.div_ceil(TILE_BLOCKS);
            let scales = tiles(output, column_tiles, place);
            workers.copy(
                column_tiles as usize,
                |tile| message.word(first_word + tile),
                |tile, value| scales.store(tile_word(column_tiles, place, tile as u32), value),
            );
        }
    }
}

/// Zeroes the scales of a row that the last tile of a group has beyond the group.
///
/// # Safety
///
/// As for [`write_row`].
#[inline(always)]
pub(super) unsafe fn zero_tile_row<F: TokenFormat>(
    shape: &Shape,
    output: &Output,
    place: Place,
    workers: Workers,
) {
    let column_tiles = F::WIRE.scales(shape.hidden).div_ceil(TILE_BLOCKS);
    let scales = tiles(output, column_tiles, place);
    let mut tile = workers.index;
    while tile < column_tiles {
        scales.store(tile_word(column_tiles, place, tile), 0);
        tile += workers.count;
    }
}

/// The scales up to the tiles that `place` is in, as words of the [`TILE_BLOCKS`] scales that a row has in one.
#[inline(always)]
fn tiles(output: &Output, column_tiles: u32, place: Place) -> GlobalViewMut<u32> {
    let row_tiles = (place.first_tile + place.row_in_group / TILE_ROWS + 1) as usize;
    let words = row_tiles * column_tiles as usize * scale_tile::TILE_BYTES / 4;
    // SAFETY: the obligation of the callers' callers.
    unsafe { GlobalViewMut::new(output.scales.cast(), words) }
}

/// Where in [`tiles`] the scales of a row in column tile `tile` are.
#[inline(always)]
fn tile_word(column_tiles: u32, place: Place, tile: u32) -> usize {
    let row_tile = place.first_tile + place.row_in_group / TILE_ROWS;
    let row = place.row_in_group % TILE_ROWS;
    scale_tile::offset_in_tensor(row_tile, row, tile * TILE_BLOCKS, column_tiles) / 4
}
