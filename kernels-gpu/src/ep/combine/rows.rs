//! Sending: each row goes back to the rank that its token is from.
//!
//! The rows of all experts are dealt out in runs of equal length, wherever experts and source ranks begin and end:
//! to warps, in *pieces* of [`PIECE`] words, where rows travel as they are; to blocks, row by row, where a block
//! quantizes a row in shared memory first. Pieces keep all warps busy when there are fewer rows than warps.
//!
//! Where row `i` is from, `(t, k) = src_info[i]` of the source rank whose pair `i` is in, dispatch has left. What it
//! says is not trusted: a row beyond the output, or with a `(t, k)` outside `[0, C) x [0, K)`, stays here.

use super::super::arguments::{PAIR_BIAS, Shape};
use super::super::faults::Fault;
use super::super::format::StagedMessage;
use super::super::workers::Workers;
use super::arguments::Combining;
use super::format::{CombineFormat, QuantizedAs};
use super::shared_memory::RowMemory;
use crate::WARP;
use crate::formats::{self, CHUNK, InputFormat};
use crate::search::Candidates;
use core::simd::{u32x2, u32x4};
use cuda_std::thread;
use cuda_std::view::{IndirectView, IndirectViewMut};

/// Words of a row that a warp copies at a time: eight loads of each lane are under way.
const PIECE: u32 = 8 * WARP;

/// What a sending block knows of its rank.
#[derive(Clone, Copy)]
pub(super) struct RowSender<'a> {
    pub(super) shape: &'a Shape,
    pub(super) combining: &'a Combining,
}

/// A walk through rows in ascending order, which knows the pair that each is in.
#[derive(Clone, Copy)]
struct Walk {
    pairs: IndirectViewMut<u32x2>,
    pair: usize,
    /// Rows of the pair.
    first: u32,
    end: u32,
}

impl Walk {
    /// Begins at `row`. Called by whole warps.
    #[inline(always)]
    fn begin(pairs: IndirectViewMut<u32x2>, row: u32) -> Self {
        let ends_before = |pair: u32| pairs.load(pair as usize)[0] <= row + PAIR_BIAS;
        let pair = Candidates::below(pairs.len() as u32)
            .last(|pair| pair.checked_sub(1).is_none_or(ends_before));
        let mut walk = Self {
            pairs,
            pair: pair as usize,
            first: 0,
            end: 0,
        };
        walk.look_up();
        walk
    }

    /// Reads the pair's rows; there are none behind the last pair.
    #[inline(always)]
    fn look_up(&mut self) {
        if self.pair < self.pairs.len() {
            let [end, rows] = self.pairs.load(self.pair).to_array();
            self.end = end.saturating_sub(PAIR_BIAS);
            self.first = self.end.saturating_sub(rows);
        } else {
            (self.first, self.end) = (u32::MAX, u32::MAX);
        }
    }

    /// The pair of `row`, which does not precede the last one asked for. None of a row that pads a group.
    #[inline(always)]
    fn pair_of(&mut self, row: u32) -> Option<u32> {
        while row >= self.end {
            self.pair += 1;
            self.look_up();
        }
        (row >= self.first).then_some(self.pair as u32)
    }
}

/// Where a row goes.
#[derive(Clone, Copy)]
struct Home {
    /// The first of its words in the combine buffer of its rank.
    address: *mut u32x4,
    /// Whether that is of another node.
    remote: bool,
}

