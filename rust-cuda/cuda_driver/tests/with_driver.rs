//! What happens where there is a driver, shown with a stand-in for `libcuda.so.1` that checks its
//! arguments. A process loads a driver once, so the checks run in a child process that finds the
//! stand-in first.

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::Barrier;

use cuda_driver::extra::{
    CaptureMode, DriverError, LaunchAttributes, LaunchConfig, TensorMapDataType,
    TensorMapInterleave, TensorMapL2Promotion, TensorMapOobFill, TensorMapSwizzle, TensorMapTiled,
    begin_capture, encode_tensor_map_tiled, end_capture, launch_kernel_ex, memory_info,
};

#[test]
fn calls_reach_the_driver() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    compile_stand_in(&folder.path().join("libcuda.so.1"));
    let output = Command::new(std::env::current_exe().expect("this test has a path"))
        .args(["--ignored", "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .expect("this test can be run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("7 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn compile_stand_in(library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake_driver.rs");
    let rustc = std::env::var_os("RUSTC").map_or_else(
        || Path::new(env!("CARGO")).with_file_name("rustc"),
        PathBuf::from,
    );
    let status = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .args([library, &source])
        .status()
        .expect("rustc runs");
    assert!(status.success());
}

#[test]
#[ignore = "run by calls_reach_the_driver"]
fn the_stand_in_is_found() {
    assert_eq!(cuda_driver::driver_available(), Ok(()));
    assert_eq!(cust::init(cust::CudaFlags::empty()), Ok(()));
}

#[test]
#[ignore = "run by calls_reach_the_driver"]
fn every_argument_survives_the_first_call_and_the_second() {
    type Call = unsafe extern "C" fn(
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
    ) -> u32;
    let call = cust::sys::cuParamSetv as *const c_void;
    // SAFETY: the stand-in's function has this signature, and the trampoline has none.
    let call: Call = unsafe { std::mem::transmute(call) };
    for _ in 0..2 {
        // SAFETY: the stand-in only compares its arguments.
        let result = unsafe {
            call(
                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0,
            )
        };
        assert_eq!(result, 0);
    }
}

#[test]
#[ignore = "run by calls_reach_the_driver"]
fn threads_may_make_the_first_call_at_the_same_time() {
    const THREADS: i32 = 16;
    const CALLS: i32 = 1000;
    let start = Barrier::new(THREADS as usize);
    let highest = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    (0..CALLS)
                        .map(|_| {
                            let mut count = 0;
                            // SAFETY: `count` is a local.
                            let result = unsafe { cust::sys::cuDeviceGetCount(&mut count) };
                            assert_eq!(result as u32, 0);
                            count
                        })
                        .max()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no call failed"))
            .max()
    });
    assert_eq!(highest, Some(Some(THREADS * CALLS)));
}

#[test]
#[ignore = "run by calls_reach_the_driver"]
fn the_drivers_words_come_before_the_table() {
    assert_eq!(
        cust::error::CudaError::NoDevice.to_string(),
        "\"as the driver says it\""
    );
    assert_eq!(
        cust::error::CudaError::InvalidPtx.to_string(),
        "\"a PTX JIT compilation failed\""
    );
}

#[test]
#[ignore = "run by calls_reach_the_driver"]
fn a_function_newer_than_the_driver_is_not_found() {
    let mut name: *const std::ffi::c_char = ptr::null();
    // SAFETY: `name` is a local; the code is a member of the enumeration.
    let code = unsafe {
        let code = cust::sys::cuStreamQuery(ptr::null_mut());
        assert_eq!(cust::sys::cuGetErrorName(code, &mut name) as u32, 0);
        code
    };
    assert_eq!(code as u32, 500);
    // SAFETY: cuGetErrorName has written a string that lives as long as the program.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_NOT_FOUND");
}

#[test]
#[ignore = "run by calls_reach_the_driver"]
fn tensor_maps_and_launches_are_passed_as_the_driver_reads_them() {
    let map = encode_tensor_map_tiled(&TensorMapTiled {
        data_type: TensorMapDataType::Bfloat16,
        global_address: 0x1000,
        global_dim: &[512, 40],
        global_strides: &[1024],
        box_dim: &[64, 8],
        element_strides: &[1, 2],
        interleave: TensorMapInterleave::Bytes32,
        swizzle: TensorMapSwizzle::Bytes128,
        l2_promotion: TensorMapL2Promotion::Bytes64,
        oob_fill: TensorMapOobFill::NanRequestZeroFma,
    })
    .expect("the stand-in accepts a tensor of rank 2");
    assert_eq!(
        map.as_words(),
        &[9, 0x1000, 512, 40, 1024, 64, 8, 2, 2, 3, 1, 1, 0, 0, 0, 0]
    );

    let mut argument = 77u32;
    let config = LaunchConfig {
        grid: (2, 3, 4),
        block: (32, 1, 1),
        shared_bytes: 1024,
        stream: ptr::without_provenance_mut(5),
        attributes: LaunchAttributes {
            cooperative: true,
            programmatic_stream_serialization: true,
        },
    };
    // SAFETY: the stand-in reads one parameter, a u32.
    let launched = unsafe {
        launch_kernel_ex(
            ptr::without_provenance_mut(9),
            &config,
            &mut [(&raw mut argument).cast()],
        )
    };
    assert_eq!(launched, Ok(()));
}

#[test]
#[ignore = "run by calls_reach_the_driver"]
fn graphs_and_memory_report_what_the_driver_lacks() {
    let info = memory_info().expect("the stand-in answers");
    assert_eq!((info.free, info.total), (3, 7));

    let stream = ptr::without_provenance_mut(5);
    // SAFETY: the stand-in's stream is a number.
    let graph = unsafe {
        begin_capture(stream, CaptureMode::ThreadLocal).expect("the stand-in begins");
        end_capture(stream).expect("the stand-in ends")
    };
    let error = graph
        .instantiate()
        .expect_err("the stand-in has no such function");
    assert_eq!(
        error,
        DriverError::TooOld {
            function: "cuGraphInstantiateWithFlags",
            since: "11.4"
        }
    );
}
