//! The sender: a block takes a token, makes its message in shared memory, and sends it to each rank that has some of
//! the token's experts.
//!
//! ```text
//!  token t ──stage──► message in shared memory ──┬─ bulk copy ─► rank of expert ids[t][0]
//!            ▲                                   ├─ bulk copy ─► next rank among those of ids[t]
//!            │ while the previous message leaves └─ ...
//! ```
//!
//! Blocks stride over the tokens. Lane `k` of the last warp, which issues the copies, looks after position `k` of the
//! token's experts: it reserves a slot for the row that the message will make there, and the first lane of each rank
//! a place for the message, before they load their part of the token; the latter issues the bulk copy once the message is
//! there. It is the last warp as that has least to quantize. Nothing here waits for another block, let alone another
//! rank.
//!
//! An id outside `0..E` is nobody: nothing is sent and nothing counted. Of equal ids in one token the first
//! counts, and the others are nobody.

use super::arguments::{Counters, Destination, Rank, Shape, quotient};
use super::faults::Fault;
use super::format::{Encoding, StagedMessage, TokenFormat};
use super::message::{MessageLayout, NO_SLOT};
use super::network;
use super::shared_expert;
use super::shared_memory::{STAGES, SharedMemory};
use crate::WARP;
use crate::formats::{CHUNK, Rules, TensorScale};
use core::simd::u32x4;
use cuda_std::atomic::scoped::Relaxed;
use cuda_std::view::{IndirectView, IndirectViewMut, Word};
use cuda_std::warp::{self, WarpReductionOp};
use cuda_std::{cfg, fence, thread, tma};

/// All lanes of a warp.
const FULL_MASK: u32 = u32::MAX;

/// An id that is no expert's.
const NOBODY: i32 = -1;

/// Set in an address of [`SharedMemory::destinations`] that lies on another node: messages are aligned.
const REMOTE: u64 = 1;

/// What a sender block knows of its rank.
#[derive(Clone, Copy)]
pub(super) struct Sender<'a> {
    pub(super) shape: &'a Shape,
    pub(super) rank: &'a Rank,
    pub(super) layout: MessageLayout,
    pub(super) counters: Counters,
    pub(super) shared: SharedMemory,
}

/// What a lane has reserved. It is kept while the token is quantized, so it is no more than it must be.
#[derive(Clone, Copy)]
struct Reserved {
    /// The expert that it is for, or nobody.
    id: i32,
    /// The slot there.
    slot: u32,
    /// The number of the message at the expert's rank, in the first lane of those that have experts there.
    message: u32,
}

impl Reserved {
    const NONE: Self = Self {
        id: NOBODY,
        slot: NO_SLOT,
        message: 0,
    };
}

