//! [`CudaBuilder`]: what to compile, for which architectures, and where the result goes.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cargo_metadata::{Metadata, MetadataCommand};

use crate::compile::{Job, at, write_if_changed};
use crate::toolchain::Toolchain;
use crate::{CudaBuilderError, NvvmArch, rerun};

/// Language features that a kernel crate gets without naming them.
pub const DEFAULT_LANGUAGE_FEATURES: &[&str] = &[
    "abi_ptx",
    "asm_experimental_arch",
    "core_intrinsics",
    "gpu_intrinsics",
    "gpu_launch_sized_workgroup_mem",
    "portable_simd",
    "stdarch_nvptx",
];

/// How much debug information goes into the PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DebugInfo {
    /// None.
    #[default]
    None,
    /// Source lines (`.loc`), for profilers. It is the only kind that the backend produces in a
    /// form that `ptxas` accepts.
    LineTables,
}

/// A PTX file made by [`CudaBuilder`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuiltModule {
    /// What it was compiled for.
    pub arch: NvvmArch,
    /// The PTX file: where [`CudaBuilder::copy_to`] says, otherwise in the target folder.
    pub ptx: PathBuf,
    /// LLVM IR after optimisation, if asked for.
    pub llvm_ir: Option<PathBuf>,
    /// LLVM bitcode after optimisation, if asked for.
    pub llvm_bitcode: Option<PathBuf>,
    /// Whether nothing had to be compiled.
    pub fresh: bool,
    /// The source files that the compiler read, of the crate and of its path dependencies.
    pub sources: Vec<PathBuf>,
}

/// What the builder's methods set.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) build_args: Vec<String>,
    pub(crate) language_features: Vec<String>,
    pub(crate) release: bool,
    pub(crate) line_info: bool,
    pub(crate) alloc: bool,
    pub(crate) fast_sqrt: bool,
    pub(crate) fast_div: bool,
    pub(crate) fma_contraction: bool,
    pub(crate) emit_llvm_ir: bool,
    pub(crate) emit_llvm_bitcode: bool,
    pub(crate) ptx_version: Option<(u32, u32)>,
}

/// Compiles a kernel crate to PTX.
///
/// See the [crate's documentation](crate) for what it does and how it differs from the published
/// builder of the same name.
#[derive(Debug, Clone)]
#[must_use = "nothing is compiled before build() or build_all()"]
pub struct CudaBuilder {
    crate_path: PathBuf,
    archs: Vec<NvvmArch>,
    settings: Settings,
    cargo: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    copy_to: Option<PathBuf>,
    final_module_path: Option<PathBuf>,
}

impl CudaBuilder {
    /// For the crate in the folder `path_to_crate_root`, which a build script may give relative to
    /// its own package.
    pub fn new(path_to_crate_root: impl AsRef<Path>) -> Self {
        Self {
            crate_path: path_to_crate_root.as_ref().to_owned(),
            archs: vec![NvvmArch::default()],
            settings: Settings {
                build_args: Vec::new(),
                language_features: DEFAULT_LANGUAGE_FEATURES
                    .iter()
                    .map(|feature| (*feature).to_owned())
                    .collect(),
                release: true,
                line_info: false,
                alloc: false,
                fast_sqrt: false,
                fast_div: false,
                fma_contraction: false,
                emit_llvm_ir: false,
                emit_llvm_bitcode: false,
                ptx_version: None,
            },
            cargo: None,
            target_dir: None,
            copy_to: None,
            final_module_path: None,
        }
    }

    /// More arguments for `cargo rustc`, for example `["--features", "tuned"]` or `["--offline"]`.
    pub fn build_args(mut self, args: &[impl AsRef<str>]) -> Self {
        let args = args.iter().map(|arg| arg.as_ref().to_owned());
        self.settings.build_args.extend(args);
        self
    }

    /// The architecture to compile for; [`NvvmArch::default`] otherwise.
    pub fn arch(self, arch: NvvmArch) -> Self {
        self.archs(&[arch])
    }

    /// The architectures to compile for, with [`build_all`](Self::build_all).
    pub fn archs(mut self, archs: &[NvvmArch]) -> Self {
        self.archs = archs.to_vec();
        self
    }

    /// Whether to compile for release; `true` unless set. Otherwise the code is optimised little
    /// and checks arithmetic overflow and debug assertions; a failed check stops the kernel.
    pub fn release(mut self, release: bool) -> Self {
        self.settings.release = release;
        self
    }

