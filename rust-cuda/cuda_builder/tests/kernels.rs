//! Kernels compiled to PTX, and what the settings change in it. Needs a nightly toolchain with
//! `rust-src`.

mod common;

use std::fs;
use std::path::Path;

use common::{builder, tiny_kernels};
use cuda_builder::ptx::Module;
use cuda_builder::ptxas::Ptxas;
use cuda_builder::{BuiltModule, CudaBuilder, DebugInfo, NvvmArch};

const ARCHS: [NvvmArch; 3] = [
    NvvmArch::Compute80,
    NvvmArch::Compute90,
    NvvmArch::Compute100a,
];

fn read(path: &Path) -> Module {
    let text = fs::read_to_string(path).expect("the file is there");
    Module::parse(&text).expect("it is PTX")
}

#[test]
fn several_architectures_in_one_go() {
    let modules = builder(&tiny_kernels())
        .archs(&ARCHS)
        .build_all()
        .expect("the kernels compile");
    let archs: Vec<_> = modules.iter().map(|module| module.arch).collect();
    assert_eq!(archs, ARCHS);
    for BuiltModule { arch, ptx, .. } in &modules {
        let module = read(ptx);
        assert_eq!(module.target, arch.sm());
        assert!(module.version >= (8, 0), "{arch}: {:?}", module.version);
        assert!(module.unresolved_functions().is_empty());

        let scale = module.entry("scale").expect("scale is an entry");
        assert_eq!(scale.directive("maxntid"), Some(&[128, 1, 1][..]));
        assert_eq!(scale.directive("minnctapersm"), Some(&[8][..]));
        assert_eq!(scale.params.len(), 3);
        assert_eq!(scale.count("ld.global"), 1);
        assert_eq!(scale.count("fma"), 0);
        assert_eq!(scale.count("div.rn.f32"), 1);
        assert_eq!(scale.count("sqrt.rn.f32"), 1);
        assert!(!scale.uses_local_memory());

        let increment = module.entry("increment").expect("increment is an entry");
        assert_eq!(increment.directives, []);
        assert_eq!(increment.count("trap"), 1);
    }
}

#[test]
fn ptxas_accepts_the_result_and_reports_its_cost() {
    let ptxas = match Ptxas::find() {
        Ok(ptxas) => ptxas,
        Err(missing) => return eprintln!("not checked: {missing}"),
    };
    assert!(ptxas.version().expect("it has a version").contains('.'));
    let modules = builder(&tiny_kernels())
        .archs(&ARCHS)
        .build_all()
        .expect("the kernels compile");
    for BuiltModule { arch, ptx, .. } in modules {
        let text = fs::read_to_string(ptx).expect("the file is there");
        let assembled = ptxas.assemble(&text, arch).expect("ptxas accepts it");
        assert!(assembled.cubin.starts_with(b"\x7fELF"));
        let scale = assembled.entries["scale"];
        assert!((1..=64).contains(&scale.registers), "{scale:?}");
        assert_eq!(
            (scale.spill_stores, scale.spill_loads, scale.stack),
            (0, 0, 0)
        );
        assert!(assembled.entries.contains_key("increment"));
    }
    let error = ptxas
        .assemble(
            ".version 8.0\n.target sm_90\n.address_size 64\nnonsense",
            NvvmArch::Compute90,
        )
        .expect_err("ptxas refuses it");
    assert!(error.to_string().contains("sm_90"), "{error}");
}

#[test]
fn approximations_are_used_when_asked_for() {
    let ptx = builder(&tiny_kernels())
        .arch(NvvmArch::Compute90)
        .fast_div(true)
        .fast_sqrt(true)
        .fma_contraction(true)
        .build()
        .expect("the kernels compile");
    let module = read(&ptx);
    let scale = module.entry("scale").expect("scale is an entry");
    assert_eq!(scale.count("fma.rn.f32"), 1);
    assert_eq!(scale.count("div.approx"), 1);
    assert_eq!(scale.count("sqrt.approx"), 1);
}

#[test]
fn a_checked_build_tests_overflow_and_names_lines_in_the_ptx_version_asked_for() {
    let ptx = builder(&tiny_kernels())
        .arch(NvvmArch::Compute90)
        .release(false)
        .debug(DebugInfo::LineTables)
        .ptx_version(8, 1)
        .build()
        .expect("the kernels compile");
    let module = read(&ptx);
    assert_eq!(module.version, (8, 1));
    let increment = module.entry("increment").expect("increment is an entry");
    assert!(
        increment.count("trap") > 1,
        "{:?}",
        increment.instruction_counts()
    );
    let text = fs::read_to_string(&ptx).expect("the file is there");
    assert!(text.contains("\t.loc\t"));
    if let Ok(ptxas) = Ptxas::find() {
        ptxas
            .assemble(&text, NvvmArch::Compute90)
            .expect("ptxas accepts it");
    }
}

#[test]
fn results_go_where_they_are_asked_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ptx = folder.path().join("deep/kernels.ptx");
    let llvm_ir = folder.path().join("kernels.ll");
    let ours = |builder: CudaBuilder| builder.copy_to(&ptx).final_module_path(&llvm_ir);

    let modules = ours(builder(&tiny_kernels()))
        .archs(&ARCHS[..2])
        .emit_llvm_bitcode(true)
        .build_all()
        .expect("the kernels compile");
    for (module, name) in modules.iter().zip(["sm_80", "sm_90"]) {
        assert_eq!(
            module.ptx,
            folder.path().join(format!("deep/kernels.{name}.ptx"))
        );
        assert_eq!(read(&module.ptx).target, name);
        let text = fs::read_to_string(folder.path().join(format!("kernels.{name}.ll")));
        assert!(text.expect("LLVM IR").contains("@scale("));
        let bitcode = module.llvm_bitcode.as_ref().expect("it was asked for");
        assert!(fs::read(bitcode).expect("bitcode").starts_with(b"BC"));
    }

    let built = ours(builder(&tiny_kernels()))
        .arch(NvvmArch::Compute90)
        .build();
    assert_eq!(built.expect("the kernels compile"), ptx);
    assert_eq!(read(&ptx).target, "sm_90");
}
