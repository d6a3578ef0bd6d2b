//! Collectives of a warp.

use cuda_std::prelude::*;
use cuda_std::warp::*;

use super::results::Results;

const ALL: u32 = u32::MAX;

/// Words per thread of [`shuffles`].
pub const SHUFFLES: usize = 8 * 2 + 8 + 3 * 2 + 2 * 4 + 2 * 2;

/// Every shuffle, with full and partial widths, of every type.
///
/// # Safety
///
/// `out` has room for [`SHUFFLES`] words per thread; blocks are whole warps.
#[kernel]
pub unsafe fn shuffles(out: *mut u32) {
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, SHUFFLES) };
    let t = thread::thread_idx_x();
    let x = t.wrapping_mul(0x9e37_79b9);
    let mut push = |(value, valid): (u32, bool)| {
        results.push(value);
        results.push(u32::from(valid));
    };
    // SAFETY: all lanes take part in all of them.
    unsafe {
        push(warp_shuffle_xor(ALL, x, 5, 32));
        push(warp_shuffle_xor(ALL, x, 12, 8));
        push(warp_shuffle_up(ALL, x, 3, 32));
        push(warp_shuffle_up(ALL, x, 3, 8));
        push(warp_shuffle_down(ALL, x, 3, 32));
        push(warp_shuffle_down(ALL, x, 3, 8));
        push(warp_shuffle_idx(ALL, x, t + 7, 32));
        push(warp_shuffle_idx(ALL, x, t + 7, 8));

        let wide =
            u128::from(x) << 96 | u128::from(!x) << 64 | u128::from(x ^ t) << 32 | u128::from(t);
        results.push(warp_shuffle_xor(ALL, x as i8, 1, 32).0 as u32);
        results.push(u32::from(warp_shuffle_xor(ALL, x as u8, 1, 32).0));
        results.push(warp_shuffle_xor(ALL, x as i16, 1, 32).0 as u32);
        results.push(u32::from(warp_shuffle_xor(ALL, x as u16, 1, 32).0));
        results.push(warp_shuffle_xor(ALL, x as i32, 1, 32).0 as u32);
        results.push(warp_shuffle_xor(ALL, f32::from_bits(t), 1, 32).0.to_bits());
        results.push(u32::from(
            warp_shuffle_xor(ALL, f16::from_bits(t as u16), 1, 32)
                .0
                .to_bits(),
        ));
        results.push(u32::from(
            warp_shuffle_xor(ALL, bf16::from_bits(t as u16), 1, 32)
                .0
                .to_bits(),
        ));
        results.push_u64(warp_shuffle_xor(ALL, wide as u64, 1, 32).0);
        results.push_u64(warp_shuffle_xor(ALL, wide as i64, 1, 32).0 as u64);
        results.push_u64(
            warp_shuffle_xor(ALL, f64::from_bits(wide as u64), 1, 32)
                .0
                .to_bits(),
        );
        let (moved, _) = warp_shuffle_xor(ALL, wide, 1, 32);
        results.push_u64(moved as u64);
        results.push_u64((moved >> 64) as u64);
        let (moved, _) = warp_shuffle_xor(ALL, wide as i128, 1, 32);
        results.push_u64(moved as u64);
        results.push_u64((moved >> 64) as u64);

        // Half a warp; the other half takes part in its own.
        let half = if lane_id() < 16 { 0xffff } else { 0xffff_0000 };
        let (value, valid) = warp_shuffle_xor(half, x, 1, 32);
        results.push(value);
        results.push(u32::from(valid));
        let (value, valid) = warp_shuffle_down(half, x, 1, 16);
        results.push(value);
        results.push(u32::from(valid));
    }
}

/// Words per thread of [`votes`].
pub const VOTES: usize = 19;

/// Every vote and match.
///
/// # Safety
///
/// `out` has room for [`VOTES`] words per thread; blocks are whole warps.
#[kernel]
pub unsafe fn votes(out: *mut u32) {
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, VOTES) };
    let lane = lane_id();
    // SAFETY: all lanes take part in all of them.
    unsafe {
        results.push(u32::from(warp_vote_all(ALL, lane < 32)));
        results.push(u32::from(warp_vote_all(ALL, lane < 31)));
        results.push(u32::from(warp_vote_any(ALL, lane == 3)));
        results.push(u32::from(warp_vote_any(ALL, lane == 33)));
        results.push(warp_vote_ballot(ALL, lane.is_multiple_of(3)));
        let third = lane / 3;
        results.push(warp_match_any(ALL, third));
        results.push(warp_match_any(ALL, third as i32));
        results.push(warp_match_any(ALL, third as f32));
        results.push(warp_match_any(ALL, u64::from(third) << 32));
        results.push(warp_match_any(ALL, i64::from(third) << 32));
        results.push(warp_match_any(ALL, f64::from(third)));
        for all in [
            warp_match_all(ALL, 7u32),
            warp_match_all(ALL, third),
            warp_match_all(ALL, 7i32),
            warp_match_all(ALL, 7f32),
            warp_match_all(ALL, 7u64),
            warp_match_all(ALL, i64::from(third)),
            warp_match_all(ALL, 7f64),
        ] {
            results.push(all.unwrap_or(0));
        }
        sync_warp(ALL);
        results.push(activemask());
    }
}

/// Words per thread of [`reductions`].
pub const REDUCTIONS: usize = 14;

/// Every reduction.
///
/// # Safety
///
/// `out` has room for [`REDUCTIONS`] words per thread; blocks are whole warps.
#[kernel]
pub unsafe fn reductions(out: *mut u32) {
    use WarpReductionOp::{Add, And, Max, Min, Or, Xor};
    // SAFETY: the kernel's contract.
    let mut results = unsafe { Results::new(out, REDUCTIONS) };
    let lane = lane_id();
    let x = lane.wrapping_add(3).wrapping_mul(0x9e37_79b9);
    // SAFETY: all lanes of the mask take part.
    unsafe {
        results.push(warp_reduce(ALL, x, Add));
        results.push(warp_reduce(ALL, x, Min));
        results.push(warp_reduce(ALL, x, Max));
        results.push(warp_reduce(ALL, x | 1 << 20, And));
        results.push(warp_reduce(ALL, x & 0x00ff_00ff, Or));
        results.push(warp_reduce(ALL, x, Xor));
        let x = x as i32;
        results.push(warp_reduce(ALL, x, Add) as u32);
        results.push(warp_reduce(ALL, x, Min) as u32);
        results.push(warp_reduce(ALL, x, Max) as u32);
        results.push(warp_reduce(ALL, x | 1 << 20, And) as u32);
        results.push(warp_reduce(ALL, x & 0x00ff_00ff, Or) as u32);
        results.push(warp_reduce(ALL, x, Xor) as u32);
        let odd = lane & 1 == 1;
        let mask = if odd { 0xaaaa_aaaa } else { 0x5555_5555 };
        results.push(warp_reduce(mask, lane, Add));
        results.push(warp_reduce(mask, lane, Max));
    }
}
