//! Combines over several rounds: on several streams, in graphs, without a rank, cut short.

mod ep_support;

use ep_support::{check_idle, emulator};
use half::bf16;
use std::time::Duration;
use tokenyard::ep::{
    Awaited, Batch, CombineFormat, CombineTarget, Dispatched, EpConfig, EpConfigBuilder, EpError,
    EpGroup, ExpertOutputs, PendingCombine, Received, TokenFormat,
};
use tokenyard::{Device, DeviceBuffer, EmulatorOptions, Stream};

const HIDDEN: usize = 16;
const CAPACITY: usize = 4;

/// Two ranks with two experts each.
fn builder() -> EpConfigBuilder {
    EpConfig::builder(TokenFormat::Bf16)
        .hidden_size(HIDDEN)
        .top_k(2)
        .experts(4)
        .ranks(2)
        .max_tokens_per_rank(CAPACITY)
        .combine(CombineFormat::Bf16)
}

fn device(seed: u64) -> Device {
    let mut options = EmulatorOptions::default();
    options.seed = seed;
    emulator(options)
}

/// One rank's operands; weights are 1 and 2.
struct Operands {
    tokens: DeviceBuffer<bf16>,
    ids: DeviceBuffer<i32>,
    weights: DeviceBuffer<f32>,
    combined: DeviceBuffer<bf16>,
}

impl Operands {
    fn new(device: &Device, ids: &[i32]) -> Self {
        let tokens = ids.len() / 2;
        Self {
            tokens: device.upload(&vec![bf16::ONE; tokens * HIDDEN]).unwrap(),
            ids: device.upload(ids).unwrap(),
            weights: device.upload(&[1.0, 2.0].repeat(tokens)).unwrap(),
            combined: device.alloc_filled(tokens * HIDDEN, 0xA5).unwrap(),
        }
    }

    fn batch(&self) -> Batch<'_> {
        Batch::new(&self.tokens, &self.ids)
    }

    /// The first element of each combined token.
    fn found(&self) -> Vec<f32> {
        let combined = self.combined.download().unwrap();
        combined
            .chunks(HIDDEN)
            .map(|token| token[0].to_f32())
            .collect()
    }
}

fn both(device: &Device, ids: &[i32]) -> [Operands; 2] {
    [0, 1].map(|_| Operands::new(device, ids))
}

/// What the experts of each rank make of every row.
fn experts(device: &Device, config: &EpConfig, level: f32) -> [DeviceBuffer<bf16>; 2] {
    let rows = vec![bf16::from_f32(level); config.output_rows() * HIDDEN];
    [0, 1].map(|_| device.upload(&rows).unwrap())
}

/// Dispatches on both ranks, by the split operations.
fn dispatch<'r>(
    group: &mut EpGroup,
    stream: &Stream,
    operands: &[Operands],
    received: &'r mut [Received],
) -> Result<Vec<Dispatched<'r>>, EpError> {
    let ranks = group.ranks_mut().iter_mut();
    let pending: Vec<_> = (ranks.zip(operands))
        .map(|(rank, operands)| rank.dispatch_async(stream, &operands.batch()))
        .collect::<Result<_, _>>()?;
    let ranks = group.ranks_mut().iter_mut().zip(pending).zip(received);
    ranks
        .map(|((rank, pending), received)| rank.dispatch_wait(stream, pending, received))
        .collect()
}

fn wait(
    pending: PendingCombine<'_>,
    stream: &Stream,
    operands: &mut Operands,
) -> Result<(), EpError> {
    let Operands {
        tokens,
        ids,
        weights,
        combined,
        ..
    } = operands;
    let target = CombineTarget::weighted(&*weights, combined);
    Ok(pending.wait(stream, &Batch::new(tokens, ids), target)?)
}

fn received(group: &EpGroup) -> [Received; 2] {
    [0, 1].map(|_| group.allocate_received().unwrap())
}

/// Sends home and adds up on both ranks.
fn combine<'r>(
    stream: &Stream,
    dispatched: Vec<Dispatched<'r>>,
    experts: &'r [DeviceBuffer<bf16>],
    operands: &mut [Operands],
) -> Result<(), EpError> {
    let mut sent = Vec::new();
    for (dispatched, outputs) in dispatched.into_iter().zip(experts) {
        sent.push(dispatched.combine_async(stream, outputs)?);
    }
    for (sent, operands) in sent.into_iter().zip(operands) {
        wait(sent, stream, operands)?;
    }
    Ok(())
}

