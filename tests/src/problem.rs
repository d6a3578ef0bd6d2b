//! One grouped quantization: its input, what must come out, and what does on a device.

use std::fmt;

use anyhow::{Context as _, Result};
use tokenyard::options::{Format, QuantizeOptions};
use tokenyard::reference::{self, Groups};
use tokenyard::routing::{Routing, TILE_ROWS, max_tiles};
use tokenyard::{
    Device, DeviceRouting, GroupedQuantizer, Quantized, RoutingTables, ScaleStore, Swizzle,
    TensorScales,
};

use crate::compare;
use crate::memory::{Background, GUARD, Memory, inside};
use crate::values::Rows;

/// How rows are divided among slots.
#[derive(Clone, Debug)]
pub enum Grouping {
    /// As the host library computed it.
    Routing(Routing),
    /// Whatever the tables say, for this many rows.
    Tables(RoutingTables, usize),
}

impl From<Routing> for Grouping {
    fn from(routing: Routing) -> Self {
        Grouping::Routing(routing)
    }
}

impl Grouping {
    /// The three index vectors of the grouped operation.
    pub fn groups(&self) -> Groups<'_> {
        match self {
            Grouping::Routing(routing) => routing.into(),
            Grouping::Tables(tables, _) => Groups {
                row_offsets: &tables.row_offsets,
                scales_offsets: &tables.scales_offsets,
                expert_ids: &tables.expert_ids,
            },
        }
    }

    /// The input row of each row, where rows are gathered.
    pub fn source_rows(&self) -> Option<&[i32]> {
        match self {
            Grouping::Routing(routing) => routing.source_rows(),
            Grouping::Tables(tables, _) => tables.source_rows.as_deref(),
        }
    }

    /// R.
    pub fn rows(&self) -> usize {
        match self {
            Grouping::Routing(routing) => routing.rows(),
            Grouping::Tables(_, rows) => *rows,
        }
    }

    /// Copies the tables to a device.
    ///
    /// # Errors
    /// As the library's own.
    pub fn upload(&self, device: &Device) -> Result<DeviceRouting> {
        Ok(match self {
            Grouping::Routing(routing) => DeviceRouting::upload(device, routing)?,
            Grouping::Tables(tables, rows) => DeviceRouting::from_buffers(
                device.upload(&tables.row_offsets)?,
                device.upload(&tables.scales_offsets)?,
                device.upload(&tables.expert_ids)?,
                tables
                    .source_rows
                    .as_ref()
                    .map(|rows| device.upload(rows))
                    .transpose()?,
                *rows,
            )?,
        })
    }
}

/// How a quantizer is launched. None of it may change the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Runs of columns that a block takes; the library's choice unless told.
    pub runs: Option<u32>,
    /// Threads of a block; likewise.
    pub threads: Option<u32>,
    /// How scale tiles are written.
    pub store: ScaleStore,
}

impl Launch {
    /// The runs per block that there are, and the library's choice.
    pub const RUNS: [Option<u32>; 5] = [None, Some(1), Some(2), Some(4), Some(8)];

    /// Every number of runs, with the store that the device would choose.
    pub fn all_runs() -> [Self; 5] {
        Self::RUNS.map(|runs| Self {
            runs,
            ..Self::default()
        })
    }

    /// Every number of runs with every store that a device has, and blocks of few and of many threads.
    pub fn all(device: &Device) -> Vec<Self> {
        let stores = Self::stores(device).into_iter();
        let runs_and_stores = stores.flat_map(|store| {
            Self::RUNS.map(|runs| Self {
                runs,
                store,
                ..Self::default()
            })
        });
        runs_and_stores.chain(Self::all_threads(device)).collect()
    }

    /// Blocks of one warp to as many as there can be: fewer than rows of a tile and more, a power of two and not.
    pub fn all_threads(device: &Device) -> impl Iterator<Item = Self> {
        let most = match device.compute_capability() {
            (..=8, _) => 256,
            _ => 512,
        };
        let shapes = [
            (32, 1),
            (64, 2),
            (96, 1),
            (128, 4),
            (192, 2),
            (384, 4),
            (512, 1),
        ];
        let shapes = shapes
            .into_iter()
            .filter(move |&(threads, _)| threads <= most);
        shapes.map(|(threads, runs)| Self {
            runs: Some(runs),
            threads: Some(threads),
            ..Self::default()
        })
    }

    /// The ways to write scale tiles that a device has.
    pub fn stores(device: &Device) -> Vec<ScaleStore> {
        let mut stores = vec![ScaleStore::Auto, ScaleStore::Plain];
        if device.compute_capability() >= (9, 0) {
            stores.push(ScaleStore::Bulk);
            stores.extend(
                [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128]
                    .map(ScaleStore::TensorMap),
            );
        }
        stores
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.runs {
            Some(runs) => write!(f, "{runs} runs a block, ")?,
            None => f.write_str("runs as chosen, ")?,
        }
        if let Some(threads) = self.threads {
            write!(f, "{threads} threads, ")?;
        }
        write!(f, "{:?} store", self.store)
    }
}

