//! Expert-parallel combine: sums in the order of k, roundings, the shared expert, and skip mode, all by
//! hand.

use half::bf16;
use tokenyard::ep::{CombineFormat, RowElement, TokenFormat};
use tokenyard::reference::ep::{
    CombineInput, ExpectedRows, RankTokens, Setup, Weights, combine, combine_unweighted,
    returned_row,
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
    element: RowElement,
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
            element: RowElement::Bf16,
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
        let inputs = self.inputs(&outputs);
        let combined = combine(&self.setup, me, &own, &inputs, weights, self.element).unwrap();
        let tokens = combined.chunks(HIDDEN).map(|token| {
            assert!(
                token.iter().all(|it| *it == token[0]),
                "all elements are alike"
            );
            token[0]
        });
        tokens.collect()
    }

    fn outputs(&self, expert: impl Fn(usize, usize, usize, [i32; 2]) -> f32) -> Vec<Vec<f32>> {
        let ranks = self.rows.iter().enumerate();
        ranks
            .map(|(rank, rows)| {
                let mut outputs = vec![f32::NAN; rows.rows() * HIDDEN];
                for row in 0..rows.shared_tokens.len() {
                    let value = expert(rank, 0, rank, [row as i32, 0]);
                    outputs[row * HIDDEN..][..HIDDEN].fill(value);
                }
                for (index, cell) in rows.cells.iter().enumerate() {
                    for row in cell.rows.clone() {
                        let source = rows.source_of_cell(index);
                        let group = rows.group_of_cell(index);
                        let value = expert(rank, group, source, self.sources[rank][row]);
                        outputs[row * HIDDEN..][..HIDDEN].fill(value);
                    }
                }
                outputs
            })
            .collect()
    }

    fn inputs<'a>(&'a self, outputs: &'a [Vec<f32>]) -> Vec<CombineInput<'a, f32>> {
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
    let before = vec![-7.0; 6 * HIDDEN];
    let inputs = world.inputs(&outputs);
    let found = combine_unweighted(&world.setup, 0, &own, &inputs, &before).unwrap();
    let firsts: Vec<f32> = found.chunks(HIDDEN).map(|row| row[0]).collect();
    let expected = [0.0, -7.0, 32.0 + 4.0, 96.0 + 5.0, 64.0 + 8.0, 9.0];
    assert_eq!(firsts, expected);
}

#[test]
fn sums_are_rounded_to_the_element_type() {
    let setup = Setup {
        experts: 2,
        top_k: 2,
        ..Setup::new(TokenFormat::Bf16, HIDDEN, 4)
    };
    let mut world = World::new(setup, &[&[0, 1]]);
    let answer = |_: usize, group: usize, _: usize, _: [i32; 2]| [1.0, 2f32.powi(-10)][group];
    for (element, expected) in [
        (RowElement::Bf16, 1.0),
        (RowElement::F16, 1.0 + 2f32.powi(-10)),
        (RowElement::F32, 1.0 + 2f32.powi(-10)),
    ] {
        world.element = element;
        assert_eq!(world.combine(0, weights(&[1.0, 1.0]), answer), [expected]);
    }
    // A quarter of the last place of FP16: only FP32 has it.
    let answer = |_: usize, group: usize, _: usize, _: [i32; 2]| [1.0, 2f32.powi(-12)][group];
    for (element, expected) in [
        (RowElement::F16, 1.0),
        (RowElement::F32, 1.0 + 2f32.powi(-12)),
    ] {
        world.element = element;
        assert_eq!(world.combine(0, weights(&[1.0, 1.0]), answer), [expected]);
    }
}

#[test]
fn rows_that_travel_quantized() {
    // Blocks of 32 whose maxima are 448 and 4.5: MXFP8's scales are 1 and 2^-6.
    let mut values = vec![0.0; 64];
    values[..4].copy_from_slice(&[448.0, -30.5, 0.75, 0.0009765625]);
    values[32..35].copy_from_slice(&[4.5, 4.6, 0.3]);
    let row: Vec<_> = values.iter().map(|&value| bits(value)).collect();
    assert_eq!(returned_row(CombineFormat::Bf16, &row), None);
    let found = returned_row(CombineFormat::Mxfp8, &row).unwrap();
    // 30.5 lies between 30 and 32; 2^-10 halfway from 0 to the least E4M3 number.
    assert_eq!(found[..4], [448.0, -30.0, 0.75, 0.0]);
    assert_eq!(found[32..35], [4.5, 4.5, 0.3125]);

    // Blocks of 16 of an NVFP4 row, whose largest magnitude is 42: times 64 it is 2688, six times the largest scale.
    let mut values = [0.0; 32];
    values[..4].copy_from_slice(&[42.0, 21.0, -10.5, 1.0]);
    values[16..18].copy_from_slice(&[0.75, -0.5]);
    let row: Vec<_> = values.iter().map(|&value| bits(value)).collect();
    let found = returned_row(CombineFormat::Nvfp4, &row).unwrap();
    // The scale is 7 in the first block, 0.125 in the second.
    assert_eq!(found[..4], [42.0, 21.0, -10.5, 0.0]);
    assert_eq!(found[16..18], [0.75, -0.5]);
}

/// The bounds that the formats' documentation states, on rows of blocks of every magnitude.
#[test]
fn quantized_rows_lose_no_more_than_their_formats_say() {
    let random = &mut fastrand::Rng::with_seed(1);
    for format in [CombineFormat::Mxfp8, CombineFormat::Nvfp4] {
        let block = if format == CombineFormat::Mxfp8 {
            32
        } else {
            16
        };
        for _ in 0..2000 {
            let row: Vec<u16> = (0..2)
                .flat_map(|_| {
                    let size = 2f32.powi(random.i32(-6..6));
                    let values = (0..block).map(|_| bits((random.f32() - 0.5) * size));
                    values.collect::<Vec<_>>()
                })
                .chain(std::iter::repeat_n(0, 64 - 2 * block))
                .collect();
            let found = returned_row(format, &row).unwrap();
            for (values, found) in row.chunks(block).zip(found.chunks(block)) {
                let value = |&bits: &u16| bf16::from_bits(bits).to_f32();
                let largest = values.iter().map(|it| value(it).abs()).fold(0.0, f32::max);
                for (given, found) in values.iter().map(value).zip(found) {
                    let bound = match format {
                        CombineFormat::Mxfp8 => (given.abs() / 16.0).max(largest / 131072.0),
                        _ => 0.18 * largest,
                    };
                    assert!(
                        (found - given).abs() <= bound,
                        "{format}: {given} as {found}"
                    );
                }
            }
        }
    }
}
