//! Grouped dynamic quantization.
//!
//! Activation rows arrive grouped by expert. Each thread block takes one piece of the scales
//! tensor: one row tile (128 rows of one expert) by [`RUN_COLUMNS`] columns. It finds the expert by
//! bisection, quantizes the rows, collects their block scales in shared memory, already in the 128x4
//! layout, and lets the copy engine write them out.
//!
//! ```text
//!           512 columns: one warp reads a row of it, 16 elements a lane
//!          ┌──────────────────────────────┐
//!  warp 0  │ row 0, 4, 8 ...              │──► elements: straight to global memory
//!  warp 1  │ row 1, 5, 9 ...              │
//!  warp 2  │ row 2, 6, 10 ...             │──► scales: to shared memory, padding already zero,
//!  warp 3  │ row 3, 7, 11 ...             │    then 512 bytes a tile by the copy engine
//!          └──────────────────────────────┘
//! ```
//!
//! Row tiles beyond the last occupied one ("slack") leave at once: the scales tensor is sized by an
//! upper bound, as the host does not know how many rows each expert got.

use crate::WARP;
use crate::expert_search::Groups;
use crate::formats::{
    Amax, Bf16, BlockFormat, CHUNK, ElementFormat, F16, F32, InputFormat, Multiplier, MxFp4, MxFp8,
    NvFp4, Rules, TensorScale,
};
use crate::scale_tile::{self, TILE_BYTES};
use core::simd::u32x4;
use cuda_std::prelude::*;
use cuda_std::view::{GlobalView, GlobalViewMut, SharedView};
use cuda_std::{cfg, fence, shared, tma, warp};

/// All lanes of a warp.
const FULL_MASK: u32 = u32::MAX;

/// Chunks that a lane handles side by side: 16 elements, a whole NVFP4 block or half an MX block. That
/// halves the scale arithmetic and the shuffles; the price is two 16-byte loads instead of one.
const CHUNKS_PER_LANE: u32 = 2;

/// Columns of a *run*: what one warp reads of a row, and a thread block of each of its rows.
pub const RUN_COLUMNS: u32 = WARP * CHUNKS_PER_LANE * CHUNK;

/// Rows that a warp loads before it works on the first of them, to keep loads in flight.
const ROWS_IN_FLIGHT: u32 = 2;

/// Bytes of shared memory that a block stages its scale tiles in, for any format.
const STAGING_BYTES: usize = column_tiles_per_block::<NvFp4>() as usize * TILE_BYTES;

/// Bytes of dynamic shared memory that a launch must give, for any format: scale tiles, then the
/// [table](BlockFormat::TABLE).
pub const SHARED_BYTES: usize = STAGING_BYTES + NvFp4::TABLE * size_of::<f32>();

/// Scale tiles side by side in the columns of one block.
const fn column_tiles_per_block<F: BlockFormat>() -> u32 {
    RUN_COLUMNS / F::TILE_COLUMNS
}

/// Thread blocks that cover a scales tensor, as a line, of `row_tiles` by `ceil(columns / tile columns)`.
pub const fn grid_size(row_tiles: u32, columns: u32) -> u64 {
    row_tiles as u64 * columns.div_ceil(RUN_COLUMNS) as u64
}

/// How the scale tiles leave.
///
/// A kernel argument: the mode, and for a tensor map the swizzle mask of
/// [`scale_tile::Swizzle`] above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleStore(u32);

impl ScaleStore {
    /// Each thread copies 16 bytes. The only way below compute capability 9.0.
    pub const PLAIN: Self = Self(0);
    /// One bulk copy of all tiles of the block.
    pub const BULK: Self = Self(1);

    const TENSOR_MAP: u32 = 2;

    /// One tensor-map copy a tile, staged with this swizzle.
    pub const fn tensor_map(swizzle: scale_tile::Swizzle) -> Self {
        Self(Self::TENSOR_MAP | swizzle.mask() << 8)
    }

    /// The word, as a kernel argument.
    pub const fn bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    const fn swizzle_mask(self) -> u32 {
        self.0 >> 8
    }

    #[inline(always)]
    const fn is_tensor_map(self) -> bool {
        self.0 & Self::TENSOR_MAP != 0
    }
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
}

