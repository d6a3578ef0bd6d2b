//! Faults that public projects had, one case each; those that take large tensors are in
//! [`crate::large`]. The right answer is written out here, and everything is compared with the
//! reference as well.

use anyhow::{Result, ensure};
use approx::assert_abs_diff_eq;
use kernels_gpu::formats::E8m0;
use tokenyard::options::{Format, InputType, NanPolicy, QuantizeOptions};
use tokenyard::reference::scale_offset;
use tokenyard::{DeviceRouting, Quantized, TensorScales};
use tokenyard_tests::memory::Background;
use tokenyard_tests::shapes::slots;
use tokenyard_tests::values::{activations, exp2};
use tokenyard_tests::{Context, Launch, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("reported::case_01_tiny_blocks", tiny_blocks);
    suite.both("reported::case_02_infinite_block", infinite_block);
    suite.both(
        "reported::case_03_reciprocal_at_the_ends",
        reciprocal_at_the_ends,
    );
    suite.both(
        "reported::case_04_scale_bytes_at_the_ends",
        scale_bytes_at_the_ends,
    );
    suite.both("reported::case_05_e2m1_ties", e2m1_ties);
    suite.both(
        "reported::case_06_fp32_is_not_narrowed",
        fp32_is_not_narrowed,
    );
    suite.both("reported::case_07_stale_tensor_scale", stale_tensor_scale);
    suite.both("reported::case_08_expert_counts", expert_counts);
    suite.both("reported::case_09_group_without_rows", group_without_rows);
    suite.both("reported::case_10_padding_rows", padding_rows);
    suite.both(
        "reported::case_11_every_byte_of_a_tile",
        every_byte_of_a_tile,
    );
    suite.both("reported::case_12_padded_stride", padded_stride);
    suite.both("reported::case_13_nibble_order", nibble_order);
    suite.both("reported::case_14_nan_block", nan_block);
}

/// What became of one row.
struct Row {
    scales: Vec<u8>,
    data: Vec<u8>,
    decoded: Vec<f32>,
}

/// Quantizes and dequantizes one row on every device.
fn one_row(
    context: &Context,
    format: Format,
    options: QuantizeOptions,
    sf: f32,
    row: Rows,
) -> Result<Vec<Row>> {
    let columns = row.len();
    let problem = Problem {
        sf: vec![sf],
        options,
        ..Problem::new(format, columns, slots(&[1]), row)
    };
    let expected = problem.expected()?;
    let blocks = columns.div_ceil(format.block_size());
    let row_on = |device: &tokenyard::Device| {
        let memory = problem.run(device, Launch::default())?;
        problem.compare(&expected, &memory)?;
        let byte = |block| memory.scales()[scale_offset(0, 0, block, format.column_tiles(columns))];
        Ok(Row {
            scales: (0..blocks).map(byte).collect(),
            data: memory.data().to_vec(),
            decoded: decode(device, format, memory.data(), memory.scales(), columns, sf)?,
        })
    };
    context.devices().iter().map(row_on).collect()
}

/// Dequantizes one row.
fn decode(
    device: &tokenyard::Device,
    format: Format,
    data: &[u8],
    scales: &[u8],
    columns: usize,
    sf: f32,
) -> Result<Vec<f32>> {
    let row_tiles = scales.len() / 512 / format.column_tiles(columns);
    let (data, scales) = (device.upload(data)?, device.upload(scales)?);
    let quantized = Quantized::from_buffers(format, 1, columns, row_tiles, data, scales)?;
    let routing = DeviceRouting::upload(device, &slots(&[1]))?;
    let sf = TensorScales::upload(device, &[sf])?;
    Ok(quantized
        .dequantize(&device.create_stream()?, &routing, &sf)?
        .download()?)
}

/// Decodes one block of data bytes under one scale byte, on every device.
fn decode_block(context: &Context, format: Format, scale: u8, byte: u8) -> Result<Vec<Vec<f32>>> {
    let data = vec![byte; format.bytes_per_row(format.block_size())];
    let mut scales = vec![0; 512];
    scales[0] = scale;
    let columns = format.block_size();
    let one = |device| decode(device, format, &data, &scales, columns, 1.0);
    context.devices().iter().map(one).collect()
}

/// `values`, then `fill`, one block in all.
fn block(format: Format, values: &[f32], fill: f32) -> Vec<f32> {
    let mut block = values.to_vec();
    block.resize(format.block_size(), fill);
    block
}

const DEFAULT: fn() -> QuantizeOptions = QuantizeOptions::default;

