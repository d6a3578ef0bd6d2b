//! Whether the bytes that are about to be timed are the right ones.

use std::ops::Range;

use anyhow::{Context, Result};
use fastrand::Rng;
use half::slice::HalfFloatSliceExt;
use tokenyard::reference::{self, TILE_BYTES, scale_offset};
use tokenyard::routing::{Routing, TILE_ROWS};

use super::cases::Case;
use crate::compare;
use crate::files::HiddenStates;

/// Outputs up to this size are compared byte for byte; of larger ones, a sample of the rows.
const WHOLE_BYTES: usize = 64 << 20;

/// Rows of a sample that are drawn anywhere, besides those at the ends of experts and tiles.
const RANDOM_ROWS: usize = 1024;

/// What outputs hold before a kernel runs, so that a byte that was not written shows.
pub const POISON: u8 = 0xA5;

/// What the outputs of a case must hold.
#[derive(Debug)]
pub struct Expected<'a> {
    case: &'a Case,
    routing: &'a Routing,
    row_tiles: usize,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Whole(reference::Quantized),
    Sample {
        /// The rows, in ascending order.
        rows: Vec<usize>,
        /// How they alone are grouped.
        routing: Routing,
        quantized: reference::Quantized,
    },
}

impl<'a> Expected<'a> {
    /// Asks the reference. `sf` has a factor for each expert.
    ///
    /// # Errors
    /// A problem that the reference refuses.
    pub fn new(
        case: &'a Case,
        input: &HiddenStates,
        routing: &'a Routing,
        row_tiles: usize,
        sf: &[f32],
    ) -> Result<Self> {
        let bytes = routing.rows() * case.format.bytes_per_row(case.shape.columns)
            + row_tiles * scale_row_bytes(case);
        Self::with_limit(case, input, routing, row_tiles, sf, bytes <= WHOLE_BYTES)
    }

    fn with_limit(
        case: &'a Case,
        input: &HiddenStates,
        routing: &'a Routing,
        row_tiles: usize,
        sf: &[f32],
        whole: bool,
    ) -> Result<Self> {
        let columns = case.shape.columns;
        let reference_input = match input {
            HiddenStates::Bf16(values) => reference::Input::Bf16(values.reinterpret_cast()),
            HiddenStates::F16(values) => reference::Input::F16(values.reinterpret_cast()),
            HiddenStates::F32(values) => reference::Input::F32(values),
        };
        let quantize = |routing: &Routing, source_rows, row_tiles: usize| -> Result<_> {
            let mut quantized = reference::Quantized {
                data: vec![POISON; routing.rows() * case.format.bytes_per_row(columns)],
                scales: vec![POISON; row_tiles * scale_row_bytes(case)],
            };
            let output = reference::Output {
                data: &mut quantized.data,
                scales: &mut quantized.scales,
            };
            let problem = reference::Problem {
                format: case.format,
                input: reference_input,
                input_rows: case.shape.rows,
                columns,
                groups: routing.into(),
                sf,
                source_rows,
                options: case.options(),
            };
            reference::quantize(&problem, output)?;
            Ok(quantized)
        };
        let content = if whole {
            Content::Whole(quantize(routing, routing.source_rows(), row_tiles)?)
        } else {
            let rows = sample(routing);
            let alone = grouping_of(&rows, routing)?;
            let sources: Vec<i32> = rows
                .iter()
                .map(|&row| routing.source_rows().map_or(row as i32, |rows| rows[row]))
                .collect();
            let quantized = quantize(&alone, Some(&sources), alone.occupied_tiles())?;
            Content::Sample {
                rows,
                routing: alone,
                quantized,
            }
        };
        Ok(Self {
            case,
            routing,
            row_tiles,
            content,
        })
    }

    /// How many rows are compared.
    pub fn rows_checked(&self) -> usize {
        match &self.content {
            Content::Whole(_) => self.routing.rows(),
            Content::Sample { rows, .. } => rows.len(),
        }
    }

