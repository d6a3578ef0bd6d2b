//! Expert-parallel dispatch: which rows a rank receives and where their scales lie, from the worked
//! examples of the definition; and that the comparison sees what it must see.

use tokenyard::ep::TokenFormat;
use tokenyard::reference::ReferenceError;
use tokenyard::reference::ep::{
    ExpectedRows, Order, QuantizedTokens, RankTokens, ReceivedBytes, RowMismatch, ScaleLayout,
    Setup,
};

/// R = 2, E = 4, K = 2; three tokens on rank 0 and two on rank 1.
const IDS: [&[i32]; 2] = [&[0, 2, 1, 3, 2, 0], &[2, 3, 0, 1]];

fn example(format: TokenFormat, hidden: usize) -> Setup {
    Setup {
        experts: 4,
        ranks: 2,
        top_k: 2,
        ..Setup::new(format, hidden, 4)
    }
}

/// Moderate values, no two tokens alike.
fn tokens(count: usize, hidden: usize, seed: u64) -> Vec<u16> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count * hidden)
        .map(|_| random.u16(0x3E00..0x4100) | u16::from(random.bool()) << 15)
        .collect()
}

fn expected(setup: &Setup, ids: &[&[i32]], me: usize) -> ExpectedRows {
    let values: Vec<_> = ids
        .iter()
        .map(|ids| vec![0; ids.len() / setup.top_k * setup.hidden_size])
        .collect();
    let ranks: Vec<_> = ids
        .iter()
        .zip(&values)
        .map(|(topk_ids, tokens)| RankTokens { tokens, topk_ids })
        .collect();
    ExpectedRows::new(setup, &ranks, me).unwrap()
}

#[test]
fn the_worked_example() {
    let rows = expected(&example(TokenFormat::Mxfp4, 32), &IDS, 0);
    assert_eq!(rows.row_offsets, [0, 3, 5]);
    assert_eq!(rows.expert_ids, [0, 1]);
    assert_eq!(rows.cumulative, [2, 3, 1, 2]);
    assert_eq!(rows.handles, [(1026, 2), (1027, 1), (1028, 1), (1029, 1)]);
    let pairs: Vec<_> = rows
        .cells
        .iter()
        .map(|cell| cell.pairs.as_slice())
        .collect();
    let cells: [&[(usize, usize)]; 4] = [&[(0, 0), (2, 1)], &[(1, 0)], &[(1, 0)], &[(1, 1)]];
    assert_eq!(pairs, cells);
    let spans: Vec<_> = rows.cells.iter().map(|cell| cell.rows.clone()).collect();
    assert_eq!(spans, [0..2, 2..3, 3..4, 4..5]);
    assert_eq!(rows.rows_per_source(), [3, 2]);
    // Rank 1, by hand: expert 2 gets (0,1) and (2,0) of rank 0 and (0,0) of rank 1; expert 3 the rest.
    let rows = expected(&example(TokenFormat::Mxfp4, 32), &IDS, 1);
    assert_eq!(rows.row_offsets, [0, 3, 5]);
    assert_eq!(rows.cells[0].pairs, [(0, 1), (2, 0)]);
    assert_eq!(rows.cells[3].pairs, [(0, 1)]);
}

#[test]
fn the_worked_example_with_a_shared_expert() {
    let setup = Setup {
        fused_shared_expert: true,
        ..example(TokenFormat::Mxfp4, 32)
    };
    let rows = expected(&setup, &IDS, 0);
    assert_eq!(rows.row_offsets, [0, 3, 6, 8]);
    assert_eq!(rows.expert_ids, [0, 1, 2]);
    assert_eq!(rows.cumulative, [2, 3, 1, 2]);
    assert_eq!(rows.handles, [(1029, 2), (1030, 1), (1031, 1), (1032, 1)]);
    assert_eq!(rows.shared_tokens, 0..3);
}

