//! Launches with attributes, and the attributes of a function.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::{DriverError, RawFunction, RawStream, driver_fn};

/// Attributes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchAttributes {
    /// All blocks are resident at once, so that they may wait for each other. The launch fails with
    /// `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE` when they do not fit.
    pub cooperative: bool,
    /// The kernel may start before the one ahead of it on the stream has finished, and waits for
    /// it where it says so with `griddepcontrol.wait` (compute capability 9.0).
    pub programmatic_stream_serialization: bool,
}

/// Shape and place of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads per block in x, y and z.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory per block, in bytes. Above 48 KiB the function must allow it first:
    /// [`FunctionAttribute::MaxDynamicSharedBytes`].
    pub shared_bytes: u32,
    /// The stream.
    pub stream: RawStream,
    /// Attributes.
    pub attributes: LaunchAttributes,
}

/// `CUlaunchAttribute`: an identifier and a 64-byte union, of which only `int` members are used.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawAttribute {
    id: c_uint,
    padding: u32,
    value: [c_int; 16],
}

const COOPERATIVE: c_uint = 2;
const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

impl RawAttribute {
    fn flag(id: c_uint) -> Self {
        let mut value = [0; 16];
        value[0] = 1;
        Self {
            id,
            padding: 0,
            value,
        }
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
struct RawConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: RawStream,
    attributes: *const RawAttribute,
    attribute_count: c_uint,
}

driver_fn! {
    fn cu_launch_kernel_ex = cuLaunchKernelEx, since "11.8", (
        config: *const RawConfig,
        function: RawFunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    fn cu_func_set_attribute = cuFuncSetAttribute, since "9.0", (
        function: RawFunction,
        attribute: FunctionAttribute,
        value: c_int,
    );
    fn cu_func_load = cuFuncLoad, since "12.4", (function: RawFunction);
}

/// `cuLaunchKernelEx` (CUDA 11.8): launches a kernel with attributes.
///
/// # Safety
///
/// `function` and `config.stream` belong to the current context. `params` holds one pointer per
/// kernel parameter, in order, each to a value of that parameter's type; the values are copied
/// before the call returns. What the kernel does with them is the kernel's contract.
///
/// # Errors
///
/// No driver, a driver older than CUDA 11.8, or a launch that the driver refuses.
pub unsafe fn launch_kernel_ex(
    function: RawFunction,
    config: &LaunchConfig,
    params: &mut [*mut c_void],
) -> Result<(), DriverError> {
    let mut attributes = [RawAttribute::flag(COOPERATIVE); 2];
    let mut count = 0;
    for (wanted, id) in [
        (config.attributes.cooperative, COOPERATIVE),
        (
            config.attributes.programmatic_stream_serialization,
            PROGRAMMATIC_STREAM_SERIALIZATION,
        ),
    ] {
        if wanted {
            attributes[count] = RawAttribute::flag(id);
            count += 1;
        }
    }
    let raw = RawConfig {
        grid: [config.grid.0, config.grid.1, config.grid.2],
        block: [config.block.0, config.block.1, config.block.2],
        shared_bytes: config.shared_bytes,
        stream: config.stream,
        attributes: attributes.as_ptr(),
        attribute_count: count as c_uint,
    };
    // SAFETY: `raw` and the `count` attributes it points to live until the call returns; the
    // rest is the caller's promise.
    unsafe { cu_launch_kernel_ex(&raw, function, params.as_mut_ptr(), ptr::null_mut()) }
}

/// The attributes of a function that can be set.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FunctionAttribute {
    /// The most dynamic shared memory that a launch may ask for, in bytes; 48 KiB unless set.
    MaxDynamicSharedBytes = 8,
    /// Preferred share of the L1 cache to use as shared memory, in percent; -1 for the default.
    PreferredSharedMemoryCarveout = 9,
    /// Whether clusters of more than 8 blocks may be launched, 0 or 1 (CUDA 11.8).
    NonPortableClusterSizeAllowed = 14,
}

/// `cuFuncSetAttribute` (CUDA 9.0): sets an attribute of a function for later launches.
///
/// # Safety
///
/// `function` is a function of a loaded module of the current context.
///
/// # Errors
///
/// No driver, or a value that the device does not allow (`CUDA_ERROR_INVALID_VALUE`).
pub unsafe fn set_function_attribute(
    function: RawFunction,
    attribute: FunctionAttribute,
    value: i32,
) -> Result<(), DriverError> {
    // SAFETY: the caller's promise.
    unsafe { cu_func_set_attribute(function, attribute, value) }
}

/// `cuFuncLoad` (CUDA 12.4): loads a function's code now.
///
/// The driver otherwise does so at the first launch, and may wait for the device then: for ever, if what runs there waits for
/// the kernel that is to be launched.
///
/// # Safety
///
/// `function` is a function of a loaded module of the current context.
///
/// # Errors
///
/// No driver, or one that is older ([`DriverError::TooOld`]).
pub unsafe fn load_function(function: RawFunction) -> Result<(), DriverError> {
    // SAFETY: the caller's promise.
    unsafe { cu_func_load(function) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn structures_have_the_layout_of_cuda_h() {
        assert_eq!(size_of::<RawAttribute>(), 72);
        assert_eq!(offset_of!(RawAttribute, value), 8);
        assert_eq!(offset_of!(RawConfig, stream), 32);
        assert_eq!(offset_of!(RawConfig, attributes), 40);
        assert_eq!(offset_of!(RawConfig, attribute_count), 48);
        assert_eq!(size_of::<RawConfig>(), 56);
    }
}
