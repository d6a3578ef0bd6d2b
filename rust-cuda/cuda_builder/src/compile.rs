//! One run of cargo: a kernel crate compiled for one architecture.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use cargo_metadata::diagnostic::DiagnosticLevel;
use cargo_metadata::{Artifact, CrateType, Message};

use crate::builder::{BuiltModule, Settings};
use crate::toolchain::Toolchain;
use crate::{CudaBuilderError, NvvmArch, launch_bounds, ptx, rerun};

const TARGET: &str = "nvptx64-nvidia-cuda";

/// Lints about features that the builder switches on: those that are internal, those that the
/// crate names too because it needs them on the CPU as well, those that it does not need.
const ALLOWED_LINTS: &str = "duplicate_features, internal_features, unused_features";

/// What does not change from one architecture to the next.
pub(crate) struct Job<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) toolchain: &'a Toolchain,
    /// The crate's manifest.
    pub(crate) manifest: &'a Path,
    /// The crate's name as the compiler knows it.
    pub(crate) crate_name: &'a str,
    /// The folder under which every architecture has its target folder.
    pub(crate) target_dir: &'a Path,
}

impl Job<'_> {
    /// Compiles for one architecture. A target folder of its own lets architectures be compiled at
    /// the same time, where cargo would otherwise wait for the folder's lock.
    pub(crate) fn compile(&self, arch: NvvmArch) -> Result<BuiltModule, CudaBuilderError> {
        let target_dir = self.target_dir.join(arch.sm());
        let cargo_args = self.cargo_args(&target_dir);
        let mut rustc_args = self.rustc_args();
        let rustflags = self.rustflags(arch);

        // Different settings leave different files, so that none is taken for the other's.
        let mut hasher = DefaultHasher::new();
        (&cargo_args, &rustc_args, &rustflags, self.manifest).hash(&mut hasher);
        let out = target_dir.join(format!("ptx-{:016x}", hasher.finish()));
        fs::create_dir_all(&out).map_err(at(&out))?;
        let file = |extension: &str| out.join(format!("{}.{extension}", self.crate_name));
        let raw = file("s");
        rustc_args.push(format!("--emit=asm={}", raw.display()));
        let llvm_ir = self.settings.emit_llvm_ir.then(|| file("ll"));
        let llvm_bitcode = self.settings.emit_llvm_bitcode.then(|| file("bc"));
        for (kind, path) in [("llvm-ir", &llvm_ir), ("llvm-bc", &llvm_bitcode)] {
            rustc_args.extend(
                path.iter()
                    .map(|path| format!("--emit={kind}={}", path.display())),
            );
        }

        let mut command = self.toolchain.cargo();
        command
            .args(cargo_args)
            .arg("--")
            .args(rustc_args)
            .env("CARGO_ENCODED_RUSTFLAGS", rustflags.join("\x1f"))
            .env("CUDA_ARCH", arch.cuda_arch().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command
            .spawn()
            .map_err(|source| self.toolchain.cannot_run_cargo(source))?;
        let artifact = self.follow(child, arch)?;

        let ptx = file("ptx");
        finish(&raw, &ptx)?;
        Ok(BuiltModule {
            arch,
            ptx,
            llvm_ir,
            llvm_bitcode,
            fresh: artifact.as_ref().is_some_and(|artifact| artifact.fresh),
            sources: artifact
                .iter()
                .flat_map(|artifact| &artifact.filenames)
                .flat_map(|file| rerun::sources(file.with_extension("d").as_std_path()))
                .collect(),
        })
    }

    fn cargo_args(&self, target_dir: &Path) -> Vec<String> {
        let settings = self.settings;
        let build_std = if settings.alloc { "core,alloc" } else { "core" };
        let mut args: Vec<String> = ["rustc", "--lib", "--release", "--crate-type", "staticlib"]
            .map(str::to_owned)
            .into();
        args.extend([
            format!("--manifest-path={}", self.manifest.display()),
            format!("--target={TARGET}"),
            format!("--target-dir={}", target_dir.display()),
            format!("-Zbuild-std={build_std}"),
            "--message-format=json".to_owned(),
        ]);
        // One optimised module, whatever the crate's own profile says: without link-time
        // optimisation the PTX lacks the parts of `core` that were not inlined.
        let checked = !settings.release;
        let debug = if settings.line_info {
            "\"line-directives-only\""
        } else {
            "false"
        };
        for (key, value) in [
            ("opt-level", if checked { "1" } else { "3" }),
            ("lto", "\"fat\""),
            ("codegen-units", "1"),
            ("incremental", "false"),
            ("debug", debug),
            ("debug-assertions", if checked { "true" } else { "false" }),
            ("overflow-checks", if checked { "true" } else { "false" }),
        ] {
            args.push(format!("--config=profile.release.{key}={value}"));
        }
        args.extend(settings.build_args.iter().cloned());
        args
    }

    /// Arguments for the kernel crate alone.
    fn rustc_args(&self) -> Vec<String> {
        let settings = self.settings;
        let mut args = Vec::new();
        if !settings.language_features.is_empty() {
            let features = settings.language_features.join(", ");
            args.push(format!("-Zcrate-attr=feature({features})"));
        }
        args.push(format!("-Zcrate-attr=allow({ALLOWED_LINTS})"));
        // Code is generated after link-time optimisation, with the kernel crate.
        for (wanted, option) in [
            (settings.fast_sqrt, "-nvptx-prec-sqrtf32=0"),
            (settings.fast_div, "-nvptx-prec-divf32=0"),
            (settings.fma_contraction, "-nvptx-fma-level=1"),
        ] {
            if wanted {
                args.push(format!("-Cllvm-args={option}"));
            }
        }
        args
    }

    /// Flags for every crate, `core` included.
    fn rustflags(&self, arch: NvvmArch) -> Vec<String> {
        let mut flags = vec![format!("-Ctarget-cpu={}", arch.sm())];
        if let Some((major, minor)) = self.settings.ptx_version.or_else(|| least_ptx(arch)) {
            flags.push(format!("-Ctarget-feature=+ptx{major}{minor}"));
        }
        flags.extend(["-Zunstable-options", "-Cpanic=immediate-abort"].map(str::to_owned));
        flags
    }

    /// Passes on what cargo says, and waits for it. The result is the artifact of the kernel crate.
    fn follow(
        &self,
        mut child: Child,
        arch: NvvmArch,
    ) -> Result<Option<Artifact>, CudaBuilderError> {
        let cannot_follow = |source| self.toolchain.cannot_run_cargo(source);
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let (messages, progress) = std::thread::scope(|scope| {
            let progress = scope.spawn(|| {
                let mut lines = Vec::new();
                for line in stderr
                    .into_iter()
                    .flat_map(|stderr| BufReader::new(stderr).lines())
                {
                    let line = line?;
                    eprintln!("{line}");
                    lines.push(line);
                }
                Ok::<_, io::Error>(lines.join("\n"))
            });
            let messages = stdout
                .into_iter()
                .flat_map(|stdout| Message::parse_stream(BufReader::new(stdout)))
                .collect::<io::Result<Vec<_>>>();
            let progress = progress
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (messages, progress)
        });
        let status = child.wait().map_err(cannot_follow)?;
        let (messages, progress) = (
            messages.map_err(cannot_follow)?,
            progress.map_err(cannot_follow)?,
        );

        let mut artifact = None;
        let mut errors = String::new();
        for message in messages {
            match message {
                Message::CompilerMessage(message) => {
                    let rendered = message.message.rendered.unwrap_or(message.message.message);
                    if is_error(message.message.level) {
                        errors.push_str(&rendered);
                    } else if !is_about_ptx_feature(&rendered) {
                        eprint!("{rendered}");
                    }
                }
                Message::CompilerArtifact(built)
                    if built.manifest_path.as_std_path() == self.manifest
                        && built.target.crate_types.contains(&CrateType::StaticLib) =>
                {
                    artifact = Some(built);
                }
                _ => {}
            }
        }
        if status.success() {
            Ok(artifact)
        } else {
            let messages = if errors.is_empty() { progress } else { errors };
            Err(CudaBuilderError::BuildFailed {
                arch: arch.sm(),
                messages: messages.trim_end().to_owned(),
            })
        }
    }
}

