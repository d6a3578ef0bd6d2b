//! Blocks: residency, thread start and exit, and the block's barriers.

use std::panic::Location;

use crate::context::Next;
use crate::device::BarrierVote;
use crate::engine::Engine;
use crate::fault::FaultKind;
use crate::fiber::{Fiber, FiberId, State, coroutine};
use crate::geometry::{Dim3, MAX_BLOCK_THREADS, WARP_SIZE};
use crate::mbarrier::Mbarrier;
use crate::memory;
use crate::shared::SharedMemory;
use crate::warp::Warp;

/// Barriers of a block; number 0 is the one of `sync_threads`.
pub(crate) const BARRIERS: u32 = 16;

/// Threads that may be resident. A fiber stack takes two memory mappings (one is its guard page), and
/// Linux grants a process 65,530 by default.
pub const MAX_RESIDENT_THREADS: u32 = 24_576;

/// One phase of a block barrier.
#[derive(Default)]
struct Barrier {
    op: &'static str,
    /// Threads that complete it; `None`: all that have not exited.
    expected: Option<u32>,
    arrived: u32,
    positive: u32,
    waiting: Vec<FiberId>,
}

/// A resident block.
pub(crate) struct Block {
    pub grid: usize,
    pub index: Dim3,
    /// By linear thread index; they stay until the whole block has exited.
    pub fibers: Vec<FiberId>,
    /// Threads that have not exited.
    pub live: u32,
    pub warps: Vec<Warp>,
    pub shared: SharedMemory,
    pub mbarriers: Vec<Mbarrier>,
    /// Copies out of shared memory that have not landed, and those into it.
    pub outbound: Vec<u64>,
    pub inbound: Vec<u64>,
    barriers: [Barrier; BARRIERS as usize],
}

/// A thread's arrival at a block barrier.
pub(crate) struct Arrival {
    pub op: &'static str,
    pub id: u32,
    /// Threads that complete the barrier; `None`: all that have not exited.
    pub expected: Option<u32>,
    pub predicate: bool,
    /// Whether the thread waits for the others.
    pub waits: bool,
}

impl Engine {
    /// Starts as many blocks of a grid as may be resident.
    pub(crate) fn start_blocks(&mut self, grid: usize) {
        loop {
            let state = &self.grids[grid];
            if state.next_block == state.blocks || state.resident >= state.residency {
                return;
            }
            // A grid always gets one block, so that grids can wait for each other.
            let threads = u64::from(state.block_threads);
            let full = self.scheduler.live() + threads > u64::from(MAX_RESIDENT_THREADS);
            if full && state.resident > 0 {
                return;
            }
            if !self.start_block(grid) {
                return;
            }
        }
    }

    fn start_block(&mut self, grid: usize) -> bool {
        self.blocks_started += 1;
        let pattern = memory::pattern(self.config.seed, !self.blocks_started);
        let mut shared = self.arenas.pop().unwrap_or_else(SharedMemory::new);
        let state = &mut self.grids[grid];
        let index = state.grid_dim.unravel(state.next_block);
        state.next_block += 1;
        state.resident += 1;
        let (block_dim, threads, entry) =
            (state.block_dim, state.block_threads, state.entry.clone());
        shared.reset(state.shared_bytes, pattern);
        let slot = self.blocks.insert(Block {
            grid,
            index,
            fibers: Vec::with_capacity(threads as usize),
            live: threads,
            warps: (0..threads.div_ceil(WARP_SIZE))
                .map(|warp| Warp::new((threads - warp * WARP_SIZE).min(WARP_SIZE)))
                .collect(),
            shared,
            mbarriers: Vec::new(),
            outbound: Vec::new(),
            inbound: Vec::new(),
            barriers: Default::default(),
        });
        for linear in 0..threads {
            let stack = match self.stacks.take() {
                Ok(stack) => stack,
                Err(error) => {
                    let message = format!("no stack for thread {linear} of a block: {error}");
                    self.fail_grid(FaultKind::StackExhausted, grid, message);
                    return false;
                }
            };
            let thread = block_dim.unravel(u64::from(linear));
            let fiber = Fiber::new(grid, slot, linear, thread, self.stacks.usable(&stack));
            let id = self.fibers.insert(fiber);
            if self.coroutines.len() <= id {
                self.coroutines.resize_with(id + 1, || None);
            }
            self.coroutines[id] = Some(coroutine(stack, entry.clone()));
            self.blocks[slot].fibers.push(id);
            self.scheduler.thread_started();
            self.scheduler.unblock(id, &mut self.fibers[id]);
        }
        true
    }

