//! `cargo xtask quantize`: a file of rows in, a file of quantized rows out.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tokenyard::options::Format;

use crate::engine::{Engine, Timed};
use crate::files::{GroupedInput, QuantizedFile};
use crate::flags::QuantizeFlags;
use crate::report::{self, Report};

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    backend: String,
    format: &'static str,
    rows: usize,
    columns: usize,
    experts: usize,
    scale_tiles: usize,
    payload_bytes: usize,
    seconds: f64,
    output: String,
}

/// Runs the command.
///
/// # Errors
/// A bad input, an option that the format does not have, a device that fails, an output that cannot
/// be written. The output is then what it was before.
pub fn run(flags: QuantizeFlags, report: Report) -> Result<()> {
    let options = flags.policies.options();
    options.check(flags.format)?;
    let input = GroupedInput::read(&flags.input, flags.experts)
        .with_context(|| format!("cannot use {}", flags.input.display()))?;
    let tensor_scales = input.tensor_scales_or_ones();

    let engine = Engine::open(flags.backend)?;
    report.line(format!("Backend: {}", engine.description()))?;
    let spinner = report.spinner("quantizing");
    let Timed { value: file, time } =
        engine.quantize(&input, flags.format, options, &tensor_scales)?;
    spinner.set_message("writing");
    file.write(&flags.output)?;
    spinner.finish_and_clear();

    report.line(summary(&file, flags.format, time))?;
    report.line(format!("Wrote {}", flags.output.display()))?;
    report.document(&Document {
        backend: engine.description(),
        format: flags.format.name(),
        rows: file.routing.rows(),
        columns: file.columns,
        experts: file.routing.experts(),
        scale_tiles: file.routing.occupied_tiles(),
        payload_bytes: file.payload_bytes(),
        seconds: time.as_secs_f64(),
        output: flags.output.display().to_string(),
    })
}

fn summary(file: &QuantizedFile, format: Format, time: Duration) -> String {
    format!(
        "{} of {} elements for {} became {} of {format} in {}",
        report::counted(file.routing.rows(), "row"),
        file.columns,
        report::counted(file.routing.experts(), "expert"),
        report::bytes(file.payload_bytes() as u64),
        report::duration(time),
    )
}
