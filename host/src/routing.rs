//! Which rows belong to which expert, and where each expert's scale tiles begin.
//!
//! Grouped quantization takes rows sorted by expert: slot i owns the rows `row_offsets[i]` up to,
//! not including, `row_offsets[i + 1]`. The output rows keep that order without padding, whereas
//! the block scales are padded so that every slot starts on a tile of [`TILE_ROWS`] rows. A
//! [`Routing`] holds the index vectors of both, made from a router's top-k choices or from offsets
//! that exist already.

use std::ops::Range;

/// Rows that one scale tile covers.
pub const TILE_ROWS: usize = 128;

/// Scale tiles that suffice for any division of `rows` rows among `experts` slots:
/// ceil(rows / 128) + min(experts, rows).
///
/// Each slot that has rows wastes less than one tile, and no more than min(experts, rows) slots
/// have any. This is what a caller allocates who does not know the rows per expert.
///
/// ```
/// use tokenyard::routing::max_tiles;
///
/// assert_eq!(max_tiles(350, 3), 6);
/// assert_eq!(max_tiles(0, 8), 0);
/// ```
pub const fn max_tiles(rows: usize, experts: usize) -> usize {
    rows.div_ceil(TILE_ROWS) + if experts < rows { experts } else { rows }
}

/// The extra tiles per slot, in units of whole tiles, that make slot i's scales begin right after
/// those of the slots before it: `tile_start(i) = row_offsets[i] / 128 + scales_offsets[i]`.
///
/// `row_offsets` is non-decreasing and has one entry more than there are slots; the result has one
/// per slot.
///
/// ```
/// use tokenyard::routing::scales_offsets;
///
/// assert_eq!(scales_offsets(&[0, 100, 300, 350]), [0, 1, 1]);
/// ```
pub fn scales_offsets(row_offsets: &[u32]) -> Vec<u32> {
    let mut tiles_before = 0;
    row_offsets
        .windows(2)
        .map(|slot| {
            let offset = tiles_before - slot[0] / TILE_ROWS as u32;
            tiles_before += (slot[1] - slot[0]).div_ceil(TILE_ROWS as u32);
            offset
        })
        .collect()
}

/// Rows grouped by expert, with everything that the quantizer needs to know about the grouping.
///
/// ```
/// use tokenyard::routing::Routing;
///
/// // Three slots of 100, 200 and 50 rows.
/// let routing = Routing::from_row_offsets(&[0, 100, 300, 350], None, 350)?;
/// assert_eq!(routing.scales_offsets(), [0, 1, 1]);
/// assert_eq!([0, 1, 2].map(|slot| routing.tile_start(slot)), [0, 1, 3]);
/// assert_eq!([0, 1, 2].map(|slot| routing.tiles(slot)), [1, 2, 1]);
/// assert_eq!(routing.occupied_tiles(), 4);
/// assert_eq!(routing.max_tiles(), 6);
/// # Ok::<(), tokenyard::routing::RoutingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    rows: usize,
    row_offsets: Vec<u32>,
    scales_offsets: Vec<u32>,
    expert_ids: Vec<i32>,
    source_rows: Option<Vec<i32>>,
}

