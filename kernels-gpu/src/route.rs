//! Routing tables on the device: from top-k expert ids to grouped rows.
//!
//! `ids[token, k]` names the experts of a token; −1 (or any id outside the range) is nobody. The
//! three entries, launched one after the other, make the tables that the quantizer reads:
//!
//! 1. [`route_count()`]: how many rows each expert gets;
//! 2. [`route_offsets()`]: where each expert's rows and scale tiles begin;
//! 3. [`route_place()`]: which token each row is a copy of, in ascending order within an expert.
//!
//! The order is the same on every run: a block counts its way through the ids of one expert
//! instead of racing others for places with atomics.

use crate::WARP;
use crate::prefix_sum::block_exclusive_sum;
use crate::scale_tile::TILE_ROWS;
use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::view::{GlobalView, GlobalViewMut, SharedView};

/// Threads of a block, in all three entries: what their launch bounds say.
pub const THREADS: u32 = 256;

/// Dynamic shared memory of all three entries: a word for each warp.
pub const SHARED_BYTES: usize = WARPS as usize * 4;

const WARPS: u32 = THREADS / WARP;

/// The view of [`SHARED_BYTES`].
#[inline(always)]
fn scratch() -> SharedView<u32> {
    // SAFETY: every entry demands this much shared memory of its launch.
    unsafe { SharedView::new(shared::dynamic_shared_mem(), WARPS as usize) }
}

/// Counts the rows of expert `block_idx_x`: `counts[expert]`.
///
/// Launch with `experts` blocks of [`THREADS`] threads and [`SHARED_BYTES`].
///
/// # Safety
///
/// `ids` holds `assignments` (tokens times top-k, below 2^31) values, `counts` has room for one per
/// block.
#[kernel(max_threads = 256)]
pub unsafe fn route_count(ids: *const i32, assignments: u32, counts: *mut u32) {
    // SAFETY: the caller's obligation.
    let (ids, counts) = unsafe {
        (
            GlobalView::new(ids, assignments as usize),
            GlobalViewMut::new(counts, thread::grid_dim_x() as usize),
        )
    };
    let expert = thread::block_idx_x();
    let mut mine = 0;
    let mut next = thread::thread_idx_x();
    while next < assignments {
        mine += (ids.load(next as usize) as u32 == expert) as u32;
        next += THREADS;
    }
    let (_, total) = block_exclusive_sum(scratch(), WARPS, mine);
    if thread::thread_idx_x() == 0 {
        counts.store(expert as usize, total);
    }
}

/// Turns counts into `row_offsets[experts + 1]`, `scales_offsets[experts]` and the identity
/// `expert_ids[experts]`.
///
/// Launch with one block of [`THREADS`] threads and [`SHARED_BYTES`].
///
/// # Safety
///
/// The arrays have the lengths above; their sum of counts fits 32 bits.
#[kernel(max_threads = 256)]
pub unsafe fn route_offsets(
    counts: *const u32,
    experts: u32,
    row_offsets: *mut u32,
    scales_offsets: *mut u32,
    expert_ids: *mut i32,
) {
    // SAFETY: the caller's obligation.
    let (counts, row_offsets, scales_offsets, expert_ids) = unsafe {
        (
            GlobalView::new(counts, experts as usize),
            GlobalViewMut::new(row_offsets, experts as usize + 1),
            GlobalViewMut::new(scales_offsets, experts as usize),
            GlobalViewMut::new(expert_ids, experts as usize),
        )
    };
    let mut rows_before = 0;
    let mut tiles_before = 0;
    let mut first = 0;
    while first < experts {
        let expert = first + thread::thread_idx_x();
        let count = if expert < experts {
            counts.load(expert as usize)
        } else {
            0
        };
        let (rows, row_total) = block_exclusive_sum(scratch(), WARPS, count);
        let (tiles, tile_total) = block_exclusive_sum(scratch(), WARPS, count.div_ceil(TILE_ROWS));
        if expert < experts {
            let row_offset = rows_before + rows;
            row_offsets.store(expert as usize, row_offset);
            scales_offsets.store(
                expert as usize,
                tiles_before + tiles - row_offset / TILE_ROWS,
            );
            expert_ids.store(expert as usize, expert as i32);
        }
        rows_before += row_total;
        tiles_before += tile_total;
        first += THREADS;
    }
    if thread::thread_idx_x() == 0 {
        row_offsets.store(experts as usize, rows_before);
    }
}

/// Writes, for each row of expert `block_idx_x`, the token it is a copy of.
///
/// Launch with `experts` blocks of [`THREADS`] threads and [`SHARED_BYTES`].
///
/// # Safety
///
/// `ids` holds `assignments` (below 2^31) values, `top_k` (at least 1) for each token; `row_offsets`
/// holds a value more than there are blocks; `source_rows` has room for `assignments` values. The
/// result means something if `row_offsets` is what [`route_offsets()`] made of the same ids.
#[kernel(max_threads = 256)]
pub unsafe fn route_place(
    ids: *const i32,
    assignments: u32,
    top_k: u32,
    row_offsets: *const u32,
    source_rows: *mut i32,
) {
    let expert = thread::block_idx_x();
    // SAFETY: the caller's obligation.
    let (ids, row_offsets, source_rows) = unsafe {
        (
            GlobalView::new(ids, assignments as usize),
            GlobalView::new(row_offsets, thread::grid_dim_x() as usize + 1),
            GlobalViewMut::new(source_rows, assignments as usize),
        )
    };
    let mut next_row = row_offsets.load(expert as usize);
    let mut first = 0;
    while first < assignments {
        let assignment = first + thread::thread_idx_x();
        let mine = assignment < assignments && ids.load(assignment as usize) as u32 == expert;
        let (before, total) = block_exclusive_sum(scratch(), WARPS, mine as u32);
        // Offsets made of other ids must not lead outside.
        let place = next_row.saturating_add(before);
        if mine && place < assignments {
            source_rows.store(place as usize, (assignment / top_k) as i32);
        }
        next_row = next_row.saturating_add(total);
        first += THREADS;
    }
}
