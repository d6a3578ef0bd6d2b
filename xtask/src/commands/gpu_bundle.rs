//! `cargo xtask gpu-bundle`: a folder that tests the kernels on a GPU machine that has no Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::test::SUITE_TARGET;
use crate::files::{StagedFolder, write_atomically};
use crate::flags::GpuBundleFlags;
use crate::kernels::{self, Ptx};
use crate::process;
use crate::report::{self, Report};
use crate::workspace;

/// Largest bundle that is made.
const MAX_BYTES: u64 = 96 << 20;

/// Describes the bundle, and marks a folder as one.
const MANIFEST: &str = workspace::BUNDLE_MANIFEST;

/// The script that runs everything.
const RUN_SCRIPT: &str = include_str!("../../assets/run.sh");

/// The script that measures other quantizers beside this one.
const PEERS_SCRIPT: &str = include_str!("../../assets/peers.py");

/// Content of [`MANIFEST`].
#[derive(Serialize)]
struct Manifest {
    producer: &'static str,
    /// Commit of the checkout, with `-dirty` if it had changes.
    commit: Option<String>,
    architectures: Vec<String>,
    /// The newest glibc that the binaries need something of.
    glibc: Option<String>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    folder: PathBuf,
    bytes: u64,
    #[serde(flatten)]
    manifest: Manifest,
}

/// Runs the command.
///
/// # Errors
/// A target folder that is something else, a suite or kernels that do not compile, a bundle that is
/// too large.
pub fn run(flags: GpuBundleFlags, report: Report) -> Result<()> {
    let root = workspace::require_root()?;
    let target = flags
        .output
        .unwrap_or_else(|| workspace::default_out().join("gpu-bundle"));
    check_replaceable(&target)?;

    // First of all, because a bundle without kernels is of no use.
    let kernels = kernels::embedded()?;
    let suite = build_suite(&root)?;
    let staged = StagedFolder::new(&target)?;
    let folder = staged.path();
    let progress = report.spinner("copying");
    let binaries = [
        (suite, folder.join(SUITE_TARGET)),
        (std::env::current_exe()?, folder.join("xtask")),
    ];
    for (from, to) in &binaries {
        copy(from, to)?;
        strip(to);
    }
    let data = workspace::demonstration_file()?;
    let name = data.file_name().context("the data file has no name")?;
    copy(&data, &folder.join("data").join(name))?;
    for Ptx { arch, text } in &kernels {
        let path = folder.join(format!("ptx/kernels.{arch}.ptx"));
        write_atomically(&path, |file| file.write_all(text.as_bytes()))?;
    }
    write_script(&folder.join("run.sh"), RUN_SCRIPT)?;
    write_script(&folder.join("peers.py"), PEERS_SCRIPT)?;
    copy_records(&workspace::bench_records(), &folder.join("records"))?;
    let manifest = Manifest {
        producer: concat!("tokenyard ", env!("CARGO_PKG_VERSION")),
        commit: workspace::commit(&root),
        architectures: kernels.iter().map(|ptx| ptx.arch.to_string()).collect(),
        glibc: newest_glibc(binaries.iter().map(|(_, to)| to.as_path()))?,
    };
    let json = serde_json::to_vec_pretty(&manifest)?;
    write_atomically(&folder.join(MANIFEST), |file| file.write_all(&json))?;

    let bytes = folder_bytes(folder)?;
    if bytes > MAX_BYTES {
        bail!(
            "the bundle takes {}, more than the {} that are allowed",
            report::bytes(bytes),
            report::bytes(MAX_BYTES)
        );
    }
    staged.finish()?;
    progress.finish_and_clear();

    report.line(format!(
        "Wrote {} ({})",
        target.display(),
        report::bytes(bytes)
    ))?;
    let glibc = manifest.glibc.as_deref().unwrap_or("any");
    report.line(format!(
        "Copy it to an x86-64 Linux machine with an NVIDIA driver and glibc {glibc} or newer, and \
         start run.sh there (run.sh --help)."
    ))?;
    report.document(&Document {
        folder: target,
        bytes,
        manifest,
    })
}