/// 1: a scale flushed to zero although amax is not zero, and its reciprocal taken.
fn tiny_blocks(context: &Context) -> Result<()> {
    for magnitude in [1e-35, 1e-36, 1e-37, 1e-38, 1e-39, 1e-40] {
        let values = block(
            Format::Mxfp8,
            &[magnitude, -magnitude, 0.0, -0.0],
            magnitude / 3.0,
        );
        let input = Rows::rounded(InputType::Bf16, values);
        for row in one_row(context, Format::Mxfp8, DEFAULT(), 1.0, input.clone())? {
            // 1e-35 / 448 is just above 2^-126, which rounds up to byte 2; the others are below.
            ensure!(row.scales[0] <= 2, "scale byte {}", row.scales[0]);
            ensure!(
                row.data.iter().all(|code| code & 0x7F != 0x7F),
                "{:02x?}",
                row.data
            );
            for (index, decoded) in row.decoded.iter().enumerate() {
                let value = input.value(index);
                // A 16th of the value, or half a step of the subnormal codes under 2^-127.
                let bound = (value.abs() / 16.0).max(exp2(-137));
                assert_abs_diff_eq!(value, *decoded, epsilon = bound);
            }
        }
    }
    Ok(())
}

/// 2: an infinity under a scale whose shifted reciprocal is 0, so that Inf * 0 is a NaN under a finite
/// scale. Ours has a NaN scale (MX) or saturates (NVFP4).
fn infinite_block(context: &Context) -> Result<()> {
    for format in Format::ALL {
        let values = block(format, &[1.0, f32::INFINITY, f32::NEG_INFINITY], 0.5);
        let input = Rows::rounded(InputType::Bf16, values);
        for row in one_row(context, format, DEFAULT(), 1.0, input)? {
            if format == Format::Nvfp4 {
                ensure!((row.scales[0], row.data[0] >> 4, row.data[1] & 0xF) == (0x7E, 0x7, 0xF));
                ensure!(row.decoded.iter().all(|value| value.is_finite()));
            } else {
                ensure!(row.scales[0] == 0xFF, "scale byte {:#04x}", row.scales[0]);
                ensure!(
                    row.decoded.iter().all(|value| value.is_nan()),
                    "{:?}",
                    row.decoded
                );
            }
        }
    }
    Ok(())
}

/// 3: the reciprocals of the least and the largest scale, and of NaN.
fn reciprocal_at_the_ends(context: &Context) -> Result<()> {
    ensure!(E8m0::reciprocal(0x00) == exp2(127));
    ensure!(E8m0::reciprocal(0xFE).to_bits() == 0x0040_0000);
    ensure!(E8m0::reciprocal(0xFF).is_nan());
    // A block that the least scale fits exactly: its elements come out as they went in.
    for (format, max_code) in [(Format::Mxfp4, 0x77), (Format::Mxfp8, 0x7E)] {
        let values = vec![format.element_max() * exp2(-127); 32];
        for row in one_row(context, format, DEFAULT(), 1.0, Rows::F32(values.clone()))? {
            ensure!(row.scales[0] == 0x00 && row.data.iter().all(|&byte| byte == max_code));
            ensure!(row.decoded == values, "{:?}", row.decoded);
        }
    }
    // No finite block reaches 0xFE; decoding it must still give 2^127.
    for decoded in decode_block(context, Format::Mxfp8, 0xFE, 0x38)? {
        ensure!(decoded == [exp2(127); 32], "{decoded:?}");
    }
    Ok(())
}

/// 4: scale byte 0 taken for zero, 255 for a number.
fn scale_bytes_at_the_ends(context: &Context) -> Result<()> {
    for decoded in decode_block(context, Format::Mxfp8, 0x00, 0x38)? {
        ensure!(
            decoded.iter().all(|value| value.to_bits() == 0x0040_0000),
            "{decoded:?}"
        );
    }
    for decoded in decode_block(context, Format::Mxfp4, 0x00, 0x22)? {
        ensure!(
            decoded.iter().all(|value| value.to_bits() == 0x0040_0000),
            "{decoded:?}"
        );
    }
    for (format, nan) in [
        (Format::Mxfp4, 0xFF),
        (Format::Mxfp8, 0xFF),
        (Format::Nvfp4, 0x7F),
    ] {
        for decoded in decode_block(context, format, nan, 0x38)? {
            ensure!(decoded.iter().all(|value| value.is_nan()), "{decoded:?}");
        }
    }
    Ok(())
}