    /// The first thing wrong with outputs that held [`POISON`] before, in words.
    pub fn first_difference(&self, data: &[u8], scales: &[u8]) -> Option<String> {
        let row_bytes = self.case.format.bytes_per_row(self.case.shape.columns);
        let lengths = (
            self.routing.rows() * row_bytes,
            self.row_tiles * scale_row_bytes(self.case),
        );
        if (data.len(), scales.len()) != lengths {
            return Some(format!(
                "{} bytes of data and {} of scales, expected {} and {}",
                data.len(),
                scales.len(),
                lengths.0,
                lengths.1
            ));
        }
        match &self.content {
            Content::Whole(expected) => {
                let place = |index| format!("row {}", index / row_bytes.max(1));
                let tile = |index| format!("scale tile {}", index / TILE_BYTES);
                compare::between("data", data, &expected.data, place)
                    .or_else(|| compare::between("scales", scales, &expected.scales, tile))
                    .map(|difference| difference.to_string())
            }
            Content::Sample {
                rows,
                routing,
                quantized,
            } => (0..routing.experts())
                .find_map(|slot| {
                    routing.slot_rows(slot).find_map(|index| {
                        let row = rows[index];
                        let bytes = |row| row * row_bytes..(row + 1) * row_bytes;
                        if data[bytes(row)] != quantized.data[bytes(index)] {
                            return Some(format!("row {row} differs from the reference"));
                        }
                        self.wrong_scale(scales, slot, row, quantized, routing, index)
                    })
                })
                .or_else(|| self.wrong_padding(scales)),
        }
    }

    /// Compares the scales of a sampled row, blocks past its end included.
    fn wrong_scale(
        &self,
        scales: &[u8],
        slot: usize,
        row: usize,
        sample: &reference::Quantized,
        sample_routing: &Routing,
        index: usize,
    ) -> Option<String> {
        let column_tiles = self.case.format.column_tiles(self.case.shape.columns);
        (0..column_tiles * reference::TILE_BLOCKS).find_map(|block| {
            let byte = |scales: &[u8], routing: &Routing, row: usize| {
                let local = row - routing.slot_rows(slot).start;
                scales[scale_offset(routing.tile_start(slot), local, block, column_tiles)]
            };
            let found = byte(scales, self.routing, row);
            let expected = byte(&sample.scales, sample_routing, index);
            (found != expected).then(|| {
                format!("scale of row {row}, block {block}: found {found:#04x}, expected {expected:#04x}")
            })
        })
    }

    /// Rows that complete an expert's last tile have scales of zero; tiles of no expert are not written.
    fn wrong_padding(&self, scales: &[u8]) -> Option<String> {
        let column_tiles = self.case.format.column_tiles(self.case.shape.columns);
        let padding = (0..self.routing.experts()).find_map(|slot| {
            let rows = self.routing.slot_rows(slot).len();
            (rows..rows.next_multiple_of(TILE_ROWS)).find_map(|local| {
                let start = self.routing.tile_start(slot);
                let wrong = (0..column_tiles * reference::TILE_BLOCKS)
                    .find(|&block| scales[scale_offset(start, local, block, column_tiles)] != 0)?;
                Some(format!(
                    "padding of expert {slot}, row {local} of it, block {wrong} is not 0"
                ))
            })
        });
        padding.or_else(|| {
            let slack = self.routing.occupied_tiles() * scale_row_bytes(self.case);
            let wrong = scales[slack..].iter().position(|&byte| byte != POISON)?;
            Some(format!(
                "byte {} of the scales, which belongs to no expert, was written",
                slack + wrong
            ))
        })
    }
}

/// Bytes of a row of scale tiles.
fn scale_row_bytes(case: &Case) -> usize {
    case.format.column_tiles(case.shape.columns) * TILE_BYTES
}

