//! Faults that public projects had with expert parallelism, under the numbers of the list of cases. The
//! right answer is written out, and everything is compared with the reference as well.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use half::bf16;
use tokenyard::DeviceBuffer;
use tokenyard::ep::{Batch, EpConfigError, EpError, TokenFormat};
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Mode, RankInput, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::small;

pub fn register(suite: &mut Suite) {
    suite.both("ep::reported::a01_nothing_to_send", nothing_to_send);
    suite.both("ep::reported::a02_empty_ids", empty_ids);
    suite.both("ep::reported::a03_any_token_count", any_token_count);
    suite.both("ep::reported::a04_hidden_sizes", hidden_sizes);
    suite.both("ep::reported::a05_many_experts", many_experts);
    suite.both("ep::reported::a06_top_k", top_k);
    suite.both("ep::reported::a07_absent_ids", absent_ids);
    suite.cuda(
        "ep::reported::a08_offsets_beyond_32_bits",
        offsets_beyond_32_bits,
    );
    suite.both("ep::reported::a09_padding_tokens", padding_tokens);
    suite.both("ep::reported::a10_repeated_ids", repeated_ids);
    suite.both("ep::reported::a11_one_token_too_many", one_token_too_many);
    suite.both("ep::reported::a12_batches_of_any_size", batches_of_any_size);
    suite.both("ep::reported::a13_local_numbers", local_numbers);
    suite.host("ep::reported::a14_uneven_experts", || {
        uneven_experts().map(|()| None)
    });
    suite.both(
        "ep::reported::a15_every_token_to_the_same",
        every_token_to_the_same,
    );
}

/// Runs a case in every mode, and returns the worlds, whose outputs have been compared.
fn worlds(context: &Context, case: &EpCase) -> Result<Vec<World>> {
    let device = context.device();
    let modes = Mode::of(case).iter();
    modes
        .map(|&mode| {
            let case = &case.clone().side_by_side(&device);
            let mut world = World::new(&device, case)?;
            world
                .check_round(case, mode)
                .with_context(|| format!("{case}; {mode:?}"))?;
            Ok(world)
        })
        .collect()
}

/// Rows that a rank received, by the last row offset.
fn rows(world: &World, rank: usize) -> Result<u32> {
    let offsets = world.received(rank).row_offsets().download()?;
    offsets
        .last()
        .copied()
        .context("there is an offset at least")
}

/// Rank 0 has no tokens and all the experts that are asked for: it takes part.
fn nothing_to_send(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 24,
        ranks: 4,
        top_k: 6,
        ..Setup::new(TokenFormat::Mxfp4, 64, 4)
    };
    let case = EpCase::new(setup, &[0, 4, 4, 4], Traffic::Same(0), 1);
    for world in worlds(context, &case)? {
        ensure!(rows(&world, 0)? == 72);
        for rank in 1..4 {
            ensure!(rows(&world, rank)? == 0, "rank {rank} received rows");
        }
    }
    Ok(())
}

/// No ids and no tokens, K = 8 and 7168 elements, beside ranks that have some; and nowhere any.
fn empty_ids(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 16,
        ranks: 4,
        top_k: 8,
        ..Setup::new(TokenFormat::Mxfp4, 7168, 2)
    };
    for counts in [[2, 0, 1, 2], [0, 0, 0, 0]] {
        worlds(
            context,
            &EpCase::new(setup.clone(), &counts, Traffic::Uniform, 2),
        )?;
    }
    Ok(())
}

fn any_token_count(context: &Context) -> Result<()> {
    let counts: &[usize] = context.pick(
        &[1, 2, 3, 127, 129, 2048, 4095, 4096, 4097],
        &[1, 2, 3, 127, 129],
    );
    for &tokens in counts {
        let setup = Setup {
            experts: 8,
            ranks: 2,
            top_k: 2,
            ..Setup::new(TokenFormat::Mxfp4, 64, tokens)
        };
        worlds(
            context,
            &EpCase::new(setup, &[tokens, tokens], Traffic::Skewed, 3),
        )?;
    }
    Ok(())
}

