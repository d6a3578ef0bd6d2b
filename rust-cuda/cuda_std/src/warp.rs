//! Collectives of a warp, 32 consecutive threads of a block.
//!
//! All of them take a `mask` of participating lanes and wait for those lanes. They share a contract:
//!
//! * the caller's own lane is in `mask`;
//! * every lane in `mask` calls the same function with the same `mask`, and none has exited;
//! * a lane takes part in one collective at a time, in the same order as the others.
//!
//! The emulator reports any breach of it; on a GPU it is undefined behaviour.

use half::{bf16, f16};

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::nvvm;

/// Waits for the lanes of `mask`; what they wrote before is visible to all of them afterwards.
///
/// PTX `bar.warp.sync`, any target. Collective.
///
/// # Safety
///
/// The [contract](self) of warp collectives.
#[inline(always)]
#[track_caller]
pub unsafe fn sync_warp(mask: u32) {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { nvvm::bar_warp_sync(mask) },
        cpu: {
            simt::device::warp_exchange("bar.warp.sync", mask, 0);
        },
    }
}

/// The thread's lane in its warp, 0 to 31. PTX `%laneid`.
#[inline(always)]
pub fn lane_id() -> u32 {
    by_target! {
        // SAFETY: reads a special register.
        gpu: unsafe { nvvm::read_laneid() },
        cpu: simt::device::lane_id(),
    }
}

/// The lanes that execute together with the caller at this moment.
///
/// PTX `activemask.b32`, PTX 6.2. Not a way to find out who will take part in a collective: lanes may
/// be apart although the source does not show it.
#[inline(always)]
pub fn activemask() -> u32 {
    by_target! {
        // SAFETY: reads machine state.
        gpu: unsafe { nvvm::activemask() },
        cpu: simt::device::active_mask(),
    }
}

/// The value of the lane `delta` above, within a segment of `width` lanes.
///
/// Returns the lane's own value and `false` where that lane would be outside the segment. PTX
/// `shfl.sync.down.b32`, any target, once per 32 bits of `T`. Collective.
///
/// # Panics
///
/// If `width` is not a power of two up to 32.
///
/// # Safety
///
/// The [contract](self) of warp collectives; the source lane is in `mask`.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_down<T: WarpShuffleValue>(
    mask: u32,
    value: T,
    delta: u32,
    width: u32,
) -> (T, bool) {
    // SAFETY: forwarded to the caller.
    unsafe { T::shuffle(WarpShuffleMode::Down, mask, value, delta, width) }
}

/// The value of the lane `delta` below, within a segment of `width` lanes.
///
/// Returns the lane's own value and `false` where that lane would be outside the segment. PTX
/// `shfl.sync.up.b32`, any target, once per 32 bits of `T`. Collective.
///
/// # Panics
///
/// If `width` is not a power of two up to 32.
///
/// # Safety
///
/// The [contract](self) of warp collectives; the source lane is in `mask`.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_up<T: WarpShuffleValue>(
    mask: u32,
    value: T,
    delta: u32,
    width: u32,
) -> (T, bool) {
    // SAFETY: forwarded to the caller.
    unsafe { T::shuffle(WarpShuffleMode::Up, mask, value, delta, width) }
}

/// The value of lane `idx` of the caller's segment of `width` lanes.
///
/// `idx` wraps around at `width`, so the second result is always `true`. PTX `shfl.sync.idx.b32`,
/// any target, once per 32 bits of `T`. Collective.
///
/// # Panics
///
/// If `width` is not a power of two up to 32.
///
/// # Safety
///
/// The [contract](self) of warp collectives; the source lane is in `mask`.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_idx<T: WarpShuffleValue>(
    mask: u32,
    value: T,
    idx: u32,
    width: u32,
) -> (T, bool) {
    // SAFETY: forwarded to the caller.
    unsafe { T::shuffle(WarpShuffleMode::Idx, mask, value, idx, width) }
}

/// The value of the lane whose number is the caller's own XOR `lane_mask`.
///
/// Returns the lane's own value and `false` where that lane is in a later segment of `width` lanes.
/// PTX `shfl.sync.bfly.b32`, any target, once per 32 bits of `T`. Collective.
///
/// # Panics
///
/// If `width` is not a power of two up to 32.
///
/// # Safety
///
/// The [contract](self) of warp collectives; the source lane is in `mask`.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_xor<T: WarpShuffleValue>(
    mask: u32,
    value: T,
    lane_mask: u32,
    width: u32,
) -> (T, bool) {
    // SAFETY: forwarded to the caller.
    unsafe { T::shuffle(WarpShuffleMode::Xor, mask, value, lane_mask, width) }
}

/// How a shuffle finds its source lane.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WarpShuffleMode {
    Up,
    Down,
    Idx,
    Xor,
}

