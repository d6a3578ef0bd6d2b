//! Many rounds on one group: nothing needs a reset between them, whatever came before.

use anyhow::{Context as _, Result};
use fastrand::Rng;
use tokenyard::ep::{Batch, TokenFormat};
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Mode, RankInput, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::small;

pub fn register(suite: &mut Suite) {
    suite.both("ep::rounds::thousand", thousand);
    suite.both("ep::rounds::shared_expert", shared_expert);
    suite.both("ep::rounds::counts_from_the_device", counts_from_the_device);
    suite.both("ep::rounds::two_sizes", two_sizes);
}

/// Other tokens, other counts and another kind of traffic in every round, split and fused in turn.
fn thousand(context: &Context) -> Result<()> {
    let random = &mut Rng::with_seed(7);
    let setup = Setup {
        hidden_size: 32,
        ..small(TokenFormat::Mxfp4, 3)
    };
    let device = context.device();
    let mut case = EpCase::new(setup, &[5, 5, 5], Traffic::Uniform, 7).side_by_side(&device);
    let mut world = World::new(&device, &case)?;
    for round in 0..1000 {
        let counts = [0; 3].map(|_: usize| random.usize(..=5));
        case.refill(&counts, Traffic::ALL[round % Traffic::ALL.len()], random);
        let mode = Mode::ALL[random.usize(..Mode::ALL.len())];
        world
            .check_round(&case, mode)
            .with_context(|| format!("round {round}, {mode:?}: {case}"))?;
    }
    Ok(())
}

/// The same with the shared expert, with and without exchange.
fn shared_expert(context: &Context) -> Result<()> {
    for (format, skip_a2a) in [
        (TokenFormat::Nvfp4, false),
        (TokenFormat::Fp8Block128, true),
    ] {
        let random = &mut Rng::with_seed(8);
        let setup = Setup {
            fused_shared_expert: true,
            skip_a2a,
            ..small(format, 2)
        };
        let mut case = EpCase::new(setup, &[5, 5], Traffic::Uniform, 8);
        let mut world = World::new(&context.device(), &case)?;
        for round in 0..context.pick(1000, 60) {
            let counts = [0; 2].map(|_: usize| random.usize(..=5));
            case.refill(&counts, Traffic::ALL[round % Traffic::ALL.len()], random);
            world
                .check_round(&case, Mode::Fused)
                .with_context(|| format!("round {round}: {case}"))?;
        }
    }
    Ok(())
}

/// Two groups of one format share their kernels. Messages of both need more shared memory than a kernel has without
/// asking, and the group that needs less, which comes later, takes nothing away from the other.
fn two_sizes(context: &Context) -> Result<()> {
    let device = context.device();
    let group = |hidden_size, seed| -> Result<(EpCase, World)> {
        let setup = Setup {
            hidden_size,
            ..small(TokenFormat::Bf16, 2)
        };
        let case = EpCase::new(setup, &[2, 1], Traffic::Uniform, seed).side_by_side(&device);
        let world = World::new(&device, &case)?;
        Ok((case, world))
    };
    let (large, mut large_world) = group(20480, 10)?;
    let (less, mut less_world) = group(14336, 11)?;
    for &mode in Mode::of(&large) {
        large_world.check_round(&large, mode)?;
        less_world.check_round(&less, mode)?;
        large_world.check_round(&large, mode)?;
    }
    Ok(())
}

/// Buffers of the full capacity whose number of tokens is a word on the device: what a captured graph
/// replays with other counts. A word beyond the buffers counts as their length.
fn counts_from_the_device(context: &Context) -> Result<()> {
    let setup = small(TokenFormat::Mxfp8, 2);
    let device = context.device();
    let stream = device.create_stream()?;
    let full = EpCase::new(setup, &[5, 5], Traffic::Skewed, 9);
    let mut world = World::new(&device, &full)?;
    let tensors: Vec<_> = full
        .ranks
        .iter()
        .map(|rank| {
            let (tokens, ids) = (device.upload(&rank.tokens)?, device.upload(&rank.topk_ids)?);
            Ok((tokens, ids, device.upload(&[0_u32])?))
        })
        .collect::<Result<_>>()?;
    let mut tensors: Vec<_> = tensors;
    for counts in [[0, 5], [3, 3], [5, 0], [1, 4], [u32::MAX, 6], [0, 0]] {
        for ((.., word), count) in tensors.iter_mut().zip(counts) {
            word.upload_from(&[count])?;
        }
        let batches: Vec<_> = tensors
            .iter()
            .map(|(tokens, ids, word)| Batch::new(tokens, ids).count(word))
            .collect();
        world.fill(0x5A)?;
        world.dispatch_batches(&stream, &batches)?;
        let mut case = full.clone();
        for (rank, count) in case.ranks.iter_mut().zip(counts) {
            let count = count.min(5) as usize;
            *rank = RankInput {
                tokens: rank.tokens[..count * case.setup.hidden_size].to_vec(),
                topk_ids: rank.topk_ids[..count * case.setup.top_k].to_vec(),
            };
        }
        let found = world.download()?;
        world
            .compare(&case, 0x5A, &found)
            .with_context(|| format!("{counts:?}"))?;
    }
    Ok(())
}
