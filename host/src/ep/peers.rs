//! Groups whose ranks are processes, and what ranks that one host does not order have in common.

use super::config::EpConfig;
use super::error::EpError;
use super::group::EpGroup;
use super::launch::LaunchShape;
use super::part::Part;
use super::state::GroupState;
use crate::backend::LaunchConfig;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::DeviceError;
use crate::peer::{Introduction, Links, PeerError, PeerMemory, Rendezvous, Sharing, Ticket};
use crate::stream::Stream;
use bytemuck::Pod;
use cuda_std::launch::KernelArgs;
use kernels_gpu::ep::Shape;
use kernels_gpu::ep::receipt::{Receipts, THREADS, ep_await_receipts, ep_give_receipts};
use std::any::Any;
use std::sync::Arc;

impl EpGroup {
    /// A group with one rank in each of several processes of this host: this one's is on `device`, each of the
    /// others on a device of its own, or on the same. All processes call it, with the same `config`; it returns when
    /// all have.
    ///
    /// Memory that others write is shared by descriptors, or, where the driver has none, by legacy IPC; neither needs
    /// privileges. [`join_with`](Self::join_with) chooses.
    ///
    /// The group has one rank here, which is used as ranks always are. Rounds of different processes order
    /// themselves: one that would write over what a receiver still reads waits on the device for it. Processes that
    /// share one GPU take turns on it, a slice of time each, so what waits there for another process wastes its
    /// slice, and a fused dispatch may wait until its deadline: use the split operations.
    ///
    /// A process that dies is [`PeerError::Gone`] for the others when they next send, and [`EpError::PeerGone`] from
    /// [`check`](Self::check) if they waited for it already.
    ///
    /// ```
    /// use std::thread;
    /// use half::bf16;
    /// use tokenyard::Device;
    /// use tokenyard::ep::{Batch, EpConfig, EpError, EpGroup, TokenFormat};
    /// use tokenyard::peer::Rendezvous;
    ///
    /// let folder = std::env::temp_dir();
    /// let path = folder.join(format!("tokenyard-{}.socket", std::process::id()));
    /// let config = EpConfig::builder(TokenFormat::Mxfp4)
    ///     .hidden_size(64).top_k(2).experts(4).ranks(2).max_tokens_per_rank(4).build()?;
    ///
    /// // What each process does. Here they are threads.
    /// let process = |rank| {
    ///     let device = Device::emulator(rank as u64);
    ///     let stream = device.create_stream()?;
    ///     let meeting = Rendezvous::new(&path, rank, 2)?;
    ///     let mut group = EpGroup::join(&device, config.clone(), &meeting)?;
    ///
    ///     let (tokens, ids) = (device.upload(&vec![bf16::ONE; 64])?, device.upload(&[0, 3])?);
    ///     let mut received = group.allocate_received()?;
    ///     let own = &mut group.ranks_mut()[0];
    ///     let pending = own.dispatch_async(&stream, &Batch::new(&tokens, &ids))?;
    ///     let dispatched = own.dispatch_wait(&stream, pending, &mut received)?;
    ///     let row_offsets = dispatched.received().row_offsets().download()?;
    ///     group.check()?;
    ///     Ok::<_, EpError>(row_offsets)
    /// };
    /// let (first, second) = thread::scope(|scope| {
    ///     let second = scope.spawn(|| process(1));
    ///     (process(0), second.join().unwrap())
    /// });
    /// assert_eq!(first?, [0, 2, 2]); // expert 0 got a token from each rank
    /// assert_eq!(second?, [0, 0, 2]); // and so did expert 3
    /// assert!(!path.exists());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new). [`EpError::ProcessCount`] unless there is a process for each rank. [`EpError::Peer`]
    /// when the others do not come, were configured otherwise, fail, or die.
    pub fn join(
        device: &Device,
        config: EpConfig,
        rendezvous: &Rendezvous,
    ) -> Result<Self, EpError> {
        let sharing = PeerMemory::sharing(device)?;
        Self::join_with(device, config, rendezvous, sharing, None)
    }

