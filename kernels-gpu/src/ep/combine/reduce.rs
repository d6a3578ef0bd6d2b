//! Receiving: a token's rows become one.
//!
//! For each element an f32 sum from 0 takes in `weight * value` for the token's experts in order, each with one
//! rounding (a fused multiply-add), and is rounded once to the element type. Then the shared expert's value is added,
//! and the sum rounded again. Positions without an expert (see [`send`](super::super::send)) add nothing, so a token
//! without any is 0, and nobody need clear the rows of a round before.
//!
//! The work is dealt out in units of a token's 32 chunks: a lane has eight elements, and the loads of
//! [`AHEAD`](CombineFormat::AHEAD) experts' rows under way at a time.

use super::super::arguments::Shape;
use super::super::faults::Fault;
use super::arguments::{Combining, WeightType};
use super::format::{CombineFormat, RowElement};
use crate::WARP;
use crate::formats::{CHUNK, InputFormat};
use core::simd::u32x4;
use cuda_std::view::{IndirectView, IndirectViewMut};
use cuda_std::{math, thread, warp};

/// All lanes of a warp.
const FULL_MASK: u32 = u32::MAX;

/// An id that is no expert's.
const NOBODY: i32 = -1;

/// What a receiving block knows of its rank.
#[derive(Clone, Copy)]
pub(super) struct Reducer<'a> {
    pub(super) shape: &'a Shape,
    pub(super) combining: &'a Combining,
    /// The rank's combine buffer.
    pub(super) rows: *const u32x4,
    /// T.
    pub(super) tokens: u32,
}

/// What a warp knows of its token.
#[derive(Clone, Copy)]
struct Token {
    number: u32,
    /// Bit `k`: an expert returned row `k`.
    returned: u32,
    /// The router weight of position `k`, in lane `k`.
    weight: f32,
}

/// Eight elements as sums.
type Sums = [f32; 8];

