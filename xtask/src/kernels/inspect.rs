//! Collects what PTX and `ptxas` say about each kernel.

use std::fs;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, bail};
use cuda_builder::ptx::{Function, Module};
use cuda_builder::ptxas::{Ptxas, ResourceUsage};
use cuda_builder::{CudaBuilder, NvvmArch};
use serde::Serialize;
use tokenyard::{Device, DeviceError};

/// PTX for one architecture.
#[derive(Clone, Debug)]
pub struct Ptx {
    /// What it was compiled for.
    pub arch: NvvmArch,
    /// The text.
    pub text: String,
}

/// The kernels for one architecture.
#[derive(Debug, Serialize)]
pub struct ArchReport {
    /// For example `compute_90`.
    pub arch: String,
    /// Size of the PTX in bytes.
    pub ptx_bytes: usize,
    /// Size of the machine code in bytes, where there was an assembler.
    pub cubin_bytes: Option<usize>,
    /// One per kernel, in the order of the PTX.
    pub entries: Vec<EntryReport>,
    /// The PTX itself, parsed.
    #[serde(skip)]
    pub module: Module,
    /// What it was compiled for.
    #[serde(skip)]
    pub target: NvvmArch,
}

/// One kernel.
#[derive(Debug, Serialize)]
pub struct EntryReport {
    /// Its symbol.
    pub name: String,
    /// What `ptxas` needs for it, where there was one.
    pub usage: Option<Usage>,
    /// PTX instructions in its body.
    pub instructions: usize,
    /// Loads of 16 bytes from global memory.
    pub wide_loads: usize,
    /// Copies from shared to global memory by the copy engine.
    pub bulk_stores: usize,
    /// Warp shuffles.
    pub shuffles: usize,
    /// Block-wide barriers.
    pub barriers: usize,
}

/// Resources of a kernel, per thread unless said otherwise.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Usage {
    /// Registers.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Stack frame, in bytes.
    pub stack_bytes: u32,
    /// Bytes stored to and loaded from spilled registers.
    pub spill_bytes: u32,
    /// Local memory that is neither, in bytes.
    pub local_bytes: u32,
}

impl From<&ResourceUsage> for Usage {
    fn from(usage: &ResourceUsage) -> Self {
        Self {
            registers: usage.registers,
            shared_bytes: usage.shared,
            stack_bytes: usage.stack,
            spill_bytes: usage.spill_stores + usage.spill_loads,
            local_bytes: usage.local,
        }
    }
}

/// The kernels that the library embeds.
///
/// # Errors
/// A library that was built without kernels; the message has the command that changes this.
pub fn embedded() -> Result<Vec<Ptx>> {
    let modules: Vec<_> = tokenyard::embedded_ptx()
        .map(|(name, text)| {
            let arch = name.parse()?;
            let text = text.to_owned();
            Ok(Ptx { arch, text })
        })
        .collect::<Result<_>>()?;
    match Device::cuda(0) {
        Err(error @ DeviceError::KernelsMissing { .. }) => Err(error.into()),
        _ if modules.is_empty() => bail!("the library embeds no kernels"),
        _ => Ok(modules),
    }
}

/// Compiles the kernels of the checkout at `root` for other architectures than the library does.
///
/// # Errors
/// Kernels that do not compile.
pub fn compile(root: &Path, archs: &[NvvmArch]) -> Result<Vec<Ptx>> {
    let built = CudaBuilder::new(root.join("kernels-gpu"))
        .archs(archs)
        .build_all()?;
    let read = |module: &cuda_builder::BuiltModule| {
        let text = fs::read_to_string(&module.ptx)
            .with_context(|| format!("cannot read {}", module.ptx.display()))?;
        Ok(Ptx {
            arch: module.arch,
            text,
        })
    };
    built.iter().map(read).collect()
}

