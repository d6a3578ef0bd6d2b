//! Graphs: nothing runs while it is recorded, everything does when it is launched, as often as wanted;
//! and the traffic twin, which only ever is measured, stays inside its output.

use anyhow::{Result, ensure};
use fastrand::Rng;
use tokenyard::options::{Format, InputType};
use tokenyard::{
    Device, DeviceError, DeviceRouting, GroupedQuantizer, QuantizeError, TensorScales, baseline,
};
use tokenyard_tests::shapes::slots;
use tokenyard_tests::values::hazards;
use tokenyard_tests::{Context, Launch, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("graphs::replays_quantize_what_is_there", replays);
    suite.both("graphs::only_launches_are_recorded", only_launches);
    suite.both("graphs::a_failed_capture_leaves_the_stream", failed_capture);
    suite.emulator("graphs::allocations_are_refused", allocations);
    suite.both("graphs::other_devices_are_refused", other_devices);
    suite.both("graphs::traffic_twins", traffic_twins);
}

const COLUMNS: usize = 136;

fn problem(format: Format, seed: u64) -> Problem {
    let routing = slots(&[3, 0, 130]);
    let values = hazards(format, routing.rows(), COLUMNS, &mut Rng::with_seed(seed));
    let rows = Rows::rounded(InputType::F32, values);
    Problem::new(format, COLUMNS, routing, rows)
}

fn f32_rows(rows: &Rows) -> Result<&[f32]> {
    match rows.reference() {
        tokenyard::reference::Input::F32(values) => Ok(values),
        _ => anyhow::bail!("these rows are F32"),
    }
}

fn replays(context: &Context) -> Result<()> {
    for device in context.devices() {
        let (first, second) = (problem(Format::Nvfp4, 1), problem(Format::Nvfp4, 2));
        let other = Problem {
            format: Format::Mxfp8,
            ..first.clone()
        };
        let stream = device.create_stream()?;
        let mut input = device.upload(f32_rows(&first.input)?)?;
        let routing = first.grouping.upload(&device)?;
        let sf = TensorScales::upload(&device, &first.sf)?;
        let quantizers = [&first, &other].map(|p| p.quantizer(&device, Launch::default()));
        let [nvfp4, mxfp8] = quantizers;
        let (nvfp4, mxfp8) = (nvfp4?, mxfp8?);
        let mut outputs = [
            nvfp4.allocate(first.rows(), first.row_tiles)?,
            mxfp8.allocate(other.rows(), other.row_tiles)?,
        ];
        let before = outputs[0].data().download()?;
        let graph = stream.capture(|| -> Result<(), QuantizeError> {
            let [a, b] = &mut outputs;
            nvfp4.quantize_into(&stream, &input, &routing, &sf, a)?;
            mxfp8.quantize_into(&stream, &input, &routing, &sf, b)
        })?;
        stream.synchronize()?;
        ensure!(
            outputs[0].data().download()? == before,
            "something ran while it was recorded"
        );
        // From another stream than it was recorded on, and again with other rows in the same memory.
        let launcher = device.create_stream()?;
        for rows in [&first.input, &second.input] {
            input.upload_from(f32_rows(rows)?)?;
            // SAFETY: input, tables and outputs are alive until the downloads have waited, and nothing
            // else touches them.
            unsafe { graph.launch(&launcher)? };
            for (format, output) in [Format::Nvfp4, Format::Mxfp8].iter().zip(&outputs) {
                let expected = Problem {
                    format: *format,
                    input: rows.clone(),
                    ..first.clone()
                }
                .expected()?;
                ensure!(
                    output.data().download()? == expected.data(),
                    "{format} data of a replay"
                );
            }
        }
    }
    Ok(())
}

