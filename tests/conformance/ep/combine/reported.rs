//! The faults of public projects, under the numbers of the list of cases, end to end: what comes back from experts
//! that change nothing is exact, and is compared with what it must be, not with the reference alone.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use half::bf16;
use tokenyard::DeviceBuffer;
use tokenyard::ep::{CombineFormat, EpError, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{DeviceInput, EpCase, Mode, RankInput, Returns, Traffic, World};
use tokenyard_tests::values::DeviceRows;
use tokenyard_tests::{Context, Rows, Suite};

use super::super::small;
use super::{home, identity};

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
        ("a13_local_numbers", local_numbers),
        ("a15_every_token_to_the_same", every_token_to_the_same),
        ("nothing_to_receive", nothing_to_receive),
    ] {
        suite.both(&format!("ep::combine::reported::{name}"), case);
    }
    suite.cuda(
        "ep::combine::reported::a08_offsets_beyond_32_bits",
        offsets_beyond_32_bits,
    );
}

/// Runs a case in every mode through experts that change nothing, twice.
fn round_trips(context: &Context, case: &EpCase) -> Result<()> {
    let device = context.device();
    let random = &mut Rng::with_seed(1);
    let mut case = home(case.clone().side_by_side(&device), CombineFormat::Bf16);
    identity::whole_numbers(&mut case, random);
    for &mode in Mode::of_round_trip(&case) {
        let mut world = World::new(&device, &case)?;
        for _ in 0..2 {
            identity::round_trip(&mut world, &case, mode, random)
                .with_context(|| format!("{case}; {mode:?}"))?;
        }
    }
    Ok(())
}

/// Rank 0 has no tokens and all the experts that are asked for: it gets nothing back, and the others what is theirs.
fn nothing_to_send(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 24,
        ranks: 4,
        top_k: 6,
        ..Setup::new(TokenFormat::Bf16, 64, 4)
    };
    round_trips(
        context,
        &EpCase::new(setup, &[0, 4, 4, 4], Traffic::Same(0), 1),
    )
}

fn empty_ids(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 16,
        ranks: 4,
        top_k: 8,
        ..Setup::new(TokenFormat::Bf16, 7168, 2)
    };
    for counts in [[2, 0, 1, 2], [0, 0, 0, 0]] {
        let case = EpCase::new(setup.clone(), &counts, Traffic::Uniform, 2);
        round_trips(context, &case)?;
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
            ..Setup::new(TokenFormat::Bf16, 64, tokens)
        };
        let case = EpCase::new(setup, &[tokens, tokens], Traffic::Skewed, 3);
        round_trips(context, &case)?;
    }
    Ok(())
}

/// Whatever the block of the format home divides: 2880 in all of them, 7200, and for rows as they are any whole
/// vectors.
fn hidden_sizes(context: &Context) -> Result<()> {
    for (format, hidden_size) in [
        (CombineFormat::Bf16, 2880),
        (CombineFormat::Bf16, 2888),
        (CombineFormat::F16, 2888),
        (CombineFormat::F32, 2888),
        (CombineFormat::Mxfp8, 2880),
        (CombineFormat::Mxfp8, 7200),
        (CombineFormat::Nvfp4, 2880),
        (CombineFormat::Nvfp4, 7200),
    ] {
        let setup = Setup {
            hidden_size,
            ..small(TokenFormat::Bf16, 2)
        };
        let case = home(EpCase::new(setup, &[2, 1], Traffic::Uniform, 4), format);
        let returns = Returns::random(&case, Some(InputType::F32), &mut Rng::with_seed(4))?;
        case.check_round_trips(&[context.device()], &returns)?;
    }
    Ok(())
}

fn many_experts(context: &Context) -> Result<()> {
    let tokens = context.pick(32, 1);
    let setup = Setup {
        experts: 896,
        ranks: context.pick(8, 2),
        top_k: 16,
        ..Setup::new(TokenFormat::Bf16, context.pick(3584, 448), tokens)
    };
    let counts = vec![tokens; setup.ranks];
    round_trips(context, &EpCase::new(setup, &counts, Traffic::Uniform, 5))
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
            ..Setup::new(TokenFormat::Bf16, context.pick(1024, 64), 2)
        };
        let case = EpCase::new(setup, &vec![2; ranks], Traffic::Uniform, 6);
        round_trips(context, &case)?;
    }
    Ok(())
}

