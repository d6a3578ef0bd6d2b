//! What can go wrong between a kernel crate and its PTX.

use std::io;
use std::path::PathBuf;

use crate::launch_bounds::LaunchBoundsError;
use crate::ptx::ParseError;

/// Why there is no PTX.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaBuilderError {
    /// There is no folder with a `Cargo.toml` at the path given.
    #[error("there is no crate at {}", .0.display())]
    CratePathDoesntExist(PathBuf),

    /// [`build`](crate::CudaBuilder::build) compiles for one architecture, and
    /// [`build_all`](crate::CudaBuilder::build_all) for one or more.
    #[error(
        "build() needs exactly one architecture and build_all() at least one; {count} were given"
    )]
    ArchCount {
        /// How many were given.
        count: usize,
    },

    /// `cargo` or `rustc` could not be started.
    #[error("cannot run {}; is Rust installed, with rustup or otherwise?", .program.display())]
    CargoNotFound {
        /// The program.
        program: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// The toolchain that the crate asks for cannot be used, for example because it is not
    /// installed. The message is the toolchain manager's, which says what to do.
    #[error("the Rust toolchain for {} cannot be used: {message}", .crate_path.display())]
    ToolchainUnavailable {
        /// The kernel crate.
        crate_path: PathBuf,
        /// What `rustc` or `rustup` said.
        message: String,
    },

    /// The toolchain is not a nightly one; compiling for `nvptx64` needs unstable options.
    #[error(
        "compiling kernels needs a nightly Rust toolchain, and this is {release}; name one in \
         rust-toolchain.toml"
    )]
    NotNightly {
        /// The toolchain's release, for example `1.95.0`.
        release: String,
    },

    /// The toolchain lacks the component `rust-src`, from which `core` is compiled for the GPU.
    #[error(
        "the Rust toolchain at {} lacks the standard library's sources (component rust-src); {}",
        .sysroot.display(),
        remedy(.command.as_deref())
    )]
    RustSrcMissing {
        /// The toolchain's folder.
        sysroot: PathBuf,
        /// The command that installs the component, where the toolchain is rustup's.
        command: Option<String>,
    },

    /// `cargo metadata` refused the crate's manifest.
    #[error("cannot read the manifest of {}:\n{message}", .crate_path.display())]
    Manifest {
        /// The kernel crate.
        crate_path: PathBuf,
        /// What cargo said.
        message: String,
    },

    /// The crate has no library target.
    #[error("{} is not a package with a library", .0.display())]
    NoLibrary(PathBuf),

    /// The crate does not compile.
    #[error("the kernels do not compile for {arch}:\n{messages}")]
    BuildFailed {
        /// The architecture, for example `sm_90`.
        arch: String,
        /// The compiler's errors as it renders them, or cargo's where the compiler had none.
        messages: String,
    },

    /// Compilation succeeded but left no PTX where it was asked for.
    #[error(
        "no PTX at {}, although the crate compiled; delete that folder's parent to compile anew",
        .0.display()
    )]
    PtxNotFound(PathBuf),

    /// The compiler's PTX cannot be read.
    #[error("cannot read the PTX at {}", .path.display())]
    Ptx {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: ParseError,
    },

    /// The launch bounds that the crate asks for cannot be applied.
    #[error("cannot apply launch bounds in {}", .path.display())]
    LaunchBounds {
        /// The file.
        path: PathBuf,
        /// Why.
        source: LaunchBoundsError,
    },

    /// The result could not be copied to where [`copy_to`](crate::CudaBuilder::copy_to) or
    /// [`final_module_path`](crate::CudaBuilder::final_module_path) says.
    #[error("cannot copy {} to {}", .from.display(), .to.display())]
    FailedToCopyPtxFile {
        /// The file made.
        from: PathBuf,
        /// Where it should go.
        to: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// A file of the build could not be read or written.
    #[error("cannot access {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl CudaBuilderError {
    /// Whether another toolchain, or more of this one, would do: no cargo, no nightly, no sources.
    ///
    /// A build script may go on without kernels then, and say so later.
    #[must_use]
    pub fn is_about_toolchain(&self) -> bool {
        matches!(
            self,
            Self::CargoNotFound { .. }
                | Self::ToolchainUnavailable { .. }
                | Self::NotNightly { .. }
                | Self::RustSrcMissing { .. }
        )
    }
}

fn remedy(command: Option<&str>) -> String {
    match command {
        Some(command) => format!("run: {command}"),
        None => "install them with the package that the toolchain came from".to_owned(),
    }
}
