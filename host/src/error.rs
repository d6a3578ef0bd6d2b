//! Errors of devices. Those of an operation stand beside it.

use thiserror::Error;

/// What can go wrong with a device, its memory or its work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no CUDA driver on this machine.
    #[error(transparent)]
    NoDriver(#[from] cuda_driver::NoDriver),

    /// The driver sees fewer GPUs than the ordinal asks for.
    #[error("there is no GPU {ordinal}: the CUDA driver sees {count}")]
    NoSuchGpu {
        /// The ordinal asked for, from 0.
        ordinal: u32,
        /// GPUs that the driver sees.
        count: u32,
    },

    /// The library was built without its GPU kernels.
    #[error("this build has no GPU kernels: {reason}; to add them: {command}")]
    KernelsMissing {
        /// What was missing when the library was built.
        reason: &'static str,
        /// The command that brings it.
        command: &'static str,
    },

    /// The GPU is older than every kernel image.
    #[error(
        "{name} has compute capability {major}.{minor}; the kernels need 8.0 or newer",
        major = capability.0, minor = capability.1
    )]
    GpuTooOld {
        /// Name of the GPU.
        name: String,
        /// Its compute capability.
        capability: (u32, u32),
    },

    /// The driver refused a call.
    #[error("{call} failed: {message} (CUDA error {code})")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// Its result code.
        code: u32,
        /// The driver's own words.
        message: String,
    },

    /// The driver refused to allocate.
    #[error("cannot allocate {bytes} bytes on the device: {message}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// The backend's own words.
        message: String,
    },

    /// The kernel image has no entry of this name.
    #[error("the kernel image has no entry {name}")]
    NoSuchKernel {
        /// The entry.
        name: &'static str,
    },

    /// The emulator found a fault in a kernel, or was asked for something impossible.
    #[error(transparent)]
    Emulator(#[from] simt::Error),

    /// A tensor map that the copy engine cannot work from.
    #[error("cannot describe the scales to the copy engine: {0}")]
    TensorMap(#[from] cuda_std::tma::TensorMapError),

    /// Two things that must belong to the same device do not.
    #[error("{what} belongs to another device ({other}) than the one it is used with ({device})")]
    WrongDevice {
        /// The argument.
        what: &'static str,
        /// The device it belongs to.
        other: String,
        /// The device it is used with.
        device: String,
    },

    /// A host slice and a device buffer that must be equally long are not.
    #[error("the buffer holds {buffer} elements, the host slice {host}")]
    LengthMismatch {
        /// Elements of the device buffer.
        buffer: usize,
        /// Elements of the host slice.
        host: usize,
    },

    /// Foreign memory is not aligned to 16 bytes.
    #[error("address {address:#x} is not a multiple of 16")]
    Misaligned {
        /// The address.
        address: usize,
    },

    /// A size in bytes does not fit the address space.
    #[error("{elements} elements of {element_bytes} bytes are more than can be addressed")]
    TooLarge {
        /// Elements asked for.
        elements: usize,
        /// Bytes of one.
        element_bytes: usize,
    },

    /// Kernels of one device cannot use the memory of another.
    #[error("there is no path from {from} to the memory of {to}")]
    NoPath {
        /// The device whose kernels would use it.
        from: String,
        /// The device whose memory it is.
        to: String,
    },

    /// A ticket of memory that this device cannot open.
    #[error("{device} cannot open memory of {bytes} bytes that is shared by {sharing}: {reason}")]
    SharedMemory {
        /// The device.
        device: String,
        /// Bytes that the ticket promises.
        bytes: usize,
        /// How they are shared.
        sharing: crate::peer::Sharing,
        /// Why not.
        reason: String,
    },

    /// The system refused to make memory that processes can share.
    #[error("{call} failed: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },

    /// A launch needs more thread blocks than a grid can have.
    #[error("the launch needs {blocks} thread blocks; a grid has at most {limit}")]
    GridTooLarge {
        /// Blocks needed.
        blocks: u64,
        /// The most there can be.
        limit: u64,
    },

    /// Something was asked for that cannot be recorded, while work was being recorded.
    #[error(
        "{call} is not possible while a stream is being captured: only launches can be recorded"
    )]
    Capturing {
        /// What was called.
        call: &'static str,
    },
}
