//! Tables that make no sense. The host cannot look into tables that the device made, so kernels must
//! stay inside their buffers whatever the tables say: in the emulator every access is checked, on a
//! GPU `compute-sanitizer` does so, and on both the memory around the outputs keeps its content.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use tokenyard::options::{Format, InputType};
use tokenyard::{Device, Quantized, RoutingTables, ScaleStore, Swizzle, TensorScales};
use tokenyard_tests::memory::GUARD;
use tokenyard_tests::shapes::{row_offsets, slots};
use tokenyard_tests::values::activations;
use tokenyard_tests::{Context, Grouping, Launch, Memory, Problem, Rows, Suite, compare};

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        suite.both(
            &format!("hostile::chosen_tables::{format}"),
            move |context| chosen_tables(context, format),
        );
        suite.both(
            &format!("hostile::random_tables::{format}"),
            move |context| random_tables(context, format),
        );
    }
}

const COLUMNS: usize = 72;
const ROWS: usize = 270;

/// Tables with these offsets, and ids of which every third has no factor.
fn tables(row_offsets: Vec<u32>, scales_offsets: Vec<u32>) -> RoutingTables {
    let slots = scales_offsets.len() as i32;
    RoutingTables {
        row_offsets,
        scales_offsets,
        expert_ids: (0..slots)
            .map(|slot| if slot % 3 == 2 { !slot } else { slot })
            .collect(),
        source_rows: None,
    }
}

fn chosen_tables(context: &Context, format: Format) -> Result<()> {
    let max = u32::MAX;
    let rows = ROWS as u32;
    for (row_offsets, scales_offsets) in [
        // Descending, and up and down again.
        (vec![rows, 200, 100, 0], vec![0, 1, 2]),
        (vec![0, 200, 100, rows], vec![0, 1, 2]),
        (vec![max, 0, max, 0], vec![0, 0, 0]),
        // Ending past the rows, or starting there.
        (vec![0, 100, 200, max], vec![0, 1, 2]),
        (vec![max, max, max, max], vec![0, 0, 0]),
        (vec![max - 1, max, max, max], vec![max, max, max]),
        // Slots that claim the same tiles, or tiles far away, or both ways round.
        (vec![0, 10, 20, rows], vec![0, 0, 0]),
        (vec![0, 130, 260, rows], vec![5, 0, 0]),
        (vec![0, 130, 260, rows], vec![0, max, 1]),
        (vec![0, 130, 260, rows], vec![max, max, max]),
        (vec![0, 130, 260, rows], vec![0, 1 << 31, 1 << 30]),
        (vec![0, 0, 0, 0], vec![max, 0, max]),
        // One slot, and one without rows.
        (vec![rows, 0], vec![0]),
        (vec![0, max], vec![max]),
        (vec![max, max], vec![0]),
    ] {
        stays_inside(context, format, tables(row_offsets, scales_offsets))?;
    }
    let dense = row_offsets(&[100, 100, 70]);
    let mut gathered = tables(dense, vec![0, 1, 1]);
    let random = &mut Rng::with_seed(1);
    gathered.source_rows = Some((0..ROWS).map(|_| random.i32(..)).collect());
    stays_inside(context, format, gathered)
}

/// Tables of random numbers: small ones, that hit the rows there are, and any.
fn random_tables(context: &Context, format: Format) -> Result<()> {
    for seed in context.seeds() {
        let random = &mut Rng::with_seed(seed);
        for _ in 0..context.pick(100, 25) {
            let slots = random.usize(1..20);
            let mut number = |limit: u32| match random.u8(..4) {
                0 => random.u32(..),
                _ => random.u32(..limit),
            };
            let row_offsets = (0..=slots).map(|_| number(2 * ROWS as u32)).collect();
            let scales_offsets = (0..slots).map(|_| number(8)).collect();
            let mut tables = tables(row_offsets, scales_offsets);
            if random.bool() {
                tables.source_rows = Some((0..ROWS).map(|_| random.i32(-2..300)).collect());
            }
            stays_inside(context, format, tables).with_context(|| format!("seed {seed}"))?;
        }
    }
    Ok(())
}

/// Quantizes and dequantizes with these tables. Nothing may fault, change its inputs, or write
/// around its outputs; and the device must be as good as before.
fn stays_inside(context: &Context, format: Format, tables: RoutingTables) -> Result<()> {
    let random = &mut Rng::with_seed(3);
    let input = Rows::rounded(InputType::Bf16, activations(ROWS * COLUMNS, random));
    let problem = Problem {
        sf: vec![0.43, 1.0],
        ..Problem::new(format, COLUMNS, Grouping::Tables(tables, ROWS), input)
    };
    for device in context.devices() {
        attempts(&device, &problem).with_context(|| problem.to_string())?;
    }

    let input = Rows::rounded(InputType::Bf16, activations(3 * COLUMNS, random));
    Problem::new(format, COLUMNS, slots(&[1, 2]), input)
        .check(&context.devices())
        .context("an ordinary problem after hostile tables")
}

fn attempts(device: &Device, problem: &Problem) -> Result<()> {
    let mut stores = vec![ScaleStore::Auto];
    if device.compute_capability() >= (9, 0) {
        stores.push(ScaleStore::TensorMap(Swizzle::B64));
    }
    let untouched = problem.untouched();
    for store in stores {
        let launch = Launch {
            store,
            ..Launch::default()
        };
        let found = problem.run(device, launch)?;
        guards("data", &untouched.data, &found.data)?;
        guards("scales", &untouched.scales, &found.scales)?;
        dequantizes(device, problem, &found)?;
    }
    Ok(())
}

/// Dequantizes what came out, and looks whether the tables are still what they were.
fn dequantizes(device: &Device, problem: &Problem, found: &Memory) -> Result<()> {
    let output = Quantized::from_buffers(
        problem.format,
        ROWS,
        COLUMNS,
        problem.row_tiles,
        device.upload(found.data())?,
        device.upload(found.scales())?,
    )?;
    let routing = problem.grouping.upload(device)?;
    let sf = TensorScales::upload(device, &problem.sf)?;
    let rows = output.dequantize(&device.create_stream()?, &routing, &sf)?;
    ensure!(rows.download()?.len() == ROWS * COLUMNS);

    let Grouping::Tables(expected, _) = &problem.grouping else {
        unreachable!("hostile groupings are tables");
    };
    let found = routing.download()?;
    compare::values("row_offsets", &expected.row_offsets, &found.row_offsets)?;
    compare::values(
        "scales_offsets",
        &expected.scales_offsets,
        &found.scales_offsets,
    )?;
    compare::values("expert_ids", &expected.expert_ids, &found.expert_ids)
}

fn guards(what: &str, expected: &[u8], found: &[u8]) -> Result<()> {
    let end = expected.len() - GUARD;
    let place = |index: usize| index.to_string();
    compare::bytes(
        &format!("before {what}"),
        &expected[..GUARD],
        &found[..GUARD],
        place,
    )?;
    compare::bytes(
        &format!("after {what}"),
        &expected[end..],
        &found[end..],
        place,
    )
}
