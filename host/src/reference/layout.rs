//! Which slot a row or a scale tile belongs to, and where a scale byte lies in its tile.

use std::ops::Range;

use crate::routing::{Routing, TILE_ROWS};

/// Blocks of a row that one scale tile holds.
pub const TILE_BLOCKS: usize = 4;
/// Bytes of one scale tile: one for each row and block.
pub const TILE_BYTES: usize = TILE_ROWS * TILE_BLOCKS;

/// Byte offset of a block's scale in the scales tensor `[Mt, Kt, 32, 4, 4]`.
///
/// `tile_start` is the slot's first tile, `local_row` the row counted from the slot's first one,
/// `block` the block within the row and `column_tiles` Kt. The rows r, r+32, r+64 and r+96 of a
/// tile share one group of 16 bytes, four bytes each.
///
/// ```
/// use tokenyard::reference::scale_offset;
///
/// assert_eq!(scale_offset(0, 37, 6, 11), 598);
/// assert_eq!(scale_offset(1, 199, 100, 44), 57976);
/// ```
pub fn scale_offset(
    tile_start: usize,
    local_row: usize,
    block: usize,
    column_tiles: usize,
) -> usize {
    let row_tile = tile_start + local_row / TILE_ROWS;
    let column_tile = block / TILE_BLOCKS;
    let row = local_row % TILE_ROWS;
    (row_tile * column_tiles + column_tile) * TILE_BYTES
        + row % 32 * 16
        + row / 32 * 4
        + block % TILE_BLOCKS
}

/// How rows are divided among slots: the three index vectors of the grouped operation.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    /// `[E + 1]`: slot i owns rows `row_offsets[i]..row_offsets[i + 1]`.
    pub row_offsets: &'a [u32],
    /// `[E]`: 128-row tiles to add to `row_offsets[i] / 128` for slot i's first scale tile.
    pub scales_offsets: &'a [u32],
    /// `[E]`: the index into the tensor scales for each slot.
    pub expert_ids: &'a [i32],
}

impl Groups<'_> {
    /// E, the number of slots.
    pub fn slots(&self) -> usize {
        self.expert_ids.len()
    }

    /// The rows of a slot, as far as they are among the first `rows`.
    pub fn slot_rows(&self, slot: usize, rows: usize) -> Range<usize> {
        let end = (self.row_offsets[slot + 1] as usize).min(rows);
        (self.row_offsets[slot] as usize).min(end)..end
    }

    /// The slot's first scale tile.
    pub fn tile_start(&self, slot: usize) -> usize {
        self.row_offsets[slot] as usize / TILE_ROWS + self.scales_offsets[slot] as usize
    }

    /// The slot that owns `row`: the last one that starts no later, if it reaches that far.
    /// Of several slots that start together all but the last are empty.
    pub fn slot_of_row(&self, row: usize) -> Option<usize> {
        let starts = &self.row_offsets[..self.slots()];
        let slot = starts
            .partition_point(|&start| start as usize <= row)
            .checked_sub(1)?;
        (row < self.row_offsets[slot + 1] as usize).then_some(slot)
    }

    /// The slot that owns scale tile `tile` when only the first `rows` rows exist: the last one
    /// whose first tile is no later, if it reaches that far.
    pub fn slot_of_tile(&self, tile: usize, rows: usize) -> Option<usize> {
        let slot = (0..self.slots())
            .rev()
            .find(|&slot| self.tile_start(slot) <= tile)?;
        let tiles = self.slot_rows(slot, rows).len().div_ceil(TILE_ROWS);
        (tile < self.tile_start(slot) + tiles).then_some(slot)
    }

    /// The scale tile, among all `[Mt]` of them, that holds the scales of a `row` of `slot`.
    pub fn tile_of_row(&self, slot: usize, row: usize) -> usize {
        self.tile_start(slot) + (row - self.row_offsets[slot] as usize) / TILE_ROWS
    }

    /// The slot's tensor scale, or `None` where its expert id has none: such a slot is inactive.
    pub fn tensor_scale(&self, slot: usize, sf: &[f32]) -> Option<f32> {
        sf.get(usize::try_from(self.expert_ids[slot]).ok()?)
            .copied()
    }
}

impl<'a> From<&'a Routing> for Groups<'a> {
    fn from(routing: &'a Routing) -> Self {
        Groups {
            row_offsets: routing.row_offsets(),
            scales_offsets: routing.scales_offsets(),
            expert_ids: routing.expert_ids(),
        }
    }
}
