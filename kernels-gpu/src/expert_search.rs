//! From a scale tile to the expert that owns it.
//!
//! Rows are grouped. A *slot* is a position in the grouped order; `expert_ids[slot]` is its *expert*, an
//! index into the tensor-wise factors. Slot `i` owns the rows `row_offsets[i] .. row_offsets[i + 1]`, and its scales
//! begin at row tile
//!
//! ```text
//! tile_start(i) = row_offsets[i] / 128 + scales_offsets[i]
//! ```
//!
//! which never decreases with `i`. An empty slot has the same start as its successor, so "the last
//! slot that starts at or before this tile" is the slot that owns it.

use crate::scale_tile::TILE_ROWS;
use crate::search::Candidates;
use cuda_std::view::GlobalView;

/// The grouping tables in global memory. Their content is the caller's; nothing here trusts it.
#[derive(Clone, Copy)]
pub struct Groups {
    /// First row of each slot, and the end of the last: `slots + 1` values.
    pub row_offsets: GlobalView<u32>,
    /// Row tiles to add to `row_offsets[i] / 128`: `slots` values.
    pub scales_offsets: GlobalView<u32>,
    /// Number of slots, at least 1.
    pub slots: u32,
    /// Number of rows that exist; offsets beyond are cut back to it.
    pub rows: u32,
}

/// The part of a slot that lies in one row tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileRows {
    /// The slot.
    pub slot: u32,
    /// First row, in the order of the whole tensor.
    pub first_row: u32,
    /// Number of rows, 1 to 128.
    pub rows: u32,
}

impl Groups {
    /// First row tile of a slot.
    #[inline(always)]
    pub fn tile_start(self, slot: u32) -> u32 {
        let whole_tiles = self.row_offsets.load(slot as usize) / TILE_ROWS;
        whole_tiles.saturating_add(self.scales_offsets.load(slot as usize))
    }

    /// The rows in row tile `tile`, or `None` for a slack tile, which belongs to nobody.
    ///
    /// Called by whole warps, with the same tile in all lanes. Tables that are not what they should be
    /// give another slot's rows, never rows that do not exist.
    #[inline(always)]
    pub fn rows_in_tile(self, tile: u32) -> Option<TileRows> {
        let slot = self.last_slot_by_warp(tile)?;
        let start = self.row_offsets.load(slot as usize).min(self.rows);
        let end = self.row_offsets.load(slot as usize + 1).min(self.rows);
        let tile_in_slot = tile.checked_sub(self.tile_start(slot))?;
        let skipped = tile_in_slot.checked_mul(TILE_ROWS)?;
        let left = end.checked_sub(start)?.checked_sub(skipped)?;
        if left == 0 {
            return None;
        }
        Some(TileRows {
            slot,
            first_row: start + skipped,
            rows: left.min(TILE_ROWS),
        })
    }

    /// The slot that owns `row`: the last one whose first row is at or before it.
    #[inline(always)]
    pub fn slot_of_row(self, row: u32) -> u32 {
        group_of_row(self.row_offsets, self.slots, row)
    }

    /// The last slot that begins at or before row tile `tile`, or the first one, found by the lanes of a warp
    /// together. `None`: the tile lies behind the last slot.
    ///
    /// This is on the way of a thread block to its first row, hence no bisection.
    ///
    /// With many experts half of all blocks may be behind the last slot. They are found out by what is read together
    /// with the first round, so it costs the others no time.
    #[inline(always)]
    fn last_slot_by_warp(self, tile: u32) -> Option<u32> {
        let last = self.slots - 1;
        let last_start = self.tile_start(last);
        let last_row = self.row_offsets.load(last as usize);
        let end = self.row_offsets.load(self.slots as usize);
        let begins_early_enough = |slot| self.tile_start(slot) <= tile;
        let candidates = Candidates::below(self.slots).narrowed(begins_early_enough);
        let last_tiles = end.saturating_sub(last_row).div_ceil(TILE_ROWS);
        if tile >= last_start.saturating_add(last_tiles) {
            return None;
        }
        Some(candidates.last(begins_early_enough))
    }
}

/// The last of `groups` groups whose first row is at or before `row`, or the first group: a bisection, as groups
/// begin in order. `row_offsets` holds at least `groups` values, and `groups` is at least 1.
#[inline(always)]
pub fn group_of_row(row_offsets: GlobalView<u32>, groups: u32, row: u32) -> u32 {
    let mut group = 0;
    let mut past = groups;
    while group + 1 < past {
        let middle = group + (past - group) / 2;
        if row_offsets.load(middle as usize) <= row {
            group = middle;
        } else {
            past = middle;
        }
    }
    group
}
