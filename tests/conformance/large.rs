//! Tensors of more than 2^31 elements, where offsets that are computed in 32 bits go wrong: two of the
//! faults that public projects had.
//!
//! On a GPU only: 4.3 GB of input, 2.2 GB of output, some milliseconds; for the emulator a matter of
//! an hour.

use anyhow::{Context as _, Result, ensure};
use half::bf16;
use tokenyard::options::Format;
use tokenyard::reference::scale_offset;
use tokenyard::routing::Routing;
use tokenyard::{DeviceBuffer, DeviceRouting, GroupedQuantizer, Quantized, TensorScales};
use tokenyard_tests::shapes::{row_offsets, slots};
use tokenyard_tests::values::activations;
use tokenyard_tests::{Context, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    suite.cuda(
        "reported::case_14_offsets_beyond_32_bits",
        offsets_beyond_32_bits,
    );
    suite.cuda(
        "reported::case_15_group_base_beyond_32_bits",
        group_base_beyond_32_bits,
    );
}

const ROWS: u32 = 300_000;
const COLUMNS: usize = 7168;

fn offsets_beyond_32_bits(context: &Context) -> Result<()> {
    // The row that element 2^31 is in, those around it, and the ends.
    let boundary = ((1usize << 31) / COLUMNS) as u32;
    let probes = [0, boundary - 1, boundary, boundary + 1, ROWS - 1];
    large(context, &[ROWS], &probes)
}

fn group_base_beyond_32_bits(context: &Context) -> Result<()> {
    let first = ROWS - 300;
    ensure!(first as usize * COLUMNS > 1 << 31);
    large(
        context,
        &[first, 0, 129, 171],
        &[0, first - 1, first, first + 129, ROWS - 1],
    )
}

/// Quantizes zeros, but for the probed rows, and looks at those and at the rows before them.
fn large(context: &Context, rows_per_slot: &[u32], probes: &[u32]) -> Result<()> {
    let (format, columns) = (Format::Mxfp8, COLUMNS);
    let device = context.device();
    let offsets = row_offsets(rows_per_slot);
    let rows = ROWS as usize;
    let routing = Routing::from_row_offsets(&offsets, None, rows)?;
    let mut input = device.alloc_filled::<bf16>(rows * columns, 0)?;
    let random = &mut fastrand::Rng::with_seed(14);
    let mut written = Vec::new();
    for &row in probes {
        let values: Vec<bf16> = activations(columns, random)
            .into_iter()
            .map(bf16::from_f32)
            .collect();
        row_of(&mut input, row, columns)?.upload_from(&values)?;
        written.push((row, Rows::Bf16(values)));
    }
    let quantizer = GroupedQuantizer::builder(&device, format)
        .columns(columns)
        .build()?;
    let row_tiles = routing.occupied_tiles();
    let scale_bytes = row_tiles * format.column_tiles(columns) * 512;
    let mut output = Quantized::from_buffers(
        format,
        rows,
        columns,
        row_tiles,
        device.alloc_filled(rows * columns, 0xEE)?,
        device.alloc_filled(scale_bytes, 0xEE)?,
    )?;
    let (stream, sf) = (
        device.create_stream()?,
        TensorScales::ones(&device, rows_per_slot.len())?,
    );
    let tables = DeviceRouting::upload(&device, &routing)?;
    quantizer.quantize_into(&stream, &input, &tables, &sf, &mut output)?;
    stream.synchronize()?;

    let (mut data, scales) = output.into_buffers();
    let scales = scales.download()?;
    let slot_of = |row: u32| {
        let slot =
            (0..routing.experts()).find(|&slot| routing.slot_rows(slot).contains(&(row as usize)));
        slot.with_context(|| format!("row {row} is in no slot"))
    };
    let mut compare = |row: u32, values: Rows| -> Result<()> {
        let alone = Problem::new(format, columns, slots(&[1]), values).expected()?;
        ensure!(
            row_of(&mut data, row, columns)?.download()? == alone.data(),
            "data of row {row}"
        );
        let slot = slot_of(row)?;
        let local_row = row as usize - routing.slot_rows(slot).start;
        for block in 0..columns / format.block_size() {
            let tiles = format.column_tiles(columns);
            let found = scales[scale_offset(routing.tile_start(slot), local_row, block, tiles)];
            let expected = alone.scales()[scale_offset(0, 0, block, tiles)];
            ensure!(
                found == expected,
                "row {row}, block {block}: {found:#04x}, not {expected:#04x}"
            );
        }
        Ok(())
    };
    for (row, values) in written {
        compare(row, values)?;
        if row > 0 && !probes.contains(&(row - 1)) {
            compare(row - 1, Rows::Bf16(vec![bf16::ZERO; columns]))?;
        }
    }
    Ok(())
}

/// One row of a matrix in device memory.
fn row_of<T: bytemuck::Pod>(
    matrix: &mut DeviceBuffer<T>,
    row: u32,
    columns: usize,
) -> Result<DeviceBuffer<T>> {
    ensure!(
        (row as usize + 1) * columns <= matrix.len(),
        "row {row} is outside the matrix"
    );
    let device = matrix.device().clone();
    let start = matrix.as_mut_ptr().wrapping_add(row as usize * columns);
    // SAFETY: the row lies within `matrix`, checked above, which the callers here keep longer.
    Ok(unsafe { DeviceBuffer::from_raw(&device, start, columns)? })
}
