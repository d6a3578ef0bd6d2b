//! What the entries are given: the shape that all ranks share, and the memory of one rank.
//!
//! | symbol | here | |
//! | --- | --- | --- |
//! | E, R, G | [`Shape::experts`], `ranks`, `ranks_per_node` | expert `g` lives on rank `g / nl` as local expert `g % nl` |
//! | nl | [`Shape::local_experts`] | E / R |
//! | K, H, C | `top_k`, `hidden`, `capacity` | |
//! | T | [`Rank::token_count`], [`Rank::token_limit`] | at most C |
//! | S | [`Shape::shared_rows`] | rows of the shared expert |

use super::message::{MAX_TOP_K, MessageLayout};
use super::wait::Published;
use core::mem::offset_of;
use core::simd::{u32x2, u32x4};
use cuda_std::atomic::scoped::{Atomic, Device, Global};
use cuda_std::view::{IndirectView, IndirectViewMut};

/// A receive count that has not arrived.
pub const NOT_ARRIVED: u64 = u64::MAX;

/// What [`Output::pairs`] adds to row numbers, so that an entry which was written is never 0.
pub const PAIR_BIAS: u32 = 1024;

/// Quotient and remainder by an extent, which the host never makes 0. The compiler does not know that, and would
/// put a panic into the kernel: it is 0 by 0 here.
#[inline(always)]
pub(super) const fn quotient(value: u32, extent: u32) -> (u32, u32) {
    match (value.checked_div(extent), value.checked_rem(extent)) {
        (Some(quotient), Some(remainder)) => (quotient, remainder),
        _ => (0, 0),
    }
}

/// What all ranks have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// H, elements of a token.
    pub hidden: u32,
    /// K, experts of a token, at most [`MAX_TOP_K`].
    pub top_k: u32,
    /// E, experts of all ranks.
    pub experts: u32,
    /// nl, experts of one rank.
    pub local_experts: u32,
    /// R.
    pub ranks: u32,
    /// G: ranks that write into each other's memory.
    pub ranks_per_node: u32,
    /// C, tokens of a rank at the most.
    pub capacity: u32,
    /// [`Rules::bits`](crate::formats::Rules::bits), for the formats that have a choice.
    pub rules: u32,
    /// [`Self::SHARED_EXPERT`] and the other flags.
    pub flags: u32,
    /// M, rows that the slot layout of the scales has for each group; 0 for rows of scales.
    pub slot_rows: u32,
    /// Rows that transposed scales have room for.
    pub scale_stride: u32,
    /// W: ranks among which the rows of the shared expert are divided in skip mode.
    pub allreduce_world: u32,
    /// How long a wait may take; 0 for ever.
    pub deadline_ns: u64,
    /// Bit `r`: rank `r`, one of the first [`MASKED_RANKS`](Self::MASKED_RANKS), takes no part. Nobody sends to it or
    /// waits for it, and its experts are nobody.
    pub masked: u64,
}

impl Shape {
    /// The rank's own tokens are group 0 of what it gets.
    pub const SHARED_EXPERT: u32 = 1;
    /// Nothing is exchanged: a rank keeps what is for its own experts.
    pub const SKIP_A2A: u32 = 2;
    /// Slots follow the order of the tokens, on every run.
    pub const DETERMINISTIC: u32 = 4;
    /// Ranks order their rounds themselves, by [receipts](super::receipt).
    pub const RECEIPTS: u32 = 1 << 8;

    /// Ranks that [`masked`](Self::masked) has bits for.
    pub const MASKED_RANKS: u32 = 64;

