//! Tools from elsewhere that are fetched into the target folder when asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use cuda_builder::ptxas::{Ptxas, PtxasError};

use crate::process;
use crate::workspace;

/// The Python wheel that holds `ptxas`, unpacked rather than installed. `.ci/run` reads it too.
const PTXAS_WHEEL: &str = include_str!("../ptxas-wheel.txt").trim_ascii();
/// Where the wheel has it.
const PTXAS_IN_WHEEL: &str = "nvidia/cu13/bin/ptxas";

/// Where it is unpacked, below the target folder.
const TOOL_FOLDER: &str = "tools/nvidia-cuda-nvcc";

fn wheel_folder(root: &Path) -> PathBuf {
    workspace::target_dir(root).join(TOOL_FOLDER)
}

/// The assembler that the environment has, else the one that [`fetch_ptxas`] brought.
///
/// # Errors
/// [`PtxasError::NotFound`]
pub fn find_ptxas(root: &Path) -> Result<Ptxas, PtxasError> {
    Ptxas::find().or_else(|error| {
        let fetched = wheel_folder(root).join(PTXAS_IN_WHEEL);
        // Where PTXAS names a file that is not there, somebody wants that one and no other.
        if fetched.is_file() && std::env::var_os("PTXAS").is_none() {
            Ok(Ptxas::at(fetched))
        } else {
            Err(error)
        }
    })
}

/// The command that brings an assembler.
pub const PTXAS_COMMAND: &str = "cargo xtask ptx --fetch";

/// What is missing without an assembler, and how to get one.
pub fn ptxas_hint() -> String {
    format!(
        "Without ptxas there are no registers, stack, spills or machine code to report. \
         `{PTXAS_COMMAND}` fetches it, which is `python3 -m pip install --no-deps --target \
         target/{TOOL_FOLDER} {PTXAS_WHEEL}`."
    )
}

/// Unpacks the wheel with pip, into the target folder; nothing is installed.
///
/// # Errors
/// No Python, no pip, no network, or a wheel without the file.
pub fn fetch_ptxas(root: &Path) -> Result<Ptxas> {
    let folder = wheel_folder(root);
    let parent = folder.parent().unwrap_or(root);
    fs::create_dir_all(parent)?;
    // Renamed when complete, so that an interrupted download is not taken for a tool.
    let unfinished = tempfile::Builder::new()
        .prefix(".nvcc-")
        .tempdir_in(parent)?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ])
    .args(["--no-deps", "--target"])
    .arg(unfinished.path())
    .arg(PTXAS_WHEEL)
    .env("PIP_ROOT_USER_ACTION", "ignore");
    process::run(&mut pip, true).context("cannot fetch ptxas")?;
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::rename(unfinished.keep(), &folder)?;
    Ok(find_ptxas(root)?)
}
