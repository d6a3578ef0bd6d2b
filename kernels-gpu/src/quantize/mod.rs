//! Grouped dynamic quantization.
//!
//! Activation rows arrive grouped by expert. A thread block takes a piece of the scales tensor: one
//! row tile (128 rows of one expert) by one or more *runs* of [`RUN_COLUMNS`] columns. It finds the
//! expert by a search over the offsets, quantizes the rows, collects their block scales in shared
//! memory, already in the 128x4 layout, and lets the copy engine write them out.
//!
//! ```text
//!           one run, 512 columns: a warp reads a row of it, 16 elements a lane
//!          ┌──────────────────────────────┐
//!  warp 0  │ row 0, 8, 16 ...             │──► elements: straight to global memory
//!  warp 1  │ row 1, 9, 17 ...             │
//!    :     │   :                          │──► scales: to shared memory, padding already zero,
//!  warp 7  │ row 7, 15, 23 ...            │    then 512 bytes a tile by the copy engine
//!          └──────────────────────────────┘
//! ```
//!
//! Drawn is a block of eight warps; it may have fewer or more, as the host sees fit for the number of blocks. With `n` runs
//! per block, `n` warps share a row: that is for experts with few rows each, where one run would leave most warps
//! without any.
//!
//! Row tiles beyond the last occupied one ("slack") leave at once: the scales tensor is sized by an
//! upper bound, as the host does not know how many rows each expert got.
//!
//! The files: `source` is what a lane reads, `tile` what becomes of a row, [`scale_store`](ScaleStore) how scales leave,
//! `entries` the list of kernels.

mod entries;
mod scale_store;
mod source;
mod tile;

pub use entries::*;
pub use scale_store::ScaleStore;

use crate::WARP;
use crate::expert_search::Groups;
use crate::formats::{BlockFormat, CHUNK, ElementFormat, InputFormat, NvFp4, Rules, TensorScale};
use crate::scale_tile::{TILE_BYTES, TILE_ROWS};
use core::simd::u32x4;
use cuda_std::prelude::*;
use cuda_std::view::{GlobalView, GlobalViewMut, SharedView};
use cuda_std::{cfg, fence, misc, shared, tma};
use scale_store::StagedTiles;
use source::{Loaded, Source};
use tile::Tile;

/// Most threads of a block, unless the [list](crate::for_each_quantize_entry) holds an entry to fewer.
pub const MAX_THREADS: u32 = 1024;

/// The same below compute capability 9.0, where kernels take more registers.
pub const MAX_THREADS_BEFORE_9_0: u32 = 256;

/// Most runs that a block can take.
pub const MAX_RUNS_PER_BLOCK: u32 = 8;

/// Chunks that a lane handles side by side: 16 elements, a whole NVFP4 block or half an MX block. That
/// halves the scale arithmetic and the shuffles; the price is two 16-byte loads instead of one.
const CHUNKS_PER_LANE: u32 = 2;

/// Columns of a *run*: what one warp reads of a row.
pub const RUN_COLUMNS: u32 = WARP * CHUNKS_PER_LANE * CHUNK;

/// Rows that a warp loads before it works on the first of them, to keep loads in flight.
const ROWS_IN_FLIGHT: u32 = 2;

/// Scale tiles side by side in a run.
const fn tiles_per_run<F: BlockFormat>() -> u32 {
    RUN_COLUMNS / F::TILE_COLUMNS
}

/// Bytes of dynamic shared memory that a launch must give, for any format: the scale tiles of all runs,
/// then the [table](BlockFormat::TABLE).
pub const fn shared_bytes(runs_per_block: u32) -> usize {
    (runs_per_block * tiles_per_run::<NvFp4>()) as usize * TILE_BYTES
        + NvFp4::TABLE * size_of::<f32>()
}

/// Thread blocks, as a line, that cover `row_tiles` row tiles of `columns` columns.
pub const fn grid_size(row_tiles: u32, columns: u32, runs_per_block: u32) -> u64 {
    row_tiles as u64 * columns.div_ceil(RUN_COLUMNS).div_ceil(runs_per_block) as u64
}

/// What every entry takes, in the order of its parameters.
#[derive(Clone, Copy)]
struct Arguments {
    /// `[input_rows, columns]`, row-major.
    input: *const u32x4,
    input_rows: u32,
    /// A multiple of 8.
    columns: u32,
    /// `[rows, columns]` elements, packed, row-major.
    data: *mut u8,
    rows: u32,
    /// `[row_tiles, ceil(columns / tile columns), 32, 4, 4]`.
    scales: *mut u8,
    row_tiles: u32,
    scale_map: *const tma::TensorMap,
    row_offsets: *const u32,
    scales_offsets: *const u32,
    expert_ids: *const i32,
    slots: u32,
    sf: *const f32,
    sf_len: u32,
    source_rows: *const i32,
    rules: u32,
    scale_store: u32,
    runs_per_block: u32,
}