#[test]
fn the_worked_example_with_padding() {
    let setup = example(TokenFormat::Fp8Block128, 128);
    let rows = expected(&setup, &IDS, 0);
    assert_eq!(rows.row_offsets, [0, 4, 8]);
    assert_eq!(rows.handles, [(1026, 2), (1027, 1), (1029, 1), (1030, 1)]);
    assert_eq!(rows.group_rows, [3, 2]);
    let setup = Setup {
        fused_shared_expert: true,
        ..setup
    };
    let rows = expected(&setup, &IDS, 0);
    assert_eq!(rows.row_offsets, [0, 4, 8, 12]);
    assert_eq!(rows.handles, [(1030, 2), (1031, 1), (1033, 1), (1034, 1)]);
    assert_eq!(rows.cells[0].rows, 4..6);
}

#[test]
fn scale_tiles_of_the_worked_example() {
    // Row offsets (0, 100, 300, 400): one token in experts 0, 1 and 2 as often as that.
    let ids: Vec<i32> = [(0, 100), (1, 200), (2, 100)]
        .into_iter()
        .flat_map(|(id, count)| std::iter::repeat_n(id, count))
        .collect();
    let setup = Setup {
        experts: 3,
        ..Setup::new(TokenFormat::Nvfp4, 32, 400)
    };
    let rows = expected(&setup, &[&ids], 0);
    assert_eq!(rows.row_offsets, [0, 100, 300, 400]);
    assert_eq!(rows.scales_offsets, [0, 1, 1]);
}

#[test]
fn slot_layout_offsets() {
    let layout = |hidden: usize, rows: usize| {
        let setup = Setup {
            experts: 3,
            scale_preshuffle: Some(rows),
            ..Setup::new(TokenFormat::Mxfp4, hidden, 8)
        };
        move |z, r, k| ScaleLayout::of(&setup).offset(&setup, z, 0, 0, r, k)
    };
    let offset = layout(7168, 128);
    for ((z, r, k), place) in [
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
    ] {
        assert_eq!(offset(z, r, k), place, "({z}, {r}, {k})");
    }
    assert_eq!(layout(256, 32)(1, 0, 5), 322);
    // A slot is a permutation of its bytes.
    let offset = layout(512, 64);
    let mut seen = vec![false; 64 * 16];
    for r in 0..64 {
        for k in 0..16 {
            assert!(!std::mem::replace(&mut seen[offset(0, r, k)], true));
        }
    }
}

#[test]
fn skipped_ids_and_repeated_ones() {
    let setup = Setup {
        experts: 4,
        ranks: 2,
        top_k: 4,
        ..Setup::new(TokenFormat::Bf16, 8, 8)
    };
    let ids: &[i32] = &[
        -1,
        1,
        -1,
        1,
        4,
        i32::MAX,
        i32::MIN,
        3,
        0,
        0,
        0,
        0,
        -1,
        -1,
        -1,
        -1,
    ];
    let rows = expected(&setup, &[ids, &[]], 0);
    assert_eq!(
        rows.cells[0].pairs,
        [(2, 0)],
        "of four equal ids the first counts"
    );
    assert_eq!(rows.cells[2].pairs, [(0, 1)]);
    assert_eq!(rows.row_offsets, [0, 1, 2]);
    let rows = expected(&setup, &[ids, &[]], 1);
    assert_eq!(
        rows.row_offsets,
        [0, 0, 1],
        "ids past the last expert go nowhere"
    );
    assert_eq!(rows.handles, [(1024, 0), (1024, 0), (1025, 1), (1025, 0)]);
}

