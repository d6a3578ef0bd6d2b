//! Rows that dispatch delivered, whose scales lie in rows too or are transposed. Those with scales in tiles
//! (NVFP4) are grouped tensors like any other: the entries of the [parent module](super) widen them.

use super::{THREADS, store_chunk};
use crate::formats::{Bf16, BlockFormat, CHUNK, E4m3, ElementFormat, InputFormat, MxFp4, MxFp8};
use cuda_std::prelude::*;
use cuda_std::view::{GlobalView, GlobalViewMut};

/// What every entry takes, beside scales.
#[derive(Clone, Copy)]
struct Rows {
    data: *const u8,
    /// The number of rows that exist.
    row_end: *const u32,
    /// Rows that the buffers have room for.
    rows: u32,
    columns: u32,
    output: *mut u32x4,
}

/// A chunk of eight elements of a row.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    chunk: usize,
}

/// Widens this thread's chunk, if its row exists: element `i` becomes `value(place, chunk, i)`.
///
/// # Safety
///
/// The pointers must be what the entries' documentation says.
#[inline(always)]
unsafe fn widen<P: Copy>(args: Rows, value: impl Fn(Place, P, u32) -> f32) {
    let chunks_per_row = (args.columns / CHUNK) as usize;
    let chunks = args.rows as usize * chunks_per_row;
    // SAFETY: the caller's obligation.
    let (row_end, data, output) = unsafe {
        (
            GlobalView::new(args.row_end, 1),
            GlobalView::<P>::new(args.data.cast(), chunks),
            GlobalViewMut::new(args.output, chunks * 2),
        )
    };
    let index = thread::block_idx_x() as usize * THREADS as usize + thread::thread_idx_x() as usize;
    let Some(row) = index.checked_div(chunks_per_row) else {
        return;
    };
    if row >= row_end.load(0).min(args.rows) as usize {
        return;
    }
    let place = Place {
        row,
        chunk: index - row * chunks_per_row,
    };
    let packed = data.load(index);
    store_chunk(output, index, |element| value(place, packed, element));
}

/// # Safety
///
/// As for the entries.
#[inline(always)]
unsafe fn widen_bf16(rows: Rows) {
    // SAFETY: the caller's obligation.
    unsafe {
        widen(rows, |_, chunk: u32x4, element| {
            let (even, odd) = Bf16::pair(chunk, element as usize / 2);
            if element.is_multiple_of(2) { even } else { odd }
        });
    }
}

/// # Safety
///
/// As for the entries.
#[inline(always)]
unsafe fn widen_fp8(rows: Rows, scales: *const f32, scale_stride: u32) {
    const BLOCK: u32 = 128;
    let stride = scale_stride as usize;
    // SAFETY: the caller's obligation.
    unsafe {
        let scales = GlobalView::new(scales, (rows.columns / BLOCK) as usize * stride);
        widen(rows, |place, chunk, element| {
            let block = place.chunk / (BLOCK / CHUNK) as usize;
            E4m3::dequantize(chunk, element) * scales.load(block * stride + place.row)
        });
    }
}

/// # Safety
///
/// As for the entries.
#[inline(always)]
unsafe fn widen_mx<F: BlockFormat>(rows: Rows, scales: *const u8) {
    let blocks = (rows.columns / F::BLOCK) as usize;
    // SAFETY: the caller's obligation.
    unsafe {
        let scales = GlobalView::new(scales, rows.rows as usize * blocks);
        widen(rows, |place, chunk, element| {
            let block = place.chunk / (F::BLOCK / CHUNK) as usize;
            let code = scales.load(place.row * blocks + block);
            F::Element::dequantize(chunk, element) * F::scale_to_f32(code)
        });
    }
}

/// Defines the entries: `name(scales) by function;`.
macro_rules! entries {
    ($(
        $(#[$doc:meta])*
        $name:ident($($scales:ident: $type:ty),*) by $widen:path;
    )*) => {$(
        $(#[$doc])*
        ///
        /// Launch with [`grid_size`](super::grid_size) blocks of [`THREADS`] threads.
        ///
        /// # Safety
        ///
        /// `data` holds `[rows, columns]` elements as the quantizer packs them, `output` has room for as many values,
        /// both 16-byte aligned; `columns` is a multiple of the format's block, of 8 where it has none. Scales are as
        /// described above. `row_end` holds the number of rows that exist; others are not written.
        #[kernel(max_threads = 128)]
        pub unsafe fn $name(
            data: *const u8,
            $($scales: $type,)*
            row_end: *const u32,
            rows: u32,
            columns: u32,
            output: *mut u32x4,
        ) {
            let rows = Rows {
                data,
                row_end,
                rows,
                columns,
                output,
            };
            // SAFETY: passed on to the caller.
            unsafe { $widen(rows $(, $scales)*) }
        }
    )*};
}

entries! {
    /// Widens BF16 rows.
    dequantize_rows_bf16() by widen_bf16;

    /// Widens E4M3 rows with f32 scales for every 128 elements, transposed: `scales[block * scale_stride + row]`, at
    /// least `rows` in a stride.
    dequantize_rows_fp8(scales: *const f32, scale_stride: u32) by widen_fp8;

    /// Widens MXFP4 rows whose block scales are in rows: `scales[rows, columns / 32]`.
    dequantize_rows_mxfp4(scales: *const u8) by widen_mx::<MxFp4>;

    /// Widens MXFP8 rows whose block scales are in rows: `scales[rows, columns / 32]`.
    dequantize_rows_mxfp8(scales: *const u8) by widen_mx::<MxFp8>;
}
