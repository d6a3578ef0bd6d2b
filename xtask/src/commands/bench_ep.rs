//! `cargo xtask bench ep`: tokens to their experts and back, on one GPU or on several.

use std::io::{self, Write};

use anyhow::{Context, Result, ensure};
use clap::Args;
use tokenyard::ep::{CombineFormat, TokenFormat};
use tokenyard::{Device, EmulatorOptions};

use crate::bench::ep::cases::{Case, EXPERTS, Extents, HIDDEN_SIZE, TOP_K, cases};
use crate::bench::ep::marks::marks;
use crate::bench::ep::measure::copy_rate;
use crate::bench::ep::outcome::{Outcome, Place};
use crate::bench::ep::processes::{Orders, Processes};
use crate::bench::ep::record::{Attainable, EpCaseRecord, EpRecord, EpSpeed};
use crate::bench::ep::table;
use crate::bench::ep::traffic::Traffic;
use crate::bench::stats::rounded;
use crate::commands::bench::{command_line, driver_version};
use crate::files::write_atomically;
use crate::flags::{BenchBackend, combine_format_parser, token_format_parser};
use crate::report::Report;
use crate::workspace;

/// Ranks unless told, and unless there are more GPUs.
const RANKS: usize = 8;

/// Name of the record in the folder of results.
const RECORD_FILE: &str = "ep.json";

/// Elements of all ranks' tokens that the emulator dispatches in a few seconds.
const EMULATED_ELEMENTS: usize = 1 << 16;

/// Time expert-parallel dispatch and combine, on one GPU or on several
///
/// The shapes are those that others publish: 8 ranks, 256 experts, 8 for each token, rows of 7168, and
/// 16 to 4096 tokens for each rank, unless told otherwise. Each case is held to the reference first:
/// everything or, where there is much, a sample of the tokens. Then dispatch, its combine with router
/// weights, and both together are timed, fused and split; times are of the slowest GPU.
///
/// Rates are of the bytes that the busiest GPU has on its link, held against a plain copy from each GPU
/// to the next, and of those that it reads and writes in its memory, held against a plain copy there.
/// With one GPU all ranks are on it, and there is no link. With more, the table of marks says what was
/// reached. benches/README.md has the definitions.
///
/// The folder of results gets ep.json.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct BenchEpFlags {
    /// GPUs; there must be a path between every two
    #[arg(long, default_value_t = 1, value_parser = positive(), value_name = "N")]
    pub gpus: usize,

    /// A process for each GPU, which has one rank, in place of one process for all
    #[arg(long)]
    pub processes: bool,

    /// Ranks, a multiple of the GPUs  [default: 8, or one for each process]
    #[arg(long, value_parser = positive(), value_name = "R")]
    pub ranks: Option<usize>,

    /// Tokens of each rank; repeatable  [default: 16 to 4096 in powers of two]
    #[arg(long, value_parser = positive(), value_name = "T")]
    pub tokens: Vec<usize>,

    /// Only this format; repeatable
    #[arg(long, value_parser = token_format_parser(), value_name = "FORMAT")]
    pub format: Vec<TokenFormat>,

    /// Formats of the way home  [default: bf16]
    #[arg(long, value_delimiter = ',', value_parser = combine_format_parser(), value_name = "FORMAT,..")]
    pub combine: Vec<CombineFormat>,

    /// Elements of a token
    #[arg(long, default_value_t = HIDDEN_SIZE, value_parser = positive(), value_name = "H")]
    pub hidden_size: usize,

    /// Experts of a token
    #[arg(long, default_value_t = TOP_K, value_parser = positive(), value_name = "K")]
    pub top_k: usize,

    /// Experts of all ranks
    #[arg(long, default_value_t = EXPERTS, value_parser = positive(), value_name = "E")]
    pub experts: usize,

    /// Samples of each case
    #[arg(long, default_value_t = 40, value_parser = positive(), value_name = "N")]
    pub rounds: usize,

    /// Where the kernels run
    #[arg(long, value_enum, default_value_t, value_name = "BACKEND")]
    pub backend: BenchBackend,

    /// Folder of results; made if missing  [default: out/bench]
    #[arg(long, value_name = "DIR")]
    pub out: Option<std::path::PathBuf>,

    /// What this process is, if it is one of those of `--processes`
    #[arg(long, hide = true, value_parser = orders)]
    pub as_process: Option<Orders>,
}

