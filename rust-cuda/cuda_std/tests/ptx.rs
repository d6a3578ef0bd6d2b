//! The kernels of `tests/device` as PTX: every instruction is there, of the right kind, for every
//! architecture that has it, and `ptxas` accepts them.
//!
//! Compiles `core` once for each architecture. Without `ptxas` (see `cuda_builder::ptxas::Ptxas::find`)
//! only the PTX is looked at.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cuda_builder::ptx::Module;
use cuda_builder::ptxas::Ptxas;
use cuda_builder::{CudaBuilder, NvvmArch};

/// An architecture and the least PTX version in which its instructions are documented to exist.
type Target = (NvvmArch, (u32, u32));
const SM_80: Target = (NvvmArch::Compute80, (7, 8));
const SM_90: Target = (NvvmArch::Compute90, (8, 3));
const SM_100A: Target = (NvvmArch::Compute100a, (8, 6));

/// Instructions of every architecture.
const COMMON: &str = "
    bar.sync bar.arrive bar.red.popc.u32 bar.red.and.pred bar.red.or.pred bar.warp.sync
    activemask.b32 nanosleep.u32 trap brkpt pmevent membar.gl membar.sys
    shfl.sync.bfly.b32 shfl.sync.up.b32 shfl.sync.down.b32 shfl.sync.idx.b32
    vote.sync.all.pred vote.sync.any.pred vote.sync.ballot.b32
    match.any.sync.b32 match.any.sync.b64 match.all.sync.b32 match.all.sync.b64
    redux.sync.add.s32 redux.sync.min.u32 redux.sync.max.u32 redux.sync.min.s32 redux.sync.max.s32
    redux.sync.and.b32 redux.sync.or.b32 redux.sync.xor.b32
    rcp.rn.ftz.f32 fma.rn.f32 add.rn.f16x2 mul.rn.f16x2 fma.rn.f16x2 min.f16x2 max.f16x2
    max.bf16x2 max.NaN.bf16x2 prmt.b32 shf.l.wrap.b32 shf.r.wrap.b32
    cvt.rn.f16x2.f32 cvt.rz.f16x2.f32 cvt.rn.bf16x2.f32 cvt.f32.f16
    ld.global.nc.L1::no_allocate.b32 ld.global.nc.L1::no_allocate.v2.b32
    ld.global.nc.L1::no_allocate.v4.b32 st.global.cs.b32 st.global.cs.v2.b32 st.global.cs.v4.b32
    isspacep.global isspacep.shared isspacep.const isspacep.local
    cvta.to.global.u64 cvta.to.shared.u64 cvta.to.local.u64
    cvta.global.u64 cvta.shared.u64 cvta.local.u64
    fence.acq_rel.cta fence.acq_rel.gpu fence.acq_rel.sys fence.sc.cta fence.sc.gpu fence.sc.sys
    ld.relaxed.cta.b32 ld.relaxed.gpu.b32 ld.relaxed.sys.b32 ld.relaxed.gpu.b64 ld.relaxed.sys.b64
    ld.acquire.cta.b32 ld.acquire.gpu.b32 ld.acquire.sys.b32 ld.acquire.gpu.b64 ld.acquire.sys.b64
    st.relaxed.cta.b32 st.relaxed.gpu.b32 st.relaxed.sys.b32
    st.release.cta.b32 st.release.gpu.b32 st.release.sys.b32 st.release.gpu.b64 st.release.sys.b64
    atom.relaxed.cta.add.u32 atom.acquire.cta.add.u32 atom.release.cta.add.u32 atom.acq_rel.cta.add.u32
    atom.relaxed.gpu.add.u32 atom.acquire.gpu.add.u32 atom.release.gpu.add.u32 atom.acq_rel.gpu.add.u32
    atom.relaxed.sys.add.u32 atom.acquire.sys.add.u32 atom.release.sys.add.u32 atom.acq_rel.sys.add.u32
    atom.relaxed.cta.cas.b32 atom.acquire.cta.cas.b32 atom.release.cta.cas.b32 atom.acq_rel.cta.cas.b32
    atom.relaxed.gpu.cas.b32 atom.acquire.gpu.cas.b32 atom.release.gpu.cas.b32 atom.acq_rel.gpu.cas.b32
    atom.relaxed.sys.cas.b32 atom.acquire.sys.cas.b32 atom.release.sys.cas.b32 atom.acq_rel.sys.cas.b32
    atom.relaxed.gpu.add.u64 atom.relaxed.sys.add.u64 atom.acq_rel.gpu.cas.b64 atom.acq_rel.sys.cas.b64
    atom.relaxed.gpu.add.f32 atom.relaxed.gpu.add.f64 atom.acq_rel.sys.add.f64
    atom.acquire.gpu.min.u32 atom.acquire.sys.min.s32 atom.acquire.gpu.min.u64 atom.acquire.sys.min.s64
    atom.release.gpu.max.u32 atom.release.sys.max.s32 atom.release.gpu.max.u64 atom.release.sys.max.s64
    atom.relaxed.gpu.and.b32 atom.relaxed.sys.and.b64 atom.acq_rel.gpu.or.b32 atom.acq_rel.sys.or.b64
    atom.acq_rel.gpu.xor.b32 atom.acq_rel.sys.xor.b64 atom.acq_rel.gpu.exch.b32 atom.acq_rel.sys.exch.b64
