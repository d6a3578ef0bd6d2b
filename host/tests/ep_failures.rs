//! What a group refuses, and how it fails.

mod ep_support;

use half::bf16;
use std::time::Duration;
use tokenyard::ep::{
    Awaited, Batch, EpConfig, EpConfigBuilder, EpError, EpGroup, LaunchShape, TokenFormat,
};
use tokenyard::{Device, DeviceBuffer};

fn small(format: TokenFormat) -> EpConfigBuilder {
    EpConfig::builder(format)
        .hidden_size(256)
        .top_k(2)
        .experts(4)
        .ranks(2)
        .max_tokens_per_rank(5)
}

fn fixed_batch(device: &Device, tokens: usize) -> (DeviceBuffer<bf16>, DeviceBuffer<i32>) {
    let ids: Vec<i32> = (0..tokens as i32 * 2).map(|id| id % 4).collect();
    (
        device.upload(&vec![bf16::ONE; tokens * 256]).unwrap(),
        device.upload(&ids).unwrap(),
    )
}

#[test]
fn refusals_leave_the_group_usable() {
    let config = small(TokenFormat::Bf16).build().unwrap();
    let device = Device::emulator(4);
    let stream = device.create_stream().unwrap();
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    let mut other = EpGroup::new(&device, config.clone()).unwrap();
    let (tokens, ids) = fixed_batch(&device, 6);
    let error = group.ranks_mut()[1]
        .dispatch_async(&stream, &Batch::new(&tokens, &ids))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 1 has 6 tokens; the group was made for 5"
    );

    let (tokens, ids) = fixed_batch(&device, 2);
    let (_, short) = fixed_batch(&device, 1);
    let batch = Batch::new(&tokens, &ids);
    let error = group.ranks_mut()[0]
        .dispatch_async(&stream, &Batch::new(&tokens, &short))
        .unwrap_err();
    assert!(
        matches!(
            error,
            EpError::InputLength {
                found: 512,
                expected: 256,
                ..
            }
        ),
        "{error}"
    );

    // A handle of the other group; a second round before the first is received.
    let mut received = [
        group.allocate_received().unwrap(),
        group.allocate_received().unwrap(),
    ];
    let foreign = other.ranks_mut()[0]
        .dispatch_async(&stream, &batch)
        .unwrap();
    let error = group.ranks_mut()[0]
        .dispatch_wait(&stream, foreign, &mut received[0])
        .unwrap_err();
    assert!(
        matches!(
            error,
            EpError::ForeignHandle {
                same_group: false,
                ..
            }
        ),
        "{error}"
    );
    let pending = group.ranks_mut()[0]
        .dispatch_async(&stream, &batch)
        .unwrap();
    let error = group.ranks_mut()[0]
        .dispatch_async(&stream, &batch)
        .unwrap_err();
    assert!(
        matches!(
            error,
            EpError::RoundOrder {
                rank: 0,
                round: 1,
                other: 0,
                behind: 0
            }
        ),
        "{error}"
    );

    let second = group.ranks_mut()[1]
        .dispatch_async(&stream, &batch)
        .unwrap();
    let _ = group.ranks_mut()[0]
        .dispatch_wait(&stream, pending, &mut received[0])
        .unwrap();
    let _ = group.ranks_mut()[1]
        .dispatch_wait(&stream, second, &mut received[1])
        .unwrap();
    group.check().unwrap();
    let _ = group
        .dispatch(&stream, &[batch, batch], &mut received)
        .unwrap();
    group.check().unwrap();

    let shared = small(TokenFormat::Bf16)
        .fused_shared_expert(true)
        .build()
        .unwrap();
    let mut shared = EpGroup::new(&device, shared).unwrap();
    let error = shared.ranks_mut()[0]
        .dispatch_async(&stream, &batch)
        .unwrap_err();
    assert!(matches!(error, EpError::SharedExpertNeedsFused), "{error}");
}

#[test]
fn a_rank_that_never_sends_is_named() {
    let config = small(TokenFormat::Mxfp4)
        .ranks(4)
        .deadline(Some(Duration::from_millis(50)))
        .build()
        .unwrap();
    let device = Device::emulator(6);
    let stream = device.create_stream().unwrap();
    let mut group = EpGroup::new(&device, config).unwrap();
    let (tokens, ids) = fixed_batch(&device, 2);
    let batch = Batch::new(&tokens, &ids);
    let mut received = group.allocate_received().unwrap();
    received.fill(ep_support::PATTERN).unwrap();
    let mut pending = Vec::new();
    for rank in [0, 1, 3] {
        pending.push(
            group.ranks_mut()[rank]
                .dispatch_async(&stream, &batch)
                .unwrap(),
        );
    }
    let first = pending.remove(0);
    let _ = group.ranks_mut()[0]
        .dispatch_wait(&stream, first, &mut received)
        .unwrap();
    let error = group.check().unwrap_err();
    let EpError::Deadline {
        waiting: 0,
        awaited,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        awaited,
        Awaited::Count {
            rank: 2,
            expert: 0,
            word: 2
        }
    );
    let error = group.check().unwrap_err();
    assert!(matches!(error, EpError::Unusable { .. }), "{error}");
    // Nothing was laid out.
    assert!(
        received
            .tokens()
            .download()
            .unwrap()
            .iter()
            .all(|&byte| byte == ep_support::PATTERN)
    );
}

#[test]
fn more_blocks_than_are_resident_are_refused() {
    let device = Device::emulator(5);
    let stream = device.create_stream().unwrap();
    let launch = LaunchShape {
        blocks_per_rank: 1000,
        threads: 256,
    };
    let config = small(TokenFormat::Bf16).build().unwrap();
    let mut group = EpGroup::with_launch(&device, config.clone(), launch).unwrap();
    let (tokens, ids) = fixed_batch(&device, 1);
    let batch = Batch::new(&tokens, &ids);
    let mut received = [
        group.allocate_received().unwrap(),
        group.allocate_received().unwrap(),
    ];
    let error = group
        .dispatch(&stream, &[batch, batch], &mut received)
        .unwrap_err();
    assert!(
        matches!(
            error,
            EpError::NotResident {
                ranks: 2,
                blocks_per_rank: 1000,
                resident: 96
            }
        ),
        "{error}"
    );
    for blocks_per_rank in [0, 65536, u32::MAX] {
        let launch = LaunchShape {
            blocks_per_rank,
            threads: 32,
        };
        let error = EpGroup::with_launch(&device, config.clone(), launch).unwrap_err();
        let EpError::LaunchShape {
            blocks_per_rank: found,
            block_limit: 65535,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(found, blocks_per_rank);
    }
    for threads in [0, 48, 288] {
        let launch = LaunchShape {
            blocks_per_rank: 1,
            threads,
        };
        let error = EpGroup::with_launch(&device, config.clone(), launch).unwrap_err();
        assert!(matches!(error, EpError::LaunchShape { .. }), "{error}");
    }
}