/// A thread block's share of the problem, after the expert is known.
struct TileTask<F: BlockFormat, I: InputFormat> {
    /// First row, in the order of the whole tensor, and number of rows.
    first_row: u32,
    rows: u32,
    tensor_scale: TensorScale,
    rules: Rules,
    prepared: F::Prepared,
    table: SharedView<f32>,
    lane: u32,
    /// The first of the two chunks of a row that this lane handles.
    chunk: u32,
    chunks_per_row: u32,
    input: GlobalView<u32x4>,
    input_rows: u32,
    source_rows: Option<GlobalView<i32>>,
    /// The same memory by chunks and by pairs of chunks.
    data: GlobalViewMut<<F::Element as ElementFormat>::Packed>,
    data_pairs: GlobalViewMut<<F::Element as ElementFormat>::PackedPair>,
    staging: SharedView<u8>,
    swizzle_mask: u32,
    _input: core::marker::PhantomData<I>,
}

/// The whole kernel, for one format, input type and block size.
///
/// A `TWIN` is the kernel's *traffic twin*: the same grid, loads and stores, and no arithmetic between
/// them. What it writes means nothing; how long it takes is the bound that memory puts on the kernel.
///
/// # Safety
///
/// The pointers must be what [`Arguments`] says, and the launch must give [`SHARED_BYTES`] of
/// dynamic shared memory, `THREADS` threads and [`grid_size`] blocks.
#[inline(always)]
unsafe fn grouped_quantize<F: BlockFormat, I: InputFormat, const THREADS: u32, const TWIN: bool>(
    args: Arguments,
) {
    const {
        assert!(THREADS.is_multiple_of(WARP), "rows are read by whole warps");
        assert!(
            RUN_COLUMNS.is_multiple_of(F::TILE_COLUMNS),
            "a thread block covers whole scale tiles"
        );
        assert!(
            column_tiles_per_block::<F>() as usize * TILE_BYTES <= STAGING_BYTES,
            "the staging area holds the scale tiles of every format"
        );
        assert!(
            F::BLOCK.is_multiple_of(CHUNKS_PER_LANE * CHUNK) && F::BLOCK.is_power_of_two(),
            "a block is a power of two of lanes, so that XOR shuffles stay inside it"
        );
    }
    let thread = thread::thread_idx_x();
    let runs = args.columns.div_ceil(RUN_COLUMNS);
    let row_tile = thread::block_idx_x() / runs;
    let run = thread::block_idx_x() % runs;

    // SAFETY: the caller's obligation; `rows_in_tile` reads slots 0 to `slots` only.
    let groups = unsafe {
        Groups {
            row_offsets: GlobalView::new(args.row_offsets, args.slots as usize + 1),
            scales_offsets: GlobalView::new(args.scales_offsets, args.slots as usize),
            slots: args.slots,
            rows: args.rows,
        }
    };
    let Some(tile) = groups.rows_in_tile(row_tile) else {
        return;
    };

    // SAFETY: the caller's obligation; `slot` is below `slots`.
    let expert = unsafe { GlobalView::new(args.expert_ids, args.slots as usize) }
        .load(tile.slot as usize) as u32;
    let (rows, encode) = if expert < args.sf_len {
        // SAFETY: the caller's obligation; `expert` was checked. A negative id became a large one,
        // and `sf_len` is below 2^31.
        let sf = unsafe { GlobalView::new(args.sf, args.sf_len as usize) };
        (tile.rows, sf.load(expert as usize))
    } else {
        // No such expert: its rows stay as they are, its scales become zero.
        (0, 1.0)
    };

    let tensor_scale = TensorScale::new(encode);
    let rules = Rules::from_bits(args.rules);

    let lane = thread % WARP;
    let staging = shared::dynamic_shared_mem::<u8>();
    let chunks_per_row = args.columns / CHUNK;
    let scale_store = ScaleStore(args.scale_store);
    // SAFETY: the caller's obligation: the extents are those that the arguments state, and rows,
    // source rows and chunks are checked against them before they are used as indices.
    let task = unsafe {
        TileTask::<F, I> {
            first_row: tile.first_row,
            rows,
            tensor_scale,
            rules,
            prepared: F::prepare(tensor_scale, rules),
            table: SharedView::new(staging.add(STAGING_BYTES).cast(), F::TABLE),
            lane,
            chunk: (run * WARP + lane) * CHUNKS_PER_LANE,
            chunks_per_row,
            input: GlobalView::new(
                args.input,
                args.input_rows as usize * chunks_per_row as usize * I::VECTORS,
            ),
            input_rows: args.input_rows,
            source_rows: (!args.source_rows.is_null())
                .then(|| GlobalView::new(args.source_rows, args.rows as usize)),
            data: GlobalViewMut::new(
                args.data.cast(),
                args.rows as usize * chunks_per_row as usize,
            ),
            data_pairs: GlobalViewMut::new(
                args.data.cast(),
                args.rows as usize * chunks_per_row as usize / CHUNKS_PER_LANE as usize,
            ),
            staging: SharedView::new(staging, STAGING_BYTES),
            swizzle_mask: scale_store.swizzle_mask(),
            _input: core::marker::PhantomData,
        }
    };

    // SAFETY: the same memory as `task.staging`, in words.
    let staged_words = unsafe { SharedView::<u32x4>::new(staging.cast(), STAGING_BYTES / 16) };
    let mut word = thread as usize;
    while word < column_tiles_per_block::<F>() as usize * TILE_BYTES / 16 {
        // Rows and columns that do not exist have scale 0x00.
        staged_words.store(word, u32x4::splat(0));
        word += THREADS as usize;
    }
    let mut index = thread;
    while index < F::TABLE as u32 {
        let entry = F::table_entry(index, tensor_scale, rules);
        task.table.store(index as usize, entry);
        index += THREADS;
    }
    thread::sync_threads();

    let warps = THREADS / WARP;
    let mut row = thread / WARP;
    while row < rows {
        task.quantize_rows::<TWIN>(row, warps);
        row += warps * ROWS_IN_FLIGHT;
    }

    // The copy engine reads shared memory through the async proxy; the stores above went through the
    // generic one.
    if cfg::has_bulk_copy() {
        fence::proxy_async_shared();
    }
    thread::sync_threads();

    let column_tiles = args.columns.div_ceil(F::TILE_COLUMNS);
    let first_tile = run * column_tiles_per_block::<F>();
    let tiles = column_tiles_per_block::<F>().min(column_tiles - first_tile);
    let tile_index = row_tile as usize * column_tiles as usize + first_tile as usize;
    if !cfg::has_bulk_copy() || scale_store == ScaleStore::PLAIN {
        // SAFETY: the caller's obligation on the extent of `scales`.
        let scales = unsafe {
            GlobalViewMut::<u32x4>::new(
                args.scales.cast(),
                args.row_tiles as usize * column_tiles as usize * TILE_BYTES / 16,
            )
        };
        let mut word = thread as usize;
        while word < tiles as usize * TILE_BYTES / 16 {
            scales.store(tile_index * TILE_BYTES / 16 + word, staged_words.load(word));
            word += THREADS as usize;
        }
    } else if thread == 0 {
        let staging = task.staging.as_ptr();
        if scale_store.is_tensor_map() {
            // SAFETY: the map is valid, as the caller promises; it is 64-byte aligned by its type and
            // 128-byte aligned as the host allocates it.
            unsafe { fence::proxy_tensor_map_acquire(args.scale_map) };
            let mut next = 0;
            while next < tiles {
                // SAFETY: the map describes `scales` as `[tiles, ...]`; the tile is staged and
                // fenced, and stays until the wait below.
                unsafe {
                    tma::tensor_store_3d(
                        args.scale_map,
                        [0, 0, tile_index as i32 + next as i32],
                        staging.add(next as usize * TILE_BYTES),
                    );
                }
                next += 1;
            }
        } else {
            // SAFETY: as above; the tiles of a run lie side by side in `scales`.
            unsafe {
                tma::bulk_store(
                    args.scales.add(tile_index * TILE_BYTES),
                    staging,
                    tiles * TILE_BYTES as u32,
                );
            }
        }
        tma::commit_group();
        // Shared memory must outlive the read; the writes complete with the grid.
        tma::wait_group_read::<0>();
    }
}