/// The PTX version asked for unless the caller says otherwise: 8.3, the first with all of Hopper's
/// fences, which every driver since CUDA 12.3 takes, where the architecture does not need a later one. (The backend would choose as early
/// a version as possible, without the instructions that came later for the same architecture.)
fn least_ptx(arch: NvvmArch) -> Option<(u32, u32)> {
    (arch <= NvvmArch::Compute90).then_some((8, 3))
}

fn is_error(level: DiagnosticLevel) -> bool {
    matches!(level, DiagnosticLevel::Error | DiagnosticLevel::Ice)
}

/// The compiler warns, in every crate, that a PTX version is an unstable feature. The builder asks
/// for it, not the crate's author.
fn is_about_ptx_feature(rendered: &str) -> bool {
    rendered.starts_with("warning: unstable feature specified for `-Ctarget-feature`: `ptx")
}

/// From the compiler's PTX to the final one.
fn finish(raw: &Path, ptx: &Path) -> Result<(), CudaBuilderError> {
    let text = match fs::read_to_string(raw) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CudaBuilderError::PtxNotFound(raw.to_owned()));
        }
        Err(error) => return Err(at(raw)(error)),
    };
    let text = launch_bounds::apply(&text).map_err(|source| CudaBuilderError::LaunchBounds {
        path: raw.to_owned(),
        source,
    })?;
    if fs::read(ptx).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    ptx::Module::parse(&text).map_err(|source| CudaBuilderError::Ptx {
        path: raw.to_owned(),
        source,
    })?;
    fs::write(ptx, text).map_err(at(ptx))
}

/// Writes a file, unless it already has that content: whoever embeds it is compiled again when its
/// time of modification changes.
pub(crate) fn write_if_changed(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content)
}

pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> CudaBuilderError {
    let path = PathBuf::from(path);
    move |source| CudaBuilderError::Io {
        path: path.clone(),
        source,
    }
}
