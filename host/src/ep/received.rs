//! What a rank gets.

use super::batch::BatchIdentity;
use super::config::EpConfig;
use super::error::EpError;
use super::state::GroupState;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::DeviceError;
use bytemuck::Pod;
use kernels_gpu::ep::{Output, ScaleLayout};
use std::sync::Arc;

/// The output of one rank: rows by group, and what says which they are.
///
/// Group `g` has the rows `row_offsets[g]..row_offsets[g + 1]`: group 0 of the shared expert, if there is one,
/// then one for each local expert. Within an expert, rows from rank 0 come first, then those from rank 1, and so
/// on; [`pairs`](Self::pairs) says how many each. Only rows that exist are written.
#[derive(Debug)]
pub struct Received {
    config: Arc<EpConfig>,
    tokens: DeviceBuffer<u8>,
    scales: DeviceBuffer<u8>,
    row_offsets: DeviceBuffer<u32>,
    scales_offsets: DeviceBuffer<u32>,
    expert_ids: DeviceBuffer<i32>,
    src_info: DeviceBuffer<[i32; 2]>,
    pairs: DeviceBuffer<[u32; 2]>,
}

/// A buffer of nothing, which takes no allocation.
fn nothing<T: Pod>(device: &Device) -> Result<DeviceBuffer<T>, DeviceError> {
    // SAFETY: there are no values.
    unsafe { DeviceBuffer::from_raw(device, std::ptr::null_mut(), 0) }
}

/// The buffers of a [`Received`]: all that its format has, or those that combine reads.
pub(crate) struct ReceivedParts {
    pub(crate) tokens: Option<DeviceBuffer<u8>>,
    pub(crate) scales: Option<DeviceBuffer<u8>>,
    pub(crate) row_offsets: Option<DeviceBuffer<u32>>,
    pub(crate) scales_offsets: Option<DeviceBuffer<u32>>,
    pub(crate) expert_ids: Option<DeviceBuffer<i32>>,
    pub(crate) src_info: DeviceBuffer<[i32; 2]>,
    pub(crate) pairs: DeviceBuffer<[u32; 2]>,
}

impl Received {
    /// An output in memory of the caller's, whose lengths were checked: those that [`new`](Self::new) allocates.
    pub(crate) fn from_parts(
        config: &Arc<EpConfig>,
        parts: ReceivedParts,
    ) -> Result<Self, DeviceError> {
        let device = parts.src_info.device().clone();
        Ok(Self {
            tokens: parts.tokens.map_or_else(|| nothing(&device), Ok)?,
            scales: parts.scales.map_or_else(|| nothing(&device), Ok)?,
            row_offsets: parts.row_offsets.map_or_else(|| nothing(&device), Ok)?,
            scales_offsets: parts.scales_offsets.map_or_else(|| nothing(&device), Ok)?,
            expert_ids: parts.expert_ids.map_or_else(|| nothing(&device), Ok)?,
            src_info: parts.src_info,
            pairs: parts.pairs,
            config: Arc::clone(config),
        })
    }

    pub(super) fn new(device: &Device, config: &Arc<EpConfig>) -> Result<Self, DeviceError> {
        let (rows, groups) = (config.output_rows(), config.groups());
        let payload = config.format().payload_bytes(config.hidden_size());
        let tiles = config.format().scale_layout() == ScaleLayout::Tiles;
        Ok(Self {
            tokens: device.alloc(rows * payload)?,
            scales: device.alloc(config.scale_bytes())?,
            row_offsets: device.alloc(groups + 1)?,
            scales_offsets: device.alloc(if tiles { groups } else { 0 })?,
            expert_ids: device.alloc(groups)?,
            src_info: device.alloc(rows)?,
            pairs: device.alloc(config.pairs())?,
            config: Arc::clone(config),
        })
    }

    /// The shape of the group.
    pub fn config(&self) -> &EpConfig {
        &self.config
    }

    /// `[output_rows, bytes of a row]`: quantized rows.
    pub fn tokens(&self) -> &DeviceBuffer<u8> {
        &self.tokens
    }

    /// The block scales, as the format lays them out:
    ///
    /// | format | shape |
    /// | --- | --- |
    /// | BF16 | none |
    /// | MXFP4, MXFP8 | `[output_rows, H / 32]`; with [slots](kernels_gpu::ep::slot_offset) `[groups, M, H / 32]` |
    /// | blockwise FP8 | `[H / 128, scale_stride]` f32: transposed |
    /// | NVFP4 | `[scale_tiles, ceil(H / 64), 32, 4, 4]`: [tiles](kernels_gpu::scale_tile) |
    pub fn scales(&self) -> &DeviceBuffer<u8> {
        &self.scales
    }

