//! `cargo xtask dispatch`: tokens in, what each rank receives out.

use anyhow::{Context, Result};
use serde::Serialize;
use tokenyard::ep::EpConfigError;
use tokenyard::reference::ep::{MessageParts, Setup};

use crate::engine::{Engine, Timed};
use crate::exchange::DispatchPlan;
use crate::files::{DispatchedFile, TokensFile};
use crate::flags::DispatchFlags;
use crate::report::{self, Report};

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    backend: String,
    format: &'static str,
    tokens: usize,
    hidden_size: usize,
    top_k: usize,
    experts: usize,
    message_bytes: usize,
    ranks: Vec<RankSummary>,
    seconds: f64,
    output: String,
}

#[derive(Serialize)]
struct RankSummary {
    rank: usize,
    rows: usize,
    /// Rows that came from each rank.
    rows_from: Vec<usize>,
}

/// Runs the command.
///
/// # Errors
/// A bad input, a setup that the library refuses, a device that fails, an output that cannot be
/// written. The output is then what it was before.
pub fn run(flags: DispatchFlags, report: Report) -> Result<()> {
    let file = TokensFile::read(&flags.input)
        .with_context(|| format!("cannot use {}", flags.input.display()))?;
    if let Some(rounding) = flags.scale_rounding
        && !flags.format.is_mx()
    {
        let format = flags.format;
        return Err(EpConfigError::ScaleRounding { format, rounding }.into());
    }
    let plan = plan(&flags, &file);
    let engine = Engine::open(flags.backend)?;
    report.line(format!("Backend: {}", engine.description()))?;
    let spinner = report.spinner("dispatching");
    let Timed { value, time } = engine.dispatch(&file, &plan)?;
    spinner.set_message("writing");
    value.write(&flags.output)?;
    spinner.finish_and_clear();

    let ranks = summaries(&value);
    let mut table = report::table(["Rank", "Rows", "Rows from each rank"], 0);
    for rank in &ranks {
        let from: Vec<_> = rank
            .rows_from
            .iter()
            .map(|&rows| report::grouped(rows as u64))
            .collect();
        table.add_row([
            rank.rank.to_string(),
            report::grouped(rank.rows as u64),
            from.join("  "),
        ]);
    }
    report.table(&table)?;
    report.line(format!(
        "{} of {} elements dispatched as {} in {}",
        report::counted(file.count, "token"),
        file.hidden_size,
        flags.format,
        report::duration(time),
    ))?;
    report.line(format!("Wrote {}", flags.output.display()))?;
    let setup = &value.setup;
    report.document(&Document {
        backend: engine.description(),
        format: flags.format.name(),
        tokens: file.count,
        hidden_size: file.hidden_size,
        top_k: file.top_k,
        experts: flags.experts as usize,
        message_bytes: MessageParts::new(setup.format, setup.hidden_size, setup.top_k).bytes,
        ranks,
        seconds: time.as_secs_f64(),
        output: flags.output.display().to_string(),
    })
}

fn plan(flags: &DispatchFlags, file: &TokensFile) -> DispatchPlan {
    let ranks = flags.ranks as usize;
    let counts = match (&flags.tokens_per_rank, flags.skip_a2a) {
        (Some(counts), _) => counts.clone(),
        (None, true) => vec![file.count; ranks],
        (None, false) => DispatchPlan::even_counts(file.count, ranks),
    };
    let capacity = counts.iter().copied().max().unwrap_or(0).max(1);
    let defaults = Setup::new(flags.format, file.hidden_size, capacity);
    let setup = Setup {
        top_k: file.top_k,
        experts: flags.experts as usize,
        ranks,
        fused_shared_expert: flags.shared_expert,
        skip_a2a: flags.skip_a2a,
        scale_preshuffle: flags.preshuffle,
        scale_rounding: flags.scale_rounding.unwrap_or(defaults.scale_rounding),
        global_factor: file.global_factor.unwrap_or(1.0),
        ..defaults
    };
    DispatchPlan {
        setup,
        counts,
        fused: flags.fused,
        deterministic: flags.deterministic,
    }
}

fn summaries(file: &DispatchedFile) -> Vec<RankSummary> {
    let ranks = file.ranks.iter().enumerate();
    ranks
        .map(|(rank, rows)| {
            let mut rows_from = vec![0; file.setup.ranks];
            for &source in &rows.src_rank {
                if let Ok(source) = usize::try_from(source) {
                    rows_from[source] += 1;
                }
            }
            RankSummary {
                rank,
                rows: rows.rows,
                rows_from,
            }
        })
        .collect()
}
