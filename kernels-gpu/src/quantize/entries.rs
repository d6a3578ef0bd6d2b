//! The kernels: one for each format and input type.

use super::{Arguments, grouped_quantize};
use crate::formats::{Bf16, F16, F32, MxFp4, MxFp8, NvFp4};
use core::simd::u32x4;
use cuda_std::kernel;
use cuda_std::tma;

/// The entries: `name, name of the traffic twin: format, input type, threads;`.
///
/// Expands to `$callback! { ... }` with this list, here to define them and in the host library to
/// find them, so that a new line here is all that a new entry takes. A traffic twin has the entry's arguments, and
/// its loads and stores without the arithmetic.
///
/// That many threads run on a multiprocessor at once, in blocks of any size: its 65536 registers are divided among them. More
/// would have to spill, or have been measured to be slower (`docs/performance.md`).
#[macro_export]
macro_rules! for_each_quantize_entry {
    ($callback:ident) => {
        $callback! {
            grouped_quantize_nvfp4_bf16, grouped_quantize_traffic_nvfp4_bf16: NvFp4, Bf16, 1024;
            grouped_quantize_nvfp4_f16, grouped_quantize_traffic_nvfp4_f16: NvFp4, F16, 1024;
            grouped_quantize_nvfp4_f32, grouped_quantize_traffic_nvfp4_f32: NvFp4, F32, 768;
            grouped_quantize_mxfp4_bf16, grouped_quantize_traffic_mxfp4_bf16: MxFp4, Bf16, 1024;
            grouped_quantize_mxfp4_f16, grouped_quantize_traffic_mxfp4_f16: MxFp4, F16, 1024;
            grouped_quantize_mxfp4_f32, grouped_quantize_traffic_mxfp4_f32: MxFp4, F32, 512;
            grouped_quantize_mxfp8_bf16, grouped_quantize_traffic_mxfp8_bf16: MxFp8, Bf16, 1024;
            grouped_quantize_mxfp8_f16, grouped_quantize_traffic_mxfp8_f16: MxFp8, F16, 1024;
            grouped_quantize_mxfp8_f32, grouped_quantize_traffic_mxfp8_f32: MxFp8, F32, 768;
        }
    };
}

/// Defines entries, each with this first line of documentation before its types.
macro_rules! define {
    ($does:literal, $twin:literal:
        $($name:ident: $format:ty, $input:ty, $threads:literal;)*) => {$(
        #[doc = concat!($does, stringify!($input), " rows to ", stringify!($format), ".")]
        ///
        /// Launch with [`grid_size`](super::grid_size) blocks and [`shared_bytes`](super::shared_bytes) of dynamic shared
        /// memory. A block has a multiple of `32 * runs_per_block` threads, at most the number in the
        /// [list](crate::for_each_quantize_entry).
        ///
        /// # Safety
        ///
        /// | argument | is |
        /// | --- | --- |
        /// | `input` | `[input_rows, columns]`, 16-byte aligned |
        /// | `columns` | a multiple of 8, at least 8, below 2^30 |
        /// | `data` | `[rows, columns]` elements of the format, packed, 16-byte aligned |
        /// | `scales` | `[row_tiles, ceil(columns / tile columns), 32, 4, 4]` bytes, 16-byte aligned |
        /// | `scale_map` | 128-byte aligned; describes `scales` as `[tiles, 512 / row, row]` bytes when `scale_store` is a tensor map, else unused |
        /// | `row_offsets` | `slots + 1` values, see [`Groups`](crate::expert_search::Groups) |
        /// | `scales_offsets`, `expert_ids` | `slots` values; `slots` is at least 1 |
        /// | `sf` | `sf_len` tensor-wise factors, indexed by `expert_ids` |
        /// | `source_rows` | null, or for each of `rows` the input row to read |
        /// | `rules` | [`Rules::bits`](crate::formats::Rules::bits) |
        /// | `scale_store` | [`ScaleStore::bits`](super::ScaleStore::bits) |
        /// | `runs_per_block` | a power of two up to [`MAX_RUNS_PER_BLOCK`](super::MAX_RUNS_PER_BLOCK) |
        ///
        /// All extents but `columns` and `row_tiles` are below 2^31. During the launch nothing writes the
        /// input, the tables or `sf`, and nothing else writes `data` and `scales`.
        // The numbers of threads were measured on 9.0; 8.0 takes more registers, and would spill.
        #[cfg_attr(
            any(target_feature = "sm_90", not(target_arch = "nvptx64")),
            kernel(max_threads = $threads)
        )]
        #[cfg_attr(
            all(target_arch = "nvptx64", not(target_feature = "sm_90")),
            kernel(max_threads = super::MAX_THREADS_BEFORE_9_0)
        )]
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
            runs_per_block: u32,
        ) {
            // SAFETY: passed on to the caller.
            unsafe {
                grouped_quantize::<$format, $input, $twin>(Arguments {
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
                    runs_per_block,
                })
            }
        }
    )*};
}

macro_rules! define_entries {
    ($($name:ident, $twin:ident: $format:ty, $input:ty, $threads:literal;)*) => {
        define! { "Quantizes grouped ", false: $($name: $format, $input, $threads;)* }
        define! {
            "Moves what is moved when an entry quantizes grouped ", true:
            $($twin: $format, $input, $threads;)*
        }
    };
}

for_each_quantize_entry!(define_entries);
