//! What can go wrong, as the host sees it.

use crate::fault::Fault;
use crate::geometry::Dim3;

/// Error of a [`crate::Machine`] method.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A kernel (or a host function enqueued on a stream) did something wrong. Sticky: every later
    /// call on the machine returns the same fault.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
    /// The host has no memory left for an allocation.
    #[error("out of memory: cannot allocate {bytes} bytes")]
    OutOfMemory {
        /// Size asked for.
        bytes: usize,
    },
    /// A pointer given to [`crate::Machine::free`] is not the start of a live allocation.
    #[error("{address:#x} is not the start of a live allocation of this machine")]
    InvalidPointer {
        /// The pointer's address.
        address: usize,
    },
    /// A copy or fill touches bytes outside a live allocation.
    #[error("{bytes} bytes at {address:#x} are not inside one live allocation: {reason}")]
    InvalidRange {
        /// First byte.
        address: usize,
        /// Length in bytes.
        bytes: usize,
        /// What is there instead.
        reason: String,
    },
    /// The stream was destroyed, or belongs to another machine.
    #[error("the stream was destroyed or belongs to another machine")]
    InvalidStream,
    /// A grid or block extent is zero.
    #[error("empty launch: grid {grid}, block {block}")]
    EmptyLaunch {
        /// Grid extents.
        grid: Dim3,
        /// Block extents.
        block: Dim3,
    },
    /// A grid extent is beyond what CUDA allows.
    #[error("grid {grid} exceeds {limit}")]
    GridTooLarge {
        /// Grid extents.
        grid: Dim3,
        /// Largest extents.
        limit: Dim3,
    },
    /// A block extent, or the number of threads, is beyond what CUDA allows.
    #[error("block {block} exceeds {limit} or {threads} threads")]
    BlockTooLarge {
        /// Block extents.
        block: Dim3,
        /// Largest extents.
        limit: Dim3,
        /// Most threads.
        threads: u32,
    },
    /// More dynamic shared memory than a block can have.
    #[error("{bytes} bytes of dynamic shared memory exceed {limit}")]
    SharedMemoryTooLarge {
        /// Bytes asked for.
        bytes: usize,
        /// Most bytes.
        limit: usize,
    },
    /// The blocks of a cooperative launch cannot all be resident.
    #[error("a cooperative launch of {threads} threads exceeds the {limit} that can be resident")]
    CooperativeTooLarge {
        /// Threads of the whole grid.
        threads: u128,
        /// Most resident threads.
        limit: u32,
    },
}
