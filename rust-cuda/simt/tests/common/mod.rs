//! What the tests share: typed device buffers and short launches.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::sync::Arc;

use simt::{Config, Dim3, Error, Fault, Launch, Machine, Stream, device};

/// A pointer that kernels may capture.
pub struct Global<T>(pub *mut T);

impl<T> Clone for Global<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Global<T> {}

// SAFETY: kernels access what it points to only through the emulator, which runs one thread at a time.
unsafe impl<T> Send for Global<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Global<T> {}

impl<T: Copy> Global<T> {
    /// The elements from `i` on. (A closure that used the field would capture the pointer alone.)
    pub fn at(self, i: usize) -> Self {
        Self(self.0.wrapping_add(i))
    }

    #[track_caller]
    pub fn load(self, i: usize) -> T {
        // SAFETY: the emulator checks the address, and the tests use types without invalid values.
        unsafe { device::read(self.0.wrapping_add(i)) }
    }

    #[track_caller]
    pub fn store(self, i: usize, value: T) {
        // SAFETY: as above; no test makes references to device memory.
        unsafe { device::write(self.0.wrapping_add(i), value) }
    }
}

impl Global<u32> {
    #[track_caller]
    pub fn atomic_load(self, i: usize) -> u32 {
        device::yield_point(device::Yield::Spin);
        self.load(i)
    }

    #[track_caller]
    pub fn atomic_store(self, i: usize, value: u32) {
        device::yield_point(device::Yield::Progress);
        self.store(i, value);
    }

    #[track_caller]
    pub fn atomic_add(self, i: usize, value: u32) -> u32 {
        self.atomic_update(i, |old| old.wrapping_add(value))
    }

    #[track_caller]
    pub fn atomic_update(self, i: usize, update: impl FnOnce(u32) -> u32) -> u32 {
        device::yield_point(device::Yield::Progress);
        let ptr = self.0.wrapping_add(i);
        device::check(ptr.cast(), 4, 4, device::Access::Atomic);
        // SAFETY: checked.
        unsafe {
            let old = ptr.read();
            ptr.write(update(old));
            old
        }
    }
}

/// The calling block's dynamic shared memory as an array of `T`.
pub fn shared<T>() -> Global<T> {
    Global(device::dynamic_shared().cast())
}

pub fn tid() -> usize {
    device::linear_thread_id() as usize
}

/// Index of the thread within a one-dimensional grid.
pub fn global_id() -> usize {
    (device::block_idx().x * device::block_dim().x) as usize + tid()
}

/// A device allocation that lives as long as its machine.
pub fn buffer<T: Copy>(machine: &Machine, values: &[T]) -> Global<T> {
    let ptr = machine.alloc(size_of_val(values)).unwrap().cast::<T>();
    // SAFETY: the allocation has this size, and no kernel knows it yet.
    unsafe { ptr.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Global(ptr)
}

/// Reads a buffer of a machine that is idle.
pub fn contents<T: Copy>(buffer: Global<T>, len: usize) -> Vec<T> {
    // SAFETY: the tests ask for what they allocated, and nothing runs.
    unsafe { std::slice::from_raw_parts(buffer.0, len) }.to_vec()
}

pub fn seeded(seed: u64) -> Config {
    Config {
        seed,
        ..Config::default()
    }
}

/// A launch, to be varied with struct update syntax.
pub fn kernel(
    grid: impl Into<Dim3>,
    block: impl Into<Dim3>,
    entry: impl Fn() + Send + Sync + 'static,
) -> Launch {
    Launch {
        name: "test_kernel",
        grid: grid.into(),
        block: block.into(),
        shared_bytes: 1024,
        cooperative: false,
        entry: Arc::new(entry),
    }
}

pub fn launch(machine: &Machine, stream: Stream, launch: Launch) -> Result<(), Error> {
    // SAFETY: the kernels of the tests access memory through checked functions only, or do on purpose what
    // the emulator has to catch; none holds anything of its OS thread across a device function.
    unsafe { machine.launch(stream, launch) }
}

/// Launches on a new stream and waits.
pub fn run(machine: &Machine, what: Launch) -> Result<(), Error> {
    let stream = machine.create_stream();
    launch(machine, stream, what)?;
    machine.synchronize(stream)
}

/// The fault of a kernel that has to have one.
#[track_caller]
pub fn fault_of(config: Config, what: Launch) -> Fault {
    match run(&Machine::new(config), what) {
        Err(Error::Fault(fault)) => *fault,
        other => panic!("expected a fault, got {other:?}"),
    }
}
