//! What a group allocates.

use super::combine::argument_bytes;
use super::config::EpConfig;
use kernels_gpu::ep::{Counters, Rank, ScaleLayout, wait::Failure};
use kernels_gpu::scale_tile::{TILE_BLOCKS, TILE_ROWS};
use std::fmt;

/// A buffer of a [`MemoryPlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBuffer {
    /// What it is for, in a few words.
    pub name: &'static str,
    /// Extents, outermost first, in units of `element`.
    pub shape: Vec<u64>,
    /// Type of an element.
    pub element: &'static str,
    /// Bytes of all of it.
    pub bytes: u64,
}

impl PlannedBuffer {
    fn new(name: &'static str, element: &'static str, element_bytes: u64, shape: &[usize]) -> Self {
        let shape: Vec<u64> = shape.iter().map(|&extent| extent as u64).collect();
        Self {
            name,
            element,
            bytes: shape.iter().product::<u64>() * element_bytes,
            shape,
        }
    }
}

/// Every buffer that a group needs, before anything is allocated. Sizes are exact, in 64 bits.
///
/// ```
/// # use tokenyard::ep::{EpConfig, TokenFormat};
/// let config = EpConfig::builder(TokenFormat::Mxfp4)
///     .hidden_size(7168).top_k(8).experts(256).max_tokens_per_rank(128).ranks(8).build()?;
/// let plan = config.memory_plan();
/// assert_eq!(plan.per_rank[0].name, "messages");
/// assert_eq!(plan.per_rank[0].bytes, 8 * 128 * 3872); // 3.8 MiB
/// println!("{plan}");
/// # Ok::<(), tokenyard::ep::EpConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Ranks of the group.
    pub ranks: u64,
    /// What each rank has for as long as the group lives.
    pub per_rank: Vec<PlannedBuffer>,
    /// What the group has once.
    pub shared: Vec<PlannedBuffer>,
    /// What [`EpGroup::allocate_received`](super::EpGroup::allocate_received) allocates each time.
    pub received: Vec<PlannedBuffer>,
}

fn sum(buffers: &[PlannedBuffer]) -> u64 {
    buffers.iter().map(|buffer| buffer.bytes).sum()
}

impl MemoryPlan {
    pub(super) fn new(config: &EpConfig) -> Self {
        let message = config.message_layout().bytes as usize;
        let (capacity, ranks) = (config.max_tokens_per_rank(), config.ranks());
        let (experts, sources) = (config.local_experts(), config.sources());
        let bytes = |name, shape: &[usize]| PlannedBuffer::new(name, "u8", 1, shape);
        let words = |name, shape: &[usize]| PlannedBuffer::new(name, "u32", 4, shape);
        let longs = |name, shape: &[usize]| PlannedBuffer::new(name, "u64", 8, shape);

        let mut per_rank = vec![
            bytes("messages", &[sources, capacity, message]),
            longs("message counts", &[experts, sources]),
            words(
                "counters",
                &[Counters::words(config.pairs() as u32, sources as u32)],
            ),
        ];
        if config.format().scale_layout().is_shared_by_rows() {
            per_rank.push(words("message numbers", &[experts, sources, capacity]));
        }
        if config.ranks_per_node() < ranks {
            per_rank.push(bytes("send rows", &[capacity, message]));
        }
        let mut shared = vec![
            longs("addresses", &[ranks, 2]),
            words("failures", &[ranks, Failure::WORDS]),
            bytes("fused arguments", &[ranks, size_of::<Rank>()]),
        ];
        if let Some(format) = config.combine() {
            let row = format.row_bytes(config.hidden_size());
            per_rank.extend([
                bytes("returned rows", &[capacity, config.top_k(), row]),
                longs("return counts", &[experts, sources]),
                words("return counters", &[Counters::words(0, 0)]),
            ]);
            if config.ranks_per_node() < ranks {
                per_rank.push(bytes("return send rows", &[config.output_rows(), row]));
            }
            shared.extend([
                longs("return addresses", &[ranks, 2]),
                bytes("fused combine arguments", &[argument_bytes(ranks)]),
            ]);
        }

        let format = config.format();
        let (rows, groups) = (config.output_rows(), config.groups());
        let scales = format.scales_per_row(config.hidden_size());
        let mut received = vec![bytes(
            "tokens",
            &[rows, format.payload_bytes(config.hidden_size())],
        )];
        match (format.scale_layout(), config.scale_preshuffle()) {
            (ScaleLayout::None, _) => {}
            (ScaleLayout::Rows, None) => received.push(bytes("scales", &[rows, scales])),
            (ScaleLayout::Rows, Some(slot_rows)) => {
                received.push(bytes("scales", &[groups, slot_rows, scales]));
            }
            (ScaleLayout::Transposed, _) => received.push(PlannedBuffer::new(
                "scales",
                "f32",
                4,
                &[scales, config.scale_stride()],
            )),
            (ScaleLayout::Tiles, _) => {
                let (blocks, tile_rows) = (TILE_BLOCKS as usize, TILE_ROWS as usize);
                let shape = [
                    config.scale_tiles(),
                    scales.div_ceil(blocks),
                    tile_rows / blocks,
                    blocks,
                    blocks,
                ];
                received.push(bytes("scales", &shape));
                received.push(words("scales offsets", &[groups]));
            }
        }
        received.extend([
            words("row offsets", &[groups + 1]),
            PlannedBuffer::new("expert ids", "i32", 4, &[groups]),
            PlannedBuffer::new("source info", "i32", 4, &[rows, 2]),
            words("pairs", &[config.pairs(), 2]),
        ]);
        Self {
            ranks: ranks as u64,
            per_rank,
            shared,
            received,
        }
    }

    /// Bytes that one rank has for as long as the group lives.
    pub fn bytes_per_rank(&self) -> u64 {
        sum(&self.per_rank)
    }

    /// Bytes of the whole group, without what it receives into.
    pub fn bytes(&self) -> u64 {
        self.ranks * self.bytes_per_rank() + self.shared_bytes()
    }

    /// Bytes that the group has once.
    pub fn shared_bytes(&self) -> u64 {
        sum(&self.shared)
    }

    /// Bytes of one rank's output.
    pub fn received_bytes(&self) -> u64 {
        sum(&self.received)
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("each rank", &self.per_rank),
            ("the group", &self.shared),
            ("each output", &self.received),
        ];
        for (owner, buffers) in parts {
            writeln!(formatter, "{owner}: {} bytes", sum(buffers))?;
            for buffer in buffers {
                let PlannedBuffer {
                    name,
                    shape,
                    element,
                    bytes,
                } = buffer;
                writeln!(formatter, "  {name:<16} {bytes:>14}  {element} {shape:?}")?;
            }
        }
        write!(formatter, "{} ranks: {} bytes", self.ranks, self.bytes())
    }
}