/// -1 in some positions, in whole tokens, in all.
fn absent_ids(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 4,
        ranks: 2,
        top_k: 2,
        ..Setup::new(TokenFormat::Bf16, 64, 3)
    };
    let mut case = EpCase::new(setup, &[3, 3], Traffic::Uniform, 7);
    for first in [[-1, 0, -1, -1, 2, -1], [-1, -1, -1, -1, 3, 1], [-1; 6]] {
        case.ranks[0].topk_ids = first.to_vec();
        case.ranks[1].topk_ids = vec![-1; 6];
        round_trips(context, &case)?;
    }
    Ok(())
}

/// 304,000 rows of 7168 BF16 elements, there and back: the last ones lie beyond 4 GiB in the expert outputs, in the
/// combine buffer, and in the output that is not weighted. On a GPU alone: 4.4 GB five times over, which the emulator
/// would take hours for.
fn offsets_beyond_32_bits(context: &Context) -> Result<()> {
    const TOKENS: usize = 38_000;
    const HIDDEN: usize = 7168;
    const TOP_K: usize = 8;
    let setup = Setup {
        experts: TOP_K,
        top_k: TOP_K,
        ..Setup::new(TokenFormat::Bf16, HIDDEN, TOKENS)
    };
    let mut case = EpCase::new(setup, &[0], Traffic::Same(0), 8).deterministic();
    let random = &mut Rng::with_seed(8);
    // Whole numbers, so that eight times one is exact.
    let token = |random: &mut Rng| bf16::from_f32(random.i8(-15..=15).into());
    case.ranks[0] = RankInput {
        tokens: (0..TOKENS * HIDDEN).map(|_| token(random)).collect(),
        topk_ids: (0..TOP_K as i32).cycle().take(TOP_K * TOKENS).collect(),
    };
    let case = home(case, CombineFormat::Bf16);
    let mut world = World::new(&context.device(), &case)?;
    let ones = [Rows::F32(vec![1.0; TOP_K * TOKENS])];
    let mut returns = identity::returns(&world, &case, Some(&ones))?;
    world.round_trip(&case, Mode::Split, &mut returns)?;
    let Rows::Bf16(found) = returns.combined[0].download()? else {
        anyhow::bail!("combined rows are not BF16");
    };
    for (index, (found, given)) in found.iter().zip(&case.ranks[0].tokens).enumerate().rev() {
        ensure!(
            found.to_f32() == TOP_K as f32 * given.to_f32(),
            "token {}, element {}: {found}, not {TOP_K} times {given}",
            index / HIDDEN,
            index % HIDDEN
        );
    }
    world.check_combined()?;
    drop(returns);

    let mut returns = identity::returns(&world, &case, None)?;
    world.round_trip(&case, Mode::Fused, &mut returns)?;
    let DeviceRows::Bf16(rows) = &mut returns.combined[0] else {
        anyhow::bail!("returned rows are not BF16");
    };
    let (device, start) = (rows.device().clone(), rows.as_mut_ptr());
    for token in [0, 1, TOKENS / 2, TOKENS - 2, TOKENS - 1] {
        for k in 0..TOP_K {
            let row = token * TOP_K + k;
            // SAFETY: row `row` of T * K lies inside `rows`, which outlives the window.
            let window =
                unsafe { DeviceBuffer::from_raw(&device, start.add(row * HIDDEN), HIDDEN)? };
            ensure!(
                window.download()? == case.ranks[0].tokens[token * HIDDEN..][..HIDDEN],
                "row {row} is not token {token}"
            );
        }
    }
    world.check_combined()
}

/// Half of three ranks' tokens are padding: they come back as zeros.
fn padding_tokens(context: &Context) -> Result<()> {
    let half = context.pick(512, 16);
    let setup = Setup {
        experts: 8,
        ranks: 4,
        top_k: 2,
        ..Setup::new(TokenFormat::Bf16, 64, 2 * half)
    };
    let mut case = EpCase::new(setup, &[2 * half; 4], Traffic::Uniform, 9);
    for rank in &mut case.ranks[1..] {
        rank.topk_ids[2 * half..].fill(-1);
    }
    round_trips(context, &case)
}

/// The same expert eight times counts once, in the first place, there and back.
fn repeated_ids(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 16,
        ranks: 2,
        top_k: 8,
        ..Setup::new(TokenFormat::Bf16, 64, 4)
    };
    let mut case = EpCase::new(setup, &[4, 4], Traffic::Uniform, 10);
    for rank in &mut case.ranks {
        rank.topk_ids[8..16].fill(0);
        rank.topk_ids[24..32].copy_from_slice(&[5, 5, -1, 7, 5, 7, 9, 9]);
    }
    round_trips(context, &case)?;
    round_trips(context, &case.deterministic())
}

