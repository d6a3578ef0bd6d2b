//! The ways of a row through the kernel. Two rows of common blocks take the short one, together; rows
//! with saturating blocks (NVFP4) one that is little longer; and what is left over is quantized
//! afterwards, one row after the other. Here rows are of one kind throughout, so that they take the way
//! they are meant to, or are paired and mixed with intent.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use half::{bf16, f16};
use kernels_gpu::quantize::{MAX_RUNS_PER_BLOCK, RUN_COLUMNS};
use tokenyard::RoutingTables;
use tokenyard::options::{Format, InputType, NanPolicy, QuantizeOptions};
use tokenyard::reference::{formats, scale};
use tokenyard::routing::{Routing, TILE_ROWS};
use tokenyard_tests::shapes::slots;
use tokenyard_tests::values::{activations, exp2, hazards, sprinkled};
use tokenyard_tests::{Context, Grouping, Launch, Problem, Rows, Suite};

use crate::policies;

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        let mut case = |name: &str, run: fn(&Context, Format) -> Result<()>| {
            suite.both(&format!("paths::{name}::{format}"), move |context| {
                run(context, format)
            });
        };
        case("scale_codes", scale_codes);
        case("pairs_of_rows", pairs_of_rows);
        case("odd_row_counts", odd_row_counts);
        case("odd_chunk_counts", odd_chunk_counts);
        case("late_rows", late_rows);
        case("missing_source_rows", missing_source_rows);
        case("input_without_rows", input_without_rows);
    }
}

const RUN: usize = RUN_COLUMNS as usize;
const MOST_RUNS: usize = MAX_RUNS_PER_BLOCK as usize;

/// A row that gives each warp a run, if a block takes as many as it can.
const WIDE: usize = RUN * MOST_RUNS;

/// The launch in which a warp pairs each row with the next, and the others, by how far its pairs are
/// apart.
fn launches_by_stride() -> [(usize, Launch); 4] {
    [8, 4, 2, 1].map(|runs| {
        let launch = Launch {
            runs: Some(runs),
            ..Launch::default()
        };
        (MOST_RUNS / runs as usize, launch)
    })
}

/// `value` as the input type has it, the largest number in place of infinity.
fn rounded(input_type: InputType, value: f64) -> f32 {
    let value = value.min(f64::from(f32::MAX)) as f32;
    match input_type {
        InputType::Bf16 => bf16::from_f32(value).min(bf16::MAX).to_f32(),
        InputType::F16 => f16::from_f32(value).min(f16::MAX).to_f32(),
        _ => value,
    }
}

/// The least number above 0.
fn least(input_type: InputType) -> f32 {
    match input_type {
        InputType::Bf16 => bf16::from_bits(1).to_f32(),
        InputType::F16 => f16::from_bits(1).to_f32(),
        _ => f32::from_bits(1),
    }
}

/// What decides the scale of a block of a given largest magnitude.
#[derive(Clone, Copy, Debug)]
struct Scaling {
    format: Format,
    input_type: InputType,
    options: QuantizeOptions,
    sf: f32,
}

impl Scaling {
    fn code(self, amax: f32) -> u8 {
        scale::scale_code(self.format, self.options.scale_rounding, amax, self.sf)
    }

    /// Codes of the blocks that are made of numbers, not all of them zero.
    fn codes(self) -> std::ops::RangeInclusive<u8> {
        self.code(least(self.input_type))..=self.code(rounded(self.input_type, f64::MAX))
    }

    /// A largest magnitude that leads to this code, somewhere between the least and the largest.
    fn amax_of_code(self, code: u8, random: &mut Rng) -> Result<f32> {
        let value = match (self.format, code) {
            // Half of the least scale is the most that rounds to 0.
            (Format::Nvfp4, 0) => 2f64.powi(-10),
            (Format::Nvfp4, _) => formats::e4m3_decode(code).into(),
            _ => 2f64.powi(i32::from(code) - 127),
        };
        let sf = match self.format.uses_tensor_scale() {
            true => self.sf.into(),
            false => 1.0,
        };
        let nominal = f64::from(self.format.element_max()) * value / sf;
        for _ in 0..1000 {
            // 1, as rounding is decided next to it, or a number from a range that holds all.
            let part = match random.u8(..4) {
                0 => 1.0,
                _ => 0.3 + 1.1 * random.f64(),
            };
            let amax = rounded(self.input_type, nominal * part);
            if amax > 0.0 && self.code(amax) == code {
                return Ok(amax);
            }
        }
        anyhow::bail!("no largest magnitude gives {code:#04x}: {self:?}")
    }

