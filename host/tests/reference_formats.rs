//! Scalar conversions of the reference against stored vectors, against other definitions of the
//! same thing, and over whole code spaces.

mod reference_support;

use reference_support::{hex, hex_byte, vectors};
use serde::Deserialize;
use tokenyard::options::{DeadBlocks, Format, ScaleRounding};
use tokenyard::reference::formats::{
    bf16_widen, e2m1_decode, e2m1_encode, e4m3_decode, e4m3_encode, e8m0_decode, e8m0_encode_down,
    e8m0_encode_up, f16_widen,
};
use tokenyard::reference::scale::{inverse_scale, reciprocal, scale_code, scale_value};
use tokenyard::reference::{Encoded, dequantize_to_vec, scale_offset};
use tokenyard::routing::Routing;

#[derive(Deserialize)]
struct Rows<Row> {
    rows: Vec<Row>,
}

#[test]
fn e2m1_vectors() {
    #[derive(Deserialize)]
    struct Row {
        f32: String,
        code: String,
    }
    let Rows { rows } = vectors::<Rows<Row>>("e2m1_rne.json");
    assert_eq!(rows.len(), 106);
    for Row { f32, code } in rows {
        assert_eq!(
            e2m1_encode(f32::from_bits(hex(&f32))),
            hex_byte(&code),
            "{f32}"
        );
    }
}

#[test]
fn e4m3_vectors() {
    #[derive(Deserialize)]
    struct Row {
        f32: String,
        satfinite: String,
        decoded_satfinite: String,
    }
    let Rows { rows } = vectors::<Rows<Row>>("e4m3_rne.json");
    assert_eq!(rows.len(), 374);
    for Row {
        f32,
        satfinite,
        decoded_satfinite,
    } in rows
    {
        let code = e4m3_encode(f32::from_bits(hex(&f32)));
        assert_eq!(code, hex_byte(&satfinite), "{f32}");
        let decoded: f32 = decoded_satfinite.parse().unwrap();
        assert!(e4m3_decode(code) == decoded || decoded.is_nan(), "{f32}");
        assert_eq!(e4m3_decode(code).is_nan(), decoded.is_nan(), "{f32}");
    }
}

/// Ours is the plain instruction: `satfinite` for finite values past 2^127, which have no code
/// above them, and the NaN code for Inf.
#[test]
fn e8m0_vectors() {
    #[derive(Deserialize)]
    struct Row {
        f32: String,
        rp_satfinite: String,
        rp_nosat: String,
        rz_nosat: String,
    }
    let Rows { rows } = vectors::<Rows<Row>>("e8m0.json");
    assert_eq!(rows.len(), 30);
    for Row {
        f32,
        rp_satfinite,
        rp_nosat,
        rz_nosat,
    } in rows
    {
        let value = f32::from_bits(hex(&f32));
        let up = if value.is_finite() {
            rp_satfinite
        } else {
            rp_nosat
        };
        assert_eq!(e8m0_encode_up(value), hex_byte(&up), "{f32}");
        assert_eq!(e8m0_encode_up(-value), hex_byte(&up), "-{f32}");
        assert_eq!(e8m0_encode_down(value), hex_byte(&rz_nosat), "{f32}");
    }
}

/// The instruction's published check values.
#[test]
fn e8m0_check_values() {
    for (bits, code) in [
        (0x003F_FFFF, 0),
        (0x0040_0000, 0),
        (0x0040_0001, 1),
        (0x403F_FFFF, 129),
        (0x4040_0000, 129),
        (0x7F00_0000, 254),
    ] {
        assert_eq!(e8m0_encode_up(f32::from_bits(bits)), code, "{bits:#010X}");
    }
    assert_eq!(e8m0_encode_up(-4096.0), 139);
}

/// Every code's value; and its reciprocal, which quantization multiplies by, for every code that it
/// can choose. 254 is none of those (see `no_block_gets_the_top_scale`): under the flushing
/// reciprocal it would be +0, where the exact answer is a subnormal.
#[test]
fn e8m0_values_and_reciprocals() {
    #[derive(Deserialize)]
    struct Table {
        decode: Vec<Decode>,
    }
    #[derive(Deserialize)]
    struct Decode {
        code: String,
        value_f32: String,
        reciprocal_f32: String,
    }
    let Table { decode } = vectors::<Table>("e8m0.json");
    assert_eq!(decode.len(), 9);
    for Decode {
        code,
        value_f32,
        reciprocal_f32,
    } in decode
    {
        let code = hex_byte(&code);
        assert_eq!(e8m0_decode(code).to_bits(), hex(&value_f32), "{code}");
        let amax = if code == 0xFF {
            f32::NAN
        } else {
            e8m0_decode(code)
        };
        for format in [Format::Mxfp4, Format::Mxfp8] {
            let inverse = inverse_scale(format, DeadBlocks::Hardened, amax, code, 1.0).unwrap();
            match code {
                0xFF => assert!(inverse.is_nan()),
                0xFE => assert_eq!(inverse.to_bits(), 0),
                _ => assert_eq!(inverse.to_bits(), hex(&reciprocal_f32), "{format} {code}"),
            }
        }
    }
    assert_eq!(
        inverse_scale(Format::Mxfp8, DeadBlocks::Hardened, 1.0, 254, 1.0),
        Some(0.0)
    );
}

