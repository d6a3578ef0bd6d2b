//! The arithmetic and the writing side: what becomes of a row.

use super::source::{Loaded, Source};
use super::{CHUNKS_PER_LANE, RUN_COLUMNS};
use crate::WARP;
use crate::formats::{
    Amax, BlockFormat, CHUNK, CommonScale, ElementFormat, InputFormat, Multiplier, Rules,
    TensorScale,
};
use crate::scale_tile;
use cuda_std::view::{GlobalViewMut, SharedView};
use cuda_std::{math, misc, warp};

/// All lanes of a warp.
const FULL_MASK: u32 = u32::MAX;

/// The rows of a tile and all that is needed to quantize them, for one lane.
pub(super) struct Tile<F: BlockFormat> {
    pub source: Source,
    /// The expert's tensor-wise factor.
    pub encode: f32,
    pub rules: Rules,
    pub prepared: F::Prepared,
    pub table: SharedView<f32>,
    /// From [`Tile::scale_place`].
    pub scale_place: u32,
    /// From this lane's first chunk of the first row on.
    pub data: GlobalViewMut<Packed<F>>,
    /// Bytes of `data` from a row to the next.
    pub pitch: u32,
    /// Scale tiles of the warp's run.
    pub staging: SharedView<u8>,
    pub swizzle_mask: u32,
}

/// What becomes of a row, for one lane.
#[derive(Clone, Copy)]
struct Quantized<P> {
    row: u32,
    first: P,
    second: P,
    scale: u8,
}

/// A stored chunk of a block format.
type Packed<F> = <<F as BlockFormat>::Element as ElementFormat>::Packed;

impl<F: BlockFormat> Tile<F> {
    /// Lanes that share a block.
    const LANES_PER_BLOCK: u32 = F::BLOCK / (CHUNKS_PER_LANE * CHUNK);

    /// Handles [`ROWS_IN_FLIGHT`](super::ROWS_IN_FLIGHT) rows: `row` and `row + stride`, if the tile has
    /// it. Returns false if they were left alone.
    ///
    /// `TWO` is for when there usually is a second row: it is then quantized even if there is none, as that
    /// takes fewer instructions than to ask.
    #[inline(always)]
    pub fn work<I: InputFormat, const TWO: bool, const TWIN: bool>(
        &self,
        row: u32,
        stride: u32,
        loaded: (Loaded<I>, Loaded<I>),
    ) -> bool {
        let rows = (row, row + stride);
        if TWIN {
            self.copy::<I, TWO>(rows, loaded);
            true
        } else if TWO || rows.1 < self.source.rows {
            self.quantize::<I, true>(rows, loaded)
        } else {
            self.quantize::<I, false>(rows, loaded)
        }
    }

    /// What is left of [`quantize`](Self::quantize) in the traffic twin: every loaded bit goes into the
    /// stored ones, or the compiler would shorten the loads.
    #[inline(always)]
    fn copy<I: InputFormat, const TWO: bool>(
        &self,
        rows: (u32, u32),
        loaded: (Loaded<I>, Loaded<I>),
    ) {
        let folded = |row, loaded: Loaded<I>| {
            let (first, second) = (I::folded(loaded.first), I::folded(loaded.second));
            Quantized {
                row,
                first: F::Element::folded(first),
                second: F::Element::folded(second),
                scale: (first ^ second)[0] as u8,
            }
        };
        if TWO || rows.1 < self.source.rows {
            self.store_two(folded(rows.0, loaded.0), folded(rows.1, loaded.1));
        } else {
            self.store(folded(rows.0, loaded.0));
        }
    }

