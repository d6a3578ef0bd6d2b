//! Which cargo and rustc compile the kernels, and in what environment.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::CudaBuilderError;

/// What `cargo` and `rustc` are run as.
///
/// A cargo that this process runs under has chosen a toolchain, perhaps because of an argument or
/// a variable that only it saw. The kernels use the same one, unless their crate lies under
/// another toolchain file: then `rustup` is asked anew.
#[derive(Debug)]
pub(crate) struct Toolchain {
    cargo: PathBuf,
    rustc: PathBuf,
    crate_path: PathBuf,
    /// Whether the toolchain that the outer cargo was given applies to the kernels too.
    inherits: bool,
    /// The toolchain file that applies to the crate.
    pub(crate) file: Option<PathBuf>,
}

impl Toolchain {
    pub(crate) fn for_crate(crate_path: &Path, explicit_cargo: Option<&Path>) -> Self {
        let file = toolchain_file(crate_path);
        let outer_cargo = env::var_os("CARGO").map(PathBuf::from);
        let outer_file =
            env::var_os("CARGO_MANIFEST_DIR").and_then(|folder| toolchain_file(Path::new(&folder)));
        let inherits = outer_cargo.is_none() || file.is_none() || file == outer_file;
        let cargo = match (explicit_cargo, outer_cargo) {
            (Some(explicit), _) => explicit.to_owned(),
            (None, Some(outer)) if inherits => outer,
            _ => PathBuf::from("cargo"),
        };
        let beside = cargo.with_file_name(format!("rustc{}", env::consts::EXE_SUFFIX));
        let rustc = if beside.is_absolute() && beside.is_file() {
            beside
        } else {
            PathBuf::from("rustc")
        };
        Self {
            cargo,
            rustc,
            crate_path: crate_path.to_owned(),
            inherits,
            file,
        }
    }

    /// `cargo`, in the crate's folder.
    pub(crate) fn cargo(&self) -> Command {
        self.command(&self.cargo)
    }

