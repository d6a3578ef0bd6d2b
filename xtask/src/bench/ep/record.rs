//! What a run came to: a record, and a table.

use comfy_table::Table;
use serde::{Deserialize, Serialize};

use super::cases::{Case, Extents};
use super::measure::Samples;
use crate::bench::stats::{Summary, gigabytes_per_second, rounded};
use crate::report;

/// The layout of [`EpRecord`].
const SCHEMA: u32 = 1;

/// One run of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpRecord {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `ep`.
    pub benchmark: String,
    /// When it began, RFC 3339, UTC.
    pub date: String,
    /// Name of the GPUs.
    pub gpu: String,
    /// How many there were. With one, all ranks are on it, and nothing passes a link.
    pub gpus: usize,
    /// Version of the GPUs' driver, where it could be found out.
    pub driver: Option<String>,
    /// What ran the kernels, in a line.
    pub device: String,
    /// The commit that was built, where it is known.
    pub commit: Option<String>,
    /// The command line.
    pub command: String,
    /// Samples of each case.
    pub rounds: usize,
    /// What all cases have in common.
    pub extents: Extents,
    /// Bytes a second, in GB/s, of a plain copy from every GPU to the next one, all at a time: what the path between
    /// GPUs allows a kernel. With one GPU it is a copy within its memory. Nothing on an emulator.
    pub attainable_gb_per_second: Option<f64>,
    /// The cases, in the order in which they ran.
    pub cases: Vec<EpCaseRecord>,
}

/// One case of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpCaseRecord {
    /// Its name, the same in every run.
    pub id: String,
    /// The format on the wire.
    pub format: String,
    /// Tokens of each rank.
    pub tokens: usize,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Bytes that the busiest GPU sends to others in a round; with one GPU, all that ranks send to other ranks.
    pub bytes: u64,
    /// What was held to the reference beforehand.
    pub checked: Checked,
    /// Why the case did not run.
    pub left_out: Option<String>,
    /// What was measured; nothing on an emulator.
    pub speed: Option<EpSpeed>,
}

/// How much of a case was held to the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checked {
    /// Nothing: it did not run.
    Nothing,
    /// How many rows there are of each expert and source.
    Rows,
    /// Every byte.
    Bytes,
}

/// What was measured of a case: microseconds of one round, of the slowest GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpSpeed {
    /// Rounds in a graph, over which a time is the mean.
    pub rounds_per_sample: usize,
    /// One launch sends and receives.
    pub fused: Summary,
    /// A launch that sends, and one that receives.
    pub split: Summary,
    /// Bytes of the case in the fused median, in GB/s.
    pub gigabytes_per_second: f64,
    /// The same as a share of what is attainable.
    pub of_attainable: f64,
}

impl EpSpeed {
    /// Of the samples of a case; `None` without one.
    pub fn of(samples: &Samples, bytes: u64, attainable: f64) -> Option<Self> {
        let fused = Summary::of(&samples.fused)?;
        let rate = gigabytes_per_second(bytes, fused.median);
        Some(Self {
            rounds_per_sample: samples.rounds_per_sample,
            fused,
            split: Summary::of(&samples.split)?,
            gigabytes_per_second: rate,
            of_attainable: rounded(rate / attainable),
        })
    }
}

impl EpCaseRecord {
    /// What is known of a case before it has run.
    pub fn new(case: &Case, message_bytes: u32, bytes: u64) -> Self {
        Self {
            id: case.id(),
            format: case.format.name().to_owned(),
            tokens: case.tokens,
            message_bytes,
            bytes,
            checked: Checked::Nothing,
            left_out: None,
            speed: None,
        }
    }
}

impl EpRecord {
    /// A run that begins now, without cases.
    pub fn new(gpu: &str, device: String, gpus: usize, rounds: usize, extents: Extents) -> Self {
        let now = std::time::SystemTime::now();
        Self {
            schema: SCHEMA,
            benchmark: "ep".to_owned(),
            date: humantime::format_rfc3339_seconds(now).to_string(),
            gpu: gpu.to_owned(),
            gpus,
            driver: None,
            device,
            commit: None,
            command: String::new(),
            rounds,
            extents,
            attainable_gb_per_second: None,
            cases: Vec::new(),
        }
    }

    /// One row a case.
    pub fn table(&self) -> Table {
        let titles = [
            "Case",
            "Bytes",
            "Fused µs",
            "p10 to p90",
            "Split µs",
            "GB/s",
            "of attainable",
            "Checked",
        ];
        let mut table = report::table(titles, 1);
        for case in &self.cases {
            table.add_row(row(case));
        }
        table
    }
}

fn row(case: &EpCaseRecord) -> [String; 8] {
    let mut row = std::array::from_fn(|_| "-".to_owned());
    row[0] = case.id.clone();
    row[1] = report::grouped(case.bytes);
    row[7] = match (&case.left_out, case.checked) {
        (Some(reason), _) => format!("left out: {reason}"),
        (None, Checked::Nothing) => "nothing".to_owned(),
        (None, Checked::Rows) => "rows".to_owned(),
        (None, Checked::Bytes) => "every byte".to_owned(),
    };
    let Some(speed) = &case.speed else {
        return row;
    };
    row[2] = format!("{:.1}", speed.fused.median);
    row[3] = format!("{:.1} to {:.1}", speed.fused.p10, speed.fused.p90);
    row[4] = format!("{:.1}", speed.split.median);
    row[5] = format!("{:.1}", speed.gigabytes_per_second);
    row[6] = format!("{:.1} %", 100.0 * speed.of_attainable);
    row
}

#[cfg(test)]
mod tests {
    use super::super::cases::cases;
    use super::*;
    use tokenyard::ep::TokenFormat;

    #[test]
    fn a_row_says_what_was_measured_or_why_not() {
        let extents = Extents {
            hidden_size: 7168,
            top_k: 8,
            experts: 256,
            ranks: 8,
        };
        let mut record = EpRecord::new("NVIDIA H200", "made up".to_owned(), 8, 3, extents);
        let cases = cases(&[TokenFormat::Mxfp8], &[128, 4096], extents);
        record.cases = cases
            .iter()
            .map(|case| EpCaseRecord::new(case, 7408, 4_000_000))
            .collect();
        let samples = Samples {
            fused: vec![20.0, 40.0, 30.0],
            split: vec![50.0; 3],
            rounds_per_sample: 10,
        };
        record.cases[0].checked = Checked::Bytes;
        record.cases[0].speed = EpSpeed::of(&samples, 4_000_000, 400.0);
        record.cases[1].left_out = Some("no room".to_owned());
        let text = record.table().to_string();
        for expected in [
            "30.0",
            "22.0 to 38.0",
            "50.0",
            "133.3",
            "33.3 %",
            "every byte",
        ] {
            assert!(text.contains(expected), "no {expected} in\n{text}");
        }
        assert!(text.contains("left out: no room"), "{text}");
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<EpRecord>(&json).unwrap(), record);
    }
}