impl Routing {
    /// Groups tokens by the experts that a router chose for them.
    ///
    /// `ids` is a row-major `[tokens, top_k]` matrix of expert numbers, where -1 means "no expert".
    /// Slot e of the result is expert e, for all `experts` of them, chosen or not. Within a slot
    /// rows stand in ascending order of (token, position in the token's list). An expert named
    /// twice by one token gets that token's row twice: every entry but -1 is one row.
    ///
    /// ```
    /// use tokenyard::routing::Routing;
    ///
    /// // Three tokens choose two of four experts each; the last one chooses only one.
    /// let routing = Routing::from_topk(&[2, 0, 0, 3, 2, -1], 3, 2, 4)?;
    /// assert_eq!(routing.row_offsets(), [0, 2, 2, 4, 5]);
    /// assert_eq!(routing.source_rows(), Some(&[0, 1, 0, 2, 1][..]));
    /// # Ok::<(), tokenyard::routing::RoutingError>(())
    /// ```
    ///
    /// # Errors
    /// [`RoutingError::NoExperts`], [`RoutingError::TooManyExperts`] and
    /// [`RoutingError::TooManyTokens`] for dimensions out of range, [`RoutingError::IdsLength`] when
    /// `ids` is not `tokens * top_k` long, [`RoutingError::UnknownExpert`] for an id outside
    /// `-1..experts`, [`RoutingError::TooManyRows`] when the rows cannot be counted in 32 bits.
    pub fn from_topk(
        ids: &[i32],
        tokens: usize,
        top_k: usize,
        experts: usize,
    ) -> Result<Routing, RoutingError> {
        if experts == 0 {
            return Err(RoutingError::NoExperts);
        }
        if i32::try_from(experts).is_err() {
            return Err(RoutingError::TooManyExperts { experts });
        }
        if i32::try_from(tokens).is_err() {
            return Err(RoutingError::TooManyTokens { tokens });
        }
        if tokens.checked_mul(top_k) != Some(ids.len()) {
            return Err(RoutingError::IdsLength {
                tokens,
                top_k,
                given: ids.len(),
            });
        }

        let mut rows_per_expert = vec![0_usize; experts];
        for (index, &id) in ids.iter().enumerate() {
            match usize::try_from(id) {
                Ok(expert) if expert < experts => rows_per_expert[expert] += 1,
                _ if id == -1 => {}
                _ => {
                    return Err(RoutingError::UnknownExpert {
                        token: index / top_k,
                        slot: index % top_k,
                        id,
                        experts,
                    });
                }
            }
        }
        let rows = rows_per_expert.iter().sum();
        check_rows(rows)?;

        let mut row_offsets = Vec::with_capacity(experts + 1);
        row_offsets.push(0_u32);
        let mut end = 0;
        for count in rows_per_expert {
            end += count as u32;
            row_offsets.push(end);
        }

        // A counting sort by expert; going through the tokens in order makes it stable.
        let mut next_row = row_offsets.clone();
        let mut source_rows = vec![0; rows];
        for (index, &id) in ids.iter().enumerate() {
            if let Ok(expert) = usize::try_from(id) {
                source_rows[next_row[expert] as usize] = (index / top_k) as i32;
                next_row[expert] += 1;
            }
        }

        Ok(Routing {
            rows,
            scales_offsets: scales_offsets(&row_offsets),
            row_offsets,
            expert_ids: (0..experts as i32).collect(),
            source_rows: Some(source_rows),
        })
    }

    /// Describes `rows` rows that are grouped already.
    ///
    /// Slot i owns rows `row_offsets[i]..row_offsets[i + 1]`; rows past the last offset belong to
    /// nobody and are left alone. `expert_ids[i]` is the expert whose tensor scale slot i uses;
    /// without it, slot i is expert i. Slots may name experts in any order, repeatedly, or (with an
    /// id that has no tensor scale, such as -1) be inactive: such a slot's rows are not quantized.
    ///
    /// # Errors
    /// [`RoutingError::NoExperts`] for fewer than two offsets, [`RoutingError::TooManyExperts`],
    /// [`RoutingError::TooManyRows`], [`RoutingError::FirstOffset`],
    /// [`RoutingError::DecreasingOffsets`] and [`RoutingError::LastOffset`] for offsets that do not
    /// start at 0, decrease, or end past `rows`, [`RoutingError::ExpertIdsLength`] for a wrong
    /// number of expert ids.
    pub fn from_row_offsets(
        row_offsets: &[u32],
        expert_ids: Option<&[i32]>,
        rows: usize,
    ) -> Result<Routing, RoutingError> {
        let ([first, .., last], experts) = (row_offsets, row_offsets.len().saturating_sub(1))
        else {
            return Err(RoutingError::NoExperts);
        };
        if i32::try_from(experts).is_err() {
            return Err(RoutingError::TooManyExperts { experts });
        }
        check_rows(rows)?;
        if *first != 0 {
            return Err(RoutingError::FirstOffset { given: *first });
        }
        for (slot, offsets) in row_offsets.windows(2).enumerate() {
            let (start, end) = (offsets[0], offsets[1]);
            if end < start {
                return Err(RoutingError::DecreasingOffsets { slot, start, end });
            }
        }
        if *last as usize > rows {
            return Err(RoutingError::LastOffset { given: *last, rows });
        }
        let expert_ids = match expert_ids {
            Some(ids) if ids.len() != experts => {
                return Err(RoutingError::ExpertIdsLength {
                    slots: experts,
                    given: ids.len(),
                });
            }
            Some(ids) => ids.to_vec(),
            None => (0..experts as i32).collect(),
        };
        Ok(Routing {
            rows,
            row_offsets: row_offsets.to_vec(),
            scales_offsets: scales_offsets(row_offsets),
            expert_ids,
            source_rows: None,
        })
    }

    /// R: rows of the quantized output, those that belong to no slot included.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that belong to a slot: the last of the row offsets.
    pub fn routed_rows(&self) -> usize {
        self.row_offsets[self.experts()] as usize
    }

    /// E: the number of slots, those without rows included.
    pub fn experts(&self) -> usize {
        self.expert_ids.len()
    }