fn orders(json: &str) -> Result<Orders, serde_json::Error> {
    serde_json::from_str(json)
}

fn positive() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u32)
        .range(1..)
        .map(|number| number as usize)
}

/// Runs the command.
///
/// # Errors
/// Too few GPUs, no path between two of them, a device that fails, results that cannot be written, or outputs that
/// are not what the reference says.
pub fn run(flags: &BenchEpFlags, report: Report) -> Result<()> {
    let extents = extents(flags)?;
    let wanted = cases(&flags.format, &flags.combine, &flags.tokens, extents);
    let all = wanted.len();
    let wanted = runnable(flags, wanted);
    if let Some(orders) = &flags.as_process {
        return take_part(flags, &wanted, orders, &mut io::stdout().lock());
    }
    let devices = open(flags)?;
    let device = &devices[0];
    let how = match flags.processes {
        true => ", a process each",
        false => "",
    };
    report.line(format!(
        "Devices: {} x {}{how}",
        devices.len(),
        device.description()
    ))?;
    if device.is_emulator() {
        report.line(format!(
            "A trial run: outputs are compared and nothing is measured, in {} of {all} cases; the others are too \
             large to emulate.",
            wanted.len()
        ))?;
        ensure!(!wanted.is_empty(), "every case is too large to emulate");
    }

    let mut record = EpRecord::new(
        device.name(),
        device.description(),
        devices.len(),
        flags.rounds,
        extents,
    );
    record.processes = flags.processes;
    record.driver = driver_version();
    record.commit = workspace::own_commit();
    record.command = command_line();
    record.attainable = match device.is_emulator() {
        true => None,
        false => Some(attainable(&devices, flags.rounds)?),
    };
    let mut ranks = Ranks::start(flags, devices)?;
    let progress = report.progress(wanted.len() as u64);
    for case in &wanted {
        progress.set_message(case.id());
        let result = examine(case, &mut ranks, flags, record.attainable)
            .with_context(|| format!("cannot measure {}", case.id()))?;
        record.cases.push(result);
        progress.inc(1);
    }
    ranks.finish()?;
    progress.finish_and_clear();
    record.marks = marks(&record);

    if let Some(attainable) = record.attainable {
        let link = attainable.link_gb_per_second;
        let link = link.map(|rate| format!(" to the next GPU {rate:.1} GB/s,"));
        report.line(format!(
            "Attainable by a plain copy:{} within memory {:.1} GB/s read and written",
            link.unwrap_or_default(),
            attainable.memory_gb_per_second
        ))?;
    }
    report.table(&table::times(&record))?;
    report.table(&table::rates(&record))?;
    if !record.marks.is_empty() {
        report.table(&table::marks(&record))?;
    }
    if flags.backend == BenchBackend::Cuda {
        let out = flags.out.clone();
        let out = out.unwrap_or_else(|| workspace::default_out().join("bench"));
        let path = out.join(RECORD_FILE);
        let mut json = serde_json::to_vec_pretty(&record)?;
        json.push(b'\n');
        write_atomically(&path, |file| file.write_all(&json))?;
        report.line(format!("Wrote {}", path.display()))?;
    }
    report.document(&record)
}

fn open(flags: &BenchEpFlags) -> Result<Vec<Device>> {
    match flags.backend {
        BenchBackend::Emulator => Ok(Device::emulated_node(
            flags.gpus,
            EmulatorOptions::default(),
        )),
        BenchBackend::Cuda => {
            let gpus = (0..flags.gpus as u32).map(Device::cuda);
            gpus.collect::<Result<_, _>>().context(
                "the benchmark needs as many GPUs as --gpus says; `--backend emulator` compares and measures nothing",
            )
        }
    }
}

