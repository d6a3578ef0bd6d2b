//! `cargo xtask run`: the demonstration. Real hidden states with real, skewed routing go through
//! every format, and what comes back is measured, drawn, and compared with the reference. Then the
//! tokens are sent to their experts over four virtual ranks, and some go through a complete small layer.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use comfy_table::Table;
use indicatif::ProgressBar;
use serde::Serialize;
use tokenyard::error_metrics::ErrorMetrics;
use tokenyard::options::{Format, QuantizeOptions};

use super::exchange::{ExchangeResult, exchange};
use super::layer::{self, LayerResult, layers};
use crate::compare::{first_difference, first_wrong_value};
use crate::engine::Engine;
use crate::files::{GroupedInput, TokensFile, write_atomically};
use crate::flags::RunFlags;
use crate::plots::{ErrorHistogram, ErrorSeries, error_distribution, rows_per_expert};
use crate::report::{self, Report};
use crate::workspace;

/// Largest magnitude of an E4M3 scale times that of an E2M1 element: the tensor scale is chosen so
/// that an expert's largest element lands there.
const NVFP4_RANGE: f32 = 448.0 * 6.0;

/// Steps of the progress bar per format: quantize, decode, compare.
const STEPS: u64 = 3;

/// `results.json`, and what `--json` prints.
#[derive(Serialize)]
struct Results {
    producer: &'static str,
    backend: &'static str,
    backend_description: String,
    seed: u64,
    input: InputSummary,
    formats: Vec<FormatResult>,
    /// Absent if the input is not one that can be dispatched.
    exchange: Option<ExchangeResult>,
    /// Empty if the input is not one that can be dispatched, or without kernels (`--backend reference`).
    layers: Vec<LayerResult>,
    files: Vec<PathBuf>,
}

#[derive(Serialize)]
struct InputSummary {
    file: PathBuf,
    element_type: &'static str,
    tokens: usize,
    columns: usize,
    rows: usize,
    experts: usize,
    scale_tiles: usize,
    rows_per_expert: Vec<usize>,
}