    /// A block with this code: the largest magnitude anywhere in it, among parts of it and zeros.
    fn fill_with_code(self, block: &mut [f32], code: u8, random: &mut Rng) -> Result<()> {
        let amax = self.amax_of_code(code, random)?;
        block.fill_with(|| match random.u8(..8) {
            0 => 0.0,
            1 => -0.0,
            2 => amax * exp2(random.i32(-6..0)),
            _ => amax * (2.0 * random.f32() - 1.0),
        });
        block[random.usize(..block.len())] = if random.bool() { amax } else { -amax };
        Ok(())
    }
}

/// All codes on a GPU; else those around which anything changes: the ends of the range, where blocks
/// stop to be common, and a few ordinary ones.
fn interesting_codes(context: &Context, scaling: Scaling) -> Vec<u8> {
    let codes = scaling.codes();
    let (low, high) = (*codes.start(), *codes.end());
    let interesting = |code: &u8| match scaling.format {
        Format::Nvfp4 => matches!(code, 0..=9 | 0x37..=0x39 | 0x7B..),
        _ => {
            code.abs_diff(low) < 4
                || code.abs_diff(high) < 4
                || matches!(code, 0..=4 | 111..=114 | 127 | 139..=142 | 244..=248 | 250..)
        }
    };
    codes
        .filter(|code| context.is_exhaustive() || interesting(code))
        .collect()
}

/// Every scale code, in a pair of rows with no other: the multiplier that it leads to is the one that
/// the way for such rows has. Eight codes lie side by side, one a warp.
fn scale_codes(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(1);
    let [(_, launch), ..] = launches_by_stride();
    let factors = match format {
        Format::Nvfp4 => vec![1.0, 0.43, 368.2191, exp2(100), exp2(-100)],
        _ => vec![1.0],
    };
    for options in policies::options(format) {
        if options.nan_policy != NanPolicy::default() {
            continue;
        }
        for input_type in InputType::ALL {
            for &sf in &factors {
                let scaling = Scaling {
                    format,
                    input_type,
                    options,
                    sf,
                };
                // FP16 has no numbers that such factors bring anywhere near a scale.
                if input_type == InputType::F16 && !(0.1..1000.0).contains(&sf) {
                    continue;
                }
                rows_of_one_code(scaling, &interesting_codes(context, scaling), random)?
                    .check_all(&context.devices(), &[launch])?;
            }
        }
    }
    Ok(())
}

/// Pairs of rows, with a code for each run.
fn rows_of_one_code(scaling: Scaling, codes: &[u8], random: &mut Rng) -> Result<Problem> {
    let Scaling {
        format, input_type, ..
    } = scaling;
    let mut values = Vec::new();
    for codes in codes.chunks(MOST_RUNS) {
        for _row in 0..2 {
            // What is left of the last row has the last code.
            for run in 0..MOST_RUNS {
                let code = codes[run.min(codes.len() - 1)];
                let mut run = [0.0; RUN];
                for block in run.chunks_mut(format.block_size()) {
                    scaling.fill_with_code(block, code, random)?;
                }
                values.extend(run);
            }
        }
    }
    let tiles = codes.len().div_ceil(MOST_RUNS);
    let routing = slots(&vec![2; tiles]);
    Ok(Problem {
        options: scaling.options,
        sf: vec![scaling.sf; tiles],
        ..Problem::new(format, WIDE, routing, Rows::rounded(input_type, values))
    })
}

/// What a run of a row is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ordinary numbers.
    Common,
    /// Zeros of either sign.
    Zeros,
    /// The least scale codes above 0, and the largest: of NVFP4, those that need care when rounding.
    Saturating,
    /// Numbers so small that their scale is 0, among zeros of either sign.
    Dead,
    /// A bit of each of those.
    Fine,
    /// Ordinary numbers, but for one block with a NaN.
    OneNan,
    /// Ordinary numbers, but for one block with an infinity.
    OneInfinity,
    /// Anything, in every block.
    Hazards,
}

const KINDS: [Kind; 8] = [
    Kind::Common,
    Kind::Zeros,
    Kind::Saturating,
    Kind::Dead,
    Kind::Fine,
    Kind::OneNan,
    Kind::OneInfinity,
    Kind::Hazards,
];