/// Refuses a target that holds something other than an earlier bundle.
fn check_replaceable(target: &Path) -> Result<()> {
    if !target.exists() || target.join(MANIFEST).is_file() {
        return Ok(());
    }
    let empty = target.is_dir() && fs::read_dir(target)?.next().is_none();
    if !empty {
        bail!(
            "will not replace {}: it is no earlier bundle",
            target.display()
        );
    }
    Ok(())
}

/// Builds the conformance suite and returns its binary.
fn build_suite(root: &Path) -> Result<PathBuf> {
    let mut command = process::cargo();
    command
        .current_dir(root)
        .args(["test", "--workspace", "--test", SUITE_TARGET])
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit());
    let output = command
        .output()
        .with_context(|| format!("cannot start `{}`", process::shown(&command)))?;
    process::check(&command, output.status)?;
    let messages = String::from_utf8_lossy(&output.stdout);
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == SUITE_TARGET)
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .with_context(|| format!("cargo built no test binary {SUITE_TARGET}"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copying = || format!("cannot copy {} to {}", from.display(), to.display());
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(copying)?;
    }
    fs::copy(from, to).map(drop).with_context(copying)
}

/// Removes debugging information, where the system has a program for that. Without it the bundle is
/// merely larger.
fn strip(binary: &Path) {
    let _ = process::capture(Command::new("strip").arg("--strip-debug").arg(binary));
}

/// Copies the records of benchmarks, which a run in the bundle is compared with.
fn copy_records(from: &Path, to: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(from) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            copy(&path, &to.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// Writes a program that is text.
fn write_script(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, |file| file.write_all(text.as_bytes()))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// The newest `GLIBC_x.y` that any of the binaries names.
fn newest_glibc<'a>(binaries: impl Iterator<Item = &'a Path>) -> Result<Option<String>> {
    let mut newest = None;
    for binary in binaries {
        let content = fs::read(binary)?;
        newest = newest.max(newest_glibc_in(&content));
    }
    Ok(newest.map(|(major, minor)| format!("{major}.{minor}")))
}

fn newest_glibc_in(binary: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"GLIBC_";
    // Names in the string table end with a zero byte.
    binary
        .split(|&byte| byte == 0)
        .filter_map(|name| {
            let version = std::str::from_utf8(name.strip_prefix(PREFIX)?).ok()?;
            let (major, minor) = version.split_once('.')?;
            let minor = minor.split('.').next()?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        })
        .max()
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += match metadata.is_dir() {
            true => folder_bytes(&entry.path())?,
            false => metadata.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_found() {
        let binary = b"\x7fELF\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0xGLIBC_9.9\0";
        assert_eq!(newest_glibc_in(binary), Some((2, 34)));
        assert_eq!(newest_glibc_in(b"static"), None);
    }

    #[test]
    fn only_bundles_and_empty_folders_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        check_replaceable(&folder.path().join("new")).unwrap();
        check_replaceable(folder.path()).unwrap();
        fs::write(folder.path().join("thesis.tex"), "").unwrap();
        let error = check_replaceable(folder.path()).unwrap_err().to_string();
        assert!(error.contains("it is no earlier bundle"), "{error}");
        fs::write(folder.path().join(MANIFEST), "{}").unwrap();
        check_replaceable(folder.path()).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn the_script_is_well_formed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.sh");
        write_script(&path, RUN_SCRIPT).unwrap();
        process::capture(Command::new("bash").arg("-n").arg(&path)).unwrap();
        let help = process::capture(Command::new(&path).arg("--help")).unwrap();
        for part in ["--sanitizer", "--bench", "--ep-only", "The exit status is"] {
            assert!(help.contains(part), "no {part} in\n{help}");
        }
        assert!(!help.contains("pipefail"), "{help}");
    }

    #[test]
    fn only_records_are_copied() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("a.json"), "{}").unwrap();
        fs::write(from.path().join("README.md"), "").unwrap();
        copy_records(from.path(), to.path()).unwrap();
        assert!(to.path().join("a.json").is_file());
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
        copy_records(&from.path().join("missing"), to.path()).unwrap();
    }
}