/// A value that can be shuffled: integers of 8 to 128 bits and floats of 16 to 64.
///
/// A shuffle moves 32 bits. Packing several narrow values into one word saves shuffles.
pub trait WarpShuffleValue: Copy {
    /// Executes the shuffle.
    ///
    /// # Safety
    ///
    /// The [contract](self) of warp collectives.
    #[doc(hidden)]
    #[track_caller]
    unsafe fn shuffle(
        mode: WarpShuffleMode,
        mask: u32,
        value: Self,
        b: u32,
        width: u32,
    ) -> (Self, bool);
}

macro_rules! shuffle_value {
    ($($ty:ty: $words:literal, $to_bits:expr, $from_bits:expr;)*) => {$(
        impl WarpShuffleValue for $ty {
            #[inline(always)]
            #[track_caller]
            unsafe fn shuffle(
                mode: WarpShuffleMode,
                mask: u32,
                value: Self,
                b: u32,
                width: u32,
            ) -> (Self, bool) {
                let bits: u128 = $to_bits(value);
                let (mut result, mut in_range) = (0u128, true);
                let mut word = 0;
                while word < $words {
                    let value = (bits >> (32 * word)) as u32;
                    // SAFETY: forwarded to the caller.
                    let (part, valid) = unsafe { shuffle_word(mode, mask, value, b, width) };
                    result |= u128::from(part) << (32 * word);
                    in_range = valid;
                    word += 1;
                }
                ($from_bits(result), in_range)
            }
        }
    )*};
}

shuffle_value! {
    i8: 1, |v| v as u8 as u128, |r: u128| r as i8;
    u8: 1, |v| v as u128, |r: u128| r as u8;
    i16: 1, |v| v as u16 as u128, |r: u128| r as i16;
    u16: 1, |v| v as u128, |r: u128| r as u16;
    i32: 1, |v| v as u32 as u128, |r: u128| r as i32;
    u32: 1, |v| v as u128, |r: u128| r as u32;
    i64: 2, |v| v as u64 as u128, |r: u128| r as i64;
    u64: 2, |v| v as u128, |r: u128| r as u64;
    i128: 4, |v| v as u128, |r: u128| r as i128;
    u128: 4, |v| v, |r: u128| r;
    f32: 1, |v: f32| v.to_bits() as u128, |r: u128| f32::from_bits(r as u32);
    f64: 2, |v: f64| v.to_bits() as u128, |r: u128| f64::from_bits(r as u64);
    f16: 1, |v: f16| v.to_bits() as u128, |r: u128| f16::from_bits(r as u16);
    bf16: 1, |v: bf16| v.to_bits() as u128, |r: u128| bf16::from_bits(r as u16);
}

#[inline(always)]
#[track_caller]
unsafe fn shuffle_word(
    mode: WarpShuffleMode,
    mask: u32,
    value: u32,
    b: u32,
    width: u32,
) -> (u32, bool) {
    assert!(
        width.is_power_of_two() && width <= 32,
        "the width of a shuffle is a power of two up to 32"
    );
    let segment = 32 - width;
    by_target! {
        gpu: {
            // The last lane of the segment bounds the source from above; `up` is bounded by the
            // first one from below.
            let clamp = if matches!(mode, WarpShuffleMode::Up) { 0 } else { 31 };
            let c = segment << 8 | clamp;
            // SAFETY: forwarded to the caller.
            let shuffled = unsafe {
                match mode {
                    WarpShuffleMode::Up => nvvm::shfl_sync_up(mask, value, b, c),
                    WarpShuffleMode::Down => nvvm::shfl_sync_down(mask, value, b, c),
                    WarpShuffleMode::Idx => nvvm::shfl_sync_idx(mask, value, b, c),
                    WarpShuffleMode::Xor => nvvm::shfl_sync_bfly(mask, value, b, c),
                }
            };
            (shuffled.value, shuffled.predicate)
        },
        cpu: {
            let lane = simt::device::lane_id();
            let b = b & 31;
            let first = lane & segment;
            let last = first | (31 & !segment);
            let (op, source) = match mode {
                WarpShuffleMode::Up => {
                    let in_segment = lane.checked_sub(b).filter(|source| *source >= first);
                    ("shfl.sync.up.b32", in_segment)
                }
                WarpShuffleMode::Down => ("shfl.sync.down.b32", Some(lane + b)),
                WarpShuffleMode::Idx => ("shfl.sync.idx.b32", Some(first | (b & !segment))),
                WarpShuffleMode::Xor => ("shfl.sync.bfly.b32", Some(lane ^ b)),
            };
            let source = source.filter(|source| *source <= last);
            let values = simt::device::warp_exchange(op, mask, u64::from(value));
            let read = source.unwrap_or(lane);
            if values.mask >> read & 1 == 0 {
                simt::device::trap(&std::format!(
                    "`{op}` in lane {lane} reads lane {read}, which is not in the mask {mask:#010x}"
                ));
            }
            (values.values[read as usize] as u32, source.is_some())
        },
    }
}

