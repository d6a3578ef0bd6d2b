//! What sums are, by hand where it can be said by hand: the definition's example, the order, the roundings, who adds
//! nothing, and that values which are no numbers go through.

use anyhow::{Result, ensure};
use fastrand::Rng;
use half::bf16;
use tokenyard::ep::{CombineFormat, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Mode, Returns, Traffic, World};
use tokenyard_tests::values::exp2;
use tokenyard_tests::{Context, Rows, Suite, compare};

use super::super::small;
use super::home;

/// Formats whose rows come home as they are.
const PLAIN: [CombineFormat; 3] = [CombineFormat::Bf16, CombineFormat::F16, CombineFormat::F32];

pub fn register(suite: &mut Suite) {
    suite.both("ep::combine::values::definition", definition);
    suite.both("ep::combine::values::order_of_k", order_of_k);
    suite.both("ep::combine::values::one_rounding", one_rounding);
    suite.both("ep::combine::values::shared_expert", shared_expert);
    suite.both("ep::combine::values::skip_mode", skip_mode);
    suite.both("ep::combine::values::stale_rows", stale_rows);
    suite.both("ep::combine::values::any_bits", any_bits);
    suite.both("ep::combine::values::quantized", quantized);
}

/// Ranks with these ids, whose tokens are their number throughout, counted over all ranks from 1.
fn numbered(setup: Setup, ids: &[&[i32]], format: CombineFormat) -> EpCase {
    let counts: Vec<_> = ids.iter().map(|ids| ids.len() / setup.top_k).collect();
    let mut case = EpCase::new(setup, &counts, Traffic::Uniform, 1).deterministic();
    let mut number = 0;
    for (rank, ids) in case.ranks.iter_mut().zip(ids) {
        rank.topk_ids = ids.to_vec();
        for token in rank.tokens.chunks_mut(case.setup.hidden_size) {
            number += 1;
            token.fill(bf16::from_f32(number as f32));
        }
    }
    home(case, format)
}

/// Runs the case in every mode, against the reference too, and demands these tokens of each rank, all of whose
/// elements are alike.
fn expect(
    context: &Context,
    case: &EpCase,
    weights: &[&[f32]],
    expert: impl Fn(Option<usize>, f32) -> f32,
    expected: &[&[f32]],
) -> Result<()> {
    let weights = weights
        .iter()
        .map(|weights| Rows::F32(weights.to_vec()))
        .collect();
    let returns = Returns::of_experts(case, Some(weights), |number, token| {
        vec![expert(number, token[0].to_f32()); token.len()]
    })?;
    let device = context.device();
    for &mode in Mode::of_round_trip(case) {
        let case = case.clone().side_by_side(&device);
        let found = World::new(&device, &case)?.check_round_trip(&case, mode, &returns)?;
        for (rank, (expected, found)) in expected.iter().zip(found).enumerate() {
            let hidden = case.setup.hidden_size;
            let expected = expected.iter().flat_map(|&it| vec![it; hidden]);
            let expected: Vec<_> = expected.collect();
            compare::floats("combined", &expected, &found.widened(), |index| {
                format!("rank {rank}, token {}; {case}, {mode:?}", index / hidden)
            })?;
        }
    }
    Ok(())
}

fn example() -> Setup {
    Setup {
        experts: 4,
        ranks: 2,
        top_k: 2,
        ..Setup::new(TokenFormat::Bf16, 64, 5)
    }
}

/// Two ranks of two experts. Token 0 of rank 0 goes to experts 0 and 2, and gets w[0, 0] y_0 + w[0, 1] y_2.
fn definition(context: &Context) -> Result<()> {
    // NVFP4 holds no row of ones: E4M3 has no sixth of 2048.
    let exact = CombineFormat::ALL.into_iter();
    for format in exact.filter(|format| *format != CombineFormat::Nvfp4) {
        let ids: [&[i32]; 2] = [&[0, 2, 1, 3, 2, 0], &[2, 3, 0, 1]];
        let case = numbered(example(), &ids, format);
        // Expert g makes 2^g x of x; tokens are 1, 2, 3 and 4, 5.
        expect(
            context,
            &case,
            &[&[0.5, 0.25, 1.0, -1.0, 2.0, 0.0], &[1.0, 1.0, 1.0, 0.5]],
            |expert, x| expert.map_or(0.0, |expert| exp2(expert as i32)) * x,
            &[
                &[0.5 + 0.25 * 4.0, 2.0 * 2.0 - 2.0 * 8.0, 2.0 * 3.0 * 4.0],
                &[4.0 * 4.0 + 4.0 * 8.0, 5.0 + 0.5 * 10.0],
            ],
        )?;
    }
    Ok(())
}

