//! What is measured: shapes, formats, and the marks that are to be met.

use std::fmt;

use clap::ValueEnum;
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tokenyard::options::{Format, InputType, QuantizeOptions, ScaleRounding};
use tokenyard::reference::TILE_BYTES;
use tokenyard::routing::{Routing, RoutingError};

/// Which cases to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// The shapes that have a mark to meet
    #[default]
    Marks,
    /// Experts, rows, gathered input, scale roundings and input types, one varied at a time
    Sweeps,
    /// Both
    All,
}

/// How rows fall to experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Division {
    /// Each row's expert is drawn with weights 1, 1/2, 1/3 and so on: a few experts get most rows.
    Zipf,
    /// Each row's expert is drawn, all being equally likely.
    Uniform,
    /// Every expert gets as many as every other, up to one row.
    Equal,
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Division::Zipf => "zipf",
            Division::Uniform => "uniform",
            Division::Equal => "equal",
        })
    }
}

/// Rows, columns, experts. Prints as `zipf-32768x7168-e64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// R.
    pub rows: usize,
    /// K.
    pub columns: usize,
    /// E.
    pub experts: usize,
    /// How rows fall to experts.
    pub division: Division,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rows,
            columns,
            experts,
            division,
        } = self;
        write!(f, "{division}-{rows}x{columns}-e{experts}")
    }
}

impl Shape {
    /// The expert of each row, the same on every run.
    fn experts_of_rows(&self) -> Vec<i32> {
        let mut random = Rng::with_seed(self.rows as u64 ^ (self.experts as u64) << 32);
        let mut experts: Vec<i32> = (0..self.experts as i32).collect();
        random.shuffle(&mut experts);
        match self.division {
            Division::Equal => (0..self.rows)
                .map(|row| (row * self.experts / self.rows) as i32)
                .collect(),
            Division::Uniform => (0..self.rows)
                .map(|_| random.i32(0..self.experts as i32))
                .collect(),
            Division::Zipf => {
                let mut total = 0.0;
                let ends: Vec<f64> = (1..=self.experts)
                    .map(|rank| {
                        total += 1.0 / rank as f64;
                        total
                    })
                    .collect();
                (0..self.rows)
                    .map(|_| {
                        let draw = random.f64() * total;
                        let rank = ends.partition_point(|&end| end <= draw);
                        experts[rank.min(self.experts - 1)]
                    })
                    .collect()
            }
        }
    }

    /// The routing tables: rows that are grouped already, or as many that are gathered, each once,
    /// from where a router found them.
    ///
    /// # Errors
    /// A shape that makes no routing.
    pub fn routing(&self, gather: bool) -> Result<Routing, RoutingError> {
        let ids = self.experts_of_rows();
        let gathered = Routing::from_topk(&ids, self.rows, 1, self.experts)?;
        if gather {
            return Ok(gathered);
        }
        Routing::from_row_offsets(gathered.row_offsets(), None, self.rows)
    }
}

/// The part of a suite that a case belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Many rows: bound by memory.
    Prefill,
    /// Few rows: bound by latency.
    Decode,
    /// Equal rows and bytes, ever more experts.
    Experts,
    /// Ever more rows.
    Rows,
    /// Rows gathered through an index.
    Gather,
    /// The other roundings of E8M0 scales.
    Rounding,
    /// FP16 and FP32.
    Inputs,
}

/// What a case has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// At least this share of the traffic twin's speed.
    OfTwin(f64),
    /// At most so many times the twin's time, and less than so many times an empty kernel's.
    Latency {
        /// Times of the twin.
        twin: f64,
        /// Times of an empty kernel.
        empty: f64,
    },
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Where it belongs.
    pub group: Group,
    /// Rows, columns, experts.
    pub shape: Shape,
    /// The output format.
    pub format: Format,
    /// The input type.
    pub input_type: InputType,
    /// Rounding of E8M0 scales.
    pub rounding: ScaleRounding,
    /// Whether rows are gathered.
    pub gather: bool,
    /// What it has to reach, if anything.
    pub mark: Option<Mark>,
}

impl Case {
    /// A name that stays the same from run to run, `mxfp4/zipf-32768x7168-e64/bf16` for example.
    pub fn id(&self) -> String {
        let mut id = format!("{}/{}/{}", self.format, self.shape, self.input_type);
        if self.rounding != ScaleRounding::default() {
            id.push_str(&format!("/{}", self.rounding));
        }
        if self.gather {
            id.push_str("/gather");
        }
        id
    }

