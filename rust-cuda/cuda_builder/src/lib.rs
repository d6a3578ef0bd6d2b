//! Compiles a Rust kernel crate to PTX with rustc's own backend, in a build script or anywhere.
//!
//! ```no_run
//! // build.rs
//! use cuda_builder::{CudaBuilder, NvvmArch};
//!
//! fn main() -> Result<(), cuda_builder::CudaBuilderError> {
//!     let ptx = CudaBuilder::new("../kernels").arch(NvvmArch::Compute90).build()?;
//!     println!("cargo::rustc-env=KERNELS_PTX={}", ptx.display());
//!     Ok(())
//! }
//! // src/lib.rs: static PTX: &str = include_str!(env!("KERNELS_PTX"));
//! ```
//!
//! Several architectures in one go: [`CudaBuilder::archs`] and [`CudaBuilder::build_all`].
//!
//! # What it needs
//!
//! A nightly toolchain with the component `rust-src`, from which `core` is compiled for the GPU. No
//! CUDA toolkit, no LLVM, no linker. Where `rust-src` is missing the error is
//! [`CudaBuilderError::RustSrcMissing`], found before anything is compiled, with the command that
//! installs it.
//!
//! # What the kernel crate needs
//!
//! `#![no_std]`, a panic handler (`cuda_std` has one) and kernels: `extern "ptx-kernel"` functions
//! with a fixed symbol. Language features ([`DEFAULT_LANGUAGE_FEATURES`]), crate type and profile
//! come from the builder, so its manifest says nothing about them; a crate may switch on the same
//! features itself. Launch bounds come from comments in the assembly: see [`launch_bounds`].
//!
//! # What is done
//!
//! `cargo rustc` compiles the crate as a static library for `nvptx64-nvidia-cuda`, with `core`
//! (`-Zbuild-std`), optimised as one module, and emits it as assembly, which is PTX for the whole
//! program. The toolchain is the one that the running cargo uses, unless the kernel crate lies
//! under another toolchain file. Flags, wrappers and target of the outer build do not reach the
//! kernels; the job server does. `CUDA_ARCH` is set to ten times the compute capability's two or
//! three digits (900 for 9.0) while they compile.
//!
//! Every architecture has its own target folder, since each needs its own `core`, and as many are
//! compiled at a time as there are processors. Nothing is written outside the target folder, and a
//! file whose content does not change is not touched.
//!
//! In a build script `cargo::rerun-if-changed` is printed for the sources and manifests of the
//! crate and of its path dependencies, and for the toolchain's list of components, so that a script
//! that carried on without kernels ([`CudaBuilderError::is_about_toolchain`]) runs again when
//! `rust-src` appears.
//!
//! | processor time for each architecture | this package's test kernels | 21 kernels, 700 kB of PTX |
//! | --- | --- | --- |
//! | cold: `core` is compiled, for 17 s of it | 19 s | 40 s with the dependencies, macros included |
//! | warm: a kernel was edited | 0.3 s | 2.3 s |
//! | nothing was edited | 0.1 s | 0.1 s |
//!
//! Two processors compile two architectures at a time: by these times, three of the larger crate
//! take about a minute cold and 4 s warm where nothing else runs.
//!
//!
//! # Compared with the published `cuda_builder` 0.3
//!
//! That crate of the same name and interface drives `rustc_codegen_nvvm`; this one drives rustc's
//! LLVM backend.
//!
//! | published | here |
//! | --- | --- |
//! | `new`, `build_args`, `arch`, `copy_to`, `build`, `emit_llvm_ir`, `emit_llvm_bitcode` | the same |
//! | `release` | the same; `false` means little optimisation and checked arithmetic, since unoptimised PTX does not assemble |
//! | `debug`, `generate_line_info` | source lines only; `DebugInfo` has the same variants; none unless asked for |
//! | `fast_sqrt`, `fast_div` | the same |
//! | `fma_contraction` | the same, but `false` unless asked for |
//! | `final_module_path` (in its repository) | the LLVM IR from which the PTX is generated |
//! | [`NvvmArch`] up to `Compute80` | 7.0 to 12.1 with the variants `a` and `f`; older ones are unknown to rustc |
//! | `ftz` | absent: the backend's flushing applies to some instructions and not to others; use instructions that flush where it is wanted |
//! | `nvvm_opts` | absent: there is no second optimiser; see `release` |
//! | `override_libm` | absent: there is no libdevice; `core` has the functions that the hardware has |
//! | `nvptx_32`, `optix` | absent: no such target |
//! | `CudaBuilderError` | the same three cases and those that it reports by panicking |
//! | | added: `archs`, `build_all`, `build_alloc`, `ptx_version`, `language_features`, `target_dir`, `cargo` |
//!
//! # Looking at the result
//!
//! [`ptx::Module`] reads PTX: entries, parameters, directives, instructions, local memory.
//! [`ptxas::Ptxas`] finds NVIDIA's assembler where there is one, assembles ahead of time, and
//! reports registers, shared memory, stack and spills of every kernel.

mod arch;
mod builder;
mod compile;
mod error;
pub mod launch_bounds;
pub mod ptx;
pub mod ptxas;
mod rerun;
mod toolchain;

pub use arch::{ArchVariant, NvvmArch, UnknownArch};
pub use builder::{BuiltModule, CudaBuilder, DEFAULT_LANGUAGE_FEATURES, DebugInfo};
pub use error::CudaBuilderError;
