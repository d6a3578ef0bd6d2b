//! Holding what a rank received to what it must have received.

use std::collections::HashMap;
use std::fmt;

use super::rows::ExpectedRows;
use super::scales::{ScaleLayout, tile_row_bytes};
use super::{MessageParts, QuantizedTokens, scale_columns};

/// Whether the rows of a cell have an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any: arrival decides.
    Free,
    /// That of the tokens.
    Tokens,
}

/// The outputs of a rank, whole: everything that was allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedBytes {
    /// `[rows, payload]`
    pub tokens: Vec<u8>,
    /// As [`ScaleLayout`] says; empty where there are none.
    pub scales: Vec<u8>,
    /// `[ng + 1]`
    pub row_offsets: Vec<u32>,
    /// `[ng]`
    pub expert_ids: Vec<i32>,
    /// `[rows, 2]`: token index on the source rank, and position k.
    pub src_info: Vec<[i32; 2]>,
    /// `[ng]`; empty in formats without 128x4 tiles.
    pub scales_offsets: Vec<u32>,
}

/// The first thing that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowMismatch {
    /// A tensor has another length.
    #[error("rank {rank}: {what} has {found} entries where {expected} are needed")]
    Length {
        /// The rank.
        rank: usize,
        /// The tensor.
        what: &'static str,
        /// Entries it should have.
        expected: usize,
        /// Entries it has.
        found: usize,
    },
    /// An entry of `row_offsets`, `expert_ids` or `scales_offsets` is wrong.
    #[error("rank {rank}: {what}[{index}] is {found}, not {expected}")]
    Word {
        /// The rank.
        rank: usize,
        /// The tensor.
        what: &'static str,
        /// Its entry.
        index: usize,
        /// What it should be.
        expected: i64,
        /// What it is.
        found: i64,
    },
    /// A row is said to be of a (token, k) that its cell does not have, or has in another row already.
    #[error(
        "rank {rank}: row {row} claims token {} position {} of rank {source_rank}, which local expert {expert} {problem}",
        pair[0], pair[1]
    )]
    Source {
        /// The rank.
        rank: usize,
        /// The row.
        row: usize,
        /// The rank that it came from.
        source_rank: usize,
        /// The local expert.
        expert: usize,
        /// What `src_info` says.
        pair: [i32; 2],
        /// What is wrong with that.
        problem: SourceProblem,
    },
    /// A byte differs, of a row, of its scales, or of what must not have been written.
    #[error(
        "rank {rank}: {differing} bytes of {what} differ, first byte {index} ({place}): {found:#04x}, not {expected:#04x}"
    )]
    Bytes {
        /// The rank.
        rank: usize,
        /// The tensor.
        what: &'static str,
        /// The first byte that differs.
        index: usize,
        /// Where it is.
        place: String,
        /// What it should be.
        expected: u8,
        /// What it is.
        found: u8,
        /// How many differ.
        differing: usize,
    },
}

/// What is wrong with a claimed source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceProblem {
    /// The token does not go to that expert from that position.
    NotSent,
    /// Another row is of the same (token, k).
    Twice,
    /// It belongs into another row of the cell.
    OutOfOrder,
}

impl fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "does not get",
            Self::Twice => "has in an earlier row",
            Self::OutOfOrder => "has in another row",
        })
    }
}

impl ExpectedRows {
    /// Compares with what was received. `quantized` has every rank's tokens (under skip mode only this
    /// rank's are looked at), `before` is what the outputs held before.
    ///
    /// Every byte counts: rows and their scales must be those of the tokens that `src_info` names, which
    /// must be the tokens sent; everything else must be as before, but for the unused bytes of scale
    /// tiles, which must be 0.
    ///
    /// # Errors
    /// The first [`RowMismatch`].
    ///
    /// # Panics
    /// Panics when `quantized` lacks a rank.
    pub fn check(
        &self,
        quantized: &[QuantizedTokens],
        before: &ReceivedBytes,
        received: &ReceivedBytes,
        order: Order,
    ) -> Result<(), RowMismatch> {
        self.check_lengths("received", received)?;
        self.check_lengths("before", before)?;
        self.check_words(received)?;
        let sources = self.check_sources(received, order)?;
        let image = self.image(quantized, before, &sources);
        self.check_bytes(&image, received)
    }

