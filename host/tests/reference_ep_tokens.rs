//! Expert-parallel dispatch, one token at a time: message extents, and each format's bytes, from the
//! worked values of the definition and by hand.

use tokenyard::ep::TokenFormat;
use tokenyard::options::ScaleRounding;
use tokenyard::reference::ep::{MessageParts, payload_bytes, quantize_token, scale_columns};
use tokenyard::reference::formats::{e2m1_encode, e8m0_encode_up};

fn bf16(value: f32) -> u16 {
    half::bf16::from_f32(value).to_bits()
}

/// Payload and scales of a token that begins with `values`, zeros after them.
fn quantized(
    format: TokenFormat,
    rounding: ScaleRounding,
    factor: f32,
    values: &[f32],
    hidden: usize,
) -> (Vec<u8>, Vec<u8>) {
    let mut token: Vec<u16> = values.iter().map(|&value| bf16(value)).collect();
    token.resize(hidden, 0);
    let (columns, bytes) = scale_columns(format, hidden);
    let mut payload = vec![0xEE; payload_bytes(format, hidden)];
    let mut scales = vec![0xEE; columns * bytes];
    quantize_token(format, rounding, factor, &token, &mut payload, &mut scales);
    (payload, scales)
}

fn mxfp4(values: &[f32]) -> (Vec<u8>, u8) {
    let (payload, scales) = quantized(TokenFormat::Mxfp4, ScaleRounding::Even, 1.0, values, 32);
    (payload, scales[0])
}

/// The published ones are what comes before the slots: 4 bytes for each of a token's experts, in units of 16.
#[test]
fn messages_have_the_published_extents() {
    for (format, large, small) in [
        (TokenFormat::Bf16, 14368, 12320),
        (TokenFormat::Fp8Block128, 7424, 6368),
        (TokenFormat::Nvfp4, 4064, 3488),
        (TokenFormat::Mxfp4, 3840, 3296),
        (TokenFormat::Mxfp8, 7424, 6368),
    ] {
        let extents = |hidden_size, top_k| {
            let parts = MessageParts::new(format, hidden_size, top_k);
            (parts.slots_offset, parts.bytes)
        };
        assert_eq!(extents(7168, 8), (large, large + 32), "{format:?}");
        assert_eq!(extents(6144, 4), (small, small + 16), "{format:?}");
    }
}

#[test]
fn parts_of_a_message_are_aligned() {
    // 2880 elements of MXFP4: 1440 bytes, 90 scales up to 1536; nine ids are 18 bytes.
    let parts = MessageParts::new(TokenFormat::Mxfp4, 2880, 9);
    let expected = MessageParts {
        payload_bytes: 1440,
        scales_offset: 1440,
        scale_bytes: 90,
        source_offset: 1440 + 96,
        topk_offset: 1440 + 96 + 16,
        slots_offset: 1440 + 96 + 16 + 32,
        bytes: 1440 + 96 + 16 + 32 + 48,
    };
    assert_eq!(parts, expected);
    // No scales: the index follows the payload, here after 8 bytes of padding.
    let parts = MessageParts::new(TokenFormat::Bf16, 4, 1);
    assert_eq!(
        (parts.scales_offset, parts.source_offset, parts.bytes),
        (16, 16, 64)
    );
}

#[test]
fn bf16_is_copied() {
    let token = [0x1234, 0x7FC1, 0x8000, 0xFFFF];
    let mut payload = [0; 8];
    quantize_token(
        TokenFormat::Bf16,
        ScaleRounding::Even,
        1.0,
        &token,
        &mut payload,
        &mut [],
    );
    assert_eq!(payload, [0x34, 0x12, 0xC1, 0x7F, 0x00, 0x80, 0xFF, 0xFF]);
}

