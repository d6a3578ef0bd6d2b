//! The way back: expert outputs to their tokens.

use half::{bf16, f16};
use rayon::prelude::*;

use super::{ExpectedRows, RankTokens, Setup, counted};
use crate::ep::RowElement;
use crate::reference::{ReferenceError, check_length};

/// What a rank's experts made of the rows that it received, in elements of `T`.
#[derive(Clone, Copy, Debug)]
pub struct CombineInput<'a, T> {
    /// The rows after dispatch.
    pub rows: &'a ExpectedRows,
    /// `[rows, 2]` or longer: (token, k) of every routed row, as dispatch left it.
    pub src_info: &'a [[i32; 2]],
    /// `[rows, H]` or longer, in the order of the received rows.
    pub outputs: &'a [T],
}

impl<T> CombineInput<'_, T> {
    /// The row of local expert `expert` that came from `(token, k)` of rank `source`.
    fn row(
        &self,
        setup: &Setup,
        source: usize,
        expert: usize,
        token: usize,
        k: usize,
    ) -> Option<&[T]> {
        let cell = match setup.skip_a2a {
            true => &self.rows.cells[expert],
            false => &self.rows.cells[expert * setup.ranks + source],
        };
        let mut rows = cell.rows.clone();
        let row = rows.find(|&row| self.src_info[row] == [token as i32, k as i32])?;
        Some(&self.outputs[row * setup.hidden_size..][..setup.hidden_size])
    }

    fn check(&self, setup: &Setup) -> Result<(), ReferenceError> {
        let rows = self.rows.rows();
        let enough =
            |what, expected, given: usize| check_length(what, expected, given.min(expected));
        enough(
            "expert outputs",
            rows * setup.hidden_size,
            self.outputs.len(),
        )?;
        enough("src_info", rows, self.src_info.len())
    }
}

/// Router weights `[T, K]` as FP32, and how a product joins the sum.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// `[T, K]`
    pub weights: &'a [f32],
    /// Whether product and sum are rounded once (a fused multiply-add) or each.
    pub fused: bool,
}

/// The combined tokens of rank `me`, `[T, H]`, rounded to `element` and widened again.
///
/// `ranks` holds expert outputs widened to FP32: as they come home, which is what [`returned_row`](super::returned_row)
/// makes of rows that travel quantized.
///
/// For each element an FP32 sum from 0 takes in `w[t, k] * y` for k = 0 to K - 1, and is rounded once,
/// to nearest even. Positions without an expert add nothing, so that a token without any is 0. With a
/// shared expert, its output is added to the rounded sum, and the result rounded again. Under skip mode
/// only this rank's experts and its slice of the shared expert's rows take part: an all-reduce adds the
/// rest.
///
/// # Errors
/// [`ReferenceError::Length`]: tensors that do not fit the setup.
///
/// # Panics
/// Panics when a row that must be there is not in `src_info`.
pub fn combine(
    setup: &Setup,
    me: usize,
    own: &RankTokens<'_>,
    ranks: &[CombineInput<'_, f32>],
    weights: Weights<'_>,
    element: RowElement,
) -> Result<Vec<f32>, ReferenceError> {
    let tokens = check(setup, own, ranks)?;
    check_length(
        "router weights",
        tokens * setup.top_k,
        weights.weights.len(),
    )?;
    let hidden = setup.hidden_size;
    let shared = ranks[me].rows.shared_tokens.clone();
    let mut output = vec![0.0; tokens * hidden];
    let targets = output.par_chunks_mut(hidden).enumerate();
    targets.for_each(|(token, sums)| {
        for (k, row) in rows_of_token(setup, me, own, ranks, token) {
            let weight = weights.weights[token * setup.top_k + k];
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum = match weights.fused {
                    true => weight.mul_add(value, *sum),
                    false => *sum + weight * value,
                };
            }
        }
        for sum in sums.iter_mut() {
            *sum = round(element, *sum);
        }
        if shared.contains(&token) {
            let row = &ranks[me].outputs[(token - shared.start) * hidden..][..hidden];
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum = round(element, *sum + value);
            }
        }
    });
    Ok(output)
}

/// Rounds to nearest even, and widens again.
fn round(element: RowElement, value: f32) -> f32 {
    match element {
        RowElement::Bf16 => bf16::from_f32(value).to_f32(),
        RowElement::F16 => f16::from_f32(value).to_f32(),
        RowElement::F32 => value,
    }
}

/// The expert outputs of rank `me`'s tokens, unweighted: `[T, K, H]` over `before`, whose content stays
/// where a position has no expert.
///
/// # Errors
/// As [`combine`].
///
/// # Panics
/// As [`combine`].
pub fn combine_unweighted<T: Copy>(
    setup: &Setup,
    me: usize,
    own: &RankTokens<'_>,
    ranks: &[CombineInput<'_, T>],
    before: &[T],
) -> Result<Vec<T>, ReferenceError> {
    let tokens = check(setup, own, ranks)?;
    let hidden = setup.hidden_size;
    check_length("before", tokens * setup.top_k * hidden, before.len())?;
    let mut output = before.to_vec();
    for token in 0..tokens {
        for (k, row) in rows_of_token(setup, me, own, ranks, token) {
            output[(token * setup.top_k + k) * hidden..][..hidden].copy_from_slice(row);
        }
    }
    Ok(output)
}

fn check<T>(
    setup: &Setup,
    own: &RankTokens<'_>,
    ranks: &[CombineInput<'_, T>],
) -> Result<usize, ReferenceError> {
    check_length("ranks", setup.ranks, ranks.len())?;
    for rank in ranks {
        rank.check(setup)?;
    }
    own.count(setup)
}

/// The expert outputs of a token with their positions, in the order of k.
fn rows_of_token<'a, T>(
    setup: &'a Setup,
    me: usize,
    own: &'a RankTokens<'_>,
    ranks: &'a [CombineInput<'_, T>],
    token: usize,
) -> impl Iterator<Item = (usize, &'a [T])> + 'a {
    let ids = &own.topk_ids[token * setup.top_k..][..setup.top_k];
    counted(ids).filter_map(move |(k, id)| {
        let experts = setup.local_experts();
        let (rank, expert) = (id as usize / experts, id as usize % experts);
        if rank >= setup.ranks || (setup.skip_a2a && rank != me) {
            return None;
        }
        let row = ranks[rank].row(setup, me, expert, token, k);
        Some((
            k,
            row.unwrap_or_else(|| {
                panic!("rank {rank} lacks token {token}, position {k} of rank {me}")
            }),
        ))
    })
}
