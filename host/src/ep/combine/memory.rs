//! What a group that combines has in addition.

use super::format::CombineFormat;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::ep::config::EpConfig;
use crate::ep::error::EpError;
use crate::ep::launch::{COMBINE, LaunchShape, Launches};
use crate::ep::peers::ReceiveMemory;
use crate::ep::state::fill_table;
use kernels_gpu::ep::combine::{Combining, WeightType, ep_bind_combine};
use kernels_gpu::ep::{Counters, Output, Peer, Rank};
use std::ops::Range;
use std::ptr;

/// The combine buffers of all ranks, and how the kernels are launched.
pub(in crate::ep) struct CombineMemory {
    pub(super) format: CombineFormat,
    pub(super) launches: Launches<CombineFormat, Combining>,
    /// Of the ranks from `first` on.
    ranks: Vec<RankMemory>,
    first: usize,
    /// `[ranks, 2]`: a [`Peer`] for each of the group.
    addresses: DeviceBuffer<u64>,
    /// The ranks' arguments of the next fused launch.
    arguments: DeviceBuffer<u8>,
}

/// What one rank has.
struct RankMemory {
    /// `[C, K]` rows.
    rows: DeviceBuffer<u8>,
    /// `[local experts, sources]`, by the sender's expert and rank.
    counts: DeviceBuffer<u64>,
    counters: DeviceBuffer<u32>,
    /// With several nodes: a row for each of the output's.
    send_rows: Option<DeviceBuffer<u8>>,
}

/// What a rank counts while it combines, as it lies in device memory. 0 between rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnCounters {
    /// Sending blocks that are done.
    pub sent: u32,
    /// Receiving blocks that have not yet seen that all rows are home.
    pub ready: u32,
}

impl CombineMemory {
    /// What the ranks `local` have. What other ranks write of it comes from `memory`, for each rank in the order of
    /// [`addresses`](Self::addresses); where the others have it is [told](Self::upload_addresses) later.
    pub(in crate::ep) fn new(
        device: &Device,
        config: &EpConfig,
        format: CombineFormat,
        local: Range<usize>,
        launch: Option<LaunchShape>,
        memory: &mut ReceiveMemory,
    ) -> Result<Self, EpError> {
        let row = format.row_bytes(config.hidden_size());
        let several_nodes = config.ranks_per_node() < config.ranks();
        let shared = format.shared_bytes(config.hidden_size() as u32);
        let name = format.name();
        let launches = Launches::new(device, COMBINE, format, name, local.len(), shared, launch)?;
        device.backend().load::<ep_bind_combine::Args>()?;
        let rows = config.max_tokens_per_rank() * config.top_k() * row;
        let allocate = |_| {
            Ok::<_, EpError>(RankMemory {
                rows: memory.alloc(device, rows)?,
                counts: memory.alloc_filled(device, config.pairs(), 0xFF)?,
                counters: device.alloc_filled(Counters::words(0, 0), 0)?,
                send_rows: several_nodes
                    .then(|| device.alloc(config.output_rows() * row))
                    .transpose()?,
            })
        };
        let (first, ranks) = (local.start, local.len());
        Ok(Self {
            format,
            launches,
            addresses: device.alloc(2 * config.ranks())?,
            arguments: device.alloc(argument_bytes(ranks))?,
            ranks: local.map(allocate).collect::<Result<_, _>>()?,
            first,
        })
    }

    /// Where rank `number` gets rows home: rows and counts.
    pub(in crate::ep) fn addresses(&self, number: usize) -> [u64; 2] {
        let RankMemory { rows, counts, .. } = self.rank(number);
        [rows.as_ptr() as u64, counts.as_ptr() as u64]
    }

    /// Tells where all ranks get rows home.
    pub(in crate::ep) fn upload_addresses(&self, addresses: &[u64]) -> Result<(), EpError> {
        fill_table(&self.addresses, addresses)
    }

    fn rank(&self, number: usize) -> &RankMemory {
        &self.ranks[number - self.first]
    }

    /// The arguments of rank `number`, which sends home `outputs` of `max_rows` rows, after a dispatch with `output`.
    /// It writes down failures at `failure`.
    pub(super) fn bind(
        &self,
        number: usize,
        failure: *mut u32,
        output: Output,
        outputs: *const u8,
        max_rows: usize,
    ) -> Combining {
        let memory = self.rank(number);
        let send_rows = memory.send_rows.as_ref();
        Combining {
            rank: Rank {
                rank: number as u32,
                token_limit: 0,
                token_count: ptr::null(),
                tokens: ptr::null(),
                topk_ids: ptr::null(),
                input_scale: ptr::null(),
                peers: self.addresses.as_ptr().cast::<Peer>(),
                send_rows: send_rows
                    .map_or(ptr::null_mut(), |rows| rows.as_ptr().cast_mut().cast()),
                counters: memory.counters.as_ptr().cast_mut(),
                failure,
                output,
            },
            outputs: outputs.cast(),
            max_rows: max_rows as u32,
            weight_type: WeightType::None as u32,
            weights: ptr::null(),
            target: ptr::null_mut(),
        }
    }

    /// Where a fused launch finds the arguments of its ranks.
    pub(super) fn argument_slots(&self) -> *mut Combining {
        self.arguments.as_ptr().cast_mut().cast()
    }

    /// Addresses of the send buffer, 0 for none, of the buffer that rows come home to, and of the receive counts.
    pub(in crate::ep) fn buffer_addresses(&self, rank: usize) -> [u64; 3] {
        let memory = &self.ranks[rank];
        let send = memory.send_rows.as_ref();
        [
            send.map_or(0, |rows| rows.as_ptr() as u64),
            memory.rows.as_ptr() as u64,
            memory.counts.as_ptr() as u64,
        ]
    }

    /// The receive counts of rank `rank`. Waits for the device.
    pub(in crate::ep) fn counts(&self, rank: usize) -> Result<Vec<u64>, EpError> {
        Ok(self.rank(rank).counts.download()?)
    }

    /// The counters of rank `rank`. Waits for the device.
    pub(in crate::ep) fn counters(&self, rank: usize) -> Result<ReturnCounters, EpError> {
        let words = self.rank(rank).counters.download()?;
        Ok(ReturnCounters {
            sent: words[Counters::sent_word(0, 0)],
            ready: words[Counters::ready_word(0, 0)],
        })
    }
}

/// Bytes of the arguments of `ranks` ranks.
pub(in crate::ep) const fn argument_bytes(ranks: usize) -> usize {
    ranks * size_of::<Combining>()
}