    /// Quantizes one row of common blocks, or `TWO`. If there are others, returns false and does nothing.
    ///
    /// Two at a time, so that the instructions of one row fill the waits of the other. The second is left
    /// out if the tile does not have it.
    ///
    /// Called by whole warps: lanes exchange their largest magnitudes.
    #[inline(always)]
    fn quantize<I: InputFormat, const TWO: bool>(
        &self,
        rows: (u32, u32),
        loaded: (Loaded<I>, Loaded<I>),
    ) -> bool {
        let one = self.common_scale(loaded.0);
        let other = if TWO {
            self.common_scale(loaded.1)
        } else {
            one
        };
        // Decisions of the whole warp, so that lanes stay together for their next exchange.
        // SAFETY: every lane of the warp is here: rows are handed out to whole warps.
        let all = |condition| unsafe { warp::warp_vote_all(FULL_MASK, condition) };
        if all(one.common && other.common) {
            let quantized = |row, loaded, scale: CommonScale| {
                self.quantized(row, loaded, F::multiplier(scale.factor), scale.code, false)
            };
            let first = quantized(rows.0, loaded.0, one);
            if TWO {
                self.store_two(first, quantized(rows.1, loaded.1, other));
            } else {
                self.store(first);
            }
            true
        } else if F::SATURATES && all(one.finite && other.finite) {
            let quantized = |row, loaded, scale: CommonScale| {
                let multiplier = Multiplier::Number(scale.factor);
                self.quantized(row, loaded, multiplier, scale.code, scale.dead)
            };
            let first = quantized(rows.0, loaded.0, one);
            if TWO {
                self.store_two(first, quantized(rows.1, loaded.1, other));
            } else {
                self.store(first);
            }
            true
        } else {
            false
        }
    }

    /// A row of this lane, given its scale. The elements of a `dead` block are +0.
    #[inline(always)]
    fn quantized<I: InputFormat>(
        &self,
        row: u32,
        loaded: Loaded<I>,
        multiplier: Multiplier,
        scale: u8,
        dead: bool,
    ) -> Quantized<Packed<F>> {
        let chunk = |chunk| {
            if dead {
                F::Element::zeros()
            } else {
                F::Element::quantize_chunk::<I>(chunk, multiplier)
            }
        };
        Quantized {
            row,
            first: chunk(loaded.first),
            second: chunk(loaded.second),
            scale,
        }
    }

    /// The scale of this lane's block in a row. Called by whole warps.
    #[inline(always)]
    fn common_scale<I: InputFormat>(&self, loaded: Loaded<I>) -> CommonScale {
        let amax = I::amax_or_nan(loaded.first, loaded.second);
        let mut scale = F::common_scale::<I>(self.block_amax(amax), self.prepared, self.table);
        scale.common &= loaded.exists;
        scale.finite &= loaded.exists;
        scale
    }

    /// Quantizes a row, whatever is in it. Called by whole warps.
    ///
    /// This is for rare rows, and must not take more registers than the common ones: it reads a chunk
    /// again rather than keep it.
    #[inline(always)]
    pub fn quantize_with_care<I: InputFormat>(&self, row: u32) {
        let chunk = |which| self.source.load_or_zeros::<I>(row, which);
        let mut amax = I::amax_or_nan(chunk(0), chunk(1));
        if amax.is_nan() && !self.rules.propagate_nan() {
            amax = I::amax_of_numbers(chunk(0)).max(I::amax_of_numbers(chunk(1)));
        }
        let amax = self.block_amax(amax);
        let tensor = TensorScale::new(self.encode);
        let scale = F::block_scale(amax.to_f32(), tensor, self.rules);
        let mut which = 0;
        while misc::hidden(which) < CHUNKS_PER_LANE {
            let packed = if scale.dead {
                F::Element::zeros()
            } else {
                F::Element::quantize_chunk::<I>(chunk(which), Multiplier::Any(scale.factor))
            };
            if self.source.chunk + which < self.source.chunks_per_row {
                let offset = self.data_offset(row) + which as usize * size_of::<Packed<F>>();
                self.data.store_at(offset, packed);
            }
            which += 1;
        }
        if self.source.has_chunk() {
            self.stage_scale(row, scale.code);
        }
    }