    /// Whether a rank takes no part.
    #[inline(always)]
    pub const fn is_masked(&self, rank: u32) -> bool {
        self.masked >> (rank % Self::MASKED_RANKS) & 1 != 0
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Ranks that send to a rank: all, or itself alone.
    #[inline(always)]
    pub const fn sources(&self) -> u32 {
        if self.has(Self::SKIP_A2A) {
            1
        } else {
            self.ranks
        }
    }

    /// Pairs of a local expert and a source rank, numbered `e * sources + r`.
    #[inline(always)]
    pub const fn pairs(&self) -> u32 {
        self.local_experts * self.sources()
    }

    /// Local expert and source of a pair.
    #[inline(always)]
    pub(super) const fn split_pair(&self, pair: u32) -> (u32, u32) {
        quotient(pair, self.sources())
    }

    /// The pair of local expert `expert` of one rank and rank `other`: with its sender, where it receives; with the
    /// expert's rank, where it sends.
    #[inline(always)]
    pub(super) const fn pair(&self, expert: u32, other: u32) -> u32 {
        expert * self.sources() + self.source(other)
    }

    /// Whether two ranks write into each other's memory.
    #[inline(always)]
    pub(super) const fn share_node(&self, rank: u32, other: u32) -> bool {
        quotient(rank, self.ranks_per_node).0 == quotient(other, self.ranks_per_node).0
    }

    /// 1 if group 0 is the shared expert, else 0.
    #[inline(always)]
    pub const fn first_routed_group(&self) -> u32 {
        self.has(Self::SHARED_EXPERT) as u32
    }

    /// ng: groups of rows that a rank gets.
    #[inline(always)]
    pub const fn groups(&self) -> u32 {
        self.local_experts + self.first_routed_group()
    }

    /// The source that rank `rank` is to those it sends to.
    #[inline(always)]
    pub const fn source(&self, rank: u32) -> u32 {
        if self.has(Self::SKIP_A2A) { 0 } else { rank }
    }

    /// The tokens that the shared expert gets on rank `rank` of `tokens`: the first, and how many.
    ///
    /// All of them; in skip mode, where every rank has the same tokens, an even share.
    ///
    /// ```
    /// # use kernels_gpu::ep::Shape;
    /// # let shape = |world| Shape {
    /// #     hidden: 32, top_k: 1, experts: 8, local_experts: 1, ranks: 8, ranks_per_node: 8, capacity: 16,
    /// #     rules: 0, flags: Shape::SHARED_EXPERT | Shape::SKIP_A2A, slot_rows: 0, scale_stride: 0,
    /// #     allreduce_world: world, deadline_ns: 0, masked: 0,
    /// # };
    /// assert_eq!([0, 1, 2, 3].map(|rank| shape(4).shared_rows(rank, 10)), [(0, 3), (3, 3), (6, 2), (8, 2)]);
    /// assert_eq!([1, 2, 3].map(|rank| shape(8).shared_rows(rank, 3)), [(1, 1), (2, 1), (3, 0)]);
    /// ```
    #[inline(always)]
    pub const fn shared_rows(&self, rank: u32, tokens: u32) -> (u32, u32) {
        if !self.has(Self::SHARED_EXPERT) {
            return (0, 0);
        }
        if !self.has(Self::SKIP_A2A) {
            return (0, tokens);
        }
        let (each, more) = quotient(tokens, self.allreduce_world);
        let earlier = if rank < more { rank } else { more };
        (rank * each + earlier, each + (rank < more) as u32)
    }
}

/// Where a rank receives.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// `[R, C]` messages: source rank, number. Behind them, for formats some of whose scales [rows
    /// share](super::ScaleLayout::is_shared_by_rows), `[nl, R, C]` words: which message the row in a slot of a pair is
    /// of.
    pub messages: *mut u32x4,
    /// `[nl, R]` counts, each [`NOT_ARRIVED`] until its source has sent everything. In a dispatch the lower half is the
    /// number of rows, and the upper half, with local expert 0, the number of messages.
    pub counts: *mut u64,
}

impl Peer {
    /// Where the message numbers of a pair's slots lie.
    #[inline(always)]
    pub(super) fn numbers(self, shape: &Shape, layout: MessageLayout, pair: u32) -> *mut u32 {
        let capacity = shape.capacity as usize;
        let messages = shape.sources() as usize * capacity;
        let table = self.messages.wrapping_add(messages * layout.words());
        table.cast::<u32>().wrapping_add(pair as usize * capacity)
    }
}

