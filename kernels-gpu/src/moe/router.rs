//! The router: from a token to the experts with the largest logits.

use super::exp::exp;
use super::thread_number;
use crate::formats::{Bf16, InputFormat};
use cuda_std::math;
use cuda_std::prelude::*;
use cuda_std::view::{GlobalView, GlobalViewMut};

/// `logits[token, expert]`: the sum of `tokens[token, h] * router[h, expert]`, in f32, by fused multiply-add, from
/// h = 0 on.
///
/// Launch with [`grid_size`](super::grid_size) of `count * experts` blocks of [`THREADS`](super::THREADS) threads.
///
/// # Safety
///
/// `tokens` holds `[count, hidden]` values of BF16 and is 16-byte aligned, `router` `[hidden, experts]`; `logits` has
/// room for `[count, experts]`. `hidden` is a multiple of 8, and there is at least one expert.
#[kernel(max_threads = 128)]
pub unsafe fn moe_router_logits(
    tokens: *const u32x4,
    router: *const f32,
    count: u32,
    hidden: u32,
    experts: u32,
    logits: *mut f32,
) {
    let (count, hidden, experts) = (count as usize, hidden as usize, experts as usize);
    let index = thread_number();
    let Some(token) = index.checked_div(experts) else {
        return;
    };
    if token >= count {
        return;
    }
    let expert = index - token * experts;
    let chunks = hidden / 8;
    // SAFETY: the caller's obligation.
    let (tokens, router, logits) = unsafe {
        (
            GlobalView::new(tokens, count * chunks),
            GlobalView::new(router, hidden * experts),
            GlobalViewMut::new(logits, count * experts),
        )
    };
    let mut logit = 0.0;
    let mut chunk = 0;
    while chunk < chunks {
        let values = tokens.load(token * chunks + chunk);
        let weight = |element: usize| router.load((chunk * 8 + element) * experts + expert);
        let add_pair = |sum, pair| {
            let (even, odd) = Bf16::pair(values, pair);
            let sum = math::fma(even, weight(2 * pair), sum);
            math::fma(odd, weight(2 * pair + 1), sum)
        };
        logit = add_pair(add_pair(add_pair(add_pair(logit, 0), 1), 2), 3);
        chunk += 1;
    }
    logits.store(index, logit);
}

/// The finite number that stands for a logit: a router that overflowed still chooses experts that exist.
#[inline(always)]
fn finite(logit: f32) -> f32 {
    // Comparisons rather than `clamp`: a NaN counts as the least.
    if logit > f32::MAX {
        f32::MAX
    } else if logit > f32::MIN {
        logit
    } else {
        f32::MIN
    }
}

/// The `top_k` experts with the largest logits of each token, the lower id first among equals, and the softmax over
/// these: `weights[token, k] = exp(l_k - l_0) / sum over k of exp(l_k - l_0)`.
///
/// One thread for a token. Launch with [`grid_size`](super::grid_size) of `count` blocks of
/// [`THREADS`](super::THREADS) threads.
///
/// # Safety
///
/// `logits` holds `[count, experts]` values; `ids` and `weights` have room for `[count, top_k]`. `top_k` is at least
/// 1 and at most `experts`.
#[kernel(max_threads = 128)]
pub unsafe fn moe_router_topk(
    logits: *const f32,
    count: u32,
    experts: u32,
    top_k: u32,
    ids: *mut i32,
    weights: *mut f32,
) {
    let (count, experts, top_k) = (count as usize, experts as usize, top_k as usize);
    let token = thread_number();
    if token >= count {
        return;
    }
    // SAFETY: the caller's obligation.
    let (logits, ids, weights) = unsafe {
        (
            GlobalView::new(logits, count * experts),
            GlobalViewMut::new(ids, count * top_k),
            GlobalViewMut::new(weights, count * top_k),
        )
    };
    // Experts are ordered by falling logit, then by rising id. Each pass finds the first one behind the last
    // choice, so no list of what was chosen is kept.
    let mut chosen = (f32::INFINITY, 0);
    let mut largest = 0.0;
    let mut sum = 0.0;
    let mut k = 0;
    while k < top_k {
        let mut best = (f32::NEG_INFINITY, 0);
        let mut expert = 0;
        while expert < experts {
            let logit = finite(logits.load(token * experts + expert));
            let behind = logit < chosen.0 || (logit == chosen.0 && expert > chosen.1);
            if behind && logit > best.0 {
                best = (logit, expert);
            }
            expert += 1;
        }
        chosen = best;
        if k == 0 {
            largest = chosen.0;
        }
        let weight = exp(chosen.0 - largest);
        sum += weight;
        ids.store(token * top_k + k, chosen.1 as i32);
        weights.store(token * top_k + k, weight);
        k += 1;
    }
    let mut k = 0;
    while k < top_k {
        let position = token * top_k + k;
        weights.store(position, weights.load(position) / sum);
        k += 1;
    }
}