    /// `[groups + 1]`: where the rows of each group begin, and the end of all.
    pub fn row_offsets(&self) -> &DeviceBuffer<u32> {
        &self.row_offsets
    }

    /// `[groups]` for scales in tiles, otherwise empty: group `g` begins in tile
    /// `row_offsets[g] / 128 + scales_offsets[g]`.
    pub fn scales_offsets(&self) -> &DeviceBuffer<u32> {
        &self.scales_offsets
    }

    /// `[groups]`: the identity. Groups without rows keep their place.
    pub fn expert_ids(&self) -> &DeviceBuffer<i32> {
        &self.expert_ids
    }

    /// `[output_rows]`: for a routed row, its token on the source rank, and the position of the expert among the
    /// token's.
    pub fn src_info(&self) -> &DeviceBuffer<[i32; 2]> {
        &self.src_info
    }

    /// `[local experts, sources]`: 1024 plus the row behind the last from that source, and how many there are.
    pub fn pairs(&self) -> &DeviceBuffer<[u32; 2]> {
        &self.pairs
    }

    /// Waits for the device, and sets every byte of every buffer.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::fill`].
    pub fn fill(&mut self, byte: u8) -> Result<(), DeviceError> {
        self.tokens.fill(byte)?;
        self.scales.fill(byte)?;
        self.row_offsets.fill(byte)?;
        self.scales_offsets.fill(byte)?;
        self.expert_ids.fill(byte)?;
        self.src_info.fill(byte)?;
        self.pairs.fill(byte)
    }

    /// Its addresses, if it is for such a group.
    pub(super) fn bind(
        &mut self,
        device: &Device,
        config: &Arc<EpConfig>,
        rank: usize,
    ) -> Result<Output, EpError> {
        device.check_same("the output", self.tokens.device())?;
        if !Arc::ptr_eq(&self.config, config) && self.config != *config {
            return Err(EpError::OtherShape { rank });
        }
        Ok(Output {
            tokens: self.tokens.as_mut_ptr().cast(),
            scales: self.scales.as_mut_ptr(),
            row_offsets: self.row_offsets.as_mut_ptr(),
            scales_offsets: self.scales_offsets.as_mut_ptr(),
            expert_ids: self.expert_ids.as_mut_ptr(),
            src_info: self.src_info.as_mut_ptr().cast(),
            pairs: self.pairs.as_mut_ptr().cast(),
        })
    }
}

/// What one rank sent in one round, and has not received yet.
///
/// A name for it, which may be copied: the rank knows what it has sent, receives it once, and
/// [says again](super::EpRank::pending) what there is to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was sent must be received before the next round"]
pub struct Pending {
    pub(super) group: u64,
    pub(super) rank: usize,
    pub(super) round: u64,
}

impl Pending {
    /// The rank that sent.
    pub fn rank(&self) -> usize {
        self.rank
    }
}

/// A finished dispatch of one rank, as far as the stream has got: what [`Received`] holds belongs to it, until it
/// is combined or dropped.
#[derive(Debug)]
pub struct Dispatched<'r> {
    pub(super) received: &'r mut Received,
    pub(super) state: Arc<GroupState>,
    pub(super) rank: usize,
    pub(super) round: u64,
    pub(super) batch: BatchIdentity,
}

impl<'r> Dispatched<'r> {
    /// The rank that received.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The round, from 0.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// What it received.
    pub fn received(&self) -> &Received {
        self.received
    }
}

/// A finished fused dispatch of all ranks.
#[derive(Debug)]
pub struct GroupDispatched<'r> {
    pub(super) received: &'r mut [Received],
    pub(super) state: Arc<GroupState>,
    pub(super) round: u64,
    pub(super) batches: Vec<BatchIdentity>,
}

impl<'r> GroupDispatched<'r> {
    /// What each rank received.
    pub fn received(&self) -> &[Received] {
        self.received
    }

    /// The dispatch of each rank, in order.
    pub fn into_ranks(self) -> impl Iterator<Item = Dispatched<'r>> {
        let Self {
            received,
            state,
            round,
            batches,
        } = self;
        let numbers = state.local.clone();
        let ranks = numbers.zip(received.iter_mut().zip(batches));
        ranks.map(move |(rank, (received, batch))| Dispatched {
            received,
            state: Arc::clone(&state),
            rank,
            round,
            batch,
        })
    }
}