/// 5: ties of E2M1 and their neighbours.
fn e2m1_ties(context: &Context) -> Result<()> {
    // Under a scale of 0.5, -0.625 is -1.25: a tie, which goes to -1.
    let values = block(Format::Mxfp4, &[3.0, -0.625], 0.0);
    for row in one_row(context, Format::Mxfp4, DEFAULT(), 1.0, Rows::F32(values))? {
        ensure!(
            (row.scales[0], row.data[0]) == (126, 0xA7),
            "{:02x?}",
            row.data
        );
    }
    // Under a scale of 2, 0.5 is 0.25: a tie, which goes to 0; its neighbours above go to 0.5.
    let half = 0x3F00_0000;
    let values = block(
        Format::Mxfp4,
        &[12.0, 0.5, f32::from_bits(half + 3), 0.0],
        0.0,
    );
    for row in one_row(context, Format::Mxfp4, DEFAULT(), 1.0, Rows::F32(values))? {
        ensure!(
            (row.scales[0], &row.data[..2]) == (128, &[0x07, 0x01][..]),
            "{:02x?}",
            row.data
        );
    }
    Ok(())
}

/// 6: FP32 input rounded to BF16 on the way, and NaN that turns into a number.
fn fp32_is_not_narrowed(context: &Context) -> Result<()> {
    let values = block(Format::Mxfp4, &[6.0, 2.500_004, 2.5, 0.0], 0.0);
    for row in one_row(context, Format::Mxfp4, DEFAULT(), 1.0, Rows::F32(values))? {
        ensure!(
            (row.scales[0], &row.data[..2]) == (127, &[0x57, 0x04][..]),
            "{:02x?}",
            row.data
        );
    }
    let options = QuantizeOptions {
        nan_policy: NanPolicy::Propagate,
        ..DEFAULT()
    };
    for format in Format::ALL {
        let values = block(format, &[6.0, f32::NAN], 1.0);
        for row in one_row(context, format, options, 1.0, Rows::F32(values))? {
            ensure!(
                row.decoded.iter().all(|value| value.is_nan()),
                "{:?}",
                row.decoded
            );
        }
    }
    Ok(())
}

/// 7: a block above the amax that the tensor-wise factor was made from: the scale saturates.
fn stale_tensor_scale(context: &Context) -> Result<()> {
    let values = block(Format::Nvfp4, &[4.0, -4.0, 1.0], 0.5);
    let input = Rows::rounded(InputType::Bf16, values);
    for row in one_row(context, Format::Nvfp4, DEFAULT(), 2688.0, input)? {
        ensure!(
            (row.scales[0], row.data[0]) == (0x7E, 0xF7),
            "{:02x?}",
            row.data
        );
        ensure!(row.decoded.iter().all(|value| value.is_finite()));
    }
    Ok(())
}

/// 8: a vectorised search that reads past the offsets. The tables end where their memory does, so that
/// the emulator sees any such read.
fn expert_counts(context: &Context) -> Result<()> {
    let random = &mut fastrand::Rng::with_seed(8);
    for experts in [1, 3, 5, 7, 13, 40, 60, 61] {
        let rows: Vec<u32> = (0..experts).map(|_| random.u32(0..4)).collect();
        let routing = slots(&rows);
        let values = activations(routing.rows() * 32, random);
        let sf = (0..experts).map(|expert| 1.0 + expert as f32).collect();
        let input = Rows::rounded(InputType::Bf16, values);
        Problem {
            sf,
            ..Problem::new(Format::Nvfp4, 32, routing, input)
        }
        .check(&context.devices())?;
    }
    Ok(())
}

/// 9: a group without rows, between others and alone.
fn group_without_rows(context: &Context) -> Result<()> {
    let random = &mut fastrand::Rng::with_seed(9);
    let input = Rows::rounded(InputType::Bf16, activations(384 * 64, random));
    for format in Format::ALL {
        let with_gap = Problem::new(format, 64, slots(&[128, 0, 256]), input.clone());
        let without = Problem::new(format, 64, slots(&[128, 256]), input.clone());
        let occupied = 3 * format.column_tiles(64) * 512;
        for device in context.devices() {
            let gap = with_gap.run(&device, Launch::default())?;
            let plain = without.run(&device, Launch::default())?;
            ensure!(gap.data() == plain.data(), "{format}: elements");
            ensure!(
                gap.scales()[..occupied] == plain.scales()[..occupied],
                "{format}: scales"
            );
        }
        let nothing = Rows::Bf16(Vec::new());
        Problem::new(format, 64, slots(&[0, 0, 0]), nothing).check(&context.devices())?;
    }
    Ok(())
}

