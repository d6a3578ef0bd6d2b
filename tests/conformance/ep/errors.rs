//! What cannot work is refused before anything is launched, with its numbers; and the next call that can
//! work does.

use anyhow::{Result, ensure};
use tokenyard::ep::{EpConfig, EpConfigBuilder, EpConfigError, EpError, TokenFormat};
use tokenyard::options::ScaleRounding;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Mode, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::small;

pub fn register(suite: &mut Suite) {
    suite.host("ep::errors::configurations", || {
        configurations().map(|()| None)
    });
    suite.host("ep::errors::sizes_beyond_32_bits", || {
        sizes_beyond_32_bits().map(|()| None)
    });
    suite.both("ep::errors::calls", calls);
}

fn valid(format: TokenFormat) -> EpConfigBuilder {
    EpConfig::builder(format)
        .hidden_size(256)
        .top_k(2)
        .experts(8)
        .max_tokens_per_rank(4)
        .ranks(4)
}

fn configurations() -> Result<()> {
    for format in TokenFormat::ALL {
        valid(format).build()?;
    }
    let mxfp4 = || valid(TokenFormat::Mxfp4);
    refused!(
        mxfp4().experts(10).build(),
        EpConfigError::UnevenExperts {
            experts: 10,
            ranks: 4
        }
    );
    for (format, hidden_size, multiple) in [
        (TokenFormat::Bf16, 2881, 8),
        (TokenFormat::Fp8Block128, 2880, 128),
        (TokenFormat::Nvfp4, 2896, 32),
        (TokenFormat::Mxfp4, 2896, 32),
        (TokenFormat::Mxfp8, 2864, 32),
    ] {
        let config = valid(format).hidden_size(hidden_size).build();
        match config {
            Err(error @ EpConfigError::HiddenSize { .. }) => {
                let text = error.to_string();
                ensure!(
                    text.contains(&hidden_size.to_string()) && text.contains(&multiple.to_string()),
                    "{text}"
                );
            }
            other => anyhow::bail!("{format}, {hidden_size}: {other:?}"),
        }
    }
    refused!(
        mxfp4().top_k(33).build(),
        EpConfigError::TooLarge {
            value: 33,
            limit: 32,
            ..
        }
    );
    refused!(
        mxfp4().experts(65540).build(),
        EpConfigError::TooLarge {
            value: 65540,
            limit: 65536,
            ..
        }
    );
    for zero in [
        mxfp4().hidden_size(0),
        mxfp4().top_k(0),
        mxfp4().experts(0),
        mxfp4().max_tokens_per_rank(0),
        mxfp4().ranks(0),
        mxfp4().ranks_per_node(0),
    ] {
        refused!(zero.build(), EpConfigError::Zero { .. });
    }
    refused!(
        mxfp4().ranks_per_node(3).build(),
        EpConfigError::UnevenNodes {
            ranks: 4,
            ranks_per_node: 3
        }
    );
    refused!(
        mxfp4().ranks_per_node(2).skip_a2a(true).build(),
        EpConfigError::SkipAcrossNodes { .. }
    );
    refused!(
        valid(TokenFormat::Nvfp4).scale_preshuffle(32).build(),
        EpConfigError::PreshuffleFormat { .. }
    );
    refused!(
        mxfp4().hidden_size(288).scale_preshuffle(32).build(),
        EpConfigError::PreshuffleHidden { hidden_size: 288 }
    );
    for rows in [0, 16, 48] {
        refused!(
            mxfp4().scale_preshuffle(rows).build(),
            EpConfigError::PreshuffleRows { .. }
        );
    }
    refused!(
        valid(TokenFormat::Bf16)
            .scale_rounding(ScaleRounding::Even)
            .build(),
        EpConfigError::ScaleRounding { .. }
    );
    Ok(())
}

/// Buffers of gigabytes are planned exactly; nothing is allocated.
fn sizes_beyond_32_bits() -> Result<()> {
    let bytes = |experts, tokens| -> Result<u64> {
        let config = EpConfig::builder(TokenFormat::Mxfp4)
            .hidden_size(7168)
            .top_k(8)
            .experts(experts)
            .max_tokens_per_rank(tokens)
            .ranks(8)
            .build()?;
        Ok(config.memory_plan().per_rank[0].bytes)
    };
    // A message of each token of each rank, whatever the number of experts.
    for (experts, tokens) in [(256, 128), (384, 4096), (256, 1 << 20)] {
        let expected = 8 * tokens as u64 * 3872;
        let found = bytes(experts, tokens)?;
        ensure!(
            found == expected,
            "{experts} experts, {tokens} tokens: {found}"
        );
    }
    Ok(())
}

fn calls(context: &Context) -> Result<()> {
    let device = context.device();
    let setup = small(TokenFormat::Mxfp4, 2);
    let full = EpCase::new(setup.clone(), &[5, 5], Traffic::Uniform, 60);
    let mut world = World::new(&device, &full)?;
    world.check_round(&full, Mode::Split)?;

    // One token too many: both numbers, nothing written, and the capacity itself works.
    let mut too_many = full.clone();
    too_many.setup.max_tokens_per_rank = 6;
    too_many.refill(&[5, 6], Traffic::Uniform, &mut fastrand::Rng::with_seed(61));
    for mode in [Mode::Fused, Mode::Split] {
        world.fill(0x33)?;
        refused!(
            world.dispatch(&too_many, mode),
            EpError::TooManyTokens {
                rank: 1,
                tokens: 6,
                capacity: 5
            }
        );
        let untouched = full.background(0x33);
        ensure!(
            world.download()?.iter().all(|rank| *rank == untouched),
            "{mode:?} wrote"
        );
        if mode == Mode::Split {
            // Rank 0 has sent; the round goes on with what the others may send.
            let mut rest = full.clone();
            rest.ranks[0] = too_many.ranks[0].clone();
            world.check_round(&rest, mode)?;
        }
        world.check_round(&full, mode)?;
    }

    // Ids for another number of tokens.
    let mut short = full.clone();
    short.ranks[0].topk_ids.truncate(4);
    refused!(
        world.dispatch(&short, Mode::Fused),
        EpError::InputLength { rank: 0, .. }
    );
    world.check_round(&full, Mode::Fused)?;

    // The split operations know no shared expert.
    let shared = EpCase::new(
        Setup {
            fused_shared_expert: true,
            ..setup
        },
        &[1, 1],
        Traffic::Uniform,
        62,
    );
    refused!(
        World::new(&device, &shared)?.dispatch(&shared, Mode::Split),
        EpError::SharedExpertNeedsFused
    );
    Ok(())
}
