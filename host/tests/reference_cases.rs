//! Faults that other projects' quantizers had, and that this one must not have. Each test names the
//! kind of fault; the public report is linked.

mod reference_support;

use reference_support::{DEFAULT, STRICT, block, codes, packed};
use tokenyard::options::Format;
use tokenyard::reference::formats::bf16_widen;
use tokenyard::reference::{
    Encoded, Groups, Input, Output, Problem, Quantized, dequantize_to_vec, quantize,
    quantize_to_vec, scale_offset,
};
use tokenyard::routing::Routing;

/// Rows grouped into slots, quantized into memory that is full of `fill`.
fn quantize_over(
    fill: u8,
    format: Format,
    routing: &Routing,
    values: &[f32],
    columns: usize,
) -> Quantized {
    let sf = vec![1.0; routing.experts()];
    let problem = Problem {
        format,
        input: Input::F32(values),
        input_rows: routing.rows(),
        columns,
        groups: routing.into(),
        sf: &sf,
        source_rows: None,
        options: DEFAULT,
    };
    let mut quantized = Quantized {
        data: vec![fill; problem.data_bytes()],
        scales: vec![fill; routing.max_tiles() * problem.tile_row_bytes()],
    };
    let output = Output {
        data: &mut quantized.data,
        scales: &mut quantized.scales,
    };
    quantize(&problem, output).unwrap();
    quantized
}

/// Decodes one block that was written by hand.
fn decode_block(format: Format, scale: u8, data: &[u8]) -> Vec<f32> {
    let mut scales = vec![0; 512];
    scales[0] = scale;
    let groups = Groups {
        row_offsets: &[0, 1],
        scales_offsets: &[0],
        expert_ids: &[0],
    };
    dequantize_to_vec(&Encoded {
        format,
        data,
        scales: &scales,
        rows: 1,
        columns: format.block_size(),
        groups,
        sf: &[1.0],
    })
    .unwrap()
}

/// <https://github.com/flashinfer-ai/flashinfer/issues/2440>: a scale that is flushed to zero, and
/// its reciprocal taken, although amax is not zero.
#[test]
fn tiny_blocks_stay_finite() {
    let subnormals = [0x0040, 0x8040, 0x0020, 0x0010, 0x0030, 0x0001, 0x8001].map(bf16_widen);
    for magnitude in [1e-35, 1e-36, 1e-37, 1e-38, 1e-39, 1e-40] {
        let values = block(
            Format::Mxfp8,
            &[magnitude, -magnitude, 0.0, -0.0],
            magnitude / 3.0,
        );
        for values in [values, block(Format::Mxfp8, &subnormals, 0.0)] {
            let (scale, codes) = codes(Format::Mxfp8, DEFAULT, 1.0, &values);
            assert!(
                codes.iter().all(|code| code & 0x7F != 0x7F),
                "{magnitude:e}"
            );
            let decoded = decode_block(Format::Mxfp8, scale, &codes);
            // Half a step of the subnormal elements under the least scale: 2^-10 * 2^-127, or a
            // 16th of the value.
            for (value, decoded) in values.iter().zip(&decoded) {
                let bound = (value.abs() / 16.0).max(2.0_f32.powi(-60) * 2.0_f32.powi(-77));
                approx::assert_abs_diff_eq!(value, decoded, epsilon = bound);
            }
        }
    }
}

/// <https://github.com/flashinfer-ai/flashinfer/pull/4023>: Inf under a scale of 254, whose shifted
/// reciprocal is 0, so that Inf * 0 becomes NaN under a finite scale. Ours has a NaN scale.
#[test]
fn an_infinite_block_is_no_quiet_nan() {
    for format in [Format::Mxfp4, Format::Mxfp8] {
        for options in [DEFAULT, STRICT] {
            let values = block(format, &[1.0, f32::INFINITY, f32::NEG_INFINITY], 0.5);
            let (scale, data) = packed(format, options, 1.0, &values);
            assert_eq!(scale, 0xFF);
            assert!(
                decode_block(format, scale, &data)
                    .iter()
                    .all(|value| value.is_nan())
            );
        }
    }
}

