//! The faults of public projects, under the numbers of the list of cases, end to end: what comes back from experts
//! that change nothing is exact, and is compared with what it must be, not with the reference alone.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use half::bf16;
use tokenyard::DeviceBuffer;
use tokenyard::ep::{CombineFormat, EpError, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{DeviceInput, EpCase, Mode, Returns, Traffic, World};
use tokenyard_tests::values::DeviceRows;
use tokenyard_tests::{Context, Rows, Suite};

use super::super::shapes;
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

/// Rank 0 gets nothing back, and the others what is theirs.
fn nothing_to_send(context: &Context) -> Result<()> {
    round_trips(context, &shapes::nothing_to_send(TokenFormat::Bf16))
}

fn empty_ids(context: &Context) -> Result<()> {
    let cases = shapes::empty_ids(TokenFormat::Bf16);
    cases.iter().try_for_each(|case| round_trips(context, case))
}

fn any_token_count(context: &Context) -> Result<()> {
    let mut cases = shapes::any_token_count(context, TokenFormat::Bf16);
    cases.try_for_each(|case| round_trips(context, &case))
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
        let case = home(
            shapes::of_hidden_size(TokenFormat::Bf16, hidden_size, 4),
            format,
        );
        let returns = Returns::random(&case, Some(InputType::F32), &mut Rng::with_seed(4))?;
        case.check_round_trips(&[context.device()], &returns)?;
    }
    Ok(())
}

fn many_experts(context: &Context) -> Result<()> {
    let hidden_size = context.pick(3584, 448);
    let case = shapes::many_experts(context, TokenFormat::Bf16, hidden_size);
    round_trips(context, &case)
}

fn top_k(context: &Context) -> Result<()> {
    let mut cases = shapes::top_k(context, TokenFormat::Bf16);
    cases.try_for_each(|case| round_trips(context, &case))
}

fn absent_ids(context: &Context) -> Result<()> {
    let cases = shapes::absent_ids(TokenFormat::Bf16);
    cases
        .iter()
        .try_for_each(|(case, _)| round_trips(context, case))
}

/// There and back: the last rows lie beyond 4 GiB in the expert outputs, in the combine buffer, and in the output that
/// is not weighted. On a GPU alone: 4.4 GB five times over, which the emulator would take hours for.
fn offsets_beyond_32_bits(context: &Context) -> Result<()> {
    // Whole numbers, so that eight times one is exact.
    let case = shapes::offsets_beyond_32_bits(|random| bf16::from_f32(random.i8(-15..=15).into()));
    let case = home(case, CombineFormat::Bf16);
    let setup = &case.setup;
    let (tokens, top_k, hidden) = (setup.max_tokens_per_rank, setup.top_k, setup.hidden_size);
    let mut world = World::new(&context.device(), &case)?;
    let ones = [Rows::F32(vec![1.0; top_k * tokens])];
    let mut returns = identity::returns(&world, &case, Some(&ones))?;
    world.round_trip(&case, Mode::Split, &mut returns)?;
    let Rows::Bf16(found) = returns.combined[0].download()? else {
        anyhow::bail!("combined rows are not BF16");
    };
    for (index, (found, given)) in found.iter().zip(&case.ranks[0].tokens).enumerate().rev() {
        ensure!(
            found.to_f32() == top_k as f32 * given.to_f32(),
            "token {}, element {}: {found}, not {top_k} times {given}",
            index / hidden,
            index % hidden
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
    for token in [0, 1, tokens / 2, tokens - 2, tokens - 1] {
        for k in 0..top_k {
            let row = token * top_k + k;
            // SAFETY: row `row` of T * K lies inside `rows`, which outlives the window.
            let window =
                unsafe { DeviceBuffer::from_raw(&device, start.add(row * hidden), hidden)? };
            ensure!(
                window.download()? == case.ranks[0].tokens[token * hidden..][..hidden],
                "row {row} is not token {token}"
            );
        }
    }
    world.check_combined()
}

/// Padding comes back as zeros.
fn padding_tokens(context: &Context) -> Result<()> {
    round_trips(context, &shapes::padding_tokens(context, TokenFormat::Bf16))
}

/// An expert that is named again counts once, in the first place, there and back.
fn repeated_ids(context: &Context) -> Result<()> {
    let cases = shapes::repeated_ids(TokenFormat::Bf16);
    cases.iter().try_for_each(|case| round_trips(context, case))
}

/// A batch that is refused costs nothing: the next one makes the round trip.
fn one_token_too_many(context: &Context) -> Result<()> {
    let random = &mut Rng::with_seed(11);
    let mut full = shapes::full(64);
    identity::whole_numbers(&mut full, random);
    let full = home(full, CombineFormat::Bf16);
    let over = shapes::one_token_too_many(&full);
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

/// Every expert says who it is.
fn local_numbers(context: &Context) -> Result<()> {
    let case = shapes::local_numbers(TokenFormat::Bf16).deterministic();
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

/// Each with weight 1, again and again: eight times the token, every time. In the emulator with fewer tokens and rounds.
fn every_token_to_the_same(context: &Context) -> Result<()> {
    let device = context.device();
    let case = shapes::every_token_to_the_same(context).side_by_side(&device);
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
    for round in 0..context.pick(1024, 6) {
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