#[test]
fn shared_slices_of_replicated_tokens() {
    let slices = |tokens: usize, ranks: usize| -> Vec<(usize, usize)> {
        let setup = Setup {
            ranks,
            skip_a2a: true,
            fused_shared_expert: true,
            ..Setup::new(TokenFormat::Bf16, 8, 16)
        };
        let slice = |me| setup.shared_tokens(me, tokens);
        (0..ranks)
            .map(slice)
            .map(|it| (it.start, it.len()))
            .collect()
    };
    assert_eq!(slices(10, 4), [(0, 3), (3, 3), (6, 2), (8, 2)]);
    let lengths: Vec<_> = slices(3, 8).iter().map(|slice| slice.1).collect();
    assert_eq!(lengths, [1, 1, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn replicated_tokens_stay_where_their_expert_is() {
    // Two ranks of two experts, the same three tokens on both.
    let setup = Setup {
        experts: 4,
        ranks: 2,
        top_k: 2,
        skip_a2a: true,
        fused_shared_expert: true,
        ..Setup::new(TokenFormat::Bf16, 8, 3)
    };
    let ids: &[i32] = &[0, 2, 1, 3, 2, 0];
    let rows = expected(&setup, &[ids, ids], 1);
    assert_eq!(rows.shared_tokens, 2..3);
    assert_eq!(rows.cells[0].pairs, [(0, 1), (2, 0)]);
    assert_eq!(rows.cells[1].pairs, [(1, 1)]);
    assert_eq!(rows.row_offsets, [0, 1, 3, 4]);
    assert_eq!(setup.max_received_rows(), 3 * 2 + 3);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let setup = example(TokenFormat::Bf16, 8);
    let refused = |tokens: &[u16], topk_ids: &[i32], ranks: usize| {
        let rank = RankTokens { tokens, topk_ids };
        ExpectedRows::new(&setup, &vec![rank; ranks], 0).unwrap_err()
    };
    let length = |what, expected, given| ReferenceError::Length {
        what,
        expected,
        given,
    };
    assert_eq!(refused(&[0; 9], &[0; 2], 2), length("tokens", 8, 9));
    assert_eq!(refused(&[0; 8], &[0; 3], 2), length("topk_ids", 2, 3));
    assert_eq!(refused(&[0; 8], &[0; 2], 3), length("ranks", 2, 3));
    assert_eq!(
        refused(&[0; 40], &[0; 10], 2),
        length("tokens of a rank", 4, 5)
    );
}

/// A dispatch of the worked example: expectation, quantized tokens, and memory before and after.
fn dispatched(
    setup: &Setup,
) -> (
    ExpectedRows,
    Vec<QuantizedTokens>,
    ReceivedBytes,
    ReceivedBytes,
) {
    let values = [
        tokens(3, setup.hidden_size, 1),
        tokens(2, setup.hidden_size, 2),
    ];
    let ranks: Vec<_> = (0..2)
        .map(|rank| RankTokens {
            tokens: &values[rank],
            topk_ids: IDS[rank],
        })
        .collect();
    let quantized = ranks
        .iter()
        .map(|rank| QuantizedTokens::new(setup, rank).unwrap())
        .collect::<Vec<_>>();
    let rows = ExpectedRows::new(setup, &ranks, 0).unwrap();
    let received = setup.max_received_rows();
    let layout = ScaleLayout::of(setup);
    let payload = quantized[0].payload(0).len();
    let pattern = |bytes: usize| (0..bytes).map(|i| (i * 7 + 13) as u8).collect::<Vec<_>>();
    let tiled = if layout == ScaleLayout::Tiles {
        setup.groups()
    } else {
        0
    };
    let before = ReceivedBytes {
        tokens: pattern(received * payload),
        scales: pattern(layout.bytes(setup)),
        row_offsets: vec![u32::MAX; setup.groups() + 1],
        expert_ids: vec![-7; setup.groups()],
        src_info: vec![[-7, -7]; received],
        scales_offsets: vec![u32::MAX; tiled],
    };
    let after = rows.in_token_order(&quantized, &before);
    (rows, quantized, before, after)
}

fn setups() -> Vec<Setup> {
    let mut setups = Vec::new();
    for (format, hidden) in [
        (TokenFormat::Bf16, 8),
        (TokenFormat::Fp8Block128, 256),
        (TokenFormat::Nvfp4, 96),
        (TokenFormat::Mxfp4, 64),
        (TokenFormat::Mxfp8, 64),
    ] {
        setups.push(example(format, hidden));
        setups.push(Setup {
            fused_shared_expert: true,
            ..example(format, hidden)
        });
    }
    setups.push(Setup {
        scale_preshuffle: Some(32),
        ..example(TokenFormat::Mxfp4, 256)
    });
    setups
}

/// Swapping two rows of a cell whole is another arrival order; swapping anything less is an error.
#[test]
fn rows_of_a_cell_may_swap_but_only_whole() {
    for setup in setups()
        .into_iter()
        .filter(|setup| setup.format != TokenFormat::Nvfp4)
    {
        let (rows, quantized, before, after) = dispatched(&setup);
        rows.check(&quantized, &before, &after, Order::Tokens)
            .unwrap();
        let (a, b) = (rows.cells[0].rows.start, rows.cells[0].rows.start + 1);
        let mut swapped = after.clone();
        swapped.src_info.swap(a, b);
        let error = rows
            .check(&quantized, &before, &swapped, Order::Free)
            .unwrap_err();
        assert!(matches!(error, RowMismatch::Bytes { .. }), "{error}");
        let error = rows
            .check(&quantized, &before, &swapped, Order::Tokens)
            .unwrap_err();
        assert!(error.to_string().contains("has in another row"), "{error}");

        let payload = quantized[0].payload(0).len();
        for byte in 0..payload {
            swapped.tokens.swap(a * payload + byte, b * payload + byte);
        }
        let columns = quantized[0].scales(0).len();
        let layout = ScaleLayout::of(&setup);
        let scale_bytes = if layout == ScaleLayout::Transposed {
            4
        } else {
            1
        };
        let (group, start) = (
            rows.group_of_cell(0),
            rows.row_offsets[rows.group_of_cell(0)] as usize,
        );
        for column in 0..columns / scale_bytes {
            let place = |row: usize| layout.offset(&setup, group, start, 0, row - start, column);
            for byte in 0..scale_bytes {
                swapped.scales.swap(place(a) + byte, place(b) + byte);
            }
        }
        rows.check(&quantized, &before, &swapped, Order::Free)
            .unwrap();
    }
}

/// One bit anywhere, in what was written and in what was not.
#[test]
fn every_bit_counts() {
    for setup in setups() {
        let (rows, quantized, before, after) = dispatched(&setup);
        let refuses = |change: &dyn Fn(&mut ReceivedBytes), what: &str| {
            let mut changed = after.clone();
            change(&mut changed);
            let error = rows
                .check(&quantized, &before, &changed, Order::Free)
                .unwrap_err();
            assert!(error.to_string().contains(what), "{setup:?}: {error}");
        };
        for byte in 0..after.tokens.len() {
            refuses(&|it| it.tokens[byte] ^= 0x10, "of tokens differ");
        }
        for byte in (0..after.scales.len()).step_by(5) {
            refuses(&|it| it.scales[byte] ^= 1, "of scales differ");
        }
        for row in 0..after.src_info.len() {
            refuses(&|it| it.src_info[row][1] ^= 1, "");
            refuses(&|it| it.src_info[row][0] = -1, "");
        }
        for group in 0..setup.groups() {
            refuses(&|it| it.row_offsets[group + 1] += 1, "row_offsets");
            refuses(&|it| it.expert_ids[group] += 1, "expert_ids");
        }
        if setup.format == TokenFormat::Nvfp4 {
            refuses(&|it| it.scales_offsets[1] ^= 1, "scales_offsets");
        }
        let row = rows.cells[0].rows.start;
        refuses(
            &|it| it.src_info[row + 1] = it.src_info[row],
            "has in an earlier row",
        );
        refuses(&|it| it.src_info[row] = [1, 0], "does not get");
        refuses(&|it| it.tokens.truncate(1), "tokens has");
    }
}