    /// Debug information; none unless set.
    pub fn debug(mut self, debug: DebugInfo) -> Self {
        self.settings.line_info = debug == DebugInfo::LineTables;
        self
    }

    /// Whether the PTX names source lines: another way to say [`debug`](Self::debug). `false`
    /// unless set.
    pub fn generate_line_info(mut self, generate_line_info: bool) -> Self {
        self.settings.line_info = generate_line_info;
        self
    }

    /// Whether `f32` square roots are approximate (`sqrt.approx`); `false` unless set.
    pub fn fast_sqrt(mut self, fast_sqrt: bool) -> Self {
        self.settings.fast_sqrt = fast_sqrt;
        self
    }

    /// Whether `f32` divisions are approximate (`div.approx`); `false` unless set.
    pub fn fast_div(mut self, fast_div: bool) -> Self {
        self.settings.fast_div = fast_div;
        self
    }

    /// Whether a multiplication and an addition may be contracted to one operation, rounded once.
    /// `false` unless set, so that floating-point results do not depend on the optimiser.
    pub fn fma_contraction(mut self, fma_contraction: bool) -> Self {
        self.settings.fma_contraction = fma_contraction;
        self
    }

    /// Whether to keep the LLVM IR that the PTX is made from: [`BuiltModule::llvm_ir`].
    pub fn emit_llvm_ir(mut self, emit_llvm_ir: bool) -> Self {
        self.settings.emit_llvm_ir = emit_llvm_ir;
        self
    }

    /// Whether to keep the LLVM bitcode that the PTX is made from: [`BuiltModule::llvm_bitcode`].
    pub fn emit_llvm_bitcode(mut self, emit_llvm_bitcode: bool) -> Self {
        self.settings.emit_llvm_bitcode = emit_llvm_bitcode;
        self
    }

    /// Where to copy the LLVM IR that the PTX is made from. With several architectures the name is
    /// put before the extension, as for [`copy_to`](Self::copy_to).
    pub fn final_module_path(mut self, path: impl AsRef<Path>) -> Self {
        self.settings.emit_llvm_ir = true;
        self.final_module_path = Some(path.as_ref().to_owned());
        self
    }

    /// Where to copy the PTX. With several architectures the architecture's name is put before the
    /// extension: `kernels.ptx` becomes `kernels.sm_90.ptx`. A file that has the same content
    /// already is left as it is.
    pub fn copy_to(mut self, path: impl AsRef<Path>) -> Self {
        self.copy_to = Some(path.as_ref().to_owned());
        self
    }

    /// Whether the crate uses `alloc` (it then brings an allocator); `false` unless set.
    pub fn build_alloc(mut self, alloc: bool) -> Self {
        self.settings.alloc = alloc;
        self
    }

    /// The PTX version to write, for example `(8, 6)`. Unless set it is 8.3 (CUDA 12.3), or the
    /// least that knows the architecture if that is later. The compiler stops where it is too low.
    pub fn ptx_version(mut self, major: u32, minor: u32) -> Self {
        self.settings.ptx_version = Some((major, minor));
        self
    }

    /// The language features switched on in the kernel crate, in place of
    /// [`DEFAULT_LANGUAGE_FEATURES`].
    pub fn language_features(mut self, features: &[impl AsRef<str>]) -> Self {
        self.settings.language_features = features
            .iter()
            .map(|feature| feature.as_ref().to_owned())
            .collect();
        self
    }

