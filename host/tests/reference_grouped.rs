//! The grouped operation against a second, literal telling of it: slot by slot, row by row, block by
//! block, with the scale tensor indexed in five dimensions.

mod reference_support;

use reference_support::{DEFAULT, PROPAGATE, STRICT, assert_within_error_bound, packed};
use tokenyard::options::{Format, QuantizeOptions, ScaleRounding};
use tokenyard::reference::{
    Encoded, Groups, Input, Output, Problem, dequantize, dequantize_to_vec, quantize,
    quantize_to_vec,
};
use tokenyard::routing::{Routing, scales_offsets};

/// What untouched bytes hold in these tests.
const SENTINEL: u8 = 0xEE;

/// The grouped operation as its definition tells it. `tiles` is Mt.
fn literal(problem: &Problem<'_>, input: &[f32], tiles: usize) -> (Vec<u8>, Vec<u8>) {
    let &Problem {
        format,
        columns,
        groups,
        ..
    } = problem;
    let (v, rows) = (format.block_size(), problem.rows());
    let column_tiles = columns.div_ceil(4 * v);
    let row_bytes = columns * format.element_bits() / 8;
    let mut data = vec![SENTINEL; rows * row_bytes];
    let mut scales = vec![SENTINEL; tiles * column_tiles * 512];
    for slot in 0..groups.expert_ids.len() {
        let first = groups.row_offsets[slot] as usize;
        let last = (groups.row_offsets[slot + 1] as usize).min(rows);
        let tile_start = first / 128 + groups.scales_offsets[slot] as usize;
        let slot_tiles = last.saturating_sub(first).div_ceil(128);
        for tile in tile_start..(tile_start + slot_tiles).min(tiles) {
            scales[tile * column_tiles * 512..(tile + 1) * column_tiles * 512].fill(0x00);
        }
        let expert = groups.expert_ids[slot];
        if expert < 0 || expert as usize >= problem.sf.len() {
            continue;
        }
        let sf = problem.sf[expert as usize];
        for row in first..last {
            let local_row = row - first;
            let m = tile_start + local_row / 128;
            if m >= tiles {
                continue;
            }
            let source = problem
                .source_rows
                .map_or(row as i64, |rows| i64::from(rows[row]));
            let values: Vec<f32> = if (0..problem.input_rows as i64).contains(&source) {
                input[source as usize * columns..(source as usize + 1) * columns].to_vec()
            } else {
                vec![0.0; columns]
            };
            let mut bytes = Vec::new();
            for (b, block) in values.chunks(v).enumerate() {
                let (scale, elements) = packed(format, problem.options, sf, block);
                bytes.extend(elements);
                let index = [m, b / 4, local_row % 32, local_row % 128 / 32, b % 4];
                let extents = [tiles, column_tiles, 32, 4, 4];
                let offset = index
                    .iter()
                    .zip(extents)
                    .fold(0, |offset, (i, n)| offset * n + i);
                scales[offset] = scale;
            }
            data[row * row_bytes..(row + 1) * row_bytes].copy_from_slice(&bytes);
        }
    }
    (data, scales)
}

/// Runs the reference over memory full of sentinels, with more of them on either side.
fn with_sentinels(problem: &Problem<'_>, tiles: usize) -> (Vec<u8>, Vec<u8>) {
    const GUARD: usize = 64;
    let data_bytes = problem.data_bytes();
    let scale_bytes = tiles * problem.tile_row_bytes();
    let mut data = vec![SENTINEL; data_bytes + 2 * GUARD];
    let mut scales = vec![SENTINEL; scale_bytes + 2 * GUARD];
    let output = Output {
        data: &mut data[GUARD..GUARD + data_bytes],
        scales: &mut scales[GUARD..GUARD + scale_bytes],
    };
    quantize(problem, output).unwrap();
    for guarded in [&data, &scales] {
        assert!(guarded[..GUARD].iter().all(|&byte| byte == SENTINEL));
        assert!(
            guarded[guarded.len() - GUARD..]
                .iter()
                .all(|&byte| byte == SENTINEL)
        );
    }
    (
        data[GUARD..GUARD + data_bytes].to_vec(),
        scales[GUARD..GUARD + scale_bytes].to_vec(),
    )
}