impl RowSender<'_> {
    /// Sends this block's share of the rows.
    ///
    /// # Safety
    ///
    /// `shape` and `combining` are what an entry demands.
    #[inline(always)]
    pub(super) unsafe fn send_rows<F: CombineFormat>(self) {
        // SAFETY: the caller's obligation.
        let (first, end) = unsafe { self.routed_rows() };
        // SAFETY: the caller's obligation.
        unsafe {
            match F::QUANTIZED {
                None => self.send_pieces::<F>(first, end),
                Some(quantized) => self.send_quantized::<F>(quantized, first, end),
            }
        }
        thread::sync_threads();
    }

    /// The rows of routed experts, from the first pair's to the last pair's: those of the shared expert are at home.
    #[inline(always)]
    unsafe fn routed_rows(self) -> (u32, u32) {
        // SAFETY: by the contract of `send_rows`.
        let pairs = unsafe { self.combining.pairs(self.shape) };
        let [first_end, rows] = pairs.load(0).to_array();
        let [end, _] = pairs.load(pairs.len() - 1).to_array();
        let end = end.saturating_sub(PAIR_BIAS).min(self.combining.max_rows);
        let first = first_end.saturating_sub(PAIR_BIAS).saturating_sub(rows);
        (first.min(end), end)
    }

    /// Copies pieces of rows, this warp's share.
    #[inline(always)]
    unsafe fn send_pieces<F: CombineFormat>(self, first: u32, end: u32) {
        let words = F::row_words(self.shape.hidden);
        let pieces = words.div_ceil(PIECE).max(1) as usize;
        let warps = (thread::grid_dim_x() * (thread::block_dim_x() / WARP)) as usize;
        let warp =
            thread::block_idx_x() * (thread::block_dim_x() / WARP) + thread::thread_idx_x() / WARP;
        let units = (end - first) as usize * pieces;
        let run = units.div_ceil(warps.max(1));
        let mut unit = (warp as usize * run).min(units);
        let last = (unit + run).min(units);
        if unit >= last {
            return;
        }
        let mut row = first + (unit / pieces) as u32;
        let mut piece = (unit % pieces) as u32;
        // SAFETY: by the contract of `send_rows`.
        let mut walk = Walk::begin(unsafe { self.combining.pairs(self.shape) }, row);
        while unit < last {
            let start = piece * PIECE;
            let len = (words - start).min(PIECE) as usize;
            if let Some(pair) = walk.pair_of(row) {
                // SAFETY: by the contract of `send_rows`; the row is below `end`, and this piece of it this warp's
                // alone.
                unsafe {
                    let source = self.combining.output_row(row, words as usize);
                    if let Some(home) = self.home(pair, row, words as usize) {
                        let source = source.skip(start as usize);
                        let load = |word| source.load(word);
                        self.deliver(home, row, words as usize, start as usize, len, load);
                    }
                }
            }
            piece += 1;
            if piece as usize == pieces {
                (piece, row) = (0, row + 1);
            }
            unit += 1;
        }
    }

    /// Stores `len` words from word `start` of a row on, with the lanes of a warp.
    #[inline(always)]
    unsafe fn deliver(
        self,
        home: Home,
        row: u32,
        words: usize,
        start: usize,
        len: usize,
        load: impl Fn(usize) -> u32x4,
    ) {
        // SAFETY: by the contract of `send_rows`: the rows of homes and send rows are `words` long.
        let target = unsafe { IndirectViewMut::new(home.address.add(start), len) };
        if home.remote {
            // As in dispatch: a network sends from memory that is registered, and the put is a copy. Each lane
            // reads back what it stored itself.
            // SAFETY: as above; with several nodes there are send rows, as many as output rows.
            let staged = unsafe {
                let row = self.combining.rank.send_rows.add(row as usize * words);
                IndirectViewMut::new(row.add(start), len)
            };
            Workers::warp().copy(len, load, |word, value| staged.store(word, value));
            Workers::warp().copy(
                len,
                |word| staged.load(word),
                |word, value| target.store(word, value),
            );
        } else {
            Workers::warp().copy_ahead(len, load, |word, value| target.store(word, value));
        }
    }

    /// Quantizes rows and sends them, this block's share.
    #[inline(always)]
    unsafe fn send_quantized<F: CombineFormat>(self, quantized: QuantizedAs, first: u32, end: u32) {
        let words = F::row_words(self.shape.hidden) as usize;
        let input_words = (self.shape.hidden / CHUNK) as usize;
        let run = (end - first).div_ceil(thread::grid_dim_x().max(1));
        let mut row = first + (thread::block_idx_x() * run).min(end - first);
        let last = row + run.min(end - row);
        if row >= last {
            return;
        }
        // SAFETY: by the contract of `send_rows`: the launch gives the shared memory.
        let memory = unsafe { RowMemory::new(quantized.layout(self.shape.hidden)) };
        // SAFETY: by the contract of `send_rows`.
        let mut walk = Walk::begin(unsafe { self.combining.pairs(self.shape) }, row);
        while row < last {
            if let Some(pair) = walk.pair_of(row)
                // SAFETY: by the contract of `send_rows`; the row is below `end`.
                && let Some(home) = unsafe { self.home(pair, row, words) }
            {
                // SAFETY: as above. Expert outputs are BF16 where rows are quantized.
                let input = unsafe { self.combining.output_row(row, input_words) };
                let factor = match quantized.row_factor {
                    true => row_factor(memory, input),
                    false => 1.0,
                };
                let message = memory.message();
                F::stage(input, self.shape.hidden, factor, message);
                finish_row(message, factor);
                thread::sync_threads();
                let vectors = message.words();
                let warps = (thread::block_dim_x() / WARP) as usize;
                let share = words.div_ceil(warps.max(1));
                let start = ((thread::thread_idx_x() / WARP) as usize * share).min(words);
                let len = share.min(words - start);
                let load = |word| vectors.load(start + word);
                // SAFETY: as above; this share of the row is this warp's alone.
                unsafe { self.deliver(home, row, words, start, len, load) };
                // The next row takes the memory.
                thread::sync_threads();
            }
            row += 1;
        }
    }

    /// Where row `row` of a pair goes, if what dispatch left makes sense.
    #[inline(always)]
    unsafe fn home(self, pair: u32, row: u32, words: usize) -> Option<Home> {
        let (shape, rank) = (self.shape, &self.combining.rank);
        // SAFETY: by the contract of `send_rows`: there is one for each row.
        let source = unsafe { IndirectView::new(rank.output.src_info, row as usize + 1) };
        let [token, position] = source.load(row as usize).to_array();
        if token >= shape.capacity || position >= shape.top_k {
            return None;
        }
        let (_, source) = shape.split_pair(pair);
        let to = if shape.has(Shape::SKIP_A2A) {
            rank.rank
        } else {
            source
        };
        if shape.is_masked(to) {
            return None;
        }
        let slot = token as usize * shape.top_k as usize + position as usize;
        let mut offset = slot * words;
        if shape.plants(Fault::NarrowReturnOffsets) {
            offset %= 4096 / size_of::<u32x4>();
        }
        // SAFETY: by the contract of `send_rows`.
        let peer = unsafe { rank.load_peer(to, shape.ranks) };
        Some(Home {
            address: peer.messages.wrapping_add(offset),
            remote: !shape.share_node(to, rank.rank),
        })
    }
}

