//! Streams: work in order within one, in any order across several.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::geometry::Dim3;

/// A queue of work of one [`crate::Machine`]. Work of one stream runs in order; work of several runs at
/// the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    pub(crate) machine: u64,
    pub(crate) index: usize,
}

/// A position in a stream: everything that was submitted to it before [`crate::Machine::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    pub(crate) stream: Stream,
    pub(crate) position: u64,
}

/// A kernel launch.
#[derive(Clone)]
pub struct Launch {
    /// Name of the kernel, for reports.
    pub name: &'static str,
    /// Blocks of the grid.
    pub grid: Dim3,
    /// Threads of a block: at most 1024, and 64 in z.
    pub block: Dim3,
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: usize,
    /// Whether all blocks have to be resident at once, so that they may wait for each other.
    pub cooperative: bool,
    /// The kernel: called once per thread, on a fiber.
    pub entry: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch")
            .field("name", &self.name)
            .field("grid", &self.grid)
            .field("block", &self.block)
            .field("shared_bytes", &self.shared_bytes)
            .field("cooperative", &self.cooperative)
            .finish_non_exhaustive()
    }
}

/// One piece of work.
pub(crate) enum Work {
    Launch(Launch),
    Host(Box<dyn FnOnce() + Send>),
    Copy {
        dst: *mut u8,
        src: *const u8,
        bytes: usize,
    },
    Fill {
        dst: *mut u8,
        byte: u8,
        bytes: usize,
    },
    Wait(Event),
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    submitted: u64,
    completed: u64,
    destroyed: bool,
}

/// All streams of a machine. A stream is in one of four states: idle, ready (its head can be started),
/// busy (a grid of it runs), or blocked (its head waits for an event or for room).
#[derive(Default)]
pub(crate) struct Streams {
    queues: Vec<Queue>,
    ready: Vec<usize>,
    blocked: Vec<usize>,
}

impl Streams {
    pub fn create(&mut self) -> usize {
        self.queues.push(Queue::default());
        self.queues.len() - 1
    }

    /// The stream takes no more work; what it has is done.
    pub fn destroy(&mut self, index: usize) {
        self.queues[index].destroyed = true;
    }

    pub fn exists(&self, index: usize) -> bool {
        self.queues.get(index).is_some_and(|queue| !queue.destroyed)
    }

    pub fn submit(&mut self, index: usize, work: Work) {
        let queue = &mut self.queues[index];
        // With something unfinished before it, the stream is in one of the lists, or busy.
        if queue.submitted == queue.completed {
            self.ready.push(index);
        }
        queue.submitted += 1;
        queue.work.push_back(work);
    }

    pub fn submitted(&self, index: usize) -> u64 {
        self.queues.get(index).map_or(0, |queue| queue.submitted)
    }

    /// Whether the stream has finished its first `position` pieces of work.
    pub fn has_reached(&self, index: usize, position: u64) -> bool {
        self.queues
            .get(index)
            .is_none_or(|queue| queue.completed >= position)
    }

    pub fn is_idle(&self) -> bool {
        self.queues
            .iter()
            .all(|queue| queue.completed == queue.submitted)
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the head of a random ready stream. The stream leaves the list: [`Self::finish`] or
    /// [`Self::put_back`] must follow.
    pub fn take(&mut self, rng: &mut fastrand::Rng) -> Option<(usize, Work)> {
        if self.ready.is_empty() {
            return None;
        }
        let index = self.ready.swap_remove(rng.usize(..self.ready.len()));
        let work = self.queues[index].work.pop_front()?;
        Some((index, work))
    }

    /// The head cannot start before something changes.
    pub fn put_back(&mut self, index: usize, work: Work) {
        self.queues[index].work.push_front(work);
        self.blocked.push(index);
    }

    /// The head is done.
    pub fn finish(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        queue.completed += 1;
        if queue.completed < queue.submitted {
            self.ready.push(index);
        }
        self.retry_blocked();
    }

    /// Something has changed: blocked streams may look again.
    pub fn retry_blocked(&mut self) {
        self.ready.append(&mut self.blocked);
    }

    /// Drops all work. Nothing will wait for it any more.
    pub fn abandon(&mut self) -> Vec<Work> {
        self.ready.clear();
        self.blocked.clear();
        let mut dropped = Vec::new();
        for queue in &mut self.queues {
            queue.completed = queue.submitted;
            dropped.extend(queue.work.drain(..));
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill() -> Work {
        Work::Fill {
            dst: std::ptr::null_mut(),
            byte: 0,
            bytes: 0,
        }
    }

    #[test]
    fn work_is_taken_in_order_and_events_name_positions() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut streams = Streams::default();
        let index = streams.create();
        assert!(streams.take(&mut rng).is_none() && streams.is_idle());
        streams.submit(index, fill());
        streams.submit(
            index,
            Work::Wait(Event {
                stream: Stream { machine: 0, index },
                position: 1,
            }),
        );
        assert!(streams.has_reached(index, 0) && !streams.has_reached(index, 1));

        let (taken, work) = streams.take(&mut rng).unwrap();
        assert!(taken == index && matches!(work, Work::Fill { .. }) && !streams.has_ready());
        streams.finish(index);
        assert!(streams.has_reached(index, 1) && streams.has_ready());

        let (_, work) = streams.take(&mut rng).unwrap();
        streams.put_back(index, work);
        assert!(!streams.has_ready());
        streams.retry_blocked();
        let (_, work) = streams.take(&mut rng).unwrap();
        assert!(matches!(work, Work::Wait(_)));
        streams.finish(index);
        assert!(streams.is_idle());
    }

    #[test]
    fn abandoned_work_counts_as_done() {
        let mut streams = Streams::default();
        let index = streams.create();
        streams.submit(index, fill());
        assert_eq!(streams.abandon().len(), 1);
        assert!(streams.is_idle() && streams.has_reached(index, 1));
        streams.destroy(index);
        assert!(!streams.exists(index) && !streams.exists(7));
    }
}
