//! Grouped quantization.

use std::ops::Range;

use rayon::prelude::*;

use super::formats::{bf16_widen, e2m1_encode, e4m3_encode, f16_widen};
use super::layout::{Groups, TILE_BYTES, scale_offset};
use super::scale::{amax, inverse_scale, scale_code};
use super::{ReferenceError, check_groups, check_length};
use crate::options::{COLUMN_MULTIPLE, Format, InputType, QuantizeOptions};
use crate::routing::{TILE_ROWS, max_tiles};

/// The rows to quantize, row-major, as the bits of their element type.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// bfloat16 bit patterns.
    Bf16(&'a [u16]),
    /// IEEE binary16 bit patterns.
    F16(&'a [u16]),
    /// FP32 values.
    F32(&'a [f32]),
}

impl Input<'_> {
    /// The element type.
    pub fn input_type(&self) -> InputType {
        match self {
            Input::Bf16(_) => InputType::Bf16,
            Input::F16(_) => InputType::F16,
            Input::F32(_) => InputType::F32,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Input::Bf16(bits) | Input::F16(bits) => bits.len(),
            Input::F32(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements of `range` as FP32, exactly.
    ///
    /// # Panics
    /// Panics when `range` is not within the input or `out` is not as long as it.
    pub fn widen(&self, range: Range<usize>, out: &mut [f32]) {
        assert_eq!(range.len(), out.len(), "one output for each element");
        match self {
            Input::Bf16(bits) => widen_each(&bits[range], out, bf16_widen),
            Input::F16(bits) => widen_each(&bits[range], out, f16_widen),
            Input::F32(values) => out.copy_from_slice(&values[range]),
        }
    }
}

fn widen_each(bits: &[u16], out: &mut [f32], widen: impl Fn(u16) -> f32) {
    for (value, &bits) in out.iter_mut().zip(bits) {
        *value = widen(bits);
    }
}

/// One grouped quantization.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The output format.
    pub format: Format,
    /// `[input_rows, columns]`, row-major.
    pub input: Input<'a>,
    /// Rows of the input.
    pub input_rows: usize,
    /// K, a multiple of eight.
    pub columns: usize,
    /// How the output rows are divided among slots.
    pub groups: Groups<'a>,
    /// `[X]`: each expert's tensor scale, which multiplies amax. MXFP8 only looks at the length: a
    /// slot is quantized when its expert id is below X, in every format.
    pub sf: &'a [f32],
    /// `[R]`: the input row that each output row reads. Without it output row i reads input row i.
    pub source_rows: Option<&'a [i32]>,
    /// Rounding and policies.
    pub options: QuantizeOptions,
}

impl Problem<'_> {
    /// R, the rows of the output.
    pub fn rows(&self) -> usize {
        self.source_rows.map_or(self.input_rows, <[i32]>::len)
    }

    /// Bytes of the quantized rows, R times the bytes of one.
    pub fn data_bytes(&self) -> usize {
        self.rows()
            .saturating_mul(self.format.bytes_per_row(self.columns))
    }

    /// Bytes of one row of scale tiles: Kt tiles of 512 bytes.
    pub fn tile_row_bytes(&self) -> usize {
        self.format
            .column_tiles(self.columns)
            .saturating_mul(TILE_BYTES)
    }

    /// Widens what output row `row` reads. A source row that does not exist reads as zeros.
    fn read_row(&self, row: usize, values: &mut [f32]) {
        let source = match self.source_rows {
            Some(source_rows) => usize::try_from(source_rows[row]).ok(),
            None => Some(row),
        };
        match source {
            Some(source) if source < self.input_rows => {
                let start = source * self.columns;
                self.input.widen(start..start + self.columns, values);
            }
            _ => values.fill(0.0),
        }
    }

    fn check(&self) -> Result<(), ReferenceError> {
        self.options.check(self.format)?;
        if !self.columns.is_multiple_of(COLUMN_MULTIPLE) {
            return Err(ReferenceError::Columns {
                columns: self.columns,
            });
        }
        check_groups(&self.groups)?;
        check_length(
            "input",
            self.input_rows.saturating_mul(self.columns),
            self.input.len(),
        )
    }
}

/// Where the result goes. Bytes that the operation does not write keep their value.
#[derive(Debug)]
pub struct Output<'a> {
    /// `[R, bytes_per_row]`: the quantized rows. Rows outside every slot, or of a slot whose expert
    /// has no tensor scale, or whose scale tile is past the end of `scales`, are not written.
    pub data: &'a mut [u8],
    /// `[Mt, Kt, 32, 4, 4]`: the scale tiles, Mt being what the length says. Tiles of a slot are
    /// written whole, zeros where they have no rows or blocks; other tiles are not written.
    pub scales: &'a mut [u8],
}

/// Quantized rows with their scales, laid out as [`Output`] describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantized {
    /// The quantized rows.
    pub data: Vec<u8>,
    /// The scale tiles.
    pub scales: Vec<u8>,
}

