//! Records of runs: what is written, and what earlier ones are compared by.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::cases::{Case, Group, Mark};
use super::measure::Samples;
use super::stats::{Summary, gigabytes_per_second, median_ratio};

/// The layout of [`Record`]; another one is refused.
const SCHEMA: u32 = 1;

/// One run of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `quantize`.
    pub benchmark: String,
    /// When it began, RFC 3339, UTC.
    pub date: String,
    /// Name of the GPU.
    pub gpu: String,
    /// Version of the GPU's driver, where it could be found out.
    pub driver: Option<String>,
    /// What ran the kernels, in a line: compute capability, machine code or PTX.
    pub device: String,
    /// Bytes of the L2 cache.
    pub l2_bytes: usize,
    /// The commit that was built, with `-dirty` if there were changes, where it is known.
    pub commit: Option<String>,
    /// The command line.
    pub command: String,
    /// Rounds of each case.
    pub rounds: usize,
    /// The cases, in the order in which they ran.
    pub cases: Vec<CaseRecord>,
}

/// One case of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseRecord {
    /// Its name, the same in every run.
    pub id: String,
    /// The part of a suite that it belongs to.
    pub group: Group,
    /// The output format.
    pub format: String,
    /// Name of the shape.
    pub shape: String,
    /// R.
    pub rows: usize,
    /// K.
    pub columns: usize,
    /// E.
    pub experts: usize,
    /// The input type.
    pub input: String,
    /// Rounding of E8M0 scales.
    pub scale_rounding: String,
    /// Whether rows are gathered.
    pub gather: bool,
    /// Row tiles of the scales tensor (Mt).
    pub row_tiles: usize,
    /// Row tiles that hold rows; the others are left alone.
    pub occupied_tiles: usize,
    /// Bytes that must be moved, padded scales included.
    pub bytes: u64,
    /// Buffer sets that launches rotate over.
    pub sets: usize,
    /// Rows of each set that were compared with the reference beforehand.
    pub rows_checked: usize,
    /// What is wrong with the output, if anything is. There is no speed then.
    pub difference: Option<String>,
    /// What was measured; nothing on an emulator.
    pub speed: Option<Speed>,
    /// What the case has to reach.
    pub mark: Option<Mark>,
}

/// What was measured of a case. Times are microseconds of one launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Launches in one replay of a graph, over which a time is the mean.
    pub launches: usize,
    /// The quantizer.
    pub kernel: Summary,
    /// Its traffic twin.
    pub twin: Option<Summary>,
    /// A plain copy of as many bytes.
    pub copy: Summary,
    /// An empty kernel.
    pub empty: Option<Summary>,
    /// Bytes of the case in the quantizer's median time, in GB/s.
    pub gigabytes_per_second: f64,
    /// The twin's time over the quantizer's, median of the rounds.
    pub of_twin: Option<f64>,
    /// The copy's time over the quantizer's, median of the rounds.
    pub of_copy: f64,
    /// The quantizer's time over an empty kernel's, median of the rounds.
    pub times_empty: Option<f64>,
    /// The time in the last recorded run over the time now: above 1 is faster.
    pub against_last: Option<f64>,
}

impl Speed {
    /// Of the rounds of a case that moves so many bytes; `None` without a round.
    pub fn of(samples: &Samples, bytes: u64) -> Option<Self> {
        let kernel = Summary::of(&samples.kernel)?;
        Some(Self {
            launches: samples.launches,
            kernel,
            twin: Summary::of(&samples.twin),
            copy: Summary::of(&samples.copy)?,
            empty: Summary::of(&samples.empty),
            gigabytes_per_second: gigabytes_per_second(bytes, kernel.median),
            of_twin: median_ratio(&samples.twin, &samples.kernel),
            of_copy: median_ratio(&samples.copy, &samples.kernel)?,
            times_empty: median_ratio(&samples.kernel, &samples.empty),
            against_last: None,
        })
    }

    /// Whether a mark is met; `None` where what it compares with was not measured.
    pub fn meets(&self, mark: Mark) -> Option<bool> {
        match mark {
            Mark::OfTwin(share) => Some(self.of_twin? >= share),
            Mark::Latency { twin, empty } => {
                Some(1.0 / self.of_twin? <= twin && self.times_empty? < empty)
            }
        }
    }
}