    /// Stores two rows; the first twice if the tile does not have the second.
    ///
    /// Without a branch about the second, which would keep its arithmetic apart from the first's.
    #[inline(always)]
    fn store_two(&self, one: Quantized<Packed<F>>, other: Quantized<Packed<F>>) {
        let other = if other.row < self.source.rows {
            other
        } else {
            one
        };
        if !self.source.has_chunk() {
            return;
        }
        if self.source.chunks_per_row.is_multiple_of(CHUNKS_PER_LANE) {
            self.store_in_one_access(one);
            self.store_in_one_access(other);
        } else {
            self.store_by_chunks(one);
            self.store_by_chunks(other);
        }
        self.stage_scale(one.row, one.scale);
        self.stage_scale(other.row, other.scale);
    }

    /// Stores a row.
    #[inline(always)]
    fn store(&self, quantized: Quantized<Packed<F>>) {
        if !self.source.has_chunk() {
            return;
        }
        if self.source.chunks_per_row.is_multiple_of(CHUNKS_PER_LANE) {
            self.store_in_one_access(quantized);
        } else {
            self.store_by_chunks(quantized);
        }
        self.stage_scale(quantized.row, quantized.scale);
    }

    /// Where this lane's part of a row begins in `data`, in bytes.
    #[inline(always)]
    fn data_offset(&self, row: u32) -> usize {
        math::mul_wide(self.source.first_row + row, self.pitch) as usize
    }

    /// For rows that are a whole number of chunk pairs, and so aligned for them.
    #[inline(always)]
    fn store_in_one_access(&self, quantized: Quantized<Packed<F>>) {
        let Quantized {
            row, first, second, ..
        } = quantized;
        let pair = F::Element::concat(first, second);
        // SAFETY: the same memory. Lanes begin at even chunks, and so do rows here.
        let pairs = unsafe {
            self.data
                .cast::<<F::Element as ElementFormat>::PackedPair>()
        };
        pairs.store_at(self.data_offset(row), pair);
    }

    #[inline(always)]
    fn store_by_chunks(&self, quantized: Quantized<Packed<F>>) {
        let Quantized {
            row, first, second, ..
        } = quantized;
        let offset = self.data_offset(row);
        self.data.store_at(offset, first);
        if self.source.has_second_chunk() {
            let chunk = size_of::<Packed<F>>();
            self.data.store_at(offset + chunk, second);
        }
    }

    /// No scale leaves from this lane: it is not its block's first.
    const NO_PLACE: u32 = u32::MAX;

    /// Where in the staging area the scale of this lane's block lies for row 0, or [`Self::NO_PLACE`].
    ///
    /// In one register: the compiler would keep the place and the condition in two.
    #[inline(always)]
    pub fn scale_place(lane: u32) -> u32 {
        misc::hidden(if lane.is_multiple_of(Self::LANES_PER_BLOCK) {
            let block = lane / Self::LANES_PER_BLOCK;
            // The staging area is a scales tensor of one row tile.
            scale_tile::offset_in_tensor(0, 0, block, RUN_COLUMNS / F::TILE_COLUMNS) as u32
        } else {
            Self::NO_PLACE
        })
    }

    /// Puts the scale of this lane's block where it leaves from, if the lane is its block's first.
    #[inline(always)]
    fn stage_scale(&self, row: u32, scale: u8) {
        if self.scale_place != Self::NO_PLACE {
            let offset = self.scale_place + scale_tile::offset_in_tile(row, 0) as u32;
            let offset = scale_tile::swizzled(offset, self.swizzle_mask);
            self.staging.store(offset as usize, scale);
        }
    }

    /// The largest magnitude of the block that this lane's chunks belong to.
    #[inline(always)]
    fn block_amax(&self, mut amax: Amax) -> Amax {
        let mut distance = 1;
        while distance < Self::LANES_PER_BLOCK {
            // SAFETY: every lane of the warp is here: rows are handed out to whole warps.
            let (other, _) =
                unsafe { warp::warp_shuffle_xor(FULL_MASK, amax.to_word(), distance, WARP) };
            amax = amax.max(Amax::from_word(other));
            distance *= 2;
        }
        amax
    }
}
