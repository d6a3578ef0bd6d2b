//! Compiles `kernels-gpu` to PTX for each architecture, assembles it where `ptxas` is at hand, and
//! writes a module that embeds the results: `IMAGES`, `ENTRY_NAMES` and `MISSING` of
//! `src/backend/images.rs`.

use cuda_builder::ptx::Module;
use cuda_builder::ptxas::{Ptxas, PtxasError};
use cuda_builder::{ArchVariant, BuiltModule, CudaBuilder, CudaBuilderError, NvvmArch};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Oldest to newest. Code for `Compute100a` runs on exactly that capability.
const ARCHITECTURES: [NvvmArch; 3] = [
    NvvmArch::Compute80,
    NvvmArch::Compute90,
    NvvmArch::Compute100a,
];

fn main() -> Result<(), Box<dyn Error>> {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["PTXAS", "PATH", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }

    let built = CudaBuilder::new("../kernels-gpu")
        .archs(&ARCHITECTURES)
        .build_all();
    let images = match built {
        Ok(modules) => images(&modules, &out_dir)?,
        // Without the sources of `core` there can be no kernels, but all else works.
        Err(error @ CudaBuilderError::RustSrcMissing { .. }) => {
            println!("cargo::warning=built without GPU kernels: {error}");
            missing(&error)
        }
        Err(error) => return Err(error.into()),
    };
    fs::write(out_dir.join("images.rs"), images)?;
    Ok(())
}

fn images(modules: &[BuiltModule], out_dir: &Path) -> Result<String, Box<dyn Error>> {
    // Machine code saves compilation at load, no more: without an assembler there is PTX.
    let ptxas = Ptxas::find()
        .inspect_err(|error| {
            if env::var_os("PTXAS").is_some() {
                println!("cargo::warning=no machine code is embedded: {error}");
            }
        })
        .ok();
    let mut source = String::from("pub(crate) const IMAGES: &[Image] = &[\n");
    let mut entries = Vec::new();
    for module in modules {
        let ptx = fs::read_to_string(&module.ptx)?;
        // The entries are the same for every architecture: they come from the same source.
        let parsed = Module::parse(&ptx)?;
        entries = parsed
            .entries
            .iter()
            .map(|entry| entry.name.clone())
            .collect();

        // An assembler older than an architecture refuses it.
        let assembled = ptxas.as_ref().and_then(|ptxas| {
            let warn = |error: &PtxasError| {
                println!(
                    "cargo::warning=no machine code for {}: {error}",
                    module.arch
                );
            };
            ptxas.assemble(&ptx, module.arch).inspect_err(warn).ok()
        });
        let cubin = match assembled {
            Some(assembled) => {
                let path = out_dir.join(format!("{}.cubin", module.arch.sm()));
                fs::write(&path, assembled.cubin)?;
                format!("Some(include_bytes!({path:?}))")
            }
            None => "None".into(),
        };
        writeln!(
            source,
            "Image {{ capability: {}, arch_specific: {}, ptx: include_str!({:?}), cubin: {cubin} }},",
            module.arch.capability(),
            module.arch.variant() == ArchVariant::Specific,
            module.ptx,
        )?;
    }
    writeln!(source, "];")?;
    writeln!(
        source,
        "pub(crate) const ENTRY_NAMES: &[&str] = &{entries:?};"
    )?;
    writeln!(
        source,
        "pub(crate) const MISSING: Option<(&str, &str)> = None;"
    )?;
    Ok(source)
}

/// A build without kernels, which says why when somebody asks for a GPU.
fn missing(error: &CudaBuilderError) -> String {
    let command = match error {
        CudaBuilderError::RustSrcMissing {
            command: Some(command),
            ..
        } => command.clone(),
        _ => "install the component rust-src of the toolchain".into(),
    };
    format!(
        "pub(crate) const IMAGES: &[Image] = &[];\n\
         pub(crate) const ENTRY_NAMES: &[&str] = &[];\n\
         pub(crate) const MISSING: Option<(&str, &str)> = Some(({:?}, {command:?}));\n",
        error.to_string(),
    )
}
