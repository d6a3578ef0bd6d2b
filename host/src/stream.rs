//! Streams of work, and events in them.

use crate::backend::{Handle, LaunchConfig};
use crate::device::Device;
use crate::error::DeviceError;
use cuda_std::launch::KernelArgs;
use std::fmt;

/// A queue of work on a device. What is queued on one stream runs in order.
pub struct Stream {
    device: Device,
    handle: Handle,
}

impl Stream {
    pub(crate) fn new(device: &Device) -> Result<Self, DeviceError> {
        Ok(Self {
            device: device.clone(),
            handle: device.backend().create_stream()?,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until everything queued so far is done.
    ///
    /// # Errors
    ///
    /// A fault of that work.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.device.backend().synchronize(self.handle)
    }

    /// Marks this point of the stream.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses.
    pub fn record(&self) -> Result<Event, DeviceError> {
        Ok(Event {
            device: self.device.clone(),
            handle: self.device.backend().record(self.handle)?,
        })
    }

    /// Lets later work on this stream wait for an event, of any stream of the device.
    ///
    /// # Errors
    ///
    /// [`DeviceError::WrongDevice`], or whatever the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        self.device.check_same("the event", &event.device)?;
        self.device.backend().wait(self.handle, event.handle)
    }

    /// Queues a kernel.
    ///
    /// # Safety
    ///
    /// What the kernel's own safety section demands, until the work is done.
    pub(crate) unsafe fn launch<A: KernelArgs>(
        &self,
        config: LaunchConfig,
        args: A,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { self.device.backend().launch(self.handle, config, args) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.device.backend().destroy_stream(self.handle);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Stream({})", self.handle.0)
    }
}

/// A point in a stream's work.
pub struct Event {
    device: Device,
    handle: Handle,
}

impl Event {
    /// Milliseconds from `earlier` to this event, after waiting for both.
    ///
    /// # Errors
    ///
    /// [`DeviceError::WrongDevice`], or a fault of the work before the events.
    pub fn elapsed_ms(&self, earlier: &Event) -> Result<f32, DeviceError> {
        self.device
            .check_same("the earlier event", &earlier.device)?;
        self.device
            .backend()
            .elapsed_ms(earlier.handle, self.handle)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.device.backend().destroy_event(self.handle);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Event({})", self.handle.0)
    }
}
