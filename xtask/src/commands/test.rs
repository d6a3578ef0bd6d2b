//! `cargo xtask test`: the conformance suite, the unit tests and the doc tests, with one sum at the
//! end.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cuda_builder::ptxas::Ptxas;
use serde::Serialize;
use tokenyard::Device;

use crate::flags::{TestBackend, TestFlags};
use crate::process;
use crate::report::Report;
use crate::tools;
use crate::workspace;

/// The package of the conformance suite; it has no other tests.
const SUITE_PACKAGE: &str = "tokenyard-tests";
/// The conformance suite's test target. Its cases are named after the backend that they run on:
/// `emulator::…`, `cuda::…`.
pub const SUITE_TARGET: &str = "conformance";
/// Set to `1`, it makes the suite fail GPU cases for want of a GPU, in place of skipping them.
pub const REQUIRE_CUDA_VARIABLE: &str = "TOKENYARD_REQUIRE_CUDA";

/// Sums over test binaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that did not run, such as GPU cases without a GPU.
    pub skipped: u64,
}

impl Counts {
    /// Adds what one binary counted.
    fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads the line with which a test binary ends:
    /// `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; …`.
    fn parse(line: &str) -> Option<Counts> {
        let (_, results) = line
            .trim()
            .strip_prefix("test result: ")?
            .split_once(". ")?;
        let mut counts = Counts::default();
        for part in results.split("; ") {
            let Some((number, what)) = part.split_once(' ') else {
                continue;
            };
            let field = match what {
                "passed" => &mut counts.passed,
                "failed" => &mut counts.failed,
                "ignored" => &mut counts.skipped,
                _ => continue,
            };
            *field = number.parse().ok()?;
        }
        Some(counts)
    }

