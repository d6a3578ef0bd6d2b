//! Expert-parallel combine: sums in the order of k, roundings, the shared expert, and skip mode, all by
//! hand.

use half::bf16;
use tokenyard::ep::TokenFormat;
use tokenyard::reference::ep::{
    CombineInput, ExpectedRows, RankTokens, Setup, Weights, combine, combine_unweighted,
};

const HIDDEN: usize = 8;

fn bits(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}

/// Ranks whose tokens are all zeros, with these ids.
struct World {
    setup: Setup,
    ids: Vec<Vec<i32>>,
    rows: Vec<ExpectedRows>,
    sources: Vec<Vec<[i32; 2]>>,
}

impl World {
    fn new(setup: Setup, ids: &[&[i32]]) -> Self {
        let values = vec![0; setup.max_tokens_per_rank * setup.hidden_size];
        let ranks: Vec<_> = ids.iter().map(|ids| own(&setup, &values, ids)).collect();
        let rows: Vec<_> = (0..setup.ranks)
            .map(|me| ExpectedRows::new(&setup, &ranks, me).unwrap())
            .collect();
        let sources = rows.iter().map(|rows| {
            let mut sources = vec![[-1, -1]; rows.rows()];
            for cell in &rows.cells {
                // Backwards: the order within a cell must not matter.
                for (row, &(token, k)) in cell.rows.clone().rev().zip(&cell.pairs) {
                    sources[row] = [token as i32, k as i32];
                }
            }
            sources
        });
        Self {
            ids: ids.iter().map(|ids| ids.to_vec()).collect(),
            sources: sources.collect(),
            rows,
            setup,
        }
    }

    /// Combines for rank `me` what `expert(rank, group, source rank, source)` makes of each row.
    fn combine(
        &self,
        me: usize,
        weights: Weights<'_>,
        expert: impl Fn(usize, usize, usize, [i32; 2]) -> f32,
    ) -> Vec<f32> {
        let outputs = self.outputs(expert);
        let values = vec![0; self.setup.max_tokens_per_rank * HIDDEN];
        let own = own(&self.setup, &values, &self.ids[me]);
        let combined = combine(&self.setup, me, &own, &self.inputs(&outputs), weights).unwrap();
        let tokens = combined.chunks(HIDDEN).map(|token| {
            assert!(
                token.iter().all(|it| *it == token[0]),
                "all elements are alike"
            );
            bf16::from_bits(token[0]).to_f32()
        });
        tokens.collect()
    }

    fn outputs(&self, expert: impl Fn(usize, usize, usize, [i32; 2]) -> f32) -> Vec<Vec<u16>> {
        let ranks = self.rows.iter().enumerate();
        ranks
            .map(|(rank, rows)| {
                let mut outputs = vec![bits(f32::NAN); rows.rows() * HIDDEN];
                for row in 0..rows.shared_tokens.len() {
                    let value = expert(rank, 0, rank, [row as i32, 0]);
                    outputs[row * HIDDEN..][..HIDDEN].fill(bits(value));
                }
                for (index, cell) in rows.cells.iter().enumerate() {
                    for row in cell.rows.clone() {
                        let source = rows.source_of_cell(index);
                        let group = rows.group_of_cell(index);
                        let value = expert(rank, group, source, self.sources[rank][row]);
                        outputs[row * HIDDEN..][..HIDDEN].fill(bits(value));
                    }
                }
                outputs
            })
            .collect()
    }

    fn inputs<'a>(&'a self, outputs: &'a [Vec<u16>]) -> Vec<CombineInput<'a>> {
        let ranks = self.rows.iter().zip(&self.sources).zip(outputs);
        ranks
            .map(|((rows, src_info), outputs)| CombineInput {
                rows,
                src_info,
                outputs,
            })
            .collect()
    }
}

fn own<'a>(setup: &Setup, values: &'a [u16], ids: &'a [i32]) -> RankTokens<'a> {
    let tokens = &values[..ids.len() / setup.top_k * setup.hidden_size];
    RankTokens {
        tokens,
        topk_ids: ids,
    }
}

fn example() -> Setup {
    Setup {
        experts: 4,
        ranks: 2,
        top_k: 2,
        ..Setup::new(TokenFormat::Bf16, HIDDEN, 4)
    }
}

const IDS: [&[i32]; 2] = [&[0, 2, 1, 3, 2, 0], &[2, 3, 0, 1]];

fn weights(weights: &[f32]) -> Weights<'_> {
    Weights {
        weights,
        fused: true,
    }
}

#[test]
fn the_worked_example() {
    let world = World::new(example(), &IDS);
    // Expert g answers 10 * (g + 1) + the token's index.
    let answer = |rank: usize, group: usize, _: usize, source: [i32; 2]| {
        (10 * (2 * rank + group + 1) as i32 + source[0]) as f32
    };
    let found = world.combine(0, weights(&[0.5, 0.25, 1.0, -1.0, 2.0, 0.0]), answer);
    // Token 0: 0.5 * y_0 + 0.25 * y_2. Token 1: y_1 - y_3. Token 2: 2 y_2 + 0 y_0.
    assert_eq!(found, [0.5 * 10.0 + 0.25 * 30.0, 21.0 - 41.0, 2.0 * 32.0]);
    let found = world.combine(1, weights(&[1.0, 1.0, 1.0, 0.5]), answer);
    assert_eq!(found, [30.0 + 40.0, 11.0 + 0.5 * 21.0]);
}

