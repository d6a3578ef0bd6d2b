//! Dispatch on the emulator: worked examples to the byte, every format, every mode, many schedules.

mod ep_support;

use ep_support::{Input, emulator, random_input, round};
use fastrand::Rng;
use half::bf16;
use kernels_gpu::ep::slot_offset;
use tokenyard::EmulatorOptions;
use tokenyard::device::{Schedule, Target};
use tokenyard::ep::{
    Batch, EpConfig, EpConfigBuilder, EpGroup, LaunchShape, SlotOrder, TokenFormat,
};

fn options(seed: u64) -> EmulatorOptions {
    let mut options = EmulatorOptions::default();
    options.seed = seed;
    options
}

fn small(format: TokenFormat) -> EpConfigBuilder {
    EpConfig::builder(format)
        .hidden_size(256)
        .top_k(2)
        .experts(4)
        .ranks(2)
        .max_tokens_per_rank(5)
}

/// Ids of specification example 4.4: three tokens on rank 0, two on rank 1.
fn example(config: &EpConfig) -> Vec<Input> {
    let rng = &mut Rng::with_seed(44);
    let ids: [&[i32]; 2] = [&[0, 2, 1, 3, 2, 0], &[2, 3, 0, 1]];
    ids.map(|ids| Input {
        ids: ids.to_vec(),
        ..random_input(rng, config, ids.len() / 2, 0.0)
    })
    .to_vec()
}

/// What rank 0 gets in the example.
struct Expected {
    format: TokenFormat,
    shared: bool,
    row_offsets: &'static [u32],
    pairs: [[u32; 2]; 4],
}

#[test]
fn the_worked_example() {
    let cases = [
        Expected {
            format: TokenFormat::Mxfp4,
            shared: false,
            row_offsets: &[0, 3, 5],
            pairs: [[1026, 2], [1027, 1], [1028, 1], [1029, 1]],
        },
        Expected {
            format: TokenFormat::Mxfp4,
            shared: true,
            row_offsets: &[0, 3, 6, 8],
            pairs: [[1029, 2], [1030, 1], [1031, 1], [1032, 1]],
        },
        Expected {
            format: TokenFormat::Fp8Block128,
            shared: false,
            row_offsets: &[0, 4, 8],
            pairs: [[1026, 2], [1027, 1], [1029, 1], [1030, 1]],
        },
        Expected {
            format: TokenFormat::Fp8Block128,
            shared: true,
            row_offsets: &[0, 4, 8, 12],
            pairs: [[1030, 2], [1031, 1], [1033, 1], [1034, 1]],
        },
    ];
    for expected in cases {
        let config = small(expected.format);
        let config = config.fused_shared_expert(expected.shared).build().unwrap();
        let device = emulator(options(1));
        let stream = device.create_stream().unwrap();
        let inputs = example(&config);
        let mut group = EpGroup::new(&device, config).unwrap();
        let received = round(&mut group, &stream, &inputs, expected.shared);
        let row_offsets = received[0].row_offsets().download().unwrap();
        assert_eq!(row_offsets, expected.row_offsets);
        assert_eq!(received[0].pairs().download().unwrap(), expected.pairs);
        let counters = group.ranks()[0].counters().unwrap();
        assert_eq!(counters.row_ends, [2, 3, 4, 5]);
    }
}

