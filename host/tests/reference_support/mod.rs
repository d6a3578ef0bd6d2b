//! What the tests of the reference share: the stored vectors, and shorthand for blocks and options.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::fs;
use std::path::{Path, PathBuf};

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
