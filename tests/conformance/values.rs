//! Values: every BF16 and FP16 pattern, and FP32 by the million.

use anyhow::Result;
use fastrand::Rng;
use tokenyard::Device;
use tokenyard::options::{DeadBlocks, Format, InputType, QuantizeOptions};
use tokenyard_tests::shapes::{slots, tensor_scales};
use tokenyard_tests::values::{activations, exp2};
use tokenyard_tests::{Context, Problem, Rows, Suite};

use crate::policies;

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        let mut case = |name: &str, run: fn(&Context, Format) -> Result<()>| {
            suite.both(&format!("values::{name}::{format}"), move |context| {
                run(context, format)
            });
        };
        case("bf16_as_amax", bf16_as_amax);
        case(
            "bf16_as_amax_under_all_options",
            bf16_as_amax_under_all_options,
        );
        case("bf16_as_elements", |context, format| {
            as_elements(context, format, InputType::Bf16)
        });
        case("f16_as_elements", |context, format| {
            as_elements(context, format, InputType::F16)
        });
        case("f32_bits", f32_bits);
        case("f32_log_uniform", f32_log_uniform);
        case("f32_near_ties", f32_near_ties);
    }
}

/// Columns of the rows that values are laid out in: whole warps, no masking.
const COLUMNS: usize = 1024;

/// Quantizes values, in whole rows, as one slot.
fn problem(format: Format, mut input: Vec<u16>, sf: f32, options: QuantizeOptions) -> Problem {
    input.resize(input.len().next_multiple_of(COLUMNS), 0);
    let rows = Rows::bf16_bits(input);
    whole_rows(format, rows, sf, options)
}

fn whole_rows(format: Format, rows: Rows, sf: f32, options: QuantizeOptions) -> Problem {
    let routing = slots(&[(rows.len() / COLUMNS) as u32]);
    Problem {
        sf: vec![sf],
        options,
        ..Problem::new(format, COLUMNS, routing, rows)
    }
}

/// A block for each pattern, in which it has the largest magnitude. The other elements are parts of
/// it: what they become depends on the inverse of the scale that it led to.
fn blocks_of_amax(format: Format, patterns: impl Iterator<Item = u16>) -> Vec<u16> {
    let mut random = Rng::with_seed(11);
    let mut blocks = Vec::new();
    for pattern in patterns {
        let amax = half::bf16::from_bits(pattern).to_f32();
        // The one pattern moves through the block, so that every lane gets to have it.
        let place = random.usize(..format.block_size());
        for element in 0..format.block_size() {
            let part = if element == place {
                1.0
            } else {
                random.f32() * 1.9 - 0.95
            };
            // Rounded towards zero, so that no part outgrows the whole.
            let bits = ((amax * part).to_bits() >> 16) as u16;
            blocks.push(if element == place { pattern } else { bits });
        }
    }
    blocks
}

/// All 65,536 patterns as the largest magnitude of a block.
fn bf16_as_amax(context: &Context, format: Format) -> Result<()> {
    let blocks = blocks_of_amax(format, 0..=u16::MAX);
    problem(format, blocks, 1.0, QuantizeOptions::default()).check(&[context.device()])
}

/// The same under every combination of options and tensor-wise factors. In the emulator each
/// combination has its own share of the patterns, and devices take turns.
fn bf16_as_amax_under_all_options(context: &Context, format: Format) -> Result<()> {
    let devices: Vec<Device> = context.devices();
    let all_sf = tensor_scales();
    let sf: &[f32] = if format.uses_tensor_scale() {
        &all_sf
    } else {
        &all_sf[..2]
    };
    let stride = context.pick(1, 13);
    let mut turn = 0;
    for options in policies::options(format) {
        for &sf in sf {
            let patterns = (0..=u16::MAX).skip(turn % stride).step_by(stride);
            let device = devices[turn % devices.len()].clone();
            problem(format, blocks_of_amax(format, patterns), sf, options).check(&[device])?;
            turn += 1;
        }
    }
    Ok(())
}

/// All 65,536 patterns as elements: among their neighbours, among any others, and beside a fixed
/// largest magnitude under which they do not clip.
fn as_elements(context: &Context, format: Format, input_type: InputType) -> Result<()> {
    let random = &mut Rng::with_seed(12);
    let mut patterns: Vec<u16> = (0..=u16::MAX).collect();
    let (one, sign) = match input_type {
        InputType::Bf16 => (half::bf16::from_f32(1.0).to_bits(), 0x8000),
        _ => (half::f16::from_f32(1.0).to_bits(), 0x8000),
    };
    let bounded: Vec<u16> = patterns
        .iter()
        .copied()
        .filter(|bits| bits & !sign <= one)
        .collect();
    let mut bits = patterns.clone();
    for _ in 0..context.pick(20, 4) {
        random.shuffle(&mut patterns);
        bits.extend(&patterns);
    }
    for part in bounded.chunks(format.block_size() - 1) {
        bits.push(one);
        bits.extend(part);
    }
    bits.resize(bits.len().next_multiple_of(COLUMNS), 0);
    let rows = match input_type {
        InputType::Bf16 => Rows::bf16_bits(bits),
        _ => Rows::f16_bits(bits),
    };
    for dead_blocks in DeadBlocks::ALL {
        let options = QuantizeOptions {
            dead_blocks,
            ..QuantizeOptions::default()
        };
        for sf in [1.0, 0.43] {
            whole_rows(format, rows.clone(), sf, options).check(&context.devices())?;
        }
    }
    Ok(())
}

/// Quantizes FP32 values under all options, over all tensor-wise factors in turn.
fn check_f32(context: &Context, format: Format, rows: Vec<f32>) -> Result<()> {
    let sf = tensor_scales();
    for (turn, options) in policies::options(format).into_iter().enumerate() {
        let rows = Rows::F32(rows.clone());
        whole_rows(format, rows, sf[turn % sf.len()], options).check(&context.devices())?;
    }
    Ok(())
}

fn f32_count(context: &Context) -> usize {
    COLUMNS * context.pick(1000, 50)
}

/// All bits equally likely: half of the blocks hold an Inf or NaN or span hundreds of binades.
fn f32_bits(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(13);
    let count = f32_count(context);
    check_f32(
        context,
        format,
        Rows::random_bits(InputType::F32, count, random).widened(),
    )
}

/// Finite values over all of FP32's range, subnormals included, the values of a block within a few
/// binades of one another.
fn f32_log_uniform(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(14);
    let mut rows = Vec::new();
    while rows.len() < f32_count(context) {
        let exponent = random.i32(-149..127);
        for _ in 0..format.block_size() {
            let magnitude = (1.0 + random.f32()) * exp2(exponent - random.i32(0..6));
            rows.push(if random.bool() { magnitude } else { -magnitude });
        }
    }
    check_f32(context, format, rows)
}

/// Values within a few units in the last place of the points where an element's code changes, for
/// the scale that the block has.
fn f32_near_ties(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(15);
    let mut rows = Vec::new();
    while rows.len() < f32_count(context) {
        let unit = exp2(random.i32(-20..20));
        rows.push(format.element_max() * unit);
        for _ in 1..format.block_size() {
            let steps = 2.0 * f32::from(random.u8(..16)) + 1.0;
            let tie = (steps * exp2(random.i32(-10..5))).min(format.element_max());
            let bits = (tie * unit).to_bits() as i32 + random.i32(-3..=3);
            let value = f32::from_bits(bits as u32);
            rows.push(if random.bool() { value } else { -value });
        }
    }
    let moderate = activations(COLUMNS, random);
    rows.extend(moderate);
    check_f32(context, format, rows)
}