/// A message to the byte: what is between its parts, too.
#[test]
fn a_message_is_laid_out_as_specified() {
    let config = EpConfig::builder(TokenFormat::Mxfp4)
        .hidden_size(2880)
        .top_k(3)
        .experts(6)
        .max_tokens_per_rank(2)
        .build()
        .unwrap();
    let layout = config.message_layout();
    assert_eq!((layout.scales_offset, layout.scale_bytes), (1440, 90));
    assert_eq!(
        (
            layout.source_offset,
            layout.topk_offset,
            layout.slots_offset
        ),
        (1536, 1552, 1568)
    );
    let device = emulator(options(5));
    let stream = device.create_stream().unwrap();
    let mut input = random_input(&mut Rng::with_seed(3), &config, 2, 0.0);
    input.ids = vec![-1, -1, -1, 4, -1, 2];
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    round(&mut group, &stream, std::slice::from_ref(&input), false);
    let messages = group.ranks()[0].receive_buffer().unwrap();
    assert_eq!(layout.bytes, 1584);
    let (payload, scales) = ep_support::encode(&config, &input.tokens[2880..]);
    let mut expected = [payload, scales, vec![0; 6], vec![1, 0, 0, 0], vec![0; 12]].concat();
    expected.extend([4, 0, 0, 0, 2, 0]);
    expected.extend([0; 10]);
    // The first row of expert 4, none, the first row of expert 2, and padding.
    for slot in [0, u32::MAX, 0, u32::MAX] {
        expected.extend(slot.to_le_bytes());
    }
    // One message, however many experts.
    assert_eq!(messages[..layout.bytes as usize], expected);
}

#[test]
fn every_format_split_and_fused() {
    for format in TokenFormat::ALL {
        for ranks in [1, 2, 3, 4, 8] {
            for fused in [false, true] {
                let seed = (format as u64) << 8 | (ranks as u64) << 1 | u64::from(fused);
                let device = emulator(options(seed));
                let stream = device.create_stream().unwrap();
                let config = EpConfig::builder(format)
                    .hidden_size(384)
                    .top_k(3)
                    .experts(24)
                    .ranks(ranks)
                    .max_tokens_per_rank(9)
                    .build()
                    .unwrap();
                let mut group = EpGroup::new(&device, config.clone()).unwrap();
                let rng = &mut Rng::with_seed(seed);
                for _ in 0..2 {
                    let inputs: Vec<_> = (0..ranks)
                        .map(|rank| {
                            let tokens = if rank == 1 { 0 } else { rng.usize(..=9) };
                            random_input(rng, &config, tokens, 0.2)
                        })
                        .collect();
                    round(&mut group, &stream, &inputs, fused);
                }
            }
        }
    }
}

#[test]
fn modes() {
    type Change = fn(EpConfigBuilder) -> EpConfigBuilder;
    let changes: [(&str, bool, Change); 8] = [
        ("shared", true, |c| c.fused_shared_expert(true)),
        ("skip", false, |c| c.skip_a2a(true)),
        ("skip, fused", true, |c| c.skip_a2a(true)),
        ("skip, shared", true, |c| {
            c.skip_a2a(true)
                .fused_shared_expert(true)
                .allreduce_world_size(6)
        }),
        ("deterministic", false, |c| {
            c.slot_order(SlotOrder::Deterministic)
        }),
        ("deterministic, fused, shared", true, |c| {
            c.slot_order(SlotOrder::Deterministic)
                .fused_shared_expert(true)
        }),
        ("nodes", false, |c| c.ranks_per_node(2)),
        ("nodes, fused, shared", true, |c| {
            c.ranks_per_node(1).fused_shared_expert(true)
        }),
    ];
    for format in TokenFormat::ALL {
        for (name, fused, change) in changes {
            for preshuffle in [false, true] {
                if preshuffle && !matches!(format, TokenFormat::Mxfp4 | TokenFormat::Mxfp8) {
                    continue;
                }
                let seed = Rng::with_seed(name.len() as u64 + 100 * format as u64).u64(..);
                let device = emulator(options(seed));
                let stream = device.create_stream().unwrap();
                let mut builder = EpConfig::builder(format)
                    .hidden_size(512)
                    .top_k(5)
                    .experts(12)
                    .ranks(4)
                    .max_tokens_per_rank(10);
                if preshuffle {
                    builder = builder.scale_preshuffle(64);
                }
                let config = change(builder).build().unwrap();
                let mut group = EpGroup::new(&device, config.clone()).unwrap();
                let rng = &mut Rng::with_seed(seed);
                for _ in 0..2 {
                    let same = random_input(rng, &config, 7, 0.1);
                    let inputs: Vec<_> = (0..4)
                        .map(|_| match config.skip_a2a() {
                            true => same.clone(),
                            false => {
                                let tokens = rng.usize(..=10);
                                random_input(rng, &config, tokens, 0.1)
                            }
                        })
                        .collect();
                    round(&mut group, &stream, &inputs, fused);
                }
            }
        }
    }
}

