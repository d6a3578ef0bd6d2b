//! `cargo xtask bench`: measurements on a GPU.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tokenyard::options::Format;
use tokenyard::{Device, Routing};

use crate::bench::cases::{Case, Group, cases};
use crate::bench::check::Expected;
use crate::bench::measure::Bench;
use crate::bench::record::{CaseRecord, History, Record, Speed};
use crate::bench::stats::rounded;
use crate::bench::{dump, input, table};
use crate::commands::bench_ep;
use crate::files::{HiddenStates, write_atomically};
use crate::flags::{BenchBackend, BenchFlags, BenchQuantizeFlags, BenchSubject};
use crate::plots::{ThroughputBar, TimeLabels, TimeSeries, throughput, times};
use crate::process::capture;
use crate::report::Report;
use crate::workspace;

/// The emulator takes about a second for so many elements, in all formats.
const EMULATED_ELEMENTS: usize = 1 << 20;

/// Name of the record in the folder of results.
const RECORD_FILE: &str = "quantize.json";

/// Runs the command.
///
/// # Errors
/// No GPU, a device that fails, results that cannot be written, or outputs that are not what the
/// reference says.
pub fn run(flags: BenchFlags, report: Report) -> Result<()> {
    match flags.subject {
        BenchSubject::Quantize(flags) => quantize(&flags, report),
        BenchSubject::Ep(flags) => bench_ep::run(&flags, report),
    }
}

fn quantize(flags: &BenchQuantizeFlags, report: Report) -> Result<()> {
    let device = open(flags.backend)?;
    report.line(format!("Device: {}", device.description()))?;
    let mut wanted = cases(flags.suite, &flags.filter());
    if wanted.is_empty() {
        bail!("no case is left: --suite, --shape, --format and --input exclude each other");
    }
    if device.is_emulator() {
        let all = wanted.len();
        wanted.retain(|case| case.elements() <= EMULATED_ELEMENTS);
        report.line(format!(
            "A trial run: bytes are compared and nothing is measured, in {} of {all} cases; the \
             others are too large to emulate.",
            wanted.len()
        ))?;
        if wanted.is_empty() {
            bail!("every case that is left is too large to emulate");
        }
    }
    let history = match device.is_emulator() {
        true => History::default(),
        false => {
            let folder = flags.records.clone();
            let folder = folder.unwrap_or_else(workspace::bench_records);
            History::read(&folder, device.name())?
        }
    };

    let mut record = Record::new(
        device.name(),
        device.description(),
        device.l2_bytes(),
        flags.rounds(),
    );
    record.driver = driver_version();
    record.commit = workspace::own_commit();
    record.command = command_line();
    let progress = report.progress(wanted.len() as u64);
    let mut rows = InputCache::default();
    for case in &wanted {
        progress.set_message(case.id());
        let result = examine(case, &device, flags, &mut rows, &history)
            .with_context(|| format!("cannot measure {}", case.id()))?;
        record.cases.push(result);
        progress.inc(1);
    }
    progress.finish_and_clear();

    report.table(&table::results(&record))?;
    if !device.is_emulator() {
        let out = flags.out.clone();
        let out = out.unwrap_or_else(|| workspace::default_out().join("bench"));
        for file in write_results(&out, &record)? {
            report.line(format!("Wrote {}", file.display()))?;
        }
    }
    report.document(&record)?;
    let differences: Vec<String> = record
        .cases
        .iter()
        .filter_map(|case| Some(format!("{}: {}", case.id, case.difference.as_ref()?)))
        .collect();
    if !differences.is_empty() {
        bail!(
            "outputs that differ from the reference were not timed:\n{}",
            differences.join("\n")
        );
    }
    Ok(())
}

fn open(backend: BenchBackend) -> Result<Device> {
    match backend {
        BenchBackend::Cuda => Device::cuda(0).context(
            "the benchmark needs a GPU; `--backend emulator` compares bytes and measures nothing",
        ),
        BenchBackend::Emulator => Ok(Device::emulator(0)),
    }
}

/// The rows of the last case: cases with the same ones follow each other.
#[derive(Default)]
struct InputCache {
    last: Option<((usize, usize), HiddenStates)>,
}

impl InputCache {
    fn rows_of(&mut self, case: &Case) -> &HiddenStates {
        let extents = (case.shape.rows, case.shape.columns);
        let fits = |(last, rows): &((usize, usize), HiddenStates)| {
            *last == extents && rows.input_type() == case.input_type
        };
        if !self.last.as_ref().is_some_and(fits) {
            // The old rows go first: together they may not fit.
            self.last = None;
        }
        let make = || {
            let rows = input::hidden_states(extents.0, extents.1, case.input_type);
            (extents, rows)
        };
        &self.last.get_or_insert_with(make).1
    }
}

