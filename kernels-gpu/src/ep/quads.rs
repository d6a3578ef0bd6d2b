//! Scales that rows share vectors of.
//!
//! In [tiles](crate::scale_tile), and where scales are transposed, the scales of different rows lie side by side.
//! To store them row by row would touch a sector of memory for every four bytes. So a warp takes a *quad*: the four
//! rows of a group whose scales are 16 consecutive bytes in each column, where a column is 4 bytes of a message's
//! scales.
//!
//! | | column | row `j` of quad `q` of a group |
//! | --- | --- | --- |
//! | tiles | 4 blocks | `q / 32 * 128 + q % 32 + 32 j` |
//! | transposed | 1 block | `4 q + j` |
//!
//! Quads are dealt to warps in runs of equal length, to the last warps first: the first have rows to copy where
//! there are fewer rows than warps.
//!
//! Rows that the last tile of a group has beyond the group are zero. Nothing else is to be done for the shared
//! expert, whose rows the sender has written.

use super::copy::Copier;
use super::faults::Fault;
use super::format::{ScaleLayout, TokenFormat};
use super::output::ReceivedMessage;
use crate::WARP;
use crate::scale_tile::{TILE_BYTES, TILE_ROWS};
use crate::search::Candidates;
use core::simd::u32x4;
use cuda_std::view::{IndirectView, IndirectViewMut};
use cuda_std::{thread, warp};

/// Rows of a quad.
const ROWS: usize = 4;

/// Quads of a tile.
const TILE_QUADS: u32 = TILE_ROWS / ROWS as u32;

impl ScaleLayout {
    /// Quads of a group of `rows` rows.
    #[inline(always)]
    const fn quads(self, rows: u32) -> u32 {
        match self {
            Self::Tiles => rows.div_ceil(TILE_ROWS) * TILE_QUADS,
            _ => rows.div_ceil(ROWS as u32),
        }
    }

    /// The row of its group that row `index` of quad `quad` is.
    #[inline(always)]
    const fn quad_row(self, quad: u32, index: u32) -> u32 {
        match self {
            Self::Tiles => quad / TILE_QUADS * TILE_ROWS + quad % TILE_QUADS + index * TILE_QUADS,
            _ => quad * ROWS as u32 + index,
        }
    }
}

/// What becomes of the scales of a row.
#[derive(Clone, Copy)]
enum Row {
    /// Those of a message.
    Of(ReceivedMessage),
    Zero,
    /// They are somebody else's, or nobody's.
    Kept,
}

impl Row {
    /// Vector `index` of a message.
    #[inline(always)]
    fn vector(self, index: usize) -> u32x4 {
        match self {
            Self::Of(message) => message.view().load(index),
            _ => u32x4::from_array([0; 4]),
        }
    }

    #[inline(always)]
    fn is_kept(self) -> bool {
        matches!(self, Self::Kept)
    }
}