    /// [`join`](Self::join) with a way to share memory, and a grid and block, of the caller's choice. Processes may
    /// choose differently.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join) and [`with_launch`](Self::with_launch); [`PeerError::Sharing`] where the device has
    /// no such memory.
    pub fn join_with(
        device: &Device,
        config: EpConfig,
        rendezvous: &Rendezvous,
        sharing: Sharing,
        launch: Option<LaunchShape>,
    ) -> Result<Self, EpError> {
        let (number, ranks) = (rendezvous.rank(), config.ranks());
        if rendezvous.ranks() != ranks {
            return Err(EpError::ProcessCount {
                processes: rendezvous.ranks(),
                ranks,
            });
        }
        let agreed = config.agreement();
        let mut memory = ReceiveMemory::shared(sharing);
        // All that others write has its first content before they know of it.
        let part = Part::new(device, config, number..number + 1, launch, &mut memory)?;
        let (exports, tickets) = memory.into_parts();
        let introduction = Introduction {
            rank: number,
            agreed,
            memory: tickets,
        };
        let meeting = rendezvous.meet(introduction)?;

        let mut addresses = vec![Vec::new(); ranks];
        addresses[number] = part.addresses.concat();
        let mut imports = Vec::new();
        let opened = (|| {
            for peer in &meeting.peers {
                let Introduction { rank, memory, .. } = &peer.introduction;
                check_tickets(*rank, memory, &exports)?;
                for ticket in memory {
                    let opened = PeerMemory::open(device, ticket)?;
                    addresses[*rank].push(opened.as_ptr() as u64);
                    imports.push(opened);
                }
            }
            Ok::<_, EpError>(())
        })();
        let ((), links) = meeting.confirm(opened)?;
        let kept = Kept::of_processes(links, [exports, imports]);
        part.connect(&addresses, Some(kept))
    }
}

/// Refuses memory that cannot be what a rank of the same group shares.
fn check_tickets(rank: usize, tickets: &[Ticket], own: &[PeerMemory]) -> Result<(), PeerError> {
    // Each rounds up to its own granularity.
    const LARGEST_GRANULARITY: usize = 2 << 20;
    let fits = |ticket: &Ticket, own: &PeerMemory| {
        ticket.bytes().next_multiple_of(LARGEST_GRANULARITY)
            == own.bytes().next_multiple_of(LARGEST_GRANULARITY)
    };
    let alike = tickets.len() == own.len() && tickets.iter().zip(own).all(|(a, b)| fits(a, b));
    let reason = "memory of other sizes";
    alike
        .then_some(())
        .ok_or(PeerError::Malformed { rank, reason })
}

/// Where a rank's memory comes from that other ranks write.
pub(super) enum ReceiveMemory {
    /// The device: one host orders all ranks.
    Private,
    /// The devices of this process. What one member of a group has, it keeps until the last one ends.
    Common(Vec<DeviceBuffer<u8>>),
    /// Memory that other processes open.
    Shared {
        sharing: Sharing,
        memory: Vec<PeerMemory>,
        tickets: Vec<Ticket>,
    },
}

impl ReceiveMemory {
    pub(super) fn common() -> Self {
        Self::Common(Vec::new())
    }

    /// Whether one host orders all ranks.
    pub(super) fn is_private(&self) -> bool {
        matches!(self, Self::Private)
    }

    fn shared(sharing: Sharing) -> Self {
        Self::Shared {
            sharing,
            memory: Vec::new(),
            tickets: Vec::new(),
        }
    }

