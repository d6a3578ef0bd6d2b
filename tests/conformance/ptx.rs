//! The shape of the PTX that the library carries: what the emulator, which runs the source, cannot see.
//!
//! Instructions are counted in the text, entry by entry, for every architecture. No GPU is needed.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_builder::ptx::{Function, Instruction, Module, Variable};
use cuda_std::launch::{KernelArgs, KernelInfo};
use kernels_gpu::{
    baseline, dequantize, ep, for_each_combine_format, for_each_ep_format, for_each_quantize_entry,
    moe, quantize, route,
};
use tokenyard::Device;
use tokenyard_tests::Suite;

pub fn register(suite: &mut Suite) {
    let mut case = |name: &str, check: fn(&Module) -> Result<()>| {
        suite.host(&format!("ptx::{name}"), move || every_module(check));
    };
    case("entries_and_parameters", entries_and_parameters);
    case("launch_bounds", launch_bounds);
    case("wide_loads", wide_loads);
    case("wide_stores", wide_stores);
    case("copy_engine", copy_engine);
    case("conversions", conversions);
    case("no_local_memory", no_local_memory);
    case("no_generic_access", no_generic_access);
    case("collectives", collectives);
    case("nothing_is_called", nothing_is_called);
}

/// An entry as its host side knows it.
struct Entry {
    kernel: KernelInfo,
    /// Elements that a thread reads at a time are this many 16-byte words; 0 for other kernels.
    words: usize,
}

macro_rules! quantize_entries {
    ($($name:ident, $twin:ident: $format:ident, $input:ident, $threads:literal;)*) => {
        fn quantizers() -> Vec<Entry> {
            vec![$(Entry {
                kernel: <quantize::$name::Args as KernelArgs>::KERNEL,
                words: if stringify!($input) == "F32" { 2 } else { 1 },
            }),*]
        }

        fn twins() -> Vec<KernelInfo> {
            vec![$(<quantize::$twin::Args as KernelArgs>::KERNEL),*]
        }
    };
}

for_each_quantize_entry!(quantize_entries);

macro_rules! expert_parallel_entries {
    ($entries:ident in $module:path, $bind:ident:
        $($send:ident, $receive:ident, $fused:ident: $format:ident;)*) => {
        fn $entries() -> Vec<Entry> {
            use $module as module;
            let kernels = [
                $(
                    <module::$send::Args as KernelArgs>::KERNEL,
                    <module::$receive::Args as KernelArgs>::KERNEL,
                    <module::$fused::Args as KernelArgs>::KERNEL,
                )*
                module::$bind::Args::KERNEL,
            ];
            kernels.into_iter().map(|kernel| Entry { kernel, words: 0 }).collect()
        }
    };
}

macro_rules! dispatch_entries {
    ($($entry:tt)*) => { expert_parallel_entries! { dispatches in ep, ep_bind_rank: $($entry)* } };
}

macro_rules! combine_entries {
    ($($entry:tt)*) => {
        expert_parallel_entries! { combines in ep::combine, ep_bind_combine: $($entry)* }
    };
}

for_each_ep_format!(dispatch_entries);
for_each_combine_format!(combine_entries);

/// All entries.
fn entries() -> Vec<Entry> {
    let others = [
        dequantize::dequantize_nvfp4::Args::KERNEL,
        dequantize::dequantize_mxfp4::Args::KERNEL,
        dequantize::dequantize_mxfp8::Args::KERNEL,
        dequantize::rows::dequantize_rows_bf16::Args::KERNEL,
        dequantize::rows::dequantize_rows_fp8::Args::KERNEL,
        dequantize::rows::dequantize_rows_mxfp4::Args::KERNEL,
        dequantize::rows::dequantize_rows_mxfp8::Args::KERNEL,
        baseline::baseline_copy::Args::KERNEL,
        baseline::baseline_empty::Args::KERNEL,
        route::route_count::Args::KERNEL,
        route::route_offsets::Args::KERNEL,
        route::route_place::Args::KERNEL,
        ep::receipt::ep_await_receipts::Args::KERNEL,
        ep::receipt::ep_give_receipts::Args::KERNEL,
        moe::moe_router_logits::Args::KERNEL,
        moe::moe_router_topk::Args::KERNEL,
        moe::moe_gate_up::Args::KERNEL,
        moe::moe_down::Args::KERNEL,
    ];
    let others = others.into_iter().chain(twins());
    let others = others.map(|kernel| Entry { kernel, words: 0 });
    quantizers()
        .into_iter()
        .chain(others)
        .chain(dispatches())
        .chain(combines())
        .collect()
}