/// The worked maxima: byte, and the code of the maximum itself.
#[test]
fn mxfp4_even_scales() {
    for (amax, byte, code) in [
        (1.75, 126, 6),
        (1.0, 125, 6),
        (6.0, 127, 7),
        (7.0, 128, 6), // 3.5 is a tie, and goes to the even code: 4
        (0.0, 0, 0),
    ] {
        let (payload, scale) = mxfp4(&[amax]);
        assert_eq!((scale, payload[0]), (byte, code), "{amax}");
    }
    // 1.6 is no BF16 value; its neighbours behave alike: 6.4 saturates to 6.
    let (payload, scale) = mxfp4(&[1.6]);
    assert_eq!((scale, payload[0]), (125, 7));
    // The even element is in the low bits, and signs are kept, on zeros too.
    let (payload, _) = mxfp4(&[6.0, -0.5, -0.0, 3.0, 0.25, -0.26]);
    assert_eq!(payload[..3], [0x97, 0x58, 0x90]);
}

/// The scale by its formula on the bits, for every finite BF16 maximum.
#[test]
fn mxfp4_even_scale_is_the_formula_on_bits() {
    for bits in 0..0x7F80_u16 {
        let token: Vec<u16> = std::iter::once(bits).chain([0; 31]).collect();
        let (mut payload, mut scale) = ([0; 16], [0]);
        quantize_token(
            TokenFormat::Mxfp4,
            ScaleRounding::Even,
            1.0,
            &token,
            &mut payload,
            &mut scale,
        );
        let amax = u32::from(bits) << 16;
        let byte = (((amax + 0x0020_0000) >> 23 & 0xFF) as i32 - 2).clamp(0, 254);
        assert_eq!(i32::from(scale[0]), byte, "{bits:#06x}");
        let code = e2m1_encode((f64::from(f32::from_bits(amax)) / 2f64.powi(byte - 127)) as f32);
        assert_eq!(payload[0], code, "{bits:#06x}");
    }
}

#[test]
fn mxfp4_has_three_roundings() {
    // 7 / 6 is above 1: RCEIL doubles the scale. 7 is below 8: FLOOR keeps 4 / 4.
    for (rounding, byte, code) in [
        (ScaleRounding::Rceil, 128, 6),
        (ScaleRounding::Floor, 127, 7),
        (ScaleRounding::Even, 128, 6),
    ] {
        let (payload, scales) = quantized(TokenFormat::Mxfp4, rounding, 1.0, &[7.0], 32);
        assert_eq!((scales[0], payload[0]), (byte, code), "{rounding}");
    }
    // 6.5 rounds to 6 in two significand bits, and 6.5 / 6 is above 1.
    for (rounding, byte) in [
        (ScaleRounding::Rceil, 128),
        (ScaleRounding::Floor, 127),
        (ScaleRounding::Even, 127),
    ] {
        let (_, scales) = quantized(TokenFormat::Mxfp4, rounding, 1.0, &[6.5], 32);
        assert_eq!(scales[0], byte, "{rounding}");
    }
}

#[test]
fn e8m0_rounds_magnitudes_up() {
    for (value, power) in [(1.1, 1), (2.23, 2), (3.0, 2), (1.0, 0), (4.0, 2), (-3.0, 2)] {
        assert_eq!(i32::from(e8m0_encode_up(value)) - 127, power, "{value}");
    }
    assert_eq!(e8m0_encode_up(2f32.powi(127)), 254);
    assert_eq!(e8m0_encode_up(f32::from_bits(0x0040_0000)), 0);
    assert_eq!(e8m0_encode_up(f32::from_bits(0x0040_0001)), 1);
}

