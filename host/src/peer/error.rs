//! What can go wrong between processes.

use crate::error::DeviceError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Why processes did not come together, or fell apart.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A device could not share its memory, or not use that of another process.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// The device has no memory that can be shared this way.
    #[error("{device} cannot share memory by {sharing}")]
    Sharing {
        /// The device.
        device: String,
        /// The way.
        sharing: super::Sharing,
    },

    /// A rank's number is not below the number of ranks.
    #[error("there is no rank {rank} among {ranks}")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },

    /// The system refused something at the meeting point.
    #[error("cannot {action} {}: {source}", path.display())]
    Path {
        /// What was tried.
        action: &'static str,
        /// The meeting point.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },

    /// Somebody else listens at the meeting point.
    #[error("another rank 0 listens at {}", path.display())]
    InUse {
        /// The meeting point.
        path: PathBuf,
    },

    /// Ranks did not come.
    #[error("after {deadline:?} at {}, missing: ranks {missing:?}", path.display())]
    Missing {
        /// The meeting point.
        path: PathBuf,
        /// How long they had.
        deadline: Duration,
        /// Those that did not come.
        missing: Vec<usize>,
    },

    /// Two processes call themselves the same.
    #[error("two processes are rank {rank}")]
    SameRank {
        /// What they call themselves.
        rank: usize,
    },

    /// Two ranks were not made for the same group.
    #[error("{item} is {value} for rank {rank} and {other_value} for rank {other}")]
    Disagreement {
        /// What they disagree about.
        item: String,
        /// The one rank.
        rank: usize,
        /// What it says.
        value: String,
        /// The other rank.
        other: usize,
        /// What that says.
        other_value: String,
    },

    /// Another rank failed, and said why.
    #[error("rank {rank} gave up: {reason}")]
    GaveUp {
        /// The rank.
        rank: usize,
        /// Why, in its own words.
        reason: String,
    },

    /// Another rank's process ended, or left the group.
    #[error("rank {rank} is gone: its process ended, or left the group")]
    Gone {
        /// The rank.
        rank: usize,
    },

    /// A message that no rank of this version sends.
    #[error("rank {rank} sent something else than expected: {reason}")]
    Malformed {
        /// The rank.
        rank: usize,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The system refused something between ranks that had met.
    #[error("cannot {action} rank {rank}: {source}")]
    Socket {
        /// What was tried.
        action: &'static str,
        /// The rank.
        rank: usize,
        /// Why not.
        source: io::Error,
    },
}