    /// The folder for everything that is compiled. Unless set it is `cuda-builder` in the target
    /// folder of the build whose script this is, shared by its profiles, or in the kernel crate's
    /// target folder outside a build script.
    pub fn target_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.target_dir = Some(path.as_ref().to_owned());
        self
    }

    /// The `cargo` to run. Unless set it is the one this process runs under, or the one on `PATH`
    /// where there is none or the crate has another toolchain file.
    pub fn cargo(mut self, path: impl AsRef<Path>) -> Self {
        self.cargo = Some(path.as_ref().to_owned());
        self
    }

    /// Compiles for the one architecture chosen and returns the path of the PTX file.
    ///
    /// In a build script it also tells cargo what the result depends on.
    ///
    /// # Errors
    ///
    /// See [`CudaBuilderError`]; [`CudaBuilderError::RustSrcMissing`] is the one to expect on a
    /// machine where nobody has compiled kernels before.
    pub fn build(self) -> Result<PathBuf, CudaBuilderError> {
        if self.archs.len() != 1 {
            return Err(CudaBuilderError::ArchCount {
                count: self.archs.len(),
            });
        }
        let mut modules = self.build_all()?;
        Ok(modules.remove(0).ptx)
    }

    /// Compiles for every architecture chosen, several at a time, and returns the results in the
    /// order in which they were given.
    ///
    /// In a build script it also tells cargo what the results depend on.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build); of several failures the first in order of architectures.
    pub fn build_all(self) -> Result<Vec<BuiltModule>, CudaBuilderError> {
        if self.archs.is_empty() {
            return Err(CudaBuilderError::ArchCount { count: 0 });
        }
        let script = BuildScript::current();
        let mut watched = Vec::new();
        let result = self.build_watching(script.as_ref(), &mut watched);
        if script.is_some() {
            rerun::announce(&watched);
            if result
                .as_ref()
                .is_err_and(CudaBuilderError::is_about_toolchain)
            {
                rerun::announce_toolchain();
            }
        }
        result
    }

    fn build_watching(
        &self,
        script: Option<&BuildScript>,
        watched: &mut Vec<PathBuf>,
    ) -> Result<Vec<BuiltModule>, CudaBuilderError> {
        let missing = |_| CudaBuilderError::CratePathDoesntExist(self.crate_path.clone());
        let crate_path = fs::canonicalize(&self.crate_path).map_err(missing)?;
        let manifest = crate_path.join("Cargo.toml");
        watched.push(manifest.clone());
        if !manifest.is_file() {
            return Err(CudaBuilderError::CratePathDoesntExist(crate_path));
        }
        let toolchain = Toolchain::for_crate(&crate_path, self.cargo.as_deref());
        watched.extend(toolchain.file.clone());
        let sysroot = toolchain.check()?;
        watched.push(sysroot.components());
        sysroot.check_rust_src()?;

        let metadata = metadata(&toolchain, &manifest, script.is_none())?;
        let folders = rerun::package_folders(&metadata, &crate_path);
        watched.extend(rerun::manifests(&metadata, &folders));
        let crate_name = library_name(&metadata, &manifest)?;
        let target_dir = match (&self.target_dir, script) {
            (Some(explicit), _) => std::path::absolute(explicit).map_err(at(explicit))?,
            (None, Some(script)) => script.target_dir(),
            (None, None) => metadata.target_directory.as_std_path().join("cuda-builder"),
        };
        let job = Job {
            settings: &self.settings,
            toolchain: &toolchain,
            manifest: &manifest,
            crate_name: &crate_name,
            target_dir: &target_dir,
        };
        let compiled = compile_all(&job, &self.archs);
        match &compiled {
            Ok(modules) => watched.extend(modules.iter().flat_map(|module| module.sources.clone())),
            Err(_) => watched.extend(rerun::source_folders(&folders)),
        }
        compiled?
            .into_iter()
            .map(|module| self.copy(module))
            .collect()
    }

    fn copy(&self, mut module: BuiltModule) -> Result<BuiltModule, CudaBuilderError> {
        if let Some(to) = &self.copy_to {
            module.ptx = self.copy_file(&module.ptx, to, module.arch)?;
        }
        if let (Some(from), Some(to)) = (&module.llvm_ir, &self.final_module_path) {
            module.llvm_ir = Some(self.copy_file(from, to, module.arch)?);
        }
        Ok(module)
    }

    fn copy_file(
        &self,
        from: &Path,
        to: &Path,
        arch: NvvmArch,
    ) -> Result<PathBuf, CudaBuilderError> {
        let to = if self.archs.len() == 1 {
            to.to_owned()
        } else {
            with_arch(to, arch)
        };
        fs::read(from)
            .and_then(|content| write_if_changed(&to, &content))
            .map_err(|source| CudaBuilderError::FailedToCopyPtxFile {
                from: from.to_owned(),
                to: to.clone(),
                source,
            })?;
        Ok(to)
    }
}

/// `kernels.ptx` for an architecture: `kernels.sm_90.ptx`.
fn with_arch(path: &Path, arch: NvvmArch) -> PathBuf {
    let mut extension = OsString::from(arch.sm());
    if let Some(own) = path.extension() {
        extension.push(".");
        extension.push(own);
    }
    path.with_extension(extension)
}