impl Sender<'_> {
    /// Sends this block's tokens. When it returns, everything the block sent has arrived.
    ///
    /// # Safety
    ///
    /// `shape` and `rank` are what an entry demands; to keep tokens for a shared expert, `rank.output`
    /// is valid.
    #[inline(always)]
    pub(super) unsafe fn send_tokens<F: TokenFormat, const KEEP_OWN: bool>(self) {
        self.zero_scale_padding();
        // SAFETY: the caller's obligation.
        let tokens = unsafe { self.rank.load_token_count() };
        let encoding = self.encoding();
        let mut stage = 0;
        let mut token = thread::block_idx_x();
        while token < tokens {
            let message = self.shared.message(stage);
            // Asked for here and used after the token is quantized: it takes a round trip.
            let reserved = self.reserve(token, message);
            F::stage(self.token(token), self.shape.hidden, encoding, message);
            self.write_slots(reserved, message);
            self.address_copies(stage, reserved);
            self.finish_message();
            self.send_copies(token, stage, message);
            if F::SCALES.is_shared_by_rows() {
                self.write_numbers(reserved, message);
            }
            if KEEP_OWN && !self.drops_own(stage) {
                // SAFETY: the caller's obligation.
                unsafe { shared_expert::keep_own::<F>(self, token, tokens, message) };
            }
            stage = (stage + 1) % STAGES;
            token += thread::grid_dim_x();
        }
        let awaits_copies = !self.shape.plants(Fault::CountsBeforeMessages);
        if cfg::has_bulk_copy() && self.issues_copies() && awaits_copies {
            // The writes are complete and visible to this thread: "the completion of cp.async.bulk is followed
            // by an implicit generic-async proxy fence" (PTX ISA, asynchronous operations). The explicit one
            // costs nothing here, once for a block, and does not depend on that sentence.
            tma::wait_group::<0>();
            fence::proxy_async_global();
        }
        thread::sync_threads();
    }

    /// A planted fault: a token that goes to nobody is not kept.
    #[inline(always)]
    fn drops_own(self, stage: u32) -> bool {
        let destinations = self.shared.destinations(stage);
        self.shape.plants(Fault::SharedRowsOfRoutedTokens)
            && (0..self.shape.top_k).all(|position| destinations.load(position as usize) == 0)
    }

    /// Row `token` of the input.
    #[inline(always)]
    fn token(self, token: u32) -> IndirectView<u32x4> {
        let chunks = (self.shape.hidden / CHUNK) as usize;
        // SAFETY: by the contract of `send_tokens`; `token` is below the number of tokens.
        unsafe { IndirectView::new(self.rank.tokens.add(token as usize * chunks), chunks) }
    }

    /// All ids up to and including those of `token`.
    #[inline(always)]
    fn ids_through<T: Word>(self, token: u32) -> IndirectView<T> {
        let bytes = (token as usize + 1) * self.shape.top_k as usize * size_of::<i32>();
        // SAFETY: as in `token`; the table is aligned to 16 bytes.
        unsafe { IndirectView::new(self.rank.topk_ids.cast(), bytes / size_of::<T>()) }
    }

    #[inline(always)]
    fn encoding(self) -> Encoding {
        let factor = if self.rank.input_scale.is_null() {
            1.0
        } else {
            // SAFETY: by the contract of `send_tokens`.
            unsafe { IndirectView::new(self.rank.input_scale, 1) }.load(0)
        };
        Encoding {
            rules: Rules::from_bits(self.shape.rules),
            tensor_scale: TensorScale::new(factor),
        }
    }

    /// Receivers that read scales by words find zeros after the last one.
    #[inline(always)]
    fn zero_scale_padding(self) {
        let padding = self.layout.scale_padding();
        let len = padding.end - padding.start;
        let index = thread::thread_idx_x();
        let mut stage = 0;
        while stage < STAGES {
            if index < len {
                let message = self.shared.message(stage);
                message
                    .part::<u8>(padding.start, len)
                    .store(index as usize, 0);
            }
            stage += 1;
        }
    }

    #[inline(always)]
    fn warps(self) -> u32 {
        thread::block_dim_x() / WARP
    }

    /// Whether this is the warp that issues the bulk copies: the last.
    #[inline(always)]
    fn issues_copies(self) -> bool {
        thread::thread_idx_x() / WARP == self.warps() - 1
    }

    /// Whether this thread knows the slot of the position that is its lane's number. The lanes of the warp that issues
    /// the copies do, but where slots are counted, each warp does so for those that it counted.
    #[inline(always)]
    fn knows_slot(self) -> bool {
        let thread = thread::thread_idx_x();
        if self.shape.has(Shape::DETERMINISTIC) {
            (thread % WARP).checked_rem(self.warps()) == Some(thread / WARP)
        } else {
            self.issues_copies()
        }
    }

    /// Writes the source and the ids of `token` into its message, and reserves its slots and messages: for each position
    /// among its experts in the lane of that number, the slot where the lane [knows](Self::knows_slot) it, and the
    /// message in the warp that issues the copies.
    #[inline(always)]
    fn reserve(self, token: u32, message: StagedMessage) -> Reserved {
        let deterministic = self.shape.has(Shape::DETERMINISTIC);
        if !self.issues_copies() && !deterministic {
            return Reserved::NONE;
        }
        let lane = thread::thread_idx_x() % WARP;
        let id = if lane < self.shape.top_k {
            let index = token as usize * self.shape.top_k as usize + lane as usize;
            self.ids_through::<i32>(token).load(index)
        } else {
            NOBODY
        };
        if self.issues_copies() {
            self.write_source_and_ids(token, id, message);
        }
        // SAFETY: all lanes of the warp are here.
        let first = unsafe { warp::warp_match_any(FULL_MASK, id) }.trailing_zeros() == lane;
        let counts = first || self.shape.plants(Fault::RepeatedIdsCount);
        let id = if counts { id } else { NOBODY };
        let to = self.shape.destination(id, self.rank.rank);
        let slot = if deterministic {
            self.count_earlier(token, id, to)
        } else {
            to.map_or(NO_SLOT, |to| self.reserve_slot(to))
        };
        let leads = self.issues_copies() && rank_leader(to) == lane;
        let message = to.filter(|_| leads).map_or(0, |to| {
            let receiver = self.shape.source(to.rank);
            let reserved = self.counters.reserved_messages(receiver);
            reserved.fetch_add(1, Relaxed)
        });
        Reserved { id, slot, message }
    }

    /// Writes the slots into the message.
    #[inline(always)]
    fn write_slots(self, reserved: Reserved, message: StagedMessage) {
        let lane = thread::thread_idx_x() % WARP;
        if self.knows_slot() && lane < self.layout.padded_slots() {
            message
                .part::<u32>(self.layout.slots_offset, 4 * self.layout.padded_slots())
                .store(lane as usize, reserved.slot);
        }
    }

    /// Leaves the addresses of the messages for [`send_copies`](Self::send_copies).
    #[inline(always)]
    fn address_copies(self, stage: u32, reserved: Reserved) {
        if self.issues_copies() {
            let lane = thread::thread_idx_x() % WARP;
            let to = self.shape.destination(reserved.id, self.rank.rank);
            let leads = rank_leader(to) == lane;
            // Never into the next source's.
            let to = to.filter(|_| leads && reserved.message < self.shape.capacity);
            let address = to.map_or(0, |to| self.address(to, reserved.message));
            self.shared
                .destinations(stage)
                .store(lane as usize, address);
        }
    }

    /// Tells the receivers of scales that rows share which message the row in each slot is of. Called with a finished
    /// message, which has all slots.
    #[inline(always)]
    fn write_numbers(self, reserved: Reserved, message: StagedMessage) {
        if !self.issues_copies() {
            return;
        }
        let (shape, layout, lane) = (self.shape, self.layout, thread::thread_idx_x() % WARP);
        let slot = match lane < layout.padded_slots() {
            true => message
                .part::<u32>(layout.slots_offset, 4 * layout.padded_slots())
                .load(lane as usize),
            false => NO_SLOT,
        };
        let to = shape.destination(reserved.id, self.rank.rank);
        let leader = rank_leader(to);
        // SAFETY: all lanes of the warp are here.
        let (number, _) =
            unsafe { warp::warp_shuffle_idx(FULL_MASK, reserved.message, leader, WARP) };
        if let Some(to) = to
            && slot < shape.capacity
        {
            // SAFETY: by the contract of `send_tokens`: C numbers for each pair; the slot is this token's alone.
            unsafe {
                let peer = self.rank.load_peer(to.rank, shape.ranks);
                let numbers = peer.numbers(shape, layout, shape.pair(to.expert, self.rank.rank));
                IndirectViewMut::new(numbers, shape.capacity as usize).store(slot as usize, number);
            }
        }
    }

    /// The next slot of a destination.
    #[inline(always)]
    fn reserve_slot(self, to: Destination) -> u32 {
        let pair = self.shape.pair(to.expert, to.rank);
        self.counters.reserved_slots(pair).fetch_add(1, Relaxed)
    }

    /// The slot that follows those of earlier tokens for the same expert: as many as there are such tokens.
    /// For the lanes that this warp takes care of; also reserves a slot there, for the count.
    #[inline(always)]
    fn count_earlier(self, token: u32, id: i32, to: Option<Destination>) -> u32 {
        let lane = thread::thread_idx_x() % WARP;
        let mut slot = NO_SLOT;
        let mut position = thread::thread_idx_x() / WARP;
        while position < self.shape.top_k {
            // SAFETY: all lanes of the warp are here.
            let (wanted, _) = unsafe { warp::warp_shuffle_idx(FULL_MASK, id, position, WARP) };
            let earlier = self.tokens_before(token, wanted);
            if lane == position
                && let Some(to) = to
            {
                self.reserve_slot(to);
                slot = earlier;
            }
            position += self.warps();
        }
        slot
    }

    /// Tokens before `token` that name expert `id`. Called by whole warps.
    #[inline(always)]
    fn tokens_before(self, token: u32, id: i32) -> u32 {
        let top_k = self.shape.top_k as usize;
        let end = token as usize * top_k;
        let ids = self.ids_through::<i32>(token);
        let quads = self.ids_through::<u32x4>(token);
        // A token that names the expert again counts once. Such ids are rare, so the test may be slow.
        let counts = |index: usize, found: u32| {
            if found != id as u32 || index >= end {
                return 0;
            }
            let mut other = index - quotient(index as u32, top_k as u32).1 as usize;
            while other < index && ids.load(other) != id {
                other += 1;
            }
            (other == index) as u32
        };
        let mut count = 0;
        let mut quad = (thread::thread_idx_x() % WARP) as usize;
        while quad < end.div_ceil(4) {
            // The table goes on behind `end`, with the ids of `token`, but maybe not by a whole vector.
            if quad < quads.len() {
                let four = quads.load(quad);
                count += counts(quad * 4, four[0])
                    + counts(quad * 4 + 1, four[1])
                    + counts(quad * 4 + 2, four[2])
                    + counts(quad * 4 + 3, four[3]);
            } else {
                let mut index = quad * 4;
                while index < end {
                    count += counts(index, ids.load(index) as u32);
                    index += 1;
                }
            }
            quad += WARP as usize;
        }
        // SAFETY: all lanes of the warp are here.
        unsafe { warp::warp_reduce(FULL_MASK, count, WarpReductionOp::Add) }
    }

    /// Where message `number` at a destination lies.
    #[inline(always)]
    fn address(self, to: Destination, number: u32) -> u64 {
        let shape = self.shape;
        // SAFETY: by the contract of `send_tokens`.
        let peer = unsafe { self.rank.load_peer(to.rank, shape.ranks) };
        let first = shape.source(self.rank.rank) as usize * shape.capacity as usize;
        let mut offset = (first + number as usize) * self.layout.words();
        if shape.plants(Fault::NarrowOffsets) {
            offset %= 4096 / size_of::<u32x4>();
        }
        let address = peer.messages.wrapping_add(offset) as u64;
        if shape.share_node(to.rank, self.rank.rank) {
            address
        } else {
            address | REMOTE
        }
    }

    /// Writes the token's number and its experts into a message. Called by the warp that issues the copies.
    #[inline(always)]
    fn write_source_and_ids(self, token: u32, id: i32, message: StagedMessage) {
        let lane = thread::thread_idx_x() % WARP;
        if lane < self.layout.padded_ids() {
            // Of nobody the slot says that it is none.
            let exists = lane < self.shape.top_k && (id as u32) < self.shape.experts;
            let code = if exists { id as u16 } else { 0 };
            message
                .part::<u16>(self.layout.topk_offset, 2 * self.layout.padded_ids())
                .store(lane as usize, code);
        }
        if lane == 0 {
            message
                .part(self.layout.source_offset, 16)
                .store(0, u32x4::from_array([token, 0, 0, 0]));
        }
    }

    /// Lets the whole block, and the copy engine, see the message, once the message before it has left: what
    /// is staged next takes its place.
    #[inline(always)]
    fn finish_message(self) {
        if cfg::has_bulk_copy() {
            fence::proxy_async_shared();
            if self.issues_copies() {
                tma::wait_group_read::<0>();
            }
        }
        thread::sync_threads();
    }

    /// Sends a finished message to where [`address_copies`](Self::address_copies) said.
    #[inline(always)]
    fn send_copies(self, token: u32, stage: u32, message: StagedMessage) {
        let destinations = self.shared.destinations(stage);
        let is_local = |address| address != 0 && address & REMOTE == 0;
        if cfg::has_bulk_copy() {
            if self.issues_copies() {
                let lane = thread::thread_idx_x() % WARP;
                let address = destinations.load(lane as usize);
                if is_local(address) {
                    // SAFETY: `address` made it: a place that is this message's alone, of a rank that writes and
                    // reads by this layout. The message is finished and fenced, and stays until
                    // `finish_message` has waited for this copy to have read it.
                    unsafe {
                        tma::bulk_store(address as *mut u8, message.as_ptr(), self.layout.bytes);
                    }
                }
                tma::commit_group();
            }
        } else {
            let mut position = thread::thread_idx_x() / WARP;
            while position < self.shape.top_k {
                let address = destinations.load(position as usize);
                if is_local(address) {
                    self.store_message(message, address);
                }
                position += self.warps();
            }
        }
        if self.shape.ranks_per_node < self.shape.ranks {
            // SAFETY: as above; the rank has send rows, as it is one of several nodes.
            unsafe { network::put_copies(self, token, destinations, message, REMOTE) };
        }
    }

    /// Stores a message with the lanes of a warp.
    #[inline(always)]
    fn store_message(self, message: StagedMessage, address: u64) {
        // SAFETY: as in `send_copies`.
        let slot = unsafe { IndirectViewMut::new(address as *mut u32x4, self.layout.words()) };
        let words = message.words();
        let mut word = (thread::thread_idx_x() % WARP) as usize;
        while word < self.layout.words() {
            slot.store(word, words.load(word));
            word += WARP as usize;
        }
    }
}

/// The first lane whose destination is of the same rank as this lane's. Called by whole warps.
#[inline(always)]
fn rank_leader(to: Option<Destination>) -> u32 {
    let rank = to.map_or(u32::MAX, |to| to.rank);
    // SAFETY: all lanes of the warp are here.
    unsafe { warp::warp_match_any(FULL_MASK, rank) }.trailing_zeros()
}
