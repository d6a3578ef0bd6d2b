//! Which rows a rank receives, in which order, and what the words say that describe them.

use std::ops::Range;

use super::{RankTokens, Setup, counted};
use crate::reference::ReferenceError;

/// Added to the row at which a cell ends in its handle word, so that no valid word is 0.
pub const HANDLE_BIAS: u32 = 1024;

/// What one rank sends to one local expert of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The rows of the receiver that it takes.
    pub rows: Range<usize>,
    /// (token, k), each with the token's index on the source rank, in the order of tokens. Rows may be
    /// in any order unless slots are assigned deterministically: then they are in this one.
    pub pairs: Vec<(usize, usize)>,
}

/// The rows of one rank after dispatch.
#[derive(Clone, Debug)]
pub struct ExpectedRows {
    pub(super) setup: Setup,
    /// The rank.
    pub rank: usize,
    /// `[nl * R]`, cell (e, r) at e * R + r: local expert e, source rank r. Under skip mode R is 1, and
    /// the tokens are the rank's own.
    pub cells: Vec<Cell>,
    /// `[ng + 1]`: where each group's rows begin. The last one is the number of rows, padding included.
    pub row_offsets: Vec<u32>,
    /// `[ng]`: each group's rows without padding.
    pub group_rows: Vec<u32>,
    /// `[ng]`: 0, 1, ..., ng - 1.
    pub expert_ids: Vec<i32>,
    /// `[ng]`: 128-row tiles to add to `row_offsets[g] / 128` for the first scale tile of group g, in
    /// the 128x4 layout. Modulo 2^32 it may be "negative".
    pub scales_offsets: Vec<u32>,
    /// The rank's own tokens that are the rows of group 0.
    pub shared_tokens: Range<usize>,
    /// `[nl * R]`: rows of the cells (e, 0) to (e, r) together.
    pub cumulative: Vec<u32>,
    /// `[nl * R]`: the handle words that combine reads, (1024 + end row, rows) for each cell.
    pub handles: Vec<(u32, u32)>,
}

impl ExpectedRows {
    /// What rank `me` receives. Under skip mode only `ranks[me]` counts.
    ///
    /// # Errors
    /// [`ReferenceError::Length`]: tensors of other extents than the setup's, or too few ranks.
    pub fn new(setup: &Setup, ranks: &[RankTokens<'_>], me: usize) -> Result<Self, ReferenceError> {
        super::check_length("ranks", setup.ranks, ranks.len())?;
        for rank in ranks {
            rank.count(setup)?;
        }
        let (experts, sources) = (setup.local_experts(), setup.sources());
        let shared_tokens = setup.shared_tokens(me, ranks[me].count(setup)?);
        let mut offsets = RowOffsets::new(setup.row_multiple());
        if setup.fused_shared_expert {
            offsets.add_group(shared_tokens.len());
        }
        let (mut cells, mut cumulative) = (Vec::new(), Vec::new());
        for expert in 0..experts {
            let first = offsets.next_row();
            let mut end = first;
            for source in 0..sources {
                let rank = if setup.skip_a2a { me } else { source };
                let pairs = pairs_for(setup, &ranks[rank], me, expert);
                let rows = end..end + pairs.len();
                end = rows.end;
                cells.push(Cell { rows, pairs });
                cumulative.push((end - first) as u32);
            }
            offsets.add_group(end - first);
        }
        let handles = cells
            .iter()
            .map(|cell| (HANDLE_BIAS + cell.rows.end as u32, cell.rows.len() as u32))
            .collect();
        let groups = setup.groups();
        Ok(Self {
            setup: setup.clone(),
            rank: me,
            cells,
            scales_offsets: offsets.scales_offsets(),
            row_offsets: offsets.row_offsets,
            group_rows: offsets.group_rows,
            expert_ids: (0..groups as i32).collect(),
            shared_tokens,
            cumulative,
            handles,
        })
    }

    /// All rows, padding included.
    pub fn rows(&self) -> usize {
        self.row_offsets.last().map_or(0, |&rows| rows as usize)
    }

    /// The source rank of a cell.
    pub fn source_of_cell(&self, cell: usize) -> usize {
        match self.setup.skip_a2a {
            true => self.rank,
            false => cell % self.setup.ranks,
        }
    }

    /// The group of a cell.
    pub fn group_of_cell(&self, cell: usize) -> usize {
        cell / self.setup.sources() + usize::from(self.setup.fused_shared_expert)
    }

    /// Rows that came from each source rank, the shared expert's not among them.
    pub fn rows_per_source(&self) -> Vec<usize> {
        let mut rows = vec![0; self.setup.ranks];
        for (index, cell) in self.cells.iter().enumerate() {
            rows[self.source_of_cell(index)] += cell.pairs.len();
        }
        rows
    }
}

/// All (token, k) of a rank that go to local expert `expert` of rank `me`, in the order of tokens.
fn pairs_for(
    setup: &Setup,
    rank: &RankTokens<'_>,
    me: usize,
    expert: usize,
) -> Vec<(usize, usize)> {
    let tokens = rank.topk_ids.chunks(setup.top_k.max(1)).enumerate();
    tokens
        .flat_map(|(token, ids)| {
            let places = counted(ids)
                .filter(|&(_, id)| setup.local_expert(me, id) == Some(expert))
                .map(move |(k, _)| (token, k));
            places.collect::<Vec<_>>()
        })
        .collect()
}

/// The running sums over groups.
struct RowOffsets {
    multiple: usize,
    row_offsets: Vec<u32>,
    group_rows: Vec<u32>,
}

impl RowOffsets {
    fn new(multiple: usize) -> Self {
        Self {
            multiple,
            row_offsets: vec![0],
            group_rows: Vec::new(),
        }
    }

    fn next_row(&self) -> usize {
        self.row_offsets[self.group_rows.len()] as usize
    }

    fn add_group(&mut self, rows: usize) {
        let end = self.next_row() + rows.next_multiple_of(self.multiple);
        self.row_offsets.push(end as u32);
        self.group_rows.push(rows as u32);
    }

    fn scales_offsets(&self) -> Vec<u32> {
        let mut tiles_before = 0_u32;
        let groups = self.row_offsets.iter().zip(&self.group_rows);
        groups
            .map(|(start, rows)| {
                let offset = tiles_before.wrapping_sub(start / 128);
                tiles_before += rows.div_ceil(128);
                offset
            })
            .collect()
    }
}
