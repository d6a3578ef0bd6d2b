//! What all ranks of a group agree on.

use super::combine::CombineFormat;
use super::error::EpConfigError;
use super::format::TokenFormat;
use super::plan::MemoryPlan;
use crate::options::ScaleRounding;
use crate::routing::max_tiles;
use kernels_gpu::ep::{
    Fault, MAX_EXPERTS, MAX_TOP_K, MessageLayout, PAIR_BIAS, ScaleLayout, Shape, shared_bytes,
};
use kernels_gpu::formats::{self, Rules};
use std::time::Duration;

/// Shared memory that a block can have on the devices with the most, in bytes.
const MAX_SHARED_BYTES: usize = 227 << 10;

/// How long a wait may take unless the builder is told otherwise.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

/// In which order the messages from one rank for one expert lie, and so the rows that they become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlotOrder {
    /// As they were sent: fastest, and another order on every run.
    #[default]
    Arrival,
    /// As the tokens are: the same bytes on every run. Each sender counts its way through the ids.
    Deterministic,
}

/// The shape of an expert-parallel group, checked.
///
/// ```
/// use tokenyard::ep::{EpConfig, TokenFormat};
///
/// let config = EpConfig::builder(TokenFormat::Mxfp4)
///     .hidden_size(7168)
///     .top_k(8)
///     .experts(256)
///     .max_tokens_per_rank(128)
///     .ranks(8)
///     .build()?;
/// assert_eq!(config.message_layout().bytes, 3872);
/// assert_eq!(config.max_received_rows(), 128 * 64);
/// # Ok::<(), tokenyard::ep::EpConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpConfig {
    choices: EpConfigBuilder,
    message: MessageLayout,
}

/// Makes an [`EpConfig`]; see [`EpConfig::builder`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct EpConfigBuilder {
    format: TokenFormat,
    hidden_size: usize,
    top_k: usize,
    experts: usize,
    max_tokens_per_rank: usize,
    ranks: usize,
    ranks_per_node: Option<usize>,
    fused_shared_expert: bool,
    skip_a2a: bool,
    allreduce_world_size: Option<usize>,
    scale_preshuffle: Option<usize>,
    scale_rounding: Option<ScaleRounding>,
    slot_order: SlotOrder,
    deadline: Option<Duration>,
    combine: Option<CombineFormat>,
    #[cfg(feature = "fault-injection")]
    faults: u32,
}

impl EpConfigBuilder {
    /// H: elements of a token. A multiple of [`TokenFormat::hidden_multiple`].
    pub fn hidden_size(mut self, hidden_size: usize) -> Self {
        self.hidden_size = hidden_size;
        self
    }

    /// K: experts of a token, 1 to 32.
    pub fn top_k(mut self, top_k: usize) -> Self {
        self.top_k = top_k;
        self
    }

    /// E: experts of all ranks together, up to 65536; a multiple of the ranks.
    pub fn experts(mut self, experts: usize) -> Self {
        self.experts = experts;
        self
    }

    /// C: tokens that a rank can dispatch at once. It sizes every buffer.
    pub fn max_tokens_per_rank(mut self, tokens: usize) -> Self {
        self.max_tokens_per_rank = tokens;
        self
    }

    /// R: ranks of the group. 1 unless told.
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    /// G: ranks that can write into each other's memory; a divisor of R. All of them unless told.
    pub fn ranks_per_node(mut self, ranks: usize) -> Self {
        self.ranks_per_node = Some(ranks);
        self
    }

    /// Whether a rank's own tokens are group 0 of what it gets. Only the fused operation does that.
    pub fn fused_shared_expert(mut self, on: bool) -> Self {
        self.fused_shared_expert = on;
        self
    }

    /// Whether nothing is exchanged: every rank has the same tokens and keeps what is for its own experts.
    pub fn skip_a2a(mut self, on: bool) -> Self {
        self.skip_a2a = on;
        self
    }

    /// W: ranks among which the shared expert's tokens are divided in skip mode. R unless told; without skip mode
    /// or shared expert it has no meaning.
    pub fn allreduce_world_size(mut self, ranks: usize) -> Self {
        self.allreduce_world_size = Some(ranks);
        self
    }