    /// The policies.
    pub fn options(&self) -> QuantizeOptions {
        QuantizeOptions {
            scale_rounding: self.rounding,
            ..QuantizeOptions::default()
        }
    }

    /// Elements of the input.
    pub fn elements(&self) -> usize {
        self.shape.rows * self.shape.columns
    }

    /// Whether a launch is so large a part of the time that an empty kernel is of interest.
    pub fn is_latency(&self) -> bool {
        matches!(self.group, Group::Decode | Group::Rows)
    }

    /// Bytes that must be moved: every input element read once, every output element and every byte
    /// of an occupied scale tile written once, and the index of gathered rows read once.
    pub fn bytes(&self, routing: &Routing) -> u64 {
        let rows = routing.routed_rows();
        let columns = self.shape.columns;
        let input = rows * columns * self.input_type.bytes();
        let data = rows * self.format.bytes_per_row(columns);
        let scales = TILE_BYTES * self.format.column_tiles(columns) * routing.occupied_tiles();
        let index = match routing.source_rows() {
            Some(_) => rows * size_of::<i32>(),
            None => 0,
        };
        (input + data + scales + index) as u64
    }
}

/// Which cases of a suite to keep. An empty list keeps all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Parts of shapes' names.
    pub shapes: Vec<String>,
    /// Formats.
    pub formats: Vec<Format>,
    /// Input types.
    pub inputs: Vec<InputType>,
}

impl Filter {
    fn keeps(&self, case: &Case) -> bool {
        let shape = case.shape.to_string();
        (self.shapes.is_empty() || self.shapes.iter().any(|part| shape.contains(part)))
            && (self.formats.is_empty() || self.formats.contains(&case.format))
            && (self.inputs.is_empty() || self.inputs.contains(&case.input_type))
    }
}

/// The shape that the comparisons of input types, roundings and gathering are made with.
const LARGE: Shape = Shape {
    rows: 32768,
    columns: 7168,
    experts: 64,
    division: Division::Zipf,
};

/// The cases of a suite, those with the same input next to each other.
pub fn cases(suite: Suite, filter: &Filter) -> Vec<Case> {
    let mut all = Vec::new();
    if suite != Suite::Sweeps {
        marks(&mut all);
    }
    if suite != Suite::Marks {
        sweeps(&mut all);
    }
    all.retain(|case| filter.keeps(case));
    all
}

fn case(group: Group, shape: Shape, format: Format) -> Case {
    Case {
        group,
        shape,
        format,
        input_type: InputType::Bf16,
        rounding: ScaleRounding::default(),
        gather: false,
        mark: None,
    }
}

fn shape(rows: usize, columns: usize, experts: usize, division: Division) -> Shape {
    Shape {
        rows,
        columns,
        experts,
        division,
    }
}

fn marks(all: &mut Vec<Case>) {
    let large = |format| match format {
        Format::Nvfp4 => 0.95,
        Format::Mxfp4 => 0.97,
        _ => 0.985,
    };
    let prefill = [
        LARGE,
        shape(65536, 4096, 256, Division::Uniform),
        // 22.5 tiles of 128 columns.
        shape(8192, 2880, 128, Division::Uniform),
    ];
    for shape in prefill {
        for format in Format::ALL {
            let share = if shape.columns == 2880 {
                0.93
            } else {
                large(format)
            };
            all.push(Case {
                mark: Some(Mark::OfTwin(share)),
                ..case(Group::Prefill, shape, format)
            });
        }
    }
    let few = [8, 32, 128, 256].map(|experts| shape(192, 4096, experts, Division::Uniform));
    let single = shape(1, 7168, 256, Division::Uniform);
    for shape in few.into_iter().chain([single]) {
        for format in Format::ALL {
            all.push(Case {
                mark: Some(Mark::Latency {
                    twin: 1.15,
                    empty: 2.0,
                }),
                ..case(Group::Decode, shape, format)
            });
        }
    }
}