/// Rows of the same group on both sides of a tile, and what the tile has after the last of them.
#[test]
fn scale_tiles_that_groups_fill_and_begin() {
    for (fused, tokens) in [(false, 128), (true, 131)] {
        let config = EpConfig::builder(TokenFormat::Nvfp4)
            .hidden_size(96)
            .top_k(2)
            .experts(3)
            .max_tokens_per_rank(131)
            .fused_shared_expert(fused)
            .build()
            .unwrap();
        let device = emulator(options(9));
        let stream = device.create_stream().unwrap();
        let mut input = random_input(&mut Rng::with_seed(1), &config, tokens, 0.0);
        for (token, ids) in input.ids.chunks_mut(2).enumerate() {
            ids.copy_from_slice(&[2, if token < 100 { 0 } else { -1 }]);
        }
        let mut group = EpGroup::new(&device, config).unwrap();
        round(&mut group, &stream, &[input], fused);
    }
}

/// The positions that specification section 6 lists.
#[test]
fn slots_of_scales() {
    let offsets = [
        ((0, 0, 0), 0),
        ((0, 16, 0), 1),
        ((0, 0, 4), 2),
        ((0, 16, 4), 3),
        ((0, 1, 0), 4),
        ((0, 0, 1), 64),
        ((0, 0, 8), 256),
        ((0, 32, 0), 7168),
        ((0, 37, 13), 7510),
        ((1, 0, 0), 28672),
        ((2, 47, 223), 71678),
    ];
    for ((group, row, block), offset) in offsets {
        assert_eq!(slot_offset(group, row, block, 224, 128), offset);
    }
    assert_eq!(slot_offset(1, 0, 5, 8, 32), 322);
    let mut seen = vec![false; 64 * 16];
    for (row, block) in (0..64).flat_map(|row| (0..16).map(move |block| (row, block))) {
        assert!(!std::mem::replace(
            &mut seen[slot_offset(0, row, block, 16, 64)],
            true
        ));
    }
}

/// Blocks of zeros, of numbers that no scale reaches, and of what is no number.
#[test]
fn special_values() {
    let specials = [
        0.0,
        -0.0,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1e-40,
        -1e-38,
        3e38,
        448.0,
        6.0,
        1.75,
        7.0,
    ];
    for format in TokenFormat::ALL {
        let config = EpConfig::builder(format)
            .hidden_size(1024)
            .top_k(1)
            .experts(1)
            .max_tokens_per_rank(4)
            .build()
            .unwrap();
        let rng = &mut Rng::with_seed(31);
        let mut input = random_input(rng, &config, 4, 0.0);
        // Whole blocks of one value, then blocks with one among others.
        for (index, value) in input.tokens.iter_mut().enumerate() {
            let special = bf16::from_f32(specials[index / 128 % specials.len()]);
            if index < 2 * 1024 || rng.u32(..40) == 0 {
                *value = special;
            }
        }
        let device = emulator(options(13));
        let stream = device.create_stream().unwrap();
        let mut group = EpGroup::new(&device, config).unwrap();
        round(&mut group, &stream, &[input], false);
    }
}

#[test]
fn odd_ids() {
    // Nobody at all, the same expert over and over, and numbers that are no experts.
    let ids: [[i32; 4]; 6] = [
        [-1, -1, -1, -1],
        [3, 3, 3, 3],
        [0, 0, 7, 7],
        [8, i32::MAX, i32::MIN, -2],
        [5, -1, 5, 1],
        [-1, 6, 6, -1],
    ];
    for order in [SlotOrder::Arrival, SlotOrder::Deterministic] {
        let config = EpConfig::builder(TokenFormat::Mxfp8)
            .hidden_size(64)
            .top_k(4)
            .experts(8)
            .ranks(2)
            .max_tokens_per_rank(6)
            .slot_order(order)
            .build()
            .unwrap();
        let device = emulator(options(2));
        let stream = device.create_stream().unwrap();
        let rng = &mut Rng::with_seed(7);
        let mut inputs = vec![random_input(rng, &config, 6, 0.0); 2];
        inputs[0].ids = ids.concat();
        inputs[1].ids = ids.iter().rev().copied().collect::<Vec<_>>().concat();
        let mut group = EpGroup::new(&device, config).unwrap();
        round(&mut group, &stream, &inputs, false);
        round(&mut group, &stream, &inputs, true);
    }
}

