//! The engine: everything a machine knows, and the loop that drives it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use slab::Slab;

use crate::async_copy::Copies;
use crate::block::{Block, MAX_RESIDENT_THREADS};
use crate::config::Config;
use crate::context::{self, Context};
use crate::fault::{Fault, FaultKind};
use crate::fiber::{Coroutine, Entry, Fiber, FiberId, StackPool, Yielder};
use crate::geometry::Dim3;
use crate::memory::Memory;
use crate::scheduler::Scheduler;
use crate::shared::SharedMemory;
use crate::stream::{Launch, Streams, Work};

/// While kernels run, one step in this many starts the next work of a stream that is ready, so that
/// grids and copies of different streams meet at any point of each other.
const START_ODDS: u32 = 16;

/// A grid that runs.
pub(crate) struct Grid {
    pub name: &'static str,
    pub stream: usize,
    pub grid_dim: Dim3,
    pub block_dim: Dim3,
    pub block_threads: u32,
    pub shared_bytes: usize,
    pub entry: Entry,
    pub blocks: u64,
    pub next_block: u64,
    pub resident: u64,
    pub finished: u64,
    /// Most blocks that are resident at once.
    pub residency: u64,
    /// Copies out of blocks that have exited.
    pub orphans: Vec<u64>,
}

/// What a drive is to achieve.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// The stream has finished its first `position` pieces of work.
    Stream { index: usize, position: u64 },
    /// All streams are idle.
    All,
}

pub(crate) struct Engine {
    machine: u64,
    pub config: Config,
    pub rng: fastrand::Rng,
    pub memory: Memory,
    pub streams: Streams,
    pub scheduler: Scheduler,
    pub grids: Slab<Grid>,
    pub blocks: Slab<Block>,
    pub fibers: Slab<Fiber>,
    /// By fiber. Apart from the fibers, because one of these is borrowed while device functions change
    /// those.
    pub coroutines: Vec<Option<Coroutine>>,
    pub stacks: StackPool,
    pub arenas: Vec<SharedMemory>,
    pub copies: Copies,
    pub blocks_started: u64,
    /// Checked accesses until a preemption.
    pub until_preemption: u32,
    pub output: String,
    fault: Option<Box<Fault>>,
}

// SAFETY: what keeps an engine from being `Send` by itself is the raw pointers and the suspended stacks.
// * Pointers point into memory that the engine owns (allocations, shared memory, fiber stacks), or are
//   kernel arguments that whoever submitted the work answers for (`Machine::launch`, `Machine::copy`).
// * A suspended stack holds frames of this crate, of corosensei and of a kernel. This crate keeps no
//   reference to a thread-local and no lock across a suspension (see `context`); corosensei allows the
//   move under that condition; and `Machine::launch` requires it of the kernel.
// * Grid entries are `Send + Sync`, host functions `Send`.
unsafe impl Send for Engine {}

