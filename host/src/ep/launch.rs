//! The entries of each format, and how they are launched.

use super::combine::CombineFormat;
use super::error::EpError;
use super::format::TokenFormat;
use crate::backend::LaunchConfig;
use crate::device::Device;
use crate::error::DeviceError;
use crate::stream::Stream;
use kernels_gpu::ep::combine::Combining;
use kernels_gpu::ep::{MAX_THREADS, Rank, Shape};
use kernels_gpu::{for_each_combine_format, for_each_ep_format};

/// Grid and block of the kernels of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of a rank, up to 65535. The fused dispatch needs all blocks of all ranks to be resident at once; with
    /// more than are, `dispatch_wait` relies on the hardware beginning with the first.
    pub blocks_per_rank: u32,
    /// Threads of a block: a multiple of 32, up to 256.
    pub threads: u32,
}

impl LaunchShape {
    /// What the emulator runs unless told: enough for blocks to wait for each other, little enough to be quick.
    const EMULATED: Self = Self {
        blocks_per_rank: 3,
        threads: 64,
    };
}

/// The most blocks that a rank can have. Far beyond what devices hold at once, and far below what a grid, or a
/// sum of blocks and ranks in 32 bits, could not express.
const MAX_BLOCKS: u32 = u16::MAX as u32;

type LaunchOne<A> = unsafe fn(&Stream, LaunchConfig, Shape, A) -> Result<(), DeviceError>;
type LaunchAll<A> = unsafe fn(&Stream, LaunchConfig, Shape, *const A) -> Result<(), DeviceError>;
type Resident = fn(&Device, u32, usize) -> Result<u32, DeviceError>;

/// The entries of a format `F`, which take the shape and an `A` for each rank.
pub(super) struct Entries<F, A> {
    format: F,
    pub(super) send: LaunchOne<A>,
    pub(super) receive: LaunchOne<A>,
    pub(super) fused: LaunchAll<A>,
    /// Of `send`, `receive` and `fused`.
    resident: [Resident; 3],
}

/// A table of [`Entries`] from a list of the kernel crate: where the entries are, their formats, and what they call
/// the argument of a rank.
macro_rules! entry_table {
    ($($kernels:ident)::+, $formats:ident, $argument:ident;
        $($send:ident, $receive:ident, $fused:ident: $format:ident;)*) => {{
        use $($kernels)::+ as kernels;
        &[$(Entries {
            format: $formats::$format,
            // SAFETY: the caller's obligation, here and below.
            send: |stream, config, shape, $argument| unsafe {
                stream.launch(config, kernels::$send::Args { shape, $argument })
            },
            // SAFETY: as above.
            receive: |stream, config, shape, $argument| unsafe {
                stream.launch(config, kernels::$receive::Args { shape, $argument })
            },
            // SAFETY: as above.
            fused: |stream, config, shape, ranks| unsafe {
                stream.launch(config, kernels::$fused::Args { shape, ranks })
            },
            resident: [
                |device, threads, shared| {
                    device.backend().resident_blocks::<kernels::$send::Args>(threads, shared)
                },
                |device, threads, shared| {
                    device.backend().resident_blocks::<kernels::$receive::Args>(threads, shared)
                },
                |device, threads, shared| {
                    device.backend().resident_blocks::<kernels::$fused::Args>(threads, shared)
                },
            ],
        }),*]
    }};
}

macro_rules! dispatch_table {
    ($($entries:tt)*) => {
        entry_table!(kernels_gpu::ep, TokenFormat, rank; $($entries)*)
    };
}

macro_rules! combine_table {
    ($($entries:tt)*) => {
        entry_table!(kernels_gpu::ep::combine, CombineFormat, combining; $($entries)*)
    };
}

/// The entries of dispatch.
pub(super) const DISPATCH: &[Entries<TokenFormat, Rank>] = for_each_ep_format!(dispatch_table);

/// The entries of combine.
pub(super) const COMBINE: &[Entries<CombineFormat, Combining>] =
    for_each_combine_format!(combine_table);

/// How the three kernels of an operation are launched.
pub(super) struct Launches<F: 'static, A: 'static> {
    pub(super) entries: &'static Entries<F, A>,
    pub(super) send: LaunchConfig,
    pub(super) receive: LaunchConfig,
    /// Why there is no fused launch, or what it is.
    pub(super) fused: Result<LaunchConfig, FusedLimit>,
}

/// A fused launch that does not fit the device.
#[derive(Clone, Copy)]
pub(super) struct FusedLimit {
    blocks_per_rank: u32,
    resident: u32,
}

impl FusedLimit {
    pub(super) fn error(self, ranks: usize) -> EpError {
        EpError::NotResident {
            ranks,
            blocks_per_rank: self.blocks_per_rank,
            resident: self.resident,
        }
    }
}

impl<F: PartialEq, A> Launches<F, A> {
    /// The launches of `ranks` ranks, with as many blocks as are resident unless `shape` says how many. `name` is that
    /// of the format, for an error.
    pub(super) fn new(
        device: &Device,
        table: &'static [Entries<F, A>],
        format: F,
        name: &'static str,
        ranks: usize,
        shared_bytes: usize,
        shape: Option<LaunchShape>,
    ) -> Result<Self, EpError> {
        let entries = table.iter().find(|entries| entries.format == format);
        let entries = entries.ok_or(DeviceError::NoSuchKernel { name })?;
        let shape = shape.or(device.is_emulator().then_some(LaunchShape::EMULATED));
        let threads = shape.map_or(MAX_THREADS, |shape| shape.threads);
        let blocks = shape.map(|shape| shape.blocks_per_rank);
        let threads_fit = (1..=MAX_THREADS).contains(&threads) && threads.is_multiple_of(32);
        if !threads_fit || blocks.is_some_and(|blocks| !(1..=MAX_BLOCKS).contains(&blocks)) {
            return Err(EpError::LaunchShape {
                blocks_per_rank: blocks.unwrap_or(1),
                threads,
                limit: MAX_THREADS,
                block_limit: MAX_BLOCKS,
            });
        }
        let resident = |entry: usize| entries.resident[entry](device, threads, shared_bytes);
        let line = |blocks: u32| LaunchConfig::line(blocks.into(), threads, shared_bytes);
        let [send, receive, fused] = [resident(0)?, resident(1)?, resident(2)?];
        let for_each_rank = u32::try_from(ranks).map_or(0, |ranks| fused / ranks);
        let per_rank = blocks.unwrap_or(for_each_rank.max(1));
        let fused = if per_rank <= for_each_rank {
            Ok(LaunchConfig {
                block_rows: ranks as u32,
                cooperative: true,
                ..line(per_rank)?
            })
        } else {
            Err(FusedLimit {
                blocks_per_rank: per_rank,
                resident: fused,
            })
        };
        Ok(Self {
            entries,
            send: line(blocks.unwrap_or(send.max(1)))?,
            receive: line(blocks.unwrap_or(receive.max(1)))?,
            fused,
        })
    }
}