/// The most that can be: 65536 experts, of which the last has the number that otherwise means nobody.
#[test]
fn all_ids_that_a_message_can_hold() {
    let config = EpConfig::builder(TokenFormat::Bf16)
        .hidden_size(8)
        .top_k(4)
        .experts(1 << 16)
        .ranks(2)
        .max_tokens_per_rank(2)
        .build()
        .unwrap();
    let device = emulator(options(2));
    let stream = device.create_stream().unwrap();
    let mut inputs = vec![random_input(&mut Rng::with_seed(7), &config, 2, 0.0); 2];
    inputs[0].ids = vec![-1, 65535, -1, 65534, 0, 32768, 32767, -1];
    inputs[1].ids = vec![-1, -1, 65535, 5, 65533, 65534, -1, 65535];
    let launch = LaunchShape {
        blocks_per_rank: 2,
        threads: 256,
    };
    let mut group = EpGroup::with_launch(&device, config, launch).unwrap();
    round(&mut group, &stream, &inputs, true);
}

/// Shapes beyond what other implementations take.
#[test]
fn wide_shapes() {
    let shapes = [
        // (format, hidden, top_k, experts, ranks, tokens)
        (TokenFormat::Mxfp4, 3584, 16, 896, 4, 3),
        (TokenFormat::Fp8Block128, 1024, 22, 1536, 3, 2),
        (TokenFormat::Nvfp4, 2880, 8, 8, 1, 4),
        (TokenFormat::Mxfp4, 7168, 32, 32, 8, 2),
        (TokenFormat::Bf16, 7168, 1, 4, 4, 4),
        (TokenFormat::Bf16, 2888, 1, 2, 2, 3),
    ];
    for (format, hidden, top_k, experts, ranks, tokens) in shapes {
        let config = EpConfig::builder(format)
            .hidden_size(hidden)
            .top_k(top_k)
            .experts(experts)
            .ranks(ranks)
            .max_tokens_per_rank(tokens)
            .build()
            .unwrap();
        let device = emulator(options(17));
        let stream = device.create_stream().unwrap();
        let rng = &mut Rng::with_seed(23);
        let inputs: Vec<_> = (0..ranks)
            .map(|_| random_input(rng, &config, tokens, 0.0))
            .collect();
        let mut group = EpGroup::new(&device, config).unwrap();
        round(&mut group, &stream, &inputs, ranks % 2 == 0);
    }
}

/// Schedules that hold back warps, blocks and whole grids, on targets with and without a copy engine.
#[test]
fn schedules() {
    for seed in 0..60 {
        let mut options = options(seed);
        options.schedule = match seed % 3 {
            0 => Schedule::Random,
            1 => Schedule::RoundRobin,
            _ => Schedule::Stall {
                stretch: 200 << (seed % 5),
            },
        };
        if seed % 4 == 0 {
            options.target = Target {
                capability: 80,
                arch_specific: false,
            };
        }
        let device = emulator(options);
        let stream = device.create_stream().unwrap();
        let ranks = [2, 3, 4][seed as usize % 3];
        let config = EpConfig::builder(TokenFormat::ALL[seed as usize % 5])
            .hidden_size(128)
            .top_k(3)
            .experts(2 * ranks)
            .ranks(ranks)
            .max_tokens_per_rank(6)
            .fused_shared_expert(seed % 2 == 0)
            .build()
            .unwrap();
        let launch = LaunchShape {
            blocks_per_rank: 1 + seed as u32 % 4,
            threads: 32 << (seed % 3),
        };
        let mut group = EpGroup::with_launch(&device, config.clone(), launch).unwrap();
        let rng = &mut Rng::with_seed(seed);
        for _ in 0..3 {
            let inputs: Vec<_> = (0..ranks)
                .map(|_| {
                    let tokens = rng.usize(..=6);
                    random_input(rng, &config, tokens, 0.1)
                })
                .collect();
            round(&mut group, &stream, &inputs, seed % 2 == 0);
        }
    }
}

