//! Setups drawn at random, options and launches mixed as no list of cases would: whatever they are, every
//! byte is the reference's.

use anyhow::{Context as _, Result};
use fastrand::Rng;
use tokenyard::ep::{LaunchShape, TokenFormat};
use tokenyard::options::ScaleRounding;
use tokenyard::reference::ep::{Order, Setup};
use tokenyard_tests::ep::{EpCase, Mode, Traffic, World};
use tokenyard_tests::{Context, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("ep::properties::any_setup", any_setup);
}

fn any_setup(context: &Context) -> Result<()> {
    let devices = context.devices();
    for seed in context.with_more_seeds(40).seeds() {
        let random = &mut Rng::with_seed(seed);
        let case = any_case(random);
        let device = &devices[random.usize(..devices.len())];
        let modes = Mode::of(&case);
        let mode = modes[random.usize(..modes.len())];
        let run = || {
            let mut world = World::new(device, &case)?;
            world.check_round(&case, mode)?;
            world.check_round(&case, mode)
        };
        run().with_context(|| {
            let device = device.description();
            format!(
                "seed {seed}: {case}, {:?}; {mode:?}, on {device}",
                case.launch
            )
        })?;
    }
    Ok(())
}

pub(super) fn any_case(random: &mut Rng) -> EpCase {
    let format = TokenFormat::ALL[random.usize(..TokenFormat::ALL.len())];
    let ranks = random.usize(1..=6);
    let experts = ranks * random.usize(1..=5);
    let skip_a2a = random.u8(..4) == 0;
    let capacity = random.usize(1..=9);
    let mut setup = Setup {
        experts,
        ranks,
        top_k: random.usize(1..=experts.min(8)),
        fused_shared_expert: random.u8(..3) == 0,
        skip_a2a,
        allreduce_world_size: random.bool().then(|| ranks + random.usize(..3)),
        ..Setup::new(
            format,
            format.hidden_multiple() * random.usize(1..=7),
            capacity,
        )
    };
    match format {
        TokenFormat::Mxfp4 | TokenFormat::Mxfp8 => {
            setup.scale_rounding = ScaleRounding::ALL[random.usize(..3)];
            if random.u8(..3) == 0 {
                setup.hidden_size = 256 * random.usize(1..=2);
                let rows = (capacity * setup.sources()).next_multiple_of(32);
                setup.scale_preshuffle = Some(rows + 32 * random.usize(..2));
            }
        }
        TokenFormat::Nvfp4 => setup.global_factor = 2f32.powi(random.i32(-9..9)) * 1.25,
        _ => {}
    }
    let counts: Vec<_> = (0..ranks).map(|_| random.usize(..=capacity)).collect();
    let traffic = [
        Traffic::Uniform,
        Traffic::Skewed,
        Traffic::Same(random.usize(..experts)),
        Traffic::Holes,
        Traffic::Hostile,
    ];
    let traffic = traffic[random.usize(..traffic.len())];
    let mut case = EpCase::new(setup, &counts, traffic, random.u64(..));
    if random.bool() {
        case.order = Order::Tokens;
    }
    if !skip_a2a {
        let divisors: Vec<_> = (1..=ranks).filter(|it| ranks.is_multiple_of(*it)).collect();
        case.ranks_per_node = divisors[random.usize(..divisors.len())];
    }
    case.launch = Some(LaunchShape {
        blocks_per_rank: random.u32(1..=4),
        threads: 32 * random.u32(1..=5),
    });
    case
}
