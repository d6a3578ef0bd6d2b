//! The order in which threads run must not matter: many seeds, several schedules, several streams, and
//! the same bytes every time.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use kernels_gpu::quantize::RUN_COLUMNS;
use tokenyard::options::{Format, InputType};
use tokenyard::routing::Routing;
use tokenyard::{Device, GroupedQuantizer, ScaleStore, Swizzle, TensorScales, TopkRouter};
use tokenyard_tests::shapes::{slots, topk_ids};
use tokenyard_tests::values::hazards;
use tokenyard_tests::{Context, Launch, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        suite.both(&format!("schedules::quantizer::{format}"), move |context| {
            quantizer(context, format)
        });
        suite.both(
            &format!("schedules::runs_are_identical::{format}"),
            move |context| runs_are_identical(context, format),
        );
    }
    suite.both("schedules::router", router);
    suite.both("schedules::streams_side_by_side", streams_side_by_side);
    suite.both("schedules::events_order_streams", events_order_streams);
}

fn problem(format: Format, rows: &[u32], columns: usize, seed: u64) -> Problem {
    let random = &mut Rng::with_seed(seed);
    let routing = slots(rows);
    let values = hazards(format, routing.rows(), columns, random);
    Problem::new(
        format,
        columns,
        routing,
        Rows::rounded(InputType::Bf16, values),
    )
}

/// Few rows, with more warps than rows in one slot and fewer in another, under every schedule; two runs of
/// columns, so that warps of one block share rows where they can.
fn quantizer(context: &Context, format: Format) -> Result<()> {
    let problem = problem(format, &[2, 0, 19], RUN_COLUMNS as usize + 72, 1);
    let expected = problem.expected()?;
    for (label, device) in context.replays() {
        let copy_engine = device.compute_capability() >= (9, 0);
        let stores = match copy_engine {
            true => vec![ScaleStore::Bulk, ScaleStore::TensorMap(Swizzle::B128)],
            false => vec![ScaleStore::Plain],
        };
        for store in stores {
            for runs in [Some(1), Some(2), Some(8)] {
                let launch = Launch {
                    runs,
                    store,
                    ..Launch::default()
                };
                let found = problem.run(&device, launch)?;
                problem
                    .compare(&expected, &found)
                    .with_context(|| format!("{label}, {launch}: {problem}"))?;
            }
        }
    }
    Ok(())
}

/// Two runs on one device, and one on a device with another seed, give the same bytes: guards,
/// padding and slack included.
fn runs_are_identical(context: &Context, format: Format) -> Result<()> {
    let problem = problem(format, &[5, 129, 0, 1], 264, 2);
    let device = context.device();
    let first = problem.run(&device, Launch::default())?;
    let again = problem.run(&device, Launch::default())?;
    problem
        .compare(&first, &again)
        .context("the second run differs from the first")?;
    for (label, device) in context.replays() {
        let other = problem.run(&device, Launch::default())?;
        problem
            .compare(&first, &other)
            .with_context(|| format!("{label} differs"))?;
    }
    Ok(())
}

/// Several passes of a block over the ids, so that each prefix sum is followed by another in the same
/// shared memory. A missing barrier between two shows in a quarter of the long stalls.
fn router(context: &Context) -> Result<()> {
    let context = context.with_more_seeds(4);
    let (tokens, top_k, experts) = (400, 4, 3);
    let random = &mut Rng::with_seed(3);
    let ids = topk_ids(tokens, top_k, experts, true, random);
    let expected = Routing::from_topk(&ids, tokens, top_k, experts)?;
    for (label, device) in context.replays() {
        let mut router = TopkRouter::new(&device, tokens, top_k, experts)?;
        let mut tables = router.allocate()?;
        router.route(&device.create_stream()?, &device.upload(&ids)?, &mut tables)?;
        let found = tables.download().with_context(|| label.clone())?;
        ensure!(
            found.row_offsets == expected.row_offsets(),
            "{label}: {found:?}"
        );
        ensure!(
            found.scales_offsets == expected.scales_offsets(),
            "{label}: {found:?}"
        );
        ensure!(
            found.source_rows.as_deref() == expected.source_rows(),
            "{label}: {found:?}"
        );
    }
    Ok(())
}

/// Several problems in flight at once, each on a stream of its own.
fn streams_side_by_side(context: &Context) -> Result<()> {
    for (label, device) in context.replays() {
        let mut flights = Vec::new();
        for (seed, format) in Format::ALL.into_iter().enumerate() {
            let problem = problem(format, &[3, 7], 72, seed as u64);
            let stream = device.create_stream()?;
            let input = problem.input.upload(&device)?;
            let routing = problem.grouping.upload(&device)?;
            let sf = TensorScales::upload(&device, &problem.sf)?;
            let quantizer = problem.quantizer(&device, Launch::default())?;
            flights.push((problem, stream, input, routing, sf, quantizer));
        }
        let mut outputs = Vec::new();
        for (_, stream, input, routing, sf, quantizer) in &flights {
            outputs.push(quantizer.quantize(stream, input.input(), routing, sf)?);
        }
        for ((problem, stream, ..), output) in flights.iter().zip(&outputs).rev() {
            stream.synchronize()?;
            let expected = problem.expected()?;
            let occupied = 2 * problem.format.column_tiles(72) * 512;
            ensure!(
                output.data().download()? == expected.data(),
                "{label}: data of {problem}"
            );
            ensure!(
                output.scales().download()?[..occupied] == expected.scales()[..occupied],
                "{label}: scales of {problem}"
            );
        }
    }
    Ok(())
}

/// One output, filled from two streams in turn with different rows: what an event says comes last,
/// does. Time passes between events, too.
fn events_order_streams(context: &Context) -> Result<()> {
    for (label, device) in context.replays() {
        in_order(&device).with_context(|| label)?;
    }
    Ok(())
}

fn in_order(device: &Device) -> Result<()> {
    const ROUNDS: u8 = 4;
    let (rows, columns) = (9, 64);
    let quantizer = GroupedQuantizer::builder(device, Format::Mxfp8)
        .columns(columns)
        .build()?;
    let routing = tokenyard::DeviceRouting::upload(device, &slots(&[rows]))?;
    let sf = TensorScales::ones(device, 1)?;
    let streams = [device.create_stream()?, device.create_stream()?];
    let mut output = quantizer.allocate(rows as usize, routing.tiles_needed())?;
    let start = streams[0].record()?;
    let mut last = None;
    let mut inputs = Vec::new();
    for round in 0..ROUNDS {
        let exponent = f32::from(round);
        let value = half::bf16::from_f32(exponent.exp2());
        let input = device.upload(&vec![value; rows as usize * columns])?;
        let stream = &streams[usize::from(round) % 2];
        if let Some(event) = &last {
            stream.wait(event)?;
        }
        quantizer.quantize_into(stream, &input, &routing, &sf, &mut output)?;
        last = Some(stream.record()?);
        inputs.push(input);
    }
    let last = last.context("there are rounds")?;
    ensure!(last.elapsed_ms(&start)? >= 0.0, "time went backwards");
    // 2^3 / 448 rounds up to 2^-5.
    let scale = output.scales().download()?[0];
    ensure!(
        scale == 127 - 5,
        "the scale is that of another round: {scale}"
    );
    Ok(())
}
