//! Machines, buffers and launches for the tests.

use std::sync::Arc;

use cuda_std::launch::KernelArgs;
use simt::{Config, Dim3, Error, Fault, Launch, Machine, Schedule, Target};

/// A device buffer that lives as long as its machine.
pub struct Buffer<T> {
    ptr: *mut T,
    len: usize,
}

impl<T: Copy> Buffer<T> {
    pub fn new(machine: &Machine, values: &[T]) -> Self {
        let ptr = machine.alloc(size_of_val(values)).unwrap().cast::<T>();
        // SAFETY: the allocation has this size, and no kernel knows it yet.
        unsafe { ptr.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        Self {
            ptr,
            len: values.len(),
        }
    }

    pub fn ptr(&self) -> *mut T {
        self.ptr
    }

    /// The contents, while no kernel runs.
    pub fn read(&self) -> Vec<T> {
        // SAFETY: the allocation holds this many values, all of them initialised.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }.to_vec()
    }
}

/// A machine of compute capability 9.0, the default of these tests.
pub fn machine(seed: u64) -> Machine {
    target_machine(seed, 90, false)
}

pub fn target_machine(seed: u64, capability: u32, arch_specific: bool) -> Machine {
    Machine::new(Config {
        seed,
        target: Target {
            capability,
            arch_specific,
        },
        // Every other seed makes some threads much later than the rest.
        schedule: if seed.is_multiple_of(2) {
            Schedule::Random
        } else {
            Schedule::Stall { stretch: 500 }
        },
        preempt_every: 8,
        ..Config::default()
    })
}

/// Seeds to try where the interleaving matters.
pub const SEEDS: std::ops::Range<u64> = 0..6;

/// Launches and waits.
pub fn try_run<A: KernelArgs>(
    machine: &Machine,
    grid: impl Into<Dim3>,
    block: impl Into<Dim3>,
    shared_bytes: usize,
    args: A,
) -> Result<(), Error> {
    let stream = machine.create_stream();
    let launch = Launch {
        name: A::KERNEL.name,
        grid: grid.into(),
        block: block.into(),
        shared_bytes,
        cooperative: false,
        // SAFETY: each test launches kernels with buffers as large as their contracts ask for, or
        // checks that the emulator stops the kernel before it does harm.
        entry: Arc::new(move || unsafe { args.call() }),
    };
    // SAFETY: as above; buffers live as long as the machine.
    unsafe { machine.launch(stream, launch) }?;
    machine.synchronize(stream)
}

/// Launches and waits; a fault fails the test.
#[track_caller]
pub fn run<A: KernelArgs>(
    machine: &Machine,
    grid: impl Into<Dim3>,
    block: impl Into<Dim3>,
    shared_bytes: usize,
    args: A,
) {
    if let Err(error) = try_run(machine, grid, block, shared_bytes, args) {
        panic!("{} failed: {error}", A::KERNEL.name);
    }
}

/// Launches and waits for the fault that the kernel is expected to cause.
#[track_caller]
pub fn fault<A: KernelArgs>(
    machine: &Machine,
    grid: impl Into<Dim3>,
    block: impl Into<Dim3>,
    shared_bytes: usize,
    args: A,
) -> Fault {
    match try_run(machine, grid, block, shared_bytes, args) {
        Err(Error::Fault(fault)) => *fault,
        other => panic!("{} should have faulted: {other:?}", A::KERNEL.name),
    }
}

/// Runs a kernel whose threads report `words` words each; returns them by thread.
#[track_caller]
pub fn reports<A: KernelArgs>(
    machine: &Machine,
    grid: impl Into<Dim3>,
    block: impl Into<Dim3>,
    words: usize,
    args: impl FnOnce(*mut u32) -> A,
) -> Vec<Vec<u32>> {
    let (grid, block) = (grid.into(), block.into());
    let threads = [grid, block]
        .iter()
        .map(|dim| (dim.x * dim.y * dim.z) as usize)
        .product::<usize>();
    let out = Buffer::new(machine, &vec![0xdead_beef_u32; threads * words]);
    run(machine, grid, block, 256, args(out.ptr()));
    out.read().chunks(words).map(<[u32]>::to_vec).collect()
}