#[test]
fn sums_are_in_the_order_of_k() {
    // 2^30 + 1 - 2^30 is 0 in this order, 1 in another.
    let setup = Setup {
        experts: 3,
        top_k: 3,
        ..Setup::new(TokenFormat::Bf16, HIDDEN, 4)
    };
    let large = 2f32.powi(30);
    let answer = |_: usize, group: usize, _: usize, _: [i32; 2]| [large, 1.0, -large][group];
    let ones = [1.0; 3];
    let found = |ids: &[i32]| World::new(setup.clone(), &[ids]).combine(0, weights(&ones), answer);
    assert_eq!(found(&[0, 1, 2]), [0.0]);
    assert_eq!(found(&[0, 2, 1]), [1.0]);
}

#[test]
fn one_rounding_or_two_for_a_product() {
    // (1 + 2^-23)(1 + 2^-7) is 1 + 2^-7 + 2^-23 + 2^-30, the last of which FP32 does not hold: a product
    // that is rounded first loses it, and so does the sum with the negative of that product.
    let setup = Setup {
        experts: 2,
        top_k: 2,
        ..Setup::new(TokenFormat::Bf16, HIDDEN, 4)
    };
    let (weight, value) = (1.0 + 2f32.powi(-23), 1.0 + 2f32.powi(-7));
    let answer = |_: usize, group: usize, _: usize, _: [i32; 2]| [1.0, value][group];
    let world = World::new(setup, &[&[0, 1]]);
    for (fused, expected) in [(true, 2f32.powi(-30)), (false, 0.0)] {
        let weights = Weights {
            weights: &[-(weight * value), weight],
            fused,
        };
        assert_eq!(world.combine(0, weights, answer), [expected]);
    }
}

#[test]
fn positions_without_an_expert_add_nothing() {
    let world = World::new(example(), &[&[-1, 2, -1, -1, 3, 3], &[]]);
    let answer = |_: usize, _: usize, _: usize, _: [i32; 2]| 5.0;
    let found = world.combine(0, weights(&[f32::NAN, 2.0, 3.0, 4.0, 1.0, 8.0]), answer);
    assert_eq!(found, [10.0, 0.0, 5.0]);
    assert!(found[1].is_sign_positive());
    assert!(world.combine(1, weights(&[]), answer).is_empty());
}

#[test]
fn the_shared_expert_is_a_second_rounding() {
    let setup = Setup {
        fused_shared_expert: true,
        ..example()
    };
    let world = World::new(setup, &IDS);
    // Routed: 1 + 2^-9 rounds to 1; with the shared 2^-9 in the same sum it would be above 1.
    let (half_ulp, shared) = (2f32.powi(-9), 2f32.powi(-9) * 1.5);
    let answer = |_: usize, group: usize, _: usize, source: [i32; 2]| match (group, source[1]) {
        (0, _) => shared,
        (_, 0) => 1.0,
        _ => half_ulp,
    };
    let found = world.combine(0, weights(&[1.0; 6]), answer);
    assert_eq!(found, [1.0; 3]);
    assert!(bf16::from_f32(1.0 + half_ulp + shared).to_f32() > 1.0);
}

#[test]
fn skip_mode_leaves_the_rest_to_an_all_reduce() {
    let setup = Setup {
        skip_a2a: true,
        fused_shared_expert: true,
        ..example()
    };
    let ids: &[i32] = &[0, 2, 1, 3, 2, 0];
    let world = World::new(setup, &[ids, ids]);
    let answer = |rank: usize, group: usize, _: usize, _: [i32; 2]| match group {
        0 => 100.0,
        group => (2 * rank + group) as f32, // 1 + the global expert
    };
    let ones = weights(&[1.0; 6]);
    // The shared expert has tokens 0 and 1 on rank 0, token 2 on rank 1.
    assert_eq!(world.combine(0, ones, answer), [101.0, 102.0, 1.0]);
    assert_eq!(world.combine(1, ones, answer), [3.0, 4.0, 103.0]);
}

#[test]
fn unweighted_rows_come_back_as_they_are() {
    let world = World::new(example(), &[&[0, -1, 1, 3, 2, 0], &[2, 3, 0, 1]]);
    let outputs = world.outputs(|rank, group, source, pair| {
        (64 * rank + 32 * group + 16 * source) as f32 + (4 * pair[0] + pair[1]) as f32
    });
    let values = vec![0; 4 * HIDDEN];
    let own = own(&world.setup, &values, &world.ids[0]);
    let before = vec![0xABCD; 6 * HIDDEN];
    let inputs = world.inputs(&outputs);
    let found = combine_unweighted(&world.setup, 0, &own, &inputs, &before).unwrap();
    let firsts: Vec<u16> = found.chunks(HIDDEN).map(|row| row[0]).collect();
    let mut expected = [0.0, f32::NAN, 32.0 + 4.0, 96.0 + 5.0, 64.0 + 8.0, 9.0].map(bits);
    expected[1] = 0xABCD;
    assert_eq!(firsts, expected);
}
