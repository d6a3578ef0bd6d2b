//! What the ranks of a group share.

use super::combine::CombineMemory;
use super::config::EpConfig;
use super::error::{Awaited, EpError};
use super::format::TokenFormat;
use super::launch::Launches;
use super::peers::{Phase, Session};
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
    shape: Shape,
    /// [`Shape::masked`].
    masked: AtomicU64,
    pub(super) launches: Launches<TokenFormat, Rank>,
    pub(super) combine: Option<CombineMemory>,
    /// The ranks that it is the state of; others have their own.
    pub(super) local: Range<usize>,
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
    /// The state of a group whose `addresses` are known once its ranks are there, for those that are `local`; with
    /// `receipts`, ranks order themselves.
    pub(super) fn new(
        device: &Device,
        config: EpConfig,
        launches: Launches<TokenFormat, Rank>,
        combine: Option<CombineMemory>,
        local: Range<usize>,
        receipts: bool,
    ) -> Result<Self, EpError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let ranks = config.ranks();
        let mut shape = config.shape();
        if receipts {
            shape.flags |= Shape::RECEIPTS;
        }
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            device: device.clone(),
            shape,
            masked: AtomicU64::new(0),
            launches,
            combine,
            progress: Mutex::new(Progress::new(ranks, local.clone())),
            local,
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

    /// Fills the table.
    pub(super) fn upload_addresses(&self, addresses: &[u64]) -> Result<(), EpError> {
        fill_table(&self.addresses, addresses)
    }

    /// Where rank `rank` writes down why it gave up.
    pub(super) fn failure(&self, rank: usize) -> *mut u32 {
        let first = self.failures.as_ptr().cast_mut();
        first.wrapping_add(rank * Failure::WORDS)
    }

    /// The shape, with the ranks that take no part by now.
    pub(super) fn shape(&self) -> Shape {
        Shape {
            masked: self.masked(),
            ..self.shape
        }
    }

    /// Its own ranks that take part by now.
    pub(super) fn taking_part(&self) -> impl Iterator<Item = usize> {
        let own = self.local.clone();
        own.filter(|&rank| self.check_takes_part(rank).is_ok())
    }

    /// Ranks that take no part, as bits.
    pub(super) fn masked(&self) -> u64 {
        self.masked.load(Ordering::Relaxed)
    }

    /// Goes on without rank `rank`.
    pub(super) fn mask(&self, rank: usize) -> Result<(), EpError> {
        let (ranks, limit) = (self.config.ranks(), Shape::MASKED_RANKS as usize);
        if rank >= ranks || ranks > limit {
            return Err(EpError::RankMask { rank, ranks, limit });
        }
        // Under the lock, so that no call that is being checked finds another mask later.
        let mut progress = self.progress();
        self.masked.fetch_or(1 << rank, Ordering::Relaxed);
        progress.mask(rank);
        Ok(())
    }

    /// Refuses a rank that takes no part.
    pub(super) fn check_takes_part(&self, rank: usize) -> Result<(), EpError> {
        match rank < Shape::MASKED_RANKS as usize && self.masked() >> rank & 1 != 0 {
            true => Err(EpError::MaskedRank { rank }),
            false => Ok(()),
        }
    }

    /// What combines, of a group that did not fail.
    pub(super) fn combine_memory(&self) -> Result<&CombineMemory, EpError> {
        self.check_usable()?;
        self.combine.as_ref().ok_or(EpError::CombineNotConfigured)
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

    /// The ranks whose processes are gone, but for those that take no part.
    fn gone(&self) -> Result<Vec<usize>, PeerError> {
        let mut gone = self.session.get().map_or(Ok(Vec::new()), Session::gone)?;
        gone.retain(|&rank| self.check_takes_part(rank).is_ok());
        Ok(gone)
    }

    /// Queues what orders a rank's next round behind those of other processes.
    pub(super) fn await_receipts(
        &self,
        stream: &Stream,
        rank: usize,
        phase: Phase,
    ) -> Result<(), DeviceError> {
        match self.session.get() {
            None => Ok(()),
            Some(session) => session.await_receipts(stream, self, rank, phase),
        }
    }

    /// Queues what lets other processes go on to the next round.
    pub(super) fn give_receipts(
        &self,
        stream: &Stream,
        rank: usize,
        phase: Phase,
    ) -> Result<(), DeviceError> {
        match self.session.get() {
            None => Ok(()),
            Some(session) => session.give_receipts(stream, self, rank, phase),
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
        let [rank, expert, word] = [record[1], record[2], record[3]].map(|word| word as usize);
        let awaited = match record[0] {
            what if what == wait::Awaited::Count as u32 => Awaited::Count { rank, expert, word },
            what if what == wait::Awaited::Returned as u32 => {
                Awaited::Returned { rank, expert, word }
            }
            what if what == wait::Awaited::Returns as u32 => Awaited::Returns,
            what if what == wait::Awaited::Receipt as u32 => Awaited::Receipt { rank },
            _ => Awaited::Offsets,
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

/// Fills a table of addresses, which no kernel uses yet.
pub(super) fn fill_table(table: &DeviceBuffer<u64>, addresses: &[u64]) -> Result<(), EpError> {
    let pointer = table.as_ptr().cast_mut();
    // SAFETY: the table's own memory, which outlives this call; nothing else uses it.
    let mut table = unsafe { DeviceBuffer::from_raw(table.device(), pointer, table.len())? };
    Ok(table.upload_from(addresses)?)
}

/// Bytes of the arguments of `ranks` ranks.
pub(super) const fn argument_bytes(ranks: usize) -> usize {
    ranks * size_of::<Rank>()
}