/// What a lane has read of a row.
#[derive(Clone, Copy)]
struct Loaded<I: InputFormat> {
    first: I::Chunk,
    second: I::Chunk,
}

impl<F: BlockFormat, I: InputFormat> TileTask<F, I> {
    /// Lanes that share a block.
    const LANES_PER_BLOCK: u32 = F::BLOCK / (CHUNKS_PER_LANE * CHUNK);

    /// Quantizes this lane's chunks in [`ROWS_IN_FLIGHT`] rows of the tile: `row` and `row + stride`.
    ///
    /// Called by whole warps: lanes exchange their largest magnitudes.
    #[inline(always)]
    fn quantize_rows<const TWIN: bool>(&self, row: u32, stride: u32) {
        // Written out: the compiler keeps a loop over an array of chunks a loop, and the array then
        // lies in local memory.
        let this = self.load(row);
        let next = self.load(row + stride);
        if TWIN {
            self.move_row(row, this);
        } else {
            self.quantize_row(row, this);
        }
        if row + stride < self.rows {
            if TWIN {
                self.move_row(row + stride, next);
            } else {
                self.quantize_row(row + stride, next);
            }
        }
    }

    /// What is left of [`quantize_row`](Self::quantize_row) in the traffic twin: every loaded bit
    /// goes into the stored ones, or the compiler would shorten the loads.
    #[inline(always)]
    fn move_row(&self, row: u32, loaded: Loaded<I>) {
        let (first, second) = (I::folded(loaded.first), I::folded(loaded.second));
        let scale = (first ^ second)[0] as u8;
        self.store(
            row,
            F::Element::folded(first),
            F::Element::folded(second),
            scale,
        );
    }

