//! Faults that public projects had with expert parallelism, under the numbers of the list of cases. The
//! right answer is written out, and everything is compared with the reference as well.

use anyhow::{Context as _, Result, ensure};
use half::bf16;
use tokenyard::DeviceBuffer;
use tokenyard::ep::{Batch, EpConfigError, EpError, TokenFormat};
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Mode, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::{shapes, small};

pub fn register(suite: &mut Suite) {
    for (name, case) in [
        ("a01_nothing_to_send", nothing_to_send as fn(&Context) -> _),
        ("a02_empty_ids", empty_ids),
        ("a03_any_token_count", any_token_count),
        ("a04_hidden_sizes", hidden_sizes),
        ("a05_many_experts", many_experts),
        ("a06_top_k", top_k),
        ("a07_absent_ids", absent_ids),
        ("a09_padding_tokens", padding_tokens),
        ("a10_repeated_ids", repeated_ids),
        ("a11_one_token_too_many", one_token_too_many),
        ("a12_batches_of_any_size", batches_of_any_size),
        ("a13_local_numbers", local_numbers),
        ("a15_every_token_to_the_same", every_token_to_the_same),
    ] {
        suite.both(&format!("ep::reported::{name}"), case);
    }
    suite.cuda(
        "ep::reported::a08_offsets_beyond_32_bits",
        offsets_beyond_32_bits,
    );
    suite.host("ep::reported::a14_uneven_experts", || {
        uneven_experts().map(|()| None)
    });
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

/// Rank 0 takes part.
fn nothing_to_send(context: &Context) -> Result<()> {
    for world in worlds(context, &shapes::nothing_to_send(TokenFormat::Mxfp4))? {
        ensure!(rows(&world, 0)? == 72);
        for rank in 1..4 {
            ensure!(rows(&world, rank)? == 0, "rank {rank} received rows");
        }
    }
    Ok(())
}

/// Runs cases whose outputs the reference alone judges.
fn compare(context: &Context, cases: impl IntoIterator<Item = EpCase>) -> Result<()> {
    for case in cases {
        worlds(context, &case)?;
    }
    Ok(())
}

fn empty_ids(context: &Context) -> Result<()> {
    compare(context, shapes::empty_ids(TokenFormat::Mxfp4))
}

fn any_token_count(context: &Context) -> Result<()> {
    compare(
        context,
        shapes::any_token_count(context, TokenFormat::Mxfp4),
    )
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
        worlds(context, &shapes::of_hidden_size(format, hidden_size, 4))?;
    }
    let refused = shapes::of_hidden_size(TokenFormat::Fp8Block128, 2880, 4);
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
    compare(
        context,
        [shapes::many_experts(context, TokenFormat::Mxfp4, 3584)],
    )
}

fn top_k(context: &Context) -> Result<()> {
    compare(context, shapes::top_k(context, TokenFormat::Mxfp8))
}

fn absent_ids(context: &Context) -> Result<()> {
    for (case, expected) in shapes::absent_ids(TokenFormat::Mxfp4) {
        for world in worlds(context, &case)? {
            let received = [rows(&world, 0)?, rows(&world, 1)?];
            ensure!(received == expected, "{:?}", case.ranks[0].topk_ids);
        }
    }
    Ok(())
}

/// The last rows lie beyond 4 GiB in the receive buffer and in the output. The whole would take long to compare; the
/// ends of every group and cell do.
fn offsets_beyond_32_bits(context: &Context) -> Result<()> {
    let case = shapes::offsets_beyond_32_bits(|random| bf16::from_bits(random.u16(..)));
    let (tokens_per_rank, hidden_size) = (case.setup.max_tokens_per_rank, case.setup.hidden_size);
    let mut world = World::new(&context.device(), &case)?;
    world.dispatch(&case, Mode::Split)?;
    let tokens = world.received(0).tokens();
    let start = tokens.as_ptr().cast_mut();
    for expert in 0..8 {
        for token in [0, 1, tokens_per_rank / 2, tokens_per_rank - 1] {
            let row = expert * tokens_per_rank + token;
            // SAFETY: row `row` lies inside `tokens`, which outlives the window.
            let window: DeviceBuffer<u8> = unsafe {
                DeviceBuffer::from_raw(
                    tokens.device(),
                    start.add(row * 2 * hidden_size),
                    2 * hidden_size,
                )?
            };
            let expected: &[u8] =
                bytemuck::cast_slice(&case.ranks[0].tokens[token * hidden_size..][..hidden_size]);
            ensure!(
                window.download()? == expected,
                "row {row} is not token {token}"
            );
        }
    }
    let info = world.received(0).src_info().download()?;
    for (row, pair) in info.iter().enumerate() {
        let expected = [
            (row % tokens_per_rank) as i32,
            (row / tokens_per_rank) as i32,
        ];
        ensure!(*pair == expected, "row {row} is said to be {pair:?}");
    }
    world.check_counters()
}

/// No message for padding, and none to rank 0 in its stead.
fn padding_tokens(context: &Context) -> Result<()> {
    let case = shapes::padding_tokens(context, TokenFormat::Mxfp4);
    let ids = || case.ranks.iter().flat_map(|rank| &rank.topk_ids);
    let to_rank_0 = ids().filter(|&&id| id == 0 || id == 1).count();
    let in_all = ids().filter(|&&id| id >= 0).count();
    for world in worlds(context, &case)? {
        ensure!(rows(&world, 0)? as usize == to_rank_0);
        let total: u32 = (0..4).map(|rank| rows(&world, rank)).sum::<Result<u32>>()?;
        ensure!(total as usize == in_all, "{total} rows in all");
    }
    Ok(())
}

/// An expert that is named again counts once, and nobody reads what was not sent.
fn repeated_ids(context: &Context) -> Result<()> {
    for case in shapes::repeated_ids(TokenFormat::Mxfp4) {
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
    let full = shapes::full(40);
    let over = shapes::one_token_too_many(&full);
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

fn local_numbers(context: &Context) -> Result<()> {
    let case = shapes::local_numbers(TokenFormat::Mxfp8);
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

/// Again and again: the rows are the tokens every time.
fn every_token_to_the_same(context: &Context) -> Result<()> {
    let device = context.device();
    let case = shapes::every_token_to_the_same(context).side_by_side(&device);
    let mut world = World::new(&device, &case)?;
    for round in 0..context.pick(64, 4) {
        let mode = Mode::ALL[round % Mode::ALL.len()];
        world
            .check_round(&case, mode)
            .with_context(|| format!("round {round}"))?;
    }
    Ok(())
}
