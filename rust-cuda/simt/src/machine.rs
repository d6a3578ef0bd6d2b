//! The host's side of an emulated device. Provisional bodies: signatures only.
#![allow(unused_variables, missing_docs, clippy::missing_safety_doc)]

use std::sync::Arc;

use crate::{Config, Dim3, Error};

/// A stream of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    machine: u64,
    index: u32,
}

/// A position in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    stream: Stream,
    position: u64,
}

/// A kernel launch.
#[derive(Clone)]
pub struct Launch {
    pub name: &'static str,
    pub grid: Dim3,
    pub block: Dim3,
    pub shared_bytes: usize,
    pub cooperative: bool,
    pub entry: Arc<dyn Fn() + Send + Sync>,
}

/// An emulated device.
pub struct Machine {}

impl Machine {
    pub fn new(config: Config) -> Self {
        unimplemented!()
    }
    pub fn config(&self) -> &Config {
        unimplemented!()
    }
    pub fn alloc(&self, bytes: usize) -> Result<*mut u8, Error> {
        unimplemented!()
    }
    pub fn free(&self, ptr: *mut u8) -> Result<(), Error> {
        unimplemented!()
    }
    pub fn allocated_bytes(&self) -> usize {
        unimplemented!()
    }
    pub fn create_stream(&self) -> Stream {
        unimplemented!()
    }
    pub fn destroy_stream(&self, stream: Stream) -> Result<(), Error> {
        unimplemented!()
    }
    /// # Safety
    /// `entry` must not hold anything bound to an OS thread (a thread-local borrow, a lock guard)
    /// across a call into [`crate::device`]: a suspended fiber may go on in another OS thread.
    pub unsafe fn launch(&self, stream: Stream, launch: Launch) -> Result<(), Error> {
        unimplemented!()
    }
    pub fn enqueue(&self, stream: Stream, work: Box<dyn FnOnce() + Send>) -> Result<(), Error> {
        unimplemented!()
    }
    /// # Safety
    /// Whatever part of either range is not in an allocation of this machine must be host memory
    /// that stays valid until the stream has passed the copy.
    pub unsafe fn copy(
        &self,
        stream: Stream,
        dst: *mut u8,
        src: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        unimplemented!()
    }
    pub fn fill(&self, stream: Stream, dst: *mut u8, byte: u8, bytes: usize) -> Result<(), Error> {
        unimplemented!()
    }
    pub fn record(&self, stream: Stream) -> Event {
        unimplemented!()
    }
    pub fn wait(&self, stream: Stream, event: Event) -> Result<(), Error> {
        unimplemented!()
    }
    pub fn synchronize(&self, stream: Stream) -> Result<(), Error> {
        unimplemented!()
    }
    pub fn synchronize_all(&self) -> Result<(), Error> {
        unimplemented!()
    }
    pub fn take_output(&self) -> String {
        unimplemented!()
    }
}
