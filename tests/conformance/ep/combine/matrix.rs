//! Every format home with every option, weighted and not, over one rank and several, split and fused.

use anyhow::Result;
use fastrand::Rng;
use tokenyard::ep::{CombineFormat, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Returns, Traffic};
use tokenyard_tests::{Context, Suite};

use super::super::matrix::{Choice, Turn, turns};
use super::super::{shapes, small};
use super::home;

/// Options that change what combine does.
const CHOICES: [Choice; 6] = [
    Choice::Plain,
    Choice::SharedExpert,
    Choice::Skip,
    Choice::SkipWithSharedExpert,
    Choice::VirtualNodes,
    Choice::Deterministic,
];

/// Router weights of every type, and none.
const WEIGHTS: [Option<InputType>; 4] = [
    Some(InputType::F32),
    Some(InputType::Bf16),
    Some(InputType::F16),
    None,
];

pub fn register(suite: &mut Suite) {
    for format in CombineFormat::ALL {
        for choice in CHOICES {
            let name = format!("ep::combine::matrix::{format}::{}", choice.name());
            suite.both(&name, move |context| ranks(context, format, choice));
        }
        suite.both(
            &format!("ep::combine::matrix::{format}::hidden_sizes"),
            move |context| hidden_sizes(context, format),
        );
        suite.both(
            &format!("ep::combine::matrix::{format}::top_k"),
            move |context| top_k(context, format),
        );
        suite.both(
            &format!("ep::combine::matrix::{format}::published"),
            move |context| published(context, format),
        );
    }
    suite.both("ep::combine::matrix::token_formats", token_formats);
}

/// The weights that a choice allows: a shared expert is added to a sum.
fn weights_of(choice: Choice) -> &'static [Option<InputType>] {
    match choice {
        Choice::SharedExpert | Choice::SkipWithSharedExpert => &WEIGHTS[..3],
        _ => &WEIGHTS,
    }
}

fn ranks(context: &Context, format: CombineFormat, choice: Choice) -> Result<()> {
    let devices = context.devices();
    let weights = weights_of(choice);
    let setup = |ranks| Setup {
        hidden_size: 64,
        ..choice.of(small(TokenFormat::Bf16, ranks))
    };
    for Turn { number, seed, case } in turns(choice, setup) {
        let case = home(case, format);
        // Types of weights take turns, as do, in the emulator, the paths through kernels.
        let device = number % devices.len();
        let devices = context.pick(&devices[..], &devices[device..=device]);
        let weights = weights[number % weights.len()];
        let returns = Returns::random(&case, weights, &mut Rng::with_seed(seed))?;
        case.check_round_trips(devices, &returns)?;
    }
    Ok(())
}

/// Less than a warp's share of elements, shares that are not whole, and hidden sizes of models.
fn hidden_sizes(context: &Context, format: CombineFormat) -> Result<()> {
    let check = |hidden_size, weights: &[Option<InputType>]| {
        let case = shapes::of_hidden_size(TokenFormat::Bf16, hidden_size, 2);
        let case = home(case, format);
        weights.iter().try_for_each(|weights| {
            let returns = Returns::random(&case, *weights, &mut Rng::with_seed(3))?;
            case.check_round_trips(&[context.device()], &returns)
        })
    };
    let sizes = [32, 64, 96, 160, 256, 288, 512, 2880, 7168];
    for (number, hidden_size) in sizes.into_iter().enumerate() {
        let weights = [WEIGHTS[number % WEIGHTS.len()], WEIGHTS[0]];
        check(hidden_size, context.pick(&weights[..], &weights[..1]))?;
    }
    // Rows that travel as they are need no blocks: any whole vectors do.
    for hidden_size in [8_usize, 24, 264] {
        if hidden_size.is_multiple_of(format.hidden_multiple()) {
            check(hidden_size, &WEIGHTS[..1])?;
        }
    }
    Ok(())
}

/// One expert a token, more than the loads that are under way at a time, a whole warp of positions.
fn top_k(context: &Context, format: CombineFormat) -> Result<()> {
    for (experts, top_k) in [(2, 1), (8, 7), (8, 8), (16, 9), (32, 32), (4, 12)] {
        let setup = Setup {
            experts,
            ranks: 2,
            top_k,
            ..Setup::new(TokenFormat::Bf16, 64, 3)
        };
        // Where there are more positions than experts, the last ones have none.
        for traffic in [Traffic::Uniform, Traffic::Hostile] {
            let case = EpCase::new(setup.clone(), &[3, 2], traffic, top_k as u64);
            let case = home(case, format);
            for weights in [WEIGHTS[0], None] {
                let returns = Returns::random(&case, weights, &mut Rng::with_seed(4))?;
                case.check_round_trips(&[context.device()], &returns)?;
            }
        }
    }
    Ok(())
}

/// With 128 tokens; in the emulator with one.
fn published(context: &Context, format: CombineFormat) -> Result<()> {
    for &(ranks, experts) in context.pick(&[(2, 32), (8, 32)][..], &[(2, 32)]) {
        let setup = Setup::new(TokenFormat::Bf16, 7168, context.pick(128, 1));
        let case = shapes::published(setup, ranks, experts);
        let case = home(case, format);
        let weights = if ranks == 2 { None } else { WEIGHTS[1] };
        let returns = Returns::random(&case, weights, &mut Rng::with_seed(5))?;
        case.check_round_trips(&[context.device()], &returns)?;
    }
    Ok(())
}

/// What tokens travelled as does not matter, but for where rows are: blockwise FP8 leaves gaps between groups.
fn token_formats(context: &Context) -> Result<()> {
    for (number, token_format) in TokenFormat::ALL.into_iter().enumerate() {
        for format in CombineFormat::ALL {
            let mut setup = small(token_format, 2);
            setup.hidden_size = setup.hidden_size.next_multiple_of(128);
            setup.fused_shared_expert = number % 2 == 1;
            let case = EpCase::new(setup, &[5, 3], Traffic::Holes, number as u64);
            let case = home(case, format);
            let returns = Returns::random(&case, WEIGHTS[0], &mut Rng::with_seed(6))?;
            case.check_round_trips(&[context.device()], &returns)?;
        }
    }
    Ok(())
}