/// Applies a check to each architecture's module.
fn every_module(check: fn(&Module) -> Result<()>) -> Result<Option<String>> {
    let mut targets = Vec::new();
    for (target, text) in tokenyard::embedded_ptx() {
        let module = Module::parse(text).with_context(|| target.clone())?;
        check(&module).with_context(|| target.clone())?;
        targets.push(target);
    }
    if targets.is_empty() {
        let reason = Device::cuda(0).err().map(|error| error.to_string());
        return Ok(Some(reason.context("there is a GPU, but no PTX for it")?));
    }
    ensure!(
        targets == ["compute_80", "compute_90", "compute_100a"],
        "{targets:?}"
    );
    Ok(None)
}

fn entry<'a>(module: &'a Module, kernel: &KernelInfo) -> Result<&'a Function> {
    module
        .entry(kernel.name)
        .with_context(|| format!("there is no entry {}", kernel.name))
}

/// Names the first instruction of an entry that breaks a rule.
fn none(function: &Function, rule: &str, breaks: impl Fn(&Instruction) -> bool) -> Result<()> {
    if let Some(instruction) = function.instructions.iter().find(|it| breaks(it)) {
        let Instruction {
            mnemonic,
            operands,
            line,
            ..
        } = instruction;
        bail!(
            "{}, line {line}: {rule}: {mnemonic} {operands}",
            function.name
        );
    }
    Ok(())
}

/// Compute capability times ten, from `sm_90` or `sm_100a`.
fn capability(module: &Module) -> Result<u32> {
    let digits = module
        .target
        .trim_start_matches("sm_")
        .trim_end_matches(['a', 'f']);
    digits.parse().with_context(|| module.target.clone())
}

/// Every entry is there, and its parameters have the sizes that the host passes.
fn entries_and_parameters(module: &Module) -> Result<()> {
    for Entry { kernel, .. } in entries() {
        let function = entry(module, &kernel)?;
        let found: Vec<u64> = function.params.iter().map(Variable::bytes).collect();
        let expected: Vec<u64> = kernel
            .params
            .iter()
            .map(|param| param.size as u64)
            .collect();
        ensure!(
            found == expected,
            "{}: {found:?} bytes, not {expected:?}",
            kernel.name
        );
    }
    ensure!(
        module.entries.len() == entries().len(),
        "{} entries",
        module.entries.len()
    );
    Ok(())
}

fn launch_bounds(module: &Module) -> Result<()> {
    for Entry { kernel, .. } in entries() {
        let found = entry(module, &kernel)?.directive("maxntid");
        let mut threads = kernel
            .max_threads
            .context("a kernel without launch bounds")?;
        if kernel.name.starts_with("grouped_quantize") && capability(module)? < 90 {
            threads = threads.min(quantize::MAX_THREADS_BEFORE_9_0);
        }
        ensure!(
            found == Some(&[threads, 1, 1]),
            "{}: {found:?}, not {threads}",
            kernel.name
        );
    }
    Ok(())
}

/// Bytes that one lane of a load or store moves: `v4.b32` and `v2.b64` are 16.
fn width(instruction: &Instruction) -> u32 {
    let mut bits = 1;
    for part in instruction.mnemonic.split('.').skip(1) {
        let number = part.trim_start_matches(char::is_alphabetic).parse::<u32>();
        let counts = part.starts_with(['v', 'b', 'u', 's', 'f']);
        bits *= number.ok().filter(|_| counts).unwrap_or(1);
    }
    bits / 8
}

/// Input is read 16 bytes at a time: by each lane two chunks of eight elements from each of two rows,
/// all on their way before the first is needed.
fn wide_loads(module: &Module) -> Result<()> {
    const CHUNKS_IN_FLIGHT: usize = 4;
    for Entry { kernel, words } in quantizers() {
        let function = entry(module, &kernel)?;
        let loads = |it: &&Instruction| it.is("ld.global") && width(it) >= 16;
        let found = function.instructions.iter().filter(loads).count();
        ensure!(
            found >= CHUNKS_IN_FLIGHT * words,
            "{}: {found} wide loads",
            kernel.name
        );
    }
    Ok(())
}

/// Scale tiles that threads store go 16 bytes at a time, out of shared memory as into global memory.
fn wide_stores(module: &Module) -> Result<()> {
    for Entry { kernel, .. } in quantizers() {
        let function = entry(module, &kernel)?;
        for space in ["st.shared", "ld.shared", "st.global"] {
            let wide = |it: &Instruction| it.is(space) && width(it) == 16;
            ensure!(
                function.instructions.iter().any(wide),
                "{}: no wide {space}",
                kernel.name
            );
        }
    }
    Ok(())
}

