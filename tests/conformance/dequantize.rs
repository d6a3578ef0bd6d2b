//! The way back, against the reference, for bytes that a quantizer made and for any bytes at all.

use anyhow::{Context as _, Result};
use fastrand::Rng;
use tokenyard::options::{Format, InputType};
use tokenyard::reference::{Encoded, dequantize_to_vec};
use tokenyard::routing::Routing;
use tokenyard::{Device, Quantized, TensorScales};
use tokenyard_tests::shapes::{COLUMNS, row_offsets, slots, tensor_scales};
use tokenyard_tests::values::hazards;
use tokenyard_tests::{Context, Memory, Problem, Rows, Suite, compare};

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        let mut case = |name: &str, run: fn(&Context, Format) -> Result<()>| {
            suite.both(&format!("dequantize::{name}::{format}"), move |context| {
                run(context, format)
            });
        };
        case("what_was_quantized", what_was_quantized);
        case("any_bytes", any_bytes);
        case("every_column_count", every_column_count);
        case("rows_of_nobody_are_zero", rows_of_nobody_are_zero);
    }
}

/// What the reference makes of a problem's output.
pub fn expected(problem: &Problem, memory: &Memory) -> Result<Vec<f32>> {
    Ok(dequantize_to_vec(&Encoded {
        format: problem.format,
        data: memory.data(),
        scales: memory.scales(),
        rows: problem.rows(),
        columns: problem.columns,
        groups: problem.grouping.groups(),
        sf: &problem.sf,
    })?)
}

/// Dequantizes a problem's output on a device, and compares.
fn check(device: &Device, problem: &Problem, memory: &Memory) -> Result<()> {
    let context = || format!("dequantizing {problem}, on {}", device.description());
    let quantized = Quantized::from_buffers(
        problem.format,
        problem.rows(),
        problem.columns,
        problem.row_tiles,
        device.upload(memory.data())?,
        device.upload(memory.scales())?,
    )?;
    let routing = problem.grouping.upload(device)?;
    let sf = TensorScales::upload(device, &problem.sf)?;
    let stream = device.create_stream()?;
    let found = quantized
        .dequantize(&stream, &routing, &sf)
        .with_context(context)?;
    let found = found.download().with_context(context)?;
    let columns = problem.columns;
    compare::floats("rows", &expected(problem, memory)?, &found, |index| {
        format!("row {}, column {}", index / columns, index % columns)
    })
    .with_context(context)
}

fn problem(format: Format, columns: usize, routing: Routing) -> Problem {
    let random = &mut Rng::with_seed(columns as u64);
    let values = hazards(format, routing.rows(), columns, random);
    Problem::new(
        format,
        columns,
        routing,
        Rows::rounded(InputType::F32, values),
    )
}

fn what_was_quantized(context: &Context, format: Format) -> Result<()> {
    let sf = tensor_scales().to_vec();
    let routing = slots(&vec![7; sf.len()]);
    let problem = Problem {
        sf,
        ..problem(format, 328, routing)
    };
    let memory = problem.expected()?;
    context
        .devices()
        .iter()
        .try_for_each(|device| check(device, &problem, &memory))
}

/// Every element code under every scale byte: outputs are noise to begin with, and are left so.
fn any_bytes(context: &Context, format: Format) -> Result<()> {
    let sf = tensor_scales().to_vec();
    let routing = slots(&vec![context.pick(400, 100); sf.len()]);
    let problem = Problem {
        sf,
        ..problem(format, 320, routing)
    };
    let noise = problem.untouched();
    context
        .devices()
        .iter()
        .try_for_each(|device| check(device, &problem, &noise))
}

fn every_column_count(context: &Context, format: Format) -> Result<()> {
    for columns in COLUMNS.into_iter().chain([0]) {
        let problem = problem(format, columns, slots(&[1, 0, 9]));
        check(&context.device(), &problem, &problem.untouched())?;
    }
    Ok(())
}

/// Rows after the last slot, and rows of slots without a factor.
fn rows_of_nobody_are_zero(context: &Context, format: Format) -> Result<()> {
    let offsets = row_offsets(&[3, 130, 0, 2]);
    let ids = [1, -1, 0, 9];
    for rows in [135, 140, 300] {
        let routing = Routing::from_row_offsets(&offsets, Some(&ids), rows)?;
        let problem = problem(format, 72, routing);
        check(&context.device(), &problem, &problem.untouched())?;
    }
    Ok(())
}