/// A batch that is refused costs nothing: the next one makes the round trip.
fn one_token_too_many(context: &Context) -> Result<()> {
    let setup = Setup {
        hidden_size: 64,
        ..small(TokenFormat::Bf16, 2)
    };
    let random = &mut Rng::with_seed(11);
    let mut full = EpCase::new(setup, &[5, 5], Traffic::Uniform, 11);
    identity::whole_numbers(&mut full, random);
    let full = home(full, CombineFormat::Bf16);
    let mut over = full.clone();
    over.refill(&[5, 6], Traffic::Uniform, random);
    let mut world = World::new(&context.device(), &full)?;
    identity::round_trip(&mut world, &full, Mode::Fused, random)?;
    let mut returns = identity::returns(&world, &over, None)?;
    refused!(
        world.round_trip(&over, Mode::Fused, &mut returns),
        EpError::TooManyTokens {
            rank: 1,
            tokens: 6,
            capacity: 5
        }
    );
    for rows in returns.download()? {
        ensure!(
            rows.bits().iter().all(|&bits| bits == rows.bits()[0]),
            "a refused call wrote"
        );
    }
    identity::round_trip(&mut world, &full, Mode::Fused, random)
}

/// Global ids 2, 3, 0, 5, 2, 7 of eight experts on four ranks, each of which says who it is.
fn local_numbers(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 8,
        ranks: 4,
        ..Setup::new(TokenFormat::Bf16, 64, 6)
    };
    let mut case = EpCase::new(setup, &[6, 0, 0, 0], Traffic::Uniform, 13).deterministic();
    case.ranks[0].topk_ids = vec![2, 3, 0, 5, 2, 7];
    let device = context.device();
    let case = home(case.side_by_side(&device), CombineFormat::Bf16);
    let returns = Returns::of_experts(&case, None, |expert, token| {
        vec![expert.map_or(-1.0, |expert| expert as f32); token.len()]
    })?;
    for &mode in Mode::of_round_trip(&case) {
        let found = World::new(&device, &case)?.check_round_trip(&case, mode, &returns)?;
        let said: Vec<_> = found[0].widened().chunks(64).map(|row| row[63]).collect();
        ensure!(said == [2.0, 3.0, 0.0, 5.0, 2.0, 7.0], "{said:?}");
    }
    Ok(())
}

/// Every token to experts 0 to 7, of values 0 and 1, each with weight 1, again and again: eight times the token, every
/// time. In the emulator with fewer tokens and rounds.
fn every_token_to_the_same(context: &Context) -> Result<()> {
    let (tokens, rounds) = context.pick((1024, 1024), (24, 6));
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
    for value in case.ranks.iter_mut().flat_map(|rank| &mut rank.tokens) {
        *value = bf16::from_f32(u8::from(random.bool()).into());
    }
    let case = home(case, CombineFormat::Bf16);
    let ones = case.ranks.iter();
    let ones: Vec<_> = ones
        .map(|rank| Rows::F32(vec![1.0; rank.topk_ids.len()]))
        .collect();
    let mut world = World::new(&device, &case)?;
    let mut returns = identity::returns(&world, &case, Some(&ones))?;
    let inputs = DeviceInput::upload(&device, &case)?;
    let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
    let eight_times = case.ranks.iter().map(|rank| {
        let tokens = rank.tokens.iter();
        tokens
            .map(|it| bf16::from_f32(8.0 * it.to_f32()).to_bits())
            .collect::<Vec<_>>()
    });
    let eight_times: Vec<_> = eight_times.collect();
    for round in 0..rounds {
        for combined in &mut returns.combined {
            combined.fill(0xFF)?;
        }
        let mode = Mode::ALL[round % Mode::ALL.len()];
        world.queue_round_trip(&batches, mode, &mut returns)?;
        world.group.check()?;
        for (rank, (combined, expected)) in returns.combined.iter().zip(&eight_times).enumerate() {
            let DeviceRows::Bf16(combined) = combined else {
                anyhow::bail!("combined rows are not BF16");
            };
            let found = combined.download()?;
            let found: &[u16] = bytemuck::cast_slice(&found);
            ensure!(
                found == expected,
                "round {round}, {mode:?}: rank {rank} got something else"
            );
        }
    }
    world.check_combined()
}

/// A rank that receives nothing does not leave early: the others wait for it in combine.
fn nothing_to_receive(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 6,
        ranks: 3,
        top_k: 2,
        ..Setup::new(TokenFormat::Bf16, 64, 5)
    };
    round_trips(
        context,
        &EpCase::new(setup, &[5, 5, 5], Traffic::Same(0), 16),
    )
}
