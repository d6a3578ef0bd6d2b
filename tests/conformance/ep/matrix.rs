//! Every format with every option, over one rank and several, split and fused.

use anyhow::Result;
use tokenyard::ep::TokenFormat;
use tokenyard::options::ScaleRounding;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Traffic};
use tokenyard_tests::{Context, Suite};

use super::{shapes, small};

/// A choice that changes what ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Plain,
    SharedExpert,
    Skip,
    SkipWithSharedExpert,
    Preshuffle,
    PreshuffleWithSharedExpert,
    VirtualNodes,
    Deterministic,
}

impl Choice {
    pub(super) const ALL: [Choice; 8] = [
        Choice::Plain,
        Choice::SharedExpert,
        Choice::Skip,
        Choice::SkipWithSharedExpert,
        Choice::Preshuffle,
        Choice::PreshuffleWithSharedExpert,
        Choice::VirtualNodes,
        Choice::Deterministic,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Choice::Plain => "plain",
            Choice::SharedExpert => "shared_expert",
            Choice::Skip => "skip",
            Choice::SkipWithSharedExpert => "skip_shared_expert",
            Choice::Preshuffle => "preshuffle",
            Choice::PreshuffleWithSharedExpert => "preshuffle_shared_expert",
            Choice::VirtualNodes => "virtual_nodes",
            Choice::Deterministic => "deterministic",
        }
    }

    pub(super) fn allows(self, format: TokenFormat) -> bool {
        match self {
            Choice::Preshuffle | Choice::PreshuffleWithSharedExpert => {
                matches!(format, TokenFormat::Mxfp4 | TokenFormat::Mxfp8)
            }
            _ => true,
        }
    }

    /// The setup with this choice made.
    pub(super) fn of(self, setup: Setup) -> Setup {
        let mut setup = setup;
        match self {
            Choice::SharedExpert => setup.fused_shared_expert = true,
            Choice::Skip => setup.skip_a2a = true,
            Choice::SkipWithSharedExpert => {
                setup.skip_a2a = true;
                setup.fused_shared_expert = true;
            }
            Choice::Preshuffle | Choice::PreshuffleWithSharedExpert => {
                setup.hidden_size = 256;
                let rows = setup.max_tokens_per_rank * setup.sources();
                setup.scale_preshuffle = Some(rows.next_multiple_of(32));
                setup.fused_shared_expert = self == Choice::PreshuffleWithSharedExpert;
            }
            Choice::Plain | Choice::VirtualNodes | Choice::Deterministic => {}
        }
        setup
    }
}

pub fn register(suite: &mut Suite) {
    for format in TokenFormat::ALL {
        for choice in Choice::ALL {
            if choice.allows(format) {
                let name = format!("ep::matrix::{format}::{}", choice.name());
                suite.both(&name, move |context| ranks(context, format, choice));
            }
        }
        suite.both(
            &format!("ep::matrix::{format}::published"),
            move |context| published(context, format),
        );
        suite.both(
            &format!("ep::matrix::{format}::hidden_sizes"),
            move |context| hidden_sizes(context, format),
        );
    }
    for format in [TokenFormat::Mxfp4, TokenFormat::Mxfp8] {
        suite.both(
            &format!("ep::matrix::{format}::roundings"),
            move |context| roundings(context, format),
        );
    }
}

/// A case of the many that go through numbers of ranks and kinds of traffic.
pub(super) struct Turn {
    /// Which it is, for what takes turns.
    pub(super) number: usize,
    pub(super) seed: u64,
    pub(super) case: EpCase,
}

/// 1, 2, 3, 4 and 8 ranks of `setup`; a rank without tokens, one at its capacity, and every kind of traffic.
pub(super) fn turns(choice: Choice, setup: impl Fn(usize) -> Setup) -> impl Iterator<Item = Turn> {
    const COUNTS: [usize; 8] = [5, 2, 0, 3, 1, 5, 0, 4];
    // Ranks, and how many of them a node has where nodes are the choice.
    let ranks = [(1, 1), (2, 1), (3, 1), (4, 2), (8, 4)].into_iter();
    ranks
        .enumerate()
        .flat_map(move |(turn, (ranks, per_node))| {
            let setup = setup(ranks);
            let traffic = Traffic::ALL.into_iter().enumerate();
            traffic.map(move |(round, traffic)| {
                let seed = (ranks * 10 + round) as u64;
                let mut case = EpCase::new(setup.clone(), &COUNTS[..ranks], traffic, seed);
                match choice {
                    Choice::VirtualNodes => case.ranks_per_node = per_node,
                    Choice::Deterministic => case = case.deterministic(),
                    _ => {}
                }
                let number = turn + round;
                Turn { number, seed, case }
            })
        })
}

fn ranks(context: &Context, format: TokenFormat, choice: Choice) -> Result<()> {
    let devices = context.devices();
    for Turn { number, case, .. } in turns(choice, |ranks| choice.of(small(format, ranks))) {
        // In the emulator, the paths through kernels take turns.
        let device = number % devices.len();
        case.check(context.pick(&devices[..], &devices[device..=device]))?;
    }
    Ok(())
}

/// In the emulator with fewer tokens and ranks.
fn published(context: &Context, format: TokenFormat) -> Result<()> {
    let hidden = match format {
        TokenFormat::Bf16 => 3584,
        _ => 7168,
    };
    for &(ranks, experts) in context.pick(&[(2, 32), (8, 32), (4, 64)][..], &[(2, 32)]) {
        let setup = Setup::new(format, hidden, context.pick(64, 1));
        shapes::published(setup, ranks, experts).check(&[context.device()])?;
    }
    Ok(())
}

/// Every multiple that the format asks for, and hidden sizes of models.
fn hidden_sizes(context: &Context, format: TokenFormat) -> Result<()> {
    let (least, device) = (format.hidden_multiple(), context.device());
    let sizes = [1, 2, 3, 5, 9].map(|times| times * least);
    let of_models = [2880, 2944, 6144]
        .into_iter()
        .filter(|size| size % least == 0);
    for hidden_size in sizes.into_iter().chain(of_models) {
        shapes::of_hidden_size(format, hidden_size, 2).check(std::slice::from_ref(&device))?;
    }
    Ok(())
}

fn roundings(context: &Context, format: TokenFormat) -> Result<()> {
    for scale_rounding in ScaleRounding::ALL {
        let setup = Setup {
            scale_rounding,
            ..small(format, 2)
        };
        EpCase::new(setup, &[5, 4], Traffic::Uniform, 3).check(&context.devices())?;
    }
    Ok(())
}
