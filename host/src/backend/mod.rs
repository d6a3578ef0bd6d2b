//! The seam between the library and what runs kernels: device memory, streams, events, launches.
//!
//! Two implementations, a GPU through the CUDA driver and the emulator on the CPU, and nothing
//! above this module asks which one it has.

mod cuda;
mod emulator;
pub(crate) mod images;

pub(crate) use cuda::CudaBackend;
pub use cuda::{GpuPath, Topology};
pub(crate) use emulator::EmulatorBackend;

use crate::error::DeviceError;
use crate::peer::{Sharing, Ticket};
use cuda_std::launch::KernelArgs;

/// A stream or event of a backend, as a number that only that backend can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) u64);

/// Grid and block of a launch, and its dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchConfig {
    /// Blocks along x.
    pub(crate) blocks: u32,
    /// Blocks along y.
    pub(crate) block_rows: u32,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    /// Whether blocks wait for each other, so that all must be resident.
    pub(crate) cooperative: bool,
}

impl LaunchConfig {
    /// Blocks in the x dimension of a grid, at the most.
    const MAX_BLOCKS: u64 = i32::MAX as u64;

    /// A line of `blocks` blocks, if a grid can have so many.
    pub(crate) fn line(
        blocks: u64,
        threads: u32,
        shared_bytes: usize,
    ) -> Result<Self, DeviceError> {
        if blocks > Self::MAX_BLOCKS {
            return Err(DeviceError::GridTooLarge {
                blocks,
                limit: Self::MAX_BLOCKS,
            });
        }
        Ok(Self {
            blocks: blocks as u32,
            block_rows: 1,
            threads,
            shared_bytes: shared_bytes as u32,
            cooperative: false,
        })
    }
}

/// Memory that several processes use, as this one has it.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) pointer: *mut u8,
    pub(crate) bytes: usize,
    /// How it is shared, and whether it is this process's own.
    sharing: Sharing,
    own: bool,
}

pub(crate) enum Backend {
    Cuda(Box<CudaBackend>),
    Emulator(Box<EmulatorBackend>),
}

/// Calls the same method of whichever backend it is.
macro_rules! dispatch {
    ($self:ident.$method:ident$(::<$kernel:ty>)?($($argument:expr),*)) => {
        match $self {
            Backend::Cuda(backend) => backend.$method$(::<$kernel>)?($($argument),*),
            Backend::Emulator(backend) => backend.$method$(::<$kernel>)?($($argument),*),
        }
    };
}

impl Backend {
    /// "NVIDIA H200, compute capability 9.0, ..." or "emulator, ...".
    pub(crate) fn description(&self) -> String {
        dispatch!(self.description())
    }

    /// What the device is called, without its properties.
    pub(crate) fn name(&self) -> &str {
        dispatch!(self.name())
    }

    /// Bytes of the L2 cache; 0 where there is none.
    pub(crate) fn l2_bytes(&self) -> usize {
        dispatch!(self.l2_bytes())
    }

    /// Multiprocessors: how much runs at once.
    pub(crate) fn multiprocessors(&self) -> u32 {
        dispatch!(self.multiprocessors())
    }

    /// Major and minor compute capability.
    pub(crate) fn compute_capability(&self) -> (u32, u32) {
        dispatch!(self.compute_capability())
    }