    /// This lane's chunks of a row; zeros where there are none.
    #[inline(always)]
    fn load(&self, row: u32) -> Loaded<I> {
        let nothing = Loaded {
            first: I::zeros(),
            second: I::zeros(),
        };
        if row >= self.rows || self.chunk >= self.chunks_per_row {
            return nothing;
        }
        let row = self.first_row + row;
        let source = match self.source_rows {
            Some(rows) => rows.load(row as usize) as u32,
            None => row,
        };
        if source >= self.input_rows {
            return nothing;
        }
        let index = self.chunk_index(source);
        Loaded {
            first: I::load(self.input, index),
            second: if self.chunk + 1 < self.chunks_per_row {
                I::load(self.input, index + 1)
            } else {
                I::zeros()
            },
        }
    }

    /// Where this lane's first chunk of a row lies in a tensor.
    #[inline(always)]
    fn chunk_index(&self, row: u32) -> usize {
        row as usize * self.chunks_per_row as usize + self.chunk as usize
    }

    #[inline(always)]
    fn quantize_row(&self, row: u32, loaded: Loaded<I>) {
        let Loaded { first, second } = loaded;
        let amax = I::amax_or_nan(first).max(I::amax_or_nan(second));
        let scale = F::common_scale::<I>(self.block_amax(amax), self.prepared, self.table);
        // A decision of the whole warp, so that lanes stay together for their next exchange.
        // SAFETY: every lane of the warp is here: rows are handed out to whole warps.
        if unsafe { warp::warp_vote_all(FULL_MASK, scale.applies) } {
            let quantize = |chunk| F::Element::quantize_chunk::<I>(chunk, scale.multiplier);
            self.store(row, quantize(first), quantize(second), scale.code);
        } else {
            self.quantize_row_with_care(row, loaded);
        }
    }

    /// Quantizes a row that has an uncommon block.
    #[inline(always)]
    fn quantize_row_with_care(&self, row: u32, loaded: Loaded<I>) {
        let Loaded { first, second } = loaded;
        let mut amax = I::amax_or_nan(first).max(I::amax_or_nan(second));
        let has_nan = amax.is_nan();
        if has_nan && !self.rules.propagate_nan() {
            amax = I::amax_of_numbers(first).max(I::amax_of_numbers(second));
        }
        let amax = self.block_amax(amax);
        let scale = F::block_scale(amax.to_f32(), self.tensor_scale, self.rules);
        let multiplier = if has_nan {
            Multiplier::Any(scale.multiplier.factor())
        } else {
            scale.multiplier
        };
        let quantize = |chunk| {
            if scale.dead {
                F::Element::zeros()
            } else {
                F::Element::quantize_chunk::<I>(chunk, multiplier)
            }
        };
        self.store(row, quantize(first), quantize(second), scale.code);
    }

