//! Groups come and go: memory stays flat, and nothing that is dropped is written to afterwards.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use tokenyard::ep::{CombineFormat, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{DeviceInput, EpCase, Mode, Returns, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::super::small;
use super::home;
use crate::allocation::live_bytes;

pub fn register(suite: &mut Suite) {
    suite.emulator("ep::combine::lifetimes::hundred_groups", hundred_groups);
    suite.cuda(
        "ep::combine::lifetimes::hundred_large_groups",
        hundred_large_groups,
    );
    suite.both(
        "ep::combine::lifetimes::dropped_in_flight",
        dropped_in_flight,
    );
}

fn case(seed: u64) -> EpCase {
    let setup = Setup {
        hidden_size: 64,
        ..small(TokenFormat::Bf16, 3)
    };
    let case = EpCase::new(setup, &[5, 3, 4], Traffic::Uniform, seed);
    home(case, CombineFormat::Bf16)
}

/// Memory of an emulated device is memory of this thread's, and so counted with everything else that the library
/// keeps: after a hundred groups it is what it was after five, give or take what one is. A group that is kept would
/// be seen, and so would a few buffers of each.
fn hundred_groups(context: &Context) -> Result<()> {
    let device = context.device();
    let case = case(80);
    let returns = Returns::random(&case, Some(InputType::F32), &mut Rng::with_seed(80))?;
    let cycle = |number: usize| -> Result<World> {
        let mode = Mode::ALL[number % Mode::ALL.len()];
        let mut world = World::new(&device, &case)?;
        world.check_round_trip(&case, mode, &returns)?;
        Ok(world)
    };
    // The emulator keeps what was freed, up to 64 MiB, to see who still uses it: from here on it returns as much as
    // it keeps anew. With what it puts around them, these are as large as most buffers of a group.
    for _ in 0..64 << 10 {
        device.alloc::<u8>(512)?;
    }
    for number in 0..5 {
        cycle(number)?;
    }
    let before = live_bytes();
    let kept = cycle(0)?;
    let of_one = live_bytes() - before;
    drop(kept);
    ensure!(of_one > 50_000, "a group is {of_one} bytes");
    for number in 0..100 {
        cycle(number)?;
    }
    let grown = live_bytes() - before;
    ensure!(
        grown < of_one,
        "{grown} bytes more after a hundred groups of {of_one}"
    );
    Ok(())
}

/// A hundred groups of more than 2 GB: more than any device has, unless each is gone before the next one comes.
fn hundred_large_groups(context: &Context) -> Result<()> {
    let device = context.device();
    let setup = Setup {
        experts: 8,
        top_k: 8,
        ..Setup::new(TokenFormat::Bf16, 7168, 16_384)
    };
    let case = EpCase::new(setup, &[4], Traffic::Uniform, 81);
    let case = home(case, CombineFormat::Bf16);
    let plan = case.config()?.memory_plan();
    ensure!(plan.bytes_per_rank() > 2_000_000_000, "{plan:?}");
    let ones = [tokenyard_tests::Rows::F32(vec![1.0; 4 * 8])];
    for number in 0..100 {
        let mut world = World::new(&device, &case).with_context(|| format!("group {number}"))?;
        let mut returns = super::identity::returns(&world, &case, Some(&ones))?;
        world.round_trip(&case, Mode::Split, &mut returns)?;
        world.check_combined()?;
    }
    Ok(())
}

/// Everything is dropped while round trips are queued, in one order and another. Memory that is allocated next, of the
/// same sizes, keeps its content, and the next group works.
fn dropped_in_flight(context: &Context) -> Result<()> {
    for (label, device) in context.replays() {
        for (turn, mode) in Mode::ALL.into_iter().enumerate() {
            let case = case(82).side_by_side(&device);
            let returns = Returns::random(&case, Some(InputType::F32), &mut Rng::with_seed(82))?;
            let mut world = World::new(&device, &case)?;
            let mut on_device = returns.upload(&case, &device, 0)?;
            let inputs = DeviceInput::upload(&device, &case)?;
            let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
            for _ in 0..20 {
                world.queue_round_trip(&batches, mode, &mut on_device)?;
            }
            drop(batches);
            match turn {
                0 => {
                    drop(inputs);
                    drop(on_device);
                    drop(world);
                }
                1 => {
                    drop(world);
                    drop(inputs);
                    drop(on_device);
                }
                _ => {
                    drop(on_device);
                    drop(world);
                    drop(inputs);
                }
            }
            let sizes = [64, 1 << 10, 1 << 13, 1 << 15, 1 << 17];
            let canaries =
                sizes.map(|size| [(); 8].map(|()| device.alloc_filled::<u8>(size, 0x5A)));
            device.create_stream()?.synchronize()?;
            for canary in canaries.into_iter().flatten() {
                let found = canary?.download()?;
                ensure!(
                    found.iter().all(|&byte| byte == 0x5A),
                    "{label}, {mode:?}: memory of {} bytes was written to after it had been freed",
                    found.len()
                );
            }
            World::new(&device, &case)?.check_round_trip(&case, mode, &returns)?;
        }
    }
    Ok(())
}