/// One grouped quantization.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The output format.
    pub format: Format,
    /// Rounding and policies.
    pub options: QuantizeOptions,
    /// K.
    pub columns: usize,
    /// `[input rows, K]`.
    pub input: Rows,
    /// Which rows belong to which slot, and where they come from.
    pub grouping: Grouping,
    /// `[X]`.
    pub sf: Vec<f32>,
    /// Mt, at least what the grouping needs.
    pub row_tiles: usize,
    /// What the outputs hold beforehand.
    pub background: Background,
}

impl Problem {
    /// With default options, a tensor-wise factor of 1 for each slot, as many row tiles as suffice
    /// for any division of the rows, and two more that nobody can occupy.
    pub fn new(format: Format, columns: usize, grouping: impl Into<Grouping>, input: Rows) -> Self {
        let grouping = grouping.into();
        let slots = grouping.groups().slots();
        Self {
            format,
            options: QuantizeOptions::default(),
            columns,
            sf: vec![1.0; slots],
            row_tiles: max_tiles(grouping.rows(), slots) + 2,
            background: Background::Noise,
            input,
            grouping,
        }
    }

    /// R.
    pub fn rows(&self) -> usize {
        self.grouping.rows()
    }

    /// Rows of the input: R, or where rows are gathered, as many as there are elements for.
    pub fn input_rows(&self) -> usize {
        match self.grouping.source_rows() {
            Some(_) => self.input.len().checked_div(self.columns).unwrap_or(0),
            None => self.rows(),
        }
    }

    fn data_bytes(&self) -> usize {
        self.rows() * self.format.bytes_per_row(self.columns)
    }

    fn scale_bytes(&self) -> usize {
        self.row_tiles * self.format.column_tiles(self.columns) * reference::TILE_BYTES
    }

    /// The outputs before anything is written.
    pub fn untouched(&self) -> Memory {
        Memory {
            data: self.background.bytes(self.data_bytes() + 2 * GUARD, 1),
            scales: self.background.bytes(self.scale_bytes() + 2 * GUARD, 2),
        }
    }

    /// What the reference makes of them.
    ///
    /// # Errors
    /// A problem that the reference refuses.
    pub fn expected(&self) -> Result<Memory> {
        let mut memory = self.untouched();
        let (data_end, scales_end) = (GUARD + self.data_bytes(), GUARD + self.scale_bytes());
        let output = reference::Output {
            data: &mut memory.data[GUARD..data_end],
            scales: &mut memory.scales[GUARD..scales_end],
        };
        reference::quantize(&self.reference(), output).with_context(|| self.to_string())?;
        Ok(memory)
    }

