//! The part of `cargo xtask run` that sends: the input's tokens go over four virtual ranks as MXFP4, and
//! what each pair of ranks exchanges is held against the same in BF16.

use std::path::Path;

use anyhow::Result;
use comfy_table::Table;
use serde::Serialize;
use tokenyard::ep::TokenFormat;
use tokenyard::reference::ep::{MessageParts, Setup};

use crate::engine::Engine;
use crate::exchange::DispatchPlan;
use crate::files::{DispatchedFile, TokensFile};
use crate::plots::{Exchange, Picture, PlotError, exchange_map};
use crate::report;

/// Ranks of the demonstration.
const RANKS: usize = 4;
/// What the tokens travel as.
const FORMAT: TokenFormat = TokenFormat::Mxfp4;

/// What was exchanged.
#[derive(Debug, Serialize)]
pub struct ExchangeResult {
    format: &'static str,
    ranks: usize,
    tokens_per_rank: Vec<usize>,
    /// Bytes of a token on its way, with its scales, its origin and its experts.
    message_bytes: usize,
    bf16_message_bytes: usize,
    /// `rows[source][destination]`: messages.
    rows: Vec<Vec<usize>>,
    seconds: f64,
    bit_exact: bool,
    /// What differs from the reference, if anything does.
    pub difference: Option<String>,
}

/// Sends the tokens of `path`, and compares what arrives with the reference.
///
/// # Errors
/// A file without BF16 tokens and expert ids, numbers that do not divide, a device that fails.
pub fn exchange(engine: &Engine, path: &Path, experts: usize) -> Result<ExchangeResult> {
    let file = TokensFile::read(path)?;
    let counts = DispatchPlan::even_counts(file.count, RANKS);
    let capacity = counts.iter().copied().max().unwrap_or(0).max(1);
    let setup = Setup {
        top_k: file.top_k,
        experts,
        ranks: RANKS,
        ..Setup::new(FORMAT, file.hidden_size, capacity)
    };
    let plan = DispatchPlan {
        setup,
        counts,
        fused: true,
        // So that the bytes, and not only their sets, are the reference's.
        deterministic: true,
    };
    let found = engine.dispatch(&file, &plan)?;
    let expected = Engine::Reference.dispatch(&file, &plan)?;
    let difference = first_difference(&found.value, &expected.value);
    let bytes = |format| MessageParts::new(format, file.hidden_size, file.top_k).bytes;
    Ok(ExchangeResult {
        format: FORMAT.name(),
        ranks: RANKS,
        rows: rows_between(&found.value),
        tokens_per_rank: plan.counts,
        message_bytes: bytes(FORMAT),
        bf16_message_bytes: bytes(TokenFormat::Bf16),
        seconds: found.time.as_secs_f64(),
        bit_exact: difference.is_none(),
        difference,
    })
}

fn first_difference(found: &DispatchedFile, expected: &DispatchedFile) -> Option<String> {
    let ranks = found.ranks.iter().zip(&expected.ranks).enumerate();
    let differing = ranks.filter(|(_, (found, expected))| found != expected);
    let mut texts = differing.map(|(rank, (found, expected))| {
        let rows = format!("{} rows, the reference {}", found.rows, expected.rows);
        format!("dispatch: rank {rank} received other bytes than the reference ({rows})")
    });
    texts.next()
}

/// Messages by source and destination.
fn rows_between(file: &DispatchedFile) -> Vec<Vec<usize>> {
    let mut rows = vec![vec![0; RANKS]; RANKS];
    for (destination, received) in file.ranks.iter().enumerate() {
        for &source in &received.src_rank {
            if let Some(row) = usize::try_from(source).ok().and_then(|it| rows.get_mut(it)) {
                row[destination] += 1;
            }
        }
    }
    rows
}

impl ExchangeResult {
    /// The heat maps, this format's beside BF16's.
    ///
    /// # Errors
    /// [`PlotError`]
    pub fn picture(&self, subtitle: &str) -> Result<Picture, PlotError> {
        let exchanges = [
            (self.format.to_uppercase(), self.message_bytes),
            ("BF16".to_owned(), self.bf16_message_bytes),
        ];
        let exchanges = exchanges.map(|(format, message_bytes)| Exchange {
            format,
            message_bytes,
        });
        exchange_map(&self.rows, &exchanges, subtitle)
    }

    /// One line for each source rank.
    pub fn table(&self, backend: &str) -> Table {
        let titles = [
            "Dispatch",
            "Tokens",
            "Rows sent",
            "Bytes",
            "of BF16",
            "Backend",
            "Bit-exact",
        ];
        let mut table = report::table(titles, 1);
        for (source, row) in self.rows.iter().enumerate() {
            let rows: usize = row.iter().sum();
            table.add_row([
                format!("from rank {source}"),
                report::grouped(self.tokens_per_rank[source] as u64),
                report::grouped(rows as u64),
                report::grouped((rows * self.message_bytes) as u64),
                format!(
                    "1/{:.2}",
                    self.bf16_message_bytes as f64 / self.message_bytes as f64
                ),
                backend.to_owned(),
                if self.bit_exact { "yes" } else { "NO" }.to_owned(),
            ]);
        }
        table
    }
}
