//! `cargo xtask doctor`: what this machine has, what it is missing, and what that would be for.
//!
//! It works with nothing installed: every check is a question that may be answered by "no".

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, anyhow, bail};
use cuda_builder::ptxas::Ptxas;
use serde::Serialize;
use tokenyard::{Device, Topology};

use crate::engine::why_no_gpu;
use crate::process::{capture, find_program};
use crate::report::{self, Report};
use crate::tools;
use crate::workspace;

/// Space that a checkout with all builds takes, roughly.
const BUILD_BYTES: u64 = 6 << 30;

/// One thing that may be there.
#[derive(Debug, Serialize)]
struct Finding {
    /// What was looked for.
    what: &'static str,
    /// What was found, in a few words, or why it is missing.
    found: String,
    state: State,
    /// What it is needed for.
    purpose: &'static str,
    /// The command that brings it, where it is missing.
    command: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Present,
    /// Missing, and something optional does not work without it.
    Optional,
    /// Missing, and nothing can be built without it.
    Required,
}

impl Finding {
    fn new(
        what: &'static str,
        purpose: &'static str,
        result: Result<String>,
        missing: State,
        command: impl Into<String>,
    ) -> Self {
        let (found, state, command) = match result {
            Ok(found) => (found, State::Present, None),
            Err(error) => (error.to_string(), missing, Some(command.into())),
        };
        Self {
            what,
            found,
            state,
            purpose,
            command,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// Inside a checkout, when something is missing without which nothing can be built.
pub fn run(report: Report) -> Result<()> {
    let root = workspace::root();
    let findings = examine(root.as_deref());
    report.document(&findings)?;

    for finding in &findings {
        let mark = match finding.state {
            State::Present => "ok",
            State::Optional => "--",
            State::Required => "MISSING",
        };
        report.line(format!("{mark:<8}{:<26}{}", finding.what, finding.found))?;
        if let Some(command) = &finding.command {
            report.line(format!("{:34}needed {}", "", finding.purpose))?;
            report.line(format!("{:34}to get it: {command}", ""))?;
        }
    }
    let required: Vec<_> = findings
        .iter()
        .filter(|finding| finding.state == State::Required)
        .map(|finding| finding.what)
        .collect();
    if root.is_some() && !required.is_empty() {
        bail!("missing: {}", required.join(", "));
    }
    Ok(())
}

fn examine(root: Option<&Path>) -> Vec<Finding> {
    let here = root.unwrap_or(Path::new("."));
    let tool = |name: &str, argument: &str| -> Result<String> {
        if find_program(name).is_none() {
            bail!("not on the path");
        }
        let output = capture(Command::new(name).arg(argument).current_dir(here))?;
        Ok(output.lines().next().unwrap_or_default().to_owned())
    };
    // Without a checkout nothing is built here, and the toolchain is not missed.
    let for_builds = match root {
        Some(_) => State::Required,
        None => State::Optional,
    };
    let component = |name: &str| format!("rustup component add {name}");
    vec![
        Finding::new(
            "Rust toolchain",
            "to build anything",
            tool("rustc", "--version"),
            for_builds,
            "rustup toolchain install   (in the root of the checkout; rustup itself: rustup.rs)",
        ),
        Finding::new(
            "Standard library sources",
            "to compile the kernels to PTX",
            rust_src(here),
            State::Optional,
            component("rust-src"),
        ),
        Finding::new(
            "C linker",
            "to link programs",
            ["cc", "gcc", "clang"]
                .iter()
                .find_map(|name| find_program(name))
                .map(|path| path.display().to_string())
                .ok_or_else(|| anyhow!("no cc, gcc or clang on the path")),
            for_builds,
            "apt-get install gcc   (or your system's equivalent)",
        ),
        Finding::new(
            "clippy",
            "for `cargo xtask ci`",
            tool("cargo-clippy", "--version"),
            State::Optional,
            component("clippy"),
        ),
        Finding::new(
            "rustfmt",
            "for `cargo xtask ci`",
            tool("rustfmt", "--version"),
            State::Optional,
            component("rustfmt"),
        ),
        Finding::new(
            "ptxas",
            "for registers and spills in `cargo xtask ptx`, and to assemble kernels ahead of time",
            ptxas(root),
            State::Optional,
            tools::PTXAS_COMMAND,
        ),
        Finding::new(
            "GPU",
            "for `--backend cuda`; everything else runs in the emulator",
            gpu(),
            State::Optional,
            "install an NVIDIA driver, release 525 or newer, from your system's packages",
        ),
        Finding::new(
            "Paths between GPUs",
            "for expert-parallel groups over several GPUs",
            topology(),
            State::Optional,
            "nvidia-smi topo -m   (shows what connects the GPUs)",
        ),
        Finding::new(
            "compute-sanitizer",
            "for `run.sh --sanitizer` in a GPU bundle",
            find_program("compute-sanitizer")
                .map(|path| path.display().to_string())
                .ok_or_else(|| anyhow!("not on the path")),
            State::Optional,
            "python3 -m pip install nvidia-cuda-sanitizer-api",
        ),
        Finding::new(
            "Processor and memory",
            "to build and to emulate in reasonable time",
            Ok(machine()),
            State::Optional,
            "",
        ),
        Finding::new(
            "Disk",
            "for build outputs",
            disk(&workspace::target_dir(here)),
            State::Optional,
            "cargo clean, or CARGO_TARGET_DIR on another disk",
        ),
    ]
}

fn rust_src(folder: &Path) -> Result<String> {
    if find_program("rustc").is_none() {
        bail!("there is no Rust toolchain");
    }
    let rustc = ["--print", "sysroot"];
    let sysroot = capture(Command::new("rustc").args(rustc).current_dir(folder))?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if library.join("core/Cargo.toml").is_file() {
        Ok("rust-src is installed".to_owned())
    } else {
        bail!("rust-src is not installed")
    }
}

fn ptxas(root: Option<&Path>) -> Result<String> {
    let found = match root {
        Some(root) => tools::find_ptxas(root),
        None => Ptxas::find(),
    };
    let ptxas = found.map_err(|_| anyhow!("neither on the path nor fetched"))?;
    Ok(format!(
        "{} at {}",
        ptxas.version()?,
        ptxas.path().display()
    ))
}

fn gpu() -> Result<String> {
    let device = Device::cuda(0).map_err(|error| anyhow!(why_no_gpu(&error)))?;
    let mut text = device.description();
    if let Some(details) = driver_and_memory() {
        text.push_str(", ");
        text.push_str(&details);
    }
    Ok(text)
}

/// Which GPUs reach which; an error that names the pairs that do not.
fn topology() -> Result<String> {
    let topology = Topology::of_gpus().map_err(|error| anyhow!(why_no_gpu(&error)))?;
    let text = topology.to_string();
    if topology.gpus.is_empty() || topology.paths.iter().any(|path| !path.access) {
        bail!("{text}");
    }
    Ok(text)
}

/// Driver release and GPU memory, from whichever source has them.
fn driver_and_memory() -> Option<String> {
    let query = [
        "--query-gpu=driver_version,memory.total",
        "--format=csv,noheader",
        "--id=0",
    ];
    if let Ok(text) = capture(Command::new("nvidia-smi").args(query)) {
        let (driver, memory) = text.trim().split_once(", ")?;
        return Some(format!("{memory}, driver {driver}"));
    }
    let version = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    Some(version.lines().next()?.to_owned())
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let kibibytes = text.lines().next()?.split_whitespace().nth(1)?;
        Some(kibibytes.parse::<u64>().ok()? * 1024)
    });
    let cores = report::counted(cores, "core");
    match memory {
        Some(bytes) => format!("{cores}, {}", report::bytes(bytes)),
        None => cores,
    }
}

fn disk(folder: &Path) -> Result<String> {
    let existing = folder.ancestors().find(|folder| folder.is_dir());
    let existing = existing.unwrap_or(Path::new("."));
    // One line of titles, one of values: file system, KiB, used, available, percent, mount point.
    let text = capture(Command::new("df").arg("-Pk").arg(existing))?;
    let available = text
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(3));
    let Some(Ok(kibibytes)) = available.map(str::parse::<u64>) else {
        bail!(
            "`df` does not say how much is free at {}",
            existing.display()
        );
    };
    let bytes = kibibytes * 1024;
    let text = format!("{} free at {}", report::bytes(bytes), existing.display());
    if bytes < BUILD_BYTES {
        bail!("{text}; builds take about {}", report::bytes(BUILD_BYTES));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_thing_has_a_purpose_and_a_command() {
        for finding in examine(None) {
            assert!(!finding.what.is_empty() && !finding.found.is_empty());
            assert!(!finding.purpose.is_empty());
            let missing = finding.state != State::Present;
            assert_eq!(
                finding.command.is_some_and(|command| !command.is_empty()),
                missing
            );
        }
    }
}