    /// Stores this lane's chunks of a row, and their block's scale if this is its first lane.
    #[inline(always)]
    fn store(
        &self,
        row: u32,
        first: <F::Element as ElementFormat>::Packed,
        second: <F::Element as ElementFormat>::Packed,
        scale: u8,
    ) {
        if self.chunk >= self.chunks_per_row {
            return;
        }
        self.store_elements(row, first, second);
        if self.lane.is_multiple_of(Self::LANES_PER_BLOCK) {
            let block = self.lane / Self::LANES_PER_BLOCK;
            let tiles = column_tiles_per_block::<F>();
            // The staging area is a scales tensor of one row tile.
            let offset = scale_tile::offset_in_tensor(0, row, block, tiles);
            self.staging
                .store(scale_tile::swizzled(offset, self.swizzle_mask), scale);
        }
    }

    /// Stores this lane's chunks of a row: in one access where every row is aligned for it.
    #[inline(always)]
    fn store_elements(
        &self,
        row: u32,
        first: <F::Element as ElementFormat>::Packed,
        second: <F::Element as ElementFormat>::Packed,
    ) {
        let index = self.chunk_index(self.first_row + row);
        if self.chunks_per_row.is_multiple_of(CHUNKS_PER_LANE) {
            self.data_pairs.store(
                index / CHUNKS_PER_LANE as usize,
                F::Element::concat(first, second),
            );
        } else {
            self.data.store(index, first);
            if self.chunk + 1 < self.chunks_per_row {
                self.data.store(index + 1, second);
            }
        }
    }

    /// The largest magnitude of the block that this lane's chunks belong to.
    #[inline(always)]
    fn block_amax(&self, mut amax: Amax) -> Amax {
        let mut distance = 1;
        while distance < Self::LANES_PER_BLOCK {
            // SAFETY: every lane of the warp is here: rows are handed out to whole warps.
            let (other, _) =
                unsafe { warp::warp_shuffle_xor(FULL_MASK, amax.to_word(), distance, WARP) };
            amax = amax.max(Amax::from_word(other));
            distance *= 2;
        }
        amax
    }
}

/// The entries: `name: format, input type, threads a block;`.
///
/// Expands to `$callback! { ... }` with this list, here to define them and in the host library to
/// find them, so that a new line is all that a new entry takes.
#[macro_export]
macro_rules! for_each_quantize_entry {
    ($callback:ident) => {
        $callback! {
            grouped_quantize_nvfp4_bf16: NvFp4, Bf16, 128;
            grouped_quantize_nvfp4_f16: NvFp4, F16, 128;
            grouped_quantize_nvfp4_f32: NvFp4, F32, 128;
            grouped_quantize_mxfp4_bf16: MxFp4, Bf16, 128;
            grouped_quantize_mxfp4_f16: MxFp4, F16, 128;
            grouped_quantize_mxfp4_f32: MxFp4, F32, 128;
            grouped_quantize_mxfp8_bf16: MxFp8, Bf16, 128;
            grouped_quantize_mxfp8_f16: MxFp8, F16, 128;
            grouped_quantize_mxfp8_f32: MxFp8, F32, 128;
            grouped_quantize_nvfp4_bf16_t64: NvFp4, Bf16, 64;
            grouped_quantize_mxfp4_bf16_t64: MxFp4, Bf16, 64;
            grouped_quantize_mxfp8_bf16_t64: MxFp8, Bf16, 64;
            grouped_quantize_nvfp4_bf16_t256: NvFp4, Bf16, 256;
            grouped_quantize_mxfp4_bf16_t256: MxFp4, Bf16, 256;
            grouped_quantize_mxfp8_bf16_t256: MxFp8, Bf16, 256;
        }
    };
}