/// Quantizes into the caller's memory.
///
/// # Errors
/// A [`ReferenceError`] when a length contradicts another, when `columns` is not a multiple of
/// eight, when row offsets decrease, or when the format lacks the scale rounding. Nothing has been
/// written then.
pub fn quantize(problem: &Problem<'_>, output: Output<'_>) -> Result<(), ReferenceError> {
    problem.check()?;
    let Output { data, scales } = output;
    let &Problem {
        format,
        columns,
        groups,
        sf,
        ..
    } = problem;
    let rows = problem.rows();
    check_length("data", problem.data_bytes(), data.len())?;
    let tile_row_bytes = problem.tile_row_bytes();
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    if !scales.len().is_multiple_of(tile_row_bytes) {
        return Err(ReferenceError::Scales {
            given: scales.len(),
            tile_row_bytes,
        });
    }
    let tiles = scales.len() / tile_row_bytes;

    // The elements, and the scales in plain [R, blocks] order.
    let blocks = columns.div_ceil(format.block_size());
    let mut plain_scales = vec![0; rows * blocks];
    data.par_chunks_mut(format.bytes_per_row(columns))
        .zip(plain_scales.par_chunks_mut(blocks))
        .enumerate()
        .for_each_init(
            || (vec![0.0; columns], vec![0; columns]),
            |(values, codes), (row, (row_data, row_scales))| {
                let Some(slot) = groups.slot_of_row(row) else {
                    return;
                };
                let Some(sf) = groups.tensor_scale(slot, sf) else {
                    return;
                };
                if groups.tile_of_row(slot, row) >= tiles {
                    return;
                }
                problem.read_row(row, values);
                quantize_row(format, problem.options, sf, values, codes, row_scales);
                pack_row(format, codes, row_data);
            },
        );

    // The same scales, tile by tile.
    let column_tiles = format.column_tiles(columns);
    scales
        .par_chunks_mut(tile_row_bytes)
        .enumerate()
        .for_each(|(tile, tile_scales)| {
            let Some(slot) = groups.slot_of_tile(tile, rows) else {
                return;
            };
            tile_scales.fill(0);
            if groups.tensor_scale(slot, sf).is_none() {
                return;
            }
            let slot_rows = groups.slot_rows(slot, rows);
            let first_row = slot_rows.start + (tile - groups.tile_start(slot)) * TILE_ROWS;
            for row in first_row..slot_rows.end.min(first_row + TILE_ROWS) {
                for block in 0..blocks {
                    tile_scales[scale_offset(0, row - first_row, block, column_tiles)] =
                        plain_scales[row * blocks + block];
                }
            }
        });
    Ok(())
}

/// Quantizes into new memory, zeros wherever the operation writes nothing. There are as many scale
/// tiles as [`max_tiles`] says.
///
/// # Errors
/// As [`quantize`].
pub fn quantize_to_vec(problem: &Problem<'_>) -> Result<Quantized, ReferenceError> {
    problem.check()?;
    let tiles = max_tiles(problem.rows(), problem.groups.slots());
    let mut quantized = Quantized {
        data: vec![0; problem.data_bytes()],
        scales: vec![0; tiles * problem.tile_row_bytes()],
    };
    quantize(
        problem,
        Output {
            data: &mut quantized.data,
            scales: &mut quantized.scales,
        },
    )?;
    Ok(quantized)
}

fn quantize_row(
    format: Format,
    options: QuantizeOptions,
    sf: f32,
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [u8],
) {
    let block_size = format.block_size();
    let blocks = values.chunks(block_size).zip(codes.chunks_mut(block_size));
    for ((values, codes), scale) in blocks.zip(scales) {
        *scale = quantize_block(format, options, sf, values, codes);
    }
}

/// Quantizes one block, whole or (at the end of a row) partial: returns the scale byte and writes
/// one element code, unpacked, for each value.
///
/// # Panics
/// Panics when `codes` is not as long as `values`, or longer than a block.
pub fn quantize_block(
    format: Format,
    options: QuantizeOptions,
    sf: f32,
    values: &[f32],
    codes: &mut [u8],
) -> u8 {
    assert_eq!(values.len(), codes.len(), "one code for each value");
    assert!(values.len() <= format.block_size(), "at most one block");
    let amax = amax(values, format.block_size(), options.nan_policy);
    let code = scale_code(format, options.scale_rounding, amax, sf);
    match inverse_scale(format, options.dead_blocks, amax, code, sf) {
        None => codes.fill(0),
        Some(inverse) => {
            for (code, value) in codes.iter_mut().zip(values) {
                *code = element_encode(format, value * inverse);
            }
        }
    }
    code
}

fn element_encode(format: Format, value: f32) -> u8 {
    match format {
        Format::Nvfp4 | Format::Mxfp4 => e2m1_encode(value),
        Format::Mxfp8 => e4m3_encode(value),
    }
}

/// Stores one row's element codes: FP4 two to a byte, the even element in the low four bits.
fn pack_row(format: Format, codes: &[u8], data: &mut [u8]) {
    match format {
        Format::Nvfp4 | Format::Mxfp4 => {
            for (byte, pair) in data.iter_mut().zip(codes.chunks(2)) {
                *byte = pair[0] | pair[1] << 4;
            }
        }
        Format::Mxfp8 => data.copy_from_slice(codes),
    }
}
