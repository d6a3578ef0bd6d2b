//! `cargo xtask ptx`: what the kernels compile to, and whether that is as it should be.

use std::path::Path;

use anyhow::{Context, Result, bail};
use cuda_builder::NvvmArch;
use serde::Serialize;

use crate::flags::PtxFlags;
use crate::kernels::{self, ArchReport, Budget, Ptx, Violation};
use crate::report::{self, Report};
use crate::tools;
use crate::workspace;

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    /// Release of the assembler, if there was one.
    ptxas: Option<String>,
    architectures: &'a [ArchReport],
    /// Broken rules, with `--check`.
    violations: &'a [Violation],
}

/// Runs the command.
///
/// # Errors
/// Kernels that do not compile or assemble; with `--check` a broken rule or a missing assembler.
pub fn run(flags: PtxFlags, report: Report) -> Result<()> {
    let root = workspace::require_root()?;
    let ptxas = match tools::find_ptxas(&root) {
        Ok(ptxas) => Some(ptxas),
        Err(_) if flags.fetch => Some(tools::fetch_ptxas(&root)?),
        Err(error) if flags.check || flags.bless => {
            return Err(error).context(tools::ptxas_hint());
        }
        Err(_) => None,
    };
    let version = ptxas.as_ref().map(|ptxas| ptxas.version()).transpose()?;

    let modules = modules(&root, &flags.arch)?;
    let spinner = report.spinner("assembling the kernels");
    let reports = kernels::inspect(&modules, ptxas.as_ref())?;
    spinner.finish_and_clear();
    for arch in &reports {
        print(arch, report)?;
    }
    match &version {
        Some(version) => report.line(format!("Assembled with ptxas {version}."))?,
        None => report.line(tools::ptxas_hint())?,
    }

    if flags.bless {
        let version = version.clone().unwrap_or_default();
        let recorded = Budget::read(&root).unwrap_or_default();
        recorded.updated(version, &reports).write(&root)?;
        report.line(format!("Recorded in {}.", Budget::path(&root).display()))?;
    }
    let violations = match flags.check {
        true => check(&reports, &Budget::read(&root)?),
        false => Vec::new(),
    };
    report.document(&Document {
        ptxas: version,
        architectures: &reports,
        violations: &violations,
    })?;
    if !violations.is_empty() {
        let lines: Vec<_> = violations.iter().map(Violation::to_string).collect();
        let count = report::counted(lines.len(), "broken rule");
        bail!("{count}:\n  {}", lines.join("\n  "));
    }
    if flags.check {
        let entries = reports.iter().map(|arch| arch.entries.len()).sum();
        report.line(format!(
            "{} checked: no spills, no local memory, registers as recorded, code shapes as wanted.",
            report::counted(entries, "kernel")
        ))?;
    }
    Ok(())
}

fn check(reports: &[ArchReport], budget: &Budget) -> Vec<Violation> {
    let broken = reports
        .iter()
        .map(|report| kernels::violations(report, budget));
    broken.flatten().collect()
}

/// The kernels for the architectures named, or those that the library embeds.
fn modules(root: &Path, names: &[String]) -> Result<Vec<Ptx>> {
    if names.is_empty() {
        return kernels::embedded();
    }
    let parse = |name: &String| {
        name.parse()
            .with_context(|| format!("{name:?} is not an architecture such as compute_90"))
    };
    let archs: Vec<NvvmArch> = names.iter().map(parse).collect::<Result<_>>()?;
    kernels::compile(root, &archs)
}

fn print(arch: &ArchReport, report: Report) -> Result<()> {
    let mut heading = format!(
        "{}: PTX {}",
        arch.arch,
        report::bytes(arch.ptx_bytes as u64)
    );
    if let Some(bytes) = arch.cubin_bytes {
        heading.push_str(&format!(", machine code {}", report::bytes(bytes as u64)));
    }
    report.line(heading)?;
    let titles = [
        "Kernel",
        "Registers",
        "Static shared",
        "Stack",
        "Spilled",
        "PTX instr.",
        "16 B loads",
        "Bulk stores",
        "Shuffles",
        "Barriers",
    ];
    let mut table = report::table(titles, 1);
    for entry in &arch.entries {
        let usage = |value: fn(&kernels::Usage) -> u32| match &entry.usage {
            Some(usage) => value(usage).to_string(),
            None => "?".to_owned(),
        };
        table.add_row([
            entry.name.clone(),
            usage(|usage| usage.registers),
            usage(|usage| usage.shared_bytes),
            usage(|usage| usage.stack_bytes + usage.local_bytes),
            usage(|usage| usage.spill_bytes),
            entry.instructions.to_string(),
            entry.wide_loads.to_string(),
            entry.bulk_stores.to_string(),
            entry.shuffles.to_string(),
            entry.barriers.to_string(),
        ]);
    }
    report.table(&table)
}
