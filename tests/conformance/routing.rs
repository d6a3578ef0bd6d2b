//! Routing tables: expert ids, tile offsets of the caller's, gathered rows.

use anyhow::Result;
use fastrand::Rng;
use tokenyard::RoutingTables;
use tokenyard::options::{Format, InputType};
use tokenyard::routing::{Routing, max_tiles, scales_offsets};
use tokenyard_tests::shapes::row_offsets;
use tokenyard_tests::values::{activations, hazards};
use tokenyard_tests::{Context, Grouping, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        let mut case = |name: &str, run: fn(&Context, Format) -> Result<()>| {
            suite.both(&format!("routing::{name}::{format}"), move |context| {
                run(context, format)
            });
        };
        case("expert_ids", expert_ids);
        case("tile_gaps", tile_gaps);
        case("rows_before_the_first_slot", rows_before_the_first_slot);
        case("offsets_beyond_the_rows", offsets_beyond_the_rows);
        case("tiles_beyond_the_scales", tiles_beyond_the_scales);
        case("gather", gather);
        case("gather_from_topk", gather_from_topk);
    }
}

const COLUMNS: usize = 72;

/// Rows per slot that all cases here group by.
const SLOT_ROWS: [u32; 6] = [5, 0, 130, 1, 128, 33];

/// Tensor-wise factors that differ enough for a mistaken expert to show in every block.
const SF: [f32; 6] = [1.0, 0.43, 2.5, 7.0, 0.11, 19.0];

fn input(format: Format, rows: usize, random: &mut Rng) -> Rows {
    let mut values = hazards(format, rows, COLUMNS, random);
    let moderate = activations(values.len() / 2, random);
    values[..moderate.len()].copy_from_slice(&moderate);
    Rows::rounded(InputType::Bf16, values)
}

fn check(context: &Context, problem: Problem) -> Result<()> {
    Problem {
        sf: SF.to_vec(),
        ..problem
    }
    .check(&context.devices())
}

/// Checks tables over `rows` rows of input.
fn check_tables(
    context: &Context,
    format: Format,
    tables: RoutingTables,
    rows: usize,
    random: &mut Rng,
) -> Result<()> {
    let grouping = Grouping::Tables(tables, rows);
    let input = input(format, rows, random);
    check(context, Problem::new(format, COLUMNS, grouping, input))
}

/// A slot of each of the first two experts.
fn two_slots(row_offsets: [u32; 3], scales_offsets: [u32; 2]) -> RoutingTables {
    RoutingTables {
        row_offsets: row_offsets.to_vec(),
        scales_offsets: scales_offsets.to_vec(),
        expert_ids: vec![0, 1],
        source_rows: None,
    }
}

/// Slots in any order of experts, several of one expert, and slots whose expert has no factor: their
/// rows are left alone and their scales become zero.
fn expert_ids(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(1);
    let offsets = row_offsets(&SLOT_ROWS);
    let rows = offsets[SLOT_ROWS.len()] as usize;
    let input = input(format, rows, random);
    for ids in [
        [0, 1, 2, 3, 4, 5],
        [5, 3, 1, 0, 4, 2],
        [2, 2, 2, 2, 2, 2],
        [0, 5, 0, 5, 0, 5],
        // No expert 6, and none below 0. The empty slot's id is never looked at.
        [0, -1, 6, 3, -1, 2],
        [i32::MIN, i32::MAX, 4, 7, 5, 1 << 30],
        [-1; 6],
    ] {
        let routing = Routing::from_row_offsets(&offsets, Some(&ids), rows)?;
        check(
            context,
            Problem::new(format, COLUMNS, routing, input.clone()),
        )?;
    }
    // One factor for six slots: all but the slots of expert 0 are without.
    let routing = Routing::from_row_offsets(&offsets, None, rows)?;
    Problem {
        sf: vec![0.43],
        ..Problem::new(format, COLUMNS, routing, input)
    }
    .check(&context.devices())
}