impl CaseRecord {
    /// What is known of a case before it has run.
    pub fn new(case: &Case, routing: &tokenyard::Routing, row_tiles: usize) -> Self {
        Self {
            id: case.id(),
            group: case.group,
            format: case.format.name().to_owned(),
            shape: case.shape.to_string(),
            rows: case.shape.rows,
            columns: case.shape.columns,
            experts: case.shape.experts,
            input: case.input_type.name().to_owned(),
            scale_rounding: case.rounding.name().to_owned(),
            gather: case.gather,
            row_tiles,
            occupied_tiles: routing.occupied_tiles(),
            bytes: case.bytes(routing),
            sets: 0,
            rows_checked: 0,
            difference: None,
            speed: None,
            mark: case.mark,
        }
    }
}

impl Record {
    /// A run that begins now, without cases.
    pub fn new(gpu: &str, device: String, l2_bytes: usize, rounds: usize) -> Self {
        let now = std::time::SystemTime::now();
        Self {
            schema: SCHEMA,
            benchmark: "quantize".to_owned(),
            date: humantime::format_rfc3339_seconds(now).to_string(),
            gpu: gpu.to_owned(),
            driver: None,
            device,
            l2_bytes,
            commit: None,
            command: String::new(),
            rounds,
            cases: Vec::new(),
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// A file that is missing, malformed, or of another layout.
    pub fn read(path: &Path) -> Result<Self> {
        let reading = || format!("cannot read the record {}", path.display());
        let text = fs::read_to_string(path).with_context(reading)?;
        let record: Self = serde_json::from_str(&text).with_context(reading)?;
        if record.schema != SCHEMA {
            bail!(
                "{} has layout {}, this program reads layout {SCHEMA}",
                path.display(),
                record.schema
            );
        }
        Ok(record)
    }
}

/// Earlier runs on one kind of GPU, the latest first.
#[derive(Debug, Default)]
pub struct History {
    records: Vec<Record>,
}

impl History {
    /// Every record in a folder; a folder that is missing has none.
    ///
    /// # Errors
    /// A file that ends in `.json` and is no record.
    pub fn read(folder: &Path, gpu: &str) -> Result<Self> {
        let mut paths: Vec<PathBuf> = match fs::read_dir(folder) {
            Ok(entries) => entries
                .map(|entry| Ok(entry?.path()))
                .collect::<std::io::Result<_>>()?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).context(format!("cannot list {}", folder.display())),
        };
        paths.retain(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        });
        let records = paths
            .iter()
            .map(|path| Record::read(path))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self::of(records, gpu))
    }

    /// Of these records, those of one kind of GPU.
    pub fn of(mut records: Vec<Record>, gpu: &str) -> Self {
        records.retain(|record| record.gpu == gpu);
        // RFC 3339 in UTC sorts by time.
        records.sort_by(|a, b| b.date.cmp(&a.date));
        Self { records }
    }

    /// The quantizer's median time, in microseconds, when a case was last measured.
    pub fn last(&self, id: &str) -> Option<f64> {
        self.records
            .iter()
            .flat_map(|record| &record.cases)
            .find_map(|case| (case.id == id).then_some(case.speed.as_ref()?.kernel.median))
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::cases::{Filter, Suite, cases};
    use super::*;

    /// A record of the marks with made-up times.
    pub fn record(date: &str, gpu: &str, microseconds: f64) -> Record {
        let mut record = Record::new(gpu, "made up".to_owned(), 50 << 20, 3);
        record.date = date.to_owned();
        let filter = Filter {
            shapes: vec!["192x4096".to_owned(), "8192x2880".to_owned()],
            ..Filter::default()
        };
        record.cases = cases(Suite::Marks, &filter)
            .iter()
            .map(|case| {
                let routing = case.shape.routing(false).unwrap();
                let mut result = CaseRecord::new(case, &routing, routing.max_tiles());
                let samples = Samples {
                    kernel: vec![microseconds; 3],
                    twin: vec![0.96 * microseconds; 3],
                    copy: vec![0.9 * microseconds; 3],
                    empty: match case.is_latency() {
                        true => vec![0.6 * microseconds; 3],
                        false => Vec::new(),
                    },
                    launches: 100,
                };
                result.speed = Speed::of(&samples, result.bytes);
                result
            })
            .collect();
        record
    }

    #[test]
    fn records_survive_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let written = record("2026-12-01T10:00:00Z", "NVIDIA H200", 20.0);
        fs::write(&path, serde_json::to_vec_pretty(&written).unwrap()).unwrap();
        assert_eq!(Record::read(&path).unwrap(), written);

        let other = Record {
            schema: 99,
            ..written
        };
        fs::write(&path, serde_json::to_vec(&other).unwrap()).unwrap();
        let error = Record::read(&path).unwrap_err().to_string();
        assert!(error.contains("layout 99"), "{error}");
        fs::write(&path, "{}").unwrap();
        assert!(Record::read(&path).is_err());
    }

    #[test]
    fn the_latest_record_of_the_same_gpu_with_the_case_counts() {
        let mut latest = record("2026-12-03T10:00:00Z", "NVIDIA H200", 15.0);
        let missing = latest.cases.remove(0).id;
        let present = latest.cases[0].id.clone();
        let history = History::of(
            vec![
                record("2026-12-01T10:00:00Z", "NVIDIA H200", 25.0),
                latest,
                record("2026-12-02T10:00:00Z", "NVIDIA H200", 20.0),
                record("2026-12-09T10:00:00Z", "NVIDIA B200", 5.0),
            ],
            "NVIDIA H200",
        );
        assert_eq!(history.last(&present), Some(15.0));
        assert_eq!(history.last(&missing), Some(20.0));
        assert_eq!(history.last("no such case"), None);
    }

    #[test]
    fn a_folder_without_records_is_no_error_but_a_broken_record_is() {
        let folder = tempfile::tempdir().unwrap();
        let read = |path: &Path| History::read(path, "NVIDIA H200");
        assert!(
            read(&folder.path().join("none"))
                .unwrap()
                .records
                .is_empty()
        );
        fs::write(folder.path().join("README.md"), "text").unwrap();
        assert!(read(folder.path()).unwrap().records.is_empty());
        fs::write(folder.path().join("x.json"), "[1]").unwrap();
        let error = format!("{:#}", read(folder.path()).unwrap_err());
        assert!(error.contains("x.json"), "{error}");
    }

    #[test]
    fn marks_are_held_against_what_was_measured() {
        let record = record("2026-12-01T10:00:00Z", "NVIDIA H200", 10.0);
        let speed = |group| {
            let case = record.cases.iter().find(|case| case.group == group);
            case.unwrap().speed.clone().unwrap()
        };
        let prefill = speed(Group::Prefill);
        assert!((prefill.of_twin.unwrap() - 0.96).abs() < 1e-12);
        assert_eq!(prefill.meets(Mark::OfTwin(0.95)), Some(true));
        assert_eq!(prefill.meets(Mark::OfTwin(0.97)), Some(false));
        let latency = |twin, empty| Mark::Latency { twin, empty };
        assert_eq!(prefill.meets(latency(1.15, 2.0)), None);
        let decode = speed(Group::Decode);
        assert_eq!(decode.meets(latency(1.15, 2.0)), Some(true));
        assert_eq!(decode.meets(latency(1.02, 2.0)), Some(false));
        assert_eq!(decode.meets(latency(1.15, 1.5)), Some(false));
    }

    #[test]
    fn speed_is_bytes_over_the_median() {
        let samples = Samples {
            kernel: vec![10.0, 30.0, 20.0],
            copy: vec![10.0, 30.0, 20.0],
            launches: 7,
            ..Samples::default()
        };
        let speed = Speed::of(&samples, 40_000_000).unwrap();
        assert_eq!(speed.gigabytes_per_second, 2000.0);
        assert_eq!((speed.of_copy, speed.of_twin), (1.0, None));
        assert_eq!(Speed::of(&Samples::default(), 1), None);
    }
}