    /// `[E + 1]`, non-decreasing: where each slot's rows begin, and at the end where the last ones end.
    pub fn row_offsets(&self) -> &[u32] {
        &self.row_offsets
    }

    /// `[E]`: extra tiles per slot; see [`scales_offsets`].
    pub fn scales_offsets(&self) -> &[u32] {
        &self.scales_offsets
    }

    /// `[E]`: the expert, an index into the tensor scales, that each slot holds.
    pub fn expert_ids(&self) -> &[i32] {
        &self.expert_ids
    }

    /// `[R]`: the input row that each grouped row reads, or `None` where row i reads input row i.
    pub fn source_rows(&self) -> Option<&[i32]> {
        self.source_rows.as_deref()
    }

    /// The rows of one slot.
    ///
    /// # Panics
    /// Panics when `slot` is not below [`Routing::experts`].
    pub fn slot_rows(&self, slot: usize) -> Range<usize> {
        self.row_offsets[slot] as usize..self.row_offsets[slot + 1] as usize
    }

    /// `[E]`: how many rows each slot has.
    pub fn rows_per_expert(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.experts()).map(|slot| self.slot_rows(slot).len())
    }

    /// The scale tile at which a slot's scales begin.
    ///
    /// # Panics
    /// Panics when `slot` is not below [`Routing::experts`].
    pub fn tile_start(&self, slot: usize) -> usize {
        self.row_offsets[slot] as usize / TILE_ROWS + self.scales_offsets[slot] as usize
    }

    /// How many scale tiles a slot occupies: ceil(rows / 128).
    ///
    /// # Panics
    /// Panics when `slot` is not below [`Routing::experts`].
    pub fn tiles(&self, slot: usize) -> usize {
        self.slot_rows(slot).len().div_ceil(TILE_ROWS)
    }

    /// Scale tiles that hold rows: the sum of ceil(rows / 128) over the slots.
    pub fn occupied_tiles(&self) -> usize {
        (0..self.experts()).map(|slot| self.tiles(slot)).sum()
    }

    /// Mt: scale tiles to allocate, computed without looking at the rows per slot; see [`max_tiles`].
    pub fn max_tiles(&self) -> usize {
        max_tiles(self.rows, self.experts())
    }
}

/// Kernels count rows in 32 bits.
fn check_rows(rows: usize) -> Result<(), RoutingError> {
    if u32::try_from(rows).is_err() {
        return Err(RoutingError::TooManyRows { rows });
    }
    Ok(())
}