/// 2880 elements in every format whose block divides them; multiples of a block that are none of a
/// larger unit.
fn hidden_sizes(context: &Context) -> Result<()> {
    for (format, hidden_size) in [
        (TokenFormat::Bf16, 2880),
        (TokenFormat::Nvfp4, 2880),
        (TokenFormat::Mxfp4, 2880),
        (TokenFormat::Mxfp8, 2880),
        (TokenFormat::Mxfp8, 7200),
        (TokenFormat::Fp8Block128, 640),
        (TokenFormat::Fp8Block128, 7296),
    ] {
        let setup = Setup {
            hidden_size,
            ..small(format, 2)
        };
        worlds(context, &EpCase::new(setup, &[2, 1], Traffic::Uniform, 4))?;
    }
    let refused = EpCase::new(
        Setup {
            hidden_size: 2880,
            ..small(TokenFormat::Fp8Block128, 2)
        },
        &[0, 0],
        Traffic::Uniform,
        4,
    );
    refused!(
        refused.config(),
        EpConfigError::HiddenSize {
            hidden_size: 2880,
            multiple: 128,
            ..
        }
    );
    Ok(())
}

fn many_experts(context: &Context) -> Result<()> {
    let tokens = context.pick(32, 1);
    let setup = Setup {
        experts: 896,
        ranks: context.pick(8, 2),
        top_k: 16,
        ..Setup::new(TokenFormat::Mxfp4, 3584, tokens)
    };
    let counts = vec![tokens; setup.ranks];
    worlds(context, &EpCase::new(setup, &counts, Traffic::Uniform, 5))?;
    Ok(())
}

/// 22 of 512 experts over 16 ranks; one expert a token; every expert for every token.
fn top_k(context: &Context) -> Result<()> {
    let most = context.pick(16, 4);
    for (experts, ranks, top_k) in [
        (512, most, 22),
        (8, 2, 1),
        (8, 2, 8),
        (32, 4, 32),
        (1, 1, 1),
    ] {
        let setup = Setup {
            experts,
            ranks,
            top_k,
            ..Setup::new(TokenFormat::Mxfp8, context.pick(1024, 64), 2)
        };
        let counts = vec![2; ranks];
        worlds(context, &EpCase::new(setup, &counts, Traffic::Uniform, 6))?;
    }
    Ok(())
}

/// -1 in some positions, in whole tokens, in all.
fn absent_ids(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 4,
        ranks: 2,
        top_k: 2,
        ..Setup::new(TokenFormat::Mxfp4, 64, 3)
    };
    let mut case = EpCase::new(setup, &[3, 3], Traffic::Uniform, 7);
    for (first, expected) in [
        ([-1, 0, -1, -1, 2, -1], [1, 1]),
        ([-1, -1, -1, -1, 3, 1], [1, 1]),
        ([-1; 6], [0, 0]),
    ] {
        case.ranks[0].topk_ids = first.to_vec();
        case.ranks[1].topk_ids = vec![-1; 6];
        for world in worlds(context, &case)? {
            ensure!(
                [rows(&world, 0)?, rows(&world, 1)?] == expected,
                "{first:?}"
            );
        }
    }
    Ok(())
}

/// 304,000 rows of 7168 BF16 elements: the last ones lie beyond 4 GiB in the receive buffer and in the
/// output. The whole would take long to compare; the ends of every group and cell do.
fn offsets_beyond_32_bits(context: &Context) -> Result<()> {
    const TOKENS: usize = 38_000;
    const HIDDEN: usize = 7168;
    let setup = Setup {
        experts: 8,
        top_k: 8,
        ..Setup::new(TokenFormat::Bf16, HIDDEN, TOKENS)
    };
    let mut case = EpCase::new(setup, &[0], Traffic::Same(0), 8).deterministic();
    let mut state = Rng::with_seed(8);
    case.ranks[0] = RankInput {
        tokens: (0..TOKENS * HIDDEN)
            .map(|_| bf16::from_bits(state.u16(..)))
            .collect(),
        topk_ids: (0..8).cycle().take(8 * TOKENS).collect(),
    };
    let mut world = World::new(&context.device(), &case)?;
    world.dispatch(&case, Mode::Split)?;
    let tokens = world.received(0).tokens();
    let start = tokens.as_ptr().cast_mut();
    for expert in 0..8 {
        for token in [0, 1, TOKENS / 2, TOKENS - 1] {
            let row = expert * TOKENS + token;
            // SAFETY: row `row` lies inside `tokens`, which outlives the window.
            let window: DeviceBuffer<u8> = unsafe {
                DeviceBuffer::from_raw(tokens.device(), start.add(row * 2 * HIDDEN), 2 * HIDDEN)?
            };
            let expected: &[u8] =
                bytemuck::cast_slice(&case.ranks[0].tokens[token * HIDDEN..][..HIDDEN]);
            ensure!(
                window.download()? == expected,
                "row {row} is not token {token}"
            );
        }
    }
    let info = world.received(0).src_info().download()?;
    for (row, pair) in info.iter().enumerate() {
        let expected = [(row % TOKENS) as i32, (row / TOKENS) as i32];
        ensure!(*pair == expected, "row {row} is said to be {pair:?}");
    }
    world.check_counters()
}