/// The whole kernel, for one format and input type.
///
/// A `TWIN` is the kernel's *traffic twin*: the same grid, loads and stores, and no arithmetic between
/// them. What it writes means nothing; how long it takes is the bound that memory puts on the kernel.
///
/// # Safety
///
/// The pointers must be what [`Arguments`] says. The launch must be what [`grid_size`] and [`shared_bytes`] say;
/// `runs_per_block` is a power of two up to [`MAX_RUNS_PER_BLOCK`], and a block has at most [`MAX_THREADS`], a multiple
/// of as many warps.
#[inline(always)]
unsafe fn grouped_quantize<F: BlockFormat, I: InputFormat, const TWIN: bool>(args: Arguments) {
    const {
        assert!(
            RUN_COLUMNS.is_multiple_of(F::TILE_COLUMNS),
            "a run is made of whole scale tiles"
        );
        assert!(
            tiles_per_run::<F>() <= tiles_per_run::<NvFp4>() && F::TABLE <= NvFp4::TABLE,
            "shared memory is enough for every format"
        );
        assert!(
            F::BLOCK.is_multiple_of(CHUNKS_PER_LANE * CHUNK) && F::BLOCK.is_power_of_two(),
            "a block is a power of two of lanes, so that XOR shuffles stay inside it"
        );
    }
    let thread = thread::thread_idx_x();
    let (warp, lane) = (thread / WARP, thread % WARP);
    let runs_per_block = args.runs_per_block;
    // SAFETY: the caller's obligation. Each division by these would otherwise come with a panic for zero.
    unsafe {
        core::hint::assert_unchecked(runs_per_block != 0 && runs_per_block <= MAX_RUNS_PER_BLOCK);
        core::hint::assert_unchecked(args.columns != 0);
    };
    let blocks_per_tile = args.columns.div_ceil(RUN_COLUMNS).div_ceil(runs_per_block);
    // Where a thread block's piece begins: row tile and run.
    let piece = |block: u32| {
        let first_run = block % blocks_per_tile * runs_per_block;
        (block / blocks_per_tile, first_run)
    };
    let (row_tile, first_run) = piece(thread::block_idx_x());

    // SAFETY: the caller's obligation; `rows_in_tile` reads slots 0 to `slots` only.
    let groups = unsafe {
        Groups {
            row_offsets: GlobalView::new(args.row_offsets, args.slots as usize + 1),
            scales_offsets: GlobalView::new(args.scales_offsets, args.slots as usize),
            slots: args.slots,
            rows: args.rows,
        }
    };
    let Some(tile_rows) = groups.rows_in_tile(row_tile) else {
        return;
    };

    // Warps side by side in a row of the tile, then the next row.
    let run_in_block = warp % runs_per_block;
    let first_row = warp / runs_per_block;
    let threads = thread::block_dim_x();
    let stride = threads / WARP / runs_per_block;
    // SAFETY: the caller's obligation: every run has a warp, and a block has at most `MAX_THREADS`. What the compiler
    // derives from it keeps it from spilling registers.
    unsafe {
        core::hint::assert_unchecked(stride != 0 && stride <= MAX_THREADS / WARP);
        core::hint::assert_unchecked(first_row < MAX_THREADS / WARP);
    };
    let chunks_per_row = args.columns / CHUNK;
    let chunk = ((first_run + run_in_block) * WARP + lane) * CHUNKS_PER_LANE;
    let chunk_vectors = I::VECTORS as u32;
    // SAFETY: the caller's obligation: the extents are those that the arguments state, and rows,
    // source rows and chunks are checked against them before they are used as indices.
    let source = unsafe {
        Source {
            first_row: tile_rows.first_row,
            rows: tile_rows.rows,
            chunk,
            chunks_per_row,
            input: GlobalView::new(
                args.input,
                args.input_rows as usize * chunks_per_row as usize * I::VECTORS,
            )
            .skip((chunk.min(chunks_per_row - 1) * chunk_vectors) as usize),
            input_rows: args.input_rows,
            pitch: chunks_per_row * chunk_vectors * size_of::<u32x4>() as u32,
            source_rows: (!args.source_rows.is_null())
                .then(|| GlobalView::new(args.source_rows, args.rows as usize)),
        }
    };

    // A pair and not an array: the compiler keeps a loop over an array of chunks a loop, and the array
    // then lies in local memory.
    let load = |row| {
        (
            source.load_nearest::<I>(row),
            source.load_nearest::<I>(row + stride),
        )
    };
    // The first rows are on their way while the expert's factor and the table are prepared. That is
    // most of the time that an expert with few rows takes.
    let readable = args.input_rows > 0;
    let early = if readable {
        load(first_row)
    } else {
        (Loaded::nothing(), Loaded::nothing())
    };

    // SAFETY: the caller's obligation; `slot` is below `slots`.
    let expert = unsafe { GlobalView::new(args.expert_ids, args.slots as usize) }
        .load(tile_rows.slot as usize) as u32;
    let (rows, encode) = if expert < args.sf_len {
        // SAFETY: the caller's obligation; `expert` was checked. A negative id became a large one,
        // and `sf_len` is below 2^31.
        let sf = unsafe { GlobalView::new(args.sf, args.sf_len as usize) };
        (tile_rows.rows, sf.load(expert as usize))
    } else {
        // No such expert: its rows stay as they are, its scales become zero.
        (0, 1.0)
    };

    let staging = shared::dynamic_shared_mem::<u8>();
    let staged_tiles = |block| {
        let (row_tile, first_run) = piece(block);
        let column_tiles = args.columns.div_ceil(F::TILE_COLUMNS);
        let first_tile = first_run * tiles_per_run::<F>();
        StagedTiles {
            staging,
            tiles: (runs_per_block * tiles_per_run::<F>()).min(column_tiles - first_tile),
            scales: args.scales,
            scales_tiles: args.row_tiles as usize * column_tiles as usize,
            scale_map: args.scale_map,
            first: row_tile * column_tiles + first_tile,
        }
    };
    let scale_store = ScaleStore::from_bits(args.scale_store);
    let tensor_scale = TensorScale::new(encode);
    let rules = Rules::from_bits(args.rules);
    // SAFETY: the caller's obligation: the extents of `data`, and that shared memory holds the scale
    // tiles of `runs_per_block` runs and the table.
    let tile = unsafe {
        let run_bytes = tiles_per_run::<F>() as usize * TILE_BYTES;
        let chunks = args.rows as usize * chunks_per_row as usize;
        Tile::<F> {
            source,
            encode,
            rules,
            prepared: F::prepare(tensor_scale, rules),
            table: SharedView::new(
                staging.add(runs_per_block as usize * run_bytes).cast(),
                F::TABLE,
            ),
            scale_place: Tile::<F>::scale_place(lane),
            data: GlobalViewMut::new(args.data.cast(), chunks).skip(chunk as usize),
            pitch: chunks_per_row * size_of::<<F::Element as ElementFormat>::Packed>() as u32,
            staging: SharedView::new(staging.add(run_in_block as usize * run_bytes), run_bytes),
            swizzle_mask: scale_store.swizzle_mask(),
        }
    };
    staged_tiles(thread::block_idx_x()).clear(thread, threads);
    let mut index = thread;
    while index < F::TABLE as u32 {
        let entry = F::table_entry(index, tensor_scale, rules);
        tile.table.store(index as usize, entry);
        index += threads;
    }
    thread::sync_threads();

    let mut row = first_row;
    let mut uncommon = UncommonRows::ALL;
    if readable {
        uncommon = UncommonRows::NONE;
        if row < rows {
            // The only turn, and often without a second row, where experts have few rows.
            uncommon.note(0, tile.work::<I, false, TWIN>(row, stride, early));
        }
        row += stride * ROWS_IN_FLIGHT;
        while row < rows {
            // Turn and first row from the row, as each would be one more register in every turn.
            let turn = row / stride;
            uncommon.note(turn, tile.work::<I, true, TWIN>(row, stride, load(row)));
            row += stride * ROWS_IN_FLIGHT;
        }
    }
    uncommon.for_each(|turn| {
        let row = row % stride + turn * stride;
        if row < rows {
            tile.quantize_with_care::<I>(row);
        }
    });

    // The copy engine reads shared memory through the async proxy; the stores above went through the
    // generic one.
    if cfg::has_bulk_copy() {
        fence::proxy_async_shared();
    }
    thread::sync_threads();
    // Worked out again, as it would otherwise take two registers through all of the above.
    let staged = staged_tiles(misc::hidden(thread::block_idx_x()));
    // SAFETY: the fields of `staged` are the caller's; the scales are staged and fenced.
    unsafe { staged.leave(scale_store, thread, threads) };
}

/// The rows of a warp that have an uncommon block, by the warp's turns.
///
/// They are read a second time and handled after all others, so that what they need takes no
/// registers from those.
#[derive(Clone, Copy)]
struct UncommonRows(u32);

impl UncommonRows {
    const NONE: Self = Self(0);
    const ALL: Self = Self(u32::MAX);

    /// The last bit stands for all turns from here on, of which a warp has as many as a tile rows.
    const LAST: u32 = u32::BITS - 1;

    /// Takes the rows of this turn and the next, unless they are done.
    #[inline(always)]
    fn note(&mut self, turn: u32, done: bool) {
        if !done {
            self.0 |= 1 << turn.min(Self::LAST) | 1 << (turn + 1).min(Self::LAST);
        }
    }

    /// Calls `handle` with each turn, and with turns beyond [`LAST`](Self::LAST) that were not inserted
    /// if one of them was. They may not exist.
    #[inline(always)]
    fn for_each(self, mut handle: impl FnMut(u32)) {
        if self.0 == 0 {
            return;
        }
        let mut turn = 0;
        while turn < TILE_ROWS {
            if self.0 & 1 << turn.min(Self::LAST) != 0 {
                handle(turn);
            }
            turn += 1;
        }
    }
}