    /// Lays the scales out in slots of `max_padded_m` rows for each group, as
    /// [`slot_offset`](kernels_gpu::ep::slot_offset) says. MX formats only.
    pub fn scale_preshuffle(mut self, max_padded_m: usize) -> Self {
        self.scale_preshuffle = Some(max_padded_m);
        self
    }

    /// How the scales of the MX formats are rounded: [`ScaleRounding::Even`] for MXFP4 and
    /// [`ScaleRounding::Rceil`] for MXFP8 unless told.
    pub fn scale_rounding(mut self, rounding: ScaleRounding) -> Self {
        self.scale_rounding = Some(rounding);
        self
    }

    /// The order of what one rank sends for one expert.
    pub fn slot_order(mut self, order: SlotOrder) -> Self {
        self.slot_order = order;
        self
    }

    /// How long a rank waits for another before it gives up; `None` for ever. 10 s unless told.
    pub fn deadline(mut self, deadline: Option<Duration>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Lets the group combine: what experts make of the rows travels home as `format`. Without it there are no
    /// buffers for that.
    pub fn combine(mut self, format: CombineFormat) -> Self {
        self.combine = Some(format);
        self
    }

    /// Plants a fault, so that a test can see that it would be found. In the emulator: the kernels for a GPU have
    /// no faults to plant.
    #[cfg(feature = "fault-injection")]
    pub fn plant(mut self, fault: Fault) -> Self {
        self.faults |= fault as u32;
        self
    }

    /// Checks everything that does not depend on a device.
    ///
    /// # Errors
    ///
    /// The first thing that cannot be, with its numbers.
    pub fn build(self) -> Result<EpConfig, EpConfigError> {
        let at_least_one = [
            ("hidden_size", self.hidden_size),
            ("top_k", self.top_k),
            ("experts", self.experts),
            ("max_tokens_per_rank", self.max_tokens_per_rank),
            ("ranks", self.ranks),
            ("ranks_per_node", self.ranks_per_node.unwrap_or(1)),
            (
                "allreduce_world_size",
                self.allreduce_world_size.unwrap_or(1),
            ),
        ];
        for (what, value) in at_least_one {
            if value == 0 {
                return Err(EpConfigError::Zero { what });
            }
        }
        let at_most = [
            ("top_k", self.top_k, MAX_TOP_K as usize),
            ("experts", self.experts, MAX_EXPERTS as usize),
            ("hidden_size", self.hidden_size, MAX_SHARED_BYTES),
            (
                "max_tokens_per_rank",
                self.max_tokens_per_rank,
                i32::MAX as usize,
            ),
            (
                "allreduce_world_size",
                self.allreduce_world_size.unwrap_or(1),
                i32::MAX as usize,
            ),
        ];
        for (what, value, limit) in at_most {
            if value > limit {
                return Err(EpConfigError::TooLarge { what, value, limit });
            }
        }
        let multiple = self.format.hidden_multiple();
        if !self.hidden_size.is_multiple_of(multiple) {
            return Err(EpConfigError::HiddenSize {
                format: self.format,
                hidden_size: self.hidden_size,
                multiple,
            });
        }
        if !self.experts.is_multiple_of(self.ranks) {
            return Err(EpConfigError::UnevenExperts {
                experts: self.experts,
                ranks: self.ranks,
            });
        }
        let message = self
            .format
            .wire()
            .message(self.hidden_size as u32, self.top_k as u32);
        let shared = shared_bytes(&message);
        if shared > MAX_SHARED_BYTES {
            return Err(EpConfigError::MessageTooLarge {
                message_bytes: message.bytes,
                shared_bytes: shared,
                limit: MAX_SHARED_BYTES,
            });
        }
        self.check_nodes()?;
        self.check_scales()?;
        self.check_combine()?;

        let config = EpConfig {
            choices: self,
            message,
        };
        // Rows are counted in 31 bits, messages are no more than rows, and what does not fit the address space cannot be
        // allocated.
        let limit = (i32::MAX as u32 - PAIR_BIAS) as usize;
        let rows = config.checked_rows().unwrap_or(usize::MAX);
        if rows > limit {
            return Err(EpConfigError::TooLarge {
                what: "received rows",
                value: rows,
                limit,
            });
        }
        let plan = config.memory_plan();
        let limit = isize::MAX as u64 / plan.ranks;
        if plan.bytes_per_rank() + plan.shared_bytes() / plan.ranks >= limit {
            return Err(EpConfigError::TooLarge {
                what: "bytes of a rank",
                value: plan.bytes_per_rank() as usize,
                limit: limit as usize,
            });
        }
        Ok(config)
    }

    fn check_nodes(&self) -> Result<(), EpConfigError> {
        let ranks_per_node = self.ranks_per_node.unwrap_or(self.ranks);
        if !self.ranks.is_multiple_of(ranks_per_node) {
            return Err(EpConfigError::UnevenNodes {
                ranks: self.ranks,
                ranks_per_node,
            });
        }
        if self.skip_a2a && ranks_per_node != self.ranks {
            return Err(EpConfigError::SkipAcrossNodes {
                ranks: self.ranks,
                ranks_per_node,
            });
        }
        match self.allreduce_world_size {
            Some(world) if self.skip_a2a && world < self.ranks => {
                Err(EpConfigError::AllreduceWorld {
                    world,
                    ranks: self.ranks,
                })
            }
            _ => Ok(()),
        }
    }

    fn check_combine(&self) -> Result<(), EpConfigError> {
        let Some(format) = self.combine else {
            return Ok(());
        };
        let multiple = format.hidden_multiple();
        if !self.hidden_size.is_multiple_of(multiple) {
            return Err(EpConfigError::CombineHiddenSize {
                format,
                hidden_size: self.hidden_size,
                multiple,
            });
        }
        let shared = format.shared_bytes(self.hidden_size as u32);
        if shared > MAX_SHARED_BYTES {
            return Err(EpConfigError::MessageTooLarge {
                message_bytes: format.row_bytes(self.hidden_size) as u32,
                shared_bytes: shared,
                limit: MAX_SHARED_BYTES,
            });
        }
        Ok(())
    }

    fn check_scales(&self) -> Result<(), EpConfigError> {
        if let Some(rounding) = self.scale_rounding
            && !self.format.is_mx()
        {
            return Err(EpConfigError::ScaleRounding {
                format: self.format,
                rounding,
            });
        }
        let Some(slot_rows) = self.scale_preshuffle else {
            return Ok(());
        };
        let sources = if self.skip_a2a { 1 } else { self.ranks };
        let needed = self.max_tokens_per_rank.saturating_mul(sources);
        if !self.format.is_mx() {
            return Err(EpConfigError::PreshuffleFormat {
                format: self.format,
            });
        }
        if !self.hidden_size.is_multiple_of(256) {
            return Err(EpConfigError::PreshuffleHidden {
                hidden_size: self.hidden_size,
            });
        }
        if slot_rows == 0
            || !slot_rows.is_multiple_of(32)
            || slot_rows < needed
            || slot_rows > i32::MAX as usize
        {
            return Err(EpConfigError::PreshuffleRows { slot_rows, needed });
        }
        Ok(())
    }
}

impl EpConfig {
    /// A configuration for tokens that travel as `format`. Sizes are 0 until told.
    pub fn builder(format: TokenFormat) -> EpConfigBuilder {
        EpConfigBuilder {
            format,
            hidden_size: 0,
            top_k: 0,
            experts: 0,
            max_tokens_per_rank: 0,
            ranks: 1,
            ranks_per_node: None,
            fused_shared_expert: false,
            skip_a2a: false,
            allreduce_world_size: None,
            scale_preshuffle: None,
            scale_rounding: None,
            slot_order: SlotOrder::default(),
            deadline: Some(DEFAULT_DEADLINE),
            combine: None,
            #[cfg(feature = "fault-injection")]
            faults: 0,
        }
    }

