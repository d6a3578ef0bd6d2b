//! The arithmetic and the writing side: what becomes of a row.

use super::source::{Loaded, Source};
use super::{CHUNKS_PER_LANE, RUN_COLUMNS};
use crate::WARP;
use crate::formats::{
    Amax, BlockFormat, CHUNK, ElementFormat, InputFormat, Multiplier, Rules, TensorScale,
};
use crate::scale_tile;
use cuda_std::view::{GlobalViewMut, SharedView};
use cuda_std::warp;

/// All lanes of a warp.
const FULL_MASK: u32 = u32::MAX;

/// The rows of a tile and all that is needed to quantize them, for one lane.
pub(super) struct Tile<F: BlockFormat> {
    pub source: Source,
    pub tensor_scale: TensorScale,
    pub rules: Rules,
    pub prepared: F::Prepared,
    pub table: SharedView<f32>,
    pub lane: u32,
    /// From this lane's first chunk of the first row on: the same memory by chunks and by pairs of
    /// chunks.
    pub data: GlobalViewMut<<F::Element as ElementFormat>::Packed>,
    pub data_pairs: GlobalViewMut<<F::Element as ElementFormat>::PackedPair>,
    /// Bytes of `data` from a row to the next.
    pub pitch: u32,
    /// Scale tiles of the warp's run.
    pub staging: SharedView<u8>,
    pub swizzle_mask: u32,
}

impl<F: BlockFormat> Tile<F> {
    /// Lanes that share a block.
    const LANES_PER_BLOCK: u32 = F::BLOCK / (CHUNKS_PER_LANE * CHUNK);

    /// What is left of [`quantize`](Self::quantize) in the traffic twin: every loaded bit goes into the
    /// stored ones, or the compiler would shorten the loads.
    #[inline(always)]
    pub fn copy<I: InputFormat>(&self, row: u32, loaded: Loaded<I>) {
        let (first, second) = (I::folded(loaded.first), I::folded(loaded.second));
        let scale = (first ^ second)[0] as u8;
        self.store(
            row,
            F::Element::folded(first),
            F::Element::folded(second),
            scale,
        );
    }

    /// Quantizes a row of common blocks. If there are others, returns false and does nothing.
    ///
    /// Called by whole warps: lanes exchange their largest magnitudes.
    #[inline(always)]
    pub fn quantize<I: InputFormat>(&self, row: u32, loaded: Loaded<I>) -> bool {
        let Loaded {
            first,
            second,
            exists,
        } = loaded;
        let amax = I::amax_or_nan(first).max(I::amax_or_nan(second));
        let scale = F::common_scale::<I>(self.block_amax(amax), self.prepared, self.table);
        // Decisions of the whole warp, so that lanes stay together for their next exchange.
        // SAFETY: every lane of the warp is here: rows are handed out to whole warps.
        let all = |condition| unsafe { warp::warp_vote_all(FULL_MASK, condition) };
        let quantize = |chunk, multiplier| F::Element::quantize_chunk::<I>(chunk, multiplier);
        if all(exists && scale.common) {
            let multiplier = F::multiplier(scale.factor);
            let (first, second) = (quantize(first, multiplier), quantize(second, multiplier));
            self.store(row, first, second, scale.code);
            true
        } else if F::SATURATES && all(exists && (scale.common || scale.saturating)) {
            let multiplier = Multiplier::Number(scale.factor);
            let (first, second) = if scale.saturating && scale.code == 0 {
                // The block decodes to zeros whatever its elements are.
                (F::Element::zeros(), F::Element::zeros())
            } else {
                (quantize(first, multiplier), quantize(second, multiplier))
            };
            self.store(row, first, second, scale.code);
            true
        } else {
            false
        }
    }

    /// Quantizes a row, whatever is in it. Called by whole warps.
    #[inline(always)]
    pub fn quantize_with_care<I: InputFormat>(&self, row: u32) {
        let Loaded { first, second, .. } = self.source.load_or_zeros::<I>(row);
        let mut amax = I::amax_or_nan(first).max(I::amax_or_nan(second));
        let has_nan = amax.is_nan();
        if has_nan && !self.rules.propagate_nan() {
            amax = I::amax_of_numbers(first).max(I::amax_of_numbers(second));
        }
        let amax = self.block_amax(amax);
        let scale = F::block_scale(amax.to_f32(), self.tensor_scale, self.rules);
        let multiplier = if has_nan {
            Multiplier::Any(scale.multiplier.factor())
        } else {
            scale.multiplier
        };
        let quantize = |chunk| {
            if scale.dead {
                F::Element::zeros()
            } else {
                F::Element::quantize_chunk::<I>(chunk, multiplier)
            }
        };
        self.store(row, quantize(first), quantize(second), scale.code);
    }

    /// Stores this lane's chunks of a row, and their block's scale if this is its first lane.
    #[inline(always)]
    fn store(
        &self,
        row: u32,
        first: <F::Element as ElementFormat>::Packed,
        second: <F::Element as ElementFormat>::Packed,
        scale: u8,
    ) {
        if !self.source.has_chunk() {
            return;
        }
        self.store_elements(row, first, second);
        if self.lane.is_multiple_of(Self::LANES_PER_BLOCK) {
            let block = self.lane / Self::LANES_PER_BLOCK;
            // The staging area is a scales tensor of one row tile.
            let offset = scale_tile::offset_in_tensor(0, row, block, RUN_COLUMNS / F::TILE_COLUMNS);
            self.staging
                .store(scale_tile::swizzled(offset, self.swizzle_mask), scale);
        }
    }

    /// Stores this lane's chunks of a row: in one access where every row is aligned for it.
    #[inline(always)]
    fn store_elements(
        &self,
        row: u32,
        first: <F::Element as ElementFormat>::Packed,
        second: <F::Element as ElementFormat>::Packed,
    ) {
        let row = self.source.first_row + row;
        let offset = row as usize * self.pitch as usize;
        if self.source.chunks_per_row.is_multiple_of(CHUNKS_PER_LANE) {
            self.data_pairs
                .store_at(offset, F::Element::concat(first, second));
        } else {
            self.data.store_at(offset, first);
            if self.source.has_second_chunk() {
                let chunk = size_of::<<F::Element as ElementFormat>::Packed>();
                self.data.store_at(offset + chunk, second);
            }
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