#[test]
fn no_block_gets_the_top_scale() {
    for rounding in ScaleRounding::ALL {
        assert!(scale_code(Format::Mxfp4, rounding, f32::MAX, 1.0) <= 253);
        assert!(scale_code(Format::Mxfp4, rounding, 1.0, f32::MAX) <= 253);
        assert!(scale_code(Format::Mxfp8, rounding, f32::MAX, 1.0) <= 247);
    }
}

#[test]
fn every_code_survives_a_round_trip() {
    for code in 0..=0xF {
        assert_eq!(e2m1_encode(e2m1_decode(code)), code);
    }
    for code in 0..=0xFF {
        let expected = if code == 0xFF { 0x7F } else { code };
        assert_eq!(e4m3_encode(e4m3_decode(code)), expected);
        assert_eq!(e8m0_encode_up(e8m0_decode(code)), code);
        assert_eq!(e8m0_encode_down(e8m0_decode(code)), code);
    }
}

/// All 65,536 patterns against the `half` crate.
#[test]
fn widening_is_exact() {
    for bits in 0..=u16::MAX {
        for (ours, theirs) in [
            (bf16_widen(bits), half::bf16::from_bits(bits).to_f32()),
            (f16_widen(bits), half::f16::from_bits(bits).to_f32()),
        ] {
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#06X}: {ours} {theirs}"
            );
        }
    }
}

#[test]
fn rounding_beyond_a_midpoint_is_not_lost_in_a_narrower_type() {
    assert_eq!(e2m1_decode(e2m1_encode(2.500_004)), 3.0);
    assert_eq!(e2m1_decode(e2m1_encode(2.5)), 2.0);
}

#[test]
fn the_reciprocal_flushes_subnormals() {
    assert_eq!(reciprocal(0.0), f32::INFINITY);
    assert_eq!(reciprocal(-0.0), f32::NEG_INFINITY);
    assert_eq!(reciprocal(f32::INFINITY).to_bits(), 0);
    assert_eq!(reciprocal(f32::NEG_INFINITY).to_bits(), 0x8000_0000);
    assert!(reciprocal(f32::NAN).is_nan());
    assert_eq!(reciprocal(f32::from_bits(0x007F_FFFF)), f32::INFINITY);
    assert_eq!(reciprocal(f32::from_bits(0x807F_FFFF)), f32::NEG_INFINITY);
    assert_eq!(reciprocal(f32::MIN_POSITIVE), 2.0_f32.powi(126));
    assert_eq!(reciprocal(2.0_f32.powi(126)), f32::MIN_POSITIVE);
    assert_eq!(reciprocal(2.0_f32.powi(127)).to_bits(), 0);
    assert_eq!(reciprocal(-f32::MAX).to_bits(), 0x8000_0000);
}

/// The factors that scales are made with, as their bits are usually quoted.
#[test]
fn reciprocals_of_the_largest_elements() {
    assert_eq!(reciprocal(6.0).to_bits(), 0x3E2A_AAAB);
    assert_eq!(reciprocal(448.0).to_bits(), 0x3B12_4925);
}

/// Every element code under every scale byte: row r of one slot has scale byte r and, over and over,
/// all codes. FP64 holds the products exactly, and has enough bits that rounding its quotient of two
/// FP32 values once more gives the correctly rounded FP32 quotient.
#[test]
fn every_code_under_every_scale_decodes() {
    let (rows, columns) = (256, 256);
    let routing = Routing::from_row_offsets(&[0, rows as u32], None, rows).unwrap();
    for (format, decode) in [
        (Format::Nvfp4, e2m1_decode as fn(u8) -> f32),
        (Format::Mxfp4, e2m1_decode),
        (Format::Mxfp8, e4m3_decode),
    ] {
        let row: Vec<u8> = match format.element_bits() {
            4 => (0..columns / 2)
                .map(|j| 0x10 + 0x22 * (j % 8) as u8)
                .collect(),
            _ => (0..=255).collect(),
        };
        let column_tiles = format.column_tiles(columns);
        let mut scales = vec![0; 2 * column_tiles * 512];
        for row in 0..rows {
            for block in 0..columns / format.block_size() {
                scales[scale_offset(0, row, block, column_tiles)] = row as u8;
            }
        }
        for sf in [1.0_f32, 0.43, 1.0 / 3.0, 368.2191, 1e-20] {
            let decoded = dequantize_to_vec(&Encoded {
                format,
                data: &row.repeat(rows),
                scales: &scales,
                rows,
                columns,
                groups: (&routing).into(),
                sf: &[sf],
            })
            .unwrap();
            let divisor = if format.uses_tensor_scale() {
                f64::from(sf)
            } else {
                1.0
            };
            for (index, value) in decoded.into_iter().enumerate() {
                let (scale, column) = ((index / columns) as u8, index % columns);
                let code = (column % (1 << format.element_bits())) as u8;
                let product = f64::from(decode(code)) * f64::from(scale_value(format, scale));
                // The product is an FP32 before it is divided: past the largest one it is Inf.
                let expected = (f64::from(product as f32) / divisor) as f32;
                let expected = if expected.is_nan() {
                    f32::NAN
                } else {
                    expected
                };
                assert_eq!(
                    value.to_bits(),
                    expected.to_bits(),
                    "{format} {code:#X} {scale:#04X} {sf}"
                );
            }
        }
    }
}
