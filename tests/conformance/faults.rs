//! What is wrong enough for a kernel to fault comes back as a typed error: the fault stays with its
//! device, and nothing panics or hangs.
//!
//! A fault on the GPU takes the whole process's context with it, so that case runs in a process of its
//! own. `compute-sanitizer` follows it there and reports the fault: leave it out with `--skip faults`.

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use half::bf16;
use simt::FaultKind;
use tokenyard::options::{Format, InputType};
use tokenyard::routing::Routing;
use tokenyard::{
    Device, DeviceBuffer, DeviceError, DeviceRouting, GroupedQuantizer, QuantizeError, TensorScales,
};
use tokenyard_tests::shapes::slots;
use tokenyard_tests::{Context, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    suite.emulator("faults::out_of_bounds", out_of_bounds);
    suite.emulator("faults::use_after_free", use_after_free);
    suite.cuda("faults::illegal_address", illegal_address);
}

const COLUMNS: usize = 64;
const ROWS: usize = 3;

/// Quantizes what `input` says are [`ROWS`] rows, and waits.
fn quantize(device: &Device, input: &DeviceBuffer<bf16>) -> Result<(), QuantizeError> {
    let quantizer = GroupedQuantizer::builder(device, Format::Mxfp8)
        .columns(COLUMNS)
        .build()?;
    let routing = Routing::from_row_offsets(&[0, ROWS as u32], None, ROWS);
    let routing = DeviceRouting::upload(device, &routing.expect("three rows are fine"))?;
    let (stream, sf) = (device.create_stream()?, TensorScales::ones(device, 1)?);
    let _output = quantizer.quantize(&stream, input, &routing, &sf)?;
    Ok(stream.synchronize()?)
}

/// Demands a fault of this kind, from now on and from every call that waits.
fn faults(device: &Device, kind: FaultKind, input: &DeviceBuffer<bf16>) -> Result<()> {
    for _ in 0..2 {
        refused!(
            quantize(device, input),
            QuantizeError::Device(DeviceError::Emulator(simt::Error::Fault(fault)))
                if fault.kind == kind && fault.kernel == Some("grouped_quantize_mxfp8_bf16")
        );
    }
    // Another device is none the worse.
    let rows = Rows::rounded(InputType::Bf16, [1.0; ROWS * COLUMNS]);
    Problem::new(Format::Mxfp8, COLUMNS, slots(&[ROWS as u32]), rows).check(&[Device::emulator(1)])
}

fn out_of_bounds(_: &Context) -> Result<()> {
    let device = Device::emulator(0);
    let mut rows = device.alloc_filled::<bf16>((ROWS - 1) * COLUMNS, 0)?;
    let start = rows.as_mut_ptr();
    // SAFETY: none: the last row does not exist. The emulator finds that out before it is read.
    let lie = unsafe { DeviceBuffer::from_raw(&device, start, ROWS * COLUMNS)? };
    faults(&device, FaultKind::OutOfBounds, &lie)
}

fn use_after_free(_: &Context) -> Result<()> {
    let device = Device::emulator(0);
    let mut rows = device.alloc_filled::<bf16>(ROWS * COLUMNS, 0)?;
    let start = rows.as_mut_ptr();
    // SAFETY: none once `rows` is gone. The emulator finds that out before it is read.
    let lie = unsafe { DeviceBuffer::from_raw(&device, start, ROWS * COLUMNS)? };
    drop(rows);
    faults(&device, FaultKind::UseAfterFree, &lie)
}

/// Set in the process that runs a fault.
const CHILD: &str = "TOKENYARD_FAULT_CHILD";

/// In a child process: provokes the fault, and reports by the exit status.
pub fn run_as_child() -> Option<ExitCode> {
    env::var_os(CHILD)?;
    Some(match provoke() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

fn provoke() -> Result<()> {
    /// CUDA's number for an illegal address.
    const ILLEGAL_ADDRESS: u32 = 700;
    let device = Device::cuda(0)?;
    let elsewhere = 1usize << 46;
    // SAFETY: none: nothing is mapped there. The GPU finds that out.
    let lie = unsafe { DeviceBuffer::from_raw(&device, elsewhere as *mut bf16, ROWS * COLUMNS)? };
    for _ in 0..2 {
        refused!(
            quantize(&device, &lie),
            QuantizeError::Device(DeviceError::Driver {
                code: ILLEGAL_ADDRESS,
                ..
            })
        );
    }
    refused!(
        device.upload(&[0u8; 16]),
        DeviceError::Driver {
            code: ILLEGAL_ADDRESS,
            ..
        }
    );
    Ok(())
}

fn illegal_address(_: &Context) -> Result<()> {
    let program = env::current_exe().context("where this program is")?;
    let output = Command::new(program).env(CHILD, "1").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{}: {}", output.status, said.trim());
    }
    ensure!(!said.contains("panicked"), "{said}");
    Ok(())
}