#[test]
fn mxfp8_blocks() {
    let mxfp8 = |values: &[f32]| {
        let (payload, scales) =
            quantized(TokenFormat::Mxfp8, ScaleRounding::Rceil, 1.0, values, 32);
        (payload, scales[0])
    };
    // 448 fits with scale 1; 0.5 and -1 are codes 0x30 and 0xB8.
    let (payload, scale) = mxfp8(&[448.0, 0.5, -1.0]);
    assert_eq!((scale, &payload[..3]), (127, [0x7E, 0x30, 0xB8].as_slice()));
    // 3 / 448 rounds up to 2^-7: 3 * 128 = 384, code 0x7C.
    let (payload, scale) = mxfp8(&[3.0]);
    assert_eq!((scale, payload[0]), (120, 0x7C));
    // Zeros keep their sign.
    let (payload, scale) = mxfp8(&[0.0, -0.0]);
    assert_eq!((scale, &payload[..2]), (0, [0x00, 0x80].as_slice()));
}

/// Below E8M0's range, or no number: everything is zero. The least maximum that is not: more than
/// 448 * 2^-127.
#[test]
fn mxfp8_dead_blocks() {
    let mxfp8 = |value: f32| {
        let (payload, scales) = quantized(
            TokenFormat::Mxfp8,
            ScaleRounding::Rceil,
            1.0,
            &[value, -1e-39],
            32,
        );
        (payload, scales[0])
    };
    let limit = 448.0 * 2f32.powi(-127);
    for dead in [1e-38, limit, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(mxfp8(dead), (vec![0; 32], 0), "{dead:e}");
    }
    let above = f32::from_bits(limit.to_bits() + 0x1_0000);
    let (payload, scale) = mxfp8(above);
    assert_eq!(scale, 1);
    assert_eq!(payload[0], 0x76, "about 224 after division by 2^-126");
    // NaN beside numbers is NaN itself and leaves the others alone; alone, it is a dead block.
    let (payload, scales) = quantized(
        TokenFormat::Mxfp8,
        ScaleRounding::Rceil,
        1.0,
        &[f32::NAN, 448.0],
        32,
    );
    assert_eq!((scales[0], payload[0], payload[1]), (127, 0x7F, 0x7E));
    let (payload, scales) = quantized(
        TokenFormat::Mxfp8,
        ScaleRounding::Rceil,
        1.0,
        &[f32::NAN; 32],
        32,
    );
    assert_eq!((scales[0], payload), (0, vec![0; 32]));
}

/// 480 is 448 in three mantissa bits above 1.875 * 2^8, and half way to 2^9; FLOOR looks at 2^8 alone.
#[test]
fn mxfp8_has_three_roundings() {
    for (rounding, byte, code) in [
        (ScaleRounding::Rceil, 128, 0x77),
        (ScaleRounding::Floor, 127, 0x7E),
        (ScaleRounding::Even, 127, 0x7E),
    ] {
        let (payload, scales) = quantized(TokenFormat::Mxfp8, rounding, 1.0, &[480.0], 32);
        assert_eq!((scales[0], payload[0]), (byte, code), "{rounding}");
    }
    let (_, scales) = quantized(TokenFormat::Mxfp8, ScaleRounding::Even, 1.0, &[496.0], 32);
    assert_eq!(scales[0], 128, "496 is 1.9375 * 2^8, which rounds to 2^9");
}

#[test]
fn blockwise_fp8_blocks() {
    let fp8 = |values: &[f32]| {
        let (payload, scales) = quantized(
            TokenFormat::Fp8Block128,
            ScaleRounding::Even,
            1.0,
            values,
            256,
        );
        let scale =
            |block: usize| f32::from_le_bytes([0, 1, 2, 3].map(|byte| scales[4 * block + byte]));
        (payload, [scale(0), scale(1)])
    };
    // The second block is zeros: amax counts as 1e-4.
    let (payload, scales) = fp8(&[448.0, -224.0, 1.0]);
    assert_eq!(scales, [1.0, 1e-4 / 448.0]);
    assert_eq!(payload[..4], [0x7E, 0xF6, 0x38, 0x00]);
    assert_eq!(payload[128..], [0; 128]);
    // A scale that is no power of two: 3 / 448, the maximum is 448 again, 1 is 149.33, nearest 144.
    let (payload, scales) = fp8(&[3.0, 1.0, -1.5]);
    assert_eq!(scales[0], 3.0 / 448.0);
    assert_eq!(payload[..3], [0x7E, 0x71, 0xF6]);
    // Infinity: its scale is infinite, and what is divided by it is 0, or NaN.
    let (payload, scales) = fp8(&[f32::INFINITY, 5.0]);
    assert_eq!(
        (scales[0], &payload[..2]),
        (f32::INFINITY, [0x7F, 0x00].as_slice())
    );
    // Nothing but NaN: the least scale.
    let (payload, scales) = fp8(&[f32::NAN; 128]);
    assert_eq!((scales[0], payload[0]), (1e-4 / 448.0, 0x7F));
}

