//! What commands print: lines and tables for people, one JSON document for machines, and progress
//! on the terminal for whoever is waiting.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// Where a command's results go.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    audience: Audience,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    People,
    /// Standard output holds one JSON document.
    Machines,
    /// Standard output belongs to somebody else's document.
    Nobody,
}

impl Report {
    /// For machines if `json`, for people otherwise.
    pub fn new(json: bool) -> Self {
        let audience = match json {
            true => Audience::Machines,
            false => Audience::People,
        };
        Self { audience }
    }

    /// For a command that is one step of another: the document, if any, is the other's.
    pub fn of_a_step(self) -> Self {
        let audience = match self.audience {
            Audience::Machines => Audience::Nobody,
            other => other,
        };
        Self { audience }
    }

    /// Whether standard output is to hold a JSON document and nothing else.
    pub fn is_json(&self) -> bool {
        self.audience != Audience::People
    }

    /// Prints a line for people.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn line(&self, text: impl AsRef<str>) -> Result<()> {
        if self.is_json() {
            return Ok(());
        }
        print(text.as_ref())
    }

    /// Prints a table for people.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn table(&self, table: &Table) -> Result<()> {
        self.line(table.to_string())
    }

    /// Prints a document for machines.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn document(&self, document: &impl Serialize) -> Result<()> {
        if self.audience != Audience::Machines {
            return Ok(());
        }
        print(&serde_json::to_string_pretty(document)?)
    }

    /// A bar over `steps` steps on standard error, invisible when that is no terminal.
    pub fn progress(&self, steps: u64) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(steps), self.target());
        bar.set_style(
            ProgressStyle::with_template("{spinner} [{bar:24}] {pos}/{len} {msg} ({elapsed})")
                .expect("the template is well-formed")
                .progress_chars("=> "),
        );
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }

    /// A spinner on standard error for work whose length is unknown.
    pub fn spinner(&self, message: &'static str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(None, self.target());
        bar.set_style(
            ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
                .expect("the template is well-formed"),
        );
        bar.set_message(message);
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }

    fn target(&self) -> ProgressDrawTarget {
        if self.is_json() {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        }
    }
}

/// Prints a line. A reader that has gone away (`| head`) is no reason to stop working.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Lines above, below and under the titles, none between rows.
const RULES: TableStyle = UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none());

/// A table with these column titles; numbers come in the columns after the first `texts`, which are
/// aligned to the right.
pub fn table<const N: usize>(titles: [&str; N], texts: usize) -> Table {
    let mut table = Table::new();
    table.load_style(RULES).set_header(titles);
    for column in table.column_iter_mut().skip(texts) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// 1536 as `1.5 KiB`.
pub fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

/// A time with three significant digits or so: `12.3 ms`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        60.0.. => format!(
            "{:.0} min {:.0} s",
            (seconds / 60.0).floor(),
            seconds % 60.0
        ),
        1.0.. => format!("{seconds:.1} s"),
        0.001.. => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{:.1} µs", seconds * 1e6),
    }
}

/// `value` with thousands separated: 12,345.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 row", "2 rows".
pub fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_readable() {
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(duration(Duration::from_micros(12)), "12.0 µs");
        assert_eq!(duration(Duration::from_millis(12)), "12.0 ms");
        assert_eq!(duration(Duration::from_secs(75)), "1 min 15 s");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(counted(1, "row"), "1 row");
        assert_eq!(counted(0, "row"), "0 rows");
    }
}
