//! Round trips drawn at random, options and launches mixed as no list of cases would.

use anyhow::{Context as _, Result};
use fastrand::Rng;
use tokenyard::ep::CombineFormat;
use tokenyard::options::InputType;
use tokenyard_tests::ep::{EpCase, Mode, Returns, World};
use tokenyard_tests::{Context, Suite};

use super::super::properties::any_case;
use super::home;

pub fn register(suite: &mut Suite) {
    suite.both("ep::combine::properties::any_setup", any_setup);
}

fn any_setup(context: &Context) -> Result<()> {
    let devices = context.devices();
    for seed in context.with_more_seeds(40).seeds() {
        let random = &mut Rng::with_seed(seed);
        let (case, weights) = any_round_trip(random);
        let device = &devices[random.usize(..devices.len())];
        let modes = Mode::of_round_trip(&case);
        let mode = modes[random.usize(..modes.len())];
        let mut run = || -> Result<()> {
            let mut world = World::new(device, &case)?;
            for _ in 0..2 {
                let returns = Returns::random(&case, weights, random)?;
                world.check_round_trip(&case, mode, &returns)?;
            }
            Ok(())
        };
        run().with_context(|| {
            let (device, launch) = (device.description(), case.launch);
            format!("seed {seed}: {case}, {launch:?}, {weights:?}; {mode:?}, on {device}")
        })?;
    }
    Ok(())
}

fn any_round_trip(random: &mut Rng) -> (EpCase, Option<InputType>) {
    loop {
        let case = any_case(random);
        let format = CombineFormat::ALL[random.usize(..CombineFormat::ALL.len())];
        let weighted = case.setup.fused_shared_expert || random.u8(..4) > 0;
        let weights = InputType::ALL[random.usize(..InputType::ALL.len())];
        if case
            .setup
            .hidden_size
            .is_multiple_of(format.hidden_multiple())
        {
            return (home(case, format), weighted.then_some(weights));
        }
    }
}
