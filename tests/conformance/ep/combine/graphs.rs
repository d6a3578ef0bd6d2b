//! Round trips in graphs: several on one group, replayed in mixed order, with other tokens, routings, weights and
//! expert outputs in the same memory, and with a number of tokens that is read when they run.

use anyhow::{Context as _, Result};
use fastrand::Rng;
use tokenyard::ep::{Batch, CombineFormat, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard::{Device, DeviceBuffer};
use tokenyard_tests::ep::{DeviceReturns, EpCase, Mode, RankInput, Returns, Traffic, World};
use tokenyard_tests::values::DeviceRows;
use tokenyard_tests::{Context, Rows, Suite};

use super::super::small;
use super::{home, identity};

pub fn register(suite: &mut Suite) {
    suite.both(
        "ep::combine::graphs::a12_batches_of_any_size",
        batches_of_any_size,
    );
    suite.both(
        "ep::combine::graphs::counts_from_the_device",
        counts_from_the_device,
    );
}

/// What outputs hold before a replay.
const BACKGROUND: u8 = 0x6C;

fn setup(format: TokenFormat) -> Setup {
    Setup {
        hidden_size: 64,
        max_tokens_per_rank: 8,
        ..small(format, 2)
    }
}

/// A rank's input at fixed addresses.
struct FixedInput {
    tokens: DeviceBuffer<half::bf16>,
    ids: DeviceBuffer<i32>,
}

impl FixedInput {
    fn upload(device: &Device, case: &EpCase) -> Result<Vec<Self>> {
        let ranks = case.ranks.iter().map(|rank| {
            Ok(Self {
                tokens: device.upload(&rank.tokens)?,
                ids: device.upload(&rank.topk_ids)?,
            })
        });
        ranks.collect()
    }

    fn replace(&mut self, rank: &RankInput) -> Result<()> {
        self.tokens.upload_from(&rank.tokens)?;
        self.ids.upload_from(&rank.topk_ids)?;
        Ok(())
    }
}

/// Writes other expert outputs and weights to where a graph reads them.
fn replace(on_device: &mut DeviceReturns, returns: &Returns) -> Result<()> {
    let pairs = on_device.outputs.iter_mut().zip(&returns.outputs);
    let weights = on_device.weights.iter_mut().flatten();
    let weights = weights.zip(returns.weights.iter().flatten());
    for (buffer, rows) in pairs.chain(weights) {
        match (buffer, rows) {
            (DeviceRows::Bf16(buffer), Rows::Bf16(values)) => buffer.upload_from(values)?,
            (DeviceRows::F16(buffer), Rows::F16(values)) => buffer.upload_from(values)?,
            (DeviceRows::F32(buffer), Rows::F32(values)) => buffer.upload_from(values)?,
            (buffer, rows) => anyhow::bail!("{buffer:?} cannot hold {}", rows.input_type()),
        }
    }
    on_device
        .combined
        .iter_mut()
        .try_for_each(|combined| combined.fill(BACKGROUND))
}

/// Graphs of 8, 4, 2 and 1 tokens on one group and one set of outputs, replayed in mixed order with other routings
/// each time, between round trips that are not captured.
fn batches_of_any_size(context: &Context) -> Result<()> {
    let device = context.device();
    let random = &mut Rng::with_seed(12);
    for (format, token_format) in [
        (CombineFormat::Bf16, TokenFormat::Mxfp4),
        (CombineFormat::Nvfp4, TokenFormat::Bf16),
    ] {
        let case = |tokens: usize, seed: u64| {
            let counts = [tokens, tokens];
            let setup = setup(token_format);
            home(EpCase::new(setup, &counts, Traffic::Uniform, seed), format)
        };
        let mut cases = [8, 4, 2, 1].map(|tokens| case(tokens, tokens as u64));
        let weights = Some(InputType::F32);
        let mut world = World::new(&device, &cases[0])?;
        let stream = device.create_stream()?;
        let mut inputs = Vec::new();
        let mut on_device = Vec::new();
        let mut graphs = Vec::new();
        for case in &cases {
            let input = FixedInput::upload(&device, case)?;
            let returns = Returns::random(case, weights, random)?;
            let mut buffers = returns.upload(case, &device, BACKGROUND)?;
            let batches = input.iter().map(|rank| Batch::new(&rank.tokens, &rank.ids));
            let batches: Vec<_> = batches.collect();
            graphs.push(world.capture_round_trip(&stream, &batches, &mut buffers)?);
            inputs.push(input);
            on_device.push(buffers);
        }
        for (turn, number) in [0, 3, 1, 2, 2, 0, 3, 3, 1].into_iter().enumerate() {
            let case_of_turn = &mut cases[number];
            let tokens = case_of_turn.ranks[0].topk_ids.len() / case_of_turn.setup.top_k;
            let traffic = Traffic::ALL[turn % Traffic::ALL.len()];
            case_of_turn.refill(&[tokens, tokens], traffic, random);
            for (input, rank) in inputs[number].iter_mut().zip(&case_of_turn.ranks) {
                input.replace(rank)?;
            }
            let returns = Returns::random(case_of_turn, weights, random)?;
            replace(&mut on_device[number], &returns)?;
            // SAFETY: inputs, outputs and the buffers of `world` outlive the launch, which the check waits for;
            // nothing else is running.
            unsafe { graphs[number].launch(&stream)? };
            world.group.check()?;
            let found = on_device[number].download()?;
            returns
                .check(case_of_turn, &world.sources()?, BACKGROUND, &found)
                .with_context(|| format!("replay {turn}, of {case_of_turn}"))?;
            world.check_combined()?;

            let other = case(turn % 8 + 1, 100 + turn as u64);
            let returns = Returns::random(&other, weights, random)?;
            world.check_round_trip(&other, Mode::Fused, &returns)?;
        }
    }
    Ok(())
}

/// One graph of full batches for any number of tokens, a word on the device: tokens beyond it are neither sent nor
/// written, and a word beyond the buffers counts as their length.
fn counts_from_the_device(context: &Context) -> Result<()> {
    let device = context.device();
    let stream = device.create_stream()?;
    let random = &mut Rng::with_seed(13);
    let mut full = EpCase::new(setup(TokenFormat::Bf16), &[8, 8], Traffic::Skewed, 13);
    identity::whole_numbers(&mut full, random);
    let full = home(full, CombineFormat::Bf16);
    let mut world = World::new(&device, &full)?;
    let inputs = FixedInput::upload(&device, &full)?;
    let mut words = [device.upload(&[0_u32])?, device.upload(&[0_u32])?];
    let quarters = identity::quarters(&full, random);
    for weights in [Some(&quarters[..]), None] {
        let mut returns = identity::returns(&world, &full, weights)?;
        let before = returns.download()?;
        let batches = inputs.iter().zip(&words);
        let batches = batches.map(|(rank, word)| Batch::new(&rank.tokens, &rank.ids).count(word));
        let batches: Vec<_> = batches.collect();
        let graph = world.capture_round_trip(&stream, &batches, &mut returns)?;
        for counts in [[0, 8], [3, 3], [8, 0], [1, 7], [u32::MAX, 9], [0, 0]] {
            for (word, count) in words.iter_mut().zip(counts) {
                word.upload_from(&[count])?;
            }
            for (combined, before) in returns.combined.iter_mut().zip(&before) {
                match (combined, before) {
                    (DeviceRows::Bf16(buffer), Rows::Bf16(values)) => buffer.upload_from(values)?,
                    _ => anyhow::bail!("rows come home as BF16"),
                }
            }
            // SAFETY: as above.
            unsafe { graph.launch(&stream)? };
            world.group.check()?;
            let whole = identity::expected(&full, weights);
            for (rank, found) in returns.download()?.iter().enumerate() {
                let width = found.len() / 8;
                let end = counts[rank].min(8) as usize * width;
                let mut expected: Vec<u32> = whole[rank].iter().map(|&it| it.into()).collect();
                expected[end..].copy_from_slice(&before[rank].bits()[end..]);
                tokenyard_tests::compare::words("replayed", &expected, &found.bits(), |index| {
                    format!("{counts:?}: rank {rank}, token {}", index / width)
                })?;
            }
            world.check_combined()?;
        }
    }
    Ok(())
}