/// <https://github.com/NVIDIA/TransformerEngine/pull/3262>: scale byte 0 read as zero, 255 as a number.
/// (Reciprocals at the ends, <https://github.com/NVIDIA/TransformerEngine/issues/2408>, are with
/// the formats' tests.)
#[test]
fn scale_bytes_at_the_ends_decode() {
    let decoded = decode_block(Format::Mxfp8, 0x00, &[0x38; 32]);
    assert!(decoded.iter().all(|value| value.to_bits() == 0x0040_0000));
    let decoded = decode_block(Format::Mxfp4, 0x00, &[0x21; 16]);
    assert_eq!(
        decoded[..2],
        [
            2.0_f32.powi(-64) * 2.0_f32.powi(-64),
            f32::from_bits(0x0040_0000)
        ]
    );
    for format in [Format::Mxfp4, Format::Mxfp8] {
        let data = vec![0x38; format.bytes_per_row(32)];
        let decoded = decode_block(format, 0xFF, &data);
        assert!(decoded.iter().all(|value| value.to_bits() == 0x7FC0_0000));
    }
    let decoded = decode_block(Format::Nvfp4, 0x7F, &[0x38; 8]);
    assert!(decoded.iter().all(|value| value.to_bits() == 0x7FC0_0000));
}

/// <https://github.com/ROCm/aiter/issues/974>, <https://github.com/ROCm/aiter/issues/2247>: ties of
/// E2M1 and their neighbours.
#[test]
fn ties_go_to_even() {
    let half = block(Format::Mxfp4, &[3.0, -0.625], 0.0);
    assert_eq!(codes(Format::Mxfp4, DEFAULT, 1.0, &half).1[1], 0xA);
    let two = [
        12.0,
        f32::from_bits(0x3F00_0000),
        f32::from_bits(0x3F00_0003),
    ];
    let (scale, codes) = codes(
        Format::Mxfp4,
        DEFAULT,
        1.0,
        &block(Format::Mxfp4, &two, 0.0),
    );
    assert_eq!((scale, codes[1], codes[2]), (128, 0x0, 0x1));
}

/// <https://github.com/vllm-project/compressed-tensors/pull/824>: FP32 input cast to BF16 on the way.
#[test]
fn fp32_input_is_not_narrowed() {
    let values = block(Format::Mxfp4, &[6.0, 2.500_004, 2.5], 0.0);
    let (scale, codes) = codes(Format::Mxfp4, DEFAULT, 1.0, &values);
    assert_eq!((scale, codes[1], codes[2]), (127, 0x5, 0x4));
}

/// <https://github.com/NVIDIA/Model-Optimizer/pull/1397>: a block scale above 464 cast to NaN.
#[test]
fn a_stale_tensor_scale_saturates() {
    let values = block(Format::Nvfp4, &[4.0, -4.0, 1.0], 0.5);
    let (scale, codes) = codes(Format::Nvfp4, DEFAULT, 2688.0, &values);
    assert_eq!((scale, codes[0], codes[1]), (0x7E, 0x7, 0xF));
}

/// <https://github.com/vllm-project/vllm/pull/40351>: a vectorised search through the expert offsets
/// that reads past their end, with expert counts that no vector width divides.
#[test]
fn expert_counts_that_no_vector_divides() {
    for experts in [1, 3, 5, 7, 13, 40, 60, 61] {
        let offsets: Vec<u32> = (0..=experts).map(|slot| slot * 3).collect();
        let rows = experts as usize * 3;
        let routing = Routing::from_row_offsets(&offsets, None, rows).unwrap();
        let values = vec![6.0; rows * 32];
        let quantized = quantize_over(0xEE, Format::Mxfp4, &routing, &values, 32);
        assert!(quantized.data.iter().all(|&byte| byte == 0x77), "{experts}");
        for slot in 0..experts as usize {
            for row in 0..3 {
                assert_eq!(
                    quantized.scales[scale_offset(slot, row, 0, 1)],
                    127,
                    "{experts}"
                );
            }
        }
    }
}

/// <https://github.com/NVIDIA/TransformerEngine/issues/2779>: a group without rows.
#[test]
fn groups_without_rows_do_nothing() {
    let values = vec![6.0; 384 * 64];
    for format in Format::ALL {
        let with_gap = Routing::from_row_offsets(&[0, 128, 128, 384], None, 384).unwrap();
        let without = Routing::from_row_offsets(&[0, 128, 384], None, 384).unwrap();
        let gap = quantize_over(0xEE, format, &with_gap, &values, 64);
        let plain = quantize_over(0xEE, format, &without, &values, 64);
        assert_eq!(gap.data, plain.data);
        let occupied = 3 * format.column_tiles(64) * 512;
        assert_eq!(gap.scales[..occupied], plain.scales[..occupied]);
        assert!(gap.scales[occupied..].iter().all(|&byte| byte == 0xEE));

        let empty = Routing::from_row_offsets(&[0, 0, 0, 0], None, 0).unwrap();
        let nothing = quantize_over(0xEE, format, &empty, &[], 64);
        assert!(nothing.data.is_empty() && nothing.scales.is_empty());
    }
}

