//! What every kernel must, and must not, compile to.

use std::fmt;

use cuda_builder::ptx::{Function, Instruction};
use serde::Serialize;

use super::inspect::{bulk_stores, wide_global_loads};
use super::{ArchReport, Budget, EntryReport};

/// Names of the kernels that quantize begin with this.
const QUANTIZE_PREFIX: &str = "grouped_quantize_";
/// First compute capability, times ten, with the copy engine.
const BULK_COPY_CAPABILITY: u32 = 90;

/// A rule that a kernel breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The architecture.
    pub arch: String,
    /// The kernel.
    pub entry: String,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.arch, self.entry, self.what)
    }
}

/// Everything that is wrong with the kernels of one architecture. Registers, stack and spills are
/// only looked at where an assembler counted them.
pub fn violations(report: &ArchReport, budget: &Budget) -> Vec<Violation> {
    let mut found = Vec::new();
    for (entry, function) in report.entries.iter().zip(&report.module.entries) {
        let mut broken = shape(function);
        broken.extend(resources(
            entry,
            budget.registers(&report.arch, &entry.name),
        ));
        if entry.name.starts_with(QUANTIZE_PREFIX) {
            broken.extend(quantizer_shape(function, report.target.capability()));
        }
        found.extend(broken.into_iter().map(|what| Violation {
            arch: report.arch.clone(),
            entry: entry.name.clone(),
            what,
        }));
    }
    found
}

/// Rules for the resources that `ptxas` counts.
fn resources(entry: &EntryReport, budget: Option<u32>) -> Vec<String> {
    let Some(usage) = entry.usage else {
        return Vec::new();
    };
    let mut broken = Vec::new();
    let mut limit = |what: &str, bytes: u32| {
        if bytes > 0 {
            broken.push(format!("{bytes} bytes of {what}; there must be none"));
        }
    };
    limit("spilled registers", usage.spill_bytes);
    limit("stack", usage.stack_bytes);
    limit("local memory", usage.local_bytes);
    match budget {
        Some(recorded) if usage.registers > recorded => broken.push(format!(
            "{} registers, {recorded} are recorded; find out why, then `cargo xtask ptx --bless`",
            usage.registers
        )),
        None => broken
            .push("no register count is recorded; `cargo xtask ptx --bless` records it".to_owned()),
        _ => {}
    }
    broken
}

/// Rules for every kernel.
fn shape(entry: &Function) -> Vec<String> {
    let mut broken = Vec::new();
    if entry.directive("maxntid").is_none() {
        broken.push("no launch bound (.maxntid); say #[kernel(max_threads = N)]".to_owned());
    }
    if entry.uses_local_memory() {
        broken.push(format!(
            "local memory ({} bytes declared): an array did not fit registers",
            entry.local_bytes()
        ));
    }
    for collective in entry.instructions.iter().filter(|i| is_collective(i)) {
        if let Some(predicate) = &collective.predicate {
            broken.push(format!(
                "line {}: {} is executed under {predicate}; lanes may be missing",
                collective.line, collective.mnemonic
            ));
        }
    }
    for shuffle in entry.instructions.iter().filter(|i| i.is("shfl.sync")) {
        // The mask is the last operand.
        let mask = shuffle
            .operands
            .rsplit(',')
            .next()
            .unwrap_or_default()
            .trim();
        if !matches!(mask, "-1" | "0xffffffff" | "4294967295") {
            broken.push(format!(
                "line {}: {} has the member mask {mask}, not the full warp",
                shuffle.line, shuffle.mnemonic
            ));
        }
    }
    broken
}

/// Rules for the kernels that quantize.
fn quantizer_shape(entry: &Function, capability: u32) -> Vec<String> {
    let mut broken = Vec::new();
    if wide_global_loads(entry) == 0 {
        broken.push("no 16-byte load from global memory".to_owned());
    }
    if capability >= BULK_COPY_CAPABILITY && bulk_stores(entry) == 0 {
        broken.push("no bulk store of the scale tile".to_owned());
    }
    for access in entry.instructions.iter().filter(|i| is_generic_access(i)) {
        broken.push(format!(
            "line {}: {} does not name a state space",
            access.line, access.mnemonic
        ));
    }
    broken
}

/// Instructions that all lanes of a warp, or all threads of a block, execute together.
fn is_collective(instruction: &Instruction) -> bool {
    const COLLECTIVES: [&str; 7] = [
        "shfl.sync",
        "vote.sync",
        "match.any.sync",
        "match.all.sync",
        "redux.sync",
        "bar",
        "barrier",
    ];
    COLLECTIVES.iter().any(|name| instruction.is(name))
}