";

/// From compute capability 9.0 on; the conversions are there from 8.9 on.
const HOPPER: &str = "
    cvt.rn.satfinite.e4m3x2.f32 cvt.rn.f16x2.e4m3x2
    fence.proxy.async.shared::cta fence.proxy.async.global
    fence.proxy.tensormap::generic.acquire.sys
    cp.async.bulk.global.shared::cta.bulk_group
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group
    cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group
    cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    cp.async.bulk.commit_group cp.async.bulk.wait_group cp.async.bulk.wait_group.read
    mbarrier.init.shared::cta.b64 mbarrier.inval.shared::cta.b64 mbarrier.arrive.shared::cta.b64
    mbarrier.arrive.expect_tx.shared::cta.b64 mbarrier.try_wait.shared::cta.b64
    mbarrier.try_wait.parity.shared::cta.b64
";

/// Architecture-specific from 10.0 on.
const BLACKWELL: &str = "
    cvt.rn.satfinite.e2m1x2.f32 cvt.rn.f16x2.e2m1x2 cvt.rn.bf16x2.ue8m0x2
    cvt.rp.satfinite.ue8m0x2.f32 cvt.rz.satfinite.ue8m0x2.f32
";

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

fn build((arch, (major, minor)): Target) -> (String, Module) {
    let text = compile(builder("device").arch(arch).ptx_version(major, minor));
    let module = Module::parse(&text).expect("it is PTX");
    (text, module)
}

fn builder(kernels: &str) -> CudaBuilder {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(kernels);
    // Outlives a run, so that `core` is compiled once for each architecture.
    let target: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    CudaBuilder::new(folder).target_dir(target)
}

fn compile(builder: CudaBuilder) -> String {
    let path = builder.build().unwrap_or_else(|error| panic!("{error}"));
    std::fs::read_to_string(path).expect("the builder wrote it")
}

fn assemble(ptx: &str, arch: NvvmArch) {
    match Ptxas::find() {
        Ok(ptxas) => {
            if let Err(error) = ptxas.assemble(ptx, arch) {
                panic!("{error}");
            }
        }
        Err(missing) => eprintln!("{arch}: not assembled: {missing}"),
    }
}

// A test for each architecture, so that they compile side by side.
#[test]
fn every_instruction_that_compute_80_has() {
    every_instruction(SM_80);
}

#[test]
fn every_instruction_that_compute_90_has() {
    every_instruction(SM_90);
}

#[test]
fn every_instruction_that_compute_100a_has() {
    every_instruction(SM_100A);
}

fn every_instruction(target: Target) {
    let arch = target.0;
    let (text, module) = build(target);
    let functions = || module.entries.iter().chain(&module.functions);
    let present: BTreeSet<&str> = functions()
        .flat_map(|function| &function.instructions)
        .map(|instruction| instruction.mnemonic.as_str())
        .collect();
    let expected = |list, wanted: bool| {
        for mnemonic in words(list) {
            assert_eq!(present.contains(mnemonic), wanted, "{arch}: {mnemonic}");
        }
    };
    expected(COMMON, true);
    // The branches for other hardware are gone, not just skipped.
    expected(HOPPER, arch != NvvmArch::Compute80);
    expected(BLACKWELL, arch == NvvmArch::Compute100a);
    assert_eq!(
        module.unresolved_functions(),
        ["__assertfail", "free", "malloc", "vprintf"],
        "{arch}: what the driver supplies"
    );
    assemble(&text, arch);
}