/// Checks a case, and times it if it passes on a GPU.
fn examine(
    case: &Case,
    device: &Device,
    flags: &BenchQuantizeFlags,
    rows: &mut InputCache,
    history: &History,
) -> Result<CaseRecord> {
    let rows = rows.rows_of(case);
    let routing: Routing = case.shape.routing(case.gather)?;
    let row_tiles = match flags.exact_tiles {
        true => routing.occupied_tiles(),
        false => routing.max_tiles(),
    };
    let sf = vec![tensor_scale(case.format, flags.dump.is_some()); case.shape.experts];
    let mut result = CaseRecord::new(case, &routing, row_tiles);
    let expected = Expected::new(case, rows, &routing, row_tiles, &sf)?;
    let mut bench = Bench::new(device, case, flags.launch(), rows, &routing, row_tiles, &sf)?;
    result.sets = bench.sets();
    result.rows_checked = expected.rows_checked();
    result.difference = bench.check(&expected)?;
    if result.difference.is_some() || device.is_emulator() {
        return Ok(result);
    }
    if let Some(folder) = &flags.dump {
        dump::write(folder, &result, rows, &routing, &bench.output()?)?;
    }
    let samples = bench.measure(flags.rounds())?;
    result.speed = Speed::of(&samples, result.bytes).map(|mut speed| {
        let last = history.last(&result.id);
        speed.against_last = last.map(|last| rounded(last / speed.kernel.median));
        speed
    });
    Ok(result)
}

/// The tensor-wise factor of every expert. For NVFP4 as a calibrated model would choose it, such that
/// the largest value uses the whole range of E4M3 scales times E2M1 elements. 1 for the MX formats, and
/// where other programs that know no such factor are to make the same bytes.
fn tensor_scale(format: Format, plain: bool) -> f32 {
    match format {
        Format::Nvfp4 if !plain => 448.0 * 6.0 / input::LARGEST,
        _ => 1.0,
    }
}

/// Writes the record and the pictures, and returns what was written.
fn write_results(out: &Path, record: &Record) -> Result<Vec<PathBuf>> {
    let path = out.join(RECORD_FILE);
    let mut json = serde_json::to_vec_pretty(record)?;
    json.push(b'\n');
    write_atomically(&path, |file| file.write_all(&json))?;
    let mut files = vec![path];
    let subtitle = format!("{}, {}", record.gpu, record.date);
    let bars = bars(record);
    if !bars.is_empty() {
        let picture = throughput(&bars, &subtitle)?;
        files.extend(picture.write(out, "quantize_throughput")?);
    }
    type Extent = fn(&CaseRecord) -> usize;
    let sweeps: [(Group, &str, &str, Extent, &str); 2] = [
        (
            Group::Rows,
            "Time of a call by rows",
            "Rows",
            |case| case.rows,
            "quantize_rows",
        ),
        (
            Group::Experts,
            "Time of a call by experts",
            "Experts",
            |case| case.experts,
            "quantize_experts",
        ),
    ];
    for (group, title, extent, of, name) in sweeps {
        let series = series(record, group, of);
        if !series.is_empty() {
            let labels = TimeLabels {
                title,
                subtitle: &subtitle,
                extent,
            };
            files.extend(times(&series, labels)?.write(out, name)?);
        }
    }
    Ok(files)
}

/// A bar for each large shape and format.
fn bars(record: &Record) -> Vec<ThroughputBar> {
    let cases = record.cases.iter();
    cases
        .filter(|case| case.group == Group::Prefill)
        .filter_map(|case| {
            let speed = case.speed.as_ref()?;
            // Times of the same bytes.
            let rate = |share: f64| speed.gigabytes_per_second / share;
            Some(ThroughputBar {
                label: format!(
                    "{}\n{} x {}\n{} experts",
                    case.format.to_uppercase(),
                    case.rows,
                    case.columns,
                    case.experts
                ),
                kernel: speed.gigabytes_per_second,
                twin: speed.of_twin.map(rate),
                copy: rate(speed.of_copy),
            })
        })
        .collect()
}

