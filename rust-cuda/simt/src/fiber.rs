//! Fibers: one per emulated thread, on pooled stacks.

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use corosensei::stack::{DefaultStack, Stack};

use crate::context;
use crate::device::{BarrierVote, WarpValues};
use crate::geometry::{Dim3, WARP_SIZE};

pub(crate) type FiberId = usize;
pub(crate) type Yielder = corosensei::Yielder<(), ()>;
pub(crate) type Coroutine = corosensei::Coroutine<(), (), (), DefaultStack>;
pub(crate) type Entry = Arc<dyn Fn() + Send + Sync>;

/// Least stack of a fiber: room for the kernel above what unwinding may need.
const MIN_STACK_BYTES: usize = 48 << 10;

/// What a fiber is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Running, or queued to run.
    Runnable,
    /// In `nanosleep`.
    Asleep,
    /// Waiting at a block barrier.
    Barrier { id: u32, op: &'static str },
    /// Waiting for other lanes of its warp.
    Warp { op: &'static str, mask: u32 },
    /// Returned from the kernel.
    Exited,
}

/// One emulated thread.
pub(crate) struct Fiber {
    pub grid: usize,
    pub block: usize,
    /// Linear index within the block, x fastest.
    pub linear: u32,
    pub thread: Dim3,
    /// Usable addresses of its stack.
    pub stack: Range<usize>,
    /// Null until first resumed.
    pub yielder: *const Yielder,
    pub state: State,
    /// Where the kernel last spoke to the scheduler.
    pub location: &'static Location<'static>,
    /// Spins of this fiber since the progress numbered `spin_epoch`.
    pub spins: u32,
    pub spin_epoch: u64,
    /// Proxy fences executed so far.
    pub fences: u32,
    /// Number of the bulk group that is open.
    pub bulk_group: u32,
    /// While it waits in a warp exchange: where the result goes, in a frame on its own stack.
    pub exchange: *mut WarpValues,
    /// Result of the last block barrier.
    pub vote: BarrierVote,
}

impl Fiber {
    pub fn new(grid: usize, block: usize, linear: u32, thread: Dim3, stack: Range<usize>) -> Self {
        Self {
            grid,
            block,
            linear,
            thread,
            stack,
            yielder: ptr::null(),
            state: State::Exited,
            location: Location::caller(),
            spins: 0,
            spin_epoch: 0,
            fences: 0,
            bulk_group: 0,
            exchange: ptr::null_mut(),
            vote: BarrierVote {
                count: 0,
                all: false,
                any: false,
            },
        }
    }
}

/// A coroutine that runs `entry` once. Panics of `entry` are noted in the context and end there.
pub(crate) fn coroutine(stack: DefaultStack, entry: Entry) -> Coroutine {
    Coroutine::with_stack(stack, move |yielder, ()| {
        context::with(|engine, fiber| engine.set_yielder(fiber, yielder));
        if let Err(payload) = catch_unwind(AssertUnwindSafe(&*entry)) {
            context::note_payload(&*payload);
            // The payload's own destructor may panic too.
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(second);
            }
        }
    })
}

/// Stacks that machines have left behind, with their size. Making one takes several system calls, which
/// would dominate tests that make a machine per seed.
static SPARE: Mutex<Vec<(usize, DefaultStack)>> = Mutex::new(Vec::new());

/// Most stacks that are kept there: those of four machines with eight blocks of 256 threads, 64 MiB if each has two
/// pages in use. With its guard page a stack is two mappings, of which Linux allows a process 65,530.
const MAX_SPARE: usize = 8192;

/// Stacks of a machine that are not in use.
pub(crate) struct StackPool {
    bytes: usize,
    free: Vec<DefaultStack>,
}

impl StackPool {
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: bytes.max(MIN_STACK_BYTES),
            free: Vec::new(),
        }
    }

    pub fn take(&mut self) -> io::Result<DefaultStack> {
        if self.free.is_empty() {
            self.adopt_spare();
        }
        match self.free.pop() {
            Some(stack) => Ok(stack),
            None => DefaultStack::new(self.bytes),
        }
    }

    /// Takes over spare stacks of the same size, a warp's worth at a time.
    fn adopt_spare(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.bytes;
        for _ in 0..WARP_SIZE {
            match spare.pop_if(|&mut (size, _)| size == bytes) {
                Some((_, stack)) => self.free.push(stack),
                None => return,
            }
        }
    }

    pub fn put(&mut self, stack: DefaultStack) {
        self.free.push(stack);
    }

    /// Usable addresses of a stack, without the guard page at its low end.
    pub fn usable(&self, stack: &DefaultStack) -> Range<usize> {
        let base = stack.base().get();
        base - self.bytes..base
    }
}

impl Drop for StackPool {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_SPARE.saturating_sub(spare.len());
        let bytes = self.bytes;
        spare.extend(self.free.drain(..).take(room).map(|stack| (bytes, stack)));
    }
}
