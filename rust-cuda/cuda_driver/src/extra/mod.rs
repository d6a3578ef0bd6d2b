//! Driver functions that `cust_raw` 0.11.3 (CUDA 11.4) lacks, or has only untyped, with errors as
//! results.
//!
//! | here | driver function | since |
//! | --- | --- | --- |
//! | [`encode_tensor_map_tiled`] | `cuTensorMapEncodeTiled` | CUDA 12.0 |
//! | [`launch_kernel_ex`] | `cuLaunchKernelEx` | CUDA 11.8 |
//! | [`set_function_attribute`] | `cuFuncSetAttribute` | CUDA 9.0 |
//! | [`load_function`] | `cuFuncLoad` | CUDA 12.4 |
//! | [`begin_capture`], [`end_capture`] | `cuStreamBeginCapture_v2`, `cuStreamEndCapture` | CUDA 10.1 |
//! | [`Graph`], [`GraphExec`] | `cuGraphInstantiateWithFlags`, `cuGraphLaunch`, `cuGraph(Exec)Destroy` | CUDA 11.4 |
//! | [`memory_info`] | `cuMemGetInfo_v2` | CUDA 3.2 |
//!
//! Handles are bare pointers ([`RawStream`], [`RawFunction`]) so that this crate depends on no
//! binding; those of `cust` convert with `stream.as_inner().cast()` and `function.to_raw().cast()`.
//! Every function works on the calling thread's current context, as the driver's do.
//!
//! All of them have run on an H200 with driver 580 (CUDA 13.0).

mod graph;
mod launch;
mod tensor_map;

use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::NonNull;

use crate::errors::{error_name, error_string};
use crate::loader::{NoDriver, Symbol, Unresolved};

pub use graph::{CaptureMode, Graph, GraphExec, begin_capture, end_capture};
pub use launch::{
    FunctionAttribute, LaunchAttributes, LaunchConfig, launch_kernel_ex, load_function,
    set_function_attribute,
};
pub use tensor_map::{
    CUtensorMap, MAX_TENSOR_RANK, TensorMapDataType, TensorMapInterleave, TensorMapL2Promotion,
    TensorMapOobFill, TensorMapSwizzle, TensorMapTiled, encode_tensor_map_tiled,
};

/// A `CUstream`; null is the default stream.
pub type RawStream = *mut c_void;

/// A `CUfunction`.
pub type RawFunction = *mut c_void;

/// A `CUdeviceptr`: an address in device memory.
pub type DevicePtr = u64;

/// Why a call did not happen or did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is no driver on this machine.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// The driver is older than the function.
    #[error("the installed CUDA driver has no {function}; it came with CUDA {since}")]
    TooOld {
        /// The driver function.
        function: &'static str,
        /// The CUDA version that introduced it.
        since: &'static str,
    },
    /// The driver refused, or an earlier asynchronous launch failed.
    #[error("{function} failed: {}", Described(*.code))]
    Failed {
        /// The driver function.
        function: &'static str,
        /// Its `CUresult`.
        code: u32,
    },
    /// A tensor map's slices disagree about its rank.
    #[error(
        "a tensor map of rank {rank} (1 to {MAX_TENSOR_RANK}) takes {rank} box dimensions and element \
         strides and one global stride fewer, not {box_dim}, {element_strides} and {global_strides}"
    )]
    TensorMapRank {
        /// Number of global dimensions.
        rank: usize,
        /// Number of box dimensions given.
        box_dim: usize,
        /// Number of element strides given.
        element_strides: usize,
        /// Number of global strides given.
        global_strides: usize,
    },
}

/// A code as `CUDA_ERROR_INVALID_VALUE (1): invalid argument`.
struct Described(u32);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |found: Option<&'static CStr>, unknown| {
            found.and_then(|text| text.to_str().ok()).unwrap_or(unknown)
        };
        let name = text(error_name(self.0), "unknown CUresult");
        let description = text(error_string(self.0), "no description");
        write!(f, "{name} ({}): {description}", self.0)
    }
}

/// A driver function that may be absent.
struct Entry {
    symbol: Symbol,
    name: &'static str,
    since: &'static str,
}

impl Entry {
    fn address(&self) -> Result<NonNull<c_void>, DriverError> {
        self.symbol.address().map_err(|why| match why {
            Unresolved::NoDriver(error) => DriverError::NoDriver(error.clone()),
            Unresolved::Missing => DriverError::TooOld {
                function: self.name,
                since: self.since,
            },
        })
    }

    fn check(&self, code: u32) -> Result<(), DriverError> {
        match code {
            0 => Ok(()),
            code => Err(DriverError::Failed {
                function: self.name,
                code,
            }),
        }
    }
}

/// `driver_fn! { /// docs  fn name = cuName, since "x.y", (arg: Type, …); }` declares
/// `unsafe fn name(arg: Type, …) -> Result<(), DriverError>` calling the driver's `cuName`.
macro_rules! driver_fn {
    ($(fn $rust:ident = $name:ident, since $since:literal, ($($arg:ident: $type:ty),* $(,)?);)*) => {$(
        /// # Safety
        ///
        /// The arguments are what the driver's function of that name asks for.
        #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
        unsafe fn $rust($($arg: $type),*) -> Result<(), $crate::extra::DriverError> {
            static ENTRY: $crate::extra::Entry = $crate::extra::Entry {
                symbol: $crate::loader::symbol!($name),
                name: stringify!($name),
                since: $since,
            };
            let address = ENTRY.address()?;
            type Function = unsafe extern "C" fn($($type),*) -> u32;
            // SAFETY: the driver documents `$name` with exactly these parameters, and CUresult is
            // a 32-bit enumeration.
            let call: Function = unsafe { std::mem::transmute(address) };
            // SAFETY: passed on from the caller.
            ENTRY.check(unsafe { call($($arg),*) })
        }
    )*};
}
use driver_fn;

driver_fn! {
    fn mem_get_info = cuMemGetInfo_v2, since "3.2", (free: *mut usize, total: *mut usize);
}

/// Memory of the current context's device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that can still be allocated, as the driver estimates it.
    pub free: usize,
    /// All bytes.
    pub total: usize,
}

/// How much memory the current context's device has, and how much of it is free.
///
/// # Errors
///
/// No driver, or no current context (`CUDA_ERROR_INVALID_CONTEXT`).
pub fn memory_info() -> Result<MemoryInfo, DriverError> {
    let mut info = MemoryInfo { free: 0, total: 0 };
    // SAFETY: both pointers are to local fields.
    unsafe { mem_get_info(&mut info.free, &mut info.total) }?;
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_reads_well() {
        let error = DriverError::Failed {
            function: "cuLaunchKernelEx",
            code: 1,
        };
        assert_eq!(
            error.to_string(),
            "cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE (1): invalid argument"
        );
    }
}