#[test]
fn nvfp4_blocks() {
    let nvfp4 = |factor: f32, values: &[f32]| {
        quantized(TokenFormat::Nvfp4, ScaleRounding::Rceil, factor, values, 32)
    };
    // amax 6: scale 1 (0x38); the second block is zeros.
    let (payload, scales) = nvfp4(1.0, &[6.0, -1.5, 0.5, -0.0]);
    assert_eq!(scales, [0x38, 0x00]);
    assert_eq!(payload[..2], [0xB7, 0x81]);
    // With g = 64 the scale is 64 (0x68), and the elements are the same.
    let (with_factor, scales) = nvfp4(64.0, &[6.0, -1.5, 0.5, -0.0]);
    assert_eq!((scales[0], with_factor), (0x68, payload));
    // A scale of zero for a block that is not: +0 throughout.
    let (payload, scales) = nvfp4(1.0, &[1e-4, -1e-4]);
    assert_eq!((scales[0], payload[0]), (0, 0));
}

/// What a quantized token decodes to is near the token: by a tenth in blockwise FP8 and MXFP8, by a quarter in the
/// FP4 formats, relative and absolute, for normally distributed values.
#[test]
fn decoded_tokens_are_near() {
    use tokenyard::reference::formats::{e2m1_decode, e4m3_decode, e8m0_decode};
    let mut random = fastrand::Rng::with_seed(1);
    let values: Vec<f32> = (0..256)
        .map(|_| (0..12).map(|_| random.f32()).sum::<f32>() - 6.0)
        .map(|value| half::bf16::from_f32(value).to_f32())
        .collect();
    for (format, block, tolerance) in [
        (TokenFormat::Fp8Block128, 128, 0.1),
        (TokenFormat::Nvfp4, 16, 0.25),
        (TokenFormat::Mxfp4, 32, 0.25),
        (TokenFormat::Mxfp8, 32, 0.1),
    ] {
        let factor = if format == TokenFormat::Nvfp4 {
            100.0
        } else {
            1.0
        };
        let rounding = match format {
            TokenFormat::Mxfp4 => ScaleRounding::Even,
            _ => ScaleRounding::Rceil,
        };
        let (payload, scales) = quantized(format, rounding, factor, &values, 256);
        for (column, &value) in values.iter().enumerate() {
            let nibble = payload[column * payload.len() / 256] >> (column % 2 * 4) & 0xF;
            let at = column / block;
            let decoded = match format {
                TokenFormat::Fp8Block128 => {
                    let scale = [0, 1, 2, 3].map(|byte| scales[4 * at + byte]);
                    e4m3_decode(payload[column]) * f32::from_le_bytes(scale)
                }
                TokenFormat::Nvfp4 => e2m1_decode(nibble) * e4m3_decode(scales[at]) / factor,
                TokenFormat::Mxfp4 => e2m1_decode(nibble) * e8m0_decode(scales[at]),
                _ => e4m3_decode(payload[column]) * e8m0_decode(scales[at]),
            };
            let bound = tolerance + tolerance * value.abs();
            assert!(
                (decoded - value).abs() <= bound,
                "{format}: {value} became {decoded}"
            );
        }
    }
}
