//! Warp collectives, against the definitions of the PTX manual.

use cuda_std::launch::KernelArgs;
use simt::FaultKind;

use crate::harness::{SEEDS, fault, machine, reports, target_machine};
use crate::kernels::collectives::{REDUCTIONS, SHUFFLES, VOTES, reductions, shuffles, votes};

fn hashed(t: u32) -> u32 {
    t.wrapping_mul(0x9e37_79b9)
}

/// The source lane of a shuffle in the terms of the manual: `c` as `clamp | segment mask << 8`.
fn source(mode: &str, lane: u32, b: u32, width: u32) -> (u32, bool) {
    let segment_mask = 32 - width;
    let clamp = if mode == "up" { 0 } else { 31 };
    let max_lane = lane & segment_mask | clamp & !segment_mask;
    let min_lane = lane & segment_mask;
    let b = b & 31;
    let (j, valid) = match mode {
        "up" => {
            let j = lane as i32 - b as i32;
            (j as u32, j >= max_lane as i32)
        }
        "down" => (lane + b, lane + b <= max_lane),
        "bfly" => (lane ^ b, lane ^ b <= max_lane),
        _ => {
            let j = min_lane | b & !segment_mask;
            (j, j <= max_lane)
        }
    };
    if valid { (j, true) } else { (lane, false) }
}

#[test]
fn shuffles_of_every_mode_width_and_type() {
    for seed in SEEDS {
        let all = reports(&machine(seed), 1, 64, SHUFFLES, |out| shuffles::Args {
            out,
        });
        for (t, words) in all.iter().enumerate() {
            let t = t as u32;
            let (lane, warp) = (t % 32, t & !31);
            let mut expected = Vec::new();
            for (mode, b, width) in [
                ("bfly", 5, 32),
                ("bfly", 12, 8),
                ("up", 3, 32),
                ("up", 3, 8),
                ("down", 3, 32),
                ("down", 3, 8),
                ("idx", t + 7, 32),
                ("idx", t + 7, 8),
            ] {
                let (from, valid) = source(mode, lane, b, width);
                expected.extend([hashed(warp + from), u32::from(valid)]);
            }
            let o = t ^ 1;
            let x = hashed(o);
            expected.extend([
                x as i8 as u32,
                u32::from(x as u8),
                x as i16 as u32,
                u32::from(x as u16),
                x,
                o,
                o,
                o,
            ]);
            let wide = [o, x ^ o, !x, x];
            for _ in 0..3 {
                expected.extend(&wide[..2]);
            }
            expected.extend(wide);
            expected.extend(wide);
            for (mode, b, width) in [("bfly", 1, 32), ("down", 1, 16)] {
                let (from, valid) = source(mode, lane, b, width);
                expected.extend([hashed(warp + from), u32::from(valid)]);
            }
            assert_eq!(words, &expected, "thread {t}, seed {seed}");
        }
    }
}

#[test]
fn votes_and_matches() {
    for seed in SEEDS {
        let all = reports(&machine(seed), 1, 32, VOTES, |out| votes::Args { out });
        for (lane, words) in all.iter().enumerate() {
            let same_third = 0b111 << (lane / 3 * 3);
            let mut expected = vec![1, 0, 1, 0, 0x4924_9249];
            expected.extend([same_third; 6]);
            expected.extend([u32::MAX, 0, u32::MAX, u32::MAX, u32::MAX, 0, u32::MAX]);
            assert_eq!(words[..18], expected, "lane {lane}, seed {seed}");
            assert_eq!(words[18] >> lane & 1, 1, "lane {lane} is active to itself");
        }
    }
}

#[test]
fn reductions_of_all_and_of_every_other_lane() {
    let x = |lane: u32| (lane + 3).wrapping_mul(0x9e37_79b9);
    let unsigned = || (0..32).map(x);
    let signed = || (0..32).map(|lane| x(lane) as i32);
    let bits = [
        unsigned().map(|x| x | 1 << 20).fold(u32::MAX, |a, b| a & b),
        unsigned().map(|x| x & 0x00ff_00ff).fold(0, |a, b| a | b),
        unsigned().fold(0, |a, b| a ^ b),
    ];
    let sum = unsigned().fold(0, u32::wrapping_add);
    let mut expected = vec![sum, unsigned().min().unwrap(), unsigned().max().unwrap()];
    expected.extend(bits);
    expected.extend([
        sum,
        signed().min().unwrap() as u32,
        signed().max().unwrap() as u32,
    ]);
    expected.extend(bits);
    for seed in SEEDS {
        let all = reports(&machine(seed), 1, 32, REDUCTIONS, |out| reductions::Args {
            out,
        });
        for (lane, words) in all.iter().enumerate() {
            let parity = if lane % 2 == 1 { [256, 31] } else { [240, 30] };
            assert_eq!(words[..12], expected, "lane {lane}, seed {seed}");
            assert_eq!(words[12..], parity, "lane {lane}, seed {seed}");
        }
    }
}

#[test]
fn reductions_need_compute_capability_8_0() {
    let machine = target_machine(0, 75, false);
    let args = reductions::Args {
        out: std::ptr::null_mut(),
    };
    assert_eq!(reductions::Args::KERNEL.params.len(), 1);
    let fault = fault(&machine, 1, 32, 0, args);
    assert_eq!(fault.kind, FaultKind::Trap);
    assert!(fault.message.contains("redux.sync.add.u32"), "{fault}");
    assert!(fault.message.contains("7.5"), "{fault}");
}

mod misuse {
    use cuda_std::prelude::*;
    use cuda_std::warp;

    /// Every lane reads its neighbour, though the mask names even lanes only.
    ///
    /// # Safety
    ///
    /// None: it is wrong.
    #[kernel]
    pub unsafe fn reads_outside_the_mask() {
        let mask = 0x5555_5555;
        if warp::lane_id().is_multiple_of(2) {
            // SAFETY: breaches the contract on purpose.
            let _ = unsafe { warp::warp_shuffle_xor(mask, 1u32, 1, 32) };
        }
    }

    /// A collective in one branch of an `if`, with the mask of all lanes.
    ///
    /// # Safety
    ///
    /// None: it is wrong.
    #[kernel]
    pub unsafe fn votes_in_a_branch() {
        if warp::lane_id() < 7 {
            // SAFETY: breaches the contract on purpose.
            let _ = unsafe { warp::warp_vote_any(u32::MAX, true) };
        }
    }
}

#[test]
fn breaches_of_the_contract_are_reported_at_their_line() {
    let args = misuse::reads_outside_the_mask::Args {};
    let outside = fault(&machine(0), 1, 32, 0, args);
    assert_eq!(outside.kind, FaultKind::Trap);
    assert!(outside.message.contains("not in the mask"), "{outside}");
    assert!(outside.to_string().contains("collectives.rs"), "{outside}");

    let branch = fault(&machine(0), 1, 32, 0, misuse::votes_in_a_branch::Args {});
    assert!(
        matches!(branch.kind, FaultKind::WarpDivergence | FaultKind::Deadlock),
        "{branch}"
    );
    assert!(branch.to_string().contains("collectives.rs"), "{branch}");
}