impl Engine {
    pub fn new(machine: u64, config: Config) -> Self {
        let mut engine = Self {
            machine,
            config,
            rng: fastrand::Rng::with_seed(config.seed),
            memory: Memory::new(config.seed),
            streams: Streams::default(),
            scheduler: Scheduler::new(&config),
            grids: Slab::new(),
            blocks: Slab::new(),
            fibers: Slab::new(),
            coroutines: Vec::new(),
            stacks: StackPool::new(config.stack_bytes),
            arenas: Vec::new(),
            copies: Copies::default(),
            blocks_started: 0,
            until_preemption: 0,
            output: String::new(),
            fault: None,
        };
        engine.until_preemption = engine.draw_preemption();
        engine
    }

    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }

    /// Records a fault, unless there is one.
    pub fn set_fault(&mut self, fault: Fault) {
        self.fault.get_or_insert_with(|| Box::new(fault));
    }

    pub fn yielder(&self, id: FiberId) -> *const Yielder {
        self.fibers[id].yielder
    }

    pub fn set_yielder(&mut self, id: FiberId, yielder: *const Yielder) {
        self.fibers[id].yielder = yielder;
    }

    pub fn stack_start(&self, id: FiberId) -> usize {
        self.fibers[id].stack.start
    }

    fn has_reached(&self, goal: Goal) -> bool {
        match goal {
            Goal::Stream { index, position } => self.streams.has_reached(index, position),
            Goal::All => self.streams.is_idle(),
        }
    }

    /// Runs until the goal is reached or there is a fault.
    pub fn drive(&mut self, goal: Goal) {
        let machine = self.machine;
        let engine: *mut Self = self;
        let context = Context::new(machine, engine);
        let _entered = context.enter();
        // SAFETY: `engine` is exclusively this drive's for as long as it lasts. A reference to it exists
        // either here, between two fibers, or in `context` while a fiber runs, never both.
        while let Some(fiber) = unsafe { &mut *engine }.advance(goal, &context) {
            // SAFETY: as above.
            unsafe { Self::resume(engine, fiber, &context) };
        }
        // SAFETY: as above.
        if unsafe { &*engine }.fault.is_some() {
            // SAFETY: as above.
            unsafe { Self::tear_down(engine, &context) };
        }
    }

    /// Starts work and moves time and copies on until a fiber is to run; `None` when the drive is over.
    fn advance(&mut self, goal: Goal, context: &Context) -> Option<FiberId> {
        loop {
            if self.fault.is_some() || self.has_reached(goal) {
                return None;
            }
            if self.streams.has_ready()
                && (!self.scheduler.has_ready() || self.rng.u32(..START_ODDS) == 0)
            {
                self.start_work(context);
                continue;
            }
            if self.copies.is_due(self.scheduler.step()) {
                self.advance_copies(self.scheduler.step());
                continue;
            }
            if self.scheduler.is_stuck() {
                self.unstick(FaultKind::Livelock);
                continue;
            }
            let next = self.scheduler.next(&mut self.rng, &mut self.fibers);
            if next.is_some() {
                return next;
            }
            if !self.advance_next_copy() {
                self.unstick(FaultKind::Deadlock);
            }
        }
    }

    /// Nobody gets anywhere: either a copy was withheld for too long, or it is the kernels' fault.
    fn unstick(&mut self, kind: FaultKind) {
        if self.copies.is_empty() {
            self.fail_stuck(kind);
        } else {
            self.land_all();
        }
    }

    fn start_work(&mut self, context: &Context) {
        let Some((stream, work)) = self.streams.take(&mut self.rng) else {
            return;
        };
        match work {
            Work::Launch(launch) => {
                if self.has_room(&launch) {
                    self.start_grid(stream, &launch);
                } else {
                    self.streams.put_back(stream, Work::Launch(launch));
                }
                return;
            }
            Work::Wait(event) => {
                if !self.streams.has_reached(event.stream.index, event.position) {
                    self.streams.put_back(stream, Work::Wait(event));
                    return;
                }
            }
            Work::Host(function) => self.call_host(function, context),
            // SAFETY: the device side of the ranges was checked when the work was submitted, and `free`
            // first lets all work finish; the host side is what the caller of `Machine::copy` answers for.
            Work::Copy { dst, src, bytes } => unsafe { dst.copy_from(src, bytes) },
            // SAFETY: as for copies.
            Work::Fill { dst, byte, bytes } => unsafe { dst.write_bytes(byte, bytes) },
        }
        self.scheduler.progress();
        self.streams.finish(stream);
    }

    fn call_host(&mut self, function: Box<dyn FnOnce() + Send>, context: &Context) {
        context.set_in_host_function(true);
        let result = catch_unwind(AssertUnwindSafe(function));
        context.set_in_host_function(false);
        if let Err(payload) = result {
            context.note(context::payload_text(&*payload), None);
            if let Some(panicked) = context.take_panic() {
                self.fail_host(panicked);
            }
        }
    }

    /// Whether a launch can start now: a cooperative one needs room for all its blocks.
    fn has_room(&self, launch: &Launch) -> bool {
        let threads = u64::try_from(launch.grid.volume() * launch.block.volume());
        !launch.cooperative
            || threads.is_ok_and(|threads| {
                self.scheduler.live() + threads <= u64::from(MAX_RESIDENT_THREADS)
            })
    }

    fn start_grid(&mut self, stream: usize, launch: &Launch) {
        // Both volumes are within CUDA's limits, which `Machine::launch` has checked.
        let blocks = launch.grid.volume() as u64;
        let residency = if launch.cooperative {
            blocks
        } else {
            u64::from(self.config.max_resident_blocks.max(1))
        };
        let grid = self.grids.insert(Grid {
            name: launch.name,
            stream,
            grid_dim: launch.grid,
            block_dim: launch.block,
            block_threads: launch.block.volume() as u32,
            shared_bytes: launch.shared_bytes,
            entry: launch.entry.clone(),
            blocks,
            next_block: 0,
            resident: 0,
            finished: 0,
            residency,
            orphans: Vec::new(),
        });
        self.start_blocks(grid);
        self.scheduler.progress();
    }

    /// All blocks of a grid have exited.
    pub fn grid_finished(&mut self, grid: usize) {
        self.land_orphans(grid);
        let stream = self.grids.remove(grid).stream;
        self.streams.finish(stream);
    }

    /// Lets a fiber run until it suspends or returns.
    ///
    /// # Safety
    /// `engine` is the engine of `context`, whose drive is under way, and no reference to it exists.
    unsafe fn resume(engine: *mut Self, id: FiberId, context: &Context) {
        // SAFETY: no reference to the engine exists, by contract. The one made here ends with the
        // statement; what remains points to the coroutine in the vector's buffer, which no device function
        // touches.
        let coroutine: Option<*mut Coroutine> = unsafe { &mut *engine }.coroutines[id]
            .as_mut()
            .map(|coroutine| &raw mut *coroutine);
        let Some(coroutine) = coroutine else {
            return;
        };
        context.set_running(Some(id));
        // SAFETY: the pointer is valid: the vector changes only between two fibers.
        let result = unsafe { &mut *coroutine }.resume(());
        context.set_running(None);
        // SAFETY: the fiber has suspended or returned, so no device function is under way.
        let engine = unsafe { &mut *engine };
        if let Some(panicked) = context.take_panic() {
            engine.fail_panicked(id, panicked);
        } else if result.as_return().is_some() {
            engine.thread_exited(id);
        }
    }

    /// Unwinds all fibers and forgets all work.
    ///
    /// # Safety
    /// As for [`Self::resume`].
    unsafe fn tear_down(engine: *mut Self, context: &Context) {
        context.set_unwinding();
        // SAFETY: no reference to the engine exists, by contract, and the one made here ends with the
        // statement.
        let count = unsafe { &*engine }.coroutines.len();
        for id in 0..count {
            // SAFETY: as above.
            let Some(mut coroutine) = (unsafe { &mut *engine }).coroutines[id].take() else {
                continue;
            };
            context.set_running(Some(id));
            // Destructors of the kernel run here, on the fiber. Where one panics, the fiber is done too.
            let unwound = catch_unwind(AssertUnwindSafe(|| coroutine.force_unwind()));
            context.set_running(None);
            drop(unwound);
            if coroutine.done() {
                // SAFETY: as above; the fiber is done.
                unsafe { &mut *engine }.stacks.put(coroutine.into_stack());
            }
        }
        // SAFETY: as above; no fiber is left.
        let engine = unsafe { &mut *engine };
        engine.copies.clear();
        engine.scheduler.clear();
        engine.fibers.clear();
        engine.coroutines.clear();
        engine
            .arenas
            .extend(engine.blocks.drain().map(|block| block.shared));
        engine.grids.clear();
        drop(engine.streams.abandon());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let machine = self.machine;
        let engine: *mut Self = self;
        let context = Context::new(machine, engine);
        let _entered = context.enter();
        // SAFETY: the engine is being dropped, so nobody else has a reference, and `self` is not used
        // again.
        unsafe { Self::tear_down(engine, &context) };
    }
}