    /// The running fiber has returned from its kernel.
    pub(crate) fn thread_exited(&mut self, id: FiberId) {
        if let Some(coroutine) = self.coroutines[id].take() {
            self.stacks.put(coroutine.into_stack());
        }
        self.scheduler.thread_exited(&mut self.fibers[id]);
        let slot = self.fibers[id].block;
        self.lane_exited(id);
        let block = &mut self.blocks[slot];
        block.live -= 1;
        let barrier = &block.barriers[0];
        if barrier.expected.is_none()
            && let Some(&waiting) = barrier.waiting.first()
        {
            let (count, op) = (barrier.waiting.len(), barrier.op);
            let message =
                format!("the thread exited while {count} threads of its block wait at {op}");
            let location = self.fibers[waiting].location;
            self.fail(id, FaultKind::DivergentBarrier, location, message);
        }
        if self.blocks[slot].live == 0 {
            self.block_exited(slot);
        }
    }

    fn block_exited(&mut self, slot: usize) {
        self.orphan_copies(slot);
        let block = self.blocks.remove(slot);
        for fiber in block.fibers {
            self.fibers.remove(fiber);
        }
        self.arenas.push(block.shared);
        let grid = &mut self.grids[block.grid];
        grid.resident -= 1;
        grid.finished += 1;
        if grid.finished == grid.blocks {
            self.grid_finished(block.grid);
        } else {
            self.start_blocks(block.grid);
        }
        self.streams.retry_blocked();
    }

    /// The running thread arrives at a barrier of its block.
    pub(crate) fn barrier_arrive(
        &mut self,
        id: FiberId,
        arrival: &Arrival,
        location: &'static Location<'static>,
    ) -> Next {
        if let Some(message) = invalid(arrival) {
            return self.fail(id, FaultKind::InvalidBarrier, location, message);
        }
        let slot = self.fibers[id].block;
        let block = &mut self.blocks[slot];
        let barrier = &mut block.barriers[arrival.id as usize];
        if barrier.arrived == 0 {
            barrier.op = arrival.op;
            barrier.expected = arrival.expected;
        } else if (barrier.op, barrier.expected) != (arrival.op, arrival.expected) {
            let message = format!(
                "the thread arrives at barrier {} by {}{}, others wait there by {}{}",
                arrival.id,
                arrival.op,
                threads_text(arrival.expected),
                barrier.op,
                threads_text(barrier.expected),
            );
            return self.fail(id, FaultKind::DivergentBarrier, location, message);
        }
        barrier.arrived += 1;
        barrier.positive += u32::from(arrival.predicate);
        if barrier.arrived < barrier.expected.unwrap_or(block.live) {
            if arrival.waits {
                barrier.waiting.push(id);
                let fiber = &mut self.fibers[id];
                fiber.location = location;
                self.scheduler.block(
                    fiber,
                    State::Barrier {
                        id: arrival.id,
                        op: arrival.op,
                    },
                );
                return Next::Suspend;
            }
            return Next::Continue;
        }
        let vote = BarrierVote {
            count: barrier.positive,
            all: barrier.positive == barrier.arrived,
            any: barrier.positive > 0,
        };
        barrier.arrived = 0;
        barrier.positive = 0;
        let mut waiting = std::mem::take(&mut barrier.waiting);
        let members = waiting.iter().copied().chain([id]);
        self.scheduler.share_spins(id, members, &mut self.fibers);
        for fiber in waiting.drain(..) {
            self.fibers[fiber].vote = vote;
            self.scheduler.unblock(fiber, &mut self.fibers[fiber]);
        }
        self.fibers[id].vote = vote;
        // The allocation serves the next phase.
        self.blocks[slot].barriers[arrival.id as usize].waiting = waiting;
        Next::Continue
    }
}

fn invalid(arrival: &Arrival) -> Option<String> {
    if arrival.id >= BARRIERS {
        return Some(format!(
            "barrier {} of a block that has {BARRIERS}",
            arrival.id
        ));
    }
    match arrival.expected {
        Some(n) if n == 0 || n % WARP_SIZE != 0 || n > MAX_BLOCK_THREADS => Some(format!(
            "a barrier of {n} threads: the count must be a multiple of {WARP_SIZE} from {WARP_SIZE} to \
             {MAX_BLOCK_THREADS}"
        )),
        _ => None,
    }
}

fn threads_text(expected: Option<u32>) -> String {
    expected.map_or_else(String::new, |n| format!(" of {n} threads"))
}