impl Kind {
    fn fill(self, scaling: Scaling, run: &mut [f32], random: &mut Rng) -> Result<()> {
        let block_size = scaling.format.block_size();
        let one = random.usize(..run.len());
        match self {
            Kind::Common | Kind::OneNan | Kind::OneInfinity => {
                run.copy_from_slice(&activations(run.len(), random));
                match self {
                    Kind::OneNan => run[one] = f32::NAN,
                    Kind::OneInfinity => run[one] = f32::NEG_INFINITY,
                    _ => {}
                }
            }
            Kind::Zeros => run.fill_with(|| if random.bool() { 0.0 } else { -0.0 }),
            Kind::Saturating => {
                let codes = scaling.codes();
                let (low, high) = (*codes.start(), *codes.end());
                for block in run.chunks_mut(block_size) {
                    let code = match random.u8(..4) {
                        0 => high,
                        step => low.max(1) + step - 1,
                    };
                    scaling.fill_with_code(block, code, random)?;
                }
            }
            Kind::Dead => {
                for block in run.chunks_mut(block_size) {
                    let code = *scaling.codes().start();
                    scaling.fill_with_code(block, code, random)?;
                }
            }
            Kind::Fine => {
                for block in run.chunks_mut(block_size) {
                    let kinds = [Kind::Common, Kind::Zeros, Kind::Saturating, Kind::Dead];
                    kinds[random.usize(..kinds.len())].fill(scaling, block, random)?;
                }
            }
            Kind::Hazards => {
                let values = hazards(scaling.format, 1, run.len(), random);
                run.copy_from_slice(&values);
            }
        }
        Ok(())
    }
}

/// Each kind of row paired with each: slots have a kind for the first of the two rows, columns have one
/// for the second.
fn pairs_of_rows(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(2);
    let devices = context.devices();
    let mut turn = 0;
    for options in policies::options(format) {
        for (stride, launch) in launches_by_stride() {
            // In the emulator input types and devices take turns.
            let input_types = context.pick(&InputType::ALL[..], &InputType::ALL[turn % 3..][..1]);
            let device = &devices[turn / 3 % devices.len()];
            for &input_type in input_types {
                let scaling = Scaling {
                    format,
                    input_type,
                    options,
                    sf: 1.0,
                };
                let mut values = vec![0.0; KINDS.len() * 2 * stride * WIDE];
                for (index, run) in values.chunks_mut(RUN).enumerate() {
                    let (row, column) = (index / MOST_RUNS, index % MOST_RUNS);
                    let kind = match row / stride % 2 {
                        0 => KINDS[row / stride / 2],
                        _ => KINDS[column],
                    };
                    kind.fill(scaling, run, random)?;
                }
                let routing = slots(&[2 * stride as u32; KINDS.len()]);
                let input = Rows::rounded(input_type, values);
                let problem = Problem {
                    options,
                    ..Problem::new(format, WIDE, routing, input)
                };
                problem.check_all(std::slice::from_ref(device), &[launch])?;
            }
            turn += 1;
        }
    }
    Ok(())
}

/// From one row up to where each warp has had several turns: last rows that have no partner, and warps
/// that have no row.
fn odd_row_counts(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(3);
    let rows: Vec<u32> = (1..=40).collect();
    let routing = slots(&rows);
    for columns in [72, RUN + 72] {
        let values = sprinkled(format, routing.rows(), columns, random);
        let input = Rows::rounded(InputType::Bf16, values);
        let problem = Problem::new(format, columns, routing.clone(), input);
        for (launch, device) in Launch::all_runs()
            .into_iter()
            .zip(context.devices().into_iter().cycle())
        {
            problem.check_all(&[device], &[launch])?;
        }
    }
    Ok(())
}

/// Rows that end in the middle of what a lane handles, and one chunk before and after a run's end.
fn odd_chunk_counts(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(4);
    let odd = [1, 3, 5, 9, 17, 31, 33].map(|chunks| 8 * chunks);
    let around_runs = [1, 2, 3, 4, 5, 8, 9].map(|runs| [RUN * runs - 8, RUN * runs + 8]);
    for columns in odd.into_iter().chain(around_runs.into_iter().flatten()) {
        for input_type in [InputType::Bf16, InputType::F32] {
            let routing = slots(&[1, 0, 18]);
            let values = sprinkled(format, routing.rows(), columns, random);
            let input = Rows::rounded(input_type, values);
            let problem = Problem::new(format, columns, routing, input);
            problem.check_all(&[context.device()], &Launch::all_runs())?;
        }
    }
    Ok(())
}