/// Compiles for all architectures, as many at a time as there are processors: most of a
/// compilation is one thread generating code.
fn compile_all(job: &Job<'_>, archs: &[NvvmArch]) -> Result<Vec<BuiltModule>, CudaBuilderError> {
    let workers = std::thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(archs.len());
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(archs.len()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(&arch) = archs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = job.compile(arch);
                    let mut results = results.lock().unwrap_or_else(|held| held.into_inner());
                    results.push((arch, result));
                }
            });
        }
    });
    let mut results = results
        .into_inner()
        .unwrap_or_else(|held| held.into_inner());
    results.sort_by_key(|(arch, _)| archs.iter().position(|given| given == arch));
    results.into_iter().map(|(_, result)| result).collect()
}

fn metadata(
    toolchain: &Toolchain,
    manifest: &Path,
    own_target_dir: bool,
) -> Result<Metadata, CudaBuilderError> {
    let mut command = toolchain.cargo();
    command
        .args([
            "metadata",
            "--format-version=1",
            "--no-deps",
            "--manifest-path",
        ])
        .arg(manifest);
    if own_target_dir {
        for name in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR"] {
            command.envs(env::var_os(name).map(|value| (name, value)));
        }
    }
    let output = command
        .output()
        .map_err(|source| toolchain.cannot_run_cargo(source))?;
    let refused = |message: String| CudaBuilderError::Manifest {
        crate_path: manifest.to_owned(),
        message,
    };
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(refused(message.trim().to_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    MetadataCommand::parse(text).map_err(|error| refused(error.to_string()))
}

/// The name of the crate's library, as the compiler knows it.
fn library_name(metadata: &Metadata, manifest: &Path) -> Result<String, CudaBuilderError> {
    metadata
        .packages
        .iter()
        .filter(|package| package.manifest_path.as_std_path() == manifest)
        .flat_map(|package| &package.targets)
        .find(|target| {
            target.is_lib()
                || target.is_rlib()
                || target.is_dylib()
                || target.is_cdylib()
                || target.is_staticlib()
        })
        .map(|library| library.name.replace('-', "_"))
        .ok_or_else(|| CudaBuilderError::NoLibrary(manifest.to_owned()))
}

/// The build whose script this process is.
#[derive(Debug)]
struct BuildScript {
    out_dir: PathBuf,
}

impl BuildScript {
    fn current() -> Option<Self> {
        // Tests and programs run by cargo may have OUT_DIR, but not the others.
        env::var_os("TARGET").and(env::var_os("HOST"))?;
        Some(Self {
            out_dir: env::var_os("OUT_DIR")?.into(),
        })
    }

    /// A folder beside those of the profiles, so that `debug` and `release` share compiled kernels;
    /// within `OUT_DIR` where that does not lie as `<target>/<profile>/build/<package>/out`.
    fn target_dir(&self) -> PathBuf {
        let ancestors: Vec<&Path> = self.out_dir.ancestors().collect();
        match ancestors[..] {
            [out, _, build, _profile, target, ..]
                if out.ends_with("out") && build.ends_with("build") =>
            {
                target.join("cuda-builder")
            }
            _ => self.out_dir.join("cuda-builder"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_goes_before_the_extension() {
        let arch = NvvmArch::Compute90a;
        assert_eq!(
            with_arch(Path::new("a/k.ptx"), arch),
            Path::new("a/k.sm_90a.ptx")
        );
        assert_eq!(with_arch(Path::new("k"), arch), Path::new("k.sm_90a"));
    }

    #[test]
    fn profiles_share_a_target_folder() {
        let target_dir = |out_dir: &str| {
            let out_dir = out_dir.into();
            BuildScript { out_dir }.target_dir()
        };
        let shared = Path::new("/w/target/cuda-builder");
        assert_eq!(target_dir("/w/target/debug/build/host-12ab/out"), shared);
        assert_eq!(target_dir("/w/target/release/build/host-12ab/out"), shared);
        assert_eq!(
            target_dir("/somewhere/else"),
            Path::new("/somewhere/else/cuda-builder")
        );
    }

    #[test]
    fn the_number_of_architectures_is_checked_before_anything_else() {
        let builder = CudaBuilder::new("/there/is/none");
        let count = |result: Result<_, CudaBuilderError>| match result {
            Err(CudaBuilderError::ArchCount { count }) => Some(count),
            _ => None,
        };
        assert_eq!(
            count(builder.clone().archs(&[]).build_all().map(drop)),
            Some(0)
        );
        assert_eq!(
            count(builder.clone().archs(NvvmArch::ALL).build().map(drop)),
            Some(28)
        );
        assert_eq!(count(builder.build().map(drop)), None);
    }
}
