//! When things happen must not matter; and a rank that does not combine is an error of known length and name.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use tokenyard::ep::{Awaited, CombineFormat, EpError, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{DeviceInput, EpCase, Mode, Returns, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::super::small;
use super::home;

pub fn register(suite: &mut Suite) {
    for (number, format) in CombineFormat::ALL.into_iter().enumerate() {
        suite.both(
            &format!("ep::combine::schedules::{format}"),
            move |context| late_ones(context, format, number as u64),
        );
    }
    suite.both(
        "ep::combine::schedules::a_rank_that_never_combines",
        never_combines,
    );
}

fn setup(ranks: usize) -> Setup {
    Setup {
        hidden_size: 64,
        ..small(TokenFormat::Bf16, ranks)
    }
}

/// Every schedule, with more seeds than other cases have, as races take: two round trips, in every mode.
fn late_ones(context: &Context, format: CombineFormat, number: u64) -> Result<()> {
    let context = &context.with_more_seeds(2);
    let shared = Setup {
        fused_shared_expert: true,
        skip_a2a: number % 2 == 1,
        ..setup(3)
    };
    let cases = [
        EpCase::new(setup(3), &[5, 1, 4], Traffic::Holes, 20 + number),
        EpCase::new(shared, &[4, 5, 0], Traffic::Skewed, 30 + number),
    ];
    for (label, device) in context.replays() {
        for case in &cases {
            let case = home(case.clone().side_by_side(&device), format);
            let random = &mut Rng::with_seed(number);
            let rounds = [(); 2].map(|()| Returns::random(&case, Some(InputType::F32), random));
            for &mode in Mode::of_round_trip(&case) {
                let run = || -> Result<()> {
                    let mut world = World::new(&device, &case)?;
                    for returns in &rounds {
                        let returns = returns
                            .as_ref()
                            .map_err(|error| anyhow::anyhow!("{error}"))?;
                        world.check_round_trip(&case, mode, returns)?;
                    }
                    Ok(())
                };
                run().with_context(|| format!("{label}: {case}; {mode:?}"))?;
            }
        }
    }
    Ok(())
}

/// Rank 2 of three dispatches, and does not combine. Whoever waits gives up, says for what, and has written nothing;
/// the group refuses to go on, and another one in its place does.
fn never_combines(context: &Context) -> Result<()> {
    let mut case = EpCase::new(setup(3), &[3, 4, 2], Traffic::Uniform, 50);
    case.deadline = Some(Duration::from_millis(20));
    let case = home(case, CombineFormat::Bf16);
    let returns = Returns::random(&case, Some(InputType::F32), &mut Rng::with_seed(51))?;
    for (label, device) in context.replays().into_iter().take(6) {
        let mut world = World::new(&device, &case)?;
        let stream = device.create_stream()?;
        let inputs = DeviceInput::upload(&device, &case)?;
        let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
        let mut on_device = returns.upload(&case, &device, 0x77)?;
        let (outputs, targets) = on_device.operands();
        let mut received = [(); 3].map(|()| world.group.allocate_received());
        let mut handles = Vec::new();
        for (rank, batch) in world.group.ranks_mut().iter_mut().zip(&batches) {
            let _ = rank.dispatch_async(&stream, batch)?;
        }
        for (rank, received) in world.group.ranks_mut().iter_mut().zip(&mut received) {
            let pending = rank.pending().context("every rank has sent")?;
            let received = received
                .as_mut()
                .map_err(|error| anyhow::anyhow!("{error}"))?;
            handles.push(rank.dispatch_wait(&stream, pending, received)?);
        }
        let _never_combined = handles.pop();
        let mut sent = Vec::new();
        for (handle, outputs) in handles.into_iter().zip(outputs) {
            sent.push(
                handle
                    .combine_async(&stream, outputs)
                    .map_err(EpError::from)?,
            );
        }
        let first = sent.swap_remove(0);
        let target = targets.into_iter().next().context("three targets")?;
        first
            .wait(&stream, &batches[0], target)
            .map_err(EpError::from)?;
        let error = world.group.check().err().context("nobody gave up")?;
        let EpError::Deadline {
            waiting: 0,
            awaited,
        } = &error
        else {
            bail!("{label}: {error}");
        };
        match awaited {
            Awaited::Returned {
                rank: 2,
                expert,
                word,
            } => ensure!(
                (4..6).contains(expert) && *word == 3 * (expert - 4) + 2,
                "{label}: expert {expert}, word {word}"
            ),
            // The block that waits for the counts gives up first, unless a schedule stalls it for longer than it
            // would wait.
            Awaited::Returns if label.starts_with("Stall") => {}
            _ => bail!("{label}: {error}"),
        }
        drop(sent);
        for found in on_device.download()? {
            ensure!(
                found.bits().iter().all(|&bits| bits == 0x7777),
                "{label}: tokens were written though rows were missing"
            );
        }
        let mut refused = returns.upload(&case, &device, 0)?;
        refused!(
            world.round_trip(&case, Mode::Split, &mut refused),
            EpError::Unusable { .. }
        );
        drop(world);
        World::new(&device, &case)?.check_round_trip(&case, Mode::Split, &returns)?;
    }
    Ok(())
}
