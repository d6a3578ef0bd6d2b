//! Where a row's scales lie in the scales tensor.

use super::{Setup, scale_columns};
use crate::ep::TokenFormat;
use crate::routing::max_tiles;

/// Rows of a 128x4 scale tile.
const TILE_ROWS: usize = 128;
/// Bytes of one.
const TILE_BYTES: usize = 512;

/// The layout of a scales tensor. Extents: `rows` is what the outputs have room for, KS the scales of a
/// row, ng the groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleLayout {
    /// There are no scales.
    None,
    /// `[rows, KS]` bytes.
    RowMajor,
    /// `[ng * M, KS]` bytes, permuted within bands of 32 rows and atoms of 8 columns.
    Slots {
        /// M: rows of a group's slot.
        rows: usize,
    },
    /// `[KS, rows]` FP32 values, `rows` rounded up to a multiple of 4.
    Transposed,
    /// `[tiles, ceil(KS / 4), 32, 4, 4]` bytes; each group begins with a tile of its own, whose unused
    /// bytes are 0.
    Tiles,
}

impl ScaleLayout {
    /// The layout that a setup leads to.
    pub fn of(setup: &Setup) -> Self {
        match (setup.format, setup.scale_preshuffle) {
            (TokenFormat::Bf16, _) => Self::None,
            (TokenFormat::Fp8Block128, _) => Self::Transposed,
            (TokenFormat::Nvfp4, _) => Self::Tiles,
            (_, Some(rows)) => Self::Slots { rows },
            (_, None) => Self::RowMajor,
        }
    }

    /// Bytes of the tensor.
    pub fn bytes(self, setup: &Setup) -> usize {
        let (columns, bytes) = scale_columns(setup.format, setup.hidden_size);
        let rows = setup.max_received_rows();
        match self {
            Self::None => 0,
            Self::RowMajor => rows * columns,
            Self::Transposed => columns * transposed_rows(setup) * bytes,
            Self::Slots { rows } => setup.groups() * rows * columns,
            Self::Tiles => max_tiles(rows, setup.groups()) * tile_row_bytes(columns),
        }
    }

    /// Byte offset of scale `column` of a row: row `local_row` of `group`, whose first row is `row_start`
    /// and whose first tile is `tile_start`.
    pub fn offset(
        self,
        setup: &Setup,
        group: usize,
        row_start: usize,
        tile_start: usize,
        local_row: usize,
        column: usize,
    ) -> usize {
        let (columns, bytes) = scale_columns(setup.format, setup.hidden_size);
        let row = row_start + local_row;
        match self {
            Self::None => 0,
            Self::RowMajor => row * columns + column,
            Self::Transposed => (column * transposed_rows(setup) + row) * bytes,
            Self::Slots { rows } => slot_offset(rows, columns, group, local_row, column),
            Self::Tiles => {
                let tile_row = tile_start + local_row / TILE_ROWS;
                let (in_tile, tile_column) = (local_row % TILE_ROWS, column / 4);
                tile_row * tile_row_bytes(columns)
                    + tile_column * TILE_BYTES
                    + in_tile % 32 * 16
                    + in_tile / 32 * 4
                    + column % 4
            }
        }
    }
}

/// Rows that transposed scales have room for: whole units of 16 bytes.
fn transposed_rows(setup: &Setup) -> usize {
    setup.max_received_rows().next_multiple_of(4)
}

/// Bytes of the scale tiles side by side in a row.
pub(super) fn tile_row_bytes(columns: usize) -> usize {
    columns.div_ceil(4) * TILE_BYTES
}

/// The preshuffled layout: off(z, r, k) of the definition.
fn slot_offset(slot_rows: usize, columns: usize, z: usize, r: usize, k: usize) -> usize {
    z * slot_rows * columns
        + (r / 32) * (32 * columns)
        + (k / 8) * 256
        + (k % 4) * 64
        + (r % 16) * 4
        + (k / 4 % 2) * 2
        + r / 16 % 2
}
