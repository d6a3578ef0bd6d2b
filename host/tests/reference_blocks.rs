//! Whole blocks against the stored vectors and the worked examples.

mod reference_support;

use std::collections::BTreeMap;

use reference_support::{
    DEFAULT, PROPAGATE, STRICT, bf16_block, block, codes, hex, hex_byte, hex_bytes, packed,
    rounding, to_bf16, vectors,
};
use serde::Deserialize;
use tokenyard::options::{Format, NanPolicy, QuantizeOptions, ScaleRounding};
use tokenyard::reference::scale::{inverse_scale, scale_code};

#[derive(Deserialize)]
struct Blocks {
    blocks: Vec<Block>,
}

#[derive(Deserialize)]
struct Block {
    name: String,
    bf16: Vec<String>,
    expected: BTreeMap<String, Expected>,
    #[serde(default)]
    global_encode_scale_f32: Option<String>,
    #[serde(default)]
    recipes_agree: Option<bool>,
}

#[derive(Deserialize)]
struct Expected {
    scale: String,
    #[serde(alias = "packed")]
    data: String,
}

impl Expected {
    fn bytes(&self) -> (u8, Vec<u8>) {
        (hex_byte(&self.scale), hex_bytes(&self.data))
    }
}

/// Checks every block of a file whose expectations are keyed by scale recipe; returns how many.
/// `ceil` is a recipe that we do not offer.
fn check_mx(format: Format, file: &str) -> usize {
    let mut checked = 0;
    for Block {
        name,
        bf16,
        expected,
        ..
    } in vectors::<Blocks>(file).blocks
    {
        let values = bf16_block(&bf16);
        for scale_rounding in ScaleRounding::ALL {
            let Some(expected) = expected.get(scale_rounding.name()) else {
                continue;
            };
            for options in [DEFAULT, PROPAGATE] {
                let options = QuantizeOptions {
                    scale_rounding,
                    ..options
                };
                let got = packed(format, options, 1.0, &values);
                assert_eq!(got, expected.bytes(), "{format} {name} {scale_rounding}");
            }
            checked += 1;
        }
    }
    checked
}

#[test]
fn mxfp4_vectors() {
    assert_eq!(check_mx(Format::Mxfp4, "blocks_mxfp4.json"), 14 * 3);
}

#[test]
fn mxfp8_vectors() {
    assert_eq!(check_mx(Format::Mxfp8, "blocks_mxfp8.json"), 11 * 3);
}

/// Of the policies that the vectors list for blocks that are not finite, ours are `propagate` for
/// NaN under [`NanPolicy::Propagate`], and `inf_to_nan_scale` for Inf. Never `satfinite`.
#[test]
fn mx_blocks_that_are_not_finite() {
    for (format, file, nan_code) in [
        (Format::Mxfp4, "blocks_mxfp4.json", 0x7),
        (Format::Mxfp8, "blocks_mxfp8.json", 0x7F),
    ] {
        let blocks = vectors::<Blocks>(file).blocks;
        let find = |name: &str| blocks.iter().find(|block| block.name == name).unwrap();
        for scale_rounding in ScaleRounding::ALL {
            let all_nan = (0xFF, vec![nan_code; 32]);

            let nan = find("one_nan");
            let values = bf16_block(&nan.bf16);
            let propagate = QuantizeOptions {
                nan_policy: NanPolicy::Propagate,
                ..rounding(scale_rounding)
            };
            assert_eq!(codes(format, propagate, 1.0, &values), all_nan);
            assert_eq!(hex_byte(&nan.expected["propagate"].scale), 0xFF);
            // Under the other policy the scale is that of the other elements.
            let without: Vec<f32> = values
                .iter()
                .map(|value| if value.is_nan() { 0.0 } else { *value })
                .collect();
            let (scale, mut expected) = codes(format, rounding(scale_rounding), 1.0, &without);
            expected[1] = nan_code;
            assert_eq!(
                codes(format, rounding(scale_rounding), 1.0, &values),
                (scale, expected)
            );

            let inf = find("one_inf");
            let values = bf16_block(&inf.bf16);
            assert_eq!(
                codes(format, rounding(scale_rounding), 1.0, &values),
                all_nan
            );
            assert_eq!(hex_byte(&inf.expected["inf_to_nan_scale"].scale), 0xFF);
            assert_ne!(hex_byte(&inf.expected["satfinite"].scale), 0xFF);
        }
    }
}

