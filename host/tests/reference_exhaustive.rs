//! Every BF16 pattern as a block's largest magnitude, against exact arithmetic.
//!
//! Exact here means: BF16 values (8 significant bits), products with an FP32 tensor scale (32 bits)
//! and code values times a power of two (4 bits) all fit FP64 without rounding, so that comparing
//! them as FP64 decides as rational numbers would; and logarithms are taken from integers.

mod reference_support;

use std::iter;

use reference_support::{DEFAULT, STRICT, codes, rounding, vectors};
use serde::Deserialize;
use tokenyard::options::{Format, ScaleRounding};
use tokenyard::reference::formats::{bf16_widen, e8m0_encode_up};
use tokenyard::reference::scale::scale_code;

/// The finite magnitudes of an element or scale format, and the midpoints between them.
struct Grid {
    values: Vec<f64>,
    midpoints: Vec<f64>,
}

impl Grid {
    fn new(values: Vec<f64>) -> Grid {
        let midpoints = values
            .windows(2)
            .map(|pair| (pair[0] + pair[1]) / 2.0)
            .collect();
        Grid { values, midpoints }
    }

    fn e2m1() -> Grid {
        Grid::new(vec![0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    }

    fn e4m3() -> Grid {
        let subnormals = (0..8).map(|m| f64::from(m) / 512.0);
        let normals = (1..16).flat_map(|exponent: i32| {
            (8..16).map(move |m| f64::from(m) * 2.0_f64.powi(exponent - 10))
        });
        Grid::new(subnormals.chain(normals).take(127).collect())
    }

    fn of_elements(format: Format) -> Grid {
        if format.element_bits() == 4 {
            Grid::e2m1()
        } else {
            Grid::e4m3()
        }
    }

    /// The code nearest to `numerator / denominator`, ties to even, saturating; sign left out.
    fn nearest(&self, numerator: f64, denominator: f64) -> u8 {
        let below = self
            .midpoints
            .partition_point(|midpoint| midpoint * denominator < numerator);
        let tie = self
            .midpoints
            .get(below)
            .is_some_and(|m| m * denominator == numerator);
        (below + usize::from(tie && below % 2 == 1)) as u8
    }
}

/// BF16 magnitudes as m * 2^e with 128 <= m < 256, subnormals included.
fn significand_and_exponent(magnitude: u16) -> (u32, i32) {
    let (field, mantissa) = (i32::from(magnitude >> 7), u32::from(magnitude & 0x7F));
    let (mut m, mut e) = if field == 0 {
        (mantissa, -133)
    } else {
        (128 + mantissa, field - 134)
    };
    while m < 128 {
        (m, e) = (m * 2, e - 1);
    }
    (m, e)
}

/// The scale byte by definition, for the nonzero finite BF16 `magnitude`.
fn exact_mx_scale(format: Format, rounding: ScaleRounding, magnitude: u16) -> u8 {
    let (max, max_exponent, mantissa_bits) = if format == Format::Mxfp4 {
        (6.0, 2, 1)
    } else {
        (448.0, 8, 3)
    };
    let (m, e) = significand_and_exponent(magnitude);
    let floor_log2 = e + 7;
    let exponent = match rounding {
        ScaleRounding::Floor => floor_log2 - max_exponent,
        ScaleRounding::Even => {
            let step = 128 >> mantissa_bits;
            let rounded = (m + step / 2) / step * step;
            floor_log2 + i32::from(rounded == 256) - max_exponent
        }
        ScaleRounding::Rceil => {
            let amax = f64::from(bf16_widen(magnitude));
            (-127..=127)
                .find(|&k| amax <= max * 2.0_f64.powi(k))
                .unwrap()
        }
        other => panic!("no definition for {other}"),
    };
    (exponent.clamp(-127, 127) + 127) as u8
}

/// All finite magnitudes but zero.
fn magnitudes() -> impl Iterator<Item = u16> {
    1..0x7F80
}

/// A block whose largest magnitude is `magnitude`, filled with smaller patterns of either sign.
fn descending_block(format: Format, magnitude: u16) -> Vec<f32> {
    let steps = iter::successors(Some(0_u16), |step| Some(step.saturating_add(step / 2 + 1)));
    steps
        .take(format.block_size())
        .enumerate()
        .map(|(i, step)| {
            let sign = if i % 3 == 1 { 0x8000 } else { 0 };
            bf16_widen(magnitude.saturating_sub(step) | sign)
        })
        .collect()
}

#[test]
fn mx_scales_and_elements_are_exact() {
    for format in [Format::Mxfp4, Format::Mxfp8] {
        let elements = Grid::of_elements(format);
        let sign_bit = 1 << (format.element_bits() - 1);
        for rounding_rule in ScaleRounding::ALL {
            for magnitude in magnitudes() {
                let values = descending_block(format, magnitude);
                let (scale, codes) = codes(format, rounding(rounding_rule), 1.0, &values);
                let exact = exact_mx_scale(format, rounding_rule, magnitude);
                assert_eq!(scale, exact, "{format} {rounding_rule} {magnitude:#06X}");
                let power = 2.0_f64.powi(i32::from(scale) - 127);
                for (value, code) in values.iter().zip(codes) {
                    let sign = if value.is_sign_negative() {
                        sign_bit
                    } else {
                        0
                    };
                    let exact = elements.nearest(f64::from(value.abs()), power) | sign;
                    assert_eq!(
                        code, exact,
                        "{format} {rounding_rule} {magnitude:#06X} {value:e}"
                    );
                }
            }
        }
    }
}

/// Rounding up never clips: no element is larger than the largest code.
#[test]
fn rceil_never_clips() {
    for format in [Format::Mxfp4, Format::Mxfp8] {
        for magnitude in magnitudes() {
            let scale = exact_mx_scale(format, ScaleRounding::Rceil, magnitude);
            let limit = f64::from(format.element_max()) * 2.0_f64.powi(i32::from(scale) - 127);
            assert!(
                f64::from(bf16_widen(magnitude)) <= limit,
                "{format} {magnitude:#06X}"
            );
        }
    }
}

/// With sf = 1 the scale byte is that of the exact quotient amax / 6 for every BF16 amax.
#[test]
fn nvfp4_scales_are_exact() {
    let grid = Grid::e4m3();
    for magnitude in magnitudes() {
        let amax = bf16_widen(magnitude);
        let scale = scale_code(Format::Nvfp4, ScaleRounding::Rceil, amax, 1.0);
        assert_eq!(
            scale,
            grid.nearest(f64::from(amax), 6.0),
            "{magnitude:#06X}"
        );
    }
}

/// With any sf the scale byte and the elements are those that exact arithmetic gives, unless the
/// exact quotient is so near to a midpoint that roundings can carry it across.
///
/// The scale takes three roundings (sf * amax, 1/6, their product) and an element takes four (1/sf,
/// the scale over it, the reciprocal, the product with the element). Each is off by at most 2^-24
/// relative, so n of them by less than (n + 0.01) * 2^-24.
#[test]
fn nvfp4_is_exact_up_to_rounding_at_midpoints() {
    let (scales, elements) = (Grid::e4m3(), Grid::e2m1());
    let unit = 2.0_f64.powi(-24);
    let within = |grid: &Grid, numerator: f64, denominator: f64, roundings: f64, code: u8| {
        let reach = (roundings + 0.01) * unit;
        grid.nearest(numerator * (1.0 - reach), denominator) <= code
            && code <= grid.nearest(numerator * (1.0 + reach), denominator)
    };
    for sf in [
        1.0_f32,
        0.43,
        0.5,
        1.0 / 3.0,
        368.2191,
        0.0073,
        448.0 * 6.0 / 10.5,
    ] {
        for magnitude in magnitudes() {
            let values = descending_block(Format::Nvfp4, magnitude);
            let (scale, codes) = codes(Format::Nvfp4, DEFAULT, sf, &values);
            let encoded = |value: f32| f64::from(value.abs()) * f64::from(sf);
            // Where FP32 products are subnormal the bound does not hold, and nothing but 0 is near.
            assert!(
                within(&scales, encoded(values[0]), 6.0, 3.0, scale),
                "sf {sf} amax {magnitude:#06X}: scale {scale:#04X}"
            );
            if scale == 0 {
                assert_eq!(codes, [0; 16], "sf {sf} amax {magnitude:#06X}");
                continue;
            }
            let divisor = scales.values[usize::from(scale)];
            for (value, code) in values.iter().zip(codes) {
                assert_eq!(code & 8 != 0, value.is_sign_negative());
                assert!(
                    within(&elements, encoded(*value), divisor, 4.0, code & 7),
                    "sf {sf} amax {magnitude:#06X}: {value:e} became {code:#X}"
                );
            }
        }
    }
}

/// The MXFP4 scale with a tensor scale: that of the exact product sf * amax, unless three roundings
/// carry the quotient across a power of two.
#[test]
fn mxfp4_scales_with_a_tensor_scale() {
    let reach = 3.01 * 2.0_f64.powi(-24);
    let exact = |v: f64| {
        (-127..=127)
            .find(|&k| v <= 6.0 * 2.0_f64.powi(k))
            .map_or(254, |k| k + 127)
    };
    for sf in [0.43_f32, 0.5, 1.0 / 3.0, 368.2191, 0.0073] {
        for magnitude in magnitudes() {
            let amax = bf16_widen(magnitude);
            let v = f64::from(sf) * f64::from(amax);
            // Subnormal products are coarser than the bound says, those past FP32 are Inf.
            if v < f64::from(f32::MIN_POSITIVE) * 8.0 || v > f64::from(f32::MAX) {
                continue;
            }
            let scale = i32::from(scale_code(Format::Mxfp4, ScaleRounding::Rceil, amax, sf));
            let (low, high) = (exact(v * (1.0 - reach)), exact(v * (1.0 + reach)));
            assert!(
                (low..=high).contains(&scale),
                "sf {sf} {magnitude:#06X}: {scale}"
            );
        }
    }
}

/// Zeros, infinities and NaN as amax: the other 512 of the 65,536 patterns, and both signs of all.
#[test]
fn every_pattern_gives_the_byte_of_its_magnitude() {
    for format in Format::ALL {
        for rounding_rule in ScaleRounding::ALL {
            let options = rounding(rounding_rule);
            if options.check(format).is_err() {
                continue;
            }
            let (zero, infinite, nan) = if format == Format::Nvfp4 {
                (0, 0x7E, 0x7F)
            } else {
                (0, 0xFF, 0xFF)
            };
            for bits in 0..=u16::MAX {
                // A block of that value alone: NaN blocks then hold no number.
                let value = bf16_widen(bits);
                let (scale, _) = codes(format, options, 1.0, &vec![value; format.block_size()]);
                let expected = match bits & 0x7FFF {
                    0 => zero,
                    0x7F80 => infinite,
                    0x7F81.. => nan,
                    magnitude => scale_code(format, rounding_rule, bf16_widen(magnitude), 1.0),
                };
                assert_eq!(scale, expected, "{format} {rounding_rule} {bits:#06X}");
            }
        }
    }
}

/// With sf = 1 the two dead-block policies differ in no block but those with scale byte 0x00.
#[test]
fn policies_differ_only_in_dead_blocks() {
    for format in Format::ALL {
        let mut dead = 0;
        for magnitude in magnitudes() {
            let values = descending_block(format, magnitude);
            let hardened = codes(format, DEFAULT, 1.0, &values);
            let strict = codes(format, STRICT, 1.0, &values);
            assert_eq!(hardened.0, strict.0);
            if hardened.0 == 0 {
                dead += 1;
            } else {
                assert_eq!(hardened.1, strict.1, "{format} {magnitude:#06X}");
            }
        }
        // Magnitudes up to 6 * 2^-10, up to 6 * 2^-127, and up to 448 * 2^-127.
        let last_dead = match format {
            Format::Nvfp4 => 0x3BC0,
            Format::Mxfp4 => 0x0140,
            _ => 0x0460,
        };
        assert_eq!(dead, last_dead, "{format}");
    }
}

/// The recorded facts about shortcuts for ceil(log2(amax / max)): ours, the FP32 product with the
/// rounded reciprocal, has no mismatch, and the neighbours have as many as recorded.
#[test]
fn shortcuts_differ_from_exact_as_recorded() {
    #[derive(Deserialize)]
    struct Facts {
        mxfp4_rceil_max6: Shortcuts,
        mxfp8_rceil_max448: Shortcuts,
    }
    #[derive(Deserialize)]
    struct Shortcuts {
        fp32_divide: Fact,
        fp32_mul_rcp_rn: Fact,
        fp32_mul_rcp_plus1ulp: Fact,
        fp32_mul_rcp_minus1ulp: Fact,
        #[serde(rename = "integer_add_0x7FFFFF")]
        integer_add: Fact,
        divide_then_ftz: Fact,
    }
    #[derive(Deserialize)]
    struct Fact {
        mismatches: usize,
        first: Vec<String>,
    }

    let facts = vectors::<Facts>("facts_bf16_exhaustive.json");
    for (format, recorded) in [
        (Format::Mxfp4, facts.mxfp4_rceil_max6),
        (Format::Mxfp8, facts.mxfp8_rceil_max448),
    ] {
        let max = format.element_max();
        let reciprocal = 1.0 / max;
        let check = |name: &str, fact: &Fact, shortcut: &dyn Fn(f32) -> u8| {
            let wrong: Vec<u16> = magnitudes()
                .filter(|&magnitude| {
                    shortcut(bf16_widen(magnitude))
                        != exact_mx_scale(format, ScaleRounding::Rceil, magnitude)
                })
                .collect();
            assert_eq!(wrong.len(), fact.mismatches, "{format} {name}");
            let first: Vec<String> = wrong
                .iter()
                .take(4)
                .map(|magnitude| format!("{magnitude:#06X}"))
                .collect();
            assert_eq!(first, fact.first, "{format} {name}");
        };
        check("ours", &recorded.fp32_mul_rcp_rn, &|amax| {
            scale_code(format, ScaleRounding::Rceil, amax, 1.0)
        });
        check("divide", &recorded.fp32_divide, &|amax| {
            e8m0_encode_up(amax / max)
        });
        check("one ulp more", &recorded.fp32_mul_rcp_plus1ulp, &|amax| {
            e8m0_encode_up(amax * reciprocal.next_up())
        });
        check("one ulp less", &recorded.fp32_mul_rcp_minus1ulp, &|amax| {
            e8m0_encode_up(amax * reciprocal.next_down())
        });
        check("integer addition", &recorded.integer_add, &|amax| {
            (((amax / max).to_bits() + 0x7F_FFFF) >> 23) as u8
        });
        check("flush", &recorded.divide_then_ftz, &|amax| {
            let quotient = amax / max;
            e8m0_encode_up(if quotient.is_subnormal() {
                0.0
            } else {
                quotient
            })
        });
    }
}