    /// The sum as a line: `12 passed, 0 failed, 1 skipped`.
    pub fn line(&self) -> String {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        format!("{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Runs the command.
///
/// # Errors
/// A test that fails, a test binary that does not finish, tests that do not compile, `--backend
/// cuda` without a GPU, or a filter that matches nothing.
pub fn run(flags: TestFlags, report: Report) -> Result<()> {
    let outcome = run_tests(&flags, report)?;
    report.document(&outcome.counts)?;
    report.line(outcome.counts.line())?;
    outcome.verdict
}

/// What became of the tests.
pub struct Outcome {
    /// How many passed, failed, and were skipped.
    pub counts: Counts,
    /// Whether that is a success.
    pub verdict: Result<()>,
}

/// Runs tests and counts them, without printing the sum.
///
/// # Errors
/// When no test can be started.
pub fn run_tests(flags: &TestFlags, report: Report) -> Result<Outcome> {
    let root = workspace::require_root()?;
    if flags.backend == TestBackend::Cuda {
        Device::cuda(0).context("--backend cuda needs a GPU")?;
    }
    let mut counts = Counts::default();
    let mut finished = Ok(());
    for mut command in commands(&root, flags) {
        // Tests that assemble kernels if they can shall find an assembler that was fetched. One that they find by
        // themselves is not named: build scripts that watch the variable would run again.
        if Ptxas::find().is_err()
            && let Ok(ptxas) = tools::find_ptxas(&root)
        {
            command.env("PTXAS", ptxas.path());
        }
        let (more, result) = match report.is_json() {
            true => run_and_count(&mut command, std::io::stderr())?,
            false => run_and_count(&mut command, std::io::stdout())?,
        };
        counts.add(more);
        finished = finished.and(result);
    }
    Ok(Outcome {
        counts,
        verdict: verdict(flags, counts, finished),
    })
}

fn verdict(flags: &TestFlags, counts: Counts, finished: Result<()>) -> Result<()> {
    if counts.failed > 0 {
        bail!(
            "{} of {} tests failed",
            counts.failed,
            counts.failed + counts.passed
        );
    }
    // Compiling may fail, and a test binary may die without a summary.
    finished?;
    let listing = flags.arguments.iter().any(|argument| argument == "--list");
    if counts == Counts::default() && !listing {
        bail!("no test ran; does the filter match any name?");
    }
    Ok(())
}

/// The cargo commands that run the tests asked for.
fn commands(root: &Path, flags: &TestFlags) -> Vec<Command> {
    let cargo_test = |selection: &[&str], arguments: &[&str]| {
        let mut command = process::cargo();
        command.current_dir(root).args(["test", "--no-fail-fast"]);
        command.args(selection).args(&flags.filter);
        if !(arguments.is_empty() && flags.arguments.is_empty()) {
            command.arg("--").args(arguments).args(&flags.arguments);
        }
        command
    };
    let mut commands = Vec::new();
    if !flags.conformance {
        // All at once: the suite is a single crate, and compiles beside the other tests.
        let mut build = process::cargo();
        build
            .current_dir(root)
            .args(["test", "--workspace", "--no-run"]);
        commands.push(build);
        commands.push(cargo_test(
            &["--workspace", "--exclude", SUITE_PACKAGE],
            &[],
        ));
    }
    let arguments: &[&str] = match flags.backend {
        TestBackend::All => &[],
        TestBackend::Emulator => &["--skip", "cuda::"],
        TestBackend::Cuda => &["--skip", "emulator::"],
    };
    // The whole workspace, so that its libraries have the features that they had above.
    let mut command = cargo_test(&["--workspace", "--test", SUITE_TARGET], arguments);
    if flags.backend == TestBackend::Cuda {
        command.env(REQUIRE_CUDA_VARIABLE, "1");
    }
    commands.push(command);
    commands
}

/// Runs `command`, passes on to `out` what it prints, and adds up the summaries in it. The second
/// half of the result says whether it succeeded.
fn run_and_count(command: &mut Command, mut out: impl Write) -> Result<(Counts, Result<()>)> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", process::shown(command)))?;
    let mut counts = Counts::default();
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line)? > 0 {
            match out.write_all(&line) {
                // Nobody reads any more; the tests go on, and their sum decides.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                result => result.context("cannot pass on the output of a test")?,
            }
            if let Some(summary) = Counts::parse(&String::from_utf8_lossy(&line)) {
                counts.add(summary);
            }
            line.clear();
        }
    }
    let status = child.wait()?;
    Ok((counts, process::check(command, status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let line = "test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 3 filtered \
                    out; finished in 0.01s\n";
        let expected = Counts {
            passed: 12,
            failed: 2,
            skipped: 1,
        };
        assert_eq!(Counts::parse(line), Some(expected));
        assert_eq!(expected.line(), "12 passed, 2 failed, 1 skipped");
        assert_eq!(Counts::parse("test a::b ... ok"), None);
        assert_eq!(Counts::parse("test result: ok"), None);
    }

    #[cfg(unix)]
    #[test]
    fn sums_and_statuses_come_from_the_command() {
        let script = "echo 'test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured'; \
                      echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured'; exit 4";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut printed = Vec::new();
        let (counts, finished) = run_and_count(&mut command, &mut printed).unwrap();
        let expected = Counts {
            passed: 4,
            failed: 0,
            skipped: 2,
        };
        assert_eq!(counts, expected);
        assert!(finished.unwrap_err().to_string().contains("exit status: 4"));
        assert_eq!(printed.iter().filter(|&&byte| byte == b'\n').count(), 2);
    }

    #[test]
    fn arguments_reach_cargo() {
        let mut flags = TestFlags {
            backend: TestBackend::Emulator,
            conformance: true,
            filter: Some("nvfp4".to_owned()),
            arguments: vec!["--list".to_owned()],
        };
        let shown = |flags: &TestFlags| -> Vec<String> {
            let commands = commands(Path::new("."), flags);
            let arguments = commands.iter().map(|command| {
                let text = process::shown(command);
                text.split_once(' ')
                    .map_or(String::new(), |(_, rest)| rest.to_owned())
            });
            arguments.collect()
        };
        assert_eq!(
            shown(&flags),
            [
                "test --no-fail-fast --workspace --test conformance nvfp4 -- \
              --skip cuda:: --list"
            ]
        );
        flags.conformance = false;
        flags.backend = TestBackend::All;
        flags.arguments.clear();
        assert_eq!(
            shown(&flags),
            [
                "test --workspace --no-run",
                "test --no-fail-fast --workspace --exclude tokenyard-tests nvfp4",
                "test --no-fail-fast --workspace --test conformance nvfp4",
            ]
        );
    }
}
