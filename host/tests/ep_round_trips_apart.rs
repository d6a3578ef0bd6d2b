//! Dispatch and combine where no host orders all ranks: over several devices, and over several processes.
//!
//! Experts do nothing, and every weight is 1/4, so a token with n experts comes back as exactly n/4 of itself.

mod ep_support;

use ep_support::{Input, random_input};
use fastrand::Rng;
use half::bf16;
use std::thread;
use tokenyard::ep::{
    Batch, CombineFormat, CombineTarget, EpConfig, EpError, EpGroup, ExpertOutputs, Received,
    TokenFormat,
};
use tokenyard::peer::Rendezvous;
use tokenyard::{Device, DeviceBuffer, EmulatorOptions, Stream};

const ROUNDS: u64 = 5;

fn config(ranks: usize) -> EpConfig {
    EpConfig::builder(TokenFormat::Bf16)
        .hidden_size(64)
        .top_k(3)
        .experts(8)
        .ranks(ranks)
        .max_tokens_per_rank(6)
        .combine(CombineFormat::Bf16)
        .build()
        .unwrap()
}

/// What a rank dispatches in a round.
fn input(config: &EpConfig, round: u64, rank: usize) -> Input {
    let mut rng = Rng::with_seed(100 * round + rank as u64);
    let tokens = rng.usize(0..=config.max_tokens_per_rank());
    random_input(&mut rng, config, tokens, 0.2)
}

/// A rank's buffers of one round.
struct Round {
    tokens: DeviceBuffer<bf16>,
    ids: DeviceBuffer<i32>,
    weights: DeviceBuffer<f32>,
    received: Received,
    combined: DeviceBuffer<bf16>,
    expected: Vec<bf16>,
}

impl Round {
    fn new(group: &EpGroup, round: u64, rank: usize) -> Result<Self, EpError> {
        let (config, device) = (group.config(), group.device());
        let input = input(config, round, rank);
        let rows = input.tokens.chunks(config.hidden_size());
        let rows = rows.zip(input.ids.chunks(config.top_k()));
        let expected = rows.flat_map(|(row, ids)| {
            let experts = ids.iter().filter(|&&id| id >= 0).count();
            let share = experts as f32 / 4.0;
            row.iter()
                .map(move |value| bf16::from_f32(share * value.to_f32()))
        });
        Ok(Self {
            tokens: device.upload(&input.tokens)?,
            weights: device.upload(&vec![0.25; input.ids.len()])?,
            ids: device.upload(&input.ids)?,
            received: group.allocate_received()?,
            combined: device.alloc_filled(input.tokens.len(), 0xA5)?,
            expected: expected.collect(),
        })
    }

    fn check(&self, what: &str) {
        assert_eq!(self.combined.download().unwrap(), self.expected, "{what}");
    }
}

/// The rows that a rank received, as its experts leave them.
fn untouched(received: &Received) -> DeviceBuffer<bf16> {
    let rows = received.config().output_rows() * received.config().hidden_size();
    let tokens = received.tokens();
    let pointer = tokens.as_ptr().cast_mut().cast();
    // SAFETY: BF16 rows, in a buffer that lives until the round was checked. The combine only reads them.
    unsafe { DeviceBuffer::from_raw(tokens.device(), pointer, rows).unwrap() }
}

/// Queues a round trip of the ranks of a group, and waits for nothing.
fn queue(
    group: &mut EpGroup,
    stream: &Stream,
    rounds: &mut [Round],
    fused: bool,
) -> Result<(), EpError> {
    let mut outputs = Vec::new();
    let mut batches = Vec::new();
    let mut received = Vec::new();
    let mut targets = Vec::new();
    for round in rounds {
        outputs.push(untouched(&round.received));
        batches.push(Batch::new(&round.tokens, &round.ids));
        received.push(&mut round.received);
        targets.push(CombineTarget::weighted(&round.weights, &mut round.combined));
    }
    if fused {
        let [received] = received.try_into().ok().unwrap();
        let dispatched = group.dispatch(stream, &batches, std::slice::from_mut(received))?;
        let outputs: Vec<_> = outputs.iter().map(ExpertOutputs::from).collect();
        return Ok(dispatched.combine(stream, &outputs, &batches, targets)?);
    }
    let mut sent = Vec::new();
    for (rank, batch) in group.ranks_mut().iter_mut().zip(&batches) {
        sent.push(rank.dispatch_async(stream, batch)?);
    }
    let mut home = Vec::new();
    let ranks = group.ranks_mut().iter_mut().zip(sent);
    for ((rank, sent), (received, outputs)) in ranks.zip(received.into_iter().zip(&outputs)) {
        let dispatched = rank.dispatch_wait(stream, sent, received)?;
        home.push(dispatched.combine_async(stream, outputs)?);
    }
    for ((home, batch), target) in home.into_iter().zip(&batches).zip(targets) {
        home.wait(stream, batch, target)?;
    }
    Ok(())
}

#[test]
fn devices_send_tokens_there_and_back() {
    for (devices, ranks) in [(2, 2), (4, 4), (2, 4)] {
        for seed in 0..2 {
            let mut options = EmulatorOptions::default();
            options.seed = seed;
            let devices = Device::emulated_node(devices, options);
            let mut members = EpGroup::across(&devices, config(ranks)).unwrap();
            let mut streams = Vec::new();
            let mut rounds = Vec::new();
            for member in &members {
                streams.push(member.device().create_stream().unwrap());
                let of_rank = |round| {
                    let ranks = member.ranks().iter();
                    ranks
                        .map(|rank| Round::new(member, round, rank.number()).unwrap())
                        .collect::<Vec<_>>()
                };
                rounds.push((0..ROUNDS).map(of_rank).collect::<Vec<_>>());
            }
            // All rounds are queued before the first one runs.
            for number in 0..ROUNDS as usize {
                let fused = ranks == devices.len() && number % 2 == 1;
                for ((member, stream), rounds) in members.iter_mut().zip(&streams).zip(&mut rounds)
                {
                    queue(member, stream, &mut rounds[number], fused).unwrap();
                }
            }
            for (member, rounds) in members.iter().zip(&rounds) {
                member.check().unwrap();
                for (number, round) in rounds.iter().enumerate() {
                    for (rank, round) in member.ranks().iter().zip(round) {
                        round.check(&format!("round {number} of rank {}", rank.number()));
                    }
                }
            }
        }
    }
}

/// Threads that share nothing but what processes could.
#[test]
fn processes_send_tokens_there_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meeting");
    let process = &|rank: usize| -> Result<(), EpError> {
        let device = Device::emulator(rank as u64);
        let stream = device.create_stream()?;
        let meeting = Rendezvous::new(&path, rank, 3)?;
        let config = EpConfig::builder(TokenFormat::Bf16)
            .hidden_size(64)
            .top_k(3)
            .experts(9)
            .ranks(3)
            .max_tokens_per_rank(6)
            .combine(CombineFormat::Bf16)
            .build()
            .unwrap();
        let mut group = EpGroup::join(&device, config, &meeting)?;
        for number in 0..ROUNDS {
            let mut round = [Round::new(&group, number, rank)?];
            queue(&mut group, &stream, &mut round, number % 2 == 1)?;
            group.check()?;
            round[0].check(&format!("round {number} of rank {rank}"));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others = [1, 2].map(|rank| scope.spawn(move || process(rank)));
        process(0).unwrap();
        for other in others {
            other.join().unwrap().unwrap();
        }
    });
}
