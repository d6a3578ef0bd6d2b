//! Real activations, there and back: the bytes are the reference's, and the error is what the formats
//! promise.

use anyhow::{Context as _, Result, ensure};
use approx::abs_diff_eq;
use tokenyard::options::Format;
use tokenyard::reference::{scale::scale_value, scale_offset};
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
fn problem(format: Format) -> Result<Problem> {
    let Sample {
        tokens,
        columns,
        hidden_states,
        top_k,
        experts,
        topk_ids,
    } = Sample::load()?;
    let routing = Routing::from_topk(&topk_ids, tokens, top_k, experts)?;
    let amax = hidden_states
        .iter()
        .fold(0f32, |amax, value| amax.max(value.to_f32().abs()));
    let sf = if format == Format::Nvfp4 {
        448.0 * 6.0 / amax
    } else {
        1.0
    };
    Ok(Problem {
        sf: vec![sf; experts],
        ..Problem::new(format, columns, routing, Rows::Bf16(hidden_states))
    })
}

fn round_trip(context: &Context, format: Format) -> Result<()> {
    let problem = problem(format)?;
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
    let restored = quantized
        .dequantize(&device.create_stream()?, &routing, &sf)?
        .download()?;

    let original = gathered(&problem)?;
    let metrics = ErrorMetrics::between(&original, &restored)?;
    ensure!(
        metrics.left_out == 0,
        "{} values are not finite",
        metrics.left_out
    );
    let noise = Noise::of(&problem, &found, &original);
    ensure!(
        metrics.sqnr_db >= noise.floor_db,
        "SQNR {:.2} dB, though no rounding can leave less than {:.2} dB",
        metrics.sqnr_db,
        noise.floor_db
    );
    // Three million errors average within a hundredth of a decibel of their expectation, so what
    // remains is that real values are not spread evenly between two codes: the nearer to the largest
    // of the block, the rarer they are. That leaves the noise up to 0.13 dB below the prediction.
    // 0.2 dB are 4.7 % of it; a scale that is one code off, or truncation, costs decibels.
    ensure!(
        abs_diff_eq!(metrics.sqnr_db, noise.expected_db, epsilon = 0.2),
        "SQNR {:.2} dB, where uniform rounding errors give {:.2} dB",
        metrics.sqnr_db,
        noise.expected_db
    );
    Ok(())
}

/// The input rows in grouped order.
fn gathered(problem: &Problem) -> Result<Vec<f32>> {
    let rows = problem
        .grouping
        .source_rows()
        .context("the sample is gathered")?;
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
/// half a step. That gives a floor under the SQNR that no correct rounding can break.
///
/// Taken as uniform, the error has a third of half a step's square on average: 4.77 dB above the
/// floor. Two things are known better than that. The largest value of a block is not random, since
/// the scale was made from it: its error is taken as it is, clipping included. And there are no
/// values above it, so of the codes around it the lower one is the nearer for most.
struct Noise {
    floor_db: f64,
    expected_db: f64,
}

impl Noise {
    fn of(problem: &Problem, memory: &Memory, original: &[f32]) -> Self {
        let (format, columns) = (problem.format, problem.columns);
        let groups = problem.grouping.groups();
        let column_tiles = format.column_tiles(columns);
        let sf = if format.uses_tensor_scale() {
            problem.sf[0]
        } else {
            1.0
        };
        let (mut signal, mut most, mut expected) = (0.0, 0.0, 0.0);
        for (row, values) in original.chunks(columns).enumerate() {
            let Some(slot) = groups.slot_of_row(row) else {
                continue;
            };
            let local_row = row - groups.row_offsets[slot] as usize;
            for (block, values) in values.chunks(format.block_size()).enumerate() {
                let offset = scale_offset(groups.tile_start(slot), local_row, block, column_tiles);
                let scale = scale_value(format, memory.scales()[offset]) / sf;
                let largest = values
                    .iter()
                    .fold(0.0, |max: f32, value| max.max(value.abs()));
                for x in values {
                    let rounding = Rounding::of(format, x.abs(), largest, scale);
                    signal += f64::from(*x).powi(2);
                    most += rounding.at_most.powi(2);
                    expected += rounding.mean_square;
                }
            }
        }
        Self {
            floor_db: 10.0 * f64::log10(signal / most),
            expected_db: 10.0 * f64::log10(signal / expected),
        }
    }
}

/// How a magnitude rounds under a scale.
struct Rounding {
    /// The largest error of values between the same two codes, or of this one where it is clipped.
    at_most: f64,
    /// The mean square of the errors of values between the same two codes that a block with this
    /// largest magnitude can have.
    mean_square: f64,
}

impl Rounding {
    fn of(format: Format, magnitude: f32, largest: f32, scale: f32) -> Self {
        let known = |error: f64| Self {
            at_most: error,
            mean_square: error * error,
        };
        let [magnitude, largest, scale] = [magnitude, largest, scale].map(f64::from);
        let max = f64::from(format.element_max());
        if scale == 0.0 || magnitude >= max * scale {
            return known(magnitude - max * scale);
        }
        let (mantissa_bits, least_exponent) = match format {
            Format::Mxfp8 => (3, -6),
            _ => (1, 0),
        };
        // Subnormal codes are as far apart as the least normal ones.
        let code = magnitude / scale;
        let exponent = if code > 0.0 {
            code.log2().floor() as i32
        } else {
            least_exponent
        };
        let step = 2f64.powi(exponent.max(least_exponent) - mantissa_bits) * scale;
        let lower = (magnitude / step).floor() * step;
        if magnitude == largest {
            let error = (magnitude - lower).min(lower + step - magnitude);
            return Self {
                at_most: step / 2.0,
                ..known(error)
            };
        }
        // The square of the distance to the nearer code, integrated over what there is between them.
        let half = step / 2.0;
        let reach = (largest - lower).min(step);
        let below = reach.min(half).powi(3) / 3.0;
        let above = if reach > half {
            (half.powi(3) - (step - reach).powi(3)) / 3.0
        } else {
            0.0
        };
        Self {
            at_most: half,
            mean_square: (below + above) / reach,
        }
    }
}