/// The NVFP4 vectors with the tensor scale of each.
fn nvfp4_vectors() -> impl Iterator<Item = (Block, f32)> {
    vectors::<Blocks>("blocks_nvfp4.json")
        .blocks
        .into_iter()
        .map(|block| {
            let sf = f32::from_bits(hex(block.global_encode_scale_f32.as_ref().unwrap()));
            (block, sf)
        })
}

/// NVFP4 blocks on which all recipes agree: ours must be the same bits.
#[test]
fn nvfp4_vectors_that_all_recipes_share() {
    let mut checked = 0;
    for (
        Block {
            name,
            bf16,
            expected,
            recipes_agree,
            ..
        },
        sf,
    ) in nvfp4_vectors()
    {
        if recipes_agree == Some(true) {
            let got = packed(Format::Nvfp4, DEFAULT, sf, &bf16_block(&bf16));
            assert_eq!(got, expected["exact"].bytes(), "{name}");
            checked += 1;
        }
    }
    assert_eq!(checked, 9);
}

/// Blocks on which public NVFP4 recipes differ. Our scale byte is always the exact one. Our elements
/// are those of the `te` recipe, with which we share the inverse scale's arithmetic, whenever that
/// recipe arrives at the same scale byte; otherwise the exact ones.
#[test]
fn nvfp4_vectors_that_tell_recipes_apart() {
    let mut checked = 0;
    for (
        Block {
            name,
            bf16,
            expected,
            ..
        },
        sf,
    ) in nvfp4_vectors()
    {
        if !name.starts_with("search_") {
            continue;
        }
        let (exact, te) = (expected["exact"].bytes(), expected["te"].bytes());
        let ours = if te.0 == exact.0 { te } else { exact };
        assert_eq!(
            packed(Format::Nvfp4, DEFAULT, sf, &bf16_block(&bf16)),
            ours,
            "{name}"
        );
        checked += 1;
    }
    assert_eq!(checked, 5);
}

/// Blocks that are not zero but whose scale is: the literal arithmetic gives what the recipes
/// without a policy of their own give, the hardened one zeros.
#[test]
fn nvfp4_vectors_whose_scale_underflows() {
    for (
        Block {
            name,
            bf16,
            expected,
            ..
        },
        sf,
    ) in nvfp4_vectors()
    {
        if !["scale_subnormal_tie", "scale_underflow"].contains(&name.as_str()) {
            continue;
        }
        let values = bf16_block(&bf16);
        let literal = packed(Format::Nvfp4, STRICT, sf, &values);
        assert_eq!(literal, expected["te"].bytes(), "{name}");
        assert_eq!(literal, expected["div"].bytes(), "{name}");
        assert_eq!(
            packed(Format::Nvfp4, DEFAULT, sf, &values),
            (0x00, vec![0; 8]),
            "{name}"
        );
    }
}

/// The worked example that shows every kind of rounding; a tensor scale that is no power of two
/// changes the scale byte and leaves the elements.
#[test]
fn nvfp4_worked_example() {
    let values = [
        0.25, -0.5, 1.0, -1.5, 2.0, 0.1, -0.05, 0.75, 3.0, -0.33, 0.9, 1.1, -2.2, 0.0, 0.6, -0.7,
    ]
    .map(to_bf16);
    let bytes = hex_bytes("a1 d4 06 38 97 44 0e b2");
    let inverse = |sf, code| inverse_scale(Format::Nvfp4, DEFAULT.dead_blocks, 3.0, code, sf);

    assert_eq!(
        packed(Format::Nvfp4, DEFAULT, 1.0, &values),
        (0x30, bytes.clone())
    );
    assert_eq!(inverse(1.0, 0x30), Some(2.0));
    assert_eq!(packed(Format::Nvfp4, DEFAULT, 0.43, &values), (0x26, bytes));
    assert_eq!(inverse(0.43, 0x26), Some(1.965_714_2));
}

