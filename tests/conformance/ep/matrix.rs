//! Every format with every option, over one rank and several, split and fused.

use anyhow::Result;
use tokenyard::ep::TokenFormat;
use tokenyard::options::ScaleRounding;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Traffic};
use tokenyard_tests::{Context, Suite};

use super::small;

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

/// How many ranks there are in a group.
pub(super) const RANKS: [usize; 5] = [1, 2, 3, 4, 8];

/// Tokens of each rank, of those that there are.
pub(super) const COUNTS: [usize; 8] = [5, 2, 0, 3, 1, 5, 0, 4];

/// Where the choice is nodes, how many ranks one has.
pub(super) const RANKS_PER_NODE: [usize; 5] = [1, 1, 1, 2, 4];

/// 1, 2, 3, 4 and 8 ranks; a rank without tokens, one at its capacity, and every kind of traffic.
fn ranks(context: &Context, format: TokenFormat, choice: Choice) -> Result<()> {
    let devices = context.devices();
    for (turn, ranks) in RANKS.into_iter().enumerate() {
        let setup = choice.of(small(format, ranks));
        for (round, traffic) in Traffic::ALL.into_iter().enumerate() {
            let seed = (ranks * 10 + round) as u64;
            let mut case = EpCase::new(setup.clone(), &COUNTS[..ranks], traffic, seed);
            if choice == Choice::VirtualNodes {
                case.ranks_per_node = RANKS_PER_NODE[turn];
            }
            if choice == Choice::Deterministic {
                case = case.deterministic();
            }
            // In the emulator, the paths through kernels take turns.
            let device = (turn + round) % devices.len();
            case.check(context.pick(&devices[..], &devices[device..=device]))?;
        }
    }
    Ok(())
}

/// The shape that the protocol was first tested with, K = 8 of 32 experts a rank and 7168 elements; in the
/// emulator with fewer tokens.
fn published(context: &Context, format: TokenFormat) -> Result<()> {
    let hidden = if format == TokenFormat::Bf16 {
        3584
    } else {
        7168
    };
    for (ranks, experts) in [(2, 32), (8, 32), (4, 64)] {
        let tokens = context.pick(64, 1);
        if !context.is_exhaustive() && ranks != 2 {
            continue;
        }
        let setup = Setup {
            experts: ranks * experts,
            ranks,
            top_k: 8,
            ..Setup::new(format, hidden, tokens)
        };
        let counts = vec![tokens; ranks];
        EpCase::new(setup, &counts, Traffic::Uniform, 1).check(&[context.device()])?;
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
        let setup = Setup {
            hidden_size,
            ..small(format, 2)
        };
        EpCase::new(setup, &[2, 1], Traffic::Uniform, 2).check(std::slice::from_ref(&device))?;
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
