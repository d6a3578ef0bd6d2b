//! Rows that dispatch delivered, whose scales lie in rows too or are transposed. Those with scales in tiles
//! (NVFP4) are grouped tensors like any other: the entries of the [parent module](super) widen them.

use super::{THREADS, store_chunk};
use crate::formats::{Bf16, BlockFormat, CHUNK, E4m3, ElementFormat, InputFormat, MxFp4, MxFp8};
use cuda_std::prelude::*;
use cuda_std::view::{GlobalView, GlobalViewMut, Word};

/// What every entry takes.
#[derive(Clone, Copy)]
struct Arguments {
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
unsafe fn widen_rows<P: Word>(args: Arguments, value: impl Fn(Place, P, u32) -> f32) {
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

/// Widens BF16 rows.
///
/// Launch with [`grid_size`](super::grid_size) blocks of [`THREADS`] threads.
///
/// # Safety
///
/// `data` holds `[rows, columns]` values, `output` has room for as many, both 16-byte aligned; `columns` is a multiple
/// of 8; `row_end` holds the number of rows that exist. Others are not written.
#[kernel(max_threads = 128)]
pub unsafe fn dequantize_rows_bf16(
    data: *const u8,
    row_end: *const u32,
    rows: u32,
    columns: u32,
    output: *mut u32x4,
) {
    let args = Arguments {
        data,
        row_end,
        rows,
        columns,
        output,
    };
    // SAFETY: passed on to the caller.
    unsafe {
        widen_rows(args, |_, chunk: u32x4, element| {
            let (even, odd) = Bf16::pair(chunk, element as usize / 2);
            if element.is_multiple_of(2) { even } else { odd }
        });
    }
}

/// Widens FP8 rows with f32 scales for every 128 elements, transposed: `scales[block * scale_stride + row]`.
///
/// Launch with [`grid_size`](super::grid_size) blocks of [`THREADS`] threads.
///
/// # Safety
///
/// As for [`dequantize_rows_bf16()`], with E4M3 elements; `columns` is a multiple of 128, and `scales` holds
/// `columns / 128 * scale_stride` values, at least `rows` in a stride.
#[kernel(max_threads = 128)]
pub unsafe fn dequantize_rows_fp8(
    data: *const u8,
    scales: *const f32,
    scale_stride: u32,
    row_end: *const u32,
    rows: u32,
    columns: u32,
    output: *mut u32x4,
) {
    const BLOCK: u32 = 128;
    let stride = scale_stride as usize;
    let args = Arguments {
        data,
        row_end,
        rows,
        columns,
        output,
    };
    // SAFETY: passed on to the caller.
    unsafe {
        let scales = GlobalView::new(scales, (columns / BLOCK) as usize * stride);
        widen_rows(args, |place, chunk, element| {
            let block = place.chunk / (BLOCK / CHUNK) as usize;
            E4m3::dequantize(chunk, element) * scales.load(block * stride + place.row)
        });
    }
}

/// Defines the entries of the MX formats: `name: format;`.
macro_rules! entries {
    ($($name:ident: $format:ident;)*) => {$(
        #[doc = concat!("Widens ", stringify!($format), " rows whose block scales lie in rows, `[rows, columns / 32]`.")]
        ///
        /// Launch with [`grid_size`](super::grid_size) blocks of [`THREADS`] threads.
        ///
        /// # Safety
        ///
        /// As for [`dequantize_rows_bf16()`], with elements as the quantizer packs them; `columns` is a multiple of
        /// 32, and `scales` holds `[rows, columns / 32]` codes.
        #[kernel(max_threads = 128)]
        pub unsafe fn $name(
            data: *const u8,
            scales: *const u8,
            row_end: *const u32,
            rows: u32,
            columns: u32,
            output: *mut u32x4,
        ) {
            let blocks = (columns / $format::BLOCK) as usize;
            let args = Arguments {
                data,
                row_end,
                rows,
                columns,
                output,
            };
            // SAFETY: passed on to the caller.
            unsafe {
                let scales = GlobalView::new(scales, rows as usize * blocks);
                widen_rows(args, |place, chunk, element| {
                    let block = place.chunk / ($format::BLOCK / CHUNK) as usize;
                    let code = scales.load(place.row * blocks + block);
                    <$format as BlockFormat>::Element::dequantize(chunk, element)
                        * $format::scale_to_f32(code)
                });
            }
        }
    )*};
}

entries! {
    dequantize_rows_mxfp4: MxFp4;
    dequantize_rows_mxfp8: MxFp8;
}
