//! Streams of work, and events in them.

use crate::backend::{Handle, LaunchConfig};
use crate::device::Device;
use crate::error::DeviceError;
use crate::graph::Graph;
use cuda_std::launch::KernelArgs;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A queue of work on a device. What is queued on one stream runs in order.
pub struct Stream {
    device: Device,
    handle: Handle,
    /// Set while work is being recorded in place of being queued.
    recording: Mutex<Option<Arc<Recording>>>,
}

impl Stream {
    pub(crate) fn new(device: &Device) -> Result<Self, DeviceError> {
        Ok(Self {
            device: device.clone(),
            handle: device.backend().create_stream()?,
            recording: Mutex::new(None),
        })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until everything queued so far is done.
    ///
    /// # Errors
    ///
    /// A fault of that work; [`DeviceError::Capturing`].
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.check_not_capturing("Stream::synchronize")?;
        self.device.backend().synchronize(self.handle)
    }

    /// Marks this point of the stream.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses; [`DeviceError::Capturing`].
    pub fn record(&self) -> Result<Event, DeviceError> {
        self.record_event(true)
    }

    /// The same for waiting alone: it costs less, and has no time.
    pub(crate) fn record_untimed(&self) -> Result<Event, DeviceError> {
        self.record_event(false)
    }

    fn record_event(&self, timed: bool) -> Result<Event, DeviceError> {
        self.check_not_capturing("Stream::record")?;
        Ok(Event {
            device: self.device.clone(),
            handle: self.device.backend().record(self.handle, timed)?,
        })
    }

    /// Lets later work on this stream wait for an event, of any stream of the device.
    ///
    /// # Errors
    ///
    /// [`DeviceError::WrongDevice`], [`DeviceError::Capturing`], or whatever the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        self.check_not_capturing("Stream::wait")?;
        self.device.check_same("the event", &event.device)?;
        self.device.backend().wait(self.handle, event.handle)
    }

    /// Records the work that `record` gives to this stream, which does not run, as a [`Graph`].
    ///
    /// `record` may launch, and nothing else: what allocates, copies or waits for the device is
    /// refused meanwhile. Memory that the launches use must outlive the graph's own launches.
    ///
    /// ```
    /// use tokenyard::{Device, DeviceError, baseline};
    ///
    /// let device = Device::emulator(0);
    /// let stream = device.create_stream()?;
    /// let from = device.upload(&[[7_u32; 4]; 10])?;
    /// let mut to = device.alloc_filled(10, 0)?;
    /// let graph = stream.capture(|| baseline::copy(&stream, &from, &mut to))?;
    /// assert_eq!(to.download()?[9], [0; 4]); // recorded, not run
    /// // SAFETY: `from` and `to` are alive until the download has waited, and nothing else uses them.
    /// unsafe { graph.launch(&stream)? };
    /// assert_eq!(to.download()?[9], [7; 4]);
    /// # Ok::<(), DeviceError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `record`; [`DeviceError::Capturing`] when this stream is being captured already;
    /// whatever the driver refuses.
    pub fn capture<E: From<DeviceError>>(
        &self,
        record: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        self.check_not_capturing("Stream::capture")?;
        let backend = self.device.backend();
        backend.begin_capture(self.handle)?;
        let recording = Arc::new(Recording::default());
        *self.lock_recording() = Some(Arc::clone(&recording));
        // Also ends the capture when `record` fails or panics: the stream would be of no use otherwise.
        let capture = Capture { stream: self };
        record()?;
        std::mem::forget(capture);
        *self.lock_recording() = None;
        let graph = backend.end_capture(self.handle);
        recording.end(graph.is_ok());
        Ok(Graph::new(&self.device, graph?))
    }

    /// The recording under way.
    pub(crate) fn recording(&self) -> Option<Arc<Recording>> {
        self.lock_recording().clone()
    }

    fn lock_recording(&self) -> MutexGuard<'_, Option<Arc<Recording>>> {
        // Every critical section is one assignment.
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses what cannot be recorded.
    fn check_not_capturing(&self, call: &'static str) -> Result<(), DeviceError> {
        if self.recording().is_some() {
            return Err(DeviceError::Capturing { call });
        }
        Ok(())
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

/// A recording, for those who count what they launch: what is recorded for a graph that is never made has not
/// happened.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    outcome: OnceLock<bool>,
}

impl Recording {
    /// Whether it became a graph, once that is known.
    pub(crate) fn outcome(&self) -> Option<bool> {
        self.outcome.get().copied()
    }

    fn end(&self, graph: bool) {
        self.outcome.get_or_init(|| graph);
    }
}

/// A capture under way, given up when dropped.
struct Capture<'a> {
    stream: &'a Stream,
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let Stream { device, handle, .. } = self.stream;
        if let Some(recording) = self.stream.lock_recording().take() {
            recording.end(false);
        }
        // A capture that something has invalidated ends with an error, and has ended all the same.
        if let Ok(graph) = device.backend().end_capture(*handle) {
            device.backend().destroy_graph(graph);
        }
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