/// <https://github.com/vllm-project/vllm/pull/38148>, <https://github.com/vllm-project/vllm/pull/31097>,
/// <https://github.com/pytorch/ao/issues/4713>: padding of an occupied tile left as it was, where a
/// stale 0xFF is a NaN scale; zeros that turn into NaN.
#[test]
fn padding_is_written() {
    for format in Format::ALL {
        for (rows, columns) in [(1, 8), (20, 40), (32, 72), (33, 136), (129, 264)] {
            let offsets = [0, rows as u32];
            let routing = Routing::from_row_offsets(&offsets, None, rows).unwrap();
            let values = vec![0.0; rows * columns];
            let quantized = quantize_over(0xFF, format, &routing, &values, columns);
            assert!(quantized.data.iter().all(|&byte| byte == 0), "{format}");
            let occupied = routing.occupied_tiles() * format.column_tiles(columns) * 512;
            assert!(
                quantized.scales[..occupied].iter().all(|&byte| byte == 0),
                "{format}"
            );
            assert!(
                quantized.scales[occupied..]
                    .iter()
                    .all(|&byte| byte == 0xFF),
                "{format}"
            );
        }
    }
}

/// <https://github.com/ROCm/aiter/pull/2900>, <https://github.com/pytorch/MSLK/pull/339>: tiles strided
/// by the blocks that a row has and not by those that it is padded to.
#[test]
fn tiles_are_strided_by_padded_blocks() {
    for blocks in [1, 3, 5] {
        let (rows, columns) = (300, blocks * 32);
        let routing = Routing::from_row_offsets(&[0, 300], None, rows).unwrap();
        // Row r, block b has amax 2^((3r + b) % 40), and so its own scale byte.
        let exponent = |row: usize, block: usize| (3 * row + block) % 40;
        let values: Vec<f32> = (0..rows * columns)
            .map(|i| 2.0_f32.powi(exponent(i / columns, i % columns / 32) as i32))
            .collect();
        let quantized = quantize_over(0xFF, Format::Mxfp4, &routing, &values, columns);
        let stride = blocks.div_ceil(4) * 512;
        for row in 0..rows {
            for block in 0..blocks {
                let offset = row / 128 * stride
                    + block / 4 * 512
                    + row % 32 * 16
                    + row % 128 / 32 * 4
                    + block % 4;
                let byte = usize::from(quantized.scales[offset]);
                // 2^n / 6 rounds up to 2^(n - 2).
                assert_eq!(
                    byte,
                    127 + exponent(row, block) - 2,
                    "{blocks} {row} {block}"
                );
            }
        }
    }
}

/// <https://github.com/pytorch/ao/pull/3123>: the two elements of a byte swapped.
#[test]
fn the_first_element_is_the_low_nibble() {
    let values = block(Format::Nvfp4, &[0.5, 6.0], 0.0);
    assert_eq!(packed(Format::Nvfp4, DEFAULT, 1.0, &values).1[0], 0x71);
    let decoded = decode_block(Format::Nvfp4, 0x38, &[0x71, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(decoded[..2], [0.5, 6.0]);
}

/// <https://github.com/pytorch/ao/pull/4201>, <https://github.com/flashinfer-ai/flashinfer/pull/3743>:
/// offsets computed in 32 bits. Only the last row belongs to a slot: the gigabytes of zeros before it
/// are never touched, and so, on systems that hand out zero pages lazily, never there.
#[test]
fn offsets_beyond_32_bits() {
    let (rows, columns) = (300_000, 7168);
    let last_row = (rows - 1) * columns;
    assert!(last_row > i32::MAX as usize);
    let mut input = vec![0_u16; rows * columns];
    for (column, bits) in input[last_row..].iter_mut().enumerate() {
        *bits = half::bf16::from_f32(if column % 2 == 0 { 6.0 } else { -0.5 }).to_bits();
    }
    let quantized = quantize_to_vec(&Problem {
        format: Format::Mxfp8,
        input: Input::Bf16(&input),
        input_rows: rows,
        columns,
        groups: Groups {
            row_offsets: &[rows as u32 - 1, rows as u32],
            scales_offsets: &[0],
            expert_ids: &[0],
        },
        sf: &[1.0],
        source_rows: None,
        options: DEFAULT,
    })
    .unwrap();
    // 6 / 448 rounds up to 2^-6; 6 * 2^6 = 384 and 0.5 * 2^6 = 32 are E4M3 values.
    assert!(
        quantized.data[last_row..]
            .chunks(2)
            .all(|pair| pair == [0x7C, 0xE0])
    );
    let tile_start = (rows - 1) / 128;
    for block in 0..columns / 32 {
        let offset = scale_offset(tile_start, 0, block, columns / 128);
        assert_eq!(quantized.scales[offset], 127 - 6);
    }
}
