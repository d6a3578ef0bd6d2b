//! When kernels are compiled again, and what a build script tells cargo about it.

mod common;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use common::{builder, editable_copy, kernels_target_dir, scratch, tiny_kernels};
use cuda_builder::{BuiltModule, CudaBuilder, NvvmArch};

fn build(crate_path: &Path) -> BuiltModule {
    let mut modules = builder(crate_path)
        .arch(NvvmArch::Compute90)
        .build_all()
        .expect("the kernels compile");
    modules.remove(0)
}

fn modified(path: &Path) -> SystemTime {
    let metadata = fs::metadata(path).expect("the file is there");
    metadata.modified().expect("files have times")
}

#[test]
fn only_a_change_to_the_sources_compiles_again() {
    let crate_path = editable_copy("edited");
    let first = build(&crate_path);
    let time = modified(&first.ptx);
    assert!(!first.fresh);

    let second = build(&crate_path);
    assert!(second.fresh);
    assert_eq!(modified(&second.ptx), time);

    fs::write(crate_path.join("notes.txt"), "unrelated").expect("a file can be written");
    let third = build(&crate_path);
    assert!(third.fresh);
    assert_eq!(modified(&third.ptx), time);

    // Touched, not changed: cargo compiles, and whoever embeds the same PTX need not.
    let source = crate_path.join("src/lib.rs");
    let file = File::options()
        .append(true)
        .open(&source)
        .expect("the source is there");
    file.set_modified(SystemTime::now())
        .expect("it can be touched");
    drop(file);
    let fourth = build(&crate_path);
    assert!(!fourth.fresh);
    assert_eq!(modified(&fourth.ptx), time);

    let dependency = crate_path.with_file_name("tiny_math").join("src/lib.rs");
    let text = fs::read_to_string(&dependency).expect("the dependency is there");
    fs::write(&dependency, text.replace("1.0", "2.0")).expect("a file can be written");
    let before = fs::read_to_string(&fourth.ptx).expect("the PTX is there");
    let fifth = build(&crate_path);
    assert!(!fifth.fresh);
    assert_ne!(
        fs::read_to_string(&fifth.ptx).expect("the PTX is there"),
        before
    );
}

#[test]
fn different_settings_do_not_take_each_others_result() {
    let plain = build(&tiny_kernels());
    let contracted = builder(&tiny_kernels())
        .arch(NvvmArch::Compute90)
        .fma_contraction(true)
        .build()
        .expect("the kernels compile");
    assert_ne!(plain.ptx, contracted);
    let again = build(&tiny_kernels());
    assert!(again.fresh);
    let read = |path| fs::read_to_string(path).expect("the PTX is there");
    assert_ne!(read(&contracted), read(&again.ptx));
}

#[test]
fn a_build_script_names_the_sources_of_path_dependencies() {
    let fixtures = tiny_kernels().parent().expect("it has a parent").to_owned();
    let printed = as_build_script("builds_as_a_build_script");
    for file in [
        "tiny_kernels/Cargo.toml",
        "tiny_kernels/Cargo.lock",
        "tiny_kernels/src/lib.rs",
        "tiny_math/Cargo.toml",
        "tiny_math/src/lib.rs",
    ] {
        let line = format!("cargo::rerun-if-changed={}", fixtures.join(file).display());
        assert_eq!(
            printed.lines().filter(|printed| *printed == line).count(),
            1,
            "{printed}"
        );
    }
    let target = scratch().display().to_string();
    assert!(!printed.contains(&target), "{printed}");
}

#[test]
fn a_build_script_whose_kernels_do_not_compile_runs_again_when_sources_change() {
    let fixtures = tiny_kernels().parent().expect("it has a parent").to_owned();
    let printed = as_build_script("fails_as_a_build_script");
    for folder in ["tiny_kernels/src", "tiny_math/src"] {
        let line = format!(
            "cargo::rerun-if-changed={}",
            fixtures.join(folder).display()
        );
        assert!(printed.lines().any(|printed| printed == line), "{printed}");
    }
}

/// Runs one of the ignored tests below in the environment of a build script; what it printed.
fn as_build_script(test: &str) -> String {
    let output = Command::new(std::env::current_exe().expect("this test has a path"))
        .args(["--exact", "--ignored", "--nocapture", test])
        .env(
            "OUT_DIR",
            scratch().join("target/debug/build/host-0123456789abcdef/out"),
        )
        .envs([("HOST", "host"), ("TARGET", "target"), ("PROFILE", "debug")])
        // As cargo, clippy and editors set them; none may reach the kernels.
        .envs([
            ("RUSTFLAGS", "--cfg=wrong -Dwarnings"),
            ("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-cpu=native"),
            ("RUSTC_WORKSPACE_WRAPPER", "/no/such/wrapper"),
            ("RUSTC_WRAPPER", "/no/such/wrapper"),
            ("CARGO_BUILD_TARGET", "x86_64-unknown-linux-gnu"),
            ("CARGO_TARGET_DIR", "/no/such/folder"),
            ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ])
        .output()
        .expect("this test can be run");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{printed}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

#[test]
#[ignore = "run by a_build_script_names_the_sources_of_path_dependencies"]
fn builds_as_a_build_script() {
    let ptx = CudaBuilder::new(tiny_kernels())
        .arch(NvvmArch::Compute90)
        .build()
        .expect("the kernels compile");
    assert!(ptx.starts_with(kernels_target_dir()), "{}", ptx.display());
}

#[test]
#[ignore = "run by a_build_script_whose_kernels_do_not_compile_runs_again_when_sources_change"]
fn fails_as_a_build_script() {
    CudaBuilder::new(tiny_kernels())
        .arch(NvvmArch::Compute90)
        .build_args(&["--features", "does-not-compile"])
        .build()
        .expect_err("the kernels do not compile");
}
