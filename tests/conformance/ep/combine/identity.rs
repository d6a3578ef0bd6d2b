//! Round trips through experts that change nothing, whose results can be said without the reference.

use anyhow::Result;
use fastrand::Rng;
use half::bf16;
use tokenyard_tests::ep::{DeviceReturns, EpCase, Mode, World};
use tokenyard_tests::{Rows, compare};

/// What outputs hold beforehand.
const BACKGROUND: u8 = 0xC3;

/// Gives every token small whole numbers: of those, sums with the weights below are exact.
pub fn whole_numbers(case: &mut EpCase, random: &mut Rng) {
    for value in case.ranks.iter_mut().flat_map(|rank| &mut rank.tokens) {
        *value = bf16::from_f32(random.i32(-8..=8) as f32);
    }
}

/// Multiples of a quarter up to 1.
pub fn quarters(case: &EpCase, random: &mut Rng) -> Vec<Rows> {
    let ranks = case.ranks.iter().map(|rank| {
        let weights = rank.topk_ids.iter().map(|_| random.u8(0..=4) as f32 / 4.0);
        Rows::F32(weights.collect())
    });
    ranks.collect()
}

/// The positions of a token that count: those that name an expert, of equal ones the first.
fn counted(case: &EpCase, ids: &[i32]) -> Vec<usize> {
    let experts = 0..case.setup.experts as i32;
    let positions = 0..ids.len();
    positions
        .filter(|&k| experts.contains(&ids[k]) && !ids[..k].contains(&ids[k]))
        .collect()
}

/// What every rank must get back.
pub fn expected(case: &EpCase, weights: Option<&[Rows]>) -> Vec<Vec<u16>> {
    let (hidden, top_k) = (case.setup.hidden_size, case.setup.top_k);
    let pattern = u16::from_ne_bytes([BACKGROUND; 2]);
    let ranks = case.ranks.iter().enumerate().map(|(number, rank)| {
        let tokens = rank.tokens.chunks(hidden).zip(rank.topk_ids.chunks(top_k));
        let tokens = tokens.enumerate().flat_map(|(token, (values, ids))| {
            let counted = counted(case, ids);
            match weights {
                Some(weights) => {
                    let weight = |k: &usize| weights[number].value(token * top_k + k);
                    let weight: f32 = counted.iter().map(weight).sum();
                    let sum = |value: &bf16| {
                        // A sum from 0 never is -0.
                        let sum = weight * value.to_f32();
                        bf16::from_f32(if sum == 0.0 { 0.0 } else { sum }).to_bits()
                    };
                    values.iter().map(sum).collect::<Vec<_>>()
                }
                None => (0..top_k)
                    .flat_map(|k| match counted.contains(&k) {
                        true => values.iter().map(|it| it.to_bits()).collect(),
                        false => vec![pattern; hidden],
                    })
                    .collect(),
            }
        });
        tokens.collect()
    });
    ranks.collect()
}

/// Outputs, and weights, of a round trip through experts that change nothing.
pub fn returns(world: &World, case: &EpCase, weights: Option<&[Rows]>) -> Result<DeviceReturns> {
    let device = world.group.device().clone();
    DeviceReturns::new(
        case,
        &device,
        world.identity_outputs()?,
        weights,
        BACKGROUND,
    )
}

/// Holds what came back to what must have.
pub fn check(case: &EpCase, weights: Option<&[Rows]>, returns: &DeviceReturns) -> Result<()> {
    let hidden = case.setup.hidden_size;
    let expected = expected(case, weights);
    for (rank, (expected, found)) in expected.iter().zip(returns.download()?).enumerate() {
        let expected: Vec<_> = expected.iter().map(|&bits| bits.into()).collect();
        compare::words("identity", &expected, &found.bits(), |index| {
            format!(
                "rank {rank}, row {}, element {}",
                index / hidden,
                index % hidden
            )
        })?;
    }
    Ok(())
}

/// One round trip of a case whose tokens are [whole numbers](whole_numbers), weighted by [quarters], and one that is
/// not weighted: both exact.
pub fn round_trip(world: &mut World, case: &EpCase, mode: Mode, random: &mut Rng) -> Result<()> {
    let quarters = quarters(case, random);
    for weights in [Some(&quarters[..]), None] {
        let mut returns = returns(world, case, weights)?;
        world.round_trip(case, mode, &mut returns)?;
        check(case, weights, &returns)?;
        world.check_combined()?;
    }
    Ok(())
}
