//! The way back: packed elements and block scales to `f32` rows.
//!
//! Diagnostics, not a hot path: it shows what a consumer of the quantized tensor will see.

use crate::expert_search::Groups;
use crate::formats::{BlockFormat, CHUNK, ElementFormat, MxFp4, MxFp8, NvFp4};
use crate::scale_tile::{self, TILE_BYTES, TILE_ROWS};
use core::simd::u32x4;
use cuda_std::prelude::*;
use cuda_std::view::{GlobalView, GlobalViewMut};

pub mod rows;

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Thread blocks for `rows` rows of `columns`: one thread for 8 elements.
pub const fn grid_size(rows: u32, columns: u32) -> u64 {
    (rows as u64 * (columns / CHUNK) as u64).div_ceil(THREADS as u64)
}

/// Stores the eight values of chunk `index`.
#[inline(always)]
fn store_chunk(output: GlobalViewMut<u32x4>, index: usize, value: impl Fn(u32) -> f32) {
    let bits = |element| value(element).to_bits();
    output.store(
        index * 2,
        u32x4::from_array([bits(0), bits(1), bits(2), bits(3)]),
    );
    output.store(
        index * 2 + 1,
        u32x4::from_array([bits(4), bits(5), bits(6), bits(7)]),
    );
}

/// What every entry takes.
#[derive(Clone, Copy)]
struct Arguments {
    data: *const u8,
    scales: *const u8,
    row_tiles: u32,
    rows: u32,
    columns: u32,
    row_offsets: *const u32,
    scales_offsets: *const u32,
    expert_ids: *const i32,
    slots: u32,
    sf: *const f32,
    sf_len: u32,
    output: *mut u32x4,
}

/// # Safety
///
/// The pointers must be what the entries' documentation says.
#[inline(always)]
unsafe fn dequantize<F: BlockFormat>(args: Arguments) {
    let chunks_per_row = (args.columns / CHUNK) as usize;
    let index = thread::block_idx_x() as usize * THREADS as usize + thread::thread_idx_x() as usize;
    if index >= args.rows as usize * chunks_per_row {
        return;
    }
    let row = (index / chunks_per_row) as u32;
    let chunk = (index % chunks_per_row) as u32;
    let column_tiles = args.columns.div_ceil(F::TILE_COLUMNS);
    let slots = args.slots as usize;

    // SAFETY: the caller's obligation, for all views; indices are checked or follow from checks.
    let (groups, expert_ids, sf, data, scales, output) = unsafe {
        (
            Groups {
                row_offsets: GlobalView::new(args.row_offsets, slots + 1),
                scales_offsets: GlobalView::new(args.scales_offsets, slots),
                slots: args.slots,
                rows: args.rows,
            },
            GlobalView::new(args.expert_ids, slots),
            GlobalView::new(args.sf, args.sf_len as usize),
            GlobalView::<<F::Element as ElementFormat>::Packed>::new(
                args.data.cast(),
                args.rows as usize * chunks_per_row,
            ),
            GlobalView::new(
                args.scales,
                args.row_tiles as usize * column_tiles as usize * TILE_BYTES,
            ),
            GlobalViewMut::new(args.output, args.rows as usize * chunks_per_row * 2),
        )
    };

    let slot = groups.slot_of_row(row);
    let first_row = groups.row_offsets.load(slot as usize);
    let end = groups.row_offsets.load(slot as usize + 1);
    let expert = expert_ids.load(slot as usize) as u32;
    let local_row = row.wrapping_sub(first_row);
    let row_tile = groups
        .tile_start(slot)
        .saturating_add(local_row / TILE_ROWS);
    if row < first_row || row >= end || expert >= args.sf_len || row_tile >= args.row_tiles {
        return;
    }

    let block = chunk / (F::BLOCK / CHUNK);
    let code = scales.load(scale_tile::offset_in_tensor(
        row_tile,
        local_row % TILE_ROWS,
        block,
        column_tiles,
    ));
    let scale = F::scale_to_f32(code);
    let encode = sf.load(expert as usize);
    let packed = data.load(index);
    store_chunk(output, index, |element| {
        let scaled = F::Element::dequantize(packed, element) * scale;
        F::undo_tensor_scale(scaled, encode)
    });
}

/// Defines the entries: `name: format;`.
macro_rules! entries {
    ($($name:ident: $format:ty;)*) => {$(
        #[doc = concat!("Dequantizes grouped ", stringify!($format), " rows.")]
        ///
        /// Launch with [`grid_size`] blocks of [`THREADS`] threads.
        ///
        /// # Safety
        ///
        /// As for the entries of [`crate::quantize`], with `data` and `scales` as those wrote them,
        /// and `output` for `[rows, columns]` values, 16-byte aligned. Rows of no slot, or of a
        /// slot whose expert has no tensor-wise factor, are not written.
        #[kernel(max_threads = 128)]
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name(
            data: *const u8,
            scales: *const u8,
            row_tiles: u32,
            rows: u32,
            columns: u32,
            row_offsets: *const u32,
            scales_offsets: *const u32,
            expert_ids: *const i32,
            slots: u32,
            sf: *const f32,
            sf_len: u32,
            output: *mut u32x4,
        ) {
            // SAFETY: passed on to the caller.
            unsafe {
                dequantize::<$format>(Arguments {
                    data,
                    scales,
                    row_tiles,
                    rows,
                    columns,
                    row_offsets,
                    scales_offsets,
                    expert_ids,
                    slots,
                    sf,
                    sf_len,
                    output,
                })
            }
        }
    )*};
}

entries! {
    dequantize_nvfp4: NvFp4;
    dequantize_mxfp4: MxFp4;
    dequantize_mxfp8: MxFp8;
}