/// Activations as they come: mostly moderate, some zeros, now and then an outlier.
fn activations(count: usize, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count)
        .map(|_| {
            let value = (random.f32() * 2.0 - 1.0) * 2.0_f32.powi(random.i32(-6..3));
            match random.u8(..100) {
                0..5 => 0.0,
                5..8 => -0.0,
                8 => value * 1000.0,
                _ => value,
            }
        })
        .collect()
}

fn row_offsets(rows_per_slot: &[u32]) -> Vec<u32> {
    let mut offsets = vec![0];
    for rows in rows_per_slot {
        offsets.push(offsets[offsets.len() - 1] + rows);
    }
    offsets
}

/// One comparison of the reference with the literal telling, on BF16 input.
struct Case<'a> {
    rows_per_slot: &'a [u32],
    columns: usize,
    expert_ids: Option<&'a [i32]>,
    sf: &'a [f32],
}

impl Case<'_> {
    fn check(&self) {
        for format in Format::ALL {
            for options in [DEFAULT, STRICT, PROPAGATE] {
                self.check_format(format, options);
            }
        }
        for format in [Format::Mxfp4, Format::Mxfp8] {
            for scale_rounding in [ScaleRounding::Floor, ScaleRounding::Even] {
                self.check_format(
                    format,
                    QuantizeOptions {
                        scale_rounding,
                        ..DEFAULT
                    },
                );
            }
        }
    }

    fn check_format(&self, format: Format, options: QuantizeOptions) {
        let offsets = row_offsets(self.rows_per_slot);
        // One more row than the slots own: it must keep its sentinel.
        let rows = offsets[offsets.len() - 1] as usize + 1;
        let routing = Routing::from_row_offsets(&offsets, self.expert_ids, rows).unwrap();
        let bits: Vec<u16> = activations(rows * self.columns, self.columns as u64)
            .into_iter()
            .map(|value| half::bf16::from_f32(value).to_bits())
            .collect();
        let values: Vec<f32> = bits
            .iter()
            .map(|&bits| half::bf16::from_bits(bits).to_f32())
            .collect();
        let problem = Problem {
            format,
            input: Input::Bf16(&bits),
            input_rows: rows,
            columns: self.columns,
            groups: (&routing).into(),
            sf: self.sf,
            source_rows: None,
            options,
        };
        let (data, scales) = with_sentinels(&problem, routing.max_tiles());
        let expected = literal(&problem, &values, routing.max_tiles());
        assert_eq!(
            data, expected.0,
            "{format} {:?} K={}",
            self.rows_per_slot, self.columns
        );
        assert_eq!(
            scales, expected.1,
            "{format} {:?} K={}",
            self.rows_per_slot, self.columns
        );

        let row_bytes = format.bytes_per_row(self.columns);
        assert!(
            data[(rows - 1) * row_bytes..]
                .iter()
                .all(|&byte| byte == SENTINEL)
        );
        let occupied = routing.occupied_tiles() * problem.tile_row_bytes();
        assert!(scales[occupied..].iter().all(|&byte| byte == SENTINEL));
    }
}

#[test]
fn rows_per_slot_around_a_tile() {
    for rows in [1, 2, 31, 32, 33, 127, 128, 129, 255, 256, 257] {
        Case {
            rows_per_slot: &[rows],
            columns: 72,
            expert_ids: None,
            sf: &[0.43],
        }
        .check();
        let three = [rows, 128, rows];
        Case {
            rows_per_slot: &three,
            columns: 40,
            expert_ids: None,
            sf: &[1.0, 0.43, 0.5],
        }
        .check();
    }
}

#[test]
fn empty_slots_anywhere() {
    for rows_per_slot in [
        [0, 5, 130, 7],
        [5, 0, 130, 7],
        [5, 130, 7, 0],
        [0, 0, 130, 7],
        [5, 0, 0, 7],
        [128, 0, 0, 128],
        [5, 130, 0, 0],
        [0, 0, 0, 3],
        [3, 0, 0, 0],
        [0, 0, 0, 0],
    ] {
        let sf = [1.0, 0.43, 0.5, 1.0 / 3.0];
        Case {
            rows_per_slot: &rows_per_slot,
            columns: 64,
            expert_ids: None,
            sf: &sf,
        }
        .check();
    }
}

