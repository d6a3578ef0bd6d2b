//! What can go wrong with a group.

use super::combine::{CombineFormat, RowElement};
use super::format::TokenFormat;
use crate::error::DeviceError;
use crate::options::ScaleRounding;
use crate::peer::PeerError;
use thiserror::Error;

/// Why there cannot be a group of this shape.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EpConfigError {
    /// An extent was not given, or is 0.
    #[error("{what} must be at least 1")]
    Zero {
        /// The extent.
        what: &'static str,
    },

    /// An extent is beyond what messages or kernels can express.
    #[error("{what} is {value}; the most there can be is {limit}")]
    TooLarge {
        /// The extent.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The most there can be.
        limit: usize,
    },

    /// Blocks of the format do not divide the hidden size, or a row is not whole vectors.
    #[error("hidden_size is {hidden_size}; {format} needs a multiple of {multiple}")]
    HiddenSize {
        /// The format.
        format: TokenFormat,
        /// The hidden size.
        hidden_size: usize,
        /// What it must be a multiple of.
        multiple: usize,
    },

    /// Blocks of the format that rows travel home in do not divide the hidden size.
    #[error("hidden_size is {hidden_size}; to combine as {format} takes a multiple of {multiple}")]
    CombineHiddenSize {
        /// The format.
        format: CombineFormat,
        /// The hidden size.
        hidden_size: usize,
        /// What it must be a multiple of.
        multiple: usize,
    },

    /// Every rank has the same number of experts.
    #[error("{experts} experts cannot be divided evenly among {ranks} ranks")]
    UnevenExperts {
        /// Experts.
        experts: usize,
        /// Ranks.
        ranks: usize,
    },

    /// Every node has the same number of ranks.
    #[error("{ranks} ranks cannot be divided into nodes of {ranks_per_node}")]
    UnevenNodes {
        /// Ranks.
        ranks: usize,
        /// Ranks of a node.
        ranks_per_node: usize,
    },

    /// Two messages under construction do not fit a block's shared memory.
    #[error(
        "a message takes {message_bytes} bytes; its senders would need {shared_bytes} bytes of shared memory, and there are {limit}"
    )]
    MessageTooLarge {
        /// Bytes of a message.
        message_bytes: u32,
        /// Shared memory that a block needs.
        shared_bytes: usize,
        /// Shared memory that a block can have.
        limit: usize,
    },

    /// Nothing is exchanged in skip mode, so there are no nodes to exchange it between.
    #[error("skip_a2a is for one node; {ranks} ranks with {ranks_per_node} in a node are several")]
    SkipAcrossNodes {
        /// Ranks.
        ranks: usize,
        /// Ranks of a node.
        ranks_per_node: usize,
    },

    /// Some rank would be outside the all-reduce.
    #[error("allreduce_world_size is {world}, less than the {ranks} ranks")]
    AllreduceWorld {
        /// Ranks of the all-reduce.
        world: usize,
        /// Ranks of the group.
        ranks: usize,
    },

    /// The format's scales are not powers of two.
    #[error("scale rounding {rounding} is for power-of-two scales; {format} has none")]
    ScaleRounding {
        /// The format.
        format: TokenFormat,
        /// The rounding asked for.
        rounding: ScaleRounding,
    },

    /// The format's scales are not bytes for 32 elements.
    #[error("the slot layout is for scales of the MX formats, not those of {format}")]
    PreshuffleFormat {
        /// The format.
        format: TokenFormat,
    },

    /// The slot layout goes by eight scales of 32 elements.
    #[error("hidden_size is {hidden_size}; the slot layout needs a multiple of 256")]
    PreshuffleHidden {
        /// The hidden size.
        hidden_size: usize,
    },

    /// A slot does not have bands of 32 rows, or not enough for the most rows that an expert can get.
    #[error(
        "max_padded_m is {slot_rows}; it must be a multiple of 32 and hold the {needed} rows that one expert can get"
    )]
    PreshuffleRows {
        /// Rows of a slot.
        slot_rows: usize,
        /// Rows that one expert can get.
        needed: usize,
    },
}

/// What a rank waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// The number of messages from `rank` for `expert`, a local expert of the one that waits.
    Count {
        /// The rank that did not send.
        rank: usize,
        /// The expert, by its global number.
        expert: usize,
        /// Index of the count among those of the rank that waits.
        word: usize,
    },
    /// The layout of the rows, from another block of the same rank.
    Offsets,
    /// In a combine: the rows that `expert` of `rank` made for the one that waits.
    Returned {
        /// The rank that did not send them home.
        rank: usize,
        /// The expert, by its global number.
        expert: usize,
        /// Index of the count among those of the rank that waits.
        word: usize,
    },
    /// In a combine: the block that waits for all rows, of the same rank.
    Returns,
    /// That `rank`, which another host orders, has received the round before, or combined it.
    Receipt {
        /// The rank that did not receive.
        rank: usize,
    },
}

