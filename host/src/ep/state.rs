//! What the ranks of a group share.

use super::config::EpConfig;
use super::error::{Awaited, EpError};
use super::launch::Launches;
use super::peers::Session;
use super::progress::Progress;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::DeviceError;
use crate::peer::PeerError;
use crate::stream::Stream;
use kernels_gpu::ep::wait::{self, Failure};
use kernels_gpu::ep::{Peer, Rank, Shape};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Shared by a group and its ranks.
pub(super) struct GroupState {
    /// No two groups of the process have the same.
    pub(super) id: u64,
    pub(super) device: Device,
    pub(super) config: Arc<EpConfig>,
    pub(super) shape: Shape,
    pub(super) launches: Launches,
    progress: Mutex<Progress>,
    /// `[ranks, 2]`: a [`Peer`] for each.
    addresses: DeviceBuffer<u64>,
    /// `[ranks, Failure::WORDS]`.
    failures: DeviceBuffer<u32>,
    /// Why the group cannot be used any more.
    unusable: Mutex<Option<String>>,
    /// What ties it to ranks of other processes, if there are some.
    session: OnceLock<Session>,
}

impl GroupState {
    /// The state of a group whose `addresses` are known once its ranks are there, of which this process has `local`.
    pub(super) fn new(
        device: &Device,
        config: EpConfig,
        launches: Launches,
        local: Range<usize>,
    ) -> Result<Self, EpError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let ranks = config.ranks();
        let mut shape = config.shape();
        if local.len() < ranks {
            shape.flags |= Shape::RECEIPTS;
        }
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            device: device.clone(),
            shape,
            launches,
            progress: Mutex::new(Progress::new(ranks, local)),
            addresses: device.alloc(2 * ranks)?,
            failures: device.alloc_filled(Failure::WORDS * ranks, 0)?,
            unusable: Mutex::new(None),
            session: OnceLock::new(),
            config: Arc::new(config),
        })
    }

    /// How far the ranks are. Held from the check whether a call is in order until it is queued.
    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        // Calls are counted after they are queued, so a panic leaves nothing half done.
        let lock = self.progress.lock();
        let mut progress = lock.unwrap_or_else(PoisonError::into_inner);
        progress.settle();
        progress
    }

    /// The table of all ranks' receive buffers.
    pub(super) fn peers(&self) -> *const Peer {
        self.addresses.as_ptr().cast()
    }

    /// A buffer that is the table, to fill it.
    pub(super) fn upload_addresses(&self, addresses: &[u64]) -> Result<(), EpError> {
        let pointer = self.addresses.as_ptr().cast_mut();
        // SAFETY: the table's own memory, which lives as long as `self`; no kernel uses it yet.
        let mut table = unsafe { DeviceBuffer::from_raw(&self.device, pointer, addresses.len())? };
        Ok(table.upload_from(addresses)?)
    }

    /// Where rank `rank` writes down why it gave up.
    pub(super) fn failure(&self, rank: usize) -> *mut u32 {
        let first = self.failures.as_ptr().cast_mut();
        first.wrapping_add(rank * Failure::WORDS)
    }

    /// Refuses a group that failed.
    pub(super) fn check_usable(&self) -> Result<(), EpError> {
        let reason = self.unusable.lock().unwrap_or_else(PoisonError::into_inner);
        match &*reason {
            None => Ok(()),
            Some(reason) => Err(EpError::Unusable {
                reason: reason.clone(),
            }),
        }
    }

    /// Ties the group to ranks of other processes.
    pub(super) fn set_session(&self, session: Session) {
        self.session.get_or_init(|| session);
    }

    /// Refuses to send to a process that is gone.
    pub(super) fn check_peers(&self) -> Result<(), EpError> {
        match self.gone()?.first() {
            None => Ok(()),
            Some(&rank) => Err(PeerError::Gone { rank }.into()),
        }
    }

    /// The ranks whose processes are gone.
    fn gone(&self) -> Result<Vec<usize>, PeerError> {
        self.session.get().map_or(Ok(Vec::new()), Session::gone)
    }

    /// Queues what orders a rank's next round behind those of other processes.
    pub(super) fn await_receipts(&self, stream: &Stream, rank: usize) -> Result<(), DeviceError> {
        match self.session.get() {
            None => Ok(()),
            Some(session) => session.await_receipts(stream, self, rank),
        }
    }

    /// Queues what lets other processes go on to the next round.
    pub(super) fn give_receipts(&self, stream: &Stream, rank: usize) -> Result<(), DeviceError> {
        match self.session.get() {
            None => Ok(()),
            Some(session) => session.give_receipts(stream, self, rank),
        }
    }

    /// Waits for the device, and looks whether a rank gave up.
    pub(super) fn check(&self) -> Result<(), EpError> {
        self.check_usable()?;
        let records = self.failures.download()?;
        let failed = records
            .chunks_exact(Failure::WORDS)
            .enumerate()
            .find(|(_, record)| record[0] != 0);
        let Some((waiting, record)) = failed else {
            return Ok(());
        };
        let awaited = if record[0] == wait::Awaited::Count as u32 {
            Awaited::Count {
                rank: record[1] as usize,
                expert: record[2] as usize,
                word: record[3] as usize,
            }
        } else if record[0] == wait::Awaited::Receipt as u32 {
            Awaited::Receipt {
                rank: record[1] as usize,
            }
        } else {
            Awaited::Offsets
        };
        // Of several that are gone, the one that was waited for.
        let gone = self.gone()?;
        let by_awaited = gone.iter().find(|&&rank| awaited.rank() == Some(rank));
        let error = match by_awaited.or(gone.first()) {
            Some(&rank) => EpError::PeerGone {
                waiting,
                awaited,
                rank,
            },
            None => EpError::Deadline { waiting, awaited },
        };
        let mut reason = self.unusable.lock().unwrap_or_else(PoisonError::into_inner);
        *reason = Some(error.to_string());
        Err(error)
    }
}

impl fmt::Debug for GroupState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GroupState")
            .field("id", &self.id)
            .field("device", &self.device)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Bytes of the arguments of `ranks` ranks.
pub(super) const fn argument_bytes(ranks: usize) -> usize {
    ranks * size_of::<Rank>()
}