/// Reports on `modules`, assembling them if there is an assembler.
///
/// # Errors
/// PTX that cannot be read, or that the assembler refuses.
pub fn inspect(modules: &[Ptx], ptxas: Option<&Ptxas>) -> Result<Vec<ArchReport>> {
    // The assembler takes seconds for each and has one thread.
    thread::scope(|scope| {
        let workers: Vec<_> = modules
            .iter()
            .map(|module| scope.spawn(|| inspect_one(module, ptxas)))
            .collect();
        workers
            .into_iter()
            .map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

fn inspect_one(ptx: &Ptx, ptxas: Option<&Ptxas>) -> Result<ArchReport> {
    let Ptx { arch, text } = ptx;
    let module = Module::parse(text).with_context(|| format!("cannot read the PTX for {arch}"))?;
    let assembled = ptxas.map(|ptxas| ptxas.assemble(text, *arch)).transpose()?;
    let entries = module
        .entries
        .iter()
        .map(|entry| {
            let usage = assembled
                .as_ref()
                .and_then(|code| code.entries.get(&entry.name));
            report(entry, usage)
        })
        .collect();
    Ok(ArchReport {
        arch: arch.to_string(),
        ptx_bytes: text.len(),
        cubin_bytes: assembled.map(|code| code.cubin.len()),
        entries,
        module,
        target: *arch,
    })
}

fn report(entry: &Function, usage: Option<&ResourceUsage>) -> EntryReport {
    EntryReport {
        name: entry.name.clone(),
        usage: usage.map(Usage::from),
        instructions: entry.instructions.len(),
        wide_loads: wide_global_loads(entry),
        bulk_stores: bulk_stores(entry),
        shuffles: entry.count("shfl"),
        barriers: entry.count("bar.sync") + entry.count("barrier"),
    }
}

/// Loads of 16 bytes from global memory: `ld.global[.nc].v4.b32` or `.v2.b64`.
pub fn wide_global_loads(entry: &Function) -> usize {
    let wide = |mnemonic: &str| {
        let mut parts = mnemonic.rsplit('.');
        let width = parts.next().and_then(|ty| ty.get(1..)?.parse::<u32>().ok());
        let vector = parts
            .next()
            .and_then(|vector| vector.strip_prefix('v')?.parse::<u32>().ok());
        width
            .zip(vector)
            .is_some_and(|(width, vector)| width * vector == 128)
    };
    let loads = entry
        .instructions
        .iter()
        .filter(|load| load.is("ld.global"));
    loads.filter(|load| wide(&load.mnemonic)).count()
}

/// Bulk copies out of shared memory, with or without a tensor map.
pub fn bulk_stores(entry: &Function) -> usize {
    let copies = entry
        .instructions
        .iter()
        .filter(|copy| copy.is("cp.async.bulk"));
    copies
        .filter(|copy| copy.mnemonic.contains(".global.shared::cta"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted() {
        let text = "\
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a)
.maxntid 128, 1, 1
{
	ld.param.b64 	%rd1, [a];
	ld.global.v4.b32 	{%r1, %r2, %r3, %r4}, [%rd1];
	ld.global.nc.v2.b64 	{%rd2, %rd3}, [%rd1];
	ld.global.v2.b32 	{%r1, %r2}, [%rd1];
	ld.global.b32 	%r1, [%rd1];
	shfl.sync.bfly.b32 	%r1|%p1, %r2, 1, 31, -1;
	bar.sync 	0;
	cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 512;
	cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];
	cp.async.bulk.commit_group;
	ret;
}
";
        let ptx = Ptx {
            arch: NvvmArch::Compute90,
            text: text.to_owned(),
        };
        let report = inspect(&[ptx], None).unwrap().remove(0);
        assert_eq!(report.arch, "compute_90");
        assert_eq!(report.cubin_bytes, None);
        let [entry] = &report.entries[..] else {
            panic!("{:?}", report.entries);
        };
        assert_eq!((entry.wide_loads, entry.bulk_stores), (2, 2));
        assert_eq!(
            (entry.shuffles, entry.barriers, entry.instructions),
            (1, 1, 11)
        );
    }
}