/// Whether `predicate` is true in every lane of `mask`.
///
/// PTX `vote.sync.all.pred`, any target. Collective.
///
/// # Safety
///
/// The [contract](self) of warp collectives.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_vote_all(mask: u32, predicate: bool) -> bool {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { nvvm::vote_all_sync(mask, predicate) },
        cpu: ballot("vote.sync.all.pred", mask, predicate) == mask,
    }
}

/// Whether `predicate` is true in any lane of `mask`.
///
/// PTX `vote.sync.any.pred`, any target. Collective.
///
/// # Safety
///
/// The [contract](self) of warp collectives.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_vote_any(mask: u32, predicate: bool) -> bool {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { nvvm::vote_any_sync(mask, predicate) },
        cpu: ballot("vote.sync.any.pred", mask, predicate) != 0,
    }
}

/// The lanes of `mask` in which `predicate` is true, as a mask.
///
/// PTX `vote.sync.ballot.b32`, any target. Collective.
///
/// # Safety
///
/// The [contract](self) of warp collectives.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_vote_ballot(mask: u32, predicate: bool) -> u32 {
    by_target! {
        // SAFETY: forwarded to the caller.
        gpu: unsafe { nvvm::vote_ballot_sync(mask, predicate) },
        cpu: ballot("vote.sync.ballot.b32", mask, predicate),
    }
}

#[cfg(not(target_arch = "nvptx64"))]
#[track_caller]
fn ballot(op: &'static str, mask: u32, predicate: bool) -> u32 {
    lanes_where(
        &simt::device::warp_exchange(op, mask, u64::from(predicate)),
        |value| value != 0,
    )
}

/// The participating lanes whose value satisfies `predicate`.
#[cfg(not(target_arch = "nvptx64"))]
fn lanes_where(values: &simt::device::WarpValues, predicate: impl Fn(u64) -> bool) -> u32 {
    (0..32)
        .filter(|&lane| values.mask >> lane & 1 == 1 && predicate(values.values[lane as usize]))
        .fold(0, |lanes, lane| lanes | 1 << lane)
}

/// The lanes of `mask` whose `value` has the same bits as the caller's, as a mask.
///
/// PTX `match.any.sync.{b32,b64}`, compute capability 7.0, PTX 6.0. Collective.
///
/// # Safety
///
/// The [contract](self) of warp collectives.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_match_any<T: WarpMatchValue>(mask: u32, value: T) -> u32 {
    // SAFETY: forwarded to the caller.
    unsafe { T::match_any(mask, value) }
}

/// `Some(mask)` if all lanes of `mask` have a `value` of the same bits, otherwise `None`.
///
/// PTX `match.all.sync.{b32,b64}`, compute capability 7.0, PTX 6.0. Collective.
///
/// # Safety
///
/// The [contract](self) of warp collectives.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_match_all<T: WarpMatchValue>(mask: u32, value: T) -> Option<u32> {
    // SAFETY: forwarded to the caller.
    unsafe { T::match_all(mask, value) }
}

/// A value that can be matched: integers and floats of 32 and 64 bits. Floats match by their bits.
pub trait WarpMatchValue: Copy {
    /// # Safety
    ///
    /// The [contract](self) of warp collectives.
    #[doc(hidden)]
    #[track_caller]
    unsafe fn match_any(mask: u32, value: Self) -> u32;

    /// # Safety
    ///
    /// The [contract](self) of warp collectives.
    #[doc(hidden)]
    #[track_caller]
    unsafe fn match_all(mask: u32, value: Self) -> Option<u32>;
}

