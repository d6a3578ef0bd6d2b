//! What a row is when it comes home.

use super::{payload_bytes, quantize_token, scale_columns};
use crate::ep::{CombineFormat, TokenFormat};
use crate::options::ScaleRounding;
use crate::reference::formats::{bf16_widen, e2m1_decode, e4m3_decode, e8m0_decode};

/// The largest product of an E2M1 element and an E4M3 scale: 6 * 448.
const NVFP4_ROW_MAX: f64 = 2688.0;

/// A row of expert outputs, given as bfloat16 bit patterns, quantized to `format` and dequantized: what the sum of a
/// token takes in. `None` for formats that take the rows home as they are.
///
/// | Format | Row |
/// |---|---|
/// | MXFP8 | [as a token](quantize_token), scales rounded up; element times block scale |
/// | NVFP4 | as a token whose global factor is f; element times block scale, divided by f |
///
/// f is a power of two: the largest that leaves the row's largest magnitude, multiplied by it, at 6 * 448 or below,
/// with an exponent of -126 to 126. It is 1 for a row of zeros, or one whose largest magnitude is not finite.
pub fn returned_row(format: CombineFormat, row: &[u16]) -> Option<Vec<f32>> {
    let (wire, factor) = match format {
        CombineFormat::Mxfp8 => (TokenFormat::Mxfp8, 1.0),
        CombineFormat::Nvfp4 => (TokenFormat::Nvfp4, row_factor(row)),
        _ => return None,
    };
    let mut payload = vec![0; payload_bytes(wire, row.len())];
    let (columns, _) = scale_columns(wire, row.len());
    let mut scales = vec![0; columns];
    quantize_token(
        wire,
        ScaleRounding::Rceil,
        factor,
        row,
        &mut payload,
        &mut scales,
    );
    let elements = row.len() / columns;
    let value = |index: usize| {
        let scale = scales[index / elements];
        match wire {
            TokenFormat::Mxfp8 => e4m3_decode(payload[index]) * e8m0_decode(scale),
            _ => {
                let code = payload[index / 2] >> (index % 2 * 4) & 0xF;
                e2m1_decode(code) * e4m3_decode(scale) / factor
            }
        }
    };
    Some((0..row.len()).map(value).collect())
}

/// The factor of an NVFP4 row.
fn row_factor(row: &[u16]) -> f32 {
    let magnitudes = row.iter().map(|&bits| bf16_widen(bits).abs());
    let amax = magnitudes.fold(0.0, f32::max);
    if amax == 0.0 || !amax.is_finite() {
        return 1.0;
    }
    let fits = |exponent: &i32| f64::from(amax) * 2f64.powi(*exponent) <= NVFP4_ROW_MAX;
    let exponent = (-126..=126).rev().find(fits).unwrap_or(-126);
    2f32.powi(exponent)
}
