//! Atomics: totals that do not depend on the order, and a handshake that does.

use crate::harness::{Buffer, SEEDS, machine, run};
use crate::kernels::atomics::{
    FLOAT_CELLS, INTEGER_CELLS, ORDERING_WORDS, floats, handshake, integers, orderings,
};

const THREADS: u64 = 3 * 40;

#[test]
fn integer_operations_of_every_type() {
    let threads = || 0..THREADS;
    let xor = |bits: u64| threads().fold(0u64, |acc, n| acc ^ 1 << (n % bits));
    let mut expected = vec![0u64; INTEGER_CELLS];
    let sum: u64 = threads().sum();
    let signed_sum: i64 = threads().map(|n| n as i64 - 20).sum();
    expected[..8].copy_from_slice(&[sum, 0, 119, 0xffff_ffff, xor(32), 0, THREADS, 1]);
    expected[8..16].copy_from_slice(&[
        u64::from(signed_sum as u32),
        u64::from(-20i32 as u32),
        99,
        0xffff_ffff,
        xor(32),
        0,
        THREADS,
        1,
    ]);
    expected[16..24].copy_from_slice(&[sum << 20, 0, 119 << 20, u64::MAX, xor(64), 0, THREADS, 1]);
    expected[24..].copy_from_slice(&[
        signed_sum as u64,
        -20i64 as u64,
        99,
        u64::MAX,
        xor(64),
        0,
        THREADS,
        1,
    ]);
    for seed in SEEDS {
        let machine = machine(seed);
        let mut initial = vec![0u64; INTEGER_CELLS];
        for kind in 0..4 {
            // Something for AND to clear, in as many bits as the type has.
            initial[8 * kind + 5] = if kind < 2 { 0xffff_ffff } else { u64::MAX };
        }
        let cells = Buffer::new(&machine, &initial);
        run(&machine, 3, 40, 0, integers::Args { cells: cells.ptr() });
        assert_eq!(cells.read(), expected, "seed {seed}");
    }
}

#[test]
fn every_ordering_in_every_scope() {
    for seed in SEEDS {
        let machine = machine(seed);
        let out = Buffer::new(&machine, &[0u32; 2 * ORDERING_WORDS]);
        let args = orderings::Args { out: out.ptr() };
        run(&machine, 2, 32, 4 * ORDERING_WORDS, args);
        let words = out.read();
        for block in words.chunks(ORDERING_WORDS) {
            assert_eq!(block, [3 * 5 * 32, 7, 9, 27], "seed {seed}");
        }
    }
}

#[test]
fn float_atomics_scoped_and_published() {
    let threads = 48u64;
    let sum = (0..threads).sum::<u64>() as f64;
    for seed in SEEDS {
        let machine = machine(seed);
        let cells = Buffer::new(&machine, &[0u64; FLOAT_CELLS]);
        run(
            &machine,
            1,
            threads as u32,
            0,
            floats::Args { cells: cells.ptr() },
        );
        let f32_bits = |x: f64| u64::from((x as f32).to_bits());
        let expected = [
            f32_bits(sum),
            sum.to_bits(),
            f32_bits(sum - threads as f64),
            sum.to_bits(),
            8,
            5,
            0,
            (2.0 * threads as f64).to_bits(),
        ];
        assert_eq!(cells.read(), expected, "seed {seed}");
    }
}

#[test]
fn a_consumer_sees_what_was_released_to_it() {
    for seed in SEEDS {
        let machine = machine(seed);
        let blocks = 7;
        let deposits = Buffer::new(&machine, &vec![0u32; blocks]);
        let (arrived, out) = (
            Buffer::new(&machine, &[0u32]),
            Buffer::new(&machine, &[0u32]),
        );
        let args = handshake::Args {
            deposits: deposits.ptr(),
            arrived: arrived.ptr(),
            out: out.ptr(),
        };
        run(&machine, blocks as u32, 1, 0, args);
        assert_eq!(out.read(), [(1..blocks as u32).sum::<u32>()], "seed {seed}");
    }
}

#[test]
fn published_floats_work_on_the_host() {
    use core::sync::atomic::Ordering;
    use cuda_std::atomic::AtomicF32;

    let cell = AtomicF32::new(1.5);
    assert_eq!(cell.fetch_add(2.0, Ordering::SeqCst), 1.5);
    assert_eq!(cell.fetch_sub(0.5, Ordering::Relaxed), 3.5);
    cell.store(-1.0, Ordering::Release);
    assert_eq!(cell.load(Ordering::Acquire), -1.0);
    assert_eq!(
        cell.fetch_and(f32::from_bits(0x7fff_ffff), Ordering::AcqRel),
        -1.0
    );
    assert_eq!(cell.into_inner(), 1.0);
}

#[test]
#[should_panic(expected = "cannot have the ordering Release")]
fn a_load_cannot_release() {
    cuda_std::atomic::AtomicF64::new(0.0).load(core::sync::atomic::Ordering::Release);
}