impl Reducer<'_> {
    /// Reduces this block's share of the tokens.
    ///
    /// # Safety
    ///
    /// `shape` and `combining` are what an entry demands; all rows are home.
    #[inline(always)]
    pub(super) unsafe fn reduce_tokens<F: CombineFormat>(self) {
        let chunks = self.shape.hidden / CHUNK;
        let groups = chunks.div_ceil(WARP).max(1) as usize;
        let warps = (thread::grid_dim_x() * (thread::block_dim_x() / WARP)) as usize;
        let warp =
            thread::block_idx_x() * (thread::block_dim_x() / WARP) + thread::thread_idx_x() / WARP;
        let units = self.tokens as usize * groups;
        let run = units.div_ceil(warps.max(1));
        let mut unit = (warp as usize * run).min(units);
        let last = (unit + run).min(units);
        if unit >= last {
            return;
        }
        let mut group = (unit % groups) as u32;
        // SAFETY: by the contract of this function; the token is below `tokens`.
        let mut token = unsafe { self.look_up((unit / groups) as u32) };
        while unit < last {
            let chunk = group * WARP + thread::thread_idx_x() % WARP;
            // SAFETY: as above.
            unsafe {
                match self.combining.weight_type == WeightType::None as u32 {
                    true => self.copy_chunk::<F>(token, chunk, chunk < chunks),
                    false => self.sum_chunk::<F>(token, chunk, chunk < chunks),
                }
            }
            group += 1;
            unit += 1;
            if group as usize == groups && unit < last {
                group = 0;
                // SAFETY: as above.
                token = unsafe { self.look_up(token.number + 1) };
            }
        }
    }

    /// Reads which of a token's positions count, and their weights. Called by whole warps.
    #[inline(always)]
    unsafe fn look_up(self, number: u32) -> Token {
        let (top_k, lane) = (self.shape.top_k, thread::thread_idx_x() % WARP);
        let index = number as usize * top_k as usize + lane as usize;
        let exists = lane < top_k;
        // SAFETY: by the contract of `reduce_tokens`: there are K for each token.
        let (id, weight) = unsafe {
            let ids = IndirectView::new(self.combining.rank.topk_ids, index + 1);
            match exists {
                true => (ids.load(index), self.combining.weight(index)),
                false => (NOBODY, 0.0),
            }
        };
        // SAFETY: all lanes of the warp are here.
        let returned = unsafe {
            let first = warp::warp_match_any(FULL_MASK, id).trailing_zeros() == lane;
            let somebody = self
                .shape
                .destination(id, self.combining.rank.rank)
                .is_some();
            let counts = first && somebody || exists && self.shape.plants(Fault::NobodyCounts);
            warp::warp_vote_ballot(FULL_MASK, counts)
        };
        Token {
            number,
            returned,
            weight,
        }
    }

    /// What position `k` of a token returned of a chunk, if it did and there is such a chunk.
    #[inline(always)]
    unsafe fn returned<F: CombineFormat>(
        self,
        token: Token,
        k: u32,
        chunk: u32,
        exists: bool,
    ) -> Option<F::Piece> {
        if !exists || k >= WARP || token.returned >> k & 1 == 0 {
            return None;
        }
        let words = F::row_words(self.shape.hidden) as usize;
        let slot = token.number as usize * self.shape.top_k as usize + k as usize;
        // SAFETY: by the contract of `reduce_tokens`: `[C, K]` rows, and this one is home.
        let row = unsafe { IndirectView::new(self.rows.add(slot * words), words) };
        Some(F::load(row, self.shape.hidden, chunk))
    }

    /// Adds what a position returned.
    #[inline(always)]
    fn add<F: CombineFormat>(
        self,
        sums: Sums,
        piece: Option<F::Piece>,
        token: Token,
        k: u32,
    ) -> Sums {
        // SAFETY: all lanes of the warp are here: `k` is the same for all.
        let (weight, _) =
            unsafe { warp::warp_shuffle_idx(FULL_MASK, token.weight, k % WARP, WARP) };
        let Some(piece) = piece else {
            return sums;
        };
        let [a, b, c, d, e, f, g, h] = sums;
        let pair = |index, low, high| {
            let (first, second) = F::pair(piece, index);
            (
                math::fma(weight, first, low),
                math::fma(weight, second, high),
            )
        };
        let ((a, b), (c, d)) = (pair(0, a, b), pair(1, c, d));
        let ((e, f), (g, h)) = (pair(2, e, f), pair(3, g, h));
        [a, b, c, d, e, f, g, h]
    }

    /// The chunks of the [`CombineFormat::AHEAD`] positions from `first` on, whose loads are under way together; behind
    /// them none. Called by whole warps.
    #[inline(always)]
    unsafe fn ahead<F: CombineFormat>(
        self,
        token: Token,
        first: u32,
        chunk: u32,
        exists: bool,
    ) -> [Option<F::Piece>; 8] {
        // SAFETY: by the contract of `reduce_tokens`.
        let at = |n| unsafe { self.returned::<F>(token, first + n, chunk, exists) };
        let [a, b, c, d] = [at(0), at(1), at(2), at(3)];
        match F::AHEAD {
            8 => [a, b, c, d, at(4), at(5), at(6), at(7)],
            _ => [a, b, c, d, None, None, None, None],
        }
    }

    /// Sums a chunk over the token's experts, and stores it. Called by whole warps; lanes without a chunk do nothing.
    #[inline(always)]
    unsafe fn sum_chunk<F: CombineFormat>(self, token: Token, chunk: u32, exists: bool) {
        let mut sums: Sums = [0.0; 8];
        let mut first = 0;
        while first < self.shape.top_k {
            // SAFETY: by the contract of `reduce_tokens`.
            let ahead = unsafe { self.ahead::<F>(token, first, chunk, exists) };
            let [a, b, c, d, e, f, g, h] = ahead;
            let add = |sums, piece, n| self.add::<F>(sums, piece, token, first + n);
            sums = match self.shape.plants(Fault::LastExpertFirst) {
                false => add(add(add(add(sums, a, 0), b, 1), c, 2), d, 3),
                true => add(add(add(add(sums, d, 3), c, 2), b, 1), a, 0),
            };
            if F::AHEAD == 8 {
                sums = add(add(add(add(sums, e, 4), f, 5), g, 6), h, 7);
            }
            first += F::AHEAD;
        }
        if !exists {
            return;
        }
        let mut elements = F::Element::round(sums);
        let (first, rows) = self
            .shape
            .shared_rows(self.combining.rank.rank, self.tokens);
        let row = token.number.wrapping_sub(first);
        if row < rows && row < self.combining.max_rows {
            // SAFETY: by the contract of `reduce_tokens`; rows of the shared expert are first.
            let shared = unsafe {
                let row = self.combining.output_row(row, self.target_words::<F>());
                F::Element::load(row, chunk as usize)
            };
            elements = add_rounded::<F::Element>(elements, shared);
        }
        // SAFETY: by the contract of `reduce_tokens`.
        let target = unsafe { self.target::<F>(token.number as usize) };
        F::Element::store(target, chunk as usize, elements);
    }

    /// Stores a chunk of each of the token's rows by itself. Called by whole warps.
    #[inline(always)]
    unsafe fn copy_chunk<F: CombineFormat>(self, token: Token, chunk: u32, exists: bool) {
        let mut first = 0;
        while first < self.shape.top_k {
            // SAFETY: by the contract of `reduce_tokens`.
            let ahead = unsafe { self.ahead::<F>(token, first, chunk, exists) };
            let [a, b, c, d, e, f, g, h] = ahead;
            let put = |piece: Option<F::Piece>, n: u32| {
                if let Some(piece) = piece {
                    let row = token.number as usize * self.shape.top_k as usize;
                    // SAFETY: as above; a position that returned is below K.
                    let target = unsafe { self.target::<F>(row + (first + n) as usize) };
                    F::Element::store(target, chunk as usize, F::elements(piece));
                }
            };
            put(a, 0);
            put(b, 1);
            put(c, 2);
            put(d, 3);
            put(e, 4);
            put(f, 5);
            put(g, 6);
            put(h, 7);
            first += F::AHEAD;
        }
    }

    /// Words of a row of the element type.
    #[inline(always)]
    fn target_words<F: CombineFormat>(self) -> usize {
        (self.shape.hidden / CHUNK) as usize * <F::Element as InputFormat>::VECTORS
    }

    /// Row `row` of the target.
    #[inline(always)]
    unsafe fn target<F: CombineFormat>(self, row: usize) -> IndirectViewMut<u32x4> {
        let words = self.target_words::<F>();
        // SAFETY: by the contract of `reduce_tokens`.
        unsafe { IndirectViewMut::new(self.combining.target.add(row * words), words) }
    }
}

/// The sums of two chunks, rounded.
#[inline(always)]
fn add_rounded<E: RowElement>(one: E::Chunk, other: E::Chunk) -> E::Chunk {
    let pair = |index| {
        let ((a, b), (c, d)) = (E::pair(one, index), E::pair(other, index));
        (a + c, b + d)
    };
    let ((a, b), (c, d), (e, f), (g, h)) = (pair(0), pair(1), pair(2), pair(3));
    E::round([a, b, c, d, e, f, g, h])
}
