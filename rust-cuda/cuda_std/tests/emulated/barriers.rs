//! Indices and barriers.

use crate::harness::{SEEDS, machine, reports};
use crate::kernels::barriers::{BARRIERS, INDICES, barriers, indices};

#[test]
fn every_index_of_a_three_dimensional_launch() {
    let (grid, block) = ([3u32, 2, 2], [4u32, 3, 2]);
    let all = reports(&machine(1), (3, 2, 2), (4, 3, 2), INDICES, |out| {
        indices::Args { out }
    });
    let mut number = 0;
    for (bz, by, bx) in product(grid) {
        for (tz, ty, tx) in product(block) {
            let (t, b) = ([tx, ty, tz], [bx, by, bz]);
            let global = [0, 1, 2].map(|axis| t[axis] + b[axis] * block[axis]);
            let mut expected = Vec::new();
            for _ in 0..2 {
                expected.extend(t);
                expected.extend(b);
                expected.extend(block);
                expected.extend(grid);
            }
            expected.extend(global);
            expected.extend(&global[..2]);
            let in_block = tx + 4 * (ty + 3 * tz);
            expected.extend([number, global[0], u32::from(number == 0), 32, in_block % 32]);
            assert_eq!(all[number as usize], expected, "thread {number}");
            number += 1;
        }
    }
}

/// All index triples, the first axis fastest, as (z, y, x).
fn product(dim: [u32; 3]) -> impl Iterator<Item = (u32, u32, u32)> {
    let [x, y, z] = dim;
    (0..x * y * z).map(move |i| (i / (x * y), i / x % y, i % x))
}

#[test]
fn every_barrier() {
    for seed in SEEDS {
        let all = reports(&machine(seed), 2, 64, BARRIERS, |out| barriers::Args {
            out,
        });
        for (thread, words) in all.iter().enumerate() {
            let t = thread as u32 % 64;
            let handed_over = if t < 32 { 232 + t } else { 0 };
            assert_eq!(
                words,
                &[100 + 63 - t, 22, 1, 1, handed_over, 1],
                "thread {thread}, seed {seed}"
            );
        }
    }
}
