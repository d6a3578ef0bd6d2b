//! One file per command.

mod bench;
pub mod bench_ep;
mod ci;
mod dequantize;
mod dispatch;
mod doctor;
mod exchange;
mod gpu_bundle;
mod layer;
mod ptx;
mod quantize;
mod run;
mod test;

use anyhow::Result;

use crate::flags::{Cli, Command};
use crate::report::Report;

/// Runs the command that `cli` names.
///
/// # Errors
/// Whatever makes the command fail, with the chain of causes.
pub fn dispatch(cli: Cli) -> Result<()> {
    let report = Report::new(cli.json);
    match cli.command {
        Command::Run(flags) => run::run(flags, report),
        Command::Quantize(flags) => quantize::run(flags, report),
        Command::Dequantize(flags) => dequantize::run(flags, report),
        Command::Bench(flags) => bench::run(flags, report),
        Command::Dispatch(flags) => dispatch::run(flags, report),
        Command::Test(flags) => test::run(flags, report),
        Command::Ptx(flags) => ptx::run(flags, report),
        Command::GpuBundle(flags) => gpu_bundle::run(flags, report),
        Command::Doctor => doctor::run(report),
        Command::Ci(flags) => ci::run(flags, report),
    }
}
