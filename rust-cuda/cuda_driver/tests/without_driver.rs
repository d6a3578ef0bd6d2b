//! What happens where there is no driver. On a machine that has one these say so and check nothing.

use std::sync::Barrier;

use cuda_driver::extra::{DriverError, memory_info};
use cust::error::CudaError;

fn machine_has_a_driver() -> bool {
    let has = cuda_driver::driver_available().is_ok();
    if has {
        eprintln!("not checked: this machine has a CUDA driver");
    }
    has
}

#[test]
fn cust_reports_no_device() {
    if machine_has_a_driver() {
        return;
    }
    let error = cust::init(cust::CudaFlags::empty()).expect_err("there is no driver");
    assert_eq!(error, CudaError::NoDevice);
    assert_eq!(error.to_string(), "\"no CUDA-capable device is detected\"");
}

#[test]
fn the_error_names_the_files_tried() {
    let Err(error) = cuda_driver::driver_available() else {
        return;
    };
    assert_eq!(error.tried[0].file, "libcuda.so.1");
    let text = error.to_string();
    assert!(
        text.starts_with("no CUDA driver could be loaded; tried libcuda.so.1 ("),
        "{text}"
    );
    for attempt in &error.tried {
        assert!(text.contains(attempt.file), "{text}");
        assert!(!attempt.reason.is_empty());
    }
}

#[test]
fn typed_functions_report_the_missing_driver() {
    let Err(expected) = cuda_driver::driver_available() else {
        return;
    };
    assert_eq!(memory_info(), Err(DriverError::NoDriver(expected)));
}

#[test]
fn threads_may_ask_at_the_same_time() {
    if machine_has_a_driver() {
        return;
    }
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                for _ in 0..1000 {
                    // SAFETY: cuCtxSynchronize has no arguments.
                    assert_eq!(unsafe { cust::sys::cuCtxSynchronize() } as u32, 100);
                }
            });
        }
    });
}

/// `cust`'s `Display` asks `cuGetErrorString` and fails, which makes `to_string` panic, if that
/// does not answer.
#[test]
fn every_error_of_cust_can_be_displayed() {
    use CudaError::*;
    let all = [
        InvalidValue,
        OutOfMemory,
        NotInitialized,
        Deinitialized,
        ProfilerDisabled,
        ProfilerNotInitialized,
        ProfilerAlreadyStarted,
        ProfilerAlreadyStopped,
        NoDevice,
        InvalidDevice,
        InvalidImage,
        InvalidContext,
        ContextAlreadyCurrent,
        MapFailed,
        UnmapFailed,
        ArrayIsMapped,
        AlreadyMapped,
        NoBinaryForGpu,
        AlreadyAcquired,
        NotMapped,
        NotMappedAsArray,
        NotMappedAsPointer,
        EccUncorrectable,
        UnsupportedLimit,
        ContextAlreadyInUse,
        PeerAccessUnsupported,
        InvalidPtx,
        InvalidGraphicsContext,
        NvlinkUncorrectable,
        InvalidSource,
        FileNotFound,
        SharedObjectSymbolNotFound,
        SharedObjectInitFailed,
        OperatingSystemError,
        InvalidHandle,
        NotFound,
        NotReady,
        IllegalAddress,
        LaunchOutOfResources,
        LaunchTimeout,
        LaunchIncompatibleTexturing,
        PeerAccessAlreadyEnabled,
        PeerAccessNotEnabled,
        PrimaryContextActive,
        ContextIsDestroyed,
        AssertError,
        TooManyPeers,
        HostMemoryAlreadyRegistered,
        HostMemoryNotRegistered,
        HardwareStackError,
        IllegalInstruction,
        MisalignedAddress,
        InvalidAddressSpace,
        InvalidProgramCounter,
        LaunchFailed,
        NotPermitted,
        NotSupported,
        UnknownError,
        InvalidMemoryAllocation,
        OptixError,
    ];
    for error in all {
        assert!(!error.to_string().is_empty(), "{error:?}");
    }
}
