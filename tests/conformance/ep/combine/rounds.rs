//! Many round trips on one group, whose ranks are late at random: nothing needs a reset, and nothing is ever read
//! that is not there yet, or not there any more.

use anyhow::{Context as _, Result};
use fastrand::Rng;
use half::bf16;
use tokenyard::ep::{Batch, CombineFormat, EpError, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard::{Device, DeviceBuffer, Stream, baseline};
use tokenyard_tests::ep::{DeviceInput, EpCase, Mode, Returns, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::{home, identity};

pub fn register(suite: &mut Suite) {
    suite.both("ep::combine::rounds::thousands", thousands);
    suite.both("ep::combine::rounds::every_format", every_format);
    suite.both("ep::combine::rounds::not_waited_for", not_waited_for);
    suite.both("ep::combine::rounds::two_groups", two_groups);
    suite.both("ep::combine::rounds::some_not_combined", some_not_combined);
}

fn setup() -> Setup {
    Setup {
        experts: 6,
        ranks: 3,
        top_k: 3,
        ..Setup::new(TokenFormat::Bf16, 64, 5)
    }
}

/// Makes a stream late: copies of random sizes, or nothing.
struct Delays {
    from: DeviceBuffer<[u32; 4]>,
    to: DeviceBuffer<[u32; 4]>,
    random: Rng,
    most: u32,
}

impl Delays {
    fn new(device: &Device, most: u32, seed: u64) -> Result<Self> {
        // On a GPU, some microseconds each, as long as the steps of a small round trip.
        let vectors = if device.is_emulator() { 64 } else { 1 << 18 };
        Ok(Self {
            from: device.alloc_filled(vectors, 1)?,
            to: device.alloc_filled(vectors, 0)?,
            random: Rng::with_seed(seed),
            most,
        })
    }

    fn delay(&mut self, stream: &Stream) -> Result<(), EpError> {
        let copies = self.random.u32(0..=2 * self.most);
        for _ in self.most..copies {
            baseline::copy(stream, &self.from, &mut self.to)?;
        }
        Ok(())
    }
}

/// Other tokens, counts, traffic, weights and delays in every round, in every mode: on a GPU ten thousand with four
/// seeds; in the emulator, which stalls threads and blocks by schedule, fewer on each of its devices.
fn thousands(context: &Context) -> Result<()> {
    let seeds = context.settings.seeds as usize;
    match context.is_exhaustive() {
        true => {
            let device = context.device();
            late_rounds(&device, 2500 * seeds, context.settings.first_seed)
        }
        false => {
            let rounds = 40;
            for (number, (label, device)) in context.replays().into_iter().enumerate() {
                late_rounds(&device, rounds, number as u64).with_context(|| label)?;
            }
            Ok(())
        }
    }
}

fn late_rounds(device: &Device, rounds: usize, seed: u64) -> Result<()> {
    let random = &mut Rng::with_seed(seed);
    let case = EpCase::new(setup(), &[5, 5, 5], Traffic::Uniform, seed).side_by_side(device);
    let mut case = home(case, CombineFormat::Bf16);
    let mut world = World::new(device, &case)?;
    let mut delays = Delays::new(device, 3, seed)?;
    for round in 0..rounds {
        let counts = [0; 3].map(|_: usize| random.usize(..=5));
        let traffic = Traffic::ALL[round % Traffic::ALL.len()];
        case.refill(&counts, traffic, random);
        identity::whole_numbers(&mut case, random);
        let mode = Mode::ALL[random.usize(..Mode::ALL.len())];
        let mut run = || {
            let quarters = identity::quarters(&case, random);
            let weights = (round % 4 != 0).then_some(&quarters[..]);
            let mut returns = identity::returns(&world, &case, weights)?;
            let inputs = DeviceInput::upload(device, &case)?;
            let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
            world.queue_round_trip_between(&batches, mode, &mut returns, |stream| {
                delays.delay(stream)
            })?;
            world.group.check()?;
            identity::check(&case, weights, &returns)
        };
        run().with_context(|| format!("seed {seed}, round {round}, {mode:?}: {case}"))?;
    }
    world.check_combined()
}

/// The same with what experts made of rows, and everything compared with the reference, in every format home, with a
/// shared expert and over nodes too.
fn every_format(context: &Context) -> Result<()> {
    let rounds = context.pick(200, 30);
    let device = context.device();
    for format in CombineFormat::ALL {
        for (shared, nodes) in [(false, 3), (true, 3), (false, 1)] {
            let random = &mut Rng::with_seed(20);
            let setup = Setup {
                fused_shared_expert: shared,
                ..setup()
            };
            let case = EpCase::new(setup, &[5, 5, 5], Traffic::Uniform, 20);
            let mut case = home(case.side_by_side(&device), format);
            case.ranks_per_node = nodes;
            let mut world = World::new(&device, &case)?;
            for round in 0..rounds {
                let counts = [0; 3].map(|_: usize| random.usize(..=5));
                let traffic = Traffic::ALL[round % Traffic::ALL.len()];
                case.refill(&counts, traffic, random);
                let modes = Mode::of_round_trip(&case);
                let mode = modes[round % modes.len()];
                let weights = (shared || round % 3 != 0).then_some(InputType::Bf16);
                let returns = Returns::random(&case, weights, random)?;
                world
                    .check_round_trip(&case, mode, &returns)
                    .with_context(|| format!("round {round}, {mode:?}: {case}"))?;
            }
        }
    }
    Ok(())
}

/// Round trips one behind the other, none of which is waited for: the library sees to it that no step overwrites what
/// an earlier one still needs.
fn not_waited_for(context: &Context) -> Result<()> {
    const ROUNDS: usize = 6;
    for (label, device) in context.replays() {
        for mode in Mode::ALL {
            let random = &mut Rng::with_seed(30);
            let cases: Vec<_> = (0..ROUNDS as u64)
                .map(|round| {
                    let counts = [0; 3].map(|_: usize| random.usize(..=5));
                    let case = EpCase::new(setup(), &counts, Traffic::Holes, round);
                    let mut case = home(case.side_by_side(&device), CombineFormat::Bf16);
                    identity::whole_numbers(&mut case, random);
                    case
                })
                .collect();
            let mut world = World::new(&device, &cases[0])?;
            let weights: Vec<_> = cases
                .iter()
                .map(|case| identity::quarters(case, random))
                .collect();
            let mut returns = Vec::new();
            let mut inputs = Vec::new();
            for (case, weights) in cases.iter().zip(&weights) {
                returns.push(identity::returns(&world, case, Some(weights))?);
                inputs.push(DeviceInput::upload(&device, case)?);
            }
            for (inputs, returns) in inputs.iter().zip(&mut returns) {
                let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
                world.queue_round_trip(&batches, mode, returns)?;
            }
            world.group.check()?;
            for (round, case) in cases.iter().enumerate() {
                identity::check(case, Some(&weights[round]), &returns[round])
                    .with_context(|| format!("{label}, {mode:?}: round {round} of {case}"))?;
            }
            world.check_combined()?;
        }
    }
    Ok(())
}

/// Groups of one process know nothing of each other: their rounds mix in any order.
fn two_groups(context: &Context) -> Result<()> {
    let device = context.device();
    let random = &mut Rng::with_seed(40);
    let mut groups = Vec::new();
    for format in [CombineFormat::Mxfp8, CombineFormat::F32] {
        let case = EpCase::new(setup(), &[5, 3, 4], Traffic::Holes, 41);
        let case = home(case.side_by_side(&device), format);
        groups.push((World::new(&device, &case)?, case));
    }
    for round in 0..12 {
        let (world, case) = &mut groups[random.usize(..2)];
        let mode = Mode::ALL[round % Mode::ALL.len()];
        let returns = Returns::random(case, Some(InputType::F32), random)?;
        world.check_round_trip(case, mode, &returns)?;
    }
    Ok(())
}

/// A dispatch that nobody combines is no obstacle to the next round trip.
fn some_not_combined(context: &Context) -> Result<()> {
    let device = context.device();
    let random = &mut Rng::with_seed(50);
    let case = EpCase::new(setup(), &[5, 2, 4], Traffic::Holes, 51).side_by_side(&device);
    let mut case = home(case, CombineFormat::Bf16);
    let mut world = World::new(&device, &case)?;
    for round in 0..12 {
        let mode = Mode::ALL[round % Mode::ALL.len()];
        identity::whole_numbers(&mut case, random);
        if random.bool() {
            world.check_round(&case, mode)?;
        } else {
            identity::round_trip(&mut world, &case, mode, random)
                .with_context(|| format!("round {round}, {mode:?}"))?;
        }
    }
    // An empty batch, which nobody gets anything of.
    let (tokens, ids) = (device.alloc::<bf16>(0)?, device.alloc::<i32>(0)?);
    let batch = Batch::new(&tokens, &ids);
    case.refill(&[0, 0, 0], Traffic::Uniform, random);
    let mut returns = identity::returns(&world, &case, None)?;
    world.queue_round_trip(&[batch, batch, batch], Mode::Fused, &mut returns)?;
    world.group.check()?;
    world.check_combined()
}
