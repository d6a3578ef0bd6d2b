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

use crate::WARP;
use crate::scale_tile::TILE_ROWS;
use cuda_std::view::GlobalView;
use cuda_std::{thread, warp};

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
        self.last_slot(|slot| self.row_offsets.load(slot as usize) <= row)
    }

    /// The last slot that begins at or before row tile `tile`, or the first one, found by the lanes of a warp
    /// together. `None`: the tile lies behind the last slot.
    ///
    /// A bisection waits for one read after another, `ceil(log2(slots))` of them, and this is on the
    /// way of a thread block to its first row. Here every round reads 32 slots at once and leaves a
    /// 32nd of the range: two rounds up to 1024 slots.
    ///
    /// With many experts half of all blocks may be behind the last slot. They are found out by what is read together
    /// with the first round, so it costs the others no time.
    #[inline(always)]
    fn last_slot_by_warp(self, tile: u32) -> Option<u32> {
        let last = self.slots - 1;
        let last_start = self.tile_start(last);
        let last_row = self.row_offsets.load(last as usize);
        let end = self.row_offsets.load(self.slots as usize);
        let (mut slot, mut past) = self.narrowed(0, self.slots, tile);
        let last_tiles = end.saturating_sub(last_row).div_ceil(TILE_ROWS);
        if tile >= last_start.saturating_add(last_tiles) {
            return None;
        }
        while slot + 1 < past {
            (slot, past) = self.narrowed(slot, past, tile);
        }
        Some(slot)
    }

    /// A round of [`last_slot_by_warp`](Self::last_slot_by_warp): of the slots from `slot` to before `past`, the
    /// 32nd part in which it is.
    #[inline(always)]
    fn narrowed(self, slot: u32, past: u32, tile: u32) -> (u32, u32) {
        let lane = thread::thread_idx_x() % WARP;
        let step = (past - slot).div_ceil(WARP);
        let probe = slot + lane * step;
        let early_enough = probe < past && self.tile_start(probe) <= tile;
        // SAFETY: whole warps call this, and all lanes have the same range.
        let ballot = unsafe { warp::warp_vote_ballot(u32::MAX, early_enough) };
        let slot = slot + (ballot | 1).ilog2() * step;
        (slot, past.min(slot + step))
    }

    /// The last slot that begins early enough, or the first one: a bisection, as slots begin in order.
    #[inline(always)]
    fn last_slot(self, begins_early_enough: impl Fn(u32) -> bool) -> u32 {
        let mut slot = 0;
        let mut past = self.slots;
        while slot + 1 < past {
            let middle = slot + (past - slot) / 2;
            if begins_early_enough(middle) {
                slot = middle;
            } else {
                past = middle;
            }
        }
        slot
    }
}