#[test]
fn nvfp4_worked_example_whose_scale_rounds_down() {
    let mut values: Vec<f32> = (0..16).map(|i| to_bf16(0.1 * i as f32)).collect();
    values[0] = 5.0;
    let got = packed(Format::Nvfp4, DEFAULT, 1.0, &values);
    assert_eq!(got, (0x35, hex_bytes("07 10 11 21 22 32 33 43")));
    let inverse = inverse_scale(Format::Nvfp4, DEFAULT.dead_blocks, 5.0, 0x35, 1.0);
    assert_eq!(inverse, Some(1.230_769_3));
}

#[test]
fn nvfp4_worked_example_of_ones() {
    assert_eq!(
        packed(Format::Nvfp4, DEFAULT, 1.0, &[1.0; 16]),
        (0x23, vec![0x77; 8])
    );
    let inverse = inverse_scale(Format::Nvfp4, DEFAULT.dead_blocks, 1.0, 0x23, 1.0);
    assert_eq!(inverse, Some(5.818_182));
}

#[test]
fn nvfp4_worked_example_of_underflow() {
    let values = block(Format::Nvfp4, &[to_bf16(1e-5)], 0.0);
    assert_eq!(
        packed(Format::Nvfp4, STRICT, 1.0, &values),
        (0x00, vec![0x77; 8])
    );
    assert_eq!(
        packed(Format::Nvfp4, DEFAULT, 1.0, &values),
        (0x00, vec![0x00; 8])
    );
}

#[test]
fn mxfp4_worked_example() {
    let values: Vec<f32> = (0..32).map(|i| 0.125 * i as f32 - 2.0).collect();
    let got = packed(Format::Mxfp4, DEFAULT, 1.0, &values);
    assert_eq!(
        got,
        (
            126,
            hex_bytes("ee de dd cc cc ab aa 89 00 21 22 43 44 54 55 66")
        )
    );
}

#[test]
fn mx_worked_scale_bytes() {
    for (amax, byte) in [
        (1.5, 125),
        (3.0, 126),
        (4.0, 127),
        (6.0, 127),
        (6.031_25, 128),
        (7.0, 128),
        (12.0, 128),
        (24.0, 129),
    ] {
        assert_eq!(
            scale_code(Format::Mxfp4, ScaleRounding::Rceil, amax, 1.0),
            byte,
            "{amax}"
        );
    }
    for (amax, byte) in [
        (1.0, 119),
        (1.75, 119),
        (1.757_812_5, 120),
        (256.0, 127),
        (448.0, 127),
        (450.0, 128),
        (896.0, 128),
    ] {
        assert_eq!(
            scale_code(Format::Mxfp8, ScaleRounding::Rceil, amax, 1.0),
            byte,
            "{amax}"
        );
    }
    // Where rounding up and OCP's rule part.
    assert_eq!(
        scale_code(Format::Mxfp8, ScaleRounding::Floor, 1.757_812_5, 1.0),
        119
    );
    assert_eq!(
        scale_code(Format::Mxfp4, ScaleRounding::Floor, 7.0, 1.0),
        127
    );
}

#[test]
fn mxfp8_worked_example() {
    let values = block(Format::Mxfp8, &[1.0, -0.3, 0.007, 2.0].map(to_bf16), 0.0);
    let (scale, elements) = packed(Format::Mxfp8, DEFAULT, 1.0, &values);
    assert_eq!(
        (scale, &elements[..4]),
        (120, &[0x70, 0xE2, 0x36, 0x78][..])
    );
    assert_eq!(elements[4..], [0; 28]);
}