impl Awaited {
    /// The rank that was waited for, if it was another one.
    pub fn rank(&self) -> Option<usize> {
        match *self {
            Self::Count { rank, .. } | Self::Returned { rank, .. } | Self::Receipt { rank } => {
                Some(rank)
            }
            Self::Offsets | Self::Returns => None,
        }
    }
}

impl std::fmt::Display for Awaited {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count { rank, expert, word } => write!(
                formatter,
                "rank {rank} to say how many tokens it sends to expert {expert} (count {word})"
            ),
            Self::Offsets => formatter.write_str("the block that lays out its rows"),
            Self::Returned { rank, expert, word } => write!(
                formatter,
                "rank {rank} to send home what expert {expert} made (combine count {word})"
            ),
            Self::Returns => formatter.write_str("the block that waits for its rows to come home"),
            Self::Receipt { rank } => {
                write!(formatter, "rank {rank} to receive the round before")
            }
        }
    }
}

/// Why an operation of a group failed.
///
/// A refusal comes before anything is queued, and leaves group, rounds and outputs as they were. Three are no
/// refusals: [`Device`](Self::Device), when the driver fails, which may be after part of a call's work was queued;
/// [`Deadline`](Self::Deadline), which is found when the work is done, and when the ranks that did not give up have
/// written their outputs; and [`Unusable`](Self::Unusable), which repeats what happened earlier.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EpError {
    /// The device failed, or something lives on another one.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// There is no group of this shape.
    #[error(transparent)]
    Config(#[from] EpConfigError),

    /// More tokens than the group was made for.
    #[error("rank {rank} has {tokens} tokens; the group was made for {capacity}")]
    TooManyTokens {
        /// The rank.
        rank: usize,
        /// Its tokens.
        tokens: usize,
        /// Tokens that a rank can have.
        capacity: usize,
    },

    /// An input does not have the length that the shape and the other inputs lead to.
    #[error("rank {rank}: {operand} holds {found} values, expected {expected}")]
    InputLength {
        /// The rank.
        rank: usize,
        /// The input.
        operand: &'static str,
        /// Values it holds.
        found: usize,
        /// Values that it should hold.
        expected: usize,
    },

    /// NVFP4 needs the factor of the whole tensor, and no other format has one.
    #[error("rank {rank}: an input scale was {}; the format is {format}", if *given { "given" } else { "not given" })]
    InputScale {
        /// The rank.
        rank: usize,
        /// Whether there was one.
        given: bool,
        /// The format.
        format: TokenFormat,
    },

    /// An output was allocated for a group of another shape.
    #[error("rank {rank}: the output was allocated for a group of another shape")]
    OtherShape {
        /// The rank.
        rank: usize,
    },

    /// A fused operation takes one input and one output for each rank.
    #[error("a fused dispatch of {ranks} ranks got {batches} inputs and {received} outputs")]
    RankCount {
        /// Ranks of the group.
        ranks: usize,
        /// Inputs given.
        batches: usize,
        /// Outputs given.
        received: usize,
    },

    /// What was sent belongs to another rank or group.
    #[error("rank {rank} cannot receive what rank {sender} of {group} group sent", group = if *same_group { "this" } else { "another" })]
    ForeignHandle {
        /// The rank asked to receive.
        rank: usize,
        /// The rank that sent.
        sender: usize,
        /// Whether it is of the same group.
        same_group: bool,
    },

    /// What was sent in that round was received, or its sending was recorded for a graph that was never made.
    #[error("rank {rank} has nothing of round {round} to receive")]
    NotPending {
        /// The rank asked to receive.
        rank: usize,
        /// The round, from 0.
        round: u64,
    },

    /// A rank would overwrite what another has not received.
    #[error("rank {rank} cannot begin round {round}: rank {other} has not received round {behind}")]
    RoundOrder {
        /// The rank that wants to send.
        rank: usize,
        /// The round it would begin, from 0.
        round: u64,
        /// A rank that is behind.
        other: usize,
        /// The round that it has not received.
        behind: u64,
    },

    /// The group was made without [`EpConfigBuilder::combine`](super::EpConfigBuilder::combine).
    #[error("this group was not made to combine; EpConfigBuilder::combine says as what")]
    CombineNotConfigured,

    /// What is combined has one element type, which the format decides.
    #[error("rank {rank}: {operand} are {found}; this group combines {expected}")]
    CombineElement {
        /// The rank.
        rank: usize,
        /// The operand.
        operand: &'static str,
        /// Its element type.
        found: RowElement,
        /// That of the group.
        expected: RowElement,
    },

    /// Which of a token's rows come home, only the ids that were dispatched say.
    #[error("rank {rank}: the batch to combine is not the one that was dispatched")]
    OtherBatch {
        /// The rank.
        rank: usize,
    },

    /// What the shared expert made is added to a weighted sum, and there is none.
    #[error("rank {rank}: with a shared expert, combine takes router weights")]
    SharedExpertNeedsWeights {
        /// The rank.
        rank: usize,
    },

    /// A fused combine takes one operand of each kind for each rank.
    #[error(
        "a fused combine of {ranks} ranks got {outputs} expert outputs, {batches} batches and {targets} targets"
    )]
    CombineCount {
        /// Ranks of the group.
        ranks: usize,
        /// Expert outputs given.
        outputs: usize,
        /// Batches given.
        batches: usize,
        /// Targets given.
        targets: usize,
    },

    /// A rank would overwrite rows that another has not combined.
    #[error(
        "rank {rank} cannot send rows home for the combine after {combines} others: rank {other} has waited for {behind}"
    )]
    CombineOrder {
        /// The rank that wants to send.
        rank: usize,
        /// Combines that it has sent.
        combines: u64,
        /// A rank that is behind.
        other: usize,
        /// Combines that this one has waited for.
        behind: u64,
    },

    /// All ranks combine the same rounds.
    #[error("rank {rank} cannot combine round {round}: other ranks combine round {expected} now")]
    CombineRound {
        /// The rank.
        rank: usize,
        /// The round of its dispatch.
        round: u64,
        /// The round that others combine.
        expected: u64,
    },

    /// There is no such rank to go on without, or there are too many for that.
    #[error(
        "rank {rank} of {ranks} cannot be masked; a group of up to {limit} ranks can go on without one of them"
    )]
    RankMask {
        /// The rank.
        rank: usize,
        /// Ranks of the group.
        ranks: usize,
        /// The most ranks that a group with a mask has.
        limit: usize,
    },

    /// The group goes on without the rank.
    #[error("rank {rank} takes no part any more: the group goes on without it")]
    MaskedRank {
        /// The rank.
        rank: usize,
    },

    /// The split operations have no output to put the shared expert's rows in when they send.
    #[error(
        "only the fused dispatch has a shared expert; this group was made with fused_shared_expert"
    )]
    SharedExpertNeedsFused,

    /// Blocks that wait for each other must all be resident.
    #[error(
        "{ranks} ranks of {blocks_per_rank} blocks wait for each other; the device holds {resident} blocks at a time"
    )]
    NotResident {
        /// Ranks of the group.
        ranks: usize,
        /// Blocks of each.
        blocks_per_rank: u32,
        /// Blocks that the device holds.
        resident: u32,
    },

    /// A block must be whole warps, up to the limit that the kernels state, and a rank has a limited number of them.
    #[error(
        "a launch of {blocks_per_rank} blocks of {threads} threads; threads are a multiple of 32 up to {limit}, and there are 1 to {block_limit} blocks"
    )]
    LaunchShape {
        /// Blocks of each rank.
        blocks_per_rank: u32,
        /// Threads of a block.
        threads: u32,
        /// The most threads.
        limit: u32,
        /// The most blocks of a rank.
        block_limit: u32,
    },

    /// A rank waited longer than the deadline and gave up. The group cannot be used any more.
    #[error(
        "rank {waiting} gave up after waiting for {awaited}; the group cannot be used any more"
    )]
    Deadline {
        /// The rank that waited.
        waiting: usize,
        /// What it waited for.
        awaited: Awaited,
    },

    /// As [`Deadline`](Self::Deadline), and the process of a rank is gone.
    #[error(
        "rank {waiting} gave up after waiting for {awaited}; the process of rank {rank} is gone"
    )]
    PeerGone {
        /// The rank that waited.
        waiting: usize,
        /// What it waited for.
        awaited: Awaited,
        /// The rank whose process ended, or left the group.
        rank: usize,
    },

    /// The processes of the group did not come together, or one of them is gone.
    #[error(transparent)]
    Peer(#[from] PeerError),

    /// One process is one rank of the group.
    #[error("{processes} processes met for a group of {ranks} ranks")]
    ProcessCount {
        /// Processes.
        processes: usize,
        /// Ranks of the group.
        ranks: usize,
    },

    /// Every device has the same number of ranks, at least one.
    #[error("{ranks} ranks cannot be divided evenly among {devices} devices")]
    UnevenDevices {
        /// Ranks of the group.
        ranks: usize,
        /// Devices.
        devices: usize,
    },

    /// An earlier failure left the group in an unknown state. Make a new one.
    #[error("the group cannot be used any more: {reason}")]
    Unusable {
        /// The failure.
        reason: String,
    },
}