/// Half of three ranks' tokens are padding: no message for them, and none to rank 0 in their stead.
fn padding_tokens(context: &Context) -> Result<()> {
    let half = context.pick(512, 16);
    let setup = Setup {
        experts: 8,
        ranks: 4,
        top_k: 2,
        ..Setup::new(TokenFormat::Mxfp4, 64, 2 * half)
    };
    let mut case = EpCase::new(setup, &[2 * half; 4], Traffic::Uniform, 9);
    let mut to_rank_0 = 0;
    for (number, rank) in case.ranks.iter_mut().enumerate() {
        if number > 0 {
            rank.topk_ids[2 * half..].fill(-1);
        }
        to_rank_0 += rank
            .topk_ids
            .iter()
            .filter(|&&id| id == 0 || id == 1)
            .count();
    }
    for world in worlds(context, &case)? {
        ensure!(rows(&world, 0)? as usize == to_rank_0);
        let total: u32 = (0..4).map(|rank| rows(&world, rank)).sum::<Result<u32>>()?;
        ensure!(
            total as usize == 2 * (2 * half + 3 * half),
            "{total} rows in all"
        );
    }
    Ok(())
}

/// NaN logits give the same expert eight times: it counts once, and nobody reads what was not sent.
fn repeated_ids(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 16,
        ranks: 2,
        top_k: 8,
        ..Setup::new(TokenFormat::Mxfp4, 64, 4)
    };
    let mut case = EpCase::new(setup, &[4, 4], Traffic::Uniform, 10);
    for rank in &mut case.ranks {
        rank.topk_ids[8..16].fill(0);
        rank.topk_ids[24..32].copy_from_slice(&[5, 5, -1, 7, 5, 7, 9, 9]);
    }
    for case in [case.clone(), case.deterministic()] {
        for world in worlds(context, &case)? {
            let handles = world.received(0).pairs().download()?;
            let others = case.ranks[0]
                .topk_ids
                .chunks(8)
                .filter(|ids| ids.contains(&0));
            ensure!(handles[0][1] as usize == others.count(), "{handles:?}");
        }
    }
    Ok(())
}

fn one_token_too_many(context: &Context) -> Result<()> {
    let setup = small(TokenFormat::Bf16, 2);
    let full = EpCase::new(setup, &[5, 5], Traffic::Uniform, 11);
    let mut over = full.clone();
    over.refill(&[5, 6], Traffic::Uniform, &mut Rng::with_seed(11));
    let mut world = World::new(&context.device(), &full)?;
    world.check_round(&full, Mode::Fused)?;
    let before = world.download()?;
    refused!(
        world.dispatch(&over, Mode::Fused),
        EpError::TooManyTokens {
            rank: 1,
            tokens: 6,
            capacity: 5
        }
    );
    ensure!(world.download()? == before, "a refused call wrote");
    world.check_round(&full, Mode::Fused)
}