/// From 9.0 up both ways through the copy engine are there, behind the fence that they need; below,
/// nothing that the assembler would refuse.
fn copy_engine(module: &Module) -> Result<()> {
    let there = capability(module)? >= 90;
    for Entry { kernel, .. } in quantizers() {
        let function = entry(module, &kernel)?;
        for mnemonic in [
            "cp.async.bulk.global",
            "cp.async.bulk.tensor.3d.global",
            "cp.async.bulk.commit_group",
            "cp.async.bulk.wait_group.read",
            "fence.proxy.async",
        ] {
            let found = function.count(mnemonic) > 0;
            ensure!(
                found == there,
                "{}: {mnemonic}: {found}, not {there}",
                kernel.name
            );
        }
    }
    Ok(())
}

/// Conversion instructions where the hardware has them, and nowhere else.
fn conversions(module: &Module) -> Result<()> {
    let (capability, specific) = (capability(module)?, module.target.ends_with('a'));
    for Entry { kernel, .. } in quantizers() {
        let function = entry(module, &kernel)?;
        let has = |to: &str| {
            let converts = |it: &&Instruction| it.is("cvt") && it.mnemonic.contains(to);
            function.instructions.iter().any(|it| converts(&it))
        };
        let (fp4, mx) = (
            !kernel.name.contains("mxfp8"),
            !kernel.name.contains("nvfp4"),
        );
        let blackwell = capability >= 100 && specific;
        for (to, wanted) in [
            (
                ".e4m3x2",
                capability >= 89 && (kernel.name.contains("nvfp4") || !fp4),
            ),
            (".e2m1x2", blackwell && fp4),
            (".ue8m0x2", blackwell && mx),
        ] {
            ensure!(
                has(to) == wanted,
                "{}: {to}: {}, not {wanted}",
                kernel.name,
                has(to)
            );
        }
    }
    Ok(())
}

fn no_local_memory(module: &Module) -> Result<()> {
    for Entry { kernel, .. } in entries() {
        let function = entry(module, &kernel)?;
        ensure!(
            function.local_bytes() == 0,
            "{} declares local memory",
            kernel.name
        );
        none(function, "local memory", |it| {
            it.mnemonic.split('.').any(|part| part == "local")
        })?;
    }
    Ok(())
}

/// Loads and stores name their state space: generic ones are slower, and go astray on shared memory.
fn no_generic_access(module: &Module) -> Result<()> {
    const SPACES: [&str; 4] = ["global", "shared", "param", "const"];
    for Entry { kernel, .. } in entries() {
        none(entry(module, &kernel)?, "no state space", |it| {
            let mut parts = it.mnemonic.split('.');
            let accesses = matches!(parts.next(), Some("ld" | "st" | "atom" | "red"));
            // `shared::cta` is a part as well.
            accesses && !parts.any(|part| SPACES.iter().any(|space| part.starts_with(space)))
        })?;
    }
    Ok(())
}

/// Collectives are unconditional and name all lanes.
fn collectives(module: &Module) -> Result<()> {
    for Entry { kernel, words } in entries() {
        let function = entry(module, &kernel)?;
        none(function, "a collective under a predicate", |it| {
            let collective = ["shfl", "bar", "barrier", "vote", "match", "redux"];
            collective.iter().any(|name| it.is(name)) && it.predicate.is_some()
        })?;
        none(function, "a shuffle of some lanes", |it| {
            let mask = it.operands.rsplit(',').next().map(str::trim);
            it.is("shfl.sync") && !matches!(mask, Some("-1" | "0xffffffff" | "4294967295"))
        })?;
        if words > 0 {
            // Once after the staging area is zeroed, once before it is stored.
            let barriers = function.count("bar") + function.count("barrier");
            ensure!(barriers >= 2, "{}: {barriers} barriers", kernel.name);
            // A lane has 16 elements: a whole block of NVFP4, half of one of the MX formats.
            let (shuffles, exchanges) = (
                function.count("shfl.sync.bfly"),
                !kernel.name.contains("nvfp4"),
            );
            ensure!(
                (shuffles > 0) == exchanges,
                "{}: {shuffles} shuffles",
                kernel.name
            );
        }
    }
    Ok(())
}

/// No calls: everything is inlined. Of panics, at most that of a division by a zero which the host
/// never passes is left in, as a trap.
fn nothing_is_called(module: &Module) -> Result<()> {
    for Entry { kernel, .. } in entries() {
        let function = entry(module, &kernel)?;
        none(function, "a call", |it| it.is("call"))?;
        ensure!(
            function.count("trap") <= 1,
            "{} has panics in it",
            kernel.name
        );
    }
    let unresolved = module.unresolved_functions();
    ensure!(
        unresolved.is_empty(),
        "functions that nobody defines: {unresolved:?}"
    );
    Ok(())
}