/// 2^30 + 1 - 2^30 is 0 in this order, and 1 in another; nine positions are more than are loaded at a time.
fn order_of_k(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 10,
        ranks: 2,
        top_k: 9,
        ..Setup::new(TokenFormat::Bf16, 64, 5)
    };
    let expert = |expert: Option<usize>, _: f32| match expert {
        Some(8) => exp2(30),
        Some(1) => 1.0,
        Some(7) => -exp2(30),
        _ => 0.0,
    };
    let ids: [&[i32]; 2] = [
        &[
            8, 1, 7, 0, 2, 3, 4, 5, 6, //
            8, 7, 1, 0, 2, 3, 4, 5, 6, //
            8, 0, 2, 3, 4, 5, 6, 1, 7, //
            8, 0, 2, 3, 4, 5, 6, 7, 1, //
        ],
        &[],
    ];
    let ones: [&[f32]; 2] = [&[1.0; 36], &[]];
    for format in [CombineFormat::Bf16, CombineFormat::F32] {
        let case = numbered(setup.clone(), &ids, format);
        expect(context, &case, &ones, expert, &[&[0.0, 1.0, 0.0, 1.0], &[]])?;
    }
    Ok(())
}

/// (1 + 2^-23)(1 + 2^-7) has more bits than FP32: the difference to what it rounds to is there after a fused
/// multiply-add only. And sums are rounded once, at the end.
fn one_rounding(context: &Context) -> Result<()> {
    let (weight, value) = (1.0 + exp2(-23), 1.0 + exp2(-7));
    let ids: [&[i32]; 2] = [&[0, 1], &[0, 3]];
    let expert = |expert: Option<usize>, _: f32| match expert {
        Some(0) => 1.0,
        Some(1) => value,
        // A quarter of BF16's last place.
        _ => exp2(-9),
    };
    let weights: [&[f32]; 2] = [&[-(weight * value), weight], &[1.0, 3.0]];
    for (format, rounded) in [
        (CombineFormat::Bf16, 1.0 + exp2(-7)),
        (CombineFormat::F32, 1.0 + 3.0 * exp2(-9)),
    ] {
        let case = numbered(example(), &ids, format);
        expect(
            context,
            &case,
            &weights,
            expert,
            &[&[exp2(-30)], &[rounded]],
        )?;
    }
    Ok(())
}

/// The routed sum is rounded before the shared expert's row is added: a quarter and three eighths of a last place,
/// one after the other, are nothing.
fn shared_expert(context: &Context) -> Result<()> {
    let setup = Setup {
        fused_shared_expert: true,
        ..example()
    };
    let ids: [&[i32]; 2] = [&[0, 1, 1, -1], &[-1, -1]];
    let expert = |expert: Option<usize>, _: f32| match expert {
        None => 1.5 * exp2(-9),
        Some(0) => 1.0,
        Some(_) => exp2(-9),
    };
    let weights: [&[f32]; 2] = [&[1.0; 4], &[f32::NAN; 2]];
    for (format, twice) in [
        (CombineFormat::Bf16, 1.0),
        (CombineFormat::F32, 1.0 + 2.5 * exp2(-9)),
    ] {
        let case = numbered(setup.clone(), &ids, format);
        // A token without experts has the shared expert's row.
        expect(
            context,
            &case,
            &weights,
            expert,
            &[&[twice, 2.5 * exp2(-9)], &[1.5 * exp2(-9)]],
        )?;
    }
    Ok(())
}

/// Ranks with the same tokens add up what their own experts, and their slices of the shared one, make of them:
/// together, what one rank with all experts would.
fn skip_mode(context: &Context) -> Result<()> {
    let ids: &[i32] = &[0, 2, 1, 3, 2, 0];
    let setup = Setup {
        skip_a2a: true,
        fused_shared_expert: true,
        ..example()
    };
    let mut case = numbered(setup, &[ids, ids], CombineFormat::Bf16);
    case.ranks[1] = case.ranks[0].clone();
    let expert = |expert: Option<usize>, x: f32| match expert {
        None => 100.0,
        Some(expert) => (expert + 1) as f32 * x,
    };
    let ones: [&[f32]; 2] = [&[1.0; 6], &[1.0; 6]];
    // The shared expert has tokens 0 and 1 on rank 0, token 2 on rank 1.
    expect(
        context,
        &case,
        &ones,
        expert,
        &[&[101.0, 104.0, 3.0], &[3.0, 8.0, 109.0]],
    )
}

