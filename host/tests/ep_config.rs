//! What a group can be, what it cannot, and what it takes.

use std::time::Duration;
use tokenyard::ep::{EpConfig, EpConfigBuilder, EpConfigError, IdError, TokenFormat, check_ids};
use tokenyard::options::ScaleRounding;

fn valid(format: TokenFormat) -> EpConfigBuilder {
    EpConfig::builder(format)
        .hidden_size(7168)
        .top_k(8)
        .experts(256)
        .ranks(8)
        .max_tokens_per_rank(128)
}

fn refused(builder: EpConfigBuilder) -> EpConfigError {
    builder.build().unwrap_err()
}

#[test]
fn messages_have_the_specified_sizes() {
    let sizes = [
        (TokenFormat::Bf16, 14368, 12320),
        (TokenFormat::Fp8Block128, 7424, 6368),
        (TokenFormat::Nvfp4, 4064, 3488),
        (TokenFormat::Mxfp4, 3840, 3296),
        (TokenFormat::Mxfp8, 7424, 6368),
    ]
    // And the slots.
    .map(|(format, wide, narrow)| (format, wide + 8 * 4, narrow + 4 * 4));
    for (format, wide, narrow) in sizes {
        let config = valid(format).build().unwrap();
        assert_eq!(config.message_layout().bytes, wide, "{format}");
        let config = valid(format).hidden_size(6144).top_k(4).build().unwrap();
        assert_eq!(config.message_layout().bytes, narrow, "{format}");
    }
}

#[test]
fn shapes_that_others_refuse() {
    for (hidden, top_k, experts, ranks) in [
        (3584, 16, 896, 8),
        (1024, 22, 512, 16),
        (2880, 4, 128, 1),
        (7168, 32, 65536, 64),
        (7168, 8, 8, 8),
    ] {
        let builder = EpConfig::builder(TokenFormat::Mxfp4);
        let builder = builder.hidden_size(hidden).top_k(top_k).experts(experts);
        builder
            .ranks(ranks)
            .max_tokens_per_rank(4097)
            .build()
            .unwrap();
    }
}

#[test]
fn refusals_carry_their_numbers() {
    use EpConfigError as E;
    let mx = || valid(TokenFormat::Mxfp4);
    assert_eq!(
        refused(EpConfig::builder(TokenFormat::Bf16)),
        E::Zero {
            what: "hidden_size"
        }
    );
    assert_eq!(
        refused(mx().hidden_size(7176)).to_string(),
        "hidden_size is 7176; mxfp4 needs a multiple of 32"
    );
    assert_eq!(
        refused(valid(TokenFormat::Fp8Block128).hidden_size(2880)),
        E::HiddenSize {
            format: TokenFormat::Fp8Block128,
            hidden_size: 2880,
            multiple: 128
        }
    );
    assert_eq!(
        refused(mx().top_k(33)),
        E::TooLarge {
            what: "top_k",
            value: 33,
            limit: 32
        }
    );
    assert_eq!(
        refused(mx().experts(65544)),
        E::TooLarge {
            what: "experts",
            value: 65544,
            limit: 65536
        }
    );
    assert_eq!(
        refused(mx().experts(10).ranks(4)),
        E::UnevenExperts {
            experts: 10,
            ranks: 4
        }
    );
    assert_eq!(
        refused(mx().ranks_per_node(3)),
        E::UnevenNodes {
            ranks: 8,
            ranks_per_node: 3
        }
    );
    assert_eq!(
        refused(mx().skip_a2a(true).ranks_per_node(4)),
        E::SkipAcrossNodes {
            ranks: 8,
            ranks_per_node: 4
        }
    );
    assert_eq!(
        refused(mx().skip_a2a(true).allreduce_world_size(4)),
        E::AllreduceWorld { world: 4, ranks: 8 }
    );
    assert_eq!(
        refused(valid(TokenFormat::Nvfp4).scale_rounding(ScaleRounding::Even)),
        E::ScaleRounding {
            format: TokenFormat::Nvfp4,
            rounding: ScaleRounding::Even
        }
    );
    assert_eq!(
        refused(valid(TokenFormat::Nvfp4).scale_preshuffle(1024)),
        E::PreshuffleFormat {
            format: TokenFormat::Nvfp4
        }
    );
    assert_eq!(
        refused(mx().hidden_size(2880).scale_preshuffle(1024)),
        E::PreshuffleHidden { hidden_size: 2880 }
    );
    for slot_rows in [0, 992, 1025] {
        let needed = 1024;
        assert_eq!(
            refused(mx().scale_preshuffle(slot_rows)),
            E::PreshuffleRows { slot_rows, needed }
        );
    }
    assert!(matches!(
        refused(valid(TokenFormat::Bf16).hidden_size(65536)),
        E::MessageTooLarge {
            message_bytes: 131_136,
            ..
        }
    ));
    // What kernels take in 32 bits; the first of these would be 0 there, the second 1.
    for world in [1 << 32, (1 << 32) + 1] {
        assert_eq!(
            refused(mx().skip_a2a(true).allreduce_world_size(world)),
            E::TooLarge {
                what: "allreduce_world_size",
                value: world,
                limit: i32::MAX as usize
            }
        );
    }
    assert!(matches!(
        refused(mx().max_tokens_per_rank(1 << 25)),
        E::TooLarge {
            what: "received rows",
            ..
        }
    ));
}

