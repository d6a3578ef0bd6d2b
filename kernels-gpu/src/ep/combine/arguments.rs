//! What the entries are given beside the shape.

use super::super::arguments::{Counters, Rank, Shape};
use core::simd::{u32x2, u32x4};
use cuda_std::cvt;
use cuda_std::view::{IndirectView, IndirectViewMut};

/// The element type of router weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WeightType {
    /// There are none: rows come back one by one.
    None = 0,
    /// IEEE binary32.
    F32 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// IEEE binary16.
    F16 = 3,
}

/// One rank's part in a combine.
///
/// Sending reads `rank`, `outputs` and `max_rows`; receiving reads the rest, and `outputs` for the shared expert.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Combining {
    /// The rank as in the dispatch that is combined: its `output` is what that left; `topk_ids`, `token_limit` and
    /// `token_count` are its batch. `peers` are the combine buffers: `[C, K]` rows, and `[nl, R]` counts by the
    /// *sender's* local expert and rank. `send_rows` has a row for each of the output's, where there are several
    /// nodes. `counters` are [`Counters`] of no pairs. The rest has no meaning.
    pub rank: Rank,
    /// `[max_rows, H]`: what the experts made of the rows.
    pub outputs: *const u32x4,
    /// Rows of `outputs`. Rows beyond it are not sent.
    pub max_rows: u32,
    /// A [`WeightType`].
    pub weight_type: u32,
    /// `[token_limit, K]` router weights, or null.
    pub weights: *const u8,
    /// `[token_limit, H]`; without weights `[token_limit, K, H]`.
    pub target: *mut u32x4,
}

impl Combining {
    /// The counters of a combine: no pairs, so the two single words alone.
    ///
    /// # Safety
    ///
    /// As the entries demand.
    #[inline(always)]
    pub(super) unsafe fn counters(&self) -> Counters {
        // SAFETY: the caller's obligation.
        unsafe { Counters::new(self.rank.counters, 0, 0) }
    }

    /// The pairs that dispatch left.
    ///
    /// # Safety
    ///
    /// As the entries demand.
    #[inline(always)]
    pub(super) unsafe fn pairs(&self, shape: &Shape) -> IndirectViewMut<u32x2> {
        // SAFETY: the caller's obligation.
        unsafe { IndirectViewMut::new(self.rank.output.pairs, shape.pairs() as usize) }
    }

    /// Row `row` of the experts' outputs, `words` vectors long.
    ///
    /// # Safety
    ///
    /// As the entries demand, and `row` is below `max_rows`.
    #[inline(always)]
    pub(super) unsafe fn output_row(&self, row: u32, words: usize) -> IndirectView<u32x4> {
        // SAFETY: the caller's obligation.
        unsafe { IndirectView::new(self.outputs.add(row as usize * words), words) }
    }

    /// Router weight `index`, widened; 1 if there are none.
    ///
    /// # Safety
    ///
    /// As the entries demand, and `index` is a weight of a token.
    #[inline(always)]
    pub(super) unsafe fn weight(&self, index: usize) -> f32 {
        // SAFETY: the caller's obligation, for both.
        let half =
            || unsafe { IndirectView::<u16>::new(self.weights.cast(), index + 1) }.load(index);
        match self.weight_type {
            t if t == WeightType::F32 as u32 => {
                // SAFETY: as above.
                unsafe { IndirectView::<f32>::new(self.weights.cast(), index + 1) }.load(index)
            }
            t if t == WeightType::Bf16 as u32 => f32::from_bits((half() as u32) << 16),
            t if t == WeightType::F16 as u32 => cvt::cvt_f32_f16(half()),
            _ => 1.0,
        }
    }
}
