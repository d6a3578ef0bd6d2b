//! Groups over several devices of one process.

mod ep_support;

use ep_support::{DeviceInput, Input, PATTERN, check_idle, check_received, random_input};
use fastrand::Rng;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use tokenyard::ep::{Awaited, EpConfig, EpConfigBuilder, EpError, EpGroup, Received, TokenFormat};
use tokenyard::{Device, DeviceError, EmulatorOptions, Stream};

fn small(format: TokenFormat, ranks: usize) -> EpConfigBuilder {
    EpConfig::builder(format)
        .hidden_size(256)
        .top_k(3)
        .experts(8)
        .ranks(ranks)
        .max_tokens_per_rank(6)
}

fn node(devices: usize, seed: u64) -> Vec<Device> {
    let mut options = EmulatorOptions::default();
    options.seed = seed;
    Device::emulated_node(devices, options)
}

/// What all ranks dispatch in each round.
fn inputs(config: &EpConfig, rounds: u64) -> Vec<Vec<Input>> {
    let of_round = |round| {
        let mut rng = Rng::with_seed(round);
        let mut rank = || {
            let tokens = rng.usize(0..=config.max_tokens_per_rank());
            random_input(&mut rng, config, tokens, 0.1)
        };
        (0..config.ranks()).map(|_| rank()).collect()
    };
    (0..rounds).map(of_round).collect()
}

/// A member, its stream, and what it has in every round.
struct Member {
    group: EpGroup,
    stream: Stream,
    inputs: Vec<Vec<DeviceInput>>,
    received: Vec<Vec<Received>>,
}

impl Member {
    fn new(group: EpGroup, inputs: &[Vec<Input>]) -> Self {
        let device = group.device().clone();
        let own = |round: &Vec<Input>| {
            let ranks = group.ranks().iter();
            ranks
                .map(|rank| DeviceInput::upload(&device, &round[rank.number()]))
                .collect()
        };
        let output = |_: &Vec<Input>| {
            let outputs = group.ranks().iter().map(|_| {
                let mut output = group.allocate_received().unwrap();
                output.fill(PATTERN).unwrap();
                output
            });
            outputs.collect()
        };
        Self {
            stream: device.create_stream().unwrap(),
            inputs: inputs.iter().map(own).collect(),
            received: inputs.iter().map(output).collect(),
            group,
        }
    }

    /// Queues a round, and waits for nothing.
    fn queue(&mut self, round: usize, fused: bool) {
        let config = self.group.config().clone();
        let inputs = self.inputs[round].iter();
        let batches: Vec<_> = inputs.map(|input| input.batch(&config)).collect();
        let received = &mut self.received[round];
        if fused {
            let _ = self
                .group
                .dispatch(&self.stream, &batches, received)
                .unwrap();
            return;
        }
        let ranks = self.group.ranks_mut();
        let senders = ranks.iter_mut().zip(&batches);
        let pending: Vec<_> = senders
            .map(|(rank, batch)| rank.dispatch_async(&self.stream, batch).unwrap())
            .collect();
        for ((rank, pending), received) in ranks.iter_mut().zip(pending).zip(received) {
            let _ = rank.dispatch_wait(&self.stream, pending, received).unwrap();
        }
    }

    fn check(&self, inputs: &[Vec<Input>]) {
        self.group.check().unwrap();
        let config = self.group.config();
        for (inputs, received) in inputs.iter().zip(&self.received) {
            for (rank, received) in self.group.ranks().iter().zip(received) {
                check_received(config, inputs, rank.number(), received);
            }
        }
        check_idle(&self.group);
    }
}

fn members(devices: usize, seed: u64, config: &EpConfig, inputs: &[Vec<Input>]) -> Vec<Member> {
    let groups = EpGroup::across(&node(devices, seed), config.clone()).unwrap();
    assert_eq!(groups.len(), devices);
    let members = groups.into_iter();
    members.map(|group| Member::new(group, inputs)).collect()
}

/// All rounds are queued before the first one runs: the devices order them.
#[test]
fn rounds_follow_each_other_without_the_host() {
    for (devices, ranks, format) in [
        (2, 2, TokenFormat::Mxfp4),
        (2, 4, TokenFormat::Nvfp4),
        (4, 4, TokenFormat::Fp8Block128),
        (1, 2, TokenFormat::Bf16),
    ] {
        let config = small(format, ranks).build().unwrap();
        let inputs = inputs(&config, 6);
        for seed in 0..2 {
            let mut members = members(devices, seed, &config, &inputs);
            for round in 0..inputs.len() {
                // One device is several launches behind another, or before it.
                for member in &mut members {
                    member.queue(round, round % 3 == 1);
                }
            }
            for member in &members {
                member.check(&inputs);
            }
        }
    }
}