/// The traffic twins of those entries that the benchmarks measure, in the same form; the arguments
/// are those of the entries.
#[macro_export]
macro_rules! for_each_traffic_twin {
    ($callback:ident) => {
        $callback! {
            grouped_quantize_traffic_nvfp4_bf16: NvFp4, Bf16, 128;
            grouped_quantize_traffic_nvfp4_f16: NvFp4, F16, 128;
            grouped_quantize_traffic_nvfp4_f32: NvFp4, F32, 128;
            grouped_quantize_traffic_mxfp4_bf16: MxFp4, Bf16, 128;
            grouped_quantize_traffic_mxfp4_f16: MxFp4, F16, 128;
            grouped_quantize_traffic_mxfp4_f32: MxFp4, F32, 128;
            grouped_quantize_traffic_mxfp8_bf16: MxFp8, Bf16, 128;
            grouped_quantize_traffic_mxfp8_f16: MxFp8, F16, 128;
            grouped_quantize_traffic_mxfp8_f32: MxFp8, F32, 128;
            grouped_quantize_traffic_nvfp4_bf16_t256: NvFp4, Bf16, 256;
            grouped_quantize_traffic_mxfp4_bf16_t256: MxFp4, Bf16, 256;
            grouped_quantize_traffic_mxfp8_bf16_t256: MxFp8, Bf16, 256;
        }
    };
}

/// Defines entries, each with this first line of documentation before its types.
macro_rules! define {
    ($does:literal, $twin:literal:
        $($name:ident: $format:ty, $input:ty, $threads:literal;)*) => {$(
        #[doc = concat!(
            $does, stringify!($input), " rows to ", stringify!($format), " with ",
            stringify!($threads), " threads a block."
        )]
        ///
        /// Launch with [`grid_size`] blocks and [`SHARED_BYTES`] of dynamic shared memory.
        ///
        /// # Safety
        ///
        /// | argument | is |
        /// | --- | --- |
        /// | `input` | `[input_rows, columns]`, 16-byte aligned |
        /// | `columns` | a multiple of 8, at least 8 |
        /// | `data` | `[rows, columns]` elements of the format, packed, 16-byte aligned |
        /// | `scales` | `[row_tiles, ceil(columns / tile columns), 32, 4, 4]` bytes, 16-byte aligned |
        /// | `scale_map` | 128-byte aligned; describes `scales` as `[tiles, 512 / row, row]` bytes when `scale_store` is a tensor map, else unused |
        /// | `row_offsets` | `slots + 1` values, see [`Groups`] |
        /// | `scales_offsets`, `expert_ids` | `slots` values; `slots` is at least 1 |
        /// | `sf` | `sf_len` tensor-wise factors, indexed by `expert_ids` |
        /// | `source_rows` | null, or for each of `rows` the input row to read |
        /// | `rules` | [`Rules::bits`] |
        /// | `scale_store` | [`ScaleStore::bits`] |
        ///
        /// All extents but `columns` and `row_tiles` are below 2^31. During the launch nothing writes the
        /// input, the tables or `sf`, and nothing else writes `data` and `scales`.
        #[kernel(max_threads = $threads)]
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name(
            input: *const u32x4,
            input_rows: u32,
            columns: u32,
            data: *mut u8,
            rows: u32,
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
        ) {
            // SAFETY: passed on to the caller.
            unsafe {
                grouped_quantize::<$format, $input, $threads, $twin>(Arguments {
                    input,
                    input_rows,
                    columns,
                    data,
                    rows,
                    scales,
                    row_tiles,
                    scale_map,
                    row_offsets,
                    scales_offsets,
                    expert_ids,
                    slots,
                    sf,
                    sf_len,
                    source_rows,
                    rules,
                    scale_store,
                })
            }
        }
    )*};
}

macro_rules! define_entries {
    ($($entries:tt)*) => { define! { "Quantizes grouped ", false: $($entries)* } };
}

macro_rules! define_twins {
    ($($entries:tt)*) => {
        define! { "Moves what is moved when an entry quantizes grouped ", true: $($entries)* }
    };
}

for_each_quantize_entry!(define_entries);
for_each_traffic_twin!(define_twins);
