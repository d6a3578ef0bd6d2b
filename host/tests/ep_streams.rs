//! Rounds on several streams, in graphs, and after refusals.

mod ep_support;

use ep_support::{DeviceInput, Input, PATTERN, check_idle, check_received, random_input, round};
use fastrand::Rng;
use std::ops::Range;
use tokenyard::ep::{Batch, EpConfig, EpError, EpGroup, Pending, Received, TokenFormat};
use tokenyard::{Device, DeviceError, EmulatorOptions, Stream};

fn config() -> EpConfig {
    let builder = EpConfig::builder(TokenFormat::Mxfp4)
        .hidden_size(64)
        .top_k(2);
    builder
        .experts(4)
        .ranks(2)
        .max_tokens_per_rank(5)
        .build()
        .unwrap()
}

fn emulator(seed: u64) -> Device {
    let mut options = EmulatorOptions::default();
    options.seed = seed;
    ep_support::emulator(options)
}

fn inputs(config: &EpConfig, seed: u64) -> Vec<Input> {
    let rng = &mut Rng::with_seed(seed);
    (0..config.ranks())
        .map(|_| random_input(rng, config, 5, 0.0))
        .collect()
}

fn outputs(group: &EpGroup) -> Vec<Received> {
    let outputs = (0..group.config().ranks()).map(|_| {
        let mut output = group.allocate_received().unwrap();
        output.fill(PATTERN).unwrap();
        output
    });
    outputs.collect()
}

fn upload(device: &Device, inputs: &[Input]) -> Vec<DeviceInput> {
    let inputs = inputs.iter();
    inputs
        .map(|input| DeviceInput::upload(device, input))
        .collect()
}

fn check(config: &EpConfig, inputs: &[Input], received: &[Received]) {
    for (rank, received) in received.iter().enumerate() {
        check_received(config, inputs, rank, received);
    }
}

