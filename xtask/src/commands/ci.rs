//! `cargo xtask ci`: everything that must hold before a change is merged, with one table at the end.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;

use super::{ptx, run, test};
use crate::flags::{
    BackendChoice, BackendFlags, CiFlags, PtxFlags, RunFlags, TestBackend, TestFlags,
};
use crate::process;
use crate::report::{self, Report};
use crate::workspace;

/// How a step went.
#[derive(Serialize)]
struct Outcome {
    step: &'static str,
    passed: bool,
    seconds: f64,
    /// Why it failed, if it did.
    error: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// Names the steps that failed.
pub fn run(flags: CiFlags, report: Report) -> Result<()> {
    let root = workspace::require_root()?;
    let mut outcomes = Vec::new();
    for (name, step) in steps(&root, report) {
        eprintln!("\n==> {name}");
        let start = Instant::now();
        let result = step();
        let error = result.err().map(|error| format!("{error:#}"));
        if let Some(error) = &error {
            eprintln!("error: {error}");
        }
        let failed = error.is_some();
        outcomes.push(Outcome {
            step: name,
            passed: !failed,
            seconds: start.elapsed().as_secs_f64(),
            error,
        });
        if failed && flags.fail_fast {
            break;
        }
    }

    report.document(&outcomes)?;
    let mut table = report::table(["Step", "Result", "Time"], 2);
    for outcome in &outcomes {
        table.add_row([
            outcome.step.to_owned(),
            if outcome.passed { "passed" } else { "FAILED" }.to_owned(),
            report::duration(Duration::from_secs_f64(outcome.seconds)),
        ]);
    }
    report.table(&table)?;
    let failed = outcomes.iter().filter(|outcome| !outcome.passed);
    let failed: Vec<_> = failed.map(|outcome| outcome.step).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

type Step<'a> = (&'static str, Box<dyn Fn() -> Result<()> + 'a>);

/// The steps, cheapest first.
fn steps(root: &Path, report: Report) -> Vec<Step<'_>> {
    let quiet = report.is_json();
    let inner = report.of_a_step();
    let cargo = move |arguments: &[&str]| {
        let mut command = process::cargo();
        command.current_dir(root).args(arguments);
        command
    };
    vec![
        (
            "formatting",
            Box::new(move || process::run(&mut cargo(&["fmt", "--all", "--check"]), quiet)),
        ),
        (
            "clippy",
            Box::new(move || {
                let arguments = [
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--",
                    "-D",
                    "warnings",
                ];
                process::run(&mut cargo(&arguments), quiet)
            }),
        ),
        (
            "documentation",
            Box::new(move || {
                let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
                process::run(command.env("RUSTDOCFLAGS", "-D warnings"), quiet)
            }),
        ),
        (
            "kernels",
            Box::new(move || {
                let flags = PtxFlags {
                    check: true,
                    bless: false,
                    fetch: true,
                    arch: Vec::new(),
                };
                ptx::run(flags, inner)
            }),
        ),
        (
            "tests",
            Box::new(move || {
                let flags = TestFlags {
                    backend: TestBackend::All,
                    conformance: false,
                    filter: None,
                    arguments: Vec::new(),
                };
                test::run(flags, inner)
            }),
        ),
        (
            "demonstration",
            Box::new(move || {
                let flags = RunFlags {
                    backend: BackendFlags {
                        backend: BackendChoice::Auto,
                        seed: 0,
                    },
                    input: None,
                    experts: None,
                    out: Some(workspace::target_dir(root).join("ci-run")),
                };
                run::run(flags, inner)
            }),
        ),
    ]
}
