//! The worked examples of the definition, to the word and to the byte, as literals.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use half::bf16;
use std::collections::{BTreeMap, BTreeSet};
use tokenyard::ep::{NO_SLOT, TokenFormat};
use tokenyard::reference::ep::Setup;
use tokenyard_tests::ep::{EpCase, Mode, RankInput, Traffic, World};
use tokenyard_tests::{Context, Suite, compare};

pub fn register(suite: &mut Suite) {
    suite.both("ep::examples::offsets_and_handles", offsets_and_handles);
    suite.both("ep::examples::preshuffled_scales", preshuffled_scales);
    suite.both("ep::examples::preshuffled_groups", preshuffled_groups);
    suite.both("ep::examples::tiled_scales", tiled_scales);
    suite.both("ep::examples::messages", messages);
}

/// R = 2, E = 4, K = 2: three tokens on rank 0, two on rank 1.
fn example(format: TokenFormat, fused_shared_expert: bool) -> EpCase {
    let setup = Setup {
        experts: 4,
        ranks: 2,
        top_k: 2,
        fused_shared_expert,
        ..Setup::new(format, 128, 3)
    };
    let mut case = EpCase::new(setup, &[3, 2], Traffic::Uniform, 1);
    case.ranks[0].topk_ids = vec![0, 2, 1, 3, 2, 0];
    case.ranks[1].topk_ids = vec![2, 3, 0, 1];
    case
}

fn offsets_and_handles(context: &Context) -> Result<()> {
    let padded = TokenFormat::Fp8Block128;
    let cases: [(TokenFormat, bool, &[u32], [u32; 4]); 4] = [
        (
            TokenFormat::Mxfp4,
            false,
            &[0, 3, 5],
            [1026, 1027, 1028, 1029],
        ),
        (
            TokenFormat::Mxfp4,
            true,
            &[0, 3, 6, 8],
            [1029, 1030, 1031, 1032],
        ),
        (padded, false, &[0, 4, 8], [1026, 1027, 1029, 1030]),
        (padded, true, &[0, 4, 8, 12], [1030, 1031, 1033, 1034]),
    ];
    for (format, shared_expert, offsets, ends) in cases {
        let case = example(format, shared_expert);
        for device in context.devices() {
            let case = case.clone().side_by_side(&device);
            for &mode in Mode::of(&case) {
                let mut world = World::new(&device, &case)?;
                world.check_round(&case, mode)?;
                let received = world.received(0);
                compare::values("row_offsets", offsets, &received.row_offsets().download()?)?;
                let ids: Vec<i32> = (0..offsets.len() as i32 - 1).collect();
                compare::values("expert_ids", &ids, &received.expert_ids().download()?)?;
                let handles: Vec<_> = ends
                    .into_iter()
                    .zip([2, 1, 1, 1])
                    .map(|it| [it.0, it.1])
                    .collect();
                compare::values("handles", &handles, &received.pairs().download()?)?;
                // Rank 0's (0,0) and (2,1) in either order, then three rows whose place is certain.
                let info = received.src_info().download()?;
                let row = |pair: usize| (ends[pair] - 1024) as usize - 1;
                let last = [row(1), row(2), row(3)].map(|row| info[row]);
                ensure!(last == [[1, 0], [1, 0], [1, 1]], "{info:?}");
                let mut both = [info[row(0) - 1], info[row(0)]];
                both.sort_unstable();
                ensure!(both == [[0, 0], [2, 1]], "{info:?}");
            }
        }
    }
    Ok(())
}

/// A token whose block b has an amax of 2^(b % 64 - 20), so that MXFP4's scale byte is known: 125 + that.
fn graded(blocks: usize) -> Vec<bf16> {
    (0..32 * blocks)
        .map(|i| bf16::from_f32(2f32.powi((i / 32 % 64) as i32 - 20)))
        .collect()
}

/// Where single scales lie, by the numbers of the definition: 224 scales a row, slots of 128 rows.
fn preshuffled_scales(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 3,
        scale_preshuffle: Some(128),
        ..Setup::new(TokenFormat::Mxfp4, 7168, 128)
    };
    // 48 rows for group 0 so that row 47 exists; one for group 1; 48 for group 2.
    let ids: Vec<i32> = [(0, 48), (1, 1), (2, 48)]
        .into_iter()
        .flat_map(|(id, rows)| std::iter::repeat_n(id, rows))
        .collect();
    let mut case = EpCase::new(setup, &[0], Traffic::Uniform, 1);
    case.ranks = vec![RankInput {
        tokens: graded(224).repeat(ids.len()),
        topk_ids: ids,
    }];
    let mut world = World::new(&context.device(), &case)?;
    world.check_round(&case, Mode::Fused)?;
    let scales = world.received(0).scales().download()?;
    for (place, block) in [
        (0, 0),
        (1, 0),
        (2, 4),
        (3, 4),
        (4, 0),
        (64, 1),
        (256, 8),
        (7168, 0),
        (7510, 13),
        (28672, 0),
        (71678, 223),
    ] {
        let expected = 125 - 20 + (block % 64) as u8;
        ensure!(
            scales[place] == expected,
            "byte {place} is {}, not the scale {expected} of block {block}",
            scales[place]
        );
    }
    Ok(())
}