    /// Allocates at least `bytes`, aligned to 256; unspecified content.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        dispatch!(self.alloc(bytes))
    }

    /// Frees what `alloc` gave. Waits for work that may still use it.
    ///
    /// # Safety
    ///
    /// `pointer` came from `alloc` of this backend and is not used again.
    pub(crate) unsafe fn free(&self, pointer: *mut u8) -> Result<(), DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { dispatch!(self.free(pointer)) }
    }

    /// Lets kernels of this device use the memory of another one of this process. False if there is no path.
    pub(crate) fn reach(&self, other: &Self) -> Result<bool, DeviceError> {
        match (self, other) {
            (Self::Cuda(this), Self::Cuda(other)) => this.reach(other),
            (Self::Emulator(this), Self::Emulator(other)) => Ok(this.reach(other)),
            _ => Ok(false),
        }
    }

    /// Whether memory can be shared with other processes in this way.
    pub(crate) fn can_share(&self, sharing: Sharing) -> Result<bool, DeviceError> {
        dispatch!(self.can_share(sharing))
    }

    /// Allocates at least `bytes` that other processes can open, aligned to 256; unspecified content.
    pub(crate) fn alloc_shared(
        &self,
        bytes: usize,
        sharing: Sharing,
    ) -> Result<(Mapping, Ticket), DeviceError> {
        dispatch!(self.alloc_shared(bytes, sharing))
    }

    /// Maps memory of another process.
    pub(crate) fn open_shared(&self, ticket: &Ticket) -> Result<Mapping, DeviceError> {
        dispatch!(self.open_shared(ticket))
    }

    /// Ends a mapping, after the work that may still use it.
    ///
    /// # Safety
    ///
    /// It came from this backend and is not used again.
    pub(crate) unsafe fn close_shared(&self, mapping: &Mapping) -> Result<(), DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { dispatch!(self.close_shared(mapping)) }
    }

    /// Copies host bytes to the device, after all earlier work, and returns when they are there.
    ///
    /// # Safety
    ///
    /// `to` is device memory of this backend, valid for `bytes.len()`.
    pub(crate) unsafe fn upload(&self, to: *mut u8, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { dispatch!(self.upload(to, bytes)) }
    }

    /// Waits for all earlier work, then copies device bytes to the host.
    ///
    /// # Safety
    ///
    /// `from` is device memory of this backend, valid for `bytes.len()`.
    pub(crate) unsafe fn download(
        &self,
        bytes: &mut [u8],
        from: *const u8,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { dispatch!(self.download(bytes, from)) }
    }

    /// Fills device memory with a byte, after all earlier work, and returns when it is done.
    ///
    /// # Safety
    ///
    /// `to` is device memory of this backend, valid for `bytes`.
    pub(crate) unsafe fn fill(
        &self,
        to: *mut u8,
        value: u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { dispatch!(self.fill(to, value, bytes)) }
    }

    pub(crate) fn create_stream(&self) -> Result<Handle, DeviceError> {
        dispatch!(self.create_stream())
    }

    /// Waits for the stream's work, then releases it.
    pub(crate) fn destroy_stream(&self, stream: Handle) {
        dispatch!(self.destroy_stream(stream))
    }

    pub(crate) fn synchronize(&self, stream: Handle) -> Result<(), DeviceError> {
        dispatch!(self.synchronize(stream))
    }

    /// Marks a point of a stream. Between `timed` events the time can be measured; others cost less.
    pub(crate) fn record(&self, stream: Handle, timed: bool) -> Result<Handle, DeviceError> {
        dispatch!(self.record(stream, timed))
    }

    pub(crate) fn wait(&self, stream: Handle, event: Handle) -> Result<(), DeviceError> {
        dispatch!(self.wait(stream, event))
    }

    /// Milliseconds between two events, after waiting for the later one.
    pub(crate) fn elapsed_ms(&self, from: Handle, to: Handle) -> Result<f32, DeviceError> {
        dispatch!(self.elapsed_ms(from, to))
    }

    pub(crate) fn destroy_event(&self, event: Handle) {
        dispatch!(self.destroy_event(event))
    }

    /// From here on, launches on the stream are recorded and not run. Once at a time for a stream.
    pub(crate) fn begin_capture(&self, stream: Handle) -> Result<(), DeviceError> {
        dispatch!(self.begin_capture(stream))
    }

    /// Ends the recording, also if it fails, and makes a graph of it.
    pub(crate) fn end_capture(&self, stream: Handle) -> Result<Handle, DeviceError> {
        dispatch!(self.end_capture(stream))
    }

    /// Enqueues what a graph holds. Returns without waiting.
    ///
    /// # Safety
    ///
    /// As `launch`, for each launch that was recorded.
    pub(crate) unsafe fn launch_graph(
        &self,
        stream: Handle,
        graph: Handle,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { dispatch!(self.launch_graph(stream, graph)) }
    }

    /// Releases a graph, after its launches under way.
    pub(crate) fn destroy_graph(&self, graph: Handle) {
        dispatch!(self.destroy_graph(graph))
    }

    /// Encodes a tensor map for the scale tiles at `scales` into device memory at `to`.
    ///
    /// # Safety
    ///
    /// `to` is 128 bytes and `scales` is `tiles` times 512 bytes of device memory of this backend.
    pub(crate) unsafe fn encode_scale_map(
        &self,
        to: *mut u8,
        scales: *mut u8,
        tiles: usize,
        swizzle: kernels_gpu::scale_tile::Swizzle,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { dispatch!(self.encode_scale_map(to, scales, tiles, swizzle)) }
    }

    /// Loads a kernel's code now. At the first launch it may be too late: the driver may wait for the device then, and
    /// kernels that wait for this one are not done before.
    pub(crate) fn load<A: KernelArgs>(&self) -> Result<(), DeviceError> {
        match self {
            Self::Cuda(cuda) => cuda.load::<A>(),
            // There it is a part of the program.
            Self::Emulator(_) => Ok(()),
        }
    }

    /// Blocks of a kernel that are resident at once on the whole device. Also [loads](Self::load) the kernel, and lets it have so
    /// much dynamic shared memory, so it comes before the first launch of one that needs more than 48 KiB.
    pub(crate) fn resident_blocks<A: KernelArgs>(
        &self,
        threads: u32,
        shared_bytes: usize,
    ) -> Result<u32, DeviceError> {
        dispatch!(self.resident_blocks::<A>(threads, shared_bytes))
    }

    /// Enqueues a kernel. Returns without waiting.
    ///
    /// # Safety
    ///
    /// What the kernel's own safety section demands of its arguments and launch, until it is done.
    pub(crate) unsafe fn launch<A: KernelArgs>(
        &self,
        stream: Handle,
        config: LaunchConfig,
        args: A,
    ) -> Result<(), DeviceError> {
        if config.blocks == 0 || config.block_rows == 0 {
            return Ok(());
        }
        // SAFETY: the caller's obligation.
        unsafe { dispatch!(self.launch(stream, config, args)) }
    }
}