/// Graphs of 8, 4, 2 and 1 tokens on one group and one set of outputs, replayed in mixed order, between calls
/// that are not captured: the layout depends on the capacity alone.
fn batches_of_any_size(context: &Context) -> Result<()> {
    let device = context.device();
    let setup = Setup {
        max_tokens_per_rank: 8,
        ..small(TokenFormat::Mxfp4, 2)
    };
    let case = |tokens: usize| {
        let counts = [tokens, tokens];
        EpCase::new(setup.clone(), &counts, Traffic::Uniform, tokens as u64)
    };
    let mut world = World::new(&device, &case(8))?;
    let stream = device.create_stream()?;
    let upload = |case: &EpCase| {
        let ranks = case.ranks.iter();
        ranks
            .map(|rank| Ok((device.upload(&rank.tokens)?, device.upload(&rank.topk_ids)?)))
            .collect::<Result<Vec<_>>>()
    };
    let cases = [8, 4, 2, 1].map(case);
    let tensors = cases.iter().map(upload).collect::<Result<Vec<_>>>()?;
    let graphs = tensors.iter().map(|ranks| {
        let batches = ranks.iter().map(|(tokens, ids)| Batch::new(tokens, ids));
        Ok(world.capture(&stream, &batches.collect::<Vec<_>>())?)
    });
    let graphs = graphs.collect::<Result<Vec<_>>>()?;
    for (turn, number) in [0, 3, 1, 2, 2, 0, 3, 3, 1].into_iter().enumerate() {
        world.fill(0x6C)?;
        // SAFETY: `tensors` and the buffers of `world` outlive the launch, which the check waits for; nothing
        // else is running.
        unsafe { graphs[number].launch(&stream)? };
        world.group.check()?;
        let found = world.download()?;
        world
            .compare(&cases[number], 0x6C, &found)
            .with_context(|| format!("replay {turn}, of {}", cases[number]))?;
        world.check_round(&case(turn % 8 + 1), Mode::Fused)?;
    }
    Ok(())
}

/// Global ids 2, 3, 0, 5, 2, 7 of eight experts on four ranks.
fn local_numbers(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 8,
        ranks: 4,
        ..Setup::new(TokenFormat::Mxfp8, 64, 6)
    };
    let mut case = EpCase::new(setup, &[6, 0, 0, 0], Traffic::Uniform, 13);
    case.ranks[0].topk_ids = vec![2, 3, 0, 5, 2, 7];
    for world in worlds(context, &case)? {
        let received = [0, 1, 2, 3].map(|rank| rows(&world, rank).ok());
        ensure!(
            received == [Some(1), Some(3), Some(1), Some(1)],
            "{received:?}"
        );
        let offsets = world.received(1).row_offsets().download()?;
        ensure!(offsets == [0, 2, 3], "{offsets:?}");
        let offsets = world.received(2).row_offsets().download()?;
        ensure!(offsets == [0, 0, 1], "{offsets:?}");
    }
    Ok(())
}

fn uneven_experts() -> Result<()> {
    let case = EpCase::new(
        Setup {
            experts: 10,
            ranks: 4,
            ..Setup::new(TokenFormat::Mxfp4, 64, 1)
        },
        &[0; 4],
        Traffic::Uniform,
        14,
    );
    refused!(
        case.config(),
        EpConfigError::UnevenExperts {
            experts: 10,
            ranks: 4
        }
    );
    Ok(())
}

/// Every token to experts 0 to 7, of values 0 and 1, again and again: the rows are the tokens every time.
fn every_token_to_the_same(context: &Context) -> Result<()> {
    let (tokens, rounds) = context.pick((1024, 64), (24, 4));
    let setup = Setup {
        experts: context.pick(256, 16),
        ranks: 2,
        top_k: 8,
        ..Setup::new(TokenFormat::Bf16, context.pick(7168, 64), tokens)
    };
    let device = context.device();
    let mut case =
        EpCase::new(setup, &[tokens, tokens], Traffic::Same(0), 15).side_by_side(&device);
    let random = &mut Rng::with_seed(15);
    for rank in &mut case.ranks {
        let values = rank.tokens.iter_mut();
        values.for_each(|value| *value = bf16::from_f32(f32::from(random.bool() as u8)));
    }
    let mut world = World::new(&device, &case)?;
    for round in 0..rounds {
        let mode = Mode::ALL[round % Mode::ALL.len()];
        world
            .check_round(&case, mode)
            .with_context(|| format!("round {round}"))?;
    }
    Ok(())
}