    /// What tokens travel as.
    pub fn format(&self) -> TokenFormat {
        self.choices.format
    }

    /// H.
    pub fn hidden_size(&self) -> usize {
        self.choices.hidden_size
    }

    /// K.
    pub fn top_k(&self) -> usize {
        self.choices.top_k
    }

    /// E, of all ranks.
    pub fn experts(&self) -> usize {
        self.choices.experts
    }

    /// nl = E / R: experts of one rank.
    pub fn local_experts(&self) -> usize {
        self.choices.experts / self.choices.ranks
    }

    /// C.
    pub fn max_tokens_per_rank(&self) -> usize {
        self.choices.max_tokens_per_rank
    }

    /// R.
    pub fn ranks(&self) -> usize {
        self.choices.ranks
    }

    /// G.
    pub fn ranks_per_node(&self) -> usize {
        self.choices.ranks_per_node.unwrap_or(self.choices.ranks)
    }

    /// Whether a rank's own tokens are group 0 of what it gets.
    pub fn fused_shared_expert(&self) -> bool {
        self.choices.fused_shared_expert
    }

    /// Whether nothing is exchanged.
    pub fn skip_a2a(&self) -> bool {
        self.choices.skip_a2a
    }

    /// W.
    pub fn allreduce_world_size(&self) -> usize {
        let choices = &self.choices;
        choices.allreduce_world_size.unwrap_or(choices.ranks)
    }