#[test]
fn accesses_name_their_memory() {
    let (_, module) = build(SM_90);
    let entry = |name| module.entry(name).expect("the kernel is there");

    // Static and dynamic shared memory, and both kinds of global access: nothing is generic.
    let views = entry("views");
    assert!(views.count("ld.shared") >= 2 && views.count("st.shared") >= 2);
    assert!(views.count("ld.global") >= 2 && views.count("st.global") >= 2);
    for name in [
        "views",
        "streams",
        "strided",
        "indirect",
        "barriers",
        "shuffles",
        "arithmetic",
        "conversions",
    ] {
        let generic = entry(name).instructions.iter().find(|instruction| {
            let mut parts = instruction.mnemonic.split('.');
            matches!(parts.next(), Some("ld" | "st"))
                && parts
                    .next()
                    .is_some_and(|part| part.starts_with(['b', 'v', 'u', 'f']))
        });
        assert_eq!(generic, None, "{name}");
        assert!(!entry(name).uses_local_memory(), "{name}");
    }
    let indirect = entry("indirect");
    for size in ["v4.b32", "v2.b32", "b64", "b32", "b16", "b8"] {
        assert!(indirect.count(&format!("ld.global.{size}")) >= 1, "{size}");
        assert!(indirect.count(&format!("st.global.{size}")) >= 1, "{size}");
    }
    for atomic in [
        "ld.acquire.gpu.global",
        "st.release.gpu.global",
        "atom.relaxed.gpu.global.add",
    ] {
        assert_eq!(indirect.count(atomic), 1, "{atomic}");
    }
    // A word is shuffled once, and 16 bytes are moved at once.
    assert_eq!(
        entry("shuffles").count("shfl.sync"),
        8 + 8 + 3 * 2 + 2 * 4 + 2
    );
    assert_eq!(entry("streams").count("ld.global.nc.L1::no_allocate.v2"), 1);
    // A constant bound that is hidden leaves a loop: without, this kernel has no branch.
    assert!(entry("hidden").count("bra") > 0);
}

#[test]
fn launch_bounds_reach_the_module() {
    let (_, module) = build(SM_90);
    let bound = |name| {
        let entry = module.entry(name).expect("the kernel is there");
        entry.directive("maxntid").map(<[u32]>::to_vec)
    };
    assert_eq!(bound("views"), Some(vec![64, 1, 1]));
    assert_eq!(bound("bulk"), Some(vec![128, 1, 1]));
    assert_eq!(bound("shuffles"), None);
}

#[test]
fn kernels_of_the_published_api() {
    let (arch, (major, minor)) = SM_90;
    let text = compile(
        builder("published_api")
            .arch(arch)
            .ptx_version(major, minor),
    );
    let module = Module::parse(&text).expect("it is PTX");
    let names: BTreeSet<&str> = module
        .entries
        .iter()
        .map(|entry| entry.name.as_str())
        .collect();
    let expected = [
        "add",
        "block_sums",
        "reverse_blocks",
        "total",
        "transposed_roots",
    ];
    assert!(names.iter().copied().eq(expected), "{names:?}");
    let add = module.entry("add").expect("the kernel is there");
    assert_eq!(add.params.len(), 5, "slices are two parameters each");
    assert_eq!((add.count("ld.global"), add.count("st.global")), (2, 1));
    assemble(&text, arch);
}

#[test]
fn the_device_heap_behind_alloc() {
    let (arch, (major, minor)) = SM_90;
    let builder = builder("device").arch(arch).ptx_version(major, minor);
    let text = compile(
        builder
            .build_alloc(true)
            .build_args(&["--features", "alloc"]),
    );
    let module = Module::parse(&text).expect("it is PTX");
    assert!(module.entry("collects").is_some());
    assemble(&text, arch);
}