/// Why a routing makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// There is no slot at all: no experts, or fewer than two row offsets.
    #[error("a routing needs at least one expert (row offsets: at least two entries)")]
    NoExperts,
    /// Expert numbers are 32-bit signed integers.
    #[error("{experts} experts are more than expert ids can number ({})", i32::MAX)]
    TooManyExperts {
        /// Experts asked for.
        experts: usize,
    },
    /// Source rows are 32-bit signed integers.
    #[error("{tokens} tokens are more than source rows can number ({})", i32::MAX)]
    TooManyTokens {
        /// Tokens given.
        tokens: usize,
    },
    /// Row offsets are 32-bit unsigned integers.
    #[error("{rows} rows are more than row offsets can count ({})", u32::MAX)]
    TooManyRows {
        /// Rows that the routing would have.
        rows: usize,
    },
    /// The top-k ids are not a `[tokens, top_k]` matrix.
    #[error("{tokens} tokens with {top_k} expert ids each do not make {given} ids")]
    IdsLength {
        /// Tokens said to be there.
        tokens: usize,
        /// Ids per token said to be there.
        top_k: usize,
        /// Ids given.
        given: usize,
    },
    /// A top-k id that is neither an expert nor -1.
    #[error(
        "token {token} names expert {id} at position {slot}; experts are 0..{experts}, and -1 for none"
    )]
    UnknownExpert {
        /// The token, counted from 0.
        token: usize,
        /// Position in the token's list, counted from 0.
        slot: usize,
        /// The id found there.
        id: i32,
        /// Number of experts.
        experts: usize,
    },
    /// The first row offset is not 0.
    #[error("row offsets start at {given}, not at 0")]
    FirstOffset {
        /// The first offset.
        given: u32,
    },
    /// A slot ends before it starts.
    #[error("row offsets decrease: slot {slot} starts at row {start} and ends at row {end}")]
    DecreasingOffsets {
        /// The slot.
        slot: usize,
        /// Its first row.
        start: u32,
        /// Where it ends.
        end: u32,
    },
    /// The last row offset is past the rows that exist.
    #[error("row offsets end at row {given}, but there are {rows} rows")]
    LastOffset {
        /// The last offset.
        given: u32,
        /// Rows that exist.
        rows: usize,
    },
    /// Not one expert id per slot.
    #[error("{given} expert ids were given for {slots} slots")]
    ExpertIdsLength {
        /// Slots that the row offsets describe.
        slots: usize,
        /// Expert ids given.
        given: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_ids_are_named() {
        let error = Routing::from_topk(&[0, 1, 5, -1], 2, 2, 4).unwrap_err();
        assert_eq!(
            error,
            RoutingError::UnknownExpert {
                token: 1,
                slot: 0,
                id: 5,
                experts: 4
            }
        );
        let error = Routing::from_topk(&[0, -2], 1, 2, 4).unwrap_err();
        assert_eq!(
            error,
            RoutingError::UnknownExpert {
                token: 0,
                slot: 1,
                id: -2,
                experts: 4
            }
        );
        assert_eq!(
            Routing::from_topk(&[0, 1, 2], 2, 2, 4).unwrap_err(),
            RoutingError::IdsLength {
                tokens: 2,
                top_k: 2,
                given: 3
            }
        );
        assert_eq!(
            Routing::from_topk(&[], 0, 2, 0).unwrap_err(),
            RoutingError::NoExperts
        );
    }

    #[test]
    fn dimensions_past_32_bits_are_refused() {
        let huge = 1_usize << 40;
        assert_eq!(
            Routing::from_topk(&[], huge, 0, 1).unwrap_err(),
            RoutingError::TooManyTokens { tokens: huge }
        );
        assert_eq!(
            Routing::from_topk(&[], 0, 0, huge).unwrap_err(),
            RoutingError::TooManyExperts { experts: huge }
        );
        assert_eq!(
            Routing::from_row_offsets(&[0, 1], None, huge).unwrap_err(),
            RoutingError::TooManyRows { rows: huge }
        );
        let whole = Routing::from_row_offsets(&[0, u32::MAX], None, u32::MAX as usize).unwrap();
        assert_eq!(whole.occupied_tiles(), 1 << 25);
    }

    #[test]
    fn offsets_are_checked() {
        let check = |offsets: &[u32]| Routing::from_row_offsets(offsets, None, 10).unwrap_err();
        assert_eq!(check(&[]), RoutingError::NoExperts);
        assert_eq!(check(&[0]), RoutingError::NoExperts);
        assert_eq!(check(&[1, 2]), RoutingError::FirstOffset { given: 1 });
        assert_eq!(
            check(&[0, 5, 4, 6]),
            RoutingError::DecreasingOffsets {
                slot: 1,
                start: 5,
                end: 4
            }
        );
        assert_eq!(
            check(&[0, 11]),
            RoutingError::LastOffset {
                given: 11,
                rows: 10
            }
        );
        assert_eq!(
            Routing::from_row_offsets(&[0, 1, 2], Some(&[0]), 2).unwrap_err(),
            RoutingError::ExpertIdsLength { slots: 2, given: 1 }
        );
    }

    #[test]
    fn nothing_to_route_is_fine() {
        for routing in [
            Routing::from_topk(&[], 0, 4, 8).unwrap(),
            Routing::from_topk(&[-1; 12], 3, 4, 8).unwrap(),
            Routing::from_row_offsets(&[0; 9], None, 0).unwrap(),
        ] {
            assert_eq!((routing.rows(), routing.experts()), (0, 8));
            assert_eq!((routing.occupied_tiles(), routing.max_tiles()), (0, 0));
            assert!(routing.rows_per_expert().all(|rows| rows == 0));
        }
    }

    #[test]
    fn an_expert_named_twice_gets_the_row_twice() {
        let routing = Routing::from_topk(&[1, 1, 0, 1], 2, 2, 2).unwrap();
        assert_eq!(routing.row_offsets(), [0, 1, 4]);
        assert_eq!(routing.source_rows(), Some(&[1, 0, 0, 1][..]));
    }

    #[test]
    fn tiles_follow_one_another_and_fit() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let experts = random.usize(1..40);
            let mut row_offsets = vec![0];
            for slot in 0..experts {
                let rows = [0, 0, 1, 127, 128, 129, random.u32(0..500)][random.usize(0..7)];
                row_offsets.push(row_offsets[slot] + rows);
            }
            let rows = row_offsets[experts] as usize;
            let routing = Routing::from_row_offsets(&row_offsets, None, rows).unwrap();
            let mut tiles_before = 0;
            for slot in 0..experts {
                assert_eq!(routing.tile_start(slot), tiles_before);
                tiles_before += routing.tiles(slot);
            }
            assert_eq!(routing.occupied_tiles(), tiles_before);
            assert!(routing.max_tiles() >= tiles_before);
        }
    }
}