fn only_launches(context: &Context) -> Result<()> {
    let device = context.device();
    let stream = device.create_stream()?;
    let event = stream.record()?;
    let graph = stream.capture(|| -> Result<()> {
        refused!(
            stream.synchronize(),
            DeviceError::Capturing {
                call: "Stream::synchronize"
            }
        );
        refused!(stream.record(), DeviceError::Capturing { .. });
        refused!(stream.wait(&event), DeviceError::Capturing { .. });
        refused!(
            stream.capture(|| Ok::<_, DeviceError>(())),
            DeviceError::Capturing { .. }
        );
        Ok(baseline::empty(&stream)?)
    })?;
    // SAFETY: the recorded kernel uses no memory.
    unsafe { graph.launch(&stream)? };
    stream.synchronize()?;
    Ok(())
}

fn failed_capture(context: &Context) -> Result<()> {
    let device = context.device();
    let stream = device.create_stream()?;
    refused!(
        stream.capture(|| {
            baseline::empty(&stream)?;
            Err(DeviceError::NoSuchKernel { name: "made up" })
        }),
        DeviceError::NoSuchKernel { name: "made up" }
    );
    // The stream runs things again, and can be captured again.
    let from = device.upload(&[[5_u32; 4]; 300])?;
    let mut to = device.alloc_filled(300, 0)?;
    baseline::copy(&stream, &from, &mut to)?;
    ensure!(to.download()? == [[5; 4]; 300], "the stream does not run");
    let graph = stream.capture(|| baseline::empty(&stream))?;
    // SAFETY: the recorded kernel uses no memory.
    unsafe { graph.launch(&stream)? };
    stream.synchronize()?;
    Ok(())
}

fn allocations(context: &Context) -> Result<()> {
    let device = context.device();
    let stream = device.create_stream()?;
    let buffer = device.upload(&[1_u8; 16])?;
    stream.capture(|| -> Result<()> {
        refused!(device.alloc::<u8>(1), DeviceError::Capturing { .. });
        refused!(buffer.download(), DeviceError::Capturing { .. });
        Ok(())
    })?;
    ensure!(buffer.download()? == [1; 16]);
    Ok(())
}

fn other_devices(context: &Context) -> Result<()> {
    let device = context.device();
    let graph = {
        let stream = device.create_stream()?;
        stream.capture(|| baseline::empty(&stream))?
    };
    let other = Device::emulator(9);
    let stream = other.create_stream()?;
    // SAFETY: the recorded kernel uses no memory.
    let launched = unsafe { graph.launch(&stream) };
    refused!(launched, DeviceError::WrongDevice { .. });
    Ok(())
}

/// What a twin writes means nothing, but where it writes is where the quantizer does.
fn traffic_twins(context: &Context) -> Result<()> {
    for device in context.devices() {
        for format in Format::ALL {
            for input_type in InputType::ALL {
                let routing = slots(&[3, 0, 130]);
                let rows = routing.rows();
                let values = hazards(format, rows, COLUMNS, &mut Rng::with_seed(3));
                let problem = Problem::new(
                    format,
                    COLUMNS,
                    routing.clone(),
                    Rows::rounded(input_type, values),
                );
                let twin = GroupedQuantizer::builder(&device, format)
                    .columns(COLUMNS)
                    .input_type(input_type)
                    .traffic_twin()
                    .build()?;
                let stream = device.create_stream()?;
                let input = problem.input.upload(&device)?;
                let tables = DeviceRouting::upload(&device, &routing)?;
                let sf = TensorScales::upload(&device, &problem.sf)?;
                let tiles = routing.occupied_tiles();
                let mut output = twin.allocate(rows, tiles + 1)?;
                twin.quantize_into(&stream, input.input(), &tables, &sf, &mut output)?;
                let (first, scales) = (output.data().download()?, output.scales().download()?);
                ensure!(
                    first.iter().any(|&byte| byte != first[0]),
                    "{format}: no data"
                );
                ensure!(scales.len() > tiles * format.column_tiles(COLUMNS) * 512);
            }
        }
        refused!(
            GroupedQuantizer::builder(&device, Format::Nvfp4)
                .columns(COLUMNS)
                .runs_per_block(3)
                .traffic_twin()
                .build(),
            QuantizeError::RunsPerBlock { found: 3, most: 8 }
        );
    }
    Ok(())
}
