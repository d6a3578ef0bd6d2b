//! Turning what went wrong into a [`Fault`].

use std::fmt::Write as _;
use std::panic::Location;

use crate::context::{Next, Panicked};
use crate::engine::Engine;
use crate::fault::{Fault, FaultKind, SourceLocation};
use crate::fiber::{Fiber, FiberId, State};

/// Groups of waiting threads that a deadlock report names.
const GROUPS: usize = 6;

impl Engine {
    /// Records a fault of a thread. The thread suspends, and is not resumed.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        id: FiberId,
        kind: FaultKind,
        location: &'static Location<'static>,
        message: String,
    ) -> Next {
        self.fail_thread(id, kind, Some(location.into()), message);
        Next::Suspend
    }

    fn fail_thread(
        &mut self,
        id: FiberId,
        kind: FaultKind,
        location: Option<SourceLocation>,
        message: String,
    ) {
        let fiber = &self.fibers[id];
        let fault = Fault {
            kind,
            kernel: Some(self.grids[fiber.grid].name),
            block: Some(self.blocks[fiber.block].index),
            thread: Some(fiber.thread),
            location,
            message,
            seed: self.config.seed,
        };
        self.set_fault(fault);
    }

    /// A kernel has panicked.
    pub(crate) fn fail_panicked(&mut self, id: FiberId, panicked: Panicked) {
        self.fail_thread(id, FaultKind::Panic, panicked.location, panicked.message);
    }

    /// A thread called a device function with hardly any stack left.
    #[cold]
    pub(crate) fn fail_stack_exhausted(&mut self, id: FiberId, left: usize) {
        let location = self.fibers[id].location;
        let message = format!(
            "{left} bytes of the thread's {} byte stack are left; Config::stack_bytes sets its size. The \
             location is that of the last yield",
            self.fibers[id].stack.len()
        );
        self.fail(id, FaultKind::StackExhausted, location, message);
    }

    /// A fault of a whole grid.
    pub(crate) fn fail_grid(&mut self, kind: FaultKind, grid: usize, message: String) {
        let fault = Fault {
            kind,
            kernel: Some(self.grids[grid].name),
            block: None,
            thread: None,
            location: None,
            message,
            seed: self.config.seed,
        };
        self.set_fault(fault);
    }

    /// A host function on a stream has panicked.
    pub(crate) fn fail_host(&mut self, panicked: Panicked) {
        let fault = Fault {
            kind: FaultKind::Panic,
            kernel: None,
            block: None,
            thread: None,
            location: panicked.location,
            message: format!(
                "in a host function enqueued on a stream: {}",
                panicked.message
            ),
            seed: self.config.seed,
        };
        self.set_fault(fault);
    }

    /// Nobody can go on: names those that wait, grouped by what they wait for.
    pub(crate) fn fail_stuck(&mut self, kind: FaultKind) {
        let mut groups: Vec<(FiberId, usize)> = Vec::new();
        let mut waiting = 0;
        for (id, fiber) in self
            .fibers
            .iter()
            .filter(|(_, fiber)| fiber.state != State::Exited)
        {
            waiting += 1;
            match groups
                .iter_mut()
                .find(|(first, _)| alike(&self.fibers[*first], fiber))
            {
                Some((_, count)) => *count += 1,
                None => groups.push((id, 1)),
            }
        }
        let mut message = match kind {
            FaultKind::Livelock => format!(
                "{waiting} threads only wait, without progress for {} spins:",
                self.config.spin_limit
            ),
            _ => format!("nothing can run, and {waiting} threads wait:"),
        };
        for &(first, count) in groups.iter().take(GROUPS) {
            let fiber = &self.fibers[first];
            write!(
                message,
                " {count} of `{}` {} at {} (block {}, thread {}{});",
                self.grids[fiber.grid].name,
                activity(fiber.state),
                SourceLocation::from(fiber.location),
                self.blocks[fiber.block].index,
                fiber.thread,
                if count > 1 { ", ..." } else { "" },
            )
            .expect("writing to a String cannot fail");
        }
        message.pop();
        if groups.len() > GROUPS {
            write!(message, "; and {} more places", groups.len() - GROUPS)
                .expect("writing to a String cannot fail");
        }
        match groups.first() {
            Some(&(first, _)) => {
                let location = self.fibers[first].location;
                self.fail(first, kind, location, message);
            }
            None => {
                let fault = Fault {
                    kind,
                    kernel: None,
                    block: None,
                    thread: None,
                    location: None,
                    message,
                    seed: self.config.seed,
                };
                self.set_fault(fault);
            }
        }
    }
}

/// Whether two threads wait for the same thing at the same place.
fn alike(a: &Fiber, b: &Fiber) -> bool {
    a.grid == b.grid && a.state == b.state && a.location == b.location
}

fn activity(state: State) -> String {
    match state {
        State::Runnable => "spin".to_owned(),
        State::Asleep => "sleep".to_owned(),
        State::Barrier { id, op } => format!("wait in {op} (barrier {id})"),
        State::Warp { op, mask } => format!("wait in {op} for the lanes of mask {mask:#010x}"),
        State::Exited => "have exited".to_owned(),
    }
}
