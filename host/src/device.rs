//! Devices: a GPU, or the emulator.

use crate::backend::{Backend, CudaBackend, EmulatorBackend};
use crate::buffer::DeviceBuffer;
use crate::error::DeviceError;
use crate::stream::Stream;
use bytemuck::Pod;
use std::fmt;
use std::sync::Arc;

pub use simt::{Schedule, Target};

/// Something that runs kernels. A cheap handle: clones are the same device.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Backend,
    /// Why this device was chosen over another, if there was a choice.
    note: Option<String>,
}

/// How an emulated device behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EmulatorOptions {
    /// Decides the order in which threads run. The same seed replays the same order.
    pub seed: u64,
    /// The GPU that it stands for: kernels take the paths that they would take there.
    pub target: Target,
    /// How the order is drawn from the seed.
    pub schedule: Schedule,
}

impl Default for EmulatorOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            target: Target {
                capability: 90,
                arch_specific: false,
            },
            schedule: Schedule::default(),
        }
    }
}

impl Device {
    /// The GPU with this ordinal, from 0. Each call opens it anew; clone the handle to share buffers.
    ///
    /// Calls on the device make its primary context the calling thread's current one.
    ///
    /// # Errors
    ///
    /// No driver, no such GPU, a GPU older than compute capability 8.0, a build without kernels, or
    /// a driver that refuses to load them.
    pub fn cuda(ordinal: u32) -> Result<Self, DeviceError> {
        Ok(Self::from_backend(
            Backend::Cuda(Box::new(CudaBackend::new(ordinal)?)),
            None,
        ))
    }

    /// An emulated device of compute capability 9.0.
    pub fn emulator(seed: u64) -> Self {
        Self::emulator_with(EmulatorOptions {
            seed,
            ..EmulatorOptions::default()
        })
    }

    /// An emulated device with every choice made.
    pub fn emulator_with(options: EmulatorOptions) -> Self {
        Self::from_backend(
            Backend::Emulator(Box::new(EmulatorBackend::new(options))),
            None,
        )
    }

    /// `count` emulated devices of one node: each can use the memory of the others. Work of all of them runs side by
    /// side whenever one is waited for, so kernels of one may wait for those of another.
    pub fn emulated_node(count: usize, options: EmulatorOptions) -> Vec<Self> {
        let first = EmulatorBackend::new(options);
        let siblings: Vec<_> = (1..count).map(|_| first.sibling()).collect();
        let backends = std::iter::once(first).chain(siblings).take(count);
        backends
            .map(|backend| Self::from_backend(Backend::Emulator(Box::new(backend)), None))
            .collect()
    }

    /// The first GPU, or the emulator where there is none that works; [`description`] says why.
    ///
    /// [`description`]: Self::description
    pub fn best() -> Self {
        Self::cuda(0).unwrap_or_else(|error| {
            let emulator = EmulatorBackend::new(EmulatorOptions::default());
            let note = format!("no GPU was used: {error}");
            Self::from_backend(Backend::Emulator(Box::new(emulator)), Some(note))
        })
    }

    fn from_backend(backend: Backend, note: Option<String>) -> Self {
        Self {
            inner: Arc::new(Inner { backend, note }),
        }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.inner.backend
    }

    /// What it is, in a line, and why it was chosen if there was a choice.
    pub fn description(&self) -> String {
        let what = self.backend().description();
        match &self.inner.note {
            Some(note) => format!("{what} ({note})"),
            None => what,
        }
    }

    /// What the driver calls it: "NVIDIA H200"; "emulator" for an emulated device.
    pub fn name(&self) -> &str {
        self.backend().name()
    }

    /// Bytes of the L2 cache, which a measurement of memory has to get past; 0 for an emulated device.
    pub fn l2_bytes(&self) -> usize {
        self.backend().l2_bytes()
    }

    /// Whether kernels run on the CPU.
    pub fn is_emulator(&self) -> bool {
        matches!(self.backend(), Backend::Emulator(_))
    }

    /// Major and minor compute capability.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.backend().compute_capability()
    }

    /// A new stream: work on it runs in order, and beside the work of other streams.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses.
    pub fn create_stream(&self) -> Result<Stream, DeviceError> {
        Stream::new(self)
    }

    /// A buffer of `len` values of unspecified content.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`], or an earlier fault of the device.
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<DeviceBuffer<T>, DeviceError> {
        DeviceBuffer::new(self, len)
    }

    /// A buffer of `len` values, every byte of which is `byte`.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_filled<T: Pod>(
        &self,
        len: usize,
        byte: u8,
    ) -> Result<DeviceBuffer<T>, DeviceError> {
        let mut buffer = self.alloc(len)?;
        buffer.fill(byte)?;
        Ok(buffer)
    }

    /// A buffer with a copy of `values`.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<DeviceBuffer<T>, DeviceError> {
        let mut buffer = self.alloc(values.len())?;
        buffer.upload_from(values)?;
        Ok(buffer)
    }

    /// Lets kernels of this device use the memory of `other`, as far as that is not so already.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoPath`], naming both, where there is no path; whatever the driver refuses.
    pub fn reach(&self, other: &Self) -> Result<(), DeviceError> {
        match self.backend().reach(other.backend())? {
            true => Ok(()),
            false => Err(DeviceError::NoPath {
                from: self.description(),
                to: other.description(),
            }),
        }
    }

    /// Refuses what lives on another device.
    pub(crate) fn check_same(&self, what: &'static str, other: &Device) -> Result<(), DeviceError> {
        if self == other {
            return Ok(());
        }
        Err(DeviceError::WrongDevice {
            what,
            other: other.description(),
            device: self.description(),
        })
    }
}

/// Two handles are equal when they are the same device.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Device({})", self.description())
    }
}