#[test]
fn rows_that_a_rank_can_get() {
    let rows = |builder: EpConfigBuilder| builder.build().unwrap().max_received_rows();
    let base = || valid(TokenFormat::Mxfp4);
    assert_eq!(rows(base()), 128 * 64);
    assert_eq!(rows(base().experts(16)), 128 * 16);
    assert_eq!(rows(base().fused_shared_expert(true)), 128 * 65);
    assert_eq!(rows(base().skip_a2a(true)), 128 * 8);
    assert_eq!(rows(base().skip_a2a(true).experts(32)), 128 * 4);
    let padded = valid(TokenFormat::Fp8Block128)
        .fused_shared_expert(true)
        .build()
        .unwrap();
    assert_eq!(padded.output_rows(), 128 * 65 + 3 * 33);
    assert_eq!(
        padded.scale_stride(),
        (128 * 65 + 3 * 33_usize).next_multiple_of(4)
    );
}

/// Sizes beyond 32 bits, without a device that has them.
#[test]
fn plans_are_in_64_bits() {
    let config = valid(TokenFormat::Mxfp4)
        .experts(384)
        .max_tokens_per_rank(4096)
        .build()
        .unwrap();
    let plan = config.memory_plan();
    assert_eq!(plan.per_rank[0].shape, [8, 4096, 3872]);
    assert_eq!(plan.per_rank[0].bytes, 8 * 4096 * 3872);
    assert!(plan.bytes() > 8 * plan.per_rank[0].bytes);
    let wide = valid(TokenFormat::Bf16).max_tokens_per_rank(1 << 17);
    let messages = &wide.build().unwrap().memory_plan().per_rank[0];
    assert_eq!(messages.bytes, 8 * (1 << 17) * 14400);
    // Where rows share scales, each row's message can be found.
    let tiled = valid(TokenFormat::Nvfp4).build().unwrap().memory_plan();
    let numbers = tiled
        .per_rank
        .iter()
        .find(|it| it.name == "message numbers");
    assert_eq!(numbers.unwrap().shape, [32, 8, 128]);
    let preshuffled = valid(TokenFormat::Mxfp4)
        .hidden_size(6144)
        .experts(128)
        .fused_shared_expert(true)
        .max_tokens_per_rank(4096)
        .scale_preshuffle(32768)
        .build()
        .unwrap();
    assert_eq!(preshuffled.scale_bytes(), 17 * 32768 * 192);
    let scales = &preshuffled.memory_plan().received[1];
    assert_eq!((scales.name, scales.bytes), ("scales", 17 * 32768 * 192));
}

/// Each rank's buffers fit the address space, and those of all ranks do not.
#[test]
fn the_buffers_of_all_ranks_fit_the_address_space() {
    // Almost as many tokens as rows can be counted.
    let widest = |ranks| {
        EpConfig::builder(TokenFormat::Bf16)
            .hidden_size(57344)
            .top_k(1)
            .experts(65536)
            .max_tokens_per_rank((i32::MAX as usize - (1 << 20)) / ranks)
            .ranks(ranks)
    };
    let half = widest(32768).build().unwrap();
    assert!(half.memory_plan().bytes() <= isize::MAX as u64);
    let EpConfigError::TooLarge { what, value, limit } = refused(widest(65536)) else {
        panic!("accepted, or refused for something else");
    };
    assert_eq!(
        (what, limit),
        ("bytes of a rank", isize::MAX as usize / 65536)
    );
    // Messages are a little more than their payload.
    assert!(value > (i32::MAX as usize - (1 << 21)) * 57344 * 2);
}

#[test]
fn defaults() {
    let rounding = |format| valid(format).build().unwrap().scale_rounding();
    assert_eq!(rounding(TokenFormat::Mxfp4), Some(ScaleRounding::Even));
    assert_eq!(rounding(TokenFormat::Mxfp8), Some(ScaleRounding::Rceil));
    assert_eq!(rounding(TokenFormat::Fp8Block128), None);
    let config = valid(TokenFormat::Bf16).build().unwrap();
    assert_eq!(
        (config.ranks_per_node(), config.allreduce_world_size()),
        (8, 8)
    );
    assert_eq!(config.deadline(), Some(Duration::from_secs(10)));
    for format in TokenFormat::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert!(
        "mxfp6"
            .parse::<TokenFormat>()
            .unwrap_err()
            .to_string()
            .contains("mxfp4")
    );
}

#[test]
fn ids_are_checked_when_asked() {
    assert_eq!(check_ids(&[0, -1, 3, 2], 2, 4), Ok(()));
    assert_eq!(
        check_ids(&[0, -1, 3, 4], 2, 4),
        Err(IdError::NoSuchExpert {
            token: 1,
            position: 1,
            id: 4,
            experts: 4
        })
    );
    assert_eq!(
        check_ids(&[-2, 0], 2, 4),
        Err(IdError::NoSuchExpert {
            token: 0,
            position: 0,
            id: -2,
            experts: 4
        })
    );
    assert_eq!(
        check_ids(&[1, 0, 1], 3, 4),
        Err(IdError::Duplicate {
            token: 0,
            id: 1,
            first: 0,
            position: 2
        })
    );
}