    /// M, if the scales are laid out in slots.
    pub fn scale_preshuffle(&self) -> Option<usize> {
        self.choices.scale_preshuffle
    }

    /// How scales are rounded, where the format has a choice.
    pub fn scale_rounding(&self) -> Option<ScaleRounding> {
        let default = match self.format() {
            TokenFormat::Mxfp4 => ScaleRounding::Even,
            TokenFormat::Mxfp8 => ScaleRounding::Rceil,
            _ => return None,
        };
        Some(self.choices.scale_rounding.unwrap_or(default))
    }

    /// The order of what one rank sends for one expert.
    pub fn slot_order(&self) -> SlotOrder {
        self.choices.slot_order
    }

    /// How long a rank waits for another.
    pub fn deadline(&self) -> Option<Duration> {
        self.choices.deadline
    }

    /// What rows travel home as, if the group combines.
    pub fn combine(&self) -> Option<CombineFormat> {
        self.choices.combine
    }

    /// Where the parts of a message lie.
    pub fn message_layout(&self) -> MessageLayout {
        self.message
    }

    /// Bytes of the messages that a rank has room for: `[sources, C]`.
    pub(super) fn message_bytes(&self) -> usize {
        let message = self.message_layout().bytes as usize;
        self.sources() * self.max_tokens_per_rank() * message
    }

    /// Bytes of what a rank receives into: its messages, and behind them, where scales are shared by rows, the number
    /// of the message for each slot of each pair.
    pub(super) fn receive_bytes(&self) -> usize {
        let numbers = match self.format().scale_layout().is_shared_by_rows() {
            true => self.pairs() * self.max_tokens_per_rank() * size_of::<u32>(),
            false => 0,
        };
        self.message_bytes() + numbers
    }

    /// ng: groups of rows that a rank gets: one for each local expert, after that of the shared expert.
    pub fn groups(&self) -> usize {
        self.local_experts() + usize::from(self.fused_shared_expert())
    }

    /// Ranks that send to a rank: R, or 1 in skip mode.
    pub fn sources(&self) -> usize {
        if self.skip_a2a() { 1 } else { self.ranks() }
    }

    /// Pairs of a local expert and a source rank, numbered `expert * sources + source`.
    pub fn pairs(&self) -> usize {
        self.local_experts() * self.sources()
    }

    /// Rows that a rank can get: `C * min(E, R * K)`, or in skip mode `C * min(nl, K)`, and C for the shared
    /// expert.
    pub fn max_received_rows(&self) -> usize {
        let copies = self.pairs().min(self.sources() * self.top_k());
        self.max_tokens_per_rank() * (copies + usize::from(self.fused_shared_expert()))
    }

    /// Rows of the tokens tensor: [`max_received_rows`](Self::max_received_rows), and for formats whose groups
    /// are rounded up the most that this can add.
    pub fn output_rows(&self) -> usize {
        let multiple = match self.faults() & Fault::OutputsWithoutPadding as u32 {
            0 => self.format().scale_layout().row_multiple() as usize,
            _ => 1,
        };
        self.max_received_rows() + (multiple - 1) * self.groups()
    }

    /// Planted faults, as bits.
    fn faults(&self) -> u32 {
        #[cfg(feature = "fault-injection")]
        return self.choices.faults;
        #[cfg(not(feature = "fault-injection"))]
        0
    }

    fn checked_rows(&self) -> Option<usize> {
        let copies = self.pairs().min(self.sources().checked_mul(self.top_k())?);
        let copies = copies.checked_add(usize::from(self.fused_shared_expert()))?;
        let rows = self.max_tokens_per_rank().checked_mul(copies)?;
        rows.checked_add(4 * self.groups())
    }

