//! What goes wrong is told apart and says what to do.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{builder, tiny_kernels};
use cuda_builder::launch_bounds::LaunchBoundsError;
use cuda_builder::{CudaBuilderError, NvvmArch};

/// A builder for the kernels as they are, for compute capability 9.0.
fn tiny() -> cuda_builder::CudaBuilder {
    builder(&tiny_kernels()).arch(NvvmArch::Compute90)
}

#[test]
fn no_crate() {
    let path = Path::new("/there/is/none");
    let error = builder(path).build().expect_err("there is no crate");
    assert!(
        matches!(&error, CudaBuilderError::CratePathDoesntExist(p) if p == path),
        "{error}"
    );
    let folder = tempfile::tempdir().expect("a temporary folder");
    let error = builder(folder.path())
        .build()
        .expect_err("there is no manifest");
    assert!(
        matches!(&error, CudaBuilderError::CratePathDoesntExist(_)),
        "{error}"
    );
}

#[test]
fn a_manifest_that_cargo_refuses() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("Cargo.toml"), "[package\n").expect("a file");
    let error = builder(folder.path())
        .build()
        .expect_err("it is no manifest");
    assert!(
        matches!(&error, CudaBuilderError::Manifest { .. }),
        "{error}"
    );
}

#[test]
fn no_library() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let manifest = "[package]\nname = \"program\"\nedition = \"2024\"\n[workspace]\n";
    fs::write(folder.path().join("Cargo.toml"), manifest).expect("a file");
    fs::create_dir(folder.path().join("src")).expect("a folder");
    fs::write(folder.path().join("src/main.rs"), "fn main() {}").expect("a file");
    let error = builder(folder.path())
        .build()
        .expect_err("there is no library");
    assert!(matches!(&error, CudaBuilderError::NoLibrary(_)), "{error}");
}

#[test]
fn kernels_that_do_not_compile() {
    let error = tiny()
        .build_args(&["--features", "does-not-compile"])
        .build()
        .expect_err("they do not compile");
    let CudaBuilderError::BuildFailed { arch, messages } = error else {
        panic!("{error}");
    };
    assert_eq!(arch, "sm_90");
    assert!(
        messages.contains("error[E0308]: mismatched types"),
        "{messages}"
    );
    assert!(messages.contains("src/lib.rs"), "{messages}");
}

#[test]
fn arguments_that_cargo_refuses() {
    let error = tiny()
        .build_args(&["--features", "no-such-feature"])
        .build()
        .expect_err("cargo refuses");
    assert!(
        matches!(&error, CudaBuilderError::BuildFailed { messages, .. }
            if messages.contains("no-such-feature")),
        "{error}"
    );
}

#[test]
fn launch_bounds_for_a_kernel_that_does_not_exist() {
    let error = tiny()
        .build_args(&["--features", "unknown-entry"])
        .build()
        .expect_err("there is no such kernel");
    assert!(
        matches!(&error, CudaBuilderError::LaunchBounds {
            source: LaunchBoundsError::UnknownEntry { entry }, ..
        } if entry == "nobody"),
        "{error}"
    );
}

#[test]
fn a_place_that_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let error = tiny()
        .copy_to(file.join("kernels.ptx"))
        .build()
        .expect_err("a file is no folder");
    assert!(
        matches!(&error, CudaBuilderError::FailedToCopyPtxFile { .. }),
        "{error}"
    );
}

/// A folder with programs named `cargo` and `rustc`: the latter a shell script.
#[cfg(unix)]
fn toolchain(folder: &Path, rustc: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    for (name, script) in [("cargo", "exit 1"), ("rustc", rustc)] {
        let program = bin.join(name);
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it can be run");
    }
    bin.join("cargo")
}

#[cfg(unix)]
#[test]
fn no_sources_of_core() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sysroot = folder
        .path()
        .join("toolchains/nightly-2026-05-20-x86_64-unknown-linux-gnu");
    let script = format!(
        "case $1 in --version) echo release: 1.97.0-nightly;; *) echo {};; esac",
        sysroot.display()
    );
    let error = tiny()
        .cargo(toolchain(&sysroot, &script))
        .build()
        .expect_err("no rust-src");
    let CudaBuilderError::RustSrcMissing { command, .. } = &error else {
        panic!("{error}");
    };
    let expected = "rustup component add rust-src --toolchain \
                    nightly-2026-05-20-x86_64-unknown-linux-gnu";
    assert_eq!(command.as_deref(), Some(expected));
    assert!(error.is_about_toolchain());
    assert!(error.to_string().contains(expected), "{error}");
}

#[cfg(unix)]
#[test]
fn a_toolchain_that_is_not_nightly() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cargo = toolchain(folder.path(), "echo release: 1.95.0");
    let error = tiny().cargo(cargo).build().expect_err("it is not nightly");
    assert!(
        matches!(&error, CudaBuilderError::NotNightly { release } if release == "1.95.0"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn a_toolchain_that_is_not_installed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cargo = toolchain(folder.path(), "echo toolchain is not installed >&2; exit 1");
    let error = tiny()
        .cargo(cargo)
        .build()
        .expect_err("it is not installed");
    assert!(
        matches!(&error, CudaBuilderError::ToolchainUnavailable { message, .. }
            if message == "toolchain is not installed"),
        "{error}"
    );
}

#[test]
fn no_cargo() {
    let error = tiny()
        .cargo("/there/is/none/cargo")
        .build()
        .expect_err("there is no cargo");
    assert!(
        matches!(&error, CudaBuilderError::CargoNotFound { program, .. }
            if program == Path::new("/there/is/none/cargo")),
        "{error}"
    );
}