/// What plain copies attain.
fn attainable(devices: &[Device], samples: usize) -> Result<Attainable> {
    let gigabytes = |rate: f64| rounded(rate / 1e9);
    let link = match devices {
        [_] => None,
        several => Some(gigabytes(copy_rate(several, samples)?)),
    };
    Ok(Attainable {
        link_gb_per_second: link,
        // What is copied is read and written.
        memory_gb_per_second: gigabytes(2.0 * copy_rate(&devices[..1], samples)?),
    })
}

/// Extents of all cases.
fn extents(flags: &BenchEpFlags) -> Result<Extents> {
    let usual = match flags.processes {
        true => flags.gpus,
        false => RANKS.max(flags.gpus),
    };
    let ranks = flags.ranks.unwrap_or(usual);
    ensure!(
        !flags.processes || ranks == flags.gpus,
        "--processes has one rank on each of {} GPUs, not {ranks} ranks",
        flags.gpus
    );
    Ok(Extents {
        hidden_size: flags.hidden_size,
        top_k: flags.top_k,
        experts: flags.experts,
        ranks,
    })
}

/// The cases that are not too large for where they are to run.
fn runnable(flags: &BenchEpFlags, cases: Vec<Case>) -> Vec<Case> {
    let elements = |case: &Case| case.tokens * case.extents.ranks * case.extents.hidden_size;
    let runs = |case: &Case| {
        flags.backend != BenchBackend::Emulator || elements(case) <= EMULATED_ELEMENTS
    };
    cases.into_iter().filter(runs).collect()
}

/// Samples to take of a case; none in the emulator.
fn samples(flags: &BenchEpFlags) -> Option<usize> {
    (flags.backend == BenchBackend::Cuda).then_some(flags.rounds)
}

/// Who runs the cases.
enum Ranks {
    Here(Place),
    Processes(Processes),
}

impl Ranks {
    fn start(flags: &BenchEpFlags, devices: Vec<Device>) -> Result<Self> {
        Ok(match flags.processes {
            // The devices are left to the processes.
            true => Self::Processes(Processes::start(flags.gpus)?),
            false => Self::Here(Place::Devices(devices)),
        })
    }

    fn outcome(&mut self, case: &Case, flags: &BenchEpFlags) -> Result<Outcome> {
        match self {
            Self::Here(place) => Outcome::of(case, place, samples(flags)),
            Self::Processes(processes) => Outcome::of_all(processes.next()?),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Here(_) => Ok(()),
            Self::Processes(processes) => processes.finish(),
        }
    }
}

/// Has a case run, and records what came of it.
fn examine(
    case: &Case,
    ranks: &mut Ranks,
    flags: &BenchEpFlags,
    attainable: Option<Attainable>,
) -> Result<EpCaseRecord> {
    let message_bytes = case.config()?.message_layout().bytes;
    let traffic = Traffic::new(case, &case.routing()?, flags.gpus, message_bytes);
    let outcome = ranks.outcome(case, flags)?;
    let mut result = EpCaseRecord::new(case, message_bytes, traffic);
    result.dispatch.checked = outcome.dispatch_checked;
    result.combine.checked = outcome.combine_checked;
    result.left_out = outcome.left_out;
    if let (Some(samples), Some(attainable)) = (outcome.samples, attainable) {
        result.speed = EpSpeed::of(&samples, traffic, attainable);
    }
    Ok(result)
}

