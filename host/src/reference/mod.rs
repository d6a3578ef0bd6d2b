//! The CPU reference: grouped quantization and dequantization written straight from their
//! definition, and the oracle that every other implementation is compared with.
//!
//! It shares no arithmetic with the kernels and prefers the plain way to the fast one: codes are
//! found by comparing values, scales are computed in row-major order and only then moved to their
//! tiles. Rows and tiles are spread over the CPU's cores.
//!
//! For each block of V elements of a row (V = 16 for NVFP4, 32 for the MX formats):
//!
//! 1. amax is the largest magnitude ([`scale::amax`]).
//! 2. The scale byte is made from amax and the expert's tensor scale ([`scale::scale_code`]).
//! 3. Each element is multiplied by the inverse of that *rounded* scale ([`scale::inverse_scale`])
//!    and rounded to the element format ([`formats`]).
//!
//! The bytes that come out for special blocks, where `DeadBlocks::Hardened` (H) and
//! `DeadBlocks::Strict` (S) differ only where said:
//!
//! | Block | Scale byte | Elements |
//! |---|---|---|
//! | all zeros | 0x00 | zeros with their sign |
//! | NVFP4, not zero, scale rounds to 0x00 | 0x00 | H: all +0, NaN elements too. S: nonzero ±6, zero 0x7 |
//! | MX, not zero, byte 0 | 0x00 | H: quantized with the inverse 2^127 (times sf in MXFP4). S: likewise as far as the flushing reciprocal is finite, else nonzero to the largest code, zero to the NaN code |
//! | holds Inf, NVFP4 | 0x7E (448) | Inf to ±6, the others quantized with that scale |
//! | holds Inf, MX | 0xFF (NaN) | all NaN codes |
//! | holds NaN, `NanPolicy::Ignore` | from the other elements | NaN to the NaN code, others quantized |
//! | holds NaN, `NanPolicy::Propagate` | 0x7F (NVFP4), 0xFF (MX) | all NaN codes |
//! | nothing but NaN | 0x7F (NVFP4), 0xFF (MX) | all NaN codes |
//! | inverse scale below FP32's normal range | as usual | zeros with their sign |
//! | inverse scale beyond FP32 though the scale is not 0 | as usual | H: quantized with the largest FP32 as inverse. S: nonzero ±6, zero 0x7 |
//!
//! The NaN code is 0x7F in E4M3 and 0x7 (+6) in E2M1. Tensor scales are taken as they are; that they
//! are finite and positive is for the caller to see to.
//!
//! ```
//! use tokenyard::options::{Format, QuantizeOptions};
//! use tokenyard::reference::{Encoded, Input, Problem, dequantize_to_vec, quantize_to_vec};
//! use tokenyard::routing::Routing;
//!
//! // Two tokens of 32 columns. Expert 0 gets the second one, expert 1 both.
//! let rows: Vec<f32> = (0..64).map(|i| 0.125 * i as f32 - 2.0).collect();
//! let routing = Routing::from_topk(&[1, -1, 0, 1], 2, 2, 2)?;
//! let sf = [1.0; 2];
//! let quantized = quantize_to_vec(&Problem {
//!     format: Format::Mxfp8,
//!     input: Input::F32(&rows),
//!     input_rows: 2,
//!     columns: 32,
//!     groups: (&routing).into(),
//!     sf: &sf,
//!     source_rows: routing.source_rows(),
//!     options: QuantizeOptions::default(),
//! })?;
//! let decoded = dequantize_to_vec(&Encoded {
//!     format: Format::Mxfp8,
//!     data: &quantized.data,
//!     scales: &quantized.scales,
//!     rows: routing.rows(),
//!     columns: 32,
//!     groups: (&routing).into(),
//!     sf: &sf,
//! })?;
//! assert_eq!(decoded[32..40], rows[..8]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod ep;
pub mod formats;
pub mod moe;
pub mod scale;

mod dequantize;
mod layout;
mod quantize;

pub use dequantize::{Encoded, dequantize, dequantize_to_vec};
pub use layout::{Groups, TILE_BLOCKS, TILE_BYTES, scale_offset};
pub use quantize::{Input, Output, Problem, Quantized, quantize, quantize_block, quantize_to_vec};

use crate::options::{COLUMN_MULTIPLE, UnsupportedRounding};

/// Why the reference cannot do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The format does not have the scale rounding.
    #[error(transparent)]
    Rounding(#[from] UnsupportedRounding),
    /// The column count is not a multiple of [`COLUMN_MULTIPLE`].
    #[error("rows have {columns} columns, which is not a multiple of {COLUMN_MULTIPLE}")]
    Columns {
        /// Columns given.
        columns: usize,
    },
    /// A slice is not as long as the others ask for.
    #[error("{what} has {given} entries where {expected} are needed")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Entries it should have.
        expected: usize,
        /// Entries it has.
        given: usize,
    },
    /// The scales are not a whole number of tile rows.
    #[error(
        "scales have {given} bytes, which is not a multiple of {tile_row_bytes} (512 for each tile across a row)"
    )]
    Scales {
        /// Bytes given.
        given: usize,
        /// Bytes of the Kt tiles side by side.
        tile_row_bytes: usize,
    },
    /// A slot ends before it starts.
    #[error("row offsets decrease: slot {slot} starts at row {start} and ends at row {end}")]
    DecreasingOffsets {
        /// The slot.
        slot: usize,
        /// Its first row.
        start: u32,
        /// Where it ends.
        end: u32,
    },
}

fn check_length(what: &'static str, expected: usize, given: usize) -> Result<(), ReferenceError> {
    if expected != given {
        return Err(ReferenceError::Length {
            what,
            expected,
            given,
        });
    }
    Ok(())
}

fn check_groups(groups: &Groups<'_>) -> Result<(), ReferenceError> {
    check_length("row_offsets", groups.slots() + 1, groups.row_offsets.len())?;
    check_length(
        "scales_offsets",
        groups.slots(),
        groups.scales_offsets.len(),
    )?;
    for (slot, offsets) in groups.row_offsets.windows(2).enumerate() {
        let (start, end) = (offsets[0], offsets[1]);
        if end < start {
            return Err(ReferenceError::DecreasingOffsets { slot, start, end });
        }
    }
    Ok(())
}