    /// A buffer of unspecified content. If it is shared, it must not be used after the group's [`Session`].
    pub(super) fn alloc<T: Pod>(
        &mut self,
        device: &Device,
        len: usize,
    ) -> Result<DeviceBuffer<T>, EpError> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(DeviceError::TooLarge {
                elements: len,
                element_bytes: size_of::<T>(),
            })?;
        match self {
            Self::Private => Ok(device.alloc(len)?),
            Self::Common(memory) => {
                let mut allocated = device.alloc::<u8>(bytes)?;
                let pointer = allocated.as_mut_ptr().cast();
                memory.push(allocated);
                // SAFETY: the session of the group's state keeps the memory, and ranks keep that state.
                Ok(unsafe { DeviceBuffer::from_raw(device, pointer, len)? })
            }
            Self::Shared {
                sharing,
                memory,
                tickets,
            } => {
                let (allocated, ticket) = PeerMemory::allocate(device, bytes, *sharing)?;
                // SAFETY: as above.
                let buffer = unsafe { allocated.buffer(len)? };
                memory.push(allocated);
                tickets.push(ticket);
                Ok(buffer)
            }
        }
    }

    /// The same with every byte set.
    pub(super) fn alloc_filled<T: Pod>(
        &mut self,
        device: &Device,
        len: usize,
        byte: u8,
    ) -> Result<DeviceBuffer<T>, EpError> {
        let mut buffer = self.alloc(device, len)?;
        buffer.fill(byte)?;
        Ok(buffer)
    }

    fn into_parts(self) -> (Vec<PeerMemory>, Vec<Ticket>) {
        match self {
            Self::Private | Self::Common(_) => Default::default(),
            Self::Shared {
                memory, tickets, ..
            } => (memory, tickets),
        }
    }

    /// What [`common`](Self::common) has allocated.
    pub(super) fn into_common(self) -> Arc<Vec<DeviceBuffer<u8>>> {
        Arc::new(match self {
            Self::Common(memory) => memory,
            Self::Private | Self::Shared { .. } => Vec::new(),
        })
    }
}

/// What ranks that order themselves need of others, for as long as kernels may use it.
pub(super) struct Kept {
    /// To other processes.
    links: Option<Links>,
    /// What ranks write of each other.
    _memory: Box<dyn Any + Send + Sync>,
}

impl Kept {
    /// What this process shares, and what the others do.
    fn of_processes(links: Links, memory: [Vec<PeerMemory>; 2]) -> Self {
        Self {
            links: Some(links),
            _memory: Box::new(memory),
        }
    }

    /// What all members of a group in this process have.
    pub(super) fn within(memory: &Arc<Vec<DeviceBuffer<u8>>>) -> Self {
        Self {
            links: None,
            _memory: Box::new(Arc::clone(memory)),
        }
    }
}

/// What a receipt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// What came in a dispatch is laid out.
    Dispatch,
    /// What came home is added up.
    Combine,
}

/// What ties ranks to those that another host thread, or another process, gives work to.
pub(super) struct Session {
    /// For each [`Phase`], `[R]`: where each rank has its receipts. Dropped first, which waits for this device: what it
    /// has of others is not freed under its kernels.
    receipts: [DeviceBuffer<u64>; 2],
    kept: Kept,
}

impl Session {
    pub(super) fn new(receipts: [DeviceBuffer<u64>; 2], kept: Kept) -> Self {
        Self { receipts, kept }
    }

    /// The ranks whose processes are gone.
    pub(super) fn gone(&self) -> Result<Vec<usize>, PeerError> {
        self.kept.links.as_ref().map_or(Ok(Vec::new()), Links::gone)
    }

    /// Queues an entry of the rank's receipts, with the arguments that `args` makes.
    fn launch<A: KernelArgs>(
        &self,
        stream: &Stream,
        state: &GroupState,
        rank: usize,
        phase: Phase,
        args: impl FnOnce(Shape, Receipts) -> A,
    ) -> Result<(), DeviceError> {
        let receipts = Receipts {
            rank: rank as u32,
            tables: self.receipts[phase as usize].as_ptr(),
            failure: state.failure(rank),
        };
        let config = LaunchConfig::line(1, THREADS, 0)?;
        // SAFETY: the tables name the receipts of all ranks, which are mapped for as long as the group lives.
        unsafe { stream.launch(config, args(state.shape(), receipts)) }
    }

    pub(super) fn await_receipts(
        &self,
        stream: &Stream,
        state: &GroupState,
        rank: usize,
        phase: Phase,
    ) -> Result<(), DeviceError> {
        self.launch(stream, state, rank, phase, |shape, receipts| {
            ep_await_receipts::Args { shape, receipts }
        })
    }

    pub(super) fn give_receipts(
        &self,
        stream: &Stream,
        state: &GroupState,
        rank: usize,
        phase: Phase,
    ) -> Result<(), DeviceError> {
        self.launch(stream, state, rank, phase, |shape, receipts| {
            ep_give_receipts::Args { shape, receipts }
        })
    }
}
