//! What a run came to: tables.

use comfy_table::Table;

use super::marks::{Half, Quantity};
use super::record::{Checked, EpCaseRecord, EpRecord, EpTimes, Rates};
use super::traffic::Moved;
use crate::bench::stats::Summary;
use crate::report;

/// Microseconds, one row a case.
pub fn times(record: &EpRecord) -> Table {
    let titles = [
        "Case",
        "Dispatch µs",
        "p10 to p90",
        "Combine µs",
        "p10 to p90",
        "Round trip µs",
        "Combine adds",
        "Split: dispatch",
        "Combine",
        "Round trip",
        "Checked",
    ];
    let mut table = report::table(titles, 1);
    for case in &record.cases {
        let mut row: [String; 11] = std::array::from_fn(|_| "-".to_owned());
        row[0] = case.id.clone();
        row[10] = checked(case);
        if let Some(speed) = &case.speed {
            let EpTimes {
                dispatch,
                combine,
                round_trip,
                combine_adds,
            } = speed.fused;
            let split = &speed.split;
            row[1] = median(&dispatch);
            row[2] = spread(&dispatch);
            row[3] = median(&combine);
            row[4] = spread(&combine);
            row[5] = median(&round_trip);
            row[6] = median(&combine_adds);
            row[7] = median(&split.dispatch);
            row[8] = median(&split.combine);
            row[9] = median(&split.round_trip);
        }
        table.add_row(row);
    }
    table
}

/// Bytes and rates of the fused halves, two rows a case.
pub fn rates(record: &EpRecord) -> Table {
    let titles = [
        "Case",
        "",
        "Link bytes",
        "GB/s",
        "of link",
        "Memory bytes",
        "GB/s",
        "of memory",
    ];
    let mut table = report::table(titles, 2);
    for case in &record.cases {
        let speed = case.speed.as_ref();
        let (dispatch, combine) = (&case.dispatch.bytes, &case.combine.bytes);
        table.add_row(rate_row(
            &case.id,
            Half::Dispatch,
            dispatch,
            speed.map(|it| &it.dispatch),
        ));
        table.add_row(rate_row(
            "",
            Half::Combine,
            combine,
            speed.map(|it| &it.combine),
        ));
    }
    table
}

fn rate_row(id: &str, half: Half, bytes: &Moved, rates: Option<&Rates>) -> [String; 8] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rate = |rate: f64| format!("{rate:.1}");
    [
        id.to_owned(),
        name(half).to_owned(),
        report::grouped(bytes.link),
        or_dash(rates.and_then(|rates| rates.link_gb_per_second.map(rate))),
        or_dash(rates.and_then(|rates| rates.of_link.map(percent))),
        report::grouped(bytes.memory),
        or_dash(rates.map(|rates| rate(rates.memory_gb_per_second))),
        or_dash(rates.map(|rates| percent(rates.of_memory))),
    ]
}

/// One row a mark.
pub fn marks(record: &EpRecord) -> Table {
    let mut table = report::table(["Mark", "", "Limit", "Measured", "Result"], 2);
    for mark in &record.marks {
        let shown = |value: f64| match mark.quantity {
            Quantity::Microseconds => format!("{value:.1} µs"),
            Quantity::ShareOfLink => format!("{} of the link", percent(value)),
        };
        let limit = match mark.quantity {
            Quantity::Microseconds => format!("below {}", shown(mark.limit)),
            Quantity::ShareOfLink => format!("at least {}", shown(mark.limit)),
        };
        let result = match (mark.measured, mark.met) {
            (None, _) => "not measured",
            (_, true) => "met",
            (_, false) => "missed",
        };
        table.add_row([
            mark.case.clone(),
            name(mark.half).to_owned(),
            limit,
            mark.measured.map_or_else(|| "-".to_owned(), shown),
            result.to_owned(),
        ]);
    }
    table
}

fn name(half: Half) -> &'static str {
    match half {
        Half::Dispatch => "dispatch",
        Half::Combine => "combine",
    }
}

fn median(summary: &Summary) -> String {
    format!("{:.1}", summary.median)
}

fn spread(summary: &Summary) -> String {
    format!("{:.1} to {:.1}", summary.p10, summary.p90)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn checked(case: &EpCaseRecord) -> String {
    if let Some(reason) = &case.left_out {
        return format!("left out: {reason}");
    }
    match (case.dispatch.checked, case.combine.checked) {
        (Checked::All, Checked::All) => "everything",
        (Checked::Nothing, _) | (_, Checked::Nothing) => "nothing",
        (Checked::All, Checked::Sample) => "rows; a sample of tokens",
        (Checked::Sample, _) => "samples",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::marks;
    use super::super::record::tests::record;
    use super::*;

    fn assert_has(table: &Table, all: &[&str]) {
        let text = table.to_string();
        for expected in all {
            assert!(text.contains(expected), "no {expected} in\n{text}");
        }
    }

    #[test]
    fn rows_say_what_was_measured_or_why_not() {
        let mut record = record();
        let times = times(&record);
        assert_has(&times, &["30.0", "22.0 to 38.0", "50.0", "100.0", "70.0"]);
        assert_has(&times, &["61.0", "62.0", "133.0"]);
        assert_has(&times, &["rows; a sample of tokens", "left out: no room"]);
        let rates = rates(&record);
        assert_has(
            &rates,
            &["4,800,000", "160.0", "40.0 %", "90.0 %", "50.0 %"],
        );
        record.marks = marks::marks(&record);
        assert_has(&super::marks(&record), &["below 450.0 µs", "not measured"]);
        record.cases[1].speed = record.cases[0].speed.clone();
        record.marks = marks::marks(&record);
        assert_has(
            &super::marks(&record),
            &["met", "missed", "at least 80.0 % of the link", "40.0 %"],
        );
    }
}