/// Two rounds in flight, each on its own stream: the second is dispatched before the first is combined.
#[test]
fn rounds_overlap() {
    let config = builder().build().unwrap();
    for seed in 0..4 {
        let device = device(seed);
        let streams = [0, 1].map(|_| device.create_stream().unwrap());
        let mut group = EpGroup::new(&device, config.clone()).unwrap();
        let mut first = both(&device, &[0, 2, 1, 3]);
        let mut second = both(&device, &[3, 1, -1, 2]);
        let (ones, twos) = (
            experts(&device, &config, 1.0),
            experts(&device, &config, 2.0),
        );
        let (mut one, mut other) = (received(&group), received(&group));
        for _ in 0..3 {
            let early = dispatch(&mut group, &streams[0], &first, &mut one).unwrap();
            let late = dispatch(&mut group, &streams[1], &second, &mut other).unwrap();
            combine(&streams[0], early, &ones, &mut first).unwrap();
            combine(&streams[1], late, &twos, &mut second).unwrap();
            group.check().unwrap();
            for (first, second) in first.iter().zip(&second) {
                assert_eq!(first.found(), [3.0, 3.0]);
                assert_eq!(second.found(), [6.0, 4.0]);
            }
        }
        check_idle(&group);
    }
}

#[test]
fn ranks_combine_the_same_rounds_and_in_order() {
    let config = builder().build().unwrap();
    let device = device(7);
    let stream = device.create_stream().unwrap();
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    let operands = both(&device, &[0, 2]);
    let outputs = experts(&device, &config, 1.0);
    let (mut one, mut other) = (received(&group), received(&group));
    let mut early = dispatch(&mut group, &stream, &operands, &mut one)
        .unwrap()
        .into_iter();
    let mut late = dispatch(&mut group, &stream, &operands, &mut other)
        .unwrap()
        .into_iter();
    let next = |handles: &mut std::vec::IntoIter<_>| handles.next().unwrap();
    let _sent = next(&mut early)
        .combine_async(&stream, &outputs[0])
        .unwrap();
    let again = next(&mut late)
        .combine_async(&stream, &outputs[0])
        .unwrap_err();
    assert!(
        matches!(
            *again.error,
            EpError::CombineOrder {
                rank: 0,
                combines: 1,
                other: 0,
                behind: 0
            }
        ),
        "{}",
        again.error
    );
    let wrong = next(&mut late)
        .combine_async(&stream, &outputs[1])
        .unwrap_err();
    assert!(
        matches!(
            *wrong.error,
            EpError::CombineRound {
                rank: 1,
                round: 1,
                expected: 0
            }
        ),
        "{}",
        wrong.error
    );
    // The right one is taken.
    let _sent = next(&mut early)
        .combine_async(&stream, &outputs[1])
        .unwrap();
}

/// A graph of a whole round trip, for every number of tokens and other routings.
#[test]
fn a_graph_serves_every_number_of_tokens() {
    let config = builder().build().unwrap();
    let device = device(11);
    let stream = device.create_stream().unwrap();
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    let mut operands = both(&device, &[0; 2 * CAPACITY]);
    let mut counts = [0, 1].map(|_| device.upload(&[0_u32]).unwrap());
    let mut received = received(&group);
    let experts = experts(&device, &config, 1.0);
    let mut combined = [0, 1].map(|_| device.alloc::<bf16>(CAPACITY * HIDDEN).unwrap());
    let graph = {
        let batches: Vec<_> = operands
            .iter()
            .zip(&counts)
            .map(|(operands, count)| operands.batch().count(count))
            .collect();
        let graph = stream.capture(|| {
            let dispatched = group.dispatch(&stream, &batches, &mut received)?;
            let outputs: Vec<_> = experts.iter().map(ExpertOutputs::from).collect();
            let weights = operands.iter().map(|operands| &operands.weights);
            let targets = combined.iter_mut().zip(weights);
            let targets = targets.map(|(out, weights)| CombineTarget::weighted(weights, out));
            Ok::<(), EpError>(dispatched.combine(&stream, &outputs, &batches, targets.collect())?)
        });
        graph.unwrap()
    };
    for round in 0..6_u32 {
        for rank in 0..2 {
            let tokens = (round + rank as u32) % (CAPACITY as u32 + 1);
            counts[rank].upload_from(&[tokens]).unwrap();
            let ids: Vec<i32> = (0..2 * CAPACITY as i32)
                .map(|index| (index / 2 + index % 2 + round as i32) % 5 - i32::from(index == 3))
                .collect();
            operands[rank].ids.upload_from(&ids).unwrap();
            combined[rank].fill(0xA5).unwrap();
        }
        // SAFETY: everything recorded is alive, and the check waits before anything uses it.
        unsafe { graph.launch(&stream).unwrap() };
        group.check().unwrap();
        for rank in 0..2 {
            let ids = operands[rank].ids.download().unwrap();
            let tokens = counts[rank].download().unwrap()[0] as usize;
            let found = combined[rank].download().unwrap();
            for (token, found) in found.chunks(HIDDEN).enumerate() {
                let ids = &ids[2 * token..][..2];
                let counts = |k: usize| (0..4).contains(&ids[k]) && (k == 0 || ids[1] != ids[0]);
                let sum = f32::from(u8::from(counts(0))) + 2.0 * f32::from(u8::from(counts(1)));
                let untouched = bf16::from_bits(0xA5A5);
                let expected = if token < tokens {
                    bf16::from_f32(sum)
                } else {
                    untouched
                };
                assert_eq!(
                    found, [expected; HIDDEN],
                    "round {round}, rank {rank}, token {token}"
                );
            }
        }
    }
}