#[derive(Serialize)]
struct FormatResult {
    format: &'static str,
    /// Elements and scales, scale padding included.
    bytes: usize,
    /// Bytes of the same rows in BF16.
    bf16_bytes: usize,
    rms_error: f64,
    max_error: f64,
    /// Absent if there is no error at all.
    sqnr_db: Option<f64>,
    unchanged_share: f64,
    quantize_seconds: f64,
    dequantize_seconds: f64,
    bit_exact: bool,
    /// What differs from the reference first, if anything does.
    difference: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// No input, a device that fails, outputs that cannot be written, or a byte that differs from the
/// reference.
pub fn run(flags: RunFlags, report: Report) -> Result<()> {
    let engine = Engine::open(flags.backend)?;
    report.line(format!("Backend: {}", engine.description()))?;

    let given = flags.input.is_some();
    let path = match flags.input {
        Some(path) => path,
        None => workspace::demonstration_file()?,
    };
    let input = GroupedInput::read(&path, flags.experts)
        .with_context(|| format!("cannot use {}", path.display()))?;
    let summary = summarize(&input, workspace::relative(path.clone()));
    report.line(format!(
        "Input:   {}: {} of {} {} elements, {} for {}",
        summary.file.display(),
        report::counted(summary.tokens, "token"),
        summary.columns,
        summary.element_type.to_uppercase(),
        report::counted(summary.rows, "grouped row"),
        report::counted(summary.experts, "expert"),
    ))?;

    let out = flags.out.unwrap_or_else(workspace::default_out);
    let original = grouped_rows(&input);
    let progress = report.progress(STEPS * Format::ALL.len() as u64 + 2);
    let mut files = Vec::new();
    let mut formats = Vec::new();
    let mut series = Vec::new();
    for format in Format::ALL {
        let target = out.join(format!("{format}.safetensors"));
        let (result, curve) = examine(format, &engine, &input, &original, &target, &progress)?;
        files.push(target);
        formats.push(result);
        series.push(curve);
    }

    progress.set_message("dispatching");
    progress.inc(1);
    let exchange = exchange(&engine, &path, summary.experts);
    progress.set_message("running layers");
    progress.inc(1);
    let layers = match &engine {
        Engine::Device { device, .. } => TokensFile::read(&path)
            .map_err(anyhow::Error::from)
            .and_then(|file| layers(device, &file, summary.experts)),
        Engine::Reference => Ok(Vec::new()),
    };

    progress.set_message("drawing");
    let subtitle = format!(
        "{} rows of {} elements for {} experts, from {}",
        report::grouped(summary.rows as u64),
        summary.columns,
        summary.experts,
        summary
            .file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy(),
    );
    let picture = error_distribution(&series, &subtitle)?;
    files.extend(picture.write(&out, "error_distribution")?);
    let picture = rows_per_expert(&summary.rows_per_expert, &subtitle)?;
    files.extend(picture.write(&out, "rows_per_expert")?);
    if let Ok(exchange) = &exchange {
        let picture = exchange.picture(&subtitle)?;
        files.extend(picture.write(&out, "exchange")?);
    }
    progress.finish_and_clear();

    report.table(&table(&formats, engine.name()))?;
    match &exchange {
        Ok(exchange) => report.table(&exchange.table(engine.name()))?,
        Err(error) if given => report.line(format!("Not dispatched: {error:#}"))?,
        Err(_) => {}
    }
    match &layers {
        Ok(layers) if layers.is_empty() => {}
        Ok(layers) => report.table(&layer::table(layers, engine.name()))?,
        // The same reason, said already.
        Err(_) if exchange.is_err() => {}
        Err(error) => report.line(format!("No layer: {error:#}"))?,
    }
    // The bundled input can be dispatched; what somebody else's cannot is no fault of the run.
    let (exchange, layers) = if given {
        (exchange.ok(), layers.unwrap_or_default())
    } else {
        (Some(exchange?), layers?)
    };
    let results_path = out.join("results.json");
    files.push(results_path.clone());
    let results = Results {
        producer: concat!("tokenyard ", env!("CARGO_PKG_VERSION")),
        backend: engine.name(),
        backend_description: engine.description(),
        seed: flags.backend.seed,
        input: summary,
        formats,
        exchange,
        layers,
        files,
    };
    let json = serde_json::to_vec_pretty(&results)?;
    write_atomically(&results_path, |file| file.write_all(&json))?;
    report.line(format!("Wrote to {}:", out.display()))?;
    for file in &results.files {
        let name = file.file_name().unwrap_or_default();
        report.line(format!("  {}", name.to_string_lossy()))?;
    }
    report.document(&results)?;

    let dispatch = results.exchange.iter();
    let dispatch = dispatch.filter_map(|exchange| exchange.difference.clone());
    let layers = results.layers.iter();
    let layers = layers.filter_map(|layer| layer.difference.clone());
    let differences: Vec<String> = results
        .formats
        .iter()
        .filter_map(|result| {
            Some(format!(
                "{}: {}",
                result.format,
                result.difference.as_ref()?
            ))
        })
        .chain(dispatch)
        .chain(layers)
        .collect();
    if !differences.is_empty() {
        bail!("{}", differences.join("\n"));
    }
    Ok(())
}

/// Takes the input through one format, checks everything against the reference, and writes the
/// quantized file to `target`.
fn examine(
    format: Format,
    engine: &Engine,
    input: &GroupedInput,
    original: &[f32],
    target: &Path,
    progress: &ProgressBar,
) -> Result<(FormatResult, ErrorSeries)> {
    let step = |what: &str| {
        progress.set_message(format!("{format}: {what}"));
        progress.inc(1);
    };
    let tensor_scales = tensor_scales(format, input, original);
    let options = QuantizeOptions::default();
    step("quantizing");
    let quantized = engine.quantize(input, format, options, &tensor_scales)?;
    step("decoding");
    let decoded = engine.dequantize(&quantized.value)?;

    step("comparing with the reference");
    let expected = Engine::Reference.quantize(input, format, options, &tensor_scales)?;
    let difference = match first_difference(&quantized.value, &expected.value) {
        Some(difference) => Some(difference.to_string()),
        None => {
            let expected = Engine::Reference.dequantize(&expected.value)?;
            first_wrong_value(&decoded.value, &expected.value, input.columns)
        }
    };
    let metrics = ErrorMetrics::between(original, &decoded.value)?;
    let histogram = ErrorHistogram::between(original, &decoded.value);
    quantized.value.write(target)?;

    let result = FormatResult {
        format: format.name(),
        bytes: quantized.value.payload_bytes(),
        bf16_bytes: original.len() * size_of::<half::bf16>(),
        rms_error: metrics.rms,
        max_error: metrics.max,
        sqnr_db: metrics.sqnr_db.is_finite().then_some(metrics.sqnr_db),
        unchanged_share: histogram.exact_share(),
        quantize_seconds: quantized.time.as_secs_f64(),
        dequantize_seconds: decoded.time.as_secs_f64(),
        bit_exact: difference.is_none(),
        difference,
    };
    let curve = ErrorSeries {
        format,
        histogram,
        sqnr_db: metrics.sqnr_db,
    };
    Ok((result, curve))
}

fn summarize(input: &GroupedInput, file: PathBuf) -> InputSummary {
    InputSummary {
        file,
        element_type: input.hidden_states.input_type().name(),
        tokens: input.tokens,
        columns: input.columns,
        rows: input.routing.rows(),
        experts: input.routing.experts(),
        scale_tiles: input.routing.occupied_tiles(),
        rows_per_expert: input.routing.rows_per_expert().collect(),
    }
}

/// The rows in the order in which they are quantized, `[R, K]`.
fn grouped_rows(input: &GroupedInput) -> Vec<f32> {
    let values = input.hidden_states.to_f32();
    match input.routing.source_rows() {
        None => values,
        Some(sources) => sources
            .iter()
            .flat_map(|&row| &values[row as usize * input.columns..][..input.columns])
            .copied()
            .collect(),
    }
}

/// The encode factors of the input, else those that models choose: for NVFP4 such that the expert's
/// largest element uses the whole range, 1 for the MX formats.
fn tensor_scales(format: Format, input: &GroupedInput, grouped: &[f32]) -> Vec<f32> {
    let mut scales = input.tensor_scales_or_ones();
    if format != Format::Nvfp4 || input.tensor_scales.is_some() {
        return scales;
    }
    let mut amax = vec![0.0_f32; scales.len()];
    for (slot, &id) in input.routing.expert_ids().iter().enumerate() {
        let Ok(expert) = usize::try_from(id) else {
            continue;
        };
        let rows = input.routing.slot_rows(slot);
        let values = &grouped[rows.start * input.columns..rows.end * input.columns];
        let finite = values
            .iter()
            .map(|value| value.abs())
            .filter(|value| value.is_finite());
        amax[expert] = finite.fold(amax[expert], f32::max);
    }
    for (scale, amax) in scales.iter_mut().zip(amax) {
        let factor = NVFP4_RANGE / amax;
        if factor.is_finite() && factor > 0.0 {
            *scale = factor;
        }
    }
    scales
}

fn table(formats: &[FormatResult], backend: &str) -> Table {
    let titles = [
        "Format",
        "Bytes",
        "of BF16",
        "RMS error",
        "Max error",
        "SQNR",
        "Quantize",
        "Dequantize",
        "Backend",
        "Bit-exact",
    ];
    let mut table = report::table(titles, 1);
    for result in formats {
        let seconds = |seconds| report::duration(std::time::Duration::from_secs_f64(seconds));
        table.add_row([
            result.format.to_uppercase(),
            report::grouped(result.bytes as u64),
            format!(
                "1/{:.2}",
                result.bf16_bytes as f64 / result.bytes.max(1) as f64
            ),
            format!("{:.4}", result.rms_error),
            format!("{:.4}", result.max_error),
            match result.sqnr_db {
                Some(db) => format!("{db:.1} dB"),
                None => "no error".to_owned(),
            },
            seconds(result.quantize_seconds),
            seconds(result.dequantize_seconds),
            backend.to_owned(),
            if result.bit_exact { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    table
}
