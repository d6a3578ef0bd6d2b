//! `cargo xtask dequantize`: a file that `quantize` wrote in, a file of FP32 rows out.

use anyhow::{Context, Result};
use serde::Serialize;

use crate::engine::{Engine, Timed};
use crate::files::{QuantizedFile, dequantized_bytes, write_atomically};
use crate::flags::DequantizeFlags;
use crate::report::{self, Report};

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    backend: String,
    format: &'static str,
    rows: usize,
    columns: usize,
    seconds: f64,
    output: String,
}

/// Runs the command.
///
/// # Errors
/// A bad input, a device that fails, an output that cannot be written. The output is then what it
/// was before.
pub fn run(flags: DequantizeFlags, report: Report) -> Result<()> {
    let file = QuantizedFile::read(&flags.input)
        .with_context(|| format!("cannot use {}", flags.input.display()))?;
    let engine = Engine::open(flags.backend)?;
    report.line(format!("Backend: {}", engine.description()))?;
    let spinner = report.spinner("dequantizing");
    let Timed { value: rows, time } = engine.dequantize(&file)?;
    spinner.set_message("writing");
    let bytes = dequantized_bytes(file.routing.rows(), file.columns, &rows);
    write_atomically(&flags.output, |out| out.write_all(&bytes))?;
    spinner.finish_and_clear();

    report.line(format!(
        "{} of {} elements of {} decoded in {}",
        report::counted(file.routing.rows(), "row"),
        file.columns,
        file.format,
        report::duration(time),
    ))?;
    report.line(format!("Wrote {}", flags.output.display()))?;
    report.document(&Document {
        backend: engine.description(),
        format: file.format.name(),
        rows: file.routing.rows(),
        columns: file.columns,
        seconds: time.as_secs_f64(),
        output: flags.output.display().to_string(),
    })
}
