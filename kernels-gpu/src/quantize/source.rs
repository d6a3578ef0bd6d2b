//! The reading side: which bytes of the input a lane gets.

use crate::formats::InputFormat;
use core::simd::u32x4;
use cuda_std::math;
use cuda_std::view::GlobalView;

/// The rows of a tile, as one lane reads them.
#[derive(Clone, Copy)]
pub(super) struct Source {
    /// First row, in the order of the whole tensor, and number of rows, at least 1.
    pub first_row: u32,
    pub rows: u32,
    /// The first of the two chunks of a row that this lane handles; may be beyond the row's end.
    pub chunk: u32,
    pub chunks_per_row: u32,
    /// From this lane's first chunk of the first row on, or from the row's last chunk if that is less.
    pub input: GlobalView<u32x4>,
    pub input_rows: u32,
    /// Bytes from a row to the next.
    pub pitch: u32,
    pub source_rows: Option<GlobalView<i32>>,
}

/// What a lane has read of a row.
#[derive(Clone, Copy)]
pub(super) struct Loaded<I: InputFormat> {
    pub first: I::Chunk,
    pub second: I::Chunk,
    /// Whether the input has this row.
    pub exists: bool,
}

impl<I: InputFormat> Loaded<I> {
    /// What there is to read of an input without rows.
    #[inline(always)]
    pub fn nothing() -> Self {
        Self {
            first: I::zeros(),
            second: I::zeros(),
            exists: false,
        }
    }
}

impl Source {
    /// Whether the lane's first chunk is part of the row.
    #[inline(always)]
    pub fn has_chunk(self) -> bool {
        self.chunk < self.chunks_per_row
    }

    /// Whether the lane's second chunk is part of the row.
    #[inline(always)]
    pub fn has_second_chunk(self) -> bool {
        self.chunk + 1 < self.chunks_per_row
    }

    /// The input row that `row` of the tile comes from; as a large number if it is negative.
    #[inline(always)]
    fn source_row(self, row: u32) -> u32 {
        let row = self.first_row + row;
        match self.source_rows {
            Some(rows) => rows.load(row as usize) as u32,
            None => row,
        }
    }

    /// Bytes from the first chunk to the second, or to the same again if there is no second.
    #[inline(always)]
    fn to_second<I: InputFormat>(self) -> usize {
        if self.has_second_chunk() {
            I::VECTORS * size_of::<u32x4>()
        } else {
            0
        }
    }

    /// This lane's chunks of `row`, read without a branch: what does not exist is replaced by the
    /// nearest that does. A last chunk taken twice does not change the largest magnitude of its block,
    /// and nobody stores it twice. The input has at least one row.
    #[inline(always)]
    pub fn load_nearest<I: InputFormat>(self, row: u32) -> Loaded<I> {
        let source = self.source_row(row.min(self.rows - 1));
        let start = math::mul_wide(source.min(self.input_rows - 1), self.pitch) as usize;
        Loaded {
            first: I::load_at(self.input, start),
            second: I::load_at(self.input, start + self.to_second::<I>()),
            exists: source < self.input_rows,
        }
    }

    /// Chunk `which` (0 or 1) of this lane in `row`, which is below `rows`; zeros where there is none.
    #[inline(always)]
    pub fn load_or_zeros<I: InputFormat>(self, row: u32, which: u32) -> I::Chunk {
        let source = self.source_row(row);
        if source < self.input_rows && self.chunk + which < self.chunks_per_row {
            let chunk_bytes = I::VECTORS * size_of::<u32x4>();
            let start = math::mul_wide(source, self.pitch) as usize;
            I::load_at(self.input, start + which as usize * chunk_bytes)
        } else {
            I::zeros()
        }
    }
}
