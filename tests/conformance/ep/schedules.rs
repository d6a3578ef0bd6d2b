//! When things happen must not matter: warps, blocks and whole ranks that are late, by the seed; and a
//! rank that never comes is an error of known length and name.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokenyard::ep::{Awaited, Batch, EpError, LaunchShape, TokenFormat};
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Mode, Traffic, World};
use tokenyard_tests::{Backend, Context, Suite};

use super::small;

pub fn register(suite: &mut Suite) {
    for (number, format) in TokenFormat::ALL.into_iter().enumerate() {
        suite.both(&format!("ep::schedules::{format}"), move |context| {
            late_ones(context, format, number as u64)
        });
    }
    suite.both("ep::schedules::two_rounds", two_rounds);
    suite.both("ep::schedules::a_rank_that_never_sends", never_sends);
    suite.both("ep::schedules::a_layout_that_is_late", late_layout);
}

/// Every schedule, and eight times as many seeds as other cases have, as races take; split on one stream, on
/// a stream for each rank, and fused; with the shared expert too.
fn late_ones(context: &Context, format: TokenFormat, number: u64) -> Result<()> {
    let context = &context.with_more_seeds(8);
    let plain = small(format, 3);
    let shared = Setup {
        fused_shared_expert: true,
        skip_a2a: number % 2 == 1,
        ..plain.clone()
    };
    let cases = [
        EpCase::new(plain, &[5, 1, 4], Traffic::Holes, 20 + number),
        EpCase::new(shared, &[4, 5, 0], Traffic::Skewed, 30 + number),
    ];
    for (label, device) in context.replays() {
        for case in &cases {
            for &mode in Mode::of(case) {
                let case = case.clone().side_by_side(&device);
                let run = || World::new(&device, &case)?.check_round(&case, mode);
                run().with_context(|| format!("{label}: {case}; {mode:?}"))?;
            }
        }
    }
    Ok(())
}

/// A second round right behind the first, each rank on its own stream: what the first left behind, or has
/// not finished with, must not show.
fn two_rounds(context: &Context) -> Result<()> {
    let setup = small(TokenFormat::Mxfp8, 4);
    let first = EpCase::new(setup.clone(), &[5, 5, 5, 5], Traffic::Uniform, 40);
    let second = EpCase::new(setup, &[1, 0, 5, 2], Traffic::Same(3), 41);
    for (label, device) in context.replays() {
        for mode in Mode::ALL {
            let run = || {
                let mut world = World::new(&device, &first.clone().side_by_side(&device))?;
                world.dispatch(&first, mode)?;
                world.check_round(&second, mode)?;
                world.check_round(&first, mode)
            };
            run().with_context(|| format!("{label}: {mode:?}"))?;
        }
    }
    Ok(())
}

/// Rank 2 of three does not send. Whoever waits gives up, says for what, has written no row, and leaves a layout
/// without rows; the group refuses to go on.
fn never_sends(context: &Context) -> Result<()> {
    let mut case = EpCase::new(
        small(TokenFormat::Mxfp4, 3),
        &[3, 4, 2],
        Traffic::Uniform,
        50,
    );
    case.deadline = Some(Duration::from_millis(20));
    for (label, device) in context.replays().into_iter().take(6) {
        let mut world = World::new(&device, &case)?;
        let stream = device.create_stream()?;
        let rank = &case.ranks[0];
        let (tokens, ids) = (device.upload(&rank.tokens)?, device.upload(&rank.topk_ids)?);
        let batch = Batch::new(&tokens, &ids);
        world.fill(0x77)?;
        let pending = world.group.ranks_mut()[0].dispatch_async(&stream, &batch)?;
        let _never_received = world.group.ranks_mut()[1].dispatch_async(&stream, &batch)?;
        world.wait(0, &stream, pending)?;
        let error = world.group.check().err().context("nobody gave up")?;
        let EpError::Deadline {
            waiting: 0,
            awaited,
        } = &error
        else {
            bail!("{label}: {error}");
        };
        match awaited {
            Awaited::Count {
                rank: 2,
                expert,
                word,
            } => ensure!(
                *expert < 2 && *word == 3 * expert + 2,
                "{label}: expert {expert}, word {word}"
            ),
            // The block that waits for the counts gives up first, unless a schedule stalls it for longer than it
            // would wait.
            Awaited::Offsets if label.starts_with("Stall") => {}
            _ => bail!("{label}: {error}"),
        }
        let found = &world.download()?[0];
        let before = case.background(0x77);
        ensure!(
            found.tokens == before.tokens
                && found.scales == before.scales
                && found.src_info == before.src_info,
            "{label}: rows were written though their number was not known"
        );
        has_no_rows(&world, 0).context(label)?;
        for _ in 0..2 {
            refused!(
                world.group.ranks_mut()[2].dispatch_async(&stream, &batch),
                EpError::Unusable { .. }
            );
        }
    }
    Ok(())
}

/// What a kernel queued behind a round that failed reads: groups without rows, whatever was there before.
fn has_no_rows(world: &World, rank: usize) -> Result<()> {
    let received = world.received(rank);
    let (row_offsets, pairs) = (
        received.row_offsets().download()?,
        received.pairs().download()?,
    );
    ensure!(
        row_offsets.iter().all(|&offset| offset == 0),
        "rank {rank}: row offsets {row_offsets:?} of a round that failed"
    );
    ensure!(
        pairs.iter().all(|&pair| pair == [0; 2]),
        "rank {rank}: handle words {pairs:?} of a round that failed"
    );
    Ok(())
}

/// Everything is sent and the deadline is over at once, so that copy blocks give up while the counts are there and
/// their rows are being laid out. Either a round is whole, or each rank that failed has no rows.
fn late_layout(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 128,
        ..small(TokenFormat::Mxfp4, 2)
    };
    let mut case = EpCase::new(setup, &[5, 5], Traffic::Uniform, 51);
    case.deadline = Some(Duration::from_nanos(1));
    // One warp lays out 128 pairs: that takes longer than a copy block waits.
    case.launch = Some(LaunchShape {
        blocks_per_rank: 4,
        threads: 32,
    });
    let mut late_layouts = 0;
    for (label, device) in context.replays() {
        for mode in [Mode::Split, Mode::Fused] {
            let mut world = World::new(&device, &case)?;
            world.fill(0x77)?;
            match world.dispatch(&case, mode) {
                Ok(()) => world.compare(&case, 0x77, &world.download()?)?,
                Err(EpError::Deadline { waiting, awaited }) => {
                    late_layouts += usize::from(mode == Mode::Split && awaited == Awaited::Offsets);
                    has_no_rows(&world, waiting).with_context(|| format!("{label}; {mode:?}"))?;
                }
                Err(error) => bail!("{label}; {mode:?}: {error}"),
            }
        }
    }
    // A GPU lays out within the microsecond that its timer takes to move.
    ensure!(
        late_layouts > 0 || context.backend == Backend::Cuda,
        "no copy block gave up"
    );
    Ok(())
}