/// What a rank gets. Rows are grouped: those of group 0, then those of group 1, ...
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Rows of payload.
    pub tokens: *mut u32x4,
    /// Block scales, as the format lays them out.
    pub scales: *mut u8,
    /// `[ng + 1]`: where the rows of each group begin.
    pub row_offsets: *mut u32,
    /// `[ng]`, for scales in tiles: the tile in which group `g` begins is `row_offsets[g] / 128 + scales_offsets[g]`.
    pub scales_offsets: *mut u32,
    /// `[ng]`: the identity.
    pub expert_ids: *mut i32,
    /// One for each row: token on its source rank, position among the token's experts.
    pub src_info: *mut u32x2,
    /// One for each pair: [`PAIR_BIAS`] plus the row behind its last, number of its rows.
    pub pairs: *mut u32x2,
}

/// One rank: its input, its memory, and its output. `dispatch_async` uses no output, and `dispatch_wait` no input:
/// null and 0 there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// Tokens at `tokens`, at most C.
    pub token_limit: u32,
    /// Null, or a word with the number of tokens; what exceeds `token_limit` does not count.
    pub token_count: *const u32,
    /// `[token_limit, H]` BF16.
    pub tokens: *const u32x4,
    /// `[token_limit, K]` expert ids.
    pub topk_ids: *const i32,
    /// One factor, for NVFP4.
    pub input_scale: *const f32,
    /// `[R]`: where every rank receives.
    pub peers: *const Peer,
    /// `[C]` messages, what the network sends from; null with one node.
    pub send_rows: *mut u32x4,
    /// [`Counters::words`] words.
    pub counters: *mut u32,
    /// [`Failure::WORDS`](super::wait::Failure::WORDS) words.
    pub failure: *mut u32,
    /// Where what it gets goes.
    pub output: Output,
}

impl Rank {
    /// T.
    ///
    /// # Safety
    ///
    /// `token_count` is what the field's documentation says.
    #[inline(always)]
    pub(super) unsafe fn load_token_count(&self) -> u32 {
        if self.token_count.is_null() {
            return self.token_limit;
        }
        // SAFETY: the caller's obligation.
        let count = unsafe { IndirectView::new(self.token_count, 1) }.load(0);
        count.min(self.token_limit)
    }

    /// Where rank `rank`, one of `ranks`, receives.
    ///
    /// # Safety
    ///
    /// `peers` is what the field's documentation says.
    #[inline(always)]
    pub(super) unsafe fn load_peer(&self, rank: u32, ranks: u32) -> Peer {
        const { assert!(offset_of!(Peer, messages) == 0 && offset_of!(Peer, counts) == 8) };
        // SAFETY: the caller's obligation; a peer is two addresses, and they are aligned as a vector.
        let peers = unsafe { IndirectView::<u32x4>::new(self.peers.cast(), ranks as usize) };
        let words = peers.load(rank as usize);
        let address = |low, high| u64::from(words[low]) | u64::from(words[high]) << 32;
        Peer {
            messages: address(0, 1) as *mut u32x4,
            counts: address(2, 3) as *mut u64,
        }
    }
}

/// A rank's own counters, as 32-bit words. All are zero before the first round, and after each but for
/// `row_ends` and `message_ends`, which the next round rewrites.
///
/// The two single words lie apart from each other and the rest, as many threads look at each.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    words: *mut u32,
    pairs: u32,
    sources: u32,
}

impl Counters {
    /// Words of a cache line.
    const LINE: u32 = 32;

    /// Words of the counters of a rank with so many pairs and sources.
    pub const fn words(pairs: u32, sources: u32) -> usize {
        Self::ready_word(pairs, sources) + Self::LINE as usize
    }

    /// Where the number of sender blocks that are done lies.
    pub const fn sent_word(pairs: u32, sources: u32) -> usize {
        (2 * (pairs as usize + sources as usize)).next_multiple_of(Self::LINE as usize)
    }

    /// Where the number of blocks that may still read the offsets lies: that there is one says that they are there.
    pub const fn ready_word(pairs: u32, sources: u32) -> usize {
        Self::sent_word(pairs, sources) + Self::LINE as usize
    }

    /// # Safety
    ///
    /// `words` is zeroed memory of [`Self::words`] words that nothing but the kernels of this rank touches.
    #[inline(always)]
    pub(super) unsafe fn new(words: *mut u32, pairs: u32, sources: u32) -> Self {
        Self {
            words,
            pairs,
            sources,
        }
    }