fn sweeps(all: &mut Vec<Case>) {
    // At most 1024 experts, so that each has whole tiles and the bytes are the same for all.
    for experts in (0..=10).map(|power| 1 << power) {
        for format in Format::ALL {
            let shape = shape(131_072, 2048, experts, Division::Equal);
            all.push(case(Group::Experts, shape, format));
        }
    }
    for rows in [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536] {
        for format in Format::ALL {
            let shape = shape(rows, 4096, 256, Division::Uniform);
            all.push(case(Group::Rows, shape, format));
        }
    }
    for format in Format::ALL {
        // The packed rows next to the gathered ones, for comparison.
        for gather in [false, true] {
            all.push(Case {
                gather,
                ..case(Group::Gather, LARGE, format)
            });
        }
    }
    for rounding in [ScaleRounding::Floor, ScaleRounding::Even] {
        for format in [Format::Mxfp4, Format::Mxfp8] {
            all.push(Case {
                rounding,
                ..case(Group::Rounding, LARGE, format)
            });
        }
    }
    for input_type in [InputType::F16, InputType::F32] {
        for format in Format::ALL {
            all.push(Case {
                input_type,
                mark: Some(Mark::OfTwin(0.95)),
                ..case(Group::Inputs, LARGE, format)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_byte_formula_is_that_of_the_memory_model() {
        // Per element, without padding: 2.5625, 2.53125 and 3.03125 bytes.
        let bytes = |format, shape: Shape| {
            case(Group::Prefill, shape, format).bytes(&shape.routing(false).unwrap())
        };
        let whole = shape(8192, 4096, 1, Division::Equal);
        assert_eq!(bytes(Format::Nvfp4, whole), 85_983_232);
        assert_eq!(bytes(Format::Mxfp4, whole), 84_934_656);
        assert_eq!(bytes(Format::Mxfp8, whole), 101_711_872);
        // One row of 2880 columns: 90 blocks of 32 in 23 tiles, 512 bytes each.
        let single = shape(1, 2880, 4, Division::Uniform);
        assert_eq!(bytes(Format::Mxfp8, single), 2880 * 3 + 23 * 512);
        // Two rows for two experts occupy a row tile each.
        let two = shape(2, 64, 2, Division::Equal);
        assert_eq!(bytes(Format::Nvfp4, two), 2 * (128 + 32) + 2 * 512);
    }

    #[test]
    fn gathering_reads_an_index_and_each_row_once() {
        let case = Case {
            gather: true,
            ..case(
                Group::Gather,
                shape(100, 64, 7, Division::Zipf),
                Format::Mxfp4,
            )
        };
        let packed = case.shape.routing(false).unwrap();
        let gathered = case.shape.routing(true).unwrap();
        assert_eq!(packed.row_offsets(), gathered.row_offsets());
        assert_eq!(case.bytes(&gathered), case.bytes(&packed) + 400);
        let sources: HashSet<_> = gathered.source_rows().unwrap().iter().collect();
        assert_eq!(sources.len(), 100);
    }

    #[test]
    fn divisions_are_what_they_are_called() {
        let rows = |division| {
            let shape = shape(6400, 64, 64, division);
            let routing = shape.routing(false).unwrap();
            assert_eq!(routing, shape.routing(false).unwrap());
            let mut rows: Vec<_> = routing.rows_per_expert().collect();
            rows.sort_unstable();
            rows
        };
        assert!(rows(Division::Equal).iter().all(|&rows| rows == 100));
        let uniform = rows(Division::Uniform);
        assert!(uniform[0] > 50 && uniform[63] < 160, "{uniform:?}");
        // The most popular expert has 1 in 4.74 rows.
        let zipf = rows(Division::Zipf);
        assert!((1100..1600).contains(&zipf[63]) && zipf[0] < 50, "{zipf:?}");
    }

    #[test]
    fn every_mark_is_there_and_names_are_unique() {
        let marks = cases(Suite::Marks, &Filter::default());
        assert_eq!(marks.len(), 8 * 3);
        assert!(marks.iter().all(|case| case.mark.is_some()));
        let all = cases(Suite::All, &Filter::default());
        let names: HashSet<_> = all.iter().map(|case| (case.group, case.id())).collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn filters_narrow_a_suite() {
        let filter = Filter {
            shapes: vec!["192x4096".to_owned()],
            formats: vec![Format::Mxfp8],
            inputs: vec![InputType::Bf16],
        };
        let ids: Vec<_> = cases(Suite::All, &filter).iter().map(Case::id).collect();
        assert_eq!(ids.len(), 4);
        assert_eq!(ids[0], "mxfp8/uniform-192x4096-e8/bf16");
    }

    #[test]
    fn the_sweep_over_experts_moves_the_same_bytes_throughout() {
        let bytes: HashSet<_> = cases(Suite::Sweeps, &Filter::default())
            .iter()
            .filter(|case| case.group == Group::Experts && case.format == Format::Nvfp4)
            .map(|case| case.bytes(&case.shape.routing(false).unwrap()))
            .collect();
        assert_eq!(bytes.len(), 1);
    }
}
