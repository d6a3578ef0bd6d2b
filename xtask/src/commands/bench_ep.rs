//! `cargo xtask bench ep`: tokens to their experts and back, on one GPU or on several.

use anyhow::{Context, Result, ensure};
use clap::Args;
use tokenyard::ep::{CombineFormat, EpError, EpGroup, TokenFormat};
use tokenyard::{Device, DeviceError, EmulatorOptions};

use crate::bench::ep::cases::{Case, EXPERTS, Extents, HIDDEN_SIZE, TOP_K, cases};
use crate::bench::ep::check::Reference;
use crate::bench::ep::marks::marks;
use crate::bench::ep::measure::{Bench, copy_rate};
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

    /// Ranks, a multiple of the GPUs  [default: 8]
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
    let devices = open(flags)?;
    let device = &devices[0];
    report.line(format!(
        "Devices: {} x {}",
        devices.len(),
        device.description()
    ))?;
    let extents = Extents {
        hidden_size: flags.hidden_size,
        top_k: flags.top_k,
        experts: flags.experts,
        ranks: flags.ranks.unwrap_or(RANKS.max(flags.gpus)),
    };
    let mut wanted = cases(&flags.format, &flags.combine, &flags.tokens, extents);
    if device.is_emulator() {
        let all = wanted.len();
        let elements = |case: &Case| case.tokens * extents.ranks * extents.hidden_size;
        wanted.retain(|case| elements(case) <= EMULATED_ELEMENTS);
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
    record.driver = driver_version();
    record.commit = workspace::own_commit();
    record.command = command_line();
    record.attainable = match device.is_emulator() {
        true => None,
        false => Some(attainable(&devices, flags.rounds)?),
    };
    let progress = report.progress(wanted.len() as u64);
    for case in &wanted {
        progress.set_message(case.id());
        let result = examine(case, &devices, flags.rounds, record.attainable)
            .with_context(|| format!("cannot measure {}", case.id()))?;
        record.cases.push(result);
        progress.inc(1);
    }
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
    if !device.is_emulator() {
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

/// Checks a case, and times it if it passes on a GPU.
fn examine(
    case: &Case,
    devices: &[Device],
    samples: usize,
    attainable: Option<Attainable>,
) -> Result<EpCaseRecord> {
    let message_bytes = case.config()?.message_layout().bytes;
    let inputs = case.inputs()?;
    let traffic = Traffic::new(case, &inputs, devices.len(), message_bytes);
    let mut result = EpCaseRecord::new(case, message_bytes, traffic);
    let reference = Reference::new(case, &inputs)?;
    let bench =
        groups(devices, case).and_then(|groups| Bench::new(groups, case, &inputs, &reference));
    let mut bench = match bench {
        Ok(bench) => bench,
        Err(error) if is_out_of_memory(&error) => {
            result.left_out = Some(format!("{error:#}"));
            return Ok(result);
        }
        Err(error) => return Err(error),
    };
    bench.check()?;
    result.dispatch.checked = reference.dispatch_checked();
    result.combine.checked = reference.combine_checked();
    if let Some(attainable) = attainable {
        let samples = bench.measure(samples)?;
        result.speed = EpSpeed::of(&samples, traffic, attainable);
    }
    Ok(result)
}

/// The group of a case on devices that reach each other, or on one.
fn groups(devices: &[Device], case: &Case) -> Result<Vec<EpGroup>> {
    let config = case.config()?;
    Ok(match devices {
        // No receipts where one host orders everything.
        [device] => vec![EpGroup::new(device, config)?],
        devices => EpGroup::across(devices, config)?,
    })
}

/// Whether there is too little memory for a case. That is no fault of the case: with all ranks on one GPU, the
/// largest take more than any has.
fn is_out_of_memory(error: &anyhow::Error) -> bool {
    let of_device = |error: &DeviceError| matches!(error, DeviceError::OutOfMemory { .. });
    error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(of_device)
            || matches!(cause.downcast_ref(), Some(EpError::Device(error)) if of_device(error))
    })
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

    #[test]
    fn a_trial_run_compares_everything_on_one_device_and_on_several() {
        for gpus in [1, 2] {
            let flags = flags(&format!(
                "xtask bench ep --backend emulator --gpus {gpus} --ranks 2 --tokens 3 --hidden-size 256 --top-k 2 \
                 --experts 4 --combine bf16,mxfp8,nvfp4"
            ));
            let devices = open(&flags).unwrap();
            let extents = Extents {
                hidden_size: 256,
                top_k: 2,
                experts: 4,
                ranks: 2,
            };
            let cases = cases(&flags.format, &flags.combine, &flags.tokens, extents);
            assert_eq!(cases.len(), 3 * TokenFormat::ALL.len());
            for case in cases {
                let result = examine(&case, &devices, 1, None).unwrap();
                let checked = [result.dispatch.checked, result.combine.checked];
                assert_eq!(checked, [Checked::All; 2]);
                assert_eq!((result.left_out, result.speed), (None, None));
            }
        }
    }

    #[test]
    fn what_is_too_large_to_emulate_is_an_error() {
        let flags = flags("xtask bench ep --backend emulator --tokens 4096");
        let error = run(&flags, Report::new(true)).unwrap_err().to_string();
        assert!(error.contains("too large to emulate"), "{error}");
    }
}
