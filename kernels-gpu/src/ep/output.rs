//! One row of what a rank gets: payload and block scales, from wherever its message is.

use super::arguments::{Output, Shape};
use super::format::{ScaleLayout, StagedMessage, TokenFormat};
use super::message::MessageLayout;
use super::workers::Workers;
use crate::WARP;
use crate::scale_tile::{self, TILE_BLOCKS, TILE_ROWS};
use core::simd::u32x4;
use cuda_std::view::{IndirectView, IndirectViewMut, Word};
use cuda_std::warp;

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
    /// Loads and stores a worker's share of the first `len` vectors, as suits the memory it is in.
    fn copy_vectors(self, len: usize, workers: Workers, store: impl Fn(usize, u32x4));
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
    pub(super) fn view<T: Word>(self) -> IndirectView<T> {
        let len = self.layout.bytes as usize / size_of::<T>();
        // SAFETY: by the contract of `new`; `T` is at most 16 bytes.
        unsafe { IndirectView::new(self.base.cast(), len) }
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

    #[inline(always)]
    fn copy_vectors(self, len: usize, workers: Workers, store: impl Fn(usize, u32x4)) {
        workers.copy_ahead(len, |index| self.vector(index), store);
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

    #[inline(always)]
    fn copy_vectors(self, len: usize, workers: Workers, store: impl Fn(usize, u32x4)) {
        workers.copy(len, |index| self.vector(index), store);
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
}

impl Place {
    /// What lane `lane` of the warp has. Called by whole warps with the same lane.
    #[inline(always)]
    pub(super) fn of_lane(self, lane: u32) -> Self {
        // SAFETY: all lanes of the warp are here.
        let broadcast =
            |value| unsafe { warp::warp_shuffle_idx(u32::MAX, value, lane % WARP, WARP) }.0;
        Self {
            row: broadcast(self.row),
            group: broadcast(self.group),
            row_in_group: broadcast(self.row_in_group),
        }
    }
}

/// Writes the payload of a message to its place.
///
/// # Safety
///
/// `output` is what [`Output`] says for this shape and format, and `place` lies inside it. Nobody else writes
/// there.
#[inline(always)]
pub(super) unsafe fn write_payload<M: Message>(
    layout: &MessageLayout,
    output: &Output,
    message: M,
    place: Place,
    workers: Workers,
) {
    let vectors = (layout.payload_bytes / 16) as usize;
    let first = place.row as usize * vectors;
    // SAFETY: the caller's obligation.
    let tokens = unsafe { IndirectViewMut::new(output.tokens, first + vectors) };
    message.copy_vectors(vectors, workers, |index, value| {
        tokens.store(first + index, value);
    });
}

/// Writes payload and scales of a message to their place. Scales in tiles are those of the first group, which
/// begins in the first tile.
///
/// # Safety
///
/// As for [`write_payload`].
#[inline(always)]
pub(super) unsafe fn write_row<F: TokenFormat, M: Message>(
    shape: &Shape,
    layout: &MessageLayout,
    output: &Output,
    message: M,
    place: Place,
    workers: Workers,
) {
    let blocks = F::WIRE.scales(shape.hidden);
    let first_byte = layout.scales_offset as usize;
    let first_word = first_byte / 4;
    // Where a row of scales is whole vectors, the first of them, and mostly all, are on their way before the
    // payload is stored.
    let is_vectors =
        F::SCALES == ScaleLayout::Rows && shape.slot_rows == 0 && blocks.is_multiple_of(16);
    let vectors = if is_vectors { blocks as usize / 16 } else { 0 };
    let load_vector =
        |index: usize| (index < vectors).then(|| message.vector(first_byte / 16 + index));
    let mut index = workers.index as usize;
    let mut vector = load_vector(index);
    // SAFETY: the caller's obligation.
    unsafe { write_payload(layout, output, message, place, workers) };
    match F::SCALES {
        ScaleLayout::None => {}
        ScaleLayout::Rows if shape.slot_rows != 0 => {
            let bytes = shape.groups() as usize * shape.slot_rows as usize * blocks as usize;
            // SAFETY: the caller's obligation. Bytes: of the four in a
            // cell two are another row's, and 16 would be eight rows', mostly of different pairs.
            let scales = unsafe { IndirectViewMut::new(output.scales, bytes) };
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
        ScaleLayout::Rows if is_vectors => {
            let first = place.row as usize * vectors;
            // SAFETY: the caller's obligation.
            let scales =
                unsafe { IndirectViewMut::<u32x4>::new(output.scales.cast(), first + vectors) };
            while let Some(value) = vector {
                scales.store(first + index, value);
                index += workers.count as usize;
                vector = load_vector(index);
            }
        }
        ScaleLayout::Rows => {
            let first = place.row as usize * blocks as usize;
            // SAFETY: the caller's obligation.
            let scales = unsafe { IndirectViewMut::new(output.scales, first + blocks as usize) };
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
                IndirectViewMut::new(output.scales.cast::<u32>(), blocks as usize * stride)
            };
            workers.copy(
                blocks as usize,
                |block| message.word(first_word + block),
                |block, value| scales.store(block * stride + place.row as usize, value),
            );
        }
        ScaleLayout::Tiles => {
            // What the message has after its scales is zero, and so is what a tile has.
            let columns = blocks.div_ceil(TILE_BLOCKS);
            let (row_tile, row) = (
                place.row_in_group / TILE_ROWS,
                place.row_in_group % TILE_ROWS,
            );
            let words = (row_tile as usize + 1) * columns as usize * scale_tile::TILE_BYTES / 4;
            // SAFETY: the caller's obligation.
            let scales = unsafe { IndirectViewMut::new(output.scales.cast::<u32>(), words) };
            workers.copy(
                columns as usize,
                |column| message.word(first_word + column),
                |column, value| {
                    let block = column as u32 * TILE_BLOCKS;
                    let offset = scale_tile::offset_in_tensor(row_tile, row, block, columns);
                    scales.store(offset / 4, value);
                },
            );
        }
    }
}
