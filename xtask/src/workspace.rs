//! Where things are: the checkout, and the test data with or without one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::process;

/// Names a folder with the test data, for binaries that run away from a checkout.
pub const DATA_VARIABLE: &str = "TOKENYARD_TEST_DATA";

/// Describes a bundle, beside the programs in it.
pub const BUNDLE_MANIFEST: &str = "bundle.json";

/// The hidden states that `run` quantizes.
const DEMONSTRATION_FILE: &str = "minilm_moe.safetensors";

/// The root of the checkout: that of the package that cargo runs, else the one around the current
/// folder.
pub fn root() -> Option<PathBuf> {
    let of_package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let current = env::current_dir().ok();
    [of_package, current]
        .into_iter()
        .flatten()
        .find_map(|start| {
            start
                .ancestors()
                .find(|folder| is_root(folder))
                .map(Path::to_owned)
        })
}

fn is_root(folder: &Path) -> bool {
    folder.join("kernels-gpu/Cargo.toml").is_file() && folder.join("rust-toolchain.toml").is_file()
}

/// The root of the checkout, for commands that cannot do without.
///
/// # Errors
/// When neither cargo nor the current folder leads to one.
pub fn require_root() -> Result<PathBuf> {
    match root() {
        Some(root) => Ok(root),
        None => bail!("this command works on the sources: run it inside a checkout of Tokenyard"),
    }
}

/// Where builds put files: `target`, or what cargo was told.
pub fn target_dir(root: &Path) -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root.join(folder),
        None => root.join("target"),
    }
}

/// The folder for results: `out` in the checkout, else in the current folder.
pub fn default_out() -> PathBuf {
    root().unwrap_or_default().join("out")
}

/// `path` as seen from the root of the checkout, if it lies in there.
pub fn relative(path: PathBuf) -> PathBuf {
    let inside = root().and_then(|root| Some(path.strip_prefix(root).ok()?.to_owned()));
    inside.unwrap_or(path)
}

/// The commit of a checkout, with `-dirty` if it has changes; `None` without git.
pub fn commit(root: &Path) -> Option<String> {
    let describe = [
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty",
        "--exclude=*",
    ];
    let text = process::capture(Command::new("git").args(describe).current_dir(root)).ok()?;
    Some(text.trim().to_owned())
}

/// The commit that this program was built from: of the bundle that it lies in, else of the checkout.
pub fn own_commit() -> Option<String> {
    let manifest = beside_binary(BUNDLE_MANIFEST).and_then(|path| std::fs::read(path).ok());
    if let Some(manifest) = manifest {
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).ok()?;
        return Some(manifest["commit"].as_str()?.to_owned());
    }
    commit(&root()?)
}

/// Where records of benchmarks are kept: in the checkout, else beside this binary.
pub fn bench_records() -> PathBuf {
    match (root(), beside_binary("records")) {
        (Some(root), _) => root.join("benches/records"),
        (None, Some(beside)) => beside,
        (None, None) => PathBuf::from("records"),
    }
}

/// The path of `name` in the folder of this binary.
fn beside_binary(name: &str) -> Option<PathBuf> {
    Some(env::current_exe().ok()?.parent()?.join(name))
}

/// The bundled hidden states: in the folder that `TOKENYARD_TEST_DATA` names, beside this binary,
/// or in the checkout.
///
/// # Errors
/// When none of those places has the file; the message lists them.
pub fn demonstration_file() -> Result<PathBuf> {
    let named = env::var_os(DATA_VARIABLE).map(PathBuf::from);
    let beside = beside_binary("data");
    let in_checkout = root().map(|root| root.join("tests/data"));
    let places: Vec<PathBuf> = [named, beside, in_checkout]
        .into_iter()
        .flatten()
        .map(|folder| folder.join(DEMONSTRATION_FILE))
        .collect();
    if let Some(file) = places.iter().find(|file| file.is_file()) {
        return Ok(file.clone());
    }
    let tried: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
    bail!(
        "cannot find {DEMONSTRATION_FILE}; looked for {}. Set {DATA_VARIABLE} to its folder, or \
         name another file with --input",
        tried.join(", ")
    )
}
