//! Blocks at the edges of the formats, under both dead-block policies and both NaN policies.

mod reference_support;

use approx::assert_relative_eq;
use reference_support::{DEFAULT, PROPAGATE, STRICT, block, codes, rounding};
use tokenyard::options::{Format, QuantizeOptions, ScaleRounding};
use tokenyard::reference::scale::{amax, inverse_scale, scale_value};

const POLICIES: [QuantizeOptions; 3] = [DEFAULT, STRICT, PROPAGATE];
const MX: [Format; 2] = [Format::Mxfp4, Format::Mxfp8];

fn power(exponent: i32) -> f32 {
    2.0_f32.powi(exponent)
}

/// 2^-127, which is subnormal and not what `powi` is made for.
const TWO_TO_MINUS_127: f32 = f32::from_bits(0x0040_0000);

fn nan_code(format: Format) -> u8 {
    if format == Format::Mxfp8 { 0x7F } else { 0x7 }
}

fn nan_scale(format: Format) -> u8 {
    if format == Format::Nvfp4 { 0x7F } else { 0xFF }
}

#[test]
fn zeros_keep_their_sign() {
    for format in Format::ALL {
        let minus_zero = if format == Format::Mxfp8 { 0x80 } else { 0x8 };
        for options in POLICIES {
            for sf in [1.0, 1e-30, 1e30] {
                let (scale, codes) = codes(format, options, sf, &block(format, &[-0.0], 0.0));
                assert_eq!((scale, codes[0]), (0x00, minus_zero), "{format}");
                assert!(codes[1..].iter().all(|&code| code == 0), "{format}");
            }
        }
    }
}

#[test]
fn negative_values_that_round_to_zero_keep_their_sign() {
    let values = block(Format::Mxfp4, &[6.0, -0.1], 0.0);
    assert_eq!(
        codes(Format::Mxfp4, DEFAULT, 1.0, &values).1[..3],
        [0x7, 0x8, 0x0]
    );
    let values = block(Format::Mxfp8, &[448.0, -power(-11)], 0.0);
    assert_eq!(
        codes(Format::Mxfp8, DEFAULT, 1.0, &values).1[..3],
        [0x7E, 0x80, 0x00]
    );
}

/// NVFP4 with a scale that rounds to zero: 6 * 2^-10 is the last amax that does (a tie, to even).
#[test]
fn dead_nvfp4_blocks() {
    let last_dead = 6.0 * power(-10);
    let values = block(
        Format::Nvfp4,
        &[last_dead, -last_dead, 1e-9, 0.0, -0.0],
        0.0,
    );
    let (scale, strict) = codes(Format::Nvfp4, STRICT, 1.0, &values);
    assert_eq!(
        (scale, &strict[..6]),
        (0x00, &[0x7, 0xF, 0x7, 0x7, 0x7, 0x7][..])
    );
    assert_eq!(
        codes(Format::Nvfp4, DEFAULT, 1.0, &values),
        (0x00, vec![0; 16])
    );

    let first_alive = block(Format::Nvfp4, &[last_dead.next_up().next_up(), -0.0], 0.0);
    let hardened = codes(Format::Nvfp4, DEFAULT, 1.0, &first_alive);
    assert_eq!((hardened.0, hardened.1[0], hardened.1[1]), (0x01, 0x5, 0x8));
    assert_eq!(codes(Format::Nvfp4, STRICT, 1.0, &first_alive), hardened);

    // A dead block is stored as zeros even where it holds NaN.
    let with_nan = block(Format::Nvfp4, &[last_dead, f32::NAN], 0.0);
    assert_eq!(
        codes(Format::Nvfp4, DEFAULT, 1.0, &with_nan),
        (0x00, vec![0; 16])
    );
}

