//! Recording a stream's work once and launching it many times, as CUDA graphs do.

use crate::backend::Handle;
use crate::device::Device;
use crate::error::DeviceError;
use crate::stream::Stream;
use std::fmt;

/// Work that was recorded from a stream, ready to be launched again and again with one call.
///
/// Launching a graph costs a few microseconds however many kernels it holds, and the kernels follow
/// each other more closely than separate launches do.
pub struct Graph {
    device: Device,
    handle: Handle,
}

impl Graph {
    pub(crate) fn new(device: &Device, handle: Handle) -> Self {
        Self {
            device: device.clone(),
            handle,
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Queues the recorded work on `stream`, which need not be the stream that it was recorded from.
    ///
    /// # Errors
    ///
    /// [`DeviceError::WrongDevice`], or whatever the driver refuses.
    ///
    /// # Safety
    ///
    /// The graph holds addresses, not borrows. Until this launch is done, every buffer that the
    /// recorded calls were given must be alive, and be used only as those calls would allow. The same goes for the
    /// object they are calls of: a [group](crate::ep#streams) must be alive, and its other work must not run at the
    /// same time.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.device.check_same("the stream", stream.device())?;
        // SAFETY: the handle is that of a graph of this device; the rest is the caller's obligation.
        unsafe {
            self.device
                .backend()
                .launch_graph(stream.handle(), self.handle)
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.device.backend().destroy_graph(self.handle);
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Graph({})", self.handle.0)
    }
}
