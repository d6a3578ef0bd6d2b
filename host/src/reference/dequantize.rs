//! Grouped dequantization.

use rayon::prelude::*;

use super::formats::{e2m1_decode, e4m3_decode};
use super::layout::{Groups, TILE_BYTES, scale_offset};
use super::scale::scale_value;
use super::{ReferenceError, check_groups, check_length};
use crate::options::{COLUMN_MULTIPLE, Format};

/// Quantized rows to be turned back into FP32.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a> {
    /// The format of `data` and `scales`.
    pub format: Format,
    /// `[R, bytes_per_row]`: the quantized rows.
    pub data: &'a [u8],
    /// `[Mt, Kt, 32, 4, 4]`: the scale tiles.
    pub scales: &'a [u8],
    /// R.
    pub rows: usize,
    /// K, a multiple of eight.
    pub columns: usize,
    /// How the rows are divided among slots.
    pub groups: Groups<'a>,
    /// `[X]`: each expert's tensor scale, as it was given for quantizing. MXFP8 only looks at the
    /// length.
    pub sf: &'a [f32],
}

impl Encoded<'_> {
    fn check(&self) -> Result<(), ReferenceError> {
        if !self.columns.is_multiple_of(COLUMN_MULTIPLE) {
            return Err(ReferenceError::Columns {
                columns: self.columns,
            });
        }
        check_groups(&self.groups)?;
        let data_bytes = self
            .rows
            .saturating_mul(self.format.bytes_per_row(self.columns));
        check_length("data", data_bytes, self.data.len())
    }
}

/// Dequantizes into `out`, `[R, K]`. Rows that [`quantize`](super::quantize()) leaves alone are left
/// alone here too.
///
/// An FP4 element is code * block scale / tensor scale: an exact product, then one IEEE division. An
/// MXFP8 element is code * block scale. A product past FP32 (a block next to FP32's largest value,
/// rounded up) is Inf; every NaN has the bits 0x7FC00000.
///
/// # Errors
/// A [`ReferenceError`] when a length contradicts another, when `columns` is not a multiple of
/// eight, or when row offsets decrease. Nothing has been written then.
pub fn dequantize(encoded: &Encoded<'_>, out: &mut [f32]) -> Result<(), ReferenceError> {
    encoded.check()?;
    let &Encoded {
        format,
        data,
        scales,
        rows,
        columns,
        groups,
        sf,
    } = encoded;
    check_length("dequantized rows", rows.saturating_mul(columns), out.len())?;
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let column_tiles = format.column_tiles(columns);
    let tile_row_bytes = column_tiles * TILE_BYTES;
    if !scales.len().is_multiple_of(tile_row_bytes) {
        return Err(ReferenceError::Scales {
            given: scales.len(),
            tile_row_bytes,
        });
    }
    let tiles = scales.len() / tile_row_bytes;

    out.par_chunks_mut(columns)
        .zip(data.par_chunks(format.bytes_per_row(columns)))
        .enumerate()
        .for_each(|(row, (values, row_data))| {
            let Some(slot) = groups.slot_of_row(row) else {
                return;
            };
            let Some(sf) = groups.tensor_scale(slot, sf) else {
                return;
            };
            if groups.tile_of_row(slot, row) >= tiles {
                return;
            }
            let local_row = row - groups.row_offsets[slot] as usize;
            for (block, values) in values.chunks_mut(format.block_size()).enumerate() {
                let offset = scale_offset(groups.tile_start(slot), local_row, block, column_tiles);
                let scale = scale_value(format, scales[offset]);
                for (index, value) in values.iter_mut().enumerate() {
                    let column = block * format.block_size() + index;
                    *value = decode_element(format, row_data, column, scale, sf);
                }
            }
        });
    Ok(())
}

/// Dequantizes into new memory, zeros where [`dequantize`] writes nothing.
///
/// # Errors
/// As [`dequantize`].
pub fn dequantize_to_vec(encoded: &Encoded<'_>) -> Result<Vec<f32>, ReferenceError> {
    encoded.check()?;
    let mut out = vec![0.0; encoded.rows * encoded.columns];
    dequantize(encoded, &mut out)?;
    Ok(out)
}

fn decode_element(format: Format, row_data: &[u8], column: usize, scale: f32, sf: f32) -> f32 {
    let value = match format {
        Format::Nvfp4 | Format::Mxfp4 => {
            let code = row_data[column / 2] >> (column % 2 * 4) & 0xF;
            e2m1_decode(code) * scale / sf
        }
        Format::Mxfp8 => e4m3_decode(row_data[column]) * scale,
    };
    if value.is_nan() { f32::NAN } else { value }
}