#[test]
fn column_counts_around_blocks_and_tiles() {
    for columns in [8, 16, 24, 56, 64, 72, 120, 128, 136, 352] {
        let sf = [1.0, 368.2191];
        Case {
            rows_per_slot: &[33, 130],
            columns,
            expert_ids: None,
            sf: &sf,
        }
        .check();
    }
}

/// The tensor scale is the expert's, whatever order slots are in. Slots whose expert has none keep
/// their rows untouched, and their tiles are zeros.
#[test]
fn expert_ids_in_any_order() {
    let sf = [1.0, 0.43, 0.5, 368.2191, 0.0073];
    for expert_ids in [
        [4, 3, 2, 1],
        [2, 2, 2, 2],
        [0, 4, 0, 4],
        [-1, 0, 1, 2],
        [0, 5, 1, -1],
        [i32::MAX, 1, i32::MIN, 3],
    ] {
        let rows_per_slot = [5, 129, 3, 128];
        Case {
            rows_per_slot: &rows_per_slot,
            columns: 72,
            expert_ids: Some(&expert_ids),
            sf: &sf,
        }
        .check();
    }
}

#[test]
fn the_shapes_of_published_tests() {
    for (columns, rows_per_slot, sf) in [
        (704, &[256, 128, 256][..], &[1.0, 1.0, 1.0][..]),
        (704, &[100, 200, 50], &[1.0, 1.0, 1.0]),
        (704, &[13, 999], &[1.0, 1.0]),
        (2944, &[256, 128, 256], &[0.43, 1.0, 0.5]),
        (352, &[100, 60], &[1.0, 0.5]),
    ] {
        let case = Case {
            rows_per_slot,
            columns,
            expert_ids: None,
            sf,
        };
        for format in Format::ALL {
            case.check_format(format, DEFAULT);
        }
    }
}

#[test]
fn any_number_of_slots() {
    for slots in [1, 2, 31, 33, 40, 60, 256, 1024] {
        let mut random = fastrand::Rng::with_seed(slots as u64);
        let rows_per_slot: Vec<u32> = (0..slots)
            .map(|_| [0, 0, 1, 3, random.u32(0..200)][random.usize(0..5)])
            .collect();
        let sf = vec![0.75; slots];
        let case = Case {
            rows_per_slot: &rows_per_slot,
            columns: 8,
            expert_ids: None,
            sf: &sf,
        };
        for format in Format::ALL {
            case.check_format(format, DEFAULT);
        }
    }
}

/// All input types that hold a value exactly give the same bytes for it.
#[test]
fn input_types_agree() {
    let values: Vec<f32> = activations(64 * 128, 3)
        .into_iter()
        .map(|value| half::bf16::from_f32(value.clamp(-100.0, 100.0)).to_f32())
        .map(|value| if value.abs() < 1e-4 { 0.0 } else { value })
        .collect();
    let bf16: Vec<u16> = values
        .iter()
        .map(|&x| half::bf16::from_f32(x).to_bits())
        .collect();
    let f16: Vec<u16> = values
        .iter()
        .map(|&x| half::f16::from_f32(x).to_bits())
        .collect();
    assert!(
        f16.iter()
            .zip(&values)
            .all(|(&bits, &x)| half::f16::from_bits(bits).to_f32() == x)
    );
    let routing = Routing::from_row_offsets(&[0, 20, 64], None, 64).unwrap();
    for format in Format::ALL {
        let quantized = [Input::Bf16(&bf16), Input::F16(&f16), Input::F32(&values)].map(|input| {
            quantize_to_vec(&Problem {
                format,
                input,
                input_rows: 64,
                columns: 128,
                groups: (&routing).into(),
                sf: &[1.0, 0.43],
                source_rows: None,
                options: DEFAULT,
            })
            .unwrap()
        });
        assert_eq!(quantized[0], quantized[1], "{format}");
        assert_eq!(quantized[0], quantized[2], "{format}");
    }
}