/// What lies in the buffers from the round before, NaN in every row, and NaN as the weight of nobody: a token of
/// nobody alone is 0 all the same, and positive.
fn stale_rows(context: &Context) -> Result<()> {
    let device = context.device();
    for format in CombineFormat::ALL {
        let setup = small_home(3);
        let first = EpCase::new(setup.clone(), &[5, 5, 5], Traffic::Uniform, 60);
        let mut second = EpCase::new(setup, &[5, 4, 5], Traffic::Holes, 61);
        second.ranks[0].topk_ids[..6].copy_from_slice(&[-1, -1, -1, 6, i32::MAX, i32::MIN]);
        for &mode in Mode::of_round_trip(&first) {
            let first = home(first.clone().side_by_side(&device), format);
            let second = home(second.clone().side_by_side(&device), format);
            let random = &mut Rng::with_seed(62);
            let mut poison = Returns::random(&first, Some(InputType::F32), random)?;
            for outputs in &mut poison.outputs {
                *outputs = Rows::rounded(outputs.input_type(), vec![f32::NAN; outputs.len()]);
            }
            let mut returns = Returns::random(&second, Some(InputType::F32), random)?;
            if let Some(weights) = &mut returns.weights {
                let mut of_nobody = weights[0].widened();
                of_nobody[..6].fill(f32::NAN);
                weights[0] = Rows::F32(of_nobody);
            }
            let mut world = World::new(&device, &first)?;
            let mut poisoned = poison.upload(&first, &device, 0)?;
            world.round_trip(&first, mode, &mut poisoned)?;
            let found = world.check_round_trip(&second, mode, &returns)?;
            let nothing = &found[0].bits()[..2 * second.setup.hidden_size];
            ensure!(nothing.iter().all(|&bits| bits == 0), "{format}, {mode:?}");
        }
    }
    Ok(())
}

fn small_home(ranks: usize) -> Setup {
    Setup {
        hidden_size: 64,
        ..small(TokenFormat::Bf16, ranks)
    }
}

/// Any bits: unweighted they come back as they are, NaN payloads and all; sums are those of the reference, infinite
/// and subnormal ones too.
fn any_bits(context: &Context) -> Result<()> {
    for format in PLAIN {
        for weights in [None, Some(InputType::F32), Some(InputType::Bf16)] {
            let case = EpCase::new(small_home(2), &[5, 4], Traffic::Uniform, 63);
            let case = home(case, format);
            let random = &mut Rng::with_seed(64);
            let mut returns = Returns::random(&case, weights, random)?;
            let rows = returns.outputs.iter_mut();
            for rows in rows.chain(returns.weights.iter_mut().flatten()) {
                *rows = Rows::random_bits(rows.input_type(), rows.len(), random);
            }
            case.check_round_trips(&[context.device()], &returns)?;
        }
    }
    Ok(())
}

/// Rows whose blocks differ in size by much, and rows of zeros, come home as the reference quantizes them.
fn quantized(context: &Context) -> Result<()> {
    for format in [CombineFormat::Mxfp8, CombineFormat::Nvfp4] {
        for weights in [None, Some(InputType::F32)] {
            let case = EpCase::new(small_home(2), &[5, 4], Traffic::Uniform, 65);
            let case = home(case, format);
            let random = &mut Rng::with_seed(66);
            let mut returns = Returns::random(&case, weights, random)?;
            for rows in &mut returns.outputs {
                let mut values = rows.widened();
                for (number, block) in values.chunks_mut(16).enumerate() {
                    let size = if number % 8 < 4 && number % 3 == 0 {
                        0.0
                    } else {
                        exp2(random.i32(-30..30))
                    };
                    block.iter_mut().for_each(|value| *value *= size);
                }
                *rows = Rows::rounded(InputType::Bf16, values);
            }
            case.check_round_trips(&[context.device()], &returns)?;
        }
    }
    Ok(())
}
