//! Shapes: columns, rows per slot, numbers of slots, and how much of the outputs is used.

use anyhow::Result;
use fastrand::Rng;
use tokenyard::options::{Format, InputType};
use tokenyard::routing::{Routing, max_tiles};
use tokenyard_tests::memory::Background;
use tokenyard_tests::shapes::{
    COLUMNS, EMPTY_SLOTS, MANY_SLOTS, PUBLISHED, ROWS, SLOTS, WIDE_COLUMNS, skewed, slots,
};
use tokenyard_tests::values::{activations, hazards};
use tokenyard_tests::{Context, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        let mut case = |name: &str, run: fn(&Context, Format) -> Result<()>| {
            suite.both(&format!("quantize::{name}::{format}"), move |context| {
                run(context, format)
            });
        };
        case("k_tail", k_tail);
        case("row_counts", row_counts);
        case("empty_slots", empty_slots);
        case("slot_counts", slot_counts);
        case("sparse_decode", sparse_decode);
        case("published_shapes", published_shapes);
        case("slack_stays_stale", slack_stays_stale);
        case("rows_after_the_last_slot", rows_after_the_last_slot);
        case("nothing_to_do", nothing_to_do);
    }
}

/// A problem of ordinary and hazardous values in equal parts.
fn problem(format: Format, columns: usize, routing: Routing, random: &mut Rng) -> Problem {
    let rows = routing.rows();
    let mut values = hazards(format, rows, columns, random);
    let half = values.len() / 2;
    values[half..].copy_from_slice(&activations(rows * columns - half, random));
    let input = Rows::rounded(InputType::Bf16, values);
    Problem::new(format, columns, routing, input)
}

/// Rows that end within a chunk's, a block's, a scale tile's or a warp's columns.
fn k_tail(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(1);
    for columns in COLUMNS.into_iter().chain(WIDE_COLUMNS) {
        problem(format, columns, slots(&[1, 0, 33]), random).check(&context.devices())?;
    }
    Ok(())
}

/// Slots that end within a warp's rows or a tile's: each alone, and all of them in a row.
fn row_counts(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(2);
    for rows in ROWS {
        problem(format, 72, slots(&[rows]), random).check(&[context.device()])?;
    }
    problem(format, 72, slots(&ROWS), random).check(&context.devices())
}

fn empty_slots(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(3);
    for rows in EMPTY_SLOTS {
        problem(format, 136, slots(rows), random).check(&context.devices())?;
    }
    Ok(())
}

/// The search, from one slot up.
fn slot_counts(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(4);
    for count in SLOTS.into_iter().chain(MANY_SLOTS) {
        let rows = skewed(count as u32 + 20, count, random);
        problem(format, 24, slots(&rows), random).check(&[context.device()])?;
    }
    Ok(())
}

/// A few rows over very many slots, as when one token after another is generated.
fn sparse_decode(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(5);
    let mut one_slot_alone = vec![0; 256];
    one_slot_alone[77] = 192;
    for rows in [skewed(192, 256, random), vec![1; 48], one_slot_alone] {
        problem(format, 264, slots(&rows), random).check(&[context.device()])?;
    }
    Ok(())
}

fn published_shapes(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(6);
    for (columns, rows, sf) in PUBLISHED {
        Problem {
            sf: sf.to_vec(),
            ..problem(format, columns, slots(rows), random)
        }
        .check(&context.devices())?;
    }
    Ok(())
}

/// Row tiles after the last occupied one are not written, whatever there is of them.
fn slack_stays_stale(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(7);
    let routing = slots(&[100, 0, 129]);
    let occupied = routing.occupied_tiles();
    let base = problem(format, 136, routing, random);
    for slack in [0, 1, 2, 61] {
        for background in [
            Background::Byte(0xFF),
            Background::Byte(0x00),
            Background::Noise,
        ] {
            Problem {
                row_tiles: occupied + slack,
                background,
                ..base.clone()
            }
            .check(&[context.device()])?;
        }
    }
    base.check(&context.devices())
}

/// Rows that no slot owns keep their content.
fn rows_after_the_last_slot(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(8);
    for (offsets, rows) in [([0, 3, 5], 6), ([0, 128, 130], 300), ([0, 0, 0], 40)] {
        let routing = Routing::from_row_offsets(&offsets, None, rows)?;
        problem(format, 72, routing, random).check(&context.devices())?;
    }
    Ok(())
}

/// No rows, no columns, no tiles: success, and nothing is written.
fn nothing_to_do(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(9);
    for (rows, columns) in [
        (&[0, 0, 0][..], 64),
        (&[0], 8),
        (&[3, 130], 0),
        (&[0, 0], 0),
    ] {
        let base = problem(format, columns, slots(rows), random);
        let needed = max_tiles(base.rows(), rows.len());
        for row_tiles in [needed, needed + 3] {
            Problem {
                row_tiles,
                ..base.clone()
            }
            .check(&context.devices())?;
        }
    }
    Ok(())
}
