//! The way back: expert outputs to their tokens.

use half::bf16;

use super::{ExpectedRows, RankTokens, Setup, counted};
use crate::reference::formats::bf16_widen;
use crate::reference::{ReferenceError, check_length};

/// What a rank's experts made of the rows that it received.
#[derive(Clone, Copy, Debug)]
pub struct CombineInput<'a> {
    /// The rows after dispatch.
    pub rows: &'a ExpectedRows,
    /// `[rows, 2]` or longer: (token, k) of every routed row, as dispatch left it.
    pub src_info: &'a [[i32; 2]],
    /// `[rows, H]` or longer: bfloat16 bit patterns, in the order of the received rows.
    pub outputs: &'a [u16],
}

impl CombineInput<'_> {
    /// The row of local expert `expert` that came from `(token, k)` of rank `source`.
    fn row(
        &self,
        setup: &Setup,
        source: usize,
        expert: usize,
        token: usize,
        k: usize,
    ) -> Option<&[u16]> {
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

/// The combined tokens of rank `me`, `[T, H]` bfloat16 bit patterns.
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
    ranks: &[CombineInput<'_>],
    weights: Weights<'_>,
) -> Result<Vec<u16>, ReferenceError> {
    let tokens = check(setup, own, ranks)?;
    check_length(
        "router weights",
        tokens * setup.top_k,
        weights.weights.len(),
    )?;
    let hidden = setup.hidden_size;
    let mut output = vec![0; tokens * hidden];
    for (token, target) in output.chunks_mut(hidden).enumerate() {
        let mut sums = vec![0.0_f32; hidden];
        for (k, row) in rows_of_token(setup, me, own, ranks, token) {
            let weight = weights.weights[token * setup.top_k + k];
            for (sum, &bits) in sums.iter_mut().zip(row) {
                let value = bf16_widen(bits);
                *sum = match weights.fused {
                    true => weight.mul_add(value, *sum),
                    false => *sum + weight * value,
                };
            }
        }
        let shared = ranks[me].rows.shared_tokens.clone();
        let shared_row = shared.contains(&token).then(|| {
            let row = token - shared.start;
            &ranks[me].outputs[row * hidden..][..hidden]
        });
        for (column, (target, sum)) in target.iter_mut().zip(sums).enumerate() {
            let routed = bf16::from_f32(sum);
            *target = match shared_row {
                Some(row) => bf16::from_f32(routed.to_f32() + bf16_widen(row[column])).to_bits(),
                None => routed.to_bits(),
            };
        }
    }
    Ok(output)
}

/// The expert outputs of rank `me`'s tokens, unweighted: `[T, K, H]` over `before`, whose content stays
/// where a position has no expert.
///
/// # Errors
/// As [`combine`].
///
/// # Panics
/// As [`combine`].
pub fn combine_unweighted(
    setup: &Setup,
    me: usize,
    own: &RankTokens<'_>,
    ranks: &[CombineInput<'_>],
    before: &[u16],
) -> Result<Vec<u16>, ReferenceError> {
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

fn check(
    setup: &Setup,
    own: &RankTokens<'_>,
    ranks: &[CombineInput<'_>],
) -> Result<usize, ReferenceError> {
    check_length("ranks", setup.ranks, ranks.len())?;
    for rank in ranks {
        rank.check(setup)?;
    }
    own.count(setup)
}

/// The expert outputs of a token with their positions, in the order of k.
fn rows_of_token<'a>(
    setup: &'a Setup,
    me: usize,
    own: &'a RankTokens<'_>,
    ranks: &'a [CombineInput<'_>],
    token: usize,
) -> impl Iterator<Item = (usize, &'a [u16])> + 'a {
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