macro_rules! match_value {
    ($($ty:ty as $bits:ty, $any:ident, $all:ident, $any_op:literal, $all_op:literal, $to_bits:expr;)*) => {$(
        impl WarpMatchValue for $ty {
            #[inline(always)]
            #[track_caller]
            unsafe fn match_any(mask: u32, value: Self) -> u32 {
                let bits: $bits = $to_bits(value);
                by_target! {
                    // SAFETY: forwarded to the caller.
                    gpu: unsafe { nvvm::$any(mask, bits) },
                    cpu: {
                        let bits = u64::from(bits);
                        let values = simt::device::warp_exchange($any_op, mask, bits);
                        lanes_where(&values, |value| value == bits)
                    },
                }
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn match_all(mask: u32, value: Self) -> Option<u32> {
                let bits: $bits = $to_bits(value);
                by_target! {
                    gpu: {
                        // SAFETY: forwarded to the caller.
                        let matched = unsafe { nvvm::$all(mask, bits) };
                        matched.predicate.then_some(matched.value)
                    },
                    cpu: {
                        let bits = u64::from(bits);
                        let values = simt::device::warp_exchange($all_op, mask, bits);
                        (lanes_where(&values, |value| value == bits) == mask).then_some(mask)
                    },
                }
            }
        }
    )*};
}

match_value! {
    u32 as u32, match_any_sync_b32, match_all_sync_b32, "match.any.sync.b32", "match.all.sync.b32", |v| v;
    i32 as u32, match_any_sync_b32, match_all_sync_b32, "match.any.sync.b32", "match.all.sync.b32", |v| v as u32;
    f32 as u32, match_any_sync_b32, match_all_sync_b32, "match.any.sync.b32", "match.all.sync.b32", f32::to_bits;
    u64 as u64, match_any_sync_b64, match_all_sync_b64, "match.any.sync.b64", "match.all.sync.b64", |v| v;
    i64 as u64, match_any_sync_b64, match_all_sync_b64, "match.any.sync.b64", "match.all.sync.b64", |v| v as u64;
    f64 as u64, match_any_sync_b64, match_all_sync_b64, "match.any.sync.b64", "match.all.sync.b64", f64::to_bits;
}

/// The reduction of `value` over the lanes of `mask`, in all of them. Sums wrap around.
///
/// PTX `redux.sync`, **compute capability 8.0**, PTX 7.0: ask
/// [`cfg::has_redux`](crate::cfg::has_redux) in code for older targets, which does not even compile
/// otherwise. Collective.
///
/// # Safety
///
/// The [contract](self) of warp collectives; all lanes pass the same `op`.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_reduce<T: WarpReduceValue>(mask: u32, value: T, op: WarpReductionOp) -> T {
    // SAFETY: forwarded to the caller.
    unsafe { T::reduce(mask, value, op) }
}

/// What a warp reduction computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarpReductionOp {
    /// The sum, wrapping around.
    Add,
    /// The least value.
    Min,
    /// The greatest value.
    Max,
    /// The bitwise AND.
    And,
    /// The bitwise OR.
    Or,
    /// The bitwise XOR.
    Xor,
}

/// A value that can be reduced: `u32` and `i32`.
pub trait WarpReduceValue: Copy {
    /// # Safety
    ///
    /// The [contract](self) of warp collectives.
    #[doc(hidden)]
    #[track_caller]
    unsafe fn reduce(mask: u32, value: Self, op: WarpReductionOp) -> Self;
}

macro_rules! reduce_value {
    ($($ty:ty, $suffix:literal, $min:ident, $max:ident;)*) => {$(
        impl WarpReduceValue for $ty {
            #[inline(always)]
            #[track_caller]
            unsafe fn reduce(mask: u32, value: Self, op: WarpReductionOp) -> Self {
                by_target! {
                    // SAFETY: forwarded to the caller.
                    gpu: unsafe {
                        match op {
                            WarpReductionOp::Add => nvvm::redux_sync_add(value as u32, mask) as $ty,
                            WarpReductionOp::Min => nvvm::$min(value, mask),
                            WarpReductionOp::Max => nvvm::$max(value, mask),
                            WarpReductionOp::And => nvvm::redux_sync_and(value as u32, mask) as $ty,
                            WarpReductionOp::Or => nvvm::redux_sync_or(value as u32, mask) as $ty,
                            WarpReductionOp::Xor => nvvm::redux_sync_xor(value as u32, mask) as $ty,
                        }
                    },
                    cpu: {
                        let (name, combine): (&str, fn($ty, $ty) -> $ty) = match op {
                            WarpReductionOp::Add => (concat!("redux.sync.add.", $suffix), <$ty>::wrapping_add),
                            WarpReductionOp::Min => (concat!("redux.sync.min.", $suffix), <$ty>::min),
                            WarpReductionOp::Max => (concat!("redux.sync.max.", $suffix), <$ty>::max),
                            WarpReductionOp::And => ("redux.sync.and.b32", |a, b| a & b),
                            WarpReductionOp::Or => ("redux.sync.or.b32", |a, b| a | b),
                            WarpReductionOp::Xor => ("redux.sync.xor.b32", |a, b| a ^ b),
                        };
                        crate::cfg::require(crate::cfg::has_redux, name);
                        let values = simt::device::warp_exchange(name, mask, value as u64);
                        (0..32)
                            .filter(|lane| values.mask >> lane & 1 == 1)
                            .map(|lane| values.values[lane] as $ty)
                            .reduce(combine)
                            .unwrap_or(value)
                    },
                }
            }
        }
    )*};
}

reduce_value! {
    u32, "u32", redux_sync_umin, redux_sync_umax;
    i32, "s32", redux_sync_min, redux_sync_max;
}