    /// Those of a dispatch.
    ///
    /// # Safety
    ///
    /// `shape` and `rank` are what an entry demands.
    #[inline(always)]
    pub(super) unsafe fn of(shape: &Shape, rank: &Rank) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { Self::new(rank.counters, shape.pairs(), shape.sources()) }
    }

    #[inline(always)]
    fn atomic(&self, word: usize) -> Atomic<u32, Device, Global> {
        // SAFETY: by the contract of `new`; words below are inside and only ever used as atomics.
        unsafe { Atomic::from_global_ptr(self.words.add(word)) }
    }

    /// Slots that this rank has reserved for a pair of *their* local expert and rank: the next slot.
    #[inline(always)]
    pub(super) fn reserved_slots(&self, pair: u32) -> Atomic<u32, Device, Global> {
        self.atomic(pair as usize)
    }

    /// Messages that this rank has reserved at a receiver, one of those that are sources to it: the next number.
    #[inline(always)]
    pub(super) fn reserved_messages(&self, receiver: u32) -> Atomic<u32, Device, Global> {
        self.atomic(self.pairs as usize + receiver as usize)
    }

    /// The first of the words that only this rank's receiving blocks use.
    #[inline(always)]
    fn received_words(&self) -> usize {
        self.pairs as usize + self.sources as usize
    }

    /// Rows of pairs up to and including each of this rank's pairs.
    #[inline(always)]
    pub(super) fn row_ends(&self) -> IndirectViewMut<u32> {
        // SAFETY: by the contract of `new`. Readers wait for `ready` first.
        unsafe { IndirectViewMut::new(self.words.add(self.received_words()), self.pairs as usize) }
    }

    /// Messages of sources up to and including each.
    #[inline(always)]
    pub(super) fn message_ends(&self) -> IndirectViewMut<u32> {
        let first = self.received_words() + self.pairs as usize;
        // SAFETY: as above.
        unsafe { IndirectViewMut::new(self.words.add(first), self.sources as usize) }
    }

    /// Messages of the sources before one.
    #[inline(always)]
    pub(super) fn messages_before(&self, source: u32) -> u32 {
        match source {
            0 => 0,
            _ => self.message_ends().load(source as usize - 1),
        }
    }

    /// Rows of the pairs before one of this rank's pairs.
    #[inline(always)]
    pub(super) fn rows_before_pair(&self, pair: u32) -> u32 {
        match pair {
            0 => 0,
            _ => self.row_ends().load(pair as usize - 1),
        }
    }

    /// Sender blocks that are done.
    #[inline(always)]
    pub(super) fn sent(&self) -> Atomic<u32, Device, Global> {
        self.atomic(Self::sent_word(self.pairs, self.sources))
    }

    /// The offsets of this round: whether they are there, and how many blocks may still read them.
    #[inline(always)]
    pub(super) fn ready(&self) -> Published {
        Published::new(self.atomic(Self::ready_word(self.pairs, self.sources)))
    }
}

/// Where a message goes.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    /// The rank.
    pub(super) rank: u32,
    /// Its local expert.
    pub(super) expert: u32,
}

/// What a count of a dispatch says.
#[derive(Clone, Copy)]
pub(super) struct Counts {
    /// Rows of the pair.
    pub(super) rows: u32,
    /// Messages of the source, with the pair of local expert 0; else 0.
    pub(super) messages: u32,
}

impl Counts {
    #[inline(always)]
    pub(super) const fn to_word(self) -> u64 {
        self.rows as u64 | (self.messages as u64) << 32
    }

    #[inline(always)]
    pub(super) const fn from_word(word: u64) -> Self {
        Self {
            rows: word as u32,
            messages: (word >> 32) as u32,
        }
    }
}

impl Shape {
    /// Who has expert `id`; nobody if that is none, or none for rank `rank` to serve.
    #[inline(always)]
    pub(super) fn destination(&self, id: i32, rank: u32) -> Option<Destination> {
        let id = id as u32;
        if id >= self.experts {
            return None;
        }
        let (owner, expert) = quotient(id, self.local_experts);
        if self.has(Self::SKIP_A2A) && owner != rank || self.is_masked(owner) {
            return None;
        }
        Some(Destination {
            rank: owner,
            expert,
        })
    }
}

const _: () = assert!(
    MAX_TOP_K == crate::WARP,
    "a lane for each of a token's experts"
);