/// Loads and stores that leave it to the hardware to find out which memory they mean.
fn is_generic_access(instruction: &Instruction) -> bool {
    const SPACES: [&str; 5] = ["global", "shared", "local", "param", "const"];
    if !["ld", "st"].iter().any(|name| instruction.is(name)) {
        return false;
    }
    // A space may be refined: shared::cta, param::entry.
    let names_space = |modifier: &str| {
        let space = modifier.split("::").next().unwrap_or_default();
        SPACES.contains(&space)
    };
    !instruction.mnemonic.split('.').any(names_space)
}

#[cfg(test)]
mod tests {
    use cuda_builder::NvvmArch;
    use cuda_builder::ptx::Module;

    use super::super::inspect::Usage;
    use super::*;

    fn report(name: &str, head: &str, body: &str) -> ArchReport {
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n\
             .visible .entry {name}(.param .u64 a)\n{head}\n{{\n{body}\n}}\n"
        );
        let module = Module::parse(&text).unwrap();
        ArchReport {
            arch: "compute_90".to_owned(),
            ptx_bytes: text.len(),
            cubin_bytes: None,
            entries: vec![EntryReport {
                name: name.to_owned(),
                usage: None,
                instructions: 0,
                wide_loads: 0,
                bulk_stores: 0,
                shuffles: 0,
                barriers: 0,
            }],
            module,
            target: NvvmArch::Compute90,
        }
    }

    fn broken(report: &ArchReport, budget: &Budget) -> Vec<String> {
        violations(report, budget)
            .into_iter()
            .map(|violation| violation.what)
            .collect()
    }

    const BOUND: &str = ".maxntid 128, 1, 1";
    const GOOD: &str = "\
ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;
ld.shared.b32 %r1, [%r2];
st.shared::cta.b8 [%r2], %r1;
@%p1 st.global.b32 [%rd1], %r1;
cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 512;
ret;";

    #[test]
    fn a_good_kernel_breaks_no_rule() {
        let report = report("grouped_quantize_nvfp4", BOUND, GOOD);
        assert_eq!(broken(&report, &Budget::default()), Vec::<String>::new());
    }

    #[test]
    fn each_shape_rule_is_checked() {
        for (head, from, to, expected) in [
            ("", "", "", "no launch bound"),
            (
                BOUND,
                "ret;",
                "st.local.b32 [%r1], %r2; ret;",
                "local memory",
            ),
            (BOUND, "31, -1", "31, %r9", "the member mask %r9"),
            (BOUND, "shfl", "@%p2 shfl", "is executed under %p2"),
            (BOUND, "ld.global.v4", "ld.global.v2", "no 16-byte load"),
            (
                BOUND,
                "cp.async.bulk.global",
                "cp.async.global",
                "no bulk store",
            ),
            (
                BOUND,
                "ld.shared.b32",
                "ld.b32",
                "does not name a state space",
            ),
        ] {
            let report = report("grouped_quantize_nvfp4", head, &GOOD.replacen(from, to, 1));
            let broken = broken(&report, &Budget::default());
            assert!(
                broken.len() == 1 && broken[0].contains(expected),
                "{expected}: {broken:?}"
            );
        }
    }

    #[test]
    fn only_quantizers_need_wide_loads_and_bulk_stores() {
        let report = report("route_count", BOUND, "ld.b32 %r1, [%rd1]; ret;");
        assert!(broken(&report, &Budget::default()).is_empty());
    }

    #[test]
    fn resources_are_held_against_the_budget() {
        let mut report = report("grouped_quantize_nvfp4", BOUND, GOOD);
        let mut check = |usage, budget: &Budget| {
            report.entries[0].usage = Some(usage);
            broken(&report, budget)
        };
        let usage = Usage {
            registers: 40,
            shared_bytes: 512,
            stack_bytes: 0,
            spill_bytes: 0,
            local_bytes: 0,
        };
        let budget = |registers| Budget {
            ptxas: "13.0".to_owned(),
            registers: [(
                "compute_90".to_owned(),
                [("grouped_quantize_nvfp4".to_owned(), registers)].into(),
            )]
            .into(),
        };
        assert!(check(usage, &budget(40)).is_empty());
        assert!(check(usage, &budget(39))[0].starts_with("40 registers, 39 are recorded"));
        assert!(check(usage, &Budget::default())[0].contains("no register count is recorded"));
        let spilled = Usage {
            spill_bytes: 8,
            stack_bytes: 16,
            ..usage
        };
        assert_eq!(check(spilled, &budget(40)).len(), 2);
    }
}