/// Sends on all ranks; a refusal leaves what was sent.
fn send(group: &mut EpGroup, stream: &Stream, batches: &[Batch<'_>]) -> Result<(), EpError> {
    for (rank, batch) in group.ranks_mut().iter_mut().zip(batches) {
        let _: Pending = rank.dispatch_async(stream, batch)?;
    }
    Ok(())
}

/// Receives on all ranks what they have sent.
fn receive(group: &mut EpGroup, stream: &Stream, received: &mut [Received]) {
    for (rank, received) in group.ranks_mut().iter_mut().zip(received) {
        let pending = rank.pending().unwrap();
        let _ = rank.dispatch_wait(stream, pending, received).unwrap();
    }
}

/// Two rounds, which `queue(group, streams, number of the round, batches, received)` puts on two streams. Nobody
/// waits for the device between them.
fn two_rounds(
    seeds: Range<u64>,
    queue: impl Fn(u64, &mut EpGroup, &[Stream; 2], usize, &[Batch<'_>], &mut [Received]),
) {
    let config = config();
    for seed in seeds {
        let device = emulator(seed);
        let streams = [(); 2].map(|()| device.create_stream().unwrap());
        let mut group = EpGroup::new(&device, config.clone()).unwrap();
        let rounds = [inputs(&config, seed), inputs(&config, 100 + seed)];
        let uploaded = [0, 1].map(|round| upload(&device, &rounds[round]));
        let mut received = [(); 2].map(|()| outputs(&group));
        for round in 0..2 {
            let batches = uploaded[round].iter().map(|input| input.batch(&config));
            let batches: Vec<_> = batches.collect();
            queue(
                seed,
                &mut group,
                &streams,
                round,
                &batches,
                &mut received[round],
            );
        }
        group.check().unwrap();
        check(&config, &rounds[0], &received[0]);
        check(&config, &rounds[1], &received[1]);
        check_idle(&group);
    }
}

/// The second round must not reserve slots, write messages or bind arguments before the first is done with them.
#[test]
fn rounds_on_two_streams_follow_each_other() {
    two_rounds(0..24, |seed, group, streams, round, batches, received| {
        let stream = &streams[round];
        if seed % 2 == 0 {
            let _ = group.dispatch(stream, batches, received).unwrap();
        } else {
            send(group, stream, batches).unwrap();
            receive(group, stream, received);
        }
    });
}

/// The halves of a round on two streams, and the next round's the other way round.
#[test]
fn halves_on_two_streams_follow_each_other() {
    two_rounds(0..16, |_, group, streams, round, batches, received| {
        send(group, &streams[round], batches).unwrap();
        receive(group, &streams[1 - round], received);
    });
}

/// Whatever a rank's receive is refused for, what was sent can still be received.
#[test]
fn a_refused_receive_can_be_repeated() {
    let config = config();
    let device = emulator(1);
    let stream = device.create_stream().unwrap();
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    let inputs = inputs(&config, 1);
    let uploaded = upload(&device, &inputs);
    let batches: Vec<_> = uploaded.iter().map(|input| input.batch(&config)).collect();
    let mut received = outputs(&group);
    assert_eq!(group.ranks()[0].pending(), None);
    let pending = [0, 1].map(|rank| {
        let rank = &mut group.ranks_mut()[rank];
        rank.dispatch_async(&stream, &batches[rank.number()])
            .unwrap()
    });
    assert_eq!(group.ranks()[1].pending(), Some(pending[1]));

    // A stream and an output of another device, an output of another shape, another rank's handle.
    let elsewhere = emulator(2);
    let other_stream = elsewhere.create_stream().unwrap();
    let other_group = EpGroup::new(&elsewhere, config.clone()).unwrap();
    let mut other_output = other_group.allocate_received().unwrap();
    let shape = EpConfig::builder(TokenFormat::Bf16);
    let shape = shape.hidden_size(64).top_k(2).experts(4);
    let shape = shape.ranks(2).max_tokens_per_rank(5).build().unwrap();
    let other_shape = EpGroup::new(&device, shape).unwrap();
    let mut other_shape = other_shape.allocate_received().unwrap();
    let rank = &mut group.ranks_mut()[0];
    for (stream, output) in [
        (&other_stream, &mut received[0]),
        (&stream, &mut other_output),
    ] {
        let error = rank.dispatch_wait(stream, pending[0], output).unwrap_err();
        let wrong_device = matches!(error, EpError::Device(DeviceError::WrongDevice { .. }));
        assert!(wrong_device, "{error}");
    }
    let error = rank
        .dispatch_wait(&stream, pending[0], &mut other_shape)
        .unwrap_err();
    assert!(matches!(error, EpError::OtherShape { rank: 0 }), "{error}");
    let error = rank
        .dispatch_wait(&stream, pending[1], &mut received[0])
        .unwrap_err();
    let foreign = matches!(error, EpError::ForeignHandle { sender: 1, .. });
    assert!(foreign, "{error}");

    receive(&mut group, &stream, &mut received);
    group.check().unwrap();
    check(&config, &inputs, &received);
    // Once.
    let error = group.ranks_mut()[0]
        .dispatch_wait(&stream, pending[0], &mut received[0])
        .unwrap_err();
    assert!(
        matches!(error, EpError::NotPending { rank: 0, round: 0 }),
        "{error}"
    );
    round(&mut group, &stream, &inputs, true);
}

/// What a capture recorded before it failed has not happened.
#[test]
fn a_failed_capture_leaves_the_group_as_it_was() {
    let config = config();
    let device = emulator(3);
    let stream = device.create_stream().unwrap();
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    let inputs = inputs(&config, 3);
    let uploaded = upload(&device, &inputs);
    let batches: Vec<_> = uploaded.iter().map(|input| input.batch(&config)).collect();
    let mut kept = None;
    let error = stream
        .capture(|| {
            kept = Some(group.ranks_mut()[0].dispatch_async(&stream, &batches[0])?);
            // Rank 0 has sent, so this is refused, and ends the recording.
            let _: Pending = group.ranks_mut()[0].dispatch_async(&stream, &batches[0])?;
            Ok::<(), EpError>(())
        })
        .unwrap_err();
    assert!(matches!(error, EpError::RoundOrder { .. }), "{error}");
    assert_eq!(group.ranks()[0].pending(), None);
    let mut received = outputs(&group);
    let error = group.ranks_mut()[0]
        .dispatch_wait(&stream, kept.unwrap(), &mut received[0])
        .unwrap_err();
    assert!(matches!(error, EpError::NotPending { .. }), "{error}");
    for fused in [false, true] {
        round(&mut group, &stream, &inputs, fused);
    }
}

/// The halves of a round in a graph each, launched several times, and a round outside of graphs after them.
#[test]
fn halves_in_graphs() {
    let config = config();
    let device = emulator(4);
    let stream = device.create_stream().unwrap();
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    let inputs = inputs(&config, 4);
    round(&mut group, &device.create_stream().unwrap(), &inputs, false);
    let uploaded = upload(&device, &inputs);
    let batches: Vec<_> = uploaded.iter().map(|input| input.batch(&config)).collect();
    let mut received = outputs(&group);
    let sends = stream
        .capture(|| send(&mut group, &stream, &batches))
        .unwrap();
    let receives = stream
        .capture(|| {
            receive(&mut group, &stream, &mut received);
            Ok::<(), EpError>(())
        })
        .unwrap();
    for _ in 0..3 {
        for output in &mut received {
            output.fill(PATTERN).unwrap();
        }
        // SAFETY: group, inputs and outputs are alive; the check waits before anything else uses them.
        unsafe {
            sends.launch(&stream).unwrap();
            receives.launch(&stream).unwrap();
        }
        group.check().unwrap();
        check(&config, &inputs, &received);
    }
    round(&mut group, &stream, &inputs, false);
}

/// Two launches of one graph at a time, which its safety section forbids: they reserve more slots than there are,
/// and those are not written. The only cell is the whole buffer here, so that the emulator would see it.
#[test]
fn slots_beyond_the_capacity_are_nobody() {
    let builder = EpConfig::builder(TokenFormat::Mxfp4)
        .hidden_size(64)
        .top_k(1);
    let config = builder.experts(1).max_tokens_per_rank(6).build().unwrap();
    let mut overflows = 0;
    for seed in 0..16 {
        let device = emulator(seed);
        let streams = [(); 2].map(|()| device.create_stream().unwrap());
        let mut group = EpGroup::new(&device, config.clone()).unwrap();
        let inputs = [random_input(&mut Rng::with_seed(seed), &config, 6, 0.0)];
        let uploaded = upload(&device, &inputs);
        let batches = [uploaded[0].batch(&config)];
        let graph = streams[0]
            .capture(|| send(&mut group, &streams[0], &batches))
            .unwrap();
        for stream in &streams {
            // SAFETY: an emulated device checks every access, and all that the two launches share are words
            // that they access atomically, and messages.
            unsafe { graph.launch(stream).unwrap() };
        }
        // Waits for both; an access outside a buffer is an error here.
        let counts = group.ranks()[0].receive_counts().unwrap();
        overflows += usize::from(counts[0] > 6);
    }
    assert!(overflows > 0, "no schedule overlapped the launches");
}
