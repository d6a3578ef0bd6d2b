//! Checks of memory accesses, and the yields that go with them.

use std::panic::Location;

use crate::context::Next;
use crate::device::{Access, Yield};
use crate::engine::Engine;
use crate::fault::FaultKind;
use crate::fiber::{FiberId, State};

/// Checked accesses after a yield point that are not preempted: an atomic operation of the device library
/// may consist of several.
const UNDISTURBED: u32 = 8;

/// Addresses below this count as null.
const NULL_PAGE: usize = 4096;

type Where = &'static Location<'static>;

impl Engine {
    /// Checks an access of the running thread.
    #[inline]
    pub(crate) fn access(
        &mut self,
        id: FiberId,
        (address, bytes, align): (usize, usize, usize),
        access: Access,
        location: Where,
    ) -> Next {
        self.until_preemption -= 1;
        if self.until_preemption == 0 {
            return self.preempt(id, location);
        }
        if !address.is_multiple_of(align) {
            return self.reject(id, (address, bytes, align), access, location);
        }
        let fiber = &self.fibers[id];
        let shared = &mut self.blocks[fiber.block].shared;
        if let Some(offset) = shared.offset_of(address, bytes) {
            if access != Access::Read {
                shared.note_write(offset, bytes, fiber.linear, fiber.fences);
            }
            if access == Access::Write {
                self.scheduler.progress();
            }
            return Next::Continue;
        }
        if self.memory.contains(address, bytes) {
            if access == Access::Write {
                self.scheduler.progress();
            }
            return Next::Continue;
        }
        let stack = &fiber.stack;
        let on_stack = stack.contains(&address) && bytes <= stack.end - address;
        if on_stack || bytes == 0 {
            return Next::Continue;
        }
        self.reject(id, (address, bytes, align), access, location)
    }

    #[cold]
    fn preempt(&mut self, id: FiberId, location: Where) -> Next {
        self.until_preemption = self.draw_preemption();
        self.scheduler.preempted();
        let fiber = &mut self.fibers[id];
        fiber.location = location;
        self.scheduler.requeue(id, fiber);
        Next::Retry
    }

    /// Accesses until the next preemption, counted down to 0.
    pub(crate) fn draw_preemption(&mut self) -> u32 {
        2 + self
            .rng
            .u32(..self.config.preempt_every.clamp(1, u32::MAX / 4) * 2)
    }

    #[cold]
    fn reject(
        &mut self,
        id: FiberId,
        (address, bytes, align): (usize, usize, usize),
        access: Access,
        location: Where,
    ) -> Next {
        let verb = match access {
            Access::Read => "read",
            Access::Write => "write",
            Access::Atomic => "atomic access",
        };
        let (kind, what) = self.explain(id, address, bytes);
        let (kind, message) = if kind != FaultKind::NullPointer && !address.is_multiple_of(align) {
            let off = address % align;
            (
                FaultKind::Misaligned,
                format!(
                    "{verb} of {bytes} bytes needs alignment {align}, the address is {off} off"
                ),
            )
        } else {
            (kind, format!("{verb} of {what}"))
        };
        self.fail(id, kind, location, message)
    }

    /// What is wrong with a range that belongs to nobody.
    pub(crate) fn explain(&self, id: FiberId, address: usize, bytes: usize) -> (FaultKind, String) {
        if address < NULL_PAGE {
            return (
                FaultKind::NullPointer,
                format!("{bytes} bytes at address {address:#x}"),
            );
        }
        let own = self.fibers[id].block;
        for (slot, block) in &self.blocks {
            if let Some(offset) = block.shared.arena_offset(address) {
                let whose = if slot == own {
                    "its block's shared memory".to_owned()
                } else {
                    format!("the shared memory of block {}", block.index)
                };
                let message = format!(
                    "{bytes} bytes at byte {offset} of {whose}, outside its arrays (dynamic: {} bytes, \
                     all: {} bytes)",
                    block.shared.dynamic().1,
                    block.shared.bytes()
                );
                return (FaultKind::OutOfBounds, message);
            }
        }
        self.memory.explain(address, bytes).unwrap_or_else(|| {
            (
                FaultKind::OutOfBounds,
                format!(
                    "{bytes} bytes at {address:#x}, which is in no allocation, in no shared memory and \
                     not on the thread's stack"
                ),
            )
        })
    }

    /// The running thread lets others run.
    pub(crate) fn yield_now(&mut self, id: FiberId, kind: Yield, location: Where) -> Next {
        self.until_preemption = self.until_preemption.max(UNDISTURBED + 1);
        let fiber = &mut self.fibers[id];
        fiber.location = location;
        match kind {
            Yield::Spin => self.scheduler.spin(fiber),
            Yield::Progress => self.scheduler.signal(),
        }
        self.scheduler.requeue(id, fiber);
        Next::Suspend
    }

    /// The running thread sleeps for about `ns` of virtual time.
    pub(crate) fn nanosleep(&mut self, id: FiberId, ns: u32, location: Where) -> Next {
        // PTX promises a duration between 0 and twice the one asked for.
        let ns = self.rng.u64(..=2 * u64::from(ns));
        let fiber = &mut self.fibers[id];
        fiber.location = location;
        self.scheduler.spin(fiber);
        self.scheduler.sleep(id, fiber, ns);
        debug_assert_eq!(fiber.state, State::Asleep);
        Next::Suspend
    }
}