    /// Rows that transposed scales have room for: a multiple of 4.
    pub fn scale_stride(&self) -> usize {
        self.output_rows().next_multiple_of(4)
    }

    /// Row tiles that scales in tiles have room for.
    pub fn scale_tiles(&self) -> usize {
        max_tiles(self.max_received_rows(), self.groups())
    }

    /// Bytes of the scales tensor.
    pub fn scale_bytes(&self) -> usize {
        let scales = self.format().scales_per_row(self.hidden_size());
        match (self.format().scale_layout(), self.scale_preshuffle()) {
            (ScaleLayout::None, _) => 0,
            (ScaleLayout::Rows, Some(slot_rows)) => self.groups() * slot_rows * scales,
            (ScaleLayout::Rows, None) => self.output_rows() * scales,
            (ScaleLayout::Transposed, _) => scales * self.scale_stride() * size_of::<f32>(),
            (ScaleLayout::Tiles, _) => {
                self.scale_tiles() * scales.div_ceil(4) * kernels_gpu::scale_tile::TILE_BYTES
            }
        }
    }

    /// Every buffer, with its size.
    pub fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan::new(self)
    }

    /// What ranks of different processes must have chosen alike, by name.
    pub(super) fn agreement(&self) -> Vec<(String, String)> {
        // All choices, so that a new one cannot be forgotten. How long a rank waits is its own affair.
        let EpConfigBuilder {
            format,
            hidden_size,
            top_k,
            experts,
            max_tokens_per_rank,
            ranks,
            ranks_per_node: _,
            combine,
            fused_shared_expert,
            skip_a2a,
            allreduce_world_size: _,
            scale_preshuffle,
            scale_rounding: _,
            slot_order,
            deadline: _,
            #[cfg(feature = "fault-injection")]
                faults: _,
        } = &self.choices;
        let items: [(&str, &dyn std::fmt::Debug); 14] = [
            ("format", format),
            ("combine", combine),
            ("hidden_size", hidden_size),
            ("top_k", top_k),
            ("experts", experts),
            ("max_tokens_per_rank", max_tokens_per_rank),
            ("ranks", ranks),
            ("ranks_per_node", &self.ranks_per_node()),
            ("fused_shared_expert", fused_shared_expert),
            ("skip_a2a", skip_a2a),
            ("allreduce_world_size", &self.allreduce_world_size()),
            ("scale_preshuffle", scale_preshuffle),
            ("scale_rounding", &self.scale_rounding()),
            ("slot_order", slot_order),
        ];
        items
            .map(|(item, value)| (item.to_owned(), format!("{value:?}")))
            .to_vec()
    }

    /// The shape, as kernels take it.
    pub(super) fn shape(&self) -> Shape {
        let flag = |on: bool, flag| if on { flag } else { 0 };
        let rounding = match self.scale_rounding().unwrap_or_default() {
            ScaleRounding::Rceil => formats::ScaleRounding::Rceil,
            ScaleRounding::Floor => formats::ScaleRounding::Floor,
            ScaleRounding::Even => formats::ScaleRounding::Even,
        };
        let rules = Rules::new(
            rounding,
            formats::DeadBlocks::Hardened,
            formats::NanPolicy::Ignore,
        );
        Shape {
            hidden: self.hidden_size() as u32,
            top_k: self.top_k() as u32,
            experts: self.experts() as u32,
            local_experts: self.local_experts() as u32,
            ranks: self.ranks() as u32,
            ranks_per_node: self.ranks_per_node() as u32,
            capacity: self.max_tokens_per_rank() as u32,
            rules: rules.bits(),
            flags: self.faults()
                | flag(self.fused_shared_expert(), Shape::SHARED_EXPERT)
                | flag(self.skip_a2a(), Shape::SKIP_A2A)
                | flag(
                    self.slot_order() == SlotOrder::Deterministic,
                    Shape::DETERMINISTIC,
                ),
            slot_rows: self.scale_preshuffle().unwrap_or(0) as u32,
            scale_stride: self.scale_stride() as u32,
            allreduce_world: self.allreduce_world_size() as u32,
            masked: 0,
            deadline_ns: self.deadline().map_or(0, |deadline| {
                // A kernel takes 0 for "none", and doubles it for some waits.
                let longest = u128::from(u64::MAX / 4);
                deadline.as_nanos().clamp(1, longest) as u64
            }),
        }
    }
}