/// Runs the cases as one of several processes, and writes what came of each, a line of JSON.
fn take_part(
    flags: &BenchEpFlags,
    cases: &[Case],
    orders: &Orders,
    out: &mut impl Write,
) -> Result<()> {
    let Orders { rank, path } = orders.clone();
    let device = match flags.backend {
        BenchBackend::Emulator => Device::emulator(rank as u64),
        BenchBackend::Cuda => Device::cuda(rank as u32)?,
    };
    let place = Place::Process { device, path, rank };
    for case in cases {
        let outcome = Outcome::of(case, &place, samples(flags))
            .with_context(|| format!("rank {rank}, {}", case.id()))?;
        writeln!(out, "{}", serde_json::to_string(&outcome)?)?;
        out.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::bench::ep::record::Checked;
    use crate::flags::{BenchSubject, Cli, Command};

    fn flags(line: &str) -> BenchEpFlags {
        let Command::Bench(flags) = Cli::parse_from(line.split_whitespace()).command else {
            panic!("not bench");
        };
        match flags.subject {
            BenchSubject::Ep(flags) => flags,
            BenchSubject::Quantize(_) => panic!("not ep"),
        }
    }

    const SMALL: &str = "xtask bench ep --backend emulator --ranks 2 --tokens 3 --hidden-size 256 --top-k 2 \
                         --experts 4 --combine bf16,mxfp8,nvfp4";

    #[test]
    fn a_trial_run_compares_everything_on_one_device_and_on_several() {
        for gpus in [1, 2] {
            let flags = flags(&format!("{SMALL} --gpus {gpus}"));
            let extents = extents(&flags).unwrap();
            let cases = cases(&flags.format, &flags.combine, &flags.tokens, extents);
            assert_eq!(cases.len(), 3 * TokenFormat::ALL.len());
            let mut ranks = Ranks::start(&flags, open(&flags).unwrap()).unwrap();
            for case in cases {
                let result = examine(&case, &mut ranks, &flags, None).unwrap();
                let checked = [result.dispatch.checked, result.combine.checked];
                assert_eq!(checked, [Checked::All; 2]);
                assert_eq!((result.left_out, result.speed), (None, None));
            }
            ranks.finish().unwrap();
        }
    }

    #[test]
    fn processes_say_what_came_of_each_case() {
        let folder = tempfile::tempdir().unwrap();
        let orders = |rank| Orders {
            rank,
            path: folder.path().join("meeting"),
        };
        let said = [0, 1].map(|rank| {
            let orders = serde_json::to_string(&orders(rank)).unwrap();
            let flags = flags(&format!(
                "{SMALL} --gpus 2 --processes --as-process {orders}"
            ));
            let cases = cases(
                &flags.format,
                &flags.combine,
                &flags.tokens,
                extents(&flags).unwrap(),
            );
            std::thread::spawn(move || {
                let (mut out, orders) = (Vec::new(), flags.as_process.clone().unwrap());
                take_part(&flags, &cases[..2], &orders, &mut out).unwrap();
                String::from_utf8(out).unwrap()
            })
        });
        for said in said.map(|thread| thread.join().unwrap()) {
            let outcomes = said.lines().map(serde_json::from_str::<Outcome>);
            let outcomes: Vec<_> = outcomes.collect::<Result<_, _>>().unwrap();
            assert_eq!(outcomes.len(), 2);
            assert!(outcomes.iter().all(|it| it.combine_checked == Checked::All));
        }
    }

    #[test]
    fn a_process_has_one_rank() {
        let ranks = |line: &str| extents(&flags(line)).map(|extents| extents.ranks);
        assert_eq!(ranks("xtask bench ep --gpus 2 --processes").unwrap(), 2);
        assert_eq!(ranks("xtask bench ep --gpus 2").unwrap(), 8);
        assert_eq!(ranks("xtask bench ep --gpus 16").unwrap(), 16);
        let error = ranks("xtask bench ep --gpus 2 --processes --ranks 8").unwrap_err();
        assert!(error.to_string().contains("not 8 ranks"), "{error}");
    }

    #[test]
    fn what_is_too_large_to_emulate_is_an_error() {
        let flags = flags("xtask bench ep --backend emulator --tokens 4096");
        let error = run(&flags, Report::new(true)).unwrap_err().to_string();
        assert!(error.contains("too large to emulate"), "{error}");
    }
}