/// Tables of the caller's, with tiles left free before, between and after slots.
fn tile_gaps(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(2);
    let row_offsets = row_offsets(&SLOT_ROWS);
    let rows = row_offsets[SLOT_ROWS.len()] as usize;
    let dense = scales_offsets(&row_offsets);
    let input = input(format, rows, random);
    for gaps in [
        [0; 6],
        [3, 3, 3, 3, 3, 3],
        [0, 1, 1, 2, 5, 9],
        [0, 0, 0, 0, 0, 1],
    ] {
        let tables = RoutingTables {
            row_offsets: row_offsets.clone(),
            scales_offsets: dense
                .iter()
                .zip(gaps)
                .map(|(offset, gap)| offset + gap)
                .collect(),
            expert_ids: (0..6).collect(),
            source_rows: None,
        };
        let problem = Problem::new(
            format,
            COLUMNS,
            Grouping::Tables(tables, rows),
            input.clone(),
        );
        let row_tiles = max_tiles(rows, SLOT_ROWS.len()) + gaps[5] as usize;
        check(
            context,
            Problem {
                row_tiles,
                ..problem
            },
        )?;
    }
    Ok(())
}

fn rows_before_the_first_slot(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(3);
    for first in [1, 127, 128, 200] {
        let offsets: Vec<u32> = row_offsets(&SLOT_ROWS)
            .iter()
            .map(|row| row + first)
            .collect();
        let rows = offsets[SLOT_ROWS.len()] as usize + 2;
        let mut scales_offsets = scales_offsets(&row_offsets(&SLOT_ROWS));
        for (offset, slot) in scales_offsets.iter_mut().zip(&offsets) {
            // Tiles count from the first slot's, as if nothing came before it.
            *offset = *offset + (slot - first) / 128 + first.div_ceil(128) - slot / 128;
        }
        let tables = RoutingTables {
            row_offsets: offsets,
            scales_offsets,
            expert_ids: vec![0, 1, 2, 3, 4, 5],
            source_rows: None,
        };
        check_tables(context, format, tables, rows, random)?;
    }
    Ok(())
}

/// Offsets past the rows that exist are cut back to them.
fn offsets_beyond_the_rows(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(4);
    for (row_offsets, rows) in [
        ([0, 10, 300], 200),
        ([0, 10, u32::MAX], 140),
        ([0, 500, 700], 140),
        ([50, 50, u32::MAX - 1], 140),
        ([600, 700, 800], 140),
    ] {
        let tables = two_slots(row_offsets, [0, 1]);
        check_tables(context, format, tables, rows, random)?;
    }
    Ok(())
}

/// Slots whose tiles are past the end of the scales, wholly or in part: what does not fit is left
/// out, elements included.
fn tiles_beyond_the_scales(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(5);
    for last in [1, 4, 5, 6, 100, u32::MAX - 1, u32::MAX] {
        let tables = two_slots([0, 130, 390], [0, last]);
        check_tables(context, format, tables, 390, random)?;
    }
    Ok(())
}

/// Rows read from where the table says: permuted, repeated, left out, and, where there is no such
/// row, zeros.
fn gather(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(6);
    let row_offsets = row_offsets(&SLOT_ROWS);
    let rows = row_offsets[SLOT_ROWS.len()] as usize;
    for input_rows in [1, 40, rows, 2 * rows] {
        let input = input(format, input_rows, random);
        let last = input_rows as i32 - 1;
        let within: Vec<i32> = (0..rows).map(|_| random.i32(0..=last)).collect();
        let backwards = (0..rows as i32).rev().map(|row| row.min(last)).collect();
        let mut hostile = within.clone();
        for (row, bad) in [-1, last + 1, i32::MAX, i32::MIN, -2, last + 2]
            .into_iter()
            .enumerate()
        {
            hostile[row * 37 + 3] = bad;
        }
        for source_rows in [within, backwards, vec![last; rows], hostile, vec![-1; rows]] {
            let tables = RoutingTables {
                row_offsets: row_offsets.clone(),
                scales_offsets: scales_offsets(&row_offsets),
                expert_ids: vec![3, 1, 0, 5, 2, -1],
                source_rows: Some(source_rows),
            };
            let grouping = Grouping::Tables(tables, rows);
            check(
                context,
                Problem::new(format, COLUMNS, grouping, input.clone()),
            )?;
        }
    }
    Ok(())
}

/// What a router chose, straight from the host library, with nothing to spare in the scales.
fn gather_from_topk(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(7);
    let (tokens, top_k, experts) = (70, 3, 6);
    for absent in [false, true] {
        let ids = tokenyard_tests::shapes::topk_ids(tokens, top_k, experts, absent, random);
        let routing = Routing::from_topk(&ids, tokens, top_k, experts)?;
        let row_tiles = routing.occupied_tiles();
        let problem = Problem::new(format, COLUMNS, routing, input(format, tokens, random));
        check(
            context,
            Problem {
                row_tiles,
                ..problem
            },
        )?;
    }
    Ok(())
}
