//! Results as a table, for the terminal.

use comfy_table::Table;

use super::cases::Mark;
use super::record::{CaseRecord, Record};
use crate::report;

/// What stands where there is nothing to say.
const NOTHING: &str = "-";

/// One row a case. A case whose bytes were wrong has no numbers.
pub fn results(record: &Record) -> Table {
    let titles = [
        "Case",
        "Bytes",
        "µs",
        "p10 to p90",
        "GB/s",
        "of twin",
        "of copy",
        "x empty",
        "vs last",
        "Mark",
    ];
    let mut table = report::table(titles, 1);
    for case in &record.cases {
        table.add_row(row(case));
    }
    table
}

fn row(case: &CaseRecord) -> [String; 10] {
    let mut row = std::array::from_fn(|_| NOTHING.to_owned());
    row[0] = case.id.clone();
    row[1] = report::grouped(case.bytes);
    row[9] = match (&case.difference, &case.speed) {
        (Some(_), _) => "WRONG BYTES".to_owned(),
        (None, None) => "bytes right".to_owned(),
        (None, Some(speed)) => match case.mark {
            Some(mark) => verdict(mark, speed.meets(mark)),
            None => NOTHING.to_owned(),
        },
    };
    let Some(speed) = &case.speed else {
        return row;
    };
    let kernel = &speed.kernel;
    row[2] = microseconds(kernel.median);
    row[3] = format!(
        "{} to {}",
        microseconds(kernel.p10),
        microseconds(kernel.p90)
    );
    row[4] = report::grouped(speed.gigabytes_per_second.round() as u64);
    let optional = |value: Option<f64>, format: fn(f64) -> String| {
        value.map_or_else(|| NOTHING.to_owned(), format)
    };
    row[5] = optional(speed.of_twin, percent);
    row[6] = percent(speed.of_copy);
    row[7] = optional(speed.times_empty, times);
    row[8] = optional(speed.against_last, times);
    row
}

/// The mark, and whether it is met.
fn verdict(mark: Mark, met: Option<bool>) -> String {
    let what = match mark {
        Mark::OfTwin(share) => format!("≥ {} of twin", percent(share)),
        Mark::Latency { twin, empty } => format!("≤ {twin} x twin, < {empty} x empty"),
    };
    let met = match met {
        Some(true) => "met",
        Some(false) => "SHORT",
        None => "not measured",
    };
    format!("{what}: {met}")
}

/// Three significant digits or so.
fn microseconds(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn times(factor: f64) -> String {
    format!("{factor:.2} x")
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    #[test]
    fn a_row_says_what_was_measured_and_whether_it_is_enough() {
        let mut record = record("2026-12-01T10:00:00Z", "NVIDIA H200", 20.0);
        record.cases[0].speed.as_mut().unwrap().against_last = Some(1.25);
        let text = results(&record).to_string();
        for expected in [
            "20.00 to 20.00",
            "96.0 %",
            "90.0 %",
            "1.25 x",
            "≥ 93.0 % of twin: met",
        ] {
            assert!(text.contains(expected), "no {expected} in\n{text}");
        }
        assert!(text.contains("≤ 1.15 x twin, < 2 x empty: met"), "{text}");
    }

    #[test]
    fn wrong_bytes_have_no_speed() {
        let mut case = record("2026-12-01T10:00:00Z", "NVIDIA H200", 20.0)
            .cases
            .remove(0);
        case.speed = None;
        assert_eq!(row(&case)[9], "bytes right");
        case.difference = Some("row 7 differs".to_owned());
        let row = row(&case);
        assert_eq!(row[9], "WRONG BYTES");
        assert!(row[2..9].iter().all(|cell| cell == NOTHING), "{row:?}");
    }
}