#[test]
fn members_can_be_on_threads_of_their_own() {
    let config = small(TokenFormat::Mxfp8, 4).build().unwrap();
    let inputs = inputs(&config, 3);
    let mut members = members(2, 9, &config, &inputs);
    // An emulated device is driven by who waits for it, and then takes no work.
    let queued = Barrier::new(members.len());
    thread::scope(|scope| {
        for member in &mut members {
            scope.spawn(|| {
                for round in 0..inputs.len() {
                    member.queue(round, true);
                    queued.wait();
                    member.group.check().unwrap();
                    queued.wait();
                }
            });
        }
    });
    for member in &members {
        member.check(&inputs);
    }
}

#[test]
fn a_member_that_does_not_take_part_is_named() {
    let config = small(TokenFormat::Mxfp4, 2).deadline(Some(Duration::from_millis(50)));
    let config = config.build().unwrap();
    let inputs = inputs(&config, 2);
    let mut members = members(2, 3, &config, &inputs);
    for member in &mut members {
        member.queue(0, false);
    }
    members[0].queue(1, false);
    let error = members[0].group.check().unwrap_err();
    let EpError::Deadline {
        waiting: 0,
        awaited: Awaited::Count { rank: 1, .. },
    } = error
    else {
        panic!("{error}")
    };
    // The other one has what it was sent before, and that is whole.
    members[1].group.check().unwrap();
    check_received(&config, &inputs[0], 1, &members[1].received[0][0]);
}

/// A rank whose receiver is late does not write over what that has not received.
#[test]
fn a_round_that_would_overtake_a_receiver_waits_and_then_gives_up() {
    let config = small(TokenFormat::Bf16, 2).deadline(Some(Duration::from_millis(50)));
    let config = config.build().unwrap();
    let inputs = inputs(&config, 2);
    let mut members = members(2, 4, &config, &inputs);
    members[0].queue(0, false);
    // Sends, and does not receive.
    let late = &mut members[1];
    let stream = late.group.device().create_stream().unwrap();
    let batch = late.inputs[0][0].batch(&config);
    let pending = late.group.ranks_mut()[0]
        .dispatch_async(&stream, &batch)
        .unwrap();
    members[0].group.check().unwrap();
    members[0].queue(1, false);
    let error = members[0].group.check().unwrap_err();
    assert!(
        matches!(
            error,
            EpError::Deadline {
                waiting: 0,
                awaited: Awaited::Receipt { rank: 1 }
            }
        ),
        "{error}"
    );
    let late = &mut members[1];
    let received = &mut late.received[0][0];
    let _ = late.group.ranks_mut()[0]
        .dispatch_wait(&stream, pending, received)
        .unwrap();
    late.group.check().unwrap();
    check_received(&config, &inputs[0], 1, &late.received[0][0]);
}

#[test]
fn members_may_be_dropped_in_any_order_with_work_under_way() {
    let config = small(TokenFormat::Mxfp4, 4).build().unwrap();
    let inputs = inputs(&config, 2);
    for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
        let mut members: Vec<_> = members(4, 5, &config, &inputs)
            .into_iter()
            .map(Some)
            .collect();
        for round in 0..2 {
            for member in members.iter_mut().flatten() {
                member.queue(round, round == 0);
            }
        }
        for index in order {
            drop(members[index].take());
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let config = small(TokenFormat::Mxfp4, 4).build().unwrap();
    let strangers = [Device::emulator(1), Device::emulator(2)];
    let error = EpGroup::across(&strangers, config.clone()).unwrap_err();
    let EpError::Device(DeviceError::NoPath { from, to }) = error else {
        panic!("{error}")
    };
    assert!(
        from.contains("seed 1") && to.contains("seed 2"),
        "{from}, {to}"
    );
    for devices in [0, 3] {
        let error = EpGroup::across(&node(devices, 0), config.clone()).unwrap_err();
        assert!(
            matches!(error, EpError::UnevenDevices { ranks: 4, devices: found } if found == devices),
            "{error}"
        );
    }
}
