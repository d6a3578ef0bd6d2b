//! The 128x4 scale layout and the placement of several slots' tiles.

mod reference_support;

use reference_support::{DEFAULT, vectors};
use serde::Deserialize;
use tokenyard::options::Format;
use tokenyard::reference::{Groups, Input, Output, Problem, quantize, scale_offset};
use tokenyard::routing::Routing;

#[derive(Deserialize)]
struct Layout {
    probes: Vec<Probe>,
    experts: Experts,
}

#[derive(Deserialize)]
struct Probe {
    k_blocks: usize,
    row: usize,
    col: usize,
    offset: usize,
}

#[derive(Deserialize)]
struct Experts {
    rows_per_expert: Vec<usize>,
    row_offsets: Vec<u32>,
    padded_row_offsets_128: Vec<usize>,
    tile_start_floor_plus_index: Vec<usize>,
    tiles_needed_floor_plus_index: usize,
}

#[test]
fn offsets_match_the_vectors() {
    let probes = vectors::<Layout>("scale_layout_128x4.json").probes;
    assert_eq!(probes.len(), 266);
    for Probe {
        k_blocks,
        row,
        col,
        offset,
    } in probes
    {
        assert_eq!(
            scale_offset(0, row, col, k_blocks.div_ceil(4)),
            offset,
            "{k_blocks} {row} {col}"
        );
    }
}

#[test]
fn offsets_fill_every_byte_once() {
    let (tiles, column_tiles) = (3, 5);
    let mut seen = vec![false; tiles * column_tiles * 512];
    for tile in 0..tiles {
        for row in 0..128 {
            for block in 0..column_tiles * 4 {
                let offset = scale_offset(tile, row, block, column_tiles);
                assert!(!std::mem::replace(&mut seen[offset], true));
            }
        }
    }
    assert!(seen.into_iter().all(|seen| seen));
}

/// Our placement is that of rows padded to whole tiles per expert.
#[test]
fn tiles_start_where_padded_rows_do() {
    let experts = vectors::<Layout>("scale_layout_128x4.json").experts;
    let rows = *experts.row_offsets.last().unwrap() as usize;
    let routing = Routing::from_row_offsets(&experts.row_offsets, None, rows).unwrap();
    assert!(routing.rows_per_expert().eq(experts.rows_per_expert));
    for slot in 0..routing.experts() {
        assert_eq!(
            routing.tile_start(slot) * 128,
            experts.padded_row_offsets_128[slot]
        );
    }
    assert_eq!(
        routing.occupied_tiles() * 128,
        *experts.padded_row_offsets_128.last().unwrap()
    );
}

/// The other placement in use, tile_start = row offset / 128 + slot, is had by passing the slot's
/// number as its scales offset: the same bytes at other places.
#[test]
fn the_other_placement_can_be_asked_for() {
    let experts = vectors::<Layout>("scale_layout_128x4.json").experts;
    let (slots, columns) = (experts.rows_per_expert.len(), 160);
    let rows = *experts.row_offsets.last().unwrap() as usize;
    let routing = Routing::from_row_offsets(&experts.row_offsets, None, rows).unwrap();
    let by_index: Vec<u32> = (0..slots as u32).collect();
    let other = Groups {
        scales_offsets: &by_index,
        ..(&routing).into()
    };
    for (slot, &tile_start) in experts.tile_start_floor_plus_index.iter().enumerate() {
        assert_eq!(other.tile_start(slot), tile_start);
    }

    let mut random = fastrand::Rng::with_seed(1);
    let values: Vec<f32> = (0..rows * columns)
        .map(|_| random.f32() * 100.0 - 50.0)
        .collect();
    for format in Format::ALL {
        let scales_with = |groups: Groups<'_>, tiles: usize| {
            let problem = Problem {
                format,
                input: Input::F32(&values),
                input_rows: rows,
                columns,
                groups,
                sf: &vec![1.0; slots],
                source_rows: None,
                options: DEFAULT,
            };
            let mut data = vec![0xEE; problem.data_bytes()];
            let mut scales = vec![0xEE; tiles * problem.tile_row_bytes()];
            quantize(
                &problem,
                Output {
                    data: &mut data,
                    scales: &mut scales,
                },
            )
            .unwrap();
            (data, scales)
        };
        let (data, scales) = scales_with((&routing).into(), routing.occupied_tiles());
        let (other_data, other_scales) = scales_with(other, experts.tiles_needed_floor_plus_index);
        assert_eq!(data, other_data);
        let tile_row = format.column_tiles(columns) * 512;
        for slot in 0..slots {
            let part = |scales: &[u8], start: usize| {
                scales[start * tile_row..(start + routing.tiles(slot)) * tile_row].to_vec()
            };
            assert_eq!(
                part(&scales, routing.tile_start(slot)),
                part(&other_scales, other.tile_start(slot))
            );
        }
    }
}