/// The rows per expert that the layout was first tested with.
fn preshuffled_groups(context: &Context) -> Result<()> {
    let lists: [&[usize]; 5] = [
        &[1],
        &[1, 3, 0, 2, 5],
        &[37, 64, 100, 5],
        &[5, 20, 12],
        &[1, 2, 0, 4],
    ];
    for format in [TokenFormat::Mxfp4, TokenFormat::Mxfp8] {
        for rows in lists {
            let total: usize = rows.iter().sum();
            let setup = Setup {
                experts: rows.len(),
                scale_preshuffle: Some(total.next_multiple_of(32).max(128)),
                ..Setup::new(format, context.pick(2048, 256), total)
            };
            let mut case = EpCase::new(setup, &[total], Traffic::Uniform, 4);
            let experts = rows.iter().enumerate();
            case.ranks[0].topk_ids = experts
                .flat_map(|(expert, &rows)| std::iter::repeat_n(expert as i32, rows))
                .collect();
            Rng::with_seed(5).shuffle(&mut case.ranks[0].topk_ids);
            case.check(&[context.device()])?;
        }
    }
    Ok(())
}

/// Row offsets (0, 100, 300, 400) lead to scale offsets (0, 1, 1).
fn tiled_scales(context: &Context) -> Result<()> {
    let setup = Setup {
        experts: 3,
        ..Setup::new(TokenFormat::Nvfp4, 32, 400)
    };
    let mut case = EpCase::new(setup, &[400], Traffic::Uniform, 6);
    for (token, id) in case.ranks[0].topk_ids.iter_mut().enumerate() {
        *id = [0, 1, 1, 2][token / 100];
    }
    let mut world = World::new(&context.device(), &case)?;
    world.check_round(&case, Mode::Split)?;
    let received = world.received(0);
    compare::values(
        "row_offsets",
        &[0, 100, 300, 400],
        &received.row_offsets().download()?,
    )?;
    compare::values(
        "scales_offsets",
        &[0, 1, 1],
        &received.scales_offsets().download()?,
    )
}

/// The receive buffer, message by message: payload, scales, origin, all ids, and zeros between them.
fn messages(context: &Context) -> Result<()> {
    for format in TokenFormat::ALL {
        let mut case = example(format, false).deterministic();
        case.ranks[0].topk_ids[3] = -1;
        case.ranks[1].topk_ids[1] = 2;
        let mut world = World::new(&context.device(), &case)?;
        world.check_round(&case, Mode::Split)?;
        let (rows, quantized) = case.expected()?;
        let layout = world.group.config().message_layout();
        // The row of a pair that a token's expert at a position got, by source, token and position.
        let mut slots = BTreeMap::new();
        for rows in &rows {
            for (index, cell) in rows.cells.iter().enumerate() {
                for (slot, &(token, position)) in cell.pairs.iter().enumerate() {
                    slots.insert((rows.source_of_cell(index), token, position), slot as u32);
                }
            }
        }
        for (number, rows) in rows.iter().enumerate() {
            let buffer = world.group.ranks()[number].receive_buffer()?;
            // Once for each token, in whatever order.
            let mut messages = BTreeSet::new();
            for (index, cell) in rows.cells.iter().enumerate() {
                let source = rows.source_of_cell(index);
                messages.extend(cell.pairs.iter().map(|&(token, _)| (source, token)));
            }
            for &(source, token) in &messages {
                let mut expected = vec![0; layout.bytes as usize];
                let mut put = |offset: u32, bytes: &[u8]| {
                    expected[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                };
                put(0, quantized[source].payload(token));
                put(layout.scales_offset, quantized[source].scales(token));
                put(layout.source_offset, &(token as i32).to_le_bytes());
                let ids = &case.ranks[source].topk_ids[token * 2..][..2];
                let codes = ids.iter().flat_map(|&id| (id.max(0) as u16).to_le_bytes());
                put(layout.topk_offset, &codes.collect::<Vec<_>>());
                let slots = (0..4).flat_map(|position| {
                    let slot = slots.get(&(source, token, position));
                    slot.copied().unwrap_or(NO_SLOT).to_le_bytes()
                });
                put(layout.slots_offset, &slots.collect::<Vec<_>>());
                let of_source = messages.iter().filter(|&&(from, _)| from == source);
                let first = source * case.setup.max_tokens_per_rank;
                let found = (first..first + of_source.count())
                    .map(|message| &buffer[message * expected.len()..][..expected.len()])
                    .find(|found| {
                        found[layout.source_offset as usize..][..4] == (token as i32).to_le_bytes()
                    });
                let found = found.with_context(|| format!("no message of token {token}"))?;
                compare::bytes("message", &expected, found, |byte| {
                    format!(
                        "rank {number}, source {source}, token {token}, byte {byte} of {format}"
                    )
                })?;
            }
        }
    }
    Ok(())
}