    /// What the outputs hold after a dispatch that put the rows of each cell in the order of tokens.
    ///
    /// # Panics
    /// Panics when `quantized` lacks a rank, or `before` is shorter than the setup's outputs.
    pub fn in_token_order(
        &self,
        quantized: &[QuantizedTokens],
        before: &ReceivedBytes,
    ) -> ReceivedBytes {
        let pairs = |cell: &super::Cell| cell.pairs.clone();
        self.image(
            quantized,
            before,
            &self.cells.iter().map(pairs).collect::<Vec<_>>(),
        )
    }

    fn check_lengths(&self, what: &'static str, it: &ReceivedBytes) -> Result<(), RowMismatch> {
        let (setup, rows) = (&self.setup, self.setup.max_received_rows());
        let parts = MessageParts::new(setup.format, setup.hidden_size, setup.top_k);
        let layout = ScaleLayout::of(setup);
        let tiled = layout == ScaleLayout::Tiles;
        let groups = setup.groups();
        for (name, expected, found) in [
            ("tokens", rows * parts.payload_bytes, it.tokens.len()),
            ("scales", layout.bytes(setup), it.scales.len()),
            ("row_offsets", groups + 1, it.row_offsets.len()),
            ("expert_ids", groups, it.expert_ids.len()),
            ("src_info", rows, it.src_info.len()),
            (
                "scales_offsets",
                if tiled { groups } else { 0 },
                it.scales_offsets.len(),
            ),
        ] {
            if expected != found {
                let what = if what == "before" {
                    "the background"
                } else {
                    name
                };
                let rank = self.rank;
                return Err(RowMismatch::Length {
                    rank,
                    what,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    fn check_words(&self, received: &ReceivedBytes) -> Result<(), RowMismatch> {
        let wide = |words: &[u32]| {
            words
                .iter()
                .map(|&word| i64::from(word))
                .collect::<Vec<_>>()
        };
        let ids = |words: &[i32]| {
            words
                .iter()
                .map(|&word| i64::from(word))
                .collect::<Vec<_>>()
        };
        let tiles = &self.scales_offsets[..received.scales_offsets.len()];
        for (what, expected, found) in [
            (
                "row_offsets",
                wide(&self.row_offsets),
                wide(&received.row_offsets),
            ),
            (
                "expert_ids",
                ids(&self.expert_ids),
                ids(&received.expert_ids),
            ),
            (
                "scales_offsets",
                wide(tiles),
                wide(&received.scales_offsets),
            ),
        ] {
            let differs = (0..expected.len()).find(|&index| expected[index] != found[index]);
            if let Some(index) = differs {
                return Err(RowMismatch::Word {
                    rank: self.rank,
                    what,
                    index,
                    expected: expected[index],
                    found: found[index],
                });
            }
        }
        Ok(())
    }

    /// For each cell, the (token, k) of its rows as received, after checking that they are those sent.
    fn check_sources(
        &self,
        received: &ReceivedBytes,
        order: Order,
    ) -> Result<Vec<Vec<(usize, usize)>>, RowMismatch> {
        let cells = self.cells.iter().enumerate();
        cells
            .map(|(index, cell)| {
                let mut open: HashMap<_, bool> =
                    cell.pairs.iter().map(|&pair| (pair, true)).collect();
                let rows = cell.rows.clone().zip(&cell.pairs);
                rows.map(|(row, &in_order)| {
                    let pair = received.src_info[row];
                    let wrong = |problem| RowMismatch::Source {
                        rank: self.rank,
                        row,
                        source_rank: self.source_of_cell(index),
                        expert: index / self.setup.sources(),
                        pair,
                        problem,
                    };
                    let named = usize::try_from(pair[0])
                        .ok()
                        .zip(usize::try_from(pair[1]).ok())
                        .ok_or_else(|| wrong(SourceProblem::NotSent))?;
                    match open.insert(named, false) {
                        None => Err(wrong(SourceProblem::NotSent)),
                        Some(false) => Err(wrong(SourceProblem::Twice)),
                        Some(true) if order == Order::Tokens && named != in_order => {
                            Err(wrong(SourceProblem::OutOfOrder))
                        }
                        Some(true) => Ok(named),
                    }
                })
                .collect()
            })
            .collect()
    }

    /// The outputs whole, when the rows of each cell are of these (token, k).
    fn image(
        &self,
        quantized: &[QuantizedTokens],
        before: &ReceivedBytes,
        sources: &[Vec<(usize, usize)>],
    ) -> ReceivedBytes {
        let mut image = before.clone();
        image.row_offsets = self.row_offsets.clone();
        image.expert_ids = self.expert_ids.clone();
        let layout = ScaleLayout::of(&self.setup);
        if layout == ScaleLayout::Tiles {
            image.scales_offsets = self.scales_offsets.clone();
            self.clear_tiles(&mut image.scales);
        }
        let own = &quantized[self.rank];
        for (row, token) in self.shared_tokens.clone().enumerate() {
            self.put_row(&mut image, own, token, 0, row);
        }
        for (index, (cell, pairs)) in self.cells.iter().zip(sources).enumerate() {
            let source = &quantized[self.source_of_cell(index)];
            let group = self.group_of_cell(index);
            for (row, &(token, k)) in cell.rows.clone().zip(pairs) {
                self.put_row(&mut image, source, token, group, row);
                image.src_info[row] = [token as i32, k as i32];
            }
        }
        image
    }

    /// Zeros in every tile that a group has rows in.
    fn clear_tiles(&self, scales: &mut [u8]) {
        let (columns, _) = scale_columns(self.setup.format, self.setup.hidden_size);
        let tiles: u32 = self.group_rows.iter().map(|rows| rows.div_ceil(128)).sum();
        scales[..tiles as usize * tile_row_bytes(columns)].fill(0);
    }

    fn put_row(
        &self,
        image: &mut ReceivedBytes,
        source: &QuantizedTokens,
        token: usize,
        group: usize,
        row: usize,
    ) {
        let (setup, layout) = (&self.setup, ScaleLayout::of(&self.setup));
        let payload = source.payload(token);
        image.tokens[row * payload.len()..][..payload.len()].copy_from_slice(payload);
        let (_, bytes) = scale_columns(setup.format, setup.hidden_size);
        let start = self.row_offsets[group] as usize;
        let tile = (self.row_offsets[group] / 128).wrapping_add(self.scales_offsets[group]);
        for (column, scale) in source.scales(token).chunks(bytes.max(1)).enumerate() {
            let offset = layout.offset(setup, group, start, tile as usize, row - start, column);
            image.scales[offset..][..bytes].copy_from_slice(scale);
        }
    }

    fn check_bytes(
        &self,
        expected: &ReceivedBytes,
        received: &ReceivedBytes,
    ) -> Result<(), RowMismatch> {
        let row_bytes = expected.tokens.len() / expected.src_info.len().max(1);
        let as_bytes = |info: &[[i32; 2]]| -> Vec<u8> {
            let words = info.iter().flatten();
            words.flat_map(|word| word.to_le_bytes()).collect()
        };
        let source_bytes = [as_bytes(&expected.src_info), as_bytes(&received.src_info)];
        let [expected_info, found_info] = &source_bytes;
        for (what, row_bytes, expected, found) in [
            ("tokens", row_bytes, &expected.tokens, &received.tokens),
            ("scales", 0, &expected.scales, &received.scales),
            ("src_info", 8, expected_info, found_info),
        ] {
            let mut differing = (0..expected.len()).filter(|&at| expected[at] != found[at]);
            if let Some(index) = differing.next() {
                let place = match index.checked_div(row_bytes) {
                    Some(row) => self.place_of_row(row, index % row_bytes),
                    None => self.place_of_scale(index),
                };
                return Err(RowMismatch::Bytes {
                    rank: self.rank,
                    what,
                    index,
                    place,
                    expected: expected[index],
                    found: found[index],
                    differing: 1 + differing.count(),
                });
            }
        }
        Ok(())
    }

    fn place_of_row(&self, row: usize, byte: usize) -> String {
        match self.group_of_row(row) {
            Some(group) => format!("row {row} of group {group}, byte {byte}"),
            None => format!("row {row}, which nothing was sent to, byte {byte}"),
        }
    }

    fn group_of_row(&self, row: usize) -> Option<usize> {
        let starts = self.row_offsets.iter().zip(&self.group_rows);
        starts
            .map(|(&start, &rows)| start as usize..(start + rows) as usize)
            .position(|rows| rows.contains(&row))
    }

    /// Finds the scale by trying all of them: only mismatches come here.
    fn place_of_scale(&self, byte: usize) -> String {
        let (columns, bytes) = scale_columns(self.setup.format, self.setup.hidden_size);
        let layout = ScaleLayout::of(&self.setup);
        for (group, &rows) in self.group_rows.iter().enumerate() {
            let start = self.row_offsets[group];
            let tile = (start / 128).wrapping_add(self.scales_offsets[group]) as usize;
            for row in 0..rows as usize {
                for column in 0..columns {
                    let offset =
                        layout.offset(&self.setup, group, start as usize, tile, row, column);
                    if (offset..offset + bytes).contains(&byte) {
                        return format!("scale {column} of row {row} of group {group}");
                    }
                }
            }
        }
        "no row's scale".to_owned()
    }
}