    /// That running [`cargo`](Self::cargo) failed.
    pub(crate) fn cannot_run_cargo(&self, source: io::Error) -> CudaBuilderError {
        CudaBuilderError::CargoNotFound {
            program: self.cargo.clone(),
            source,
        }
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.crate_path);
        for (name, _) in env::vars_os() {
            if belongs_to_the_outer_build(&name) {
                command.env_remove(name);
            }
        }
        if !self.inherits {
            command.env_remove("RUSTUP_TOOLCHAIN");
        }
        command
    }

    /// The toolchain's folder, after making sure that it can compile kernels: a nightly one, with
    /// the sources of `core`.
    pub(crate) fn check(&self) -> Result<Sysroot, CudaBuilderError> {
        let version = self.ask_rustc(&["--version", "--verbose"])?;
        let release = version
            .lines()
            .find_map(|line| line.strip_prefix("release: "))
            .unwrap_or_default();
        let nightly = release.contains("nightly") || release.contains("dev");
        if !nightly && env::var_os("RUSTC_BOOTSTRAP").is_none() {
            return Err(CudaBuilderError::NotNightly {
                release: release.to_owned(),
            });
        }
        Ok(Sysroot(PathBuf::from(
            self.ask_rustc(&["--print", "sysroot"])?.trim(),
        )))
    }

    fn ask_rustc(&self, args: &[&str]) -> Result<String, CudaBuilderError> {
        let output = self
            .command(&self.rustc)
            .args(args)
            .output()
            .map_err(|source| CudaBuilderError::CargoNotFound {
                program: self.rustc.clone(),
                source,
            })?;
        if !output.status.success() {
            return Err(CudaBuilderError::ToolchainUnavailable {
                crate_path: self.crate_path.clone(),
                message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A toolchain's folder.
#[derive(Debug)]
pub(crate) struct Sysroot(PathBuf);

impl Sysroot {
    /// That the component `rust-src` is there.
    pub(crate) fn check_rust_src(&self) -> Result<(), CudaBuilderError> {
        let library = self.0.join("lib/rustlib/src/rust/library");
        if library.join("core/Cargo.toml").is_file() {
            return Ok(());
        }
        Err(CudaBuilderError::RustSrcMissing {
            sysroot: self.0.clone(),
            command: self
                .rustup_name()
                .map(|name| format!("rustup component add rust-src --toolchain {name}")),
        })
    }

    /// What changes when a component is installed: a file that rustup keeps, or the whole folder.
    pub(crate) fn components(&self) -> PathBuf {
        let rustlib = self.0.join("lib/rustlib");
        let list = rustlib.join("components");
        if list.is_file() { list } else { rustlib }
    }

    /// The toolchain's name, where it lies as rustup lays them out: `…/toolchains/<name>`.
    fn rustup_name(&self) -> Option<&str> {
        let parent = self.0.parent()?.file_name()?;
        (parent == "toolchains").then(|| self.0.file_name()?.to_str())?
    }
}

/// The toolchain file that rustup would use in a folder: the nearest one, upwards.
fn toolchain_file(folder: &Path) -> Option<PathBuf> {
    folder.ancestors().find_map(|folder| {
        ["rust-toolchain", "rust-toolchain.toml"]
            .map(|name| folder.join(name))
            .into_iter()
            .find(|file| file.is_file())
    })
}

/// Whether a variable tells an inner cargo or rustc about the outer build: its flags, its target,
/// its wrappers (of which editors and clippy set some), its package.
///
/// Kept are those about the machine and the network, and the job server, so that an inner build
/// takes no more processors than the outer one was given.
fn belongs_to_the_outer_build(name: &OsStr) -> bool {
    const KEPT: [&str; 3] = ["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_BUILD_JOBS"];
    const KEPT_PREFIXES: [&str; 6] = [
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
    ];
    const REMOVED: [&str; 15] = [
        "DEBUG",
        "HOST",
        "NUM_JOBS",
        "OPT_LEVEL",
        "OUT_DIR",
        "PROFILE",
        "RUSTC",
        "RUSTC_LINKER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTDOC",
        "RUSTDOCFLAGS",
        "RUSTFLAGS",
        "TARGET",
        "CUDA_ARCH",
    ];
    let Some(name) = name.to_str() else {
        return false;
    };
    if name == "CARGO" || name.starts_with("CARGO_") {
        return !KEPT.contains(&name)
            && !KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    }
    REMOVED.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_outer_builds_variables_are_dropped_and_the_machines_kept() {
        for dropped in [
            "CARGO",
            "CARGO_BUILD_TARGET",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_MANIFEST_DIR",
            "CARGO_PROFILE_RELEASE_LTO",
            "CARGO_TARGET_DIR",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTFLAGS",
            "TARGET",
        ] {
            assert!(belongs_to_the_outer_build(OsStr::new(dropped)), "{dropped}");
        }
        for kept in [
            "CARGO_HOME",
            "CARGO_MAKEFLAGS",
            "CARGO_NET_OFFLINE",
            "HOME",
            "PATH",
            "RUSTUP_HOME",
            "RUSTUP_TOOLCHAIN",
            "CARGOES",
        ] {
            assert!(!belongs_to_the_outer_build(OsStr::new(kept)), "{kept}");
        }
    }

    #[test]
    fn the_nearest_toolchain_file_counts() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let inner = folder.path().join("workspace/kernels");
        fs::create_dir_all(&inner).expect("a folder");
        let outer_file = folder.path().join("workspace/rust-toolchain.toml");
        fs::write(&outer_file, "").expect("a file");
        assert_eq!(toolchain_file(&inner), Some(outer_file));
        let own_file = inner.join("rust-toolchain");
        fs::write(&own_file, "").expect("a file");
        assert_eq!(toolchain_file(&inner), Some(own_file));
    }

    #[test]
    fn missing_sources_name_the_command() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sysroot = folder
            .path()
            .join("toolchains/nightly-2026-05-20-x86_64-unknown-linux-gnu");
        fs::create_dir_all(sysroot.join("lib/rustlib")).expect("a folder");
        let sysroot = Sysroot(sysroot);
        let error = sysroot.check_rust_src().expect_err("there are no sources");
        let text = error.to_string();
        assert!(
            text.ends_with(
                "run: rustup component add rust-src --toolchain \
                 nightly-2026-05-20-x86_64-unknown-linux-gnu"
            ),
            "{text}"
        );
        assert_eq!(sysroot.components(), sysroot.0.join("lib/rustlib"));

        let core = sysroot.0.join("lib/rustlib/src/rust/library/core");
        fs::create_dir_all(&core).expect("a folder");
        fs::write(core.join("Cargo.toml"), "").expect("a file");
        assert!(sysroot.check_rust_src().is_ok());
    }

    #[test]
    fn a_toolchain_that_is_not_rustups_has_no_command() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = Sysroot(folder.path().join("usr"))
            .check_rust_src()
            .expect_err("there are no sources");
        assert!(
            matches!(
                &error,
                CudaBuilderError::RustSrcMissing { command: None, .. }
            ),
            "{error}"
        );
    }
}