/// Ranks on streams of their own: the receivers are there before the senders.
#[test]
fn receivers_before_senders() {
    let config = small(TokenFormat::Mxfp4).build().unwrap();
    for seed in 0..20 {
        let mut options = options(seed);
        options.schedule = Schedule::Stall { stretch: 500 };
        let device = emulator(options);
        let streams = [
            device.create_stream().unwrap(),
            device.create_stream().unwrap(),
        ];
        let mut group = EpGroup::new(&device, config.clone()).unwrap();
        let inputs = example(&config);
        let uploaded: Vec<_> = inputs
            .iter()
            .map(|input| ep_support::DeviceInput::upload(&device, input))
            .collect();
        let mut received: Vec<_> = (0..2).map(|_| group.allocate_received().unwrap()).collect();
        received
            .iter_mut()
            .for_each(|received| received.fill(ep_support::PATTERN).unwrap());
        for (rank, received) in received.iter_mut().enumerate() {
            let (stream, batch) = (&streams[rank], uploaded[rank].batch(&config));
            let rank = &mut group.ranks_mut()[rank];
            let pending = rank.dispatch_async(stream, &batch).unwrap();
            let _ = rank.dispatch_wait(stream, pending, received).unwrap();
        }
        group.check().unwrap();
        for (rank, received) in received.iter().enumerate() {
            ep_support::check_received(&config, &inputs, rank, received);
        }
        ep_support::check_idle(&group);
    }
}

/// The number of tokens from device memory.
#[test]
fn a_count_on_the_device() {
    let config = small(TokenFormat::Mxfp4)
        .slot_order(SlotOrder::Deterministic)
        .build()
        .unwrap();
    let device = emulator(options(3));
    let stream = device.create_stream().unwrap();
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    let full = random_input(&mut Rng::with_seed(3), &config, 5, 0.0);
    let tokens = device.upload(&full.tokens).unwrap();
    let ids = device.upload(&full.ids).unwrap();
    for count in [3_u32, 0, 5, 77] {
        let word = device.upload(&[count]).unwrap();
        let batch = Batch::new(&tokens, &ids).count(&word);
        let mut received = [
            group.allocate_received().unwrap(),
            group.allocate_received().unwrap(),
        ];
        received
            .iter_mut()
            .for_each(|received| received.fill(ep_support::PATTERN).unwrap());
        let _ = group
            .dispatch(&stream, &[batch, batch], &mut received)
            .unwrap();
        group.check().unwrap();
        let tokens = count.min(5) as usize;
        let input = Input {
            tokens: full.tokens[..tokens * 256].to_vec(),
            ids: full.ids[..tokens * 2].to_vec(),
        };
        for (rank, received) in received.iter().enumerate() {
            ep_support::check_received(&config, &[input.clone(), input.clone()], rank, received);
        }
    }
}

#[test]
fn many_rounds_without_a_reset() {
    let config = small(TokenFormat::Mxfp4).build().unwrap();
    let device = emulator(options(8));
    let stream = device.create_stream().unwrap();
    let launch = LaunchShape {
        blocks_per_rank: 2,
        threads: 32,
    };
    let mut group = EpGroup::with_launch(&device, config.clone(), launch).unwrap();
    let rng = &mut Rng::with_seed(8);
    for number in 0..200 {
        let inputs: Vec<_> = (0..2)
            .map(|_| {
                let tokens = rng.usize(..=5);
                random_input(rng, &config, tokens, 0.1)
            })
            .collect();
        round(&mut group, &stream, &inputs, number % 2 == 0);
    }
}