#[test]
fn a_rank_that_sends_nothing_home_is_named() {
    let config = builder()
        .deadline(Some(Duration::from_millis(50)))
        .build()
        .unwrap();
    let device = device(13);
    let stream = device.create_stream().unwrap();
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    let mut operands = both(&device, &[0, 3]);
    let mut received = received(&group);
    let outputs = experts(&device, &config, 1.0);
    let mut dispatched = dispatch(&mut group, &stream, &operands, &mut received)
        .unwrap()
        .into_iter();
    let sent = dispatched
        .next()
        .unwrap()
        .combine_async(&stream, &outputs[0])
        .unwrap();
    // Rank 1 dies here.
    drop(dispatched);
    wait(sent, &stream, &mut operands[0]).unwrap();
    let error = group.check().unwrap_err();
    let EpError::Deadline {
        waiting: 0,
        awaited:
            Awaited::Returned {
                rank: 1,
                expert: 2 | 3,
                ..
            },
    } = error
    else {
        panic!("{error}");
    };
    let error = group.ranks_mut()[0]
        .dispatch_async(&stream, &operands[0].batch())
        .unwrap_err();
    assert!(matches!(error, EpError::Unusable { .. }), "{error}");
    // The group is made anew, without that rank.
    drop(group);
    let mut group = EpGroup::new(&device, config).unwrap();
    group.mask_rank(1).unwrap();
    assert_eq!(group.masked_ranks(), [1]);
    let mut output = group.allocate_received().unwrap();
    for _ in 0..2 {
        let rank = &mut group.ranks_mut()[0];
        let pending = rank.dispatch_async(&stream, &operands[0].batch()).unwrap();
        let dispatched = rank.dispatch_wait(&stream, pending, &mut output).unwrap();
        let sent = dispatched.combine_async(&stream, &outputs[0]).unwrap();
        wait(sent, &stream, &mut operands[0]).unwrap();
        group.check().unwrap();
        // Expert 3 was on the rank that is gone.
        assert_eq!(operands[0].found(), [1.0]);
    }
    let error = group.ranks_mut()[1]
        .dispatch_async(&stream, &operands[1].batch())
        .unwrap_err();
    assert!(matches!(error, EpError::MaskedRank { rank: 1 }), "{error}");
    let error = group.mask_rank(2).unwrap_err();
    assert!(
        matches!(
            error,
            EpError::RankMask {
                rank: 2,
                ranks: 2,
                ..
            }
        ),
        "{error}"
    );
}

/// Everything may be dropped while it is in use, and in any order: memory is freed when the device is done with it.
#[test]
fn dropping_with_work_in_flight_is_safe() {
    let config = builder()
        .deadline(Some(Duration::from_millis(20)))
        .build()
        .unwrap();
    for order in 0..20 {
        let device = device(order);
        let stream = device.create_stream().unwrap();
        let mut group = EpGroup::new(&device, config.clone()).unwrap();
        let mut operands = both(&device, &[0, 2, 1, 3]);
        let outputs = experts(&device, &config, 1.0);
        let mut received = received(&group);
        if order % 4 == 3 {
            // A wait in flight for a rank that never comes.
            let sent = group.ranks_mut()[0]
                .dispatch_async(&stream, &operands[0].batch())
                .unwrap();
            let _ = group.ranks_mut()[0]
                .dispatch_wait(&stream, sent, &mut received[0])
                .unwrap();
        } else {
            let dispatched = dispatch(&mut group, &stream, &operands, &mut received).unwrap();
            combine(&stream, dispatched, &outputs, &mut operands).unwrap();
        }
        match order % 3 {
            0 => drop((group, operands, received, outputs)),
            1 => drop((outputs, received, operands, group)),
            _ => drop((operands, group, outputs, received)),
        }
        // A use of freed memory is a fault of the stream.
        stream.synchronize().unwrap();
    }
}
