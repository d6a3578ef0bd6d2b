//! `cargo xtask ci`: everything that must hold before a change is merged, with a table and the sum of
//! all tests at the end.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;

use super::test::Counts;
use super::{ptx, run, test};
use crate::flags::{
    BackendChoice, BackendFlags, CiFlags, PtxFlags, RunFlags, TestBackend, TestFlags,
};
use crate::process;
use crate::report::{self, Report};
use crate::workspace;

/// Kernels written for the published `cuda_std`, as a package that depends on that crate.
const PUBLISHED_API: &str = "rust-cuda/cuda_std/tests/published_api/against_published/Cargo.toml";

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    steps: Vec<Outcome>,
    /// Absent if no test was started.
    tests: Option<Counts>,
}

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
    let tests = Cell::new(None);
    for (name, step) in steps(&root, report, &tests) {
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

    let mut table = report::table(["Step", "Result", "Time"], 2);
    for outcome in &outcomes {
        table.add_row([
            outcome.step.to_owned(),
            if outcome.passed { "passed" } else { "FAILED" }.to_owned(),
            report::duration(Duration::from_secs_f64(outcome.seconds)),
        ]);
    }
    report.table(&table)?;
    if let Some(counts) = tests.get() {
        report.line(counts.line())?;
    }
    let document = Document {
        steps: outcomes,
        tests: tests.get(),
    };
    report.document(&document)?;
    let failed = document.steps.iter().filter(|outcome| !outcome.passed);
    let failed: Vec<_> = failed.map(|outcome| outcome.step).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

type Step<'a> = (&'static str, Box<dyn Fn() -> Result<()> + 'a>);

/// The steps, cheapest first. The one that runs the tests leaves their sum in `tests`.
fn steps<'a>(root: &'a Path, report: Report, tests: &'a Cell<Option<Counts>>) -> Vec<Step<'a>> {
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
            "published API",
            Box::new(move || {
                let mut command = cargo(&["check", "--locked", "--manifest-path", PUBLISHED_API]);
                let target = workspace::target_dir(root).join("published-api");
                process::run(command.env("CARGO_TARGET_DIR", target), quiet)
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
        (
            "tests",
            Box::new(move || {
                let flags = TestFlags {
                    backend: TestBackend::All,
                    conformance: false,
                    filter: None,
                    arguments: Vec::new(),
                };
                let outcome = test::run_tests(&flags, inner)?;
                tests.set(Some(outcome.counts));
                outcome.verdict
            }),
        ),
    ]
}