impl Copier<'_> {
    /// Writes the scales of this warp's share of all quads. Called by whole warps.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows).
    #[inline(always)]
    pub(super) unsafe fn copy_scale_quads<F: TokenFormat>(self, warp: u32, warps: u32) {
        let groups = self.shape.groups();
        let quads = self.first_quad::<F>(groups - 1) + self.quads_of::<F>(groups - 1);
        let run = quads.div_ceil(warps.max(1));
        let mut quad = ((warps - 1 - warp) * run).min(quads);
        let end = (quad + run).min(quads);
        if quad == end {
            return;
        }
        let mut group = Candidates::below(groups).last(|group| self.first_quad::<F>(group) <= quad);
        while quad < end {
            let first = self.first_quad::<F>(group);
            let group_end = (first + self.quads_of::<F>(group)).min(end);
            while quad < group_end {
                // SAFETY: the caller's obligation; nobody else has this quad.
                unsafe { self.copy_quad::<F>(group, quad, quad - first) };
                quad += 1;
            }
            group += 1;
        }
    }

    /// The first quad of a group.
    #[inline(always)]
    fn first_quad<F: TokenFormat>(self, group: u32) -> u32 {
        let first_row = self.row_offsets().load(group as usize);
        match F::SCALES {
            ScaleLayout::Tiles => {
                let groups = self.shape.groups() as usize;
                // SAFETY: by the contract of `copy_rows`.
                let offsets =
                    unsafe { IndirectViewMut::new(self.rank.output.scales_offsets, groups) };
                let first_tile = (first_row / TILE_ROWS).wrapping_add(offsets.load(group as usize));
                first_tile * TILE_QUADS
            }
            _ => first_row / ROWS as u32,
        }
    }

    #[inline(always)]
    fn quads_of<F: TokenFormat>(self, group: u32) -> u32 {
        let row_offsets = self.row_offsets();
        let rows = row_offsets.load(group as usize + 1) - row_offsets.load(group as usize);
        F::SCALES.quads(rows)
    }

    /// Writes the scales of quad `quad` of all, number `number` of its group.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows), and nobody else has the quad.
    #[inline(always)]
    unsafe fn copy_quad<F: TokenFormat>(self, group: u32, quad: u32, number: u32) {
        // SAFETY: the caller's obligation.
        let [a, b, c, d] = unsafe { self.quad_rows::<F>(group, number) };
        let is_whole = !(a.is_kept() || b.is_kept() || c.is_kept() || d.is_kept());
        let columns = self.layout.scale_bytes.div_ceil(4);
        let vector = |column: u32| match F::SCALES {
            ScaleLayout::Tiles => {
                let tile = quad / TILE_QUADS * columns + column;
                tile as usize * (TILE_BYTES / 16) + (quad % TILE_QUADS) as usize
            }
            _ => column as usize * (self.shape.scale_stride / 4) as usize + quad as usize,
        };
        let vectors = vector(columns - 1) + 1;
        // SAFETY: the caller's obligation.
        let (scales, words) = unsafe {
            let base = self.rank.output.scales;
            (
                IndirectViewMut::<u32x4>::new(base.cast(), vectors),
                IndirectViewMut::<u32>::new(base.cast(), vectors * ROWS),
            )
        };
        let first = self.layout.scales_offset as usize / 16;
        let mut four = thread::thread_idx_x() % WARP;
        while four * 4 < columns {
            let index = first + four as usize;
            let of_rows = [
                a.vector(index),
                b.vector(index),
                c.vector(index),
                d.vector(index),
            ];
            let store = |next: usize| {
                let column = four * 4 + next as u32;
                if column >= columns {
                    return;
                }
                let [a4, b4, c4, d4] = of_rows;
                let value = u32x4::from_array([a4[next], b4[next], c4[next], d4[next]]);
                if is_whole {
                    return scales.store(vector(column), value);
                }
                let store_word = |row: Row, index: usize| {
                    if !row.is_kept() {
                        words.store(vector(column) * ROWS + index, value[index]);
                    }
                };
                store_word(a, 0);
                store_word(b, 1);
                store_word(c, 2);
                store_word(d, 3);
            };
            store(0);
            store(1);
            store(2);
            store(3);
            four += WARP;
        }
    }

    /// What becomes of each row of quad `number` of a group.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows).
    #[inline(always)]
    unsafe fn quad_rows<F: TokenFormat>(self, group: u32, number: u32) -> [Row; ROWS] {
        let clears =
            F::SCALES == ScaleLayout::Tiles && !self.shape.plants(Fault::TileEndsNotCleared);
        let beyond = if clears { Row::Zero } else { Row::Kept };
        let rows = [0, 1, 2, 3].map(|index| F::SCALES.quad_row(number, index));
        let Some(expert) = group.checked_sub(self.shape.first_routed_group()) else {
            let shared_rows = self.row_offsets().load(1);
            return rows.map(|row| if row < shared_rows { Row::Kept } else { beyond });
        };
        let sources = self.shape.sources();
        let first_pair = expert * sources;
        let rows_before = self.counters.rows_before_pair(first_pair);
        let rows_end = self.counters.rows_before_pair(first_pair + sources);
        let rows = rows.map(|row| rows_before + row);

        // Before a row's pair come as many of its expert's as end before the row.
        let mut pairs = [first_pair; ROWS];
        let mut first = 0;
        while first < sources {
            let source = first + thread::thread_idx_x() % WARP;
            let end = if source < sources {
                self.counters
                    .row_ends()
                    .load((first_pair + source) as usize)
            } else {
                u32::MAX
            };
            let before = rows.map(|row| {
                // SAFETY: all lanes are here: quads are handed out to whole warps.
                unsafe { warp::warp_vote_ballot(u32::MAX, end <= row) }.count_ones()
            });
            pairs[0] += before[0];
            pairs[1] += before[1];
            pairs[2] += before[2];
            pairs[3] += before[3];
            first += WARP;
        }
        let becomes = |index: usize| {
            if rows[index] >= rows_end {
                return beyond;
            }
            let pair = pairs[index];
            let slot = rows[index] - self.counters.rows_before_pair(pair);
            let (capacity, (_, source)) = (self.shape.capacity, self.shape.split_pair(pair));
            // SAFETY: the caller's obligation: C numbers for each pair. The count says that this slot is taken, and
            // the message that took it is one of the source's.
            Row::Of(unsafe {
                let numbers = self.own.numbers(self.shape, self.layout, pair);
                let numbers = IndirectView::new(numbers, capacity as usize);
                self.message(source, numbers.load(slot as usize).min(capacity - 1))
            })
        };
        [becomes(0), becomes(1), becomes(2), becomes(3)]
    }
}
