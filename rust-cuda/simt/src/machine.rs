//! The host's side of an emulated device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::block::MAX_RESIDENT_THREADS;
use crate::config::Config;
use crate::context;
use crate::engine::{Engine, Goal};
use crate::error::Error;
use crate::geometry;
use crate::stream::{Event, Launch, Stream, Work};

/// An emulated device: memory, streams, and the kernels that run on them.
///
/// Nothing runs by itself. [`Machine::synchronize`] runs, in the calling OS thread, whatever is pending on
/// any stream until the one asked for is done; the rest stays where it is until the next call. All methods
/// may be called from any OS thread. One call is served at a time, so two kernels that wait for each other
/// have to be launched before either is synchronized with.
///
/// What happens depends only on [`Config`] and the sequence of calls. A fault is sticky: once a kernel has
/// done something wrong, every method that returns a `Result` returns [`Error::Fault`], and nothing runs any
/// more. Dropping a machine ends kernels that are still suspended and releases all memory.
///
/// # Panics
/// Kernels and host functions on streams must not call methods of the machine that runs them. Those that do
/// panic, which is reported as a fault. The exception is [`Machine::free`], which is then put off, so that
/// such a function may drop whatever owns device memory.
pub struct Machine {
    id: u64,
    config: Config,
    engine: Mutex<Engine>,
    /// Addresses given to `free` while the machine was being driven by the same OS thread.
    deferred: Mutex<Vec<usize>>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl Machine {
    /// A machine without memory in use or streams.
    ///
    /// The first one installs a panic hook that keeps panics of kernels from being printed, since they
    /// are reported as faults, and passes all others on to the hook there was before.
    pub fn new(config: Config) -> Self {
        static MACHINES: AtomicU64 = AtomicU64::new(0);
        context::install_panic_hook();
        let id = MACHINES.fetch_add(1, Ordering::Relaxed);
        Self {
            id,
            config,
            engine: Mutex::new(Engine::new(id, config)),
            deferred: Mutex::new(Vec::new()),
        }
    }

    /// The settings the machine was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Allocates global memory, aligned to 256 bytes and filled with a pattern that depends on the seed and
    /// has no zero byte. Allocations of 0 bytes have an address of their own.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or the machine's fault.
    pub fn alloc(&self, bytes: usize) -> Result<*mut u8, Error> {
        self.healthy()?
            .memory
            .alloc(bytes)
            .ok_or(Error::OutOfMemory { bytes })
    }

    /// Frees an allocation, after running all pending work. The memory is kept from reuse for a while, so
    /// that late accesses are seen.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`]; or the machine's fault, and then the memory has been freed all the same.
    pub fn free(&self, ptr: *mut u8) -> Result<(), Error> {
        if context::is_driving(self.id) {
            self.deferred
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(ptr.addr());
            return Ok(());
        }
        let mut engine = self.lock();
        engine.drive(Goal::All);
        let freed = engine.memory.free(ptr.addr());
        check(&engine)?;
        if freed {
            Ok(())
        } else {
            Err(Error::InvalidPointer {
                address: ptr.addr(),
            })
        }
    }

    /// Lets kernels use memory that somebody else owns, another process or another machine for example, as they
    /// use an allocation. It is left as it is.
    ///
    /// From then on others may act on what kernels wait for, at any time. So the clock of this machine is that of
    /// the host, waiting is no longer found to be a livelock, and what happens depends on those others too.
    ///
    /// # Safety
    ///
    /// The memory is valid for reads and writes until [`disown`](Self::disown) or until the machine is dropped.
    /// What others do with it meanwhile is ordered by atomic operations.
    ///
    /// # Errors
    /// [`Error::InvalidRange`] unless the memory is aligned to 256 bytes and apart from all allocations; or the
    /// machine's fault.
    pub unsafe fn adopt(&self, ptr: *mut u8, bytes: usize) -> Result<(), Error> {
        let mut engine = self.healthy()?;
        let adopted = engine.memory.adopt(ptr, bytes);
        require(adopted, ptr.addr(), bytes, || {
            "it is misaligned, or overlaps an allocation".to_owned()
        })?;
        engine.scheduler.follow_the_host_clock();
        Ok(())
    }

    /// Ends [`adopt`](Self::adopt), after running all pending work.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`]; or the machine's fault, and then the memory is not used any more either.
    pub fn disown(&self, ptr: *mut u8) -> Result<(), Error> {
        let mut engine = self.lock();
        engine.drive(Goal::All);
        let disowned = engine.memory.disown(ptr.addr());
        check(&engine)?;
        if disowned {
            Ok(())
        } else {
            Err(Error::InvalidPointer {
                address: ptr.addr(),
            })
        }
    }

    /// Bytes in live allocations.
    pub fn allocated_bytes(&self) -> usize {
        self.lock().memory.live_bytes()
    }

    /// A new stream.
    pub fn create_stream(&self) -> Stream {
        Stream {
            machine: self.id,
            index: self.lock().streams.create(),
        }
    }

    /// Ends a stream. What is pending on it still runs.
    ///
    /// # Errors
    /// [`Error::InvalidStream`], or the machine's fault.
    pub fn destroy_stream(&self, stream: Stream) -> Result<(), Error> {
        let mut engine = self.healthy()?;
        self.validate(&engine, stream)?;
        engine.streams.destroy(stream.index);
        Ok(())
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// * What `entry` does with memory must be sound when it is called once per thread of the grid, in any
    ///   interleaving, until the stream has passed the launch.
    /// * `entry` must not hold anything that is bound to an OS thread (a reference to a thread-local, a lock
    ///   guard) across a call into [`crate::device`]: the thread may go on in another OS thread.
    ///
    /// # Errors
    /// What CUDA checks at launch: [`Error::EmptyLaunch`], [`Error::GridTooLarge`], [`Error::BlockTooLarge`],
    /// [`Error::SharedMemoryTooLarge`], [`Error::CooperativeTooLarge`]; [`Error::InvalidStream`]; or the
    /// machine's fault.
    pub unsafe fn launch(&self, stream: Stream, launch: Launch) -> Result<(), Error> {
        geometry::validate(launch.grid, launch.block, launch.shared_bytes)?;
        let threads = launch.grid.volume() * launch.block.volume();
        if launch.cooperative && threads > u128::from(MAX_RESIDENT_THREADS) {
            return Err(Error::CooperativeTooLarge {
                threads,
                limit: MAX_RESIDENT_THREADS,
            });
        }
        self.submit(stream, Work::Launch(launch))
    }

    /// Enqueues a host function. It runs in the OS thread that happens to drive the machine.
    ///
    /// # Errors
    /// [`Error::InvalidStream`], or the machine's fault.
    pub fn enqueue(&self, stream: Stream, work: Box<dyn FnOnce() + Send>) -> Result<(), Error> {
        self.submit(stream, Work::Host(work))
    }

    /// Enqueues a copy of `bytes` bytes, within the device or between device and host. The ranges may
    /// overlap.
    ///
    /// # Safety
    /// A range outside the machine's allocations is host memory: it must be valid, and not be accessed
    /// otherwise, until the stream has passed the copy.
    ///
    /// # Errors
    /// [`Error::InvalidRange`] where a range touches an allocation and is not inside one, or is null;
    /// [`Error::InvalidStream`]; or the machine's fault.
    pub unsafe fn copy(
        &self,
        stream: Stream,
        dst: *mut u8,
        src: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let mut engine = self.healthy()?;
        self.validate(&engine, stream)?;
        for address in [src.addr(), dst.addr()] {
            if !engine.memory.contains(address, bytes) && bytes > 0 {
                require(address != 0, address, bytes, || "it is null".to_owned())?;
                let foreign = !engine.memory.touches(address, bytes);
                require(foreign, address, bytes, || reason(&engine, address, bytes))?;
            }
        }
        engine
            .streams
            .submit(stream.index, Work::Copy { dst, src, bytes });
        Ok(())
    }

    /// Enqueues setting `bytes` bytes of global memory to `byte`.
    ///
    /// # Errors
    /// [`Error::InvalidRange`] where the range is not inside one live allocation;
    /// [`Error::InvalidStream`]; or the machine's fault.
    pub fn fill(&self, stream: Stream, dst: *mut u8, byte: u8, bytes: usize) -> Result<(), Error> {
        let mut engine = self.healthy()?;
        self.validate(&engine, stream)?;
        let inside = bytes == 0 || engine.memory.contains(dst.addr(), bytes);
        require(inside, dst.addr(), bytes, || {
            reason(&engine, dst.addr(), bytes)
        })?;
        engine
            .streams
            .submit(stream.index, Work::Fill { dst, byte, bytes });
        Ok(())
    }

    /// The present end of a stream, for [`Machine::wait`]. Of a stream that is not one of the machine's, an
    /// event that has happened.
    pub fn record(&self, stream: Stream) -> Event {
        let engine = self.lock();
        let position = if stream.machine == self.id {
            engine.streams.submitted(stream.index)
        } else {
            0
        };
        Event {
            stream: Stream {
                machine: self.id,
                ..stream
            },
            position,
        }
    }

    /// What is submitted to `stream` from now on starts after the event.
    ///
    /// # Errors
    /// [`Error::InvalidStream`] if either the stream or the event's is not one of the machine's, or the
    /// machine's fault.
    pub fn wait(&self, stream: Stream, event: Event) -> Result<(), Error> {
        if event.stream.machine != self.id {
            return Err(Error::InvalidStream);
        }
        self.submit(stream, Work::Wait(event))
    }

    /// Runs until everything submitted to `stream` so far is done. Work of other streams runs along, and may
    /// stay unfinished.
    ///
    /// # Errors
    /// [`Error::InvalidStream`], or the machine's fault.
    pub fn synchronize(&self, stream: Stream) -> Result<(), Error> {
        let mut engine = self.healthy()?;
        self.validate(&engine, stream)?;
        let position = engine.streams.submitted(stream.index);
        engine.drive(Goal::Stream {
            index: stream.index,
            position,
        });
        check(&engine)
    }

    /// Runs until everything submitted to any stream is done.
    ///
    /// # Errors
    /// The machine's fault.
    pub fn synchronize_all(&self) -> Result<(), Error> {
        let mut engine = self.healthy()?;
        engine.drive(Goal::All);
        check(&engine)
    }

    /// What kernels have printed since the last call.
    pub fn take_output(&self) -> String {
        std::mem::take(&mut self.lock().output)
    }

    /// Scheduler steps so far: a measure of how much was emulated, equal for equal seeds and calls.
    pub fn steps(&self) -> u64 {
        self.lock().scheduler.step()
    }

    fn submit(&self, stream: Stream, work: Work) -> Result<(), Error> {
        let mut engine = self.healthy()?;
        self.validate(&engine, stream)?;
        engine.streams.submit(stream.index, work);
        Ok(())
    }

    fn validate(&self, engine: &Engine, stream: Stream) -> Result<(), Error> {
        if stream.machine == self.id && engine.streams.exists(stream.index) {
            Ok(())
        } else {
            Err(Error::InvalidStream)
        }
    }

    /// The engine, unless it has a fault.
    fn healthy(&self) -> Result<MutexGuard<'_, Engine>, Error> {
        let engine = self.lock();
        check(&engine)?;
        Ok(engine)
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        assert!(
            !context::is_driving(self.id),
            "a kernel or a host function on a stream called a method of the simt::Machine that runs it"
        );
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if engine.streams.is_idle() {
            let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
            for address in deferred.drain(..) {
                engine.memory.free(address);
            }
        }
        engine
    }
}

fn check(engine: &Engine) -> Result<(), Error> {
    engine
        .fault()
        .map_or(Ok(()), |fault| Err(Box::new(fault.clone()).into()))
}

fn require(
    holds: bool,
    address: usize,
    bytes: usize,
    reason: impl FnOnce() -> String,
) -> Result<(), Error> {
    if holds {
        Ok(())
    } else {
        Err(Error::InvalidRange {
            address,
            bytes,
            reason: reason(),
        })
    }
}

fn reason(engine: &Engine, address: usize, bytes: usize) -> String {
    match engine.memory.explain(address, bytes) {
        Some((_, what)) => format!("the range is {what}"),
        None => "there is no allocation".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_can_be_shared_between_threads() {
        fn shareable<T: Send + Sync>() {}
        shareable::<Machine>();
    }
}