/// 10: scales of rows that do not exist left as they were, where a stale 0xFF is a NaN.
fn padding_rows(context: &Context) -> Result<()> {
    for format in Format::ALL {
        for (rows, columns) in [(1, 64), (20, 128), (32, 40)] {
            let input = Rows::rounded(InputType::Bf16, vec![1.0; rows * columns]);
            let problem = Problem {
                background: Background::Byte(0xFF),
                ..Problem::new(format, columns, slots(&[rows as u32]), input)
            };
            let blocks = columns.div_ceil(format.block_size());
            let column_tiles = format.column_tiles(columns);
            for device in context.devices() {
                let memory = problem.run(&device, Launch::default())?;
                for row in 0..128 {
                    for block in 0..4 * column_tiles {
                        let byte = memory.scales()[scale_offset(0, row, block, column_tiles)];
                        let real = row < rows && block < blocks;
                        ensure!(
                            (byte == 0) != real && byte != 0xFF,
                            "{format}, {rows} rows of {columns}: {byte:#04x} at {row}, {block}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// 11: zero padding that never runs. Whatever was there, a tile that holds a row ends up the same.
fn every_byte_of_a_tile(context: &Context) -> Result<()> {
    let random = &mut fastrand::Rng::with_seed(11);
    for format in Format::ALL {
        for (rows, columns) in [(1, 8), (33, 72), (129, 136), (300, 264)] {
            let routing = slots(&[rows]);
            let occupied = routing.occupied_tiles() * format.column_tiles(columns) * 512;
            let values = activations(rows as usize * columns, random);
            let base = Problem::new(
                format,
                columns,
                routing,
                Rows::rounded(InputType::Bf16, values),
            );
            for device in context.devices() {
                let [zeros, ones] = [0x00, 0xFF].map(|byte| {
                    let background = Background::Byte(byte);
                    Problem {
                        background,
                        ..base.clone()
                    }
                    .run(&device, Launch::default())
                });
                let (zeros, ones) = (zeros?, ones?);
                ensure!(zeros.scales()[..occupied] == ones.scales()[..occupied]);
                ensure!(zeros.data() == ones.data());
                ensure!(ones.scales()[occupied..].iter().all(|&byte| byte == 0xFF));
            }
        }
    }
    Ok(())
}

/// 12: tiles strided by the blocks that a row has, not by those that it is padded to.
fn padded_stride(context: &Context) -> Result<()> {
    for blocks in [1, 3, 5] {
        let (rows, columns) = (130, blocks * 32);
        let exponent = |row: usize, block: usize| (3 * row + block) % 40;
        let values = (0..rows * columns)
            .map(|index| exp2(exponent(index / columns, index % columns / 32) as i32));
        let input = Rows::rounded(InputType::Bf16, values);
        let problem = Problem::new(Format::Mxfp4, columns, slots(&[rows as u32]), input);
        for device in context.devices() {
            let memory = problem.run(&device, Launch::default())?;
            for row in 0..rows {
                for block in 0..blocks {
                    let tile = row / 128 * blocks.div_ceil(4) + block / 4;
                    let byte = row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
                    let found = usize::from(memory.scales()[tile * 512 + byte]);
                    // 2^n / 6 rounds up to 2^(n - 2).
                    let expected = 125 + exponent(row, block);
                    ensure!(
                        found == expected,
                        "{blocks} blocks, row {row}, block {block}: {found}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// 13: the two elements of a byte swapped.
fn nibble_order(context: &Context) -> Result<()> {
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let values = block(format, &[0.5, 6.0], 0.0);
        let input = Rows::rounded(InputType::Bf16, values.clone());
        for row in one_row(context, format, DEFAULT(), 1.0, input)? {
            ensure!(row.data[0] == 0x71, "{:#04x}", row.data[0]);
            ensure!(row.decoded == values, "{:?}", row.decoded);
        }
    }
    Ok(())
}

/// 14, first part: a NaN that is lost.
fn nan_block(context: &Context) -> Result<()> {
    let options = QuantizeOptions {
        nan_policy: NanPolicy::Propagate,
        ..DEFAULT()
    };
    for (format, nan_scale) in [
        (Format::Nvfp4, 0x7F),
        (Format::Mxfp4, 0xFF),
        (Format::Mxfp8, 0xFF),
    ] {
        // The middle one of three blocks.
        let mut values = vec![1.0; 3 * format.block_size()];
        values[format.block_size() + 5] = f32::NAN;
        let input = Rows::rounded(InputType::Bf16, values);
        for row in one_row(context, format, options, 1.0, input)? {
            ensure!(row.scales[1] == nan_scale && row.scales[0] == row.scales[2]);
            for (index, decoded) in row.decoded.iter().enumerate() {
                ensure!(
                    decoded.is_nan() == (index / format.block_size() == 1),
                    "{index}: {decoded}"
                );
            }
        }
    }
    Ok(())
}