/// One row with a NaN in a tile of ordinary ones, late enough that a warp has lost count of its turns,
/// or before that; the last of a tile, and the last that a warp can tell from those after it.
fn late_rows(context: &Context, format: Format) -> Result<()> {
    const COLUMNS: usize = 72;
    let random = &mut Rng::with_seed(5);
    let of_whole_tiles = [0, 1, 29, 30, 31, 32, 33, 62, 63, 64, 65, 95, 126, 127];
    let whole = of_whole_tiles.map(|row| (TILE_ROWS as u32, row));
    let partial = [(31, 30), (32, 31), (33, 31), (33, 32), (65, 63), (65, 64)];
    let tiles: Vec<(u32, usize)> = whole.into_iter().chain(partial).collect();
    let rows: Vec<u32> = tiles.iter().map(|tile| tile.0).collect();
    let routing = slots(&rows);
    let mut values = activations(routing.rows() * COLUMNS, random);
    for (slot, &(_, row)) in tiles.iter().enumerate() {
        let row = routing.row_offsets()[slot] as usize + row;
        values[row * COLUMNS + random.usize(..COLUMNS)] = f32::NAN;
    }
    let input = Rows::rounded(InputType::Bf16, values);
    for nan_policy in NanPolicy::ALL {
        let problem = Problem {
            options: QuantizeOptions {
                nan_policy,
                ..QuantizeOptions::default()
            },
            ..Problem::new(format, COLUMNS, routing.clone(), input.clone())
        };
        for (_, launch) in launches_by_stride() {
            problem.check_all(&[context.device()], &[launch])?;
        }
    }
    Ok(())
}

/// Rows gathered from where the input has none, paired with such that exist, and with one another.
fn missing_source_rows(context: &Context, format: Format) -> Result<()> {
    const INPUT_ROWS: i32 = 6;
    let random = &mut Rng::with_seed(6);
    let there = |random: &mut Rng| random.i32(0..INPUT_ROWS);
    let missing = [-1, i32::MIN, INPUT_ROWS, i32::MAX];
    let mut pairs = Vec::new();
    for row in missing {
        pairs.extend([there(random), row, row, there(random), row, row]);
    }
    let mut rows_per_slot = vec![2; pairs.len() / 2];
    // And a tile in which they are strewn.
    const STREWN: u32 = 41;
    rows_per_slot.push(STREWN);
    pairs.extend((0..STREWN).map(|_| match random.usize(..8) {
        index @ 0..4 => missing[index],
        _ => there(random),
    }));
    for columns in [72, RUN + 8] {
        for input_type in [InputType::Bf16, InputType::F32] {
            let values = activations(INPUT_ROWS as usize * columns, random);
            let input = Rows::rounded(input_type, values);
            let problem = gathered(format, columns, &rows_per_slot, pairs.clone(), input)?;
            problem.check_all(&context.devices(), &Launch::all_runs())?;
        }
    }
    Ok(())
}

/// Rows gathered from an input that has none: the kernel must not read any.
fn input_without_rows(context: &Context, format: Format) -> Result<()> {
    for input_type in InputType::ALL {
        for columns in [8, 72, RUN + 72] {
            let rows_per_slot = [3, 0, 34];
            let source_rows = (0..37).map(|row| row % 5 - 2).collect();
            let nothing = Rows::rounded(input_type, []);
            let problem = gathered(format, columns, &rows_per_slot, source_rows, nothing)?;
            problem.check_all(&context.devices(), &Launch::all_runs())?;
        }
    }
    Ok(())
}

/// A problem with the tables of `rows_per_slot`, as a device would have made them.
fn gathered(
    format: Format,
    columns: usize,
    rows_per_slot: &[u32],
    source_rows: Vec<i32>,
    input: Rows,
) -> Result<Problem> {
    let routing: Routing = slots(rows_per_slot);
    ensure!(source_rows.len() == routing.rows(), "a source for each row");
    let tables = RoutingTables {
        row_offsets: routing.row_offsets().to_vec(),
        scales_offsets: routing.scales_offsets().to_vec(),
        expert_ids: routing.expert_ids().to_vec(),
        source_rows: Some(source_rows),
    };
    let grouping = Grouping::Tables(tables, routing.rows());
    let problem = Problem::new(format, columns, grouping, input);
    problem.expected().context("the reference refuses it")?;
    Ok(problem)
}
