//! How many threads a block has, and how much it takes of a row.

use super::QuantizeError;
use crate::device::Device;
use crate::options::Format;
use kernels_gpu::quantize::{MAX_RUNS_PER_BLOCK, MAX_THREADS_BEFORE_9_0, RUN_COLUMNS};
use kernels_gpu::scale_tile::TILE_ROWS;

const WARP: u32 = 32;

/// What large problems take.
const USUAL_THREADS: u32 = 256;

/// From so many waves of usual blocks on, NVFP4 is faster with blocks of half the size; below, and for the other formats, they
/// are slower.
const WAVES_FOR_HALVES: u64 = 8;

/// Rows that a warp takes one after another, if that spares a second wave of blocks.
const ROWS_PER_WARP: usize = 8;

/// Threads of a block, and the runs that it takes: each run has `threads / 32 / runs` warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockShape {
    pub(super) threads: u32,
    pub(super) runs: u32,
}

/// What a device has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Threads of the kernel that run at once.
    threads: u64,
    /// The most of a block.
    most: u32,
}

impl Room {
    /// For a kernel of which `threads` run on a multiprocessor at once.
    pub(super) fn new(device: &Device, threads: u32) -> Self {
        let most = if device.compute_capability() < (9, 0) {
            threads.min(MAX_THREADS_BEFORE_9_0)
        } else {
            threads
        };
        Self {
            threads: u64::from(threads) * u64::from(device.backend().multiprocessors()),
            most,
        }
    }

    /// The shape that somebody asked for: of `threads`, `runs` or both.
    pub(super) fn checked(
        self,
        threads: Option<u32>,
        runs: Option<u32>,
    ) -> Result<Option<BlockShape>, QuantizeError> {
        if (threads, runs) == (None, None) {
            return Ok(None);
        }
        let runs = runs.unwrap_or(1);
        if !(runs.is_power_of_two() && runs <= MAX_RUNS_PER_BLOCK) {
            return Err(QuantizeError::RunsPerBlock {
                found: runs,
                most: MAX_RUNS_PER_BLOCK,
            });
        }
        let threads = threads.unwrap_or(USUAL_THREADS);
        if threads == 0 || threads > self.most || !threads.is_multiple_of(WARP * runs) {
            return Err(QuantizeError::ThreadsPerBlock {
                found: threads,
                multiple: WARP * runs,
                most: self.most,
            });
        }
        Ok(Some(BlockShape { threads, runs }))
    }

    /// The shape for `rows` rows of `columns` columns in `slots` slots, as `format`.
    ///
    /// The number of pieces, a row tile by a run each, follows from the problem. If they are few, the time is that of one
    /// block: as many warps as there is room for, and rows, share its rows. If smaller blocks let all pieces run at
    /// once, they do, as long as a warp does not get too many rows. Pieces with next to no rows come two to a block, since a
    /// multiprocessor takes only 32 blocks. How far each of this goes was measured (`docs/performance.md`).
    pub(super) fn shape(
        self,
        format: Format,
        rows: usize,
        columns: u32,
        slots: usize,
    ) -> BlockShape {
        let tile_rows = TILE_ROWS as usize;
        let runs = columns.div_ceil(RUN_COLUMNS).max(1);
        // The last tile of a slot is half full on average.
        let occupied = slots.min(rows);
        let tiles = occupied.max(rows / tile_rows + occupied / 2).max(1);
        let pieces = tiles as u64 * u64::from(runs);
        let piece_rows = rows.div_ceil(slots.max(1)).clamp(1, tile_rows);

        let usual_blocks = self.threads / u64::from(USUAL_THREADS);
        if format == Format::Nvfp4 && pieces >= WAVES_FOR_HALVES * usual_blocks {
            return BlockShape {
                threads: USUAL_THREADS / 2,
                runs: 1,
            };
        }

        // The nearest power of two: a few blocks may have to wait.
        let fit = (self.threads + self.threads * 2 / 5) / pieces;
        let fit = fit.clamp(1, self.most.into()) as u32;
        let for_rows = |rows: usize| WARP * rows.next_power_of_two() as u32;
        let least = for_rows(piece_rows.div_ceil(ROWS_PER_WARP)).clamp(2 * WARP, USUAL_THREADS);
        let most = for_rows(piece_rows)
            .clamp(USUAL_THREADS, 2 * USUAL_THREADS)
            .min(self.most);
        let threads = (1 << fit.ilog2()).clamp(least, most);

        let runs = (USUAL_THREADS / 2 / threads)
            .max(1)
            .min(runs.next_power_of_two());
        BlockShape {
            threads: threads * runs,
            runs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H200, and 16-bit input.
    const ROOM: Room = Room {
        threads: 132 * 1024,
        most: 1024,
    };

    #[test]
    fn shapes_are_those_that_were_fastest() {
        let cases = [
            // rows, columns, slots: threads, runs
            (32768, 7168, 64, 256, 1),
            (8192, 2880, 128, 256, 1),
            (2048, 2880, 128, 128, 1),
            (4096, 4096, 128, 128, 1),
            (2048, 4096, 8, 512, 1),
            (512, 4096, 32, 512, 1),
            (192, 4096, 8, 512, 1),
            (192, 4096, 32, 256, 1),
            (192, 4096, 128, 128, 1),
            (192, 4096, 256, 128, 2),
            (192, 7168, 256, 128, 2),
            (1, 7168, 256, 256, 1),
        ];
        for (rows, columns, slots, threads, runs) in cases {
            for format in Format::ALL {
                assert_eq!(
                    ROOM.shape(format, rows, columns, slots),
                    BlockShape { threads, runs },
                    "{format}: {rows} x {columns} over {slots}"
                );
            }
        }
        for (rows, columns, slots) in [(65536, 4096, 256), (131072, 2048, 1024)] {
            let threads =
                Format::ALL.map(|format| ROOM.shape(format, rows, columns, slots).threads);
            let expected = Format::ALL.map(|format| match format {
                Format::Nvfp4 => 128,
                _ => 256,
            });
            assert_eq!(threads, expected, "{rows} x {columns} over {slots}");
        }
    }

    #[test]
    fn every_problem_has_a_shape_that_can_be_asked_for() {
        let sizes = [0, 1, 2, 31, 129, 5000, 1 << 20, (1 << 31) - 1];
        let rooms = [
            (132 * 1024, 1024),
            (132 * 768, 768),
            (512, 512),
            (4096, 256),
        ];
        for (threads, most) in rooms {
            let room = Room { threads, most };
            for rows in sizes {
                for slots in sizes {
                    for columns in [8, 512, 520, 4096, (1 << 30) - 8] {
                        for format in Format::ALL {
                            let shape = room.shape(format, rows, columns, slots);
                            let BlockShape { threads, runs } = shape;
                            let asked = room.checked(Some(threads), Some(runs)).unwrap();
                            assert_eq!(asked, Some(shape));
                        }
                    }
                }
            }
        }
    }
}