/// MX with scale byte 0, sf = 1: the literal reciprocal of 2^-127 is infinite.
#[test]
fn dead_mx_blocks() {
    let t = TWO_TO_MINUS_127;
    let values = block(
        Format::Mxfp4,
        &[6.0 * t, -3.0 * t, t / 2.0, t / 4.0, -0.0],
        0.0,
    );
    let (scale, strict) = codes(Format::Mxfp4, STRICT, 1.0, &values);
    assert_eq!(
        (scale, &strict[..6]),
        (0x00, &[0x7, 0xF, 0x7, 0x7, 0x7, 0x7][..])
    );
    let (scale, hardened) = codes(Format::Mxfp4, DEFAULT, 1.0, &values);
    assert_eq!(
        (scale, &hardened[..6]),
        (0x00, &[0x7, 0xD, 0x1, 0x0, 0x8, 0x0][..])
    );

    let values = block(Format::Mxfp8, &[448.0 * t, -t, t / 512.0, -0.0], 0.0);
    let (scale, strict) = codes(Format::Mxfp8, STRICT, 1.0, &values);
    assert_eq!(
        (scale, &strict[..5]),
        (0x00, &[0x7E, 0xFE, 0x7E, 0x7F, 0x7F][..])
    );
    let (scale, hardened) = codes(Format::Mxfp8, DEFAULT, 1.0, &values);
    assert_eq!(
        (scale, &hardened[..5]),
        (0x00, &[0x7E, 0xB8, 0x01, 0x80, 0x00][..])
    );

    // Just above, byte 1 has a normal reciprocal and both policies agree.
    let values = block(Format::Mxfp8, &[450.0 * t, t, 0.0], 0.0);
    let strict = codes(Format::Mxfp8, STRICT, 1.0, &values);
    assert_eq!((strict.0, strict.1[0]), (0x01, 0x76));
    assert_eq!(codes(Format::Mxfp8, DEFAULT, 1.0, &values), strict);
}

/// The other roundings reach byte 0 from farther above, and clip there.
#[test]
fn dead_mx_blocks_of_other_roundings() {
    let t = TWO_TO_MINUS_127;
    for scale_rounding in [ScaleRounding::Floor, ScaleRounding::Even] {
        let options = rounding(scale_rounding);
        let values = block(Format::Mxfp4, &[6.5 * t, t, 0.0], 0.0);
        let (scale, hardened) = codes(Format::Mxfp4, options, 1.0, &values);
        assert_eq!(
            (scale, &hardened[..3]),
            (0x00, &[0x7, 0x2, 0x0][..]),
            "{scale_rounding}"
        );
        let values = block(Format::Mxfp8, &[470.0 * t, t, 0.0], 0.0);
        let (scale, hardened) = codes(Format::Mxfp8, options, 1.0, &values);
        assert_eq!(
            (scale, &hardened[..3]),
            (0x00, &[0x7E, 0x38, 0x00][..]),
            "{scale_rounding}"
        );
    }
    let carried = block(Format::Mxfp4, &[7.0 * t], 0.0);
    assert_eq!(
        codes(Format::Mxfp4, rounding(ScaleRounding::Even), 1.0, &carried).0,
        0x01
    );
    assert_eq!(
        codes(Format::Mxfp4, rounding(ScaleRounding::Floor), 1.0, &carried).0,
        0x00
    );
}

/// MXFP4 with byte 0 and sf < 1: 2^-127 / sf is a normal number and both policies quantize with it.
#[test]
fn dead_mxfp4_blocks_with_a_tensor_scale() {
    let values = block(
        Format::Mxfp4,
        &[power(-124), power(-125), -power(-126), 0.0],
        0.0,
    );
    let strict = codes(Format::Mxfp4, STRICT, 0.25, &values);
    assert_eq!(
        (strict.0, &strict.1[..4]),
        (0x00, &[0x4, 0x2, 0x9, 0x0][..])
    );
    assert_eq!(codes(Format::Mxfp4, DEFAULT, 0.25, &values), strict);
    // A tensor scale above one: g * 2^127 overflows and is capped.
    let inverse = |sf| inverse_scale(Format::Mxfp4, DEFAULT.dead_blocks, 1e-45, 0x00, sf);
    assert_eq!(inverse(1.5), Some(1.5 * power(127)));
    assert_eq!(inverse(2.0), Some(f32::MAX));
}

