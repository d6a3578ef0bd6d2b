//! What the tests of the reference share: the stored vectors, and shorthand for blocks and options.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::fs;
use std::path::{Path, PathBuf};

use approx::assert_abs_diff_eq;
use serde::de::DeserializeOwned;
use tokenyard::options::{DeadBlocks, Format, NanPolicy, QuantizeOptions, ScaleRounding};
use tokenyard::reference::formats::bf16_widen;
use tokenyard::reference::quantize_block;

/// The hardened and NaN-ignoring defaults, with RCEIL scales.
pub const DEFAULT: QuantizeOptions = QuantizeOptions {
    scale_rounding: ScaleRounding::Rceil,
    dead_blocks: DeadBlocks::Hardened,
    nan_policy: NanPolicy::Ignore,
};
/// As [`DEFAULT`], with the literal arithmetic for dead blocks.
pub const STRICT: QuantizeOptions = QuantizeOptions {
    dead_blocks: DeadBlocks::Strict,
    ..DEFAULT
};
/// As [`DEFAULT`], with NaN spreading to the block's scale.
pub const PROPAGATE: QuantizeOptions = QuantizeOptions {
    nan_policy: NanPolicy::Propagate,
    ..DEFAULT
};

/// The defaults with another scale rounding.
pub fn rounding(scale_rounding: ScaleRounding) -> QuantizeOptions {
    QuantizeOptions {
        scale_rounding,
        ..DEFAULT
    }
}

/// A file of the workspace's test data.
pub fn data_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/data")
        .join(name)
}

/// A stored vector file.
pub fn vectors<T: DeserializeOwned>(name: &str) -> T {
    let path = data_path("vectors").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A number written as `0x...`.
pub fn hex(text: &str) -> u32 {
    let digits = text
        .strip_prefix("0x")
        .unwrap_or_else(|| panic!("{text:?} lacks 0x"));
    u32::from_str_radix(digits, 16).unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

/// A code written as `0x...`.
pub fn hex_byte(text: &str) -> u8 {
    u8::try_from(hex(text)).unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

/// Bytes written as pairs of hexadecimal digits, blanks allowed between pairs.
pub fn hex_bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| {
            c.to_digit(16)
                .unwrap_or_else(|| panic!("{text:?} is not hexadecimal")) as u8
        })
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// The BF16 patterns of a vector, widened.
pub fn bf16_block(patterns: &[String]) -> Vec<f32> {
    patterns
        .iter()
        .map(|text| bf16_widen(hex(text) as u16))
        .collect()
}

/// `value` rounded to BF16, as worked examples do with their inputs.
pub fn to_bf16(value: f32) -> f32 {
    half::bf16::from_f32(value).to_f32()
}

/// A block that starts with `values` and goes on with `fill`.
pub fn block(format: Format, values: &[f32], fill: f32) -> Vec<f32> {
    let mut block = values.to_vec();
    block.resize(format.block_size(), fill);
    block
}

/// Quantizes one block: its scale byte, and one code an element.
pub fn codes(format: Format, options: QuantizeOptions, sf: f32, values: &[f32]) -> (u8, Vec<u8>) {
    let mut codes = vec![0xEE; values.len()];
    let scale = quantize_block(format, options, sf, values, &mut codes);
    (scale, codes)
}

/// Quantizes one block: its scale byte, and the elements as they lie in memory.
pub fn packed(format: Format, options: QuantizeOptions, sf: f32, values: &[f32]) -> (u8, Vec<u8>) {
    let (scale, codes) = codes(format, options, sf, values);
    let bytes = match format.element_bits() {
        4 => codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect(),
        _ => codes,
    };
    (scale, bytes)
}

/// The largest error of an element in a block with this amax, whose scale did not saturate.
///
/// The widest step between E2M1 codes is 2, between E4M3 codes 32, so rounding to the nearest is off
/// by at most 1 or 16 scales. A power-of-two scale is less than twice amax / max and clips nothing.
/// NVFP4's scale is within h of s = sf * amax / 6, h being half a step of E4M3: a 16th of s, or 2^-10
/// where E4M3 is subnormal; elements are off by at most s + h, or where the scale is h too small by
/// the 6 h that are clipped. A part in 2^20 is for the FP32 roundings.
fn error_bound(format: Format, amax: f32, sf: f32) -> f32 {
    let bound = match format {
        Format::Nvfp4 => {
            let s = sf * amax / 6.0;
            let h = (s / 16.0).max(2.0_f32.powi(-10));
            (s + h).max(6.0 * h) / sf
        }
        Format::Mxfp4 => 2.0 * amax / 6.0,
        _ => 16.0 * 2.0 * amax / 448.0,
    };
    bound * (1.0 + 2.0_f32.powi(-20))
}

/// Holds every element of a row, quantized with RCEIL scales, to [`error_bound`].
pub fn assert_within_error_bound(format: Format, sf: f32, original: &[f32], decoded: &[f32]) {
    let blocks = original
        .chunks(format.block_size())
        .zip(decoded.chunks(format.block_size()));
    for (original, decoded) in blocks {
        let amax = original
            .iter()
            .fold(0.0_f32, |amax, value| amax.max(value.abs()));
        let bound = error_bound(format, amax, sf);
        for (original, decoded) in original.iter().zip(decoded) {
            assert_abs_diff_eq!(original, decoded, epsilon = bound);
        }
    }
}