/// Of every expert the first and the last row, of every tile the first and the last, and random ones.
fn sample(routing: &Routing) -> Vec<usize> {
    let mut rows = Vec::new();
    for slot in 0..routing.experts() {
        let Range { start, end } = routing.slot_rows(slot);
        for tile in (start..end).step_by(TILE_ROWS) {
            rows.extend([tile, (tile + TILE_ROWS).min(end) - 1]);
        }
    }
    let mut random = Rng::with_seed(routing.rows() as u64);
    let routed = routing.routed_rows();
    if routed > 0 {
        rows.extend((0..RANDOM_ROWS).map(|_| random.usize(0..routed)));
    }
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// The routing of some rows alone, in the same slots.
fn grouping_of(rows: &[usize], routing: &Routing) -> Result<Routing> {
    let offsets: Vec<u32> = routing
        .row_offsets()
        .iter()
        .map(|&offset| rows.partition_point(|&row| row < offset as usize) as u32)
        .collect();
    Routing::from_row_offsets(&offsets, Some(routing.expert_ids()), rows.len())
        .context("the sample of rows makes no routing")
}

#[cfg(test)]
mod tests {
    use tokenyard::options::{Format, InputType, ScaleRounding};

    use super::super::cases::{Division, Group, Shape};
    use super::super::input::hidden_states;
    use super::*;

    const COLUMNS: usize = 136;

    fn case(format: Format, gather: bool) -> Case {
        Case {
            group: Group::Prefill,
            shape: Shape {
                rows: 3000,
                columns: COLUMNS,
                experts: 9,
                division: Division::Zipf,
            },
            format,
            input_type: InputType::Bf16,
            rounding: ScaleRounding::default(),
            gather,
            mark: None,
        }
    }

    /// Checks what the reference makes of a case, changed by `spoil`.
    fn verdict(
        case: &Case,
        whole: bool,
        spoil: impl Fn(&mut [u8], &mut [u8], &Routing),
    ) -> Option<String> {
        let routing = case.shape.routing(case.gather).unwrap();
        let input = hidden_states(case.shape.rows, COLUMNS, case.input_type);
        let sf = vec![0.75; case.shape.experts];
        let tiles = routing.max_tiles();
        let outputs = Expected::with_limit(case, &input, &routing, tiles, &sf, true).unwrap();
        let Content::Whole(reference::Quantized {
            mut data,
            mut scales,
        }) = outputs.content
        else {
            panic!("not whole");
        };
        spoil(&mut data, &mut scales, &routing);
        Expected::with_limit(case, &input, &routing, tiles, &sf, whole)
            .unwrap()
            .first_difference(&data, &scales)
    }

    #[test]
    fn right_bytes_pass_whole_and_sampled() {
        for format in Format::ALL {
            for gather in [false, true] {
                for whole in [false, true] {
                    assert_eq!(verdict(&case(format, gather), whole, |_, _, _| ()), None);
                }
            }
        }
    }

    /// Changes data and scales.
    type Spoil<'a> = dyn Fn(&mut [u8], &mut [u8], &Routing) + 'a;

    #[test]
    fn wrong_bytes_are_found_whole_and_sampled() {
        let case = case(Format::Mxfp8, true);
        let spoiled = |spoil: &Spoil<'_>, words: &str| {
            for whole in [false, true] {
                let found = verdict(&case, whole, spoil);
                assert!(found.is_some(), "{words}, whole: {whole}");
                if !whole {
                    assert!(found.as_ref().unwrap().contains(words), "{found:?}");
                }
            }
        };
        // The last row of an expert.
        spoiled(
            &|data, _, routing| data[routing.slot_rows(3).end * COLUMNS - 1] ^= 1,
            "differs from the reference",
        );
        let column_tiles = case.format.column_tiles(COLUMNS);
        let at = |routing: &Routing, local, block| {
            scale_offset(routing.tile_start(3), local, block, column_tiles)
        };
        spoiled(
            &|_, scales, routing| scales[at(routing, 0, 4)] ^= 1,
            "block 4: found",
        );
        // A block past the end of the row.
        spoiled(
            &|_, scales, routing| scales[at(routing, 0, 6)] = POISON,
            "block 6: found 0xa5, expected 0x00",
        );
        spoiled(
            &|_, scales, routing| {
                let rows = routing.slot_rows(3).len();
                assert!(!rows.is_multiple_of(TILE_ROWS));
                scales[at(routing, rows, 0)] = 1;
            },
            "padding of expert 3",
        );
        spoiled(
            &|_, scales, _| *scales.last_mut().unwrap() = 0,
            "belongs to no expert",
        );
        let unwritten = |data: &mut [u8], _: &mut [u8], _: &Routing| data.fill(POISON);
        spoiled(&unwritten, "row 0 differs");
    }

    #[test]
    fn a_sample_has_every_expert_and_every_tail() {
        let routing = case(Format::Nvfp4, false).shape.routing(false).unwrap();
        let rows = sample(&routing);
        assert!(rows.len() < routing.rows());
        let alone = grouping_of(&rows, &routing).unwrap();
        for slot in 0..routing.experts() {
            let all = routing.slot_rows(slot);
            let sampled = alone.slot_rows(slot);
            assert!(all.is_empty() || !sampled.is_empty());
            if let Some(last) = sampled.last() {
                assert_eq!(rows[last], all.end - 1);
            }
        }
    }
}
