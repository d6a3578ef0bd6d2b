//! Faults: what a kernel did wrong, where, and how to see it again.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

use crate::geometry::Dim3;

/// The class of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// Access through a null pointer (or one within the first page).
    NullPointer,
    /// Access outside every live allocation, the block's shared memory and the thread's stack.
    OutOfBounds,
    /// Access at an address that is not a multiple of the required alignment.
    Misaligned,
    /// Access to memory that has been freed.
    UseAfterFree,
    /// Threads of a block did not all reach the same barrier, or used it differently.
    DivergentBarrier,
    /// A barrier was called with arguments the hardware does not accept.
    InvalidBarrier,
    /// Lanes of a warp met under different instructions or masks, or a named lane had exited.
    WarpDivergence,
    /// A warp collective was called by a lane that its mask does not name.
    InvalidMask,
    /// An asynchronous copy read shared memory whose generic writes no proxy fence had published.
    MissingProxyFence,
    /// An asynchronous copy was misused, for example still in flight when its block exited.
    AsyncCopy,
    /// An `mbarrier` was misused: not initialised, overwritten, or too many arrivals.
    Mbarrier,
    /// Static and dynamic shared memory together exceed what a block can have.
    SharedMemoryExceeded,
    /// Nothing can run any more, but threads are still waiting.
    Deadlock,
    /// All threads that can run only wait for something that nobody does.
    Livelock,
    /// A thread is about to run off its stack, or no stack could be had for a thread.
    StackExhausted,
    /// A kernel, or a host function enqueued on a stream, panicked.
    Panic,
    /// A kernel called [`crate::device::trap`].
    Trap,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NullPointer => "null pointer access",
            Self::OutOfBounds => "out-of-bounds access",
            Self::Misaligned => "misaligned access",
            Self::UseAfterFree => "use after free",
            Self::DivergentBarrier => "divergent barrier",
            Self::InvalidBarrier => "invalid barrier",
            Self::WarpDivergence => "warp divergence",
            Self::InvalidMask => "invalid warp mask",
            Self::MissingProxyFence => "missing proxy fence",
            Self::AsyncCopy => "asynchronous copy misused",
            Self::Mbarrier => "mbarrier misused",
            Self::SharedMemoryExceeded => "shared memory exceeded",
            Self::Deadlock => "deadlock",
            Self::Livelock => "livelock",
            Self::StackExhausted => "stack exhausted",
            Self::Panic => "panic",
            Self::Trap => "trap",
        })
    }
}

/// A place in the source of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLocation {
    /// File, as the compiler names it.
    pub file: Cow<'static, str>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl From<&'static Location<'static>> for SourceLocation {
    fn from(location: &'static Location<'static>) -> Self {
        Self {
            file: Cow::Borrowed(location.file()),
            line: location.line(),
            column: location.column(),
        }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// What a kernel did wrong. Displays as one line that names everything below.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.describe())]
#[non_exhaustive]
pub struct Fault {
    /// The class of fault.
    pub kind: FaultKind,
    /// Name of the kernel; `None` for a host function on a stream.
    pub kernel: Option<&'static str>,
    /// Index of the block, where one thread is to blame or stands for those that wait.
    pub block: Option<Dim3>,
    /// Index of the thread within its block.
    pub thread: Option<Dim3>,
    /// Source line of the call that was reported, where known.
    pub location: Option<SourceLocation>,
    /// What happened, with its numbers.
    pub message: String,
    /// Seed of the machine: the same seed and the same calls show the fault again.
    pub seed: u64,
}

impl Fault {
    fn describe(&self) -> String {
        use fmt::Write as _;

        let mut text = self.kind.to_string();
        let mut part = |args: fmt::Arguments<'_>| {
            text.write_fmt(args)
                .expect("writing to a String cannot fail");
        };
        if let Some(kernel) = self.kernel {
            part(format_args!(" in kernel `{kernel}`"));
        }
        if let Some(block) = self.block {
            part(format_args!(", block {block}"));
        }
        if let Some(thread) = self.thread {
            part(format_args!(", thread {thread}"));
        }
        if let Some(location) = &self.location {
            part(format_args!(", at {location}"));
        }
        part(format_args!(": {} (seed {})", self.message, self.seed));
        text
    }
}