/// Gathering while quantizing gives what quantizing the gathered rows gives. A source row that does
/// not exist reads as zeros.
#[test]
fn gathered_rows() {
    let (input_rows, columns) = (10, 72);
    let values = activations(input_rows * columns, 11);
    let source_rows = [9, 0, 0, 3, -1, 7, 10, i32::MAX, 2, i32::MIN, 5, 5];
    let gathered: Vec<f32> = source_rows
        .iter()
        .flat_map(|&row| match usize::try_from(row) {
            Ok(row) if row < input_rows => values[row * columns..(row + 1) * columns].to_vec(),
            _ => vec![0.0; columns],
        })
        .collect();
    let routing = Routing::from_row_offsets(&[0, 5, 5, 11], None, source_rows.len()).unwrap();
    for format in Format::ALL {
        let gathering = Problem {
            format,
            input: Input::F32(&values),
            input_rows,
            columns,
            groups: (&routing).into(),
            sf: &[0.43, 1.0, 2.0],
            source_rows: Some(&source_rows),
            options: DEFAULT,
        };
        assert_eq!(gathering.rows(), source_rows.len());
        let plain = Problem {
            input: Input::F32(&gathered),
            input_rows: source_rows.len(),
            source_rows: None,
            ..gathering
        };
        let tiles = routing.max_tiles();
        assert_eq!(
            with_sentinels(&gathering, tiles),
            with_sentinels(&plain, tiles)
        );
        assert_eq!(
            with_sentinels(&gathering, tiles),
            literal(&gathering, &values, tiles)
        );
    }
}

/// Offsets past the rows that exist are cut, tiles past the tensor are left out with their rows, and
/// rows before the first slot are nobody's.
#[test]
fn ranges_are_clamped() {
    let (rows, columns) = (200, 24);
    let values = activations(rows * columns, 5);
    for (offsets, tiles) in [
        ([0, 150, 300], 4),
        ([0, 200, 500], 4),
        ([7, 140, 190], 4),
        ([0, 150, 200], 2),
    ] {
        let tile_offsets = scales_offsets(&offsets);
        for format in Format::ALL {
            let problem = Problem {
                format,
                input: Input::F32(&values),
                input_rows: rows,
                columns,
                groups: Groups {
                    row_offsets: &offsets,
                    scales_offsets: &tile_offsets,
                    expert_ids: &[1, 0],
                },
                sf: &[1.0, 0.43],
                source_rows: None,
                options: DEFAULT,
            };
            let got = with_sentinels(&problem, tiles);
            assert_eq!(
                got,
                literal(&problem, &values, tiles),
                "{format} {offsets:?}"
            );
        }
    }
}

/// Dequantizing gives code * scale / sf where rows were quantized and leaves all others alone.
#[test]
fn dequantizing() {
    let (rows, columns) = (140, 72);
    // Below 2688, where NVFP4's scale saturates.
    let values: Vec<f32> = activations(rows * columns, 17)
        .iter()
        .map(|x| x / 16.0)
        .collect();
    let offsets = [0, 3, 133, 136];
    let routing = Routing::from_row_offsets(&offsets, Some(&[1, 0, -1]), rows).unwrap();
    let sf = [1.0, 0.43];
    for format in Format::ALL {
        let problem = Problem {
            format,
            input: Input::F32(&values),
            input_rows: rows,
            columns,
            groups: (&routing).into(),
            sf: &sf,
            source_rows: None,
            options: DEFAULT,
        };
        let quantized = quantize_to_vec(&problem).unwrap();
        let encoded = Encoded {
            format,
            data: &quantized.data,
            scales: &quantized.scales,
            rows,
            columns,
            groups: (&routing).into(),
            sf: &sf,
        };
        let mut decoded = vec![-77.0; rows * columns];
        dequantize(&encoded, &mut decoded).unwrap();
        assert!(decoded[133 * columns..].iter().all(|&value| value == -77.0));
        let zero_filled = dequantize_to_vec(&encoded).unwrap();
        assert_eq!(zero_filled[..133 * columns], decoded[..133 * columns]);
        assert!(
            zero_filled[133 * columns..]
                .iter()
                .all(|&value| value == 0.0)
        );

        for (row, (values, decoded)) in values
            .chunks(columns)
            .zip(decoded.chunks(columns))
            .enumerate()
            .take(133)
        {
            let sf = if row < 3 { sf[1] } else { sf[0] };
            assert_within_error_bound(format, sf, values, decoded);
        }
    }
}
