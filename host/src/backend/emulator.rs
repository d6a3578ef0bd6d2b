//! The emulator as a backend.

mod peer;

use super::{Handle, LaunchConfig};
use crate::device::EmulatorOptions;
use crate::error::DeviceError;
use cuda_std::launch::KernelArgs;
use cuda_std::tma;
use kernels_gpu::scale_tile::{Swizzle, TILE_BYTES};
use simt::{Config, Dim3, Launch, Machine};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub(crate) struct EmulatorBackend {
    /// Shared by the devices of a node: each can use the memory of all, and work of all runs side by side.
    machine: Arc<Machine>,
    options: EmulatorOptions,
    /// Streams and events by number, of the whole node.
    handles: Arc<Mutex<Handles>>,
}

#[derive(Default)]
struct Handles {
    next: u64,
    streams: HashMap<u64, simt::Stream>,
    events: HashMap<u64, RecordedEvent>,
    graphs: HashMap<u64, Vec<Launch>>,
    /// What has been recorded of the streams that are being captured.
    captures: HashMap<u64, Vec<Launch>>,
}

struct RecordedEvent {
    event: simt::Event,
    /// When the stream got there.
    time: Arc<Mutex<Option<Instant>>>,
}

impl Handles {
    fn issue(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl EmulatorBackend {
    pub(crate) fn new(options: EmulatorOptions) -> Self {
        let machine = Machine::new(Config {
            seed: options.seed,
            target: options.target,
            schedule: options.schedule,
            ..Config::default()
        });
        Self {
            machine: Arc::new(machine),
            options,
            handles: Arc::default(),
        }
    }

    /// Another device of the same node.
    pub(crate) fn sibling(&self) -> Self {
        Self {
            machine: Arc::clone(&self.machine),
            options: self.options.clone(),
            handles: Arc::clone(&self.handles),
        }
    }

    /// Whether kernels of this device can use the memory of another one.
    pub(crate) fn reach(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.machine, &other.machine)
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, Handles> {
        // Every critical section leaves the maps whole, so a panic elsewhere does not spoil them.
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stream(&self, stream: Handle) -> simt::Stream {
        self.handles().streams[&stream.0]
    }

    /// Refuses what a GPU's driver would refuse while a stream is being captured.
    fn check_not_capturing(&self, call: &'static str) -> Result<(), DeviceError> {
        if self.handles().captures.is_empty() {
            return Ok(());
        }
        Err(DeviceError::Capturing { call })
    }

    pub(crate) fn name(&self) -> &str {
        "emulator"
    }

    pub(crate) fn l2_bytes(&self) -> usize {
        0
    }

    /// A few, so that blocks do not get more threads than they have work for: each costs time here.
    pub(crate) fn multiprocessors(&self) -> u32 {
        4
    }

    pub(crate) fn description(&self) -> String {
        let (major, minor) = self.compute_capability();
        let suffix = if self.options.target.arch_specific {
            "a"
        } else {
            ""
        };
        format!(
            "emulator on the CPU, compute capability {major}.{minor}{suffix}, seed {}",
            self.options.seed
        )
    }

    pub(crate) fn compute_capability(&self) -> (u32, u32) {
        let capability = self.options.target.capability;
        (capability / 10, capability % 10)
    }

    pub(crate) fn alloc(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        self.check_not_capturing("an allocation")?;
        Ok(self.machine.alloc(bytes)?)
    }

    pub(crate) unsafe fn free(&self, pointer: *mut u8) -> Result<(), DeviceError> {
        Ok(self.machine.free(pointer)?)
    }

    pub(crate) unsafe fn upload(&self, to: *mut u8, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_not_capturing("a copy to the device")?;
        self.machine.synchronize_all()?;
        // SAFETY: the caller's obligation; emulated device memory is host memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    pub(crate) unsafe fn download(
        &self,
        bytes: &mut [u8],
        from: *const u8,
    ) -> Result<(), DeviceError> {
        self.check_not_capturing("a copy from the device")?;
        self.machine.synchronize_all()?;
        // SAFETY: as in `upload`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    pub(crate) unsafe fn fill(
        &self,
        to: *mut u8,
        value: u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.check_not_capturing("a fill")?;
        self.machine.synchronize_all()?;
        // SAFETY: as in `upload`.
        unsafe { std::ptr::write_bytes(to, value, bytes) };
        Ok(())
    }

    pub(crate) fn create_stream(&self) -> Result<Handle, DeviceError> {
        let stream = self.machine.create_stream();
        let mut handles = self.handles();
        let number = handles.issue();
        handles.streams.insert(number, stream);
        Ok(Handle(number))
    }

    pub(crate) fn destroy_stream(&self, stream: Handle) {
        let stream = self.handles().streams.remove(&stream.0);
        if let Some(stream) = stream {
            // A fault of the stream's work is sticky: whoever asks next is told.
            let _ = self.machine.destroy_stream(stream);
        }
    }

    pub(crate) fn synchronize(&self, stream: Handle) -> Result<(), DeviceError> {
        Ok(self.machine.synchronize(self.stream(stream))?)
    }

    pub(crate) fn record(&self, stream: Handle, timed: bool) -> Result<Handle, DeviceError> {
        let stream = self.stream(stream);
        let time = Arc::new(Mutex::new(None));
        if timed {
            let stamp = Arc::clone(&time);
            self.machine.enqueue(
                stream,
                Box::new(move || {
                    *stamp.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                }),
            )?;
        }
        let event = self.machine.record(stream);
        let mut handles = self.handles();
        let number = handles.issue();
        handles.events.insert(number, RecordedEvent { event, time });
        Ok(Handle(number))
    }

    pub(crate) fn wait(&self, stream: Handle, event: Handle) -> Result<(), DeviceError> {
        let stream = self.stream(stream);
        let event = self.handles().events[&event.0].event;
        Ok(self.machine.wait(stream, event)?)
    }

    pub(crate) fn elapsed_ms(&self, from: Handle, to: Handle) -> Result<f32, DeviceError> {
        self.machine.synchronize_all()?;
        let handles = self.handles();
        let time = |event: Handle| {
            *handles.events[&event.0]
                .time
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        // After the synchronisation both have passed.
        let elapsed = time(to)
            .zip(time(from))
            .map(|(to, from)| to.saturating_duration_since(from));
        Ok(elapsed.unwrap_or_default().as_secs_f32() * 1e3)
    }

    pub(crate) fn destroy_event(&self, event: Handle) {
        self.handles().events.remove(&event.0);
    }

    pub(crate) fn begin_capture(&self, stream: Handle) -> Result<(), DeviceError> {
        self.handles().captures.insert(stream.0, Vec::new());
        Ok(())
    }

    pub(crate) fn end_capture(&self, stream: Handle) -> Result<Handle, DeviceError> {
        let mut handles = self.handles();
        let launches = handles.captures.remove(&stream.0).unwrap_or_default();
        let number = handles.issue();
        handles.graphs.insert(number, launches);
        Ok(Handle(number))
    }

    pub(crate) unsafe fn launch_graph(
        &self,
        stream: Handle,
        graph: Handle,
    ) -> Result<(), DeviceError> {
        let launches = self.handles().graphs[&graph.0].clone();
        for launch in launches {
            // SAFETY: the caller's obligation.
            unsafe { self.enqueue(stream, launch) }?;
        }
        Ok(())
    }

    pub(crate) fn destroy_graph(&self, graph: Handle) {
        self.handles().graphs.remove(&graph.0);
    }

    /// Gives a launch to the stream, or to the recording of it.
    ///
    /// # Safety
    ///
    /// As [`Machine::launch`].
    unsafe fn enqueue(&self, stream: Handle, launch: Launch) -> Result<(), DeviceError> {
        if let Some(recorded) = self.handles().captures.get_mut(&stream.0) {
            recorded.push(launch);
            return Ok(());
        }
        // SAFETY: the caller's obligation.
        Ok(unsafe { self.machine.launch(self.stream(stream), launch) }?)
    }

    pub(crate) unsafe fn encode_scale_map(
        &self,
        to: *mut u8,
        scales: *mut u8,
        tiles: usize,
        swizzle: Swizzle,
    ) -> Result<(), DeviceError> {
        let row = swizzle.span_bytes();
        let rows = TILE_BYTES as u32 / row;
        let map = tma::TensorMap::emulated(&tma::TensorMapDesc {
            address: scales,
            element_bytes: 1,
            rank: 3,
            extents: [row.into(), rows.into(), tiles as u64, 1],
            strides: [row.into(), TILE_BYTES as u64, 0],
            box_extents: [row, rows, 1, 1],
            element_strides: [1; 4],
            swizzle: match swizzle {
                Swizzle::None => tma::Swizzle::None,
                Swizzle::B32 => tma::Swizzle::Bytes32,
                Swizzle::B64 => tma::Swizzle::Bytes64,
                Swizzle::B128 => tma::Swizzle::Bytes128,
            },
        })?;
        // SAFETY: the caller's obligation; device memory is aligned to 256.
        unsafe { to.cast::<tma::TensorMap>().write(map) };
        Ok(())
    }

    pub(crate) fn resident_blocks<A: KernelArgs>(
        &self,
        threads: u32,
        _shared_bytes: usize,
    ) -> Result<u32, DeviceError> {
        // As on a GPU, no block is resident that is larger than the kernel says.
        let too_large = A::KERNEL.max_threads.is_some_and(|limit| threads > limit);
        Ok(if too_large {
            0
        } else {
            simt::MAX_RESIDENT_THREADS / threads
        })
    }

    pub(crate) unsafe fn launch<A: KernelArgs>(
        &self,
        stream: Handle,
        config: LaunchConfig,
        args: A,
    ) -> Result<(), DeviceError> {
        let launch = Launch {
            name: A::KERNEL.name,
            grid: Dim3::from((config.blocks, config.block_rows)),
            block: Dim3::from(config.threads),
            shared_bytes: config.shared_bytes as usize,
            cooperative: config.cooperative,
            // SAFETY: the caller's obligation; the emulator checks accesses on top.
            entry: Arc::new(move || unsafe { args.call() }),
        };
        // SAFETY: the entry may be called by any number of fibers; what it does is as above.
        unsafe { self.enqueue(stream, launch) }
    }
}
