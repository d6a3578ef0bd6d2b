//! The 128x4 layout of block scales.
//!
//! Block-scaled matrix instructions read the scales of 128 rows and 4 blocks as one *scale tile* of
//! 512 contiguous bytes. Within a tile, rows `r`, `r + 32`, `r + 64` and `r + 96` share a 16-byte
//! group, 4 bytes (one per block) each:
//!
//! ```text
//! byte in tile = (row % 32) * 16 + (row / 32) * 4 + block % 4        row < 128
//! ```
//!
//! Tiles are stored row-major as `[row tile, column tile]`, so a scales tensor has the shape
//! `[Mt, Kt, 32, 4, 4]`. Each expert's rows begin on a fresh row tile.

/// Rows in a scale tile.
pub const TILE_ROWS: u32 = 128;

/// Blocks, that is scales, in one row of a scale tile.
pub const TILE_BLOCKS: u32 = 4;

/// Bytes of a scale tile.
pub const TILE_BYTES: usize = (TILE_ROWS * TILE_BLOCKS) as usize;

/// Offset of the scale of `row` (below 128) and `block` (below 4) inside its tile, in bytes.
///
/// ```
/// use kernels_gpu::scale_tile::offset_in_tile;
/// assert_eq!(offset_in_tile(37, 2), 5 * 16 + 1 * 4 + 2);
/// ```
#[inline(always)]
pub const fn offset_in_tile(row: u32, block: u32) -> usize {
    ((row % 32) * 16 + (row / 32) * 4 + block) as usize
}

/// Offset of the scale of `row` (below 128, in row tile `row_tile`) and `block` (along the whole
/// row) inside a scales tensor of `column_tiles` column tiles, in bytes.
///
/// ```
/// use kernels_gpu::scale_tile::offset_in_tensor;
/// // Local row 199 of an expert that starts at row tile 1, block 100 of 176.
/// assert_eq!(offset_in_tensor(1 + 199 / 128, 199 % 128, 100, 44), 57976);
/// ```
#[inline(always)]
pub const fn offset_in_tensor(row_tile: u32, row: u32, block: u32, column_tiles: u32) -> usize {
    let tile = row_tile as usize * column_tiles as usize + (block / TILE_BLOCKS) as usize;
    tile * TILE_BYTES + offset_in_tile(row, block % TILE_BLOCKS)
}

/// How a scale tile lies in shared memory when a tensor map with a swizzle mode stores it.
///
/// The copy engine permutes 16-byte chunks: within a span of 32, 64 or 128 bytes, the index of the
/// chunk is XORed with the index of the 128-byte line, modulo the chunks of the span. Staging with the
/// same permutation makes the copy engine undo it, so the bytes that reach global memory do not depend
/// on the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// Staged in order.
    None,
    /// Within 32 bytes.
    B32,
    /// Within 64 bytes.
    B64,
    /// Within 128 bytes.
    B128,
}

impl Swizzle {
    /// Bytes of the span. A tensor map describes a tile in rows of so many; without a permutation, any
    /// length serves: 128.
    pub const fn span_bytes(self) -> u32 {
        match self {
            Swizzle::None | Swizzle::B128 => 128,
            Swizzle::B64 => 64,
            Swizzle::B32 => 32,
        }
    }

    /// The address bits that are flipped: bits 4 to 6, by bits 7 to 9.
    pub const fn mask(self) -> u32 {
        match self {
            Swizzle::None => 0,
            Swizzle::B32 => 0x10,
            Swizzle::B64 => 0x30,
            Swizzle::B128 => 0x70,
        }
    }
}

/// Where the byte at `offset` of the staging area goes under a [`Swizzle::mask`]. The area must be
/// aligned to 1024 bytes: the hardware looks at address bits, not at offsets.
#[inline(always)]
pub const fn swizzled(offset: u32, mask: u32) -> u32 {
    offset ^ ((offset >> 3) & mask)
}