#[test]
fn infinity_in_an_nvfp4_block() {
    let values = block(
        Format::Nvfp4,
        &[f32::INFINITY, f32::NEG_INFINITY, 448.0, -6.0 * 448.0],
        1.0,
    );
    for options in POLICIES {
        for sf in [1.0, 2.0] {
            let (scale, codes) = codes(Format::Nvfp4, options, sf, &values);
            assert_eq!((scale, codes[0], codes[1], codes[3]), (0x7E, 0x7, 0xF, 0xF));
            assert_eq!(codes[2], if sf == 1.0 { 0x2 } else { 0x4 });
            assert_eq!(codes[4], 0x0);
        }
    }
}

/// sf * amax past FP32 is as infinite as an infinite element.
#[test]
fn overflow_of_the_scaled_amax() {
    let values = block(Format::Nvfp4, &[f32::MAX, 1.0], 0.0);
    assert_eq!(codes(Format::Nvfp4, DEFAULT, 2.0, &values).0, 0x7E);
    for scale_rounding in ScaleRounding::ALL {
        let values = block(Format::Mxfp4, &[f32::MAX, 1.0], 0.0);
        let got = codes(Format::Mxfp4, rounding(scale_rounding), 2.0, &values);
        assert_eq!(got, (0xFF, vec![0x7; 32]));
        // MXFP8 has no tensor scale that could make it overflow.
        assert_ne!(
            codes(Format::Mxfp8, rounding(scale_rounding), 2.0, &values).0,
            0xFF
        );
    }
}

#[test]
fn infinity_in_an_mx_block() {
    for format in MX {
        for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
            for options in POLICIES {
                for scale_rounding in ScaleRounding::ALL {
                    let options = QuantizeOptions {
                        scale_rounding,
                        ..options
                    };
                    let got = codes(format, options, 1.0, &block(format, &[1.0, infinite], 0.0));
                    assert_eq!(got, (0xFF, vec![nan_code(format); 32]), "{format}");
                }
            }
        }
    }
}

#[test]
fn nan_beside_numbers() {
    for format in Format::ALL {
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7F80_0001)] {
            let mut values = block(format, &[3.0, -1.5, 0.0, -0.0], 0.5);
            let (scale, mut expected) = codes(format, DEFAULT, 1.0, &values);
            values[5] = nan;
            expected[5] = nan_code(format);
            for options in [DEFAULT, STRICT] {
                assert_eq!(
                    codes(format, options, 1.0, &values),
                    (scale, expected.clone())
                );
            }
            let all_nan = vec![nan_code(format); format.block_size()];
            let propagated = codes(format, PROPAGATE, 1.0, &values);
            assert_eq!(propagated, (nan_scale(format), all_nan), "{format}");
        }
    }
}

/// NaN is ignored even when all that is left is zeros, or infinity.
#[test]
fn nan_beside_zeros_and_infinity() {
    for format in Format::ALL {
        let nan = nan_code(format);
        let (scale, zeros) = codes(format, DEFAULT, 1.0, &block(format, &[f32::NAN, -0.0], 0.0));
        let minus_zero = if format == Format::Mxfp8 { 0x80 } else { 0x8 };
        assert_eq!((scale, &zeros[..3]), (0x00, &[nan, minus_zero, 0][..]));

        let values = block(format, &[f32::NAN, f32::INFINITY], 0.0);
        let expected = if format == Format::Nvfp4 { 0x7E } else { 0xFF };
        assert_eq!(codes(format, DEFAULT, 1.0, &values).0, expected, "{format}");
    }
}

#[test]
fn a_block_of_nothing_but_nan() {
    for format in Format::ALL {
        let whole = vec![f32::NAN; format.block_size()];
        for options in POLICIES {
            let all_nan = vec![nan_code(format); whole.len()];
            assert_eq!(
                codes(format, options, 1.0, &whole),
                (nan_scale(format), all_nan)
            );
        }
        // The elements past the end of a row count as zeros, so a partial block has a number.
        let partial = vec![f32::NAN; 8];
        let ignored = codes(format, DEFAULT, 1.0, &partial);
        assert_eq!(ignored, (0x00, vec![nan_code(format); 8]), "{format}");
        assert_eq!(codes(format, PROPAGATE, 1.0, &partial).0, nan_scale(format));
    }
}