/// A line for each format, one for its twin, and one for the empty kernel where there is one.
fn series(record: &Record, group: Group, extent: fn(&CaseRecord) -> usize) -> Vec<TimeSeries> {
    let points = |format: Option<Format>, time: &dyn Fn(&Speed) -> Option<f64>| {
        let of_format = |case: &&CaseRecord| {
            let format = format.map(Format::name);
            case.group == group && format.is_none_or(|format| case.format == format)
        };
        let cases = record.cases.iter().filter(of_format);
        let mut points: Vec<(f64, f64)> = cases
            .filter_map(|case| Some((extent(case) as f64, time(case.speed.as_ref()?)?)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by_key(|point| point.0);
        points
    };
    let mut series = Vec::new();
    for (color, format) in Format::ALL.into_iter().enumerate() {
        let name = format.name().to_uppercase();
        series.push(TimeSeries {
            name: name.clone(),
            color,
            is_bound: false,
            points: points(Some(format), &|speed| Some(speed.kernel.median)),
        });
        series.push(TimeSeries {
            name: format!("{name}, traffic twin"),
            color,
            is_bound: true,
            points: points(Some(format), &|speed| Some(speed.twin?.median)),
        });
    }
    series.push(TimeSeries {
        name: "empty kernel".to_owned(),
        color: usize::MAX,
        is_bound: true,
        points: points(None, &|speed| Some(speed.empty?.median)),
    });
    series.retain(|series| !series.points.is_empty());
    series
}

/// Release of the GPU's driver, from `nvidia-smi` or the kernel module.
pub(super) fn driver_version() -> Option<String> {
    let query = [
        "--query-gpu=driver_version",
        "--format=csv,noheader",
        "--id=0",
    ];
    if let Ok(text) = capture(Command::new("nvidia-smi").args(query)) {
        return Some(text.trim().to_owned());
    }
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    // NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build ...
    let is_version = |word: &&str| word.split('.').all(|part| part.parse::<u32>().is_ok());
    let word = text.lines().next()?.split_whitespace().find(is_version)?;
    Some(word.to_owned())
}

/// This program's arguments, as one would type them.
pub(super) fn command_line() -> String {
    let mut command = Command::new("xtask");
    command.args(std::env::args_os().skip(1));
    crate::process::shown(&command)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::bench::record::tests::record;
    use crate::flags::{Cli, Command as Parsed};

    fn flags(line: &str) -> BenchQuantizeFlags {
        let Parsed::Bench(flags) = Cli::parse_from(line.split_whitespace()).command else {
            panic!("not bench");
        };
        match flags.subject {
            BenchSubject::Quantize(flags) => flags,
            BenchSubject::Ep(_) => panic!("not quantize"),
        }
    }

    #[test]
    fn a_trial_run_compares_and_measures_nothing() {
        let flags = flags("xtask bench quantize --shape 1x7168 --backend emulator");
        let device = open(flags.backend).unwrap();
        let case = cases(flags.suite, &flags.filter()).remove(0);
        let mut rows = InputCache::default();
        let history = History::default();
        let result = examine(&case, &device, &flags, &mut rows, &history).unwrap();
        assert_eq!((result.difference, result.speed), (None, None));
        assert_eq!((result.rows_checked, result.sets), (1, 2));
        assert_eq!((result.row_tiles, result.occupied_tiles), (2, 1));
    }

    #[test]
    fn suites_that_leave_nothing_are_errors() {
        let report = Report::new(true);
        let error = |line| quantize(&flags(line), report).unwrap_err().to_string();
        let line = "xtask bench quantize --backend emulator --shape no-such-shape";
        assert!(error(line).contains("no case is left"));
        let line = "xtask bench quantize --backend emulator --shape 32768x7168";
        assert!(error(line).contains("too large to emulate"));
    }

    #[test]
    fn results_are_a_record_and_pictures() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = record("2026-12-01T10:00:00Z", "NVIDIA H200", 20.0);
        record.cases.last_mut().unwrap().group = Group::Rows;
        let files = write_results(folder.path(), &record).unwrap();
        let names: Vec<_> = files
            .iter()
            .map(|file| file.file_name().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "quantize.json",
                "quantize_throughput.svg",
                "quantize_throughput.png",
                "quantize_rows.svg",
                "quantize_rows.png"
            ]
        );
        assert_eq!(Record::read(&files[0]).unwrap(), record);
    }

    #[test]
    fn bars_and_lines_come_from_what_was_measured() {
        let mut record = record("2026-12-01T10:00:00Z", "NVIDIA H200", 20.0);
        let bars = bars(&record);
        assert_eq!(bars.len(), 3);
        let (kernel, twin) = (bars[0].kernel, bars[0].twin.unwrap());
        assert!((kernel / twin - 0.96).abs() < 1e-9 && bars[0].copy > twin);
        // Three formats and their twins, and one empty kernel, over four numbers of experts.
        let decode = series(&record, Group::Decode, |case| case.experts);
        assert_eq!(decode.len(), 7);
        assert!(decode.iter().all(|series| series.points.len() == 4));
        assert_eq!(decode[0].points[0], (8.0, 20.0));
        record.cases.iter_mut().for_each(|case| case.speed = None);
        assert!(series(&record, Group::Decode, |case| case.experts).is_empty());
    }
}