    /// As the reference takes it.
    pub fn reference(&self) -> reference::Problem<'_> {
        reference::Problem {
            format: self.format,
            input: self.input.reference(),
            input_rows: self.input_rows(),
            columns: self.columns,
            groups: self.grouping.groups(),
            sf: &self.sf,
            source_rows: self.grouping.source_rows(),
            options: self.options,
        }
    }

    /// A quantizer for it.
    ///
    /// # Errors
    /// As the library's own.
    pub fn quantizer(&self, device: &Device, launch: Launch) -> Result<GroupedQuantizer> {
        let builder = GroupedQuantizer::builder(device, self.format)
            .columns(self.columns)
            .input_type(self.input.input_type())
            .options(self.options)
            .scale_store(launch.store);
        let builder = match launch.runs {
            Some(runs) => builder.runs_per_block(runs),
            None => builder,
        };
        let builder = match launch.threads {
            Some(threads) => builder.threads_per_block(threads),
            None => builder,
        };
        Ok(builder.build()?)
    }

    /// What a device makes of the outputs.
    ///
    /// # Errors
    /// As the library's own.
    pub fn run(&self, device: &Device, launch: Launch) -> Result<Memory> {
        self.run_on(device, launch)
            .with_context(|| self.context(device, launch))
    }

    fn run_on(&self, device: &Device, launch: Launch) -> Result<Memory> {
        let untouched = self.untouched();
        let mut data = device.upload(&untouched.data)?;
        let mut scales = device.upload(&untouched.scales)?;
        let input = self.input.upload(device)?;
        let routing = self.grouping.upload(device)?;
        let sf = TensorScales::upload(device, &self.sf)?;
        let stream = device.create_stream()?;
        let quantizer = self.quantizer(device, launch)?;
        let mut output = quantizer.adopt(Quantized::from_buffers(
            self.format,
            self.rows(),
            self.columns,
            self.row_tiles,
            inside(&mut data)?,
            inside(&mut scales)?,
        )?)?;
        quantizer.quantize_into(&stream, input.input(), &routing, &sf, &mut output)?;
        stream.synchronize()?;
        Ok(Memory {
            data: data.download()?,
            scales: scales.download()?,
        })
    }

    /// Runs it on every device with every launch, and compares each result with the reference.
    ///
    /// # Errors
    /// A device that fails, or the first byte that differs.
    pub fn check_all(&self, devices: &[Device], launches: &[Launch]) -> Result<()> {
        let expected = self.expected()?;
        for device in devices {
            for &launch in launches {
                let found = self.run(device, launch)?;
                self.compare(&expected, &found)
                    .with_context(|| self.context(device, launch))?;
            }
        }
        Ok(())
    }

    /// As [`check_all`](Self::check_all), launched as a user would.
    ///
    /// # Errors
    /// As `check_all`.
    pub fn check(&self, devices: &[Device]) -> Result<()> {
        self.check_all(devices, &[Launch::default()])
    }

    /// Compares two results, guards included.
    ///
    /// # Errors
    /// The first byte that differs, in coordinates of the problem.
    pub fn compare(&self, expected: &Memory, found: &Memory) -> Result<()> {
        compare::bytes("scales", &expected.scales, &found.scales, |index| {
            let inner = index
                .checked_sub(GUARD)
                .filter(|&index| index < self.scale_bytes());
            inner.map_or_else(|| "outside".into(), |index| self.scale_place(index))
        })?;
        compare::bytes("data", &expected.data, &found.data, |index| {
            let inner = index
                .checked_sub(GUARD)
                .filter(|&index| index < self.data_bytes());
            inner.map_or_else(|| "outside".into(), |index| self.data_place(index))
        })
    }

    fn scale_place(&self, index: usize) -> String {
        let column_tiles = self.format.column_tiles(self.columns);
        let (tile, byte) = (index / reference::TILE_BYTES, index % reference::TILE_BYTES);
        let (row_tile, column_tile) = (tile / column_tiles, tile % column_tiles);
        let row = byte / 16 + byte % 16 / 4 * 32;
        let block = column_tile * reference::TILE_BLOCKS + byte % 4;
        let groups = self.grouping.groups();
        let owner = match groups.slot_of_tile(row_tile, self.rows()) {
            Some(slot) => {
                let local = (row_tile - groups.tile_start(slot)) * TILE_ROWS + row;
                format!("slot {slot}, its row {local}, block {block}")
            }
            None => "of no slot".into(),
        };
        format!("row tile {row_tile}, column tile {column_tile}, row {row}: {owner}")
    }

    fn data_place(&self, index: usize) -> String {
        let bytes_per_row = self.format.bytes_per_row(self.columns);
        let per_byte = self.columns / bytes_per_row;
        let (row, column) = (index / bytes_per_row, index % bytes_per_row * per_byte);
        let source = self
            .grouping
            .source_rows()
            .map_or(row as i64, |rows| rows[row].into());
        let elements: Vec<String> = (column..column + per_byte)
            .map(|column| {
                let index = usize::try_from(source)
                    .ok()
                    .map(|row| row * self.columns + column);
                match index.filter(|&index| index < self.input.len()) {
                    Some(index) => self.input.shown(index),
                    None => "no input".into(),
                }
            })
            .collect();
        let owner = match self.grouping.groups().slot_of_row(row) {
            Some(slot) => format!("slot {slot}"),
            None => "of no slot".into(),
        };
        format!(
            "row {row}, column {column}, {owner}, from {}",
            elements.join(" and ")
        )
    }

    fn context(&self, device: &Device, launch: Launch) -> String {
        format!("{self}; {launch}, on {}", device.description())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.grouping.groups();
        let QuantizeOptions {
            scale_rounding,
            dead_blocks,
            nan_policy,
        } = self.options;
        write!(
            f,
            "{} from {} (scales {scale_rounding}, dead blocks {dead_blocks}, NaN {nan_policy}), \
             R = {}, K = {}, E = {}, Mt = {}, row_offsets {}, scales_offsets {}, expert_ids {}, sf {}",
            self.format,
            self.input.input_type(),
            self.rows(),
            self.columns,
            groups.slots(),
            self.row_tiles,
            Short(groups.row_offsets),
            Short(groups.scales_offsets),
            Short(groups.expert_ids),
            Short(&self.sf),
        )?;
        if let Some(rows) = self.grouping.source_rows() {
            write!(f, ", source_rows {}", Short(rows))?;
        }
        Ok(())
    }
}

/// A list, cut after its first values.
struct Short<'a, T>(&'a [T]);

impl<T: fmt::Debug> fmt::Display for Short<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        match self.0.get(..SHOWN) {
            Some(first) if self.0.len() > SHOWN => {
                write!(f, "{first:?} and {} more", self.0.len() - SHOWN)
            }
            _ => write!(f, "{:?}", self.0),
        }
    }
}