/// The power of two that brings the largest magnitude of a BF16 row into `(ROW_MAX / 2, ROW_MAX]`, as far as a normal
/// number does, so that block scales use the range of E4M3; 1 for a row that is zero or not finite. All threads of
/// the block call it together.
#[inline(always)]
fn row_factor(memory: RowMemory, row: IndirectView<u32x4>) -> f32 {
    let mut amax = formats::Amax::NO_NUMBER;
    let mut chunk = thread::thread_idx_x() as usize;
    while chunk < row.len() {
        amax = amax.max(formats::Bf16::amax_of_numbers(row.load(chunk)));
        chunk += thread::block_dim_x() as usize;
    }
    let amax = memory.block_max(amax).to_f32();
    // Not so of NaN, which a row of nothing else has.
    let is_positive = amax > 0.0 && amax <= f32::MAX;
    if !is_positive {
        return 1.0;
    }
    const ROOM: u32 = QuantizedAs::ROW_MAX.to_bits();
    // Of normal numbers in powers of two, from the bits: no rounding, no overflow.
    let exponent = (amax.to_bits() >> 23).max(1);
    let significand = amax.to_bits() & 0x7F_FFFF;
    let fits = significand <= ROOM & 0x7F_FFFF;
    let power = (ROOM >> 23) + 127 - exponent - (!fits) as u32;
    f32::from_bits(power.clamp(1, 253) << 23)
}

/// Writes what is not payload or scale: the factor that undoes the row's, and zeros between the parts. All threads of
/// the block call it, before the barrier that ends a row.
#[inline(always)]
fn finish_row(message: StagedMessage, factor: f32) {
    if thread::thread_idx_x() == 0 {
        // The factor is a power of two with a normal reciprocal.
        let undo = ((254 << 23) - factor.to_bits()) & 0x7F80_0000;
        let source = message.part(message.layout().source_offset, 16);
        source.store(0, u32x4::from_array([undo, 0, 0, 0]));
    }
    let padding = message.layout().scale_padding();
    let len = padding.end - padding.start;
    if thread::thread_idx_x() < len {
        let zeros = message.part::<u8>(padding.start, len);
        zeros.store(thread::thread_idx_x() as usize, 0);
    }
}
