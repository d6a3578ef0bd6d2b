//! Recording a stream's work as a graph, and launching it again.

use std::ffi::{c_uint, c_ulonglong, c_void};
use std::ptr;

use super::{DriverError, RawStream, driver_fn};

/// `CUstreamCaptureMode`: which calls are forbidden elsewhere while a stream is being captured.
/// (Allocating memory, for example, is a call that may break a capture.)
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// Unsafe calls fail in every thread.
    Global = 0,
    /// Unsafe calls fail in this thread.
    ThreadLocal = 1,
    /// No call fails on account of the capture.
    Relaxed = 2,
}

driver_fn! {
    fn stream_begin_capture = cuStreamBeginCapture_v2, since "10.1", (
        stream: RawStream, mode: CaptureMode,
    );
    fn stream_end_capture = cuStreamEndCapture, since "10.0", (
        stream: RawStream, graph: *mut *mut c_void,
    );
    fn graph_instantiate = cuGraphInstantiateWithFlags, since "11.4", (
        exec: *mut *mut c_void, graph: *mut c_void, flags: c_ulonglong,
    );
    fn graph_launch = cuGraphLaunch, since "10.0", (exec: *mut c_void, stream: RawStream);
    fn graph_exec_destroy = cuGraphExecDestroy, since "10.0", (exec: *mut c_void);
    fn graph_destroy = cuGraphDestroy, since "10.0", (graph: *mut c_void);
}

const _: () = assert!(size_of::<CaptureMode>() == size_of::<c_uint>());

/// `cuStreamBeginCapture` (CUDA 10.1): from here on, work given to the stream is recorded and not
/// run, until [`end_capture`].
///
/// # Safety
///
/// `stream` is a stream of the current context. Memory that the recorded work names must stay
/// valid for as long as the graph is launched, not only until the capture ends.
///
/// # Errors
///
/// No driver; a stream that cannot be captured (the default stream) or already is.
pub unsafe fn begin_capture(stream: RawStream, mode: CaptureMode) -> Result<(), DriverError> {
    // SAFETY: the caller's promise.
    unsafe { stream_begin_capture(stream, mode) }
}

/// `cuStreamEndCapture` (CUDA 10.0): ends the recording and returns it.
///
/// # Safety
///
/// `stream` is a stream of the current context on which [`begin_capture`] succeeded.
///
/// # Errors
///
/// No driver; a capture that some call has invalidated, that leaves forked work unjoined, or that
/// another thread began.
pub unsafe fn end_capture(stream: RawStream) -> Result<Graph, DriverError> {
    let mut raw = ptr::null_mut();
    // SAFETY: the stream is the caller's promise; the result goes to a local.
    unsafe { stream_end_capture(stream, &mut raw) }?;
    Ok(Graph { raw })
}

/// A recorded graph; destroyed when dropped.
#[derive(Debug)]
pub struct Graph {
    raw: *mut c_void,
}

// SAFETY: the driver allows graph calls from any thread as long as there is one at a time for a
// graph, which ownership without `Sync` gives.
unsafe impl Send for Graph {}

impl Graph {
    /// `cuGraphInstantiateWithFlags` (CUDA 11.4): makes the graph ready for launching. The result
    /// does not need the graph any more.
    ///
    /// # Errors
    ///
    /// A driver older than CUDA 11.4, or a graph that it cannot instantiate.
    pub fn instantiate(&self) -> Result<GraphExec, DriverError> {
        let mut raw = ptr::null_mut();
        // SAFETY: `self.raw` is a live graph; the result goes to a local; no flags.
        unsafe { graph_instantiate(&mut raw, self.raw, 0) }?;
        Ok(GraphExec { raw })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: a live graph, destroyed once.
        let destroyed = unsafe { graph_destroy(self.raw) };
        // Fails only when the context is gone, and the graph with it.
        drop(destroyed);
    }
}

/// A graph ready for launching; destroyed when dropped, after launches under way have finished.
#[derive(Debug)]
pub struct GraphExec {
    raw: *mut c_void,
}

// SAFETY: as for `Graph`.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// `cuGraphLaunch` (CUDA 10.0): runs the recorded work in stream order.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of the current context, and everything the recorded work refers to is
    /// still valid.
    ///
    /// # Errors
    ///
    /// What the driver refuses, and failures of earlier asynchronous work.
    pub unsafe fn launch(&self, stream: RawStream) -> Result<(), DriverError> {
        // SAFETY: `self.raw` is a live executable graph; the rest is the caller's promise.
        unsafe { graph_launch(self.raw, stream) }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: a live executable graph, destroyed once.
        let destroyed = unsafe { graph_exec_destroy(self.raw) };
        // Fails only when the context is gone, and the graph with it.
        drop(destroyed);
    }
}
