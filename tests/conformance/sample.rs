//! Real activations, there and back: the bytes are the reference's, and the error is what the formats
//! promise.

use anyhow::{Context as _, Result, ensure};
use approx::abs_diff_eq;
use tokenyard::options::Format;
use tokenyard::reference::{scale_offset, scale::scale_value};
use tokenyard::routing::Routing;
use tokenyard::{ErrorMetrics, Quantized, TensorScales};
use tokenyard_tests::data::Sample;
use tokenyard_tests::{Context, Launch, Memory, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        suite.both(&format!("sample::round_trip::{format}"), move |context| {
            round_trip(context, format)
        });
    }
}

/// The sample, routed as it was, with the usual factors: 448 * 6 / amax for NVFP4, 1 for the others.
fn problem(context: &Context, format: Format) -> Result<Problem> {
    let sample = Sample::load()?;
    // An emulated row costs some ten thousand times one on a GPU; a quarter has every expert in it.
    let tokens = context.pick(sample.tokens, sample.tokens / 8);
    let Sample {
        tokens,
        columns,
        hidden_states,
        top_k,
        experts,
        topk_ids,
    } = sample.first(tokens);
    let routing = Routing::from_topk(&topk_ids, tokens, top_k, experts)?;
    let amax = hidden_states.iter().fold(0f32, |amax, value| amax.max(value.to_f32().abs()));
    let sf = if format == Format::Nvfp4 { 448.0 * 6.0 / amax } else { 1.0 };
    Ok(Problem {
        sf: vec![sf; experts],
        ..Problem::new(format, columns, routing, Rows::Bf16(hidden_states))
    })
}

fn round_trip(context: &Context, format: Format) -> Result<()> {
    let problem = problem(context, format)?;
    let device = context.device();
    let expected = problem.expected()?;
    let found = problem.run(&device, Launch::default())?;
    problem.compare(&expected, &found)?;

    let quantized = Quantized::from_buffers(
        format,
        problem.rows(),
        problem.columns,
        problem.row_tiles,
        device.upload(found.data())?,
        device.upload(found.scales())?,
    )?;
    let routing = problem.grouping.upload(&device)?;
    let sf = TensorScales::upload(&device, &problem.sf)?;
    let restored = quantized.dequantize(&device.create_stream()?, &routing, &sf)?.download()?;

    let original = gathered(&problem)?;
    let metrics = ErrorMetrics::between(&original, &restored)?;
    ensure!(metrics.left_out == 0, "{} values are not finite", metrics.left_out);
    let noise = Noise::of(&problem, &found, &original);
    ensure!(
        metrics.sqnr_db >= noise.floor_db,
        "SQNR {:.2} dB, though no rounding can leave less than {:.2} dB",
        metrics.sqnr_db,
        noise.floor_db
    );
    // A hundred thousand and more elements: the mean of their squared errors is within a fraction of a
    // percent of its expectation if they are independent. They are not quite: values close to a code
    // are somewhat more frequent than those between, the more so as the values are BF16, of which a
    // block has some exactly on codes. Half a decibel is 12 % of the noise.
    ensure!(
        abs_diff_eq!(metrics.sqnr_db, noise.expected_db, epsilon = 0.5),
        "SQNR {:.2} dB, where uniform rounding errors give {:.2} dB",
        metrics.sqnr_db,
        noise.expected_db
    );
    Ok(())
}

/// The input rows in grouped order.
fn gathered(problem: &Problem) -> Result<Vec<f32>> {
    let rows = problem.grouping.source_rows().context("the sample is gathered")?;
    let columns = problem.columns;
    Ok(rows
        .iter()
        .flat_map(|&row| {
            let start = row as usize * columns;
            (start..start + columns).map(|index| problem.input.value(index))
        })
        .collect())
}

/// What rounding can and should do to these rows, from their scales alone.
///
/// A value x under a scale s (over the tensor-wise factor) becomes the nearest element code times s.
/// Codes around |x| / s are a step apart, which is known from the format, so the error is at most
/// half a step. That gives a floor under the SQNR that no correct rounding can break. Taken as
/// uniform within its half step, the error has a third of that square on average: 4.77 dB above the
/// floor. Values beyond the largest code are clipped, and there the error is known exactly.
struct Noise {
    floor_db: f64,
    expected_db: f64,
}

impl Noise {
    fn of(problem: &Problem, memory: &Memory, original: &[f32]) -> Self {
        let (format, columns) = (problem.format, problem.columns);
        let groups = problem.grouping.groups();
        let column_tiles = format.column_tiles(columns);
        let (mut signal, mut most, mut expected) = (0.0, 0.0, 0.0);
        for (index, &x) in original.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            let Some(slot) = groups.slot_of_row(row) else {
                continue;
            };
            let local_row = row - groups.row_offsets[slot] as usize;
            let block = column / format.block_size();
            let offset = scale_offset(groups.tile_start(slot), local_row, block, column_tiles);
            let sf = if format.uses_tensor_scale() { problem.sf[0] } else { 1.0 };
            let scale = f64::from(scale_value(format, memory.scales()[offset])) / f64::from(sf);
            let x = f64::from(x).abs();
            signal += x * x;
            if scale == 0.0 {
                most += x * x;
                expected += x * x;
                continue;
            }
            let clipped = x - f64::from(format.element_max()) * scale;
            let half_step = step(format, x / scale) * scale / 2.0;
            most += half_step.max(clipped).powi(2);
            expected += if clipped > 0.0 { clipped.powi(2) } else { half_step.powi(2) / 3.0 };
        }
        Self {
            floor_db: 10.0 * f64::log10(signal / most),
            expected_db: 10.0 * f64::log10(signal / expected),
        }
    }
}

/// The distance between the two codes around a magnitude: 2^-m of the power of two below it, but no
/// less than it is among the subnormal codes.
fn step(format: Format, magnitude: f64) -> f64 {
    let (mantissa_bits, least_exponent) = match format {
        Format::Mxfp8 => (3, -6),
        _ => (1, 0),
    };
    let exponent = if magnitude > 0.0 { magnitude.log2().floor() as i32 } else { least_exponent };
    2f64.powi(exponent.max(least_exponent) - mantissa_bits)
}