#[test]
fn amax_is_a_magnitude() {
    for nan_policy in [DEFAULT.nan_policy, PROPAGATE.nan_policy] {
        assert_eq!(amax(&[], 16, nan_policy).to_bits(), 0);
        assert_eq!(amax(&[-0.0; 16], 16, nan_policy).to_bits(), 0);
        assert_eq!(amax(&[1.0, -3.0, 2.0], 16, nan_policy), 3.0);
        assert_eq!(
            amax(&[1.0, f32::NEG_INFINITY], 16, nan_policy),
            f32::INFINITY
        );
    }
}

/// Huge data and a tensor scale below one: the inverse is subnormal and flushed.
#[test]
fn an_inverse_below_the_normal_range() {
    let huge = power(126);
    let values = block(Format::Mxfp4, &[huge, -huge], 1.0);
    for options in [DEFAULT, STRICT] {
        let (scale, codes) = codes(Format::Mxfp4, options, 0.25, &values);
        assert_eq!((scale, &codes[..3]), (249, &[0x6, 0xE, 0x0][..]));
    }
    // 2^126 / 0.8 is above 2^126, so its reciprocal is below 2^-126.
    let values = block(Format::Mxfp4, &[f32::MAX, -f32::MAX], 1.0);
    for options in [DEFAULT, STRICT] {
        let (scale, codes) = codes(Format::Mxfp4, options, 0.8, &values);
        assert_eq!((scale, &codes[..3]), (253, &[0x0, 0x8, 0x0][..]));
    }
}

/// A tensor scale so large that 1/sf, or the block scale over it, is flushed to zero although the
/// block scale is not.
#[test]
fn an_inverse_beyond_fp32() {
    for (format, sf, amax) in [
        (Format::Nvfp4, f32::MAX, power(-120)),
        (Format::Nvfp4, power(120), power(-126)),
        (Format::Mxfp4, f32::MAX, power(-120)),
    ] {
        let values = block(format, &[amax, -amax, 0.0, -0.0], 0.0);
        let strict = codes(format, STRICT, sf, &values);
        let hardened = codes(format, DEFAULT, sf, &values);
        assert_eq!(strict.0, hardened.0);
        assert_ne!(strict.0, 0x00, "{format} {sf:e}");
        assert_eq!(
            strict.1[2..],
            vec![0x7; format.block_size() - 2],
            "{format} {sf:e}"
        );
        assert_eq!(hardened.1[2..4], [0x0, 0x8], "{format} {sf:e}");
        let inverse = |options: QuantizeOptions| {
            inverse_scale(format, options.dead_blocks, amax, strict.0, sf)
        };
        assert_eq!(inverse(STRICT), Some(f32::INFINITY));
        // sf / scale, but for two roundings of subnormals, as far as FP32 reaches.
        let exact = f64::from(sf) / f64::from(scale_value(format, strict.0));
        let expected = exact.min(f64::from(f32::MAX)) as f32;
        assert_relative_eq!(inverse(DEFAULT).unwrap(), expected, max_relative = 1e-5);
    }
}

/// Data beyond what the tensor scale was made for saturates; it does not become NaN.
#[test]
fn nvfp4_scales_saturate() {
    for amax in [2688.0, 2785.0, 1e6, f32::MAX] {
        let values = block(Format::Nvfp4, &[amax, -amax], 1.0);
        let (scale, codes) = codes(Format::Nvfp4, DEFAULT, 1.0, &values);
        assert_eq!((scale, codes[0], codes[1]), (0x7E, 0x7, 0xF), "{amax}");
    }
}

#[test]
#[should_panic(expected = "at most one block")]
fn block_sizes_are_checked() {
    codes(Format::Nvfp4, DEFAULT, 1.0, &[0.0; 17]);
}
