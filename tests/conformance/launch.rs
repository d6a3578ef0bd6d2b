//! How a quantizer is launched and how scale tiles are stored: the bytes must not depend on it.

use anyhow::{Result, ensure};
use fastrand::Rng;
use kernels_gpu::quantize::RUN_COLUMNS;
use tokenyard::options::{Format, InputType};
use tokenyard::{
    DeviceRouting, GroupedQuantizer, Input, Quantized, ScaleStore, Swizzle, TensorScales,
};
use tokenyard_tests::memory::Background;
use tokenyard_tests::shapes::slots;
use tokenyard_tests::values::hazards;
use tokenyard_tests::{Context, Launch, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        suite.both(
            &format!("launch::runs_and_stores::{format}"),
            move |context| runs_and_stores(context, format),
        );
        suite.both(
            &format!("launch::stores_of_other_inputs::{format}"),
            move |context| stores_of_other_inputs(context, format),
        );
    }
    suite.both(
        "launch::auto_is_what_the_device_has",
        auto_is_what_the_device_has,
    );
    suite.both(
        "launch::outputs_move_between_quantizers",
        outputs_move_between_quantizers,
    );
}

/// What a block covers, and a part of it; more rows than a tile, and fewer than there are warps.
const COLUMNS: usize = RUN_COLUMNS as usize + 72;
const SLOT_ROWS: [u32; 3] = [130, 0, 3];

fn problem(format: Format, input_type: InputType) -> Problem {
    let random = &mut Rng::with_seed(input_type as u64);
    let routing = slots(&SLOT_ROWS);
    let values = hazards(format, routing.rows(), COLUMNS, random);
    Problem {
        sf: vec![0.43, 1.0, 1.0],
        ..Problem::new(format, COLUMNS, routing, Rows::rounded(input_type, values))
    }
}

fn runs_and_stores(context: &Context, format: Format) -> Result<()> {
    let problem = problem(format, InputType::Bf16);
    for device in context.devices() {
        problem.check_all(std::slice::from_ref(&device), &Launch::all(&device))?;
    }
    Ok(())
}

fn stores_of_other_inputs(context: &Context, format: Format) -> Result<()> {
    for input_type in [InputType::F16, InputType::F32] {
        let device = context.device();
        let problem = problem(format, input_type);
        let launches: Vec<Launch> = Launch::stores(&device)
            .into_iter()
            .map(|store| Launch {
                store,
                ..Launch::default()
            })
            .chain(Launch::all_threads(&device))
            .collect();
        problem.check_all(&[device], &launches)?;
    }
    Ok(())
}

fn auto_is_what_the_device_has(context: &Context) -> Result<()> {
    for device in context.devices() {
        let quantizer = GroupedQuantizer::builder(&device, Format::Nvfp4)
            .columns(64)
            .build()?;
        let expected = match device.compute_capability() {
            (..=8, _) => ScaleStore::Plain,
            _ => ScaleStore::Bulk,
        };
        ensure!(
            quantizer.scale_store() == expected,
            "{device:?}: {:?}",
            quantizer.scale_store()
        );
        ensure!((quantizer.format(), quantizer.columns()) == (Format::Nvfp4, 64));
    }
    Ok(())
}

/// An output made by one quantizer, filled by others that store its scales in other ways.
fn outputs_move_between_quantizers(context: &Context) -> Result<()> {
    let device = context.device();
    if device.compute_capability() < (9, 0) {
        return Ok(());
    }
    let problem = Problem {
        background: Background::Byte(0),
        ..problem(Format::Mxfp4, InputType::Bf16)
    };
    let expected = problem.expected()?;
    let stream = device.create_stream()?;
    let input = problem.input.upload(&device)?;
    let routing = problem.grouping.upload(&device)?;
    let sf = TensorScales::upload(&device, &problem.sf)?;
    let stores = [
        ScaleStore::Plain,
        ScaleStore::TensorMap(Swizzle::B128),
        ScaleStore::TensorMap(Swizzle::B32),
        ScaleStore::Bulk,
        ScaleStore::TensorMap(Swizzle::None),
    ];
    let first = problem.quantizer(&device, Launch::default())?;
    let mut output = first.allocate(problem.rows(), problem.row_tiles)?;
    for store in stores {
        output = cleared(&problem, output)?;
        let quantizer = problem.quantizer(
            &device,
            Launch {
                store,
                ..Launch::default()
            },
        )?;
        run(
            &quantizer,
            &stream,
            input.input(),
            &routing,
            &sf,
            &mut output,
        )?;
        ensure!(
            output.scales().download()? == expected.scales(),
            "scales after {store:?}"
        );
        ensure!(
            output.data().download()? == expected.data(),
            "data after {store:?}"
        );
    }
    Ok(())
}

fn run(
    quantizer: &GroupedQuantizer,
    stream: &tokenyard::Stream,
    input: Input<'_>,
    routing: &DeviceRouting,
    sf: &TensorScales,
    output: &mut Quantized,
) -> Result<()> {
    quantizer.quantize_into(stream, input, routing, sf, output)?;
    stream.synchronize()?;
    Ok(())
}

/// The same output full of zeros.
fn cleared(problem: &Problem, output: Quantized) -> Result<Quantized> {
    let (rows, columns, row_tiles) = (output.rows(), output.columns(), output.row_tiles());
    let (mut data, mut scales) = output.into_buffers();
    data.fill(0)?;
    scales.fill(0)?;
    Ok(Quantized::from_buffers(
        problem.format,
        rows,
        columns,
        row_tiles,
        data,
        scales,
    )?)
}
