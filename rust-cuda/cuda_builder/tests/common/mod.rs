//! What the tests of this folder share.

use std::fs;
use std::path::{Path, PathBuf};

use cuda_builder::CudaBuilder;

/// A folder that outlives a run, so that `core` is compiled once for each architecture.
pub fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Where kernels are compiled: what a build script of a package compiled in `target` uses too.
pub fn kernels_target_dir() -> PathBuf {
    scratch().join("target/cuda-builder")
}

/// The kernel crate in `tests/fixtures`.
pub fn tiny_kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny_kernels")
}

/// A builder for `crate_path` that compiles in the scratch folder.
pub fn builder(crate_path: &Path) -> CudaBuilder {
    CudaBuilder::new(crate_path).target_dir(kernels_target_dir())
}

/// A copy of the kernel crate and its dependency that a test may edit, always in the same place.
#[allow(dead_code, reason = "not every test edits")]
pub fn editable_copy(name: &str) -> PathBuf {
    let root = scratch().join(name);
    if root.exists() {
        fs::remove_dir_all(&root).expect("the last run's copy can be removed");
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for package in ["tiny_kernels", "tiny_math"] {
        let to = root.join(package);
        fs::create_dir_all(to.join("src")).expect("a folder can be made");
        for file in ["Cargo.toml", "src/lib.rs"] {
            fs::copy(fixtures.join(package).join(file), to.join(file)).expect("a file is copied");
        }
    }
    root.join("tiny_kernels")
}
