//! Grouped quantization on a device.

mod block_shape;
mod error;
mod operands;
mod output;

pub use error::QuantizeError;
pub use operands::{Input, TensorScales};
pub use output::Quantized;

use crate::backend::LaunchConfig;
use crate::device::Device;
use crate::device_routing::DeviceRouting;
use crate::error::DeviceError;
use crate::options::{DeadBlocks, Format, InputType, NanPolicy, QuantizeOptions, ScaleRounding};
use crate::stream::Stream;
use block_shape::{BlockShape, Room};
use error::{check_columns, to_index};
use kernels_gpu::for_each_quantize_entry;
use kernels_gpu::formats::{self, Rules};
use kernels_gpu::quantize;
use kernels_gpu::scale_tile::Swizzle;
use output::output_bytes;

/// How scale tiles leave shared memory for the scales tensor. The bytes are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScaleStore {
    /// [`Bulk`](Self::Bulk) where the device has the copy engine, else [`Plain`](Self::Plain).
    #[default]
    Auto,
    /// One bulk copy for all tiles of a block. Compute capability 9.0.
    Bulk,
    /// A copy through a tensor map for each tile, staged with this swizzle. Compute capability 9.0.
    TensorMap(Swizzle),
    /// 16-byte stores by the threads.
    Plain,
}

/// What every quantize entry takes besides its launch, ready to be given its entry's own type.
#[derive(Clone, Copy)]
struct Call<'a> {
    stream: &'a Stream,
    config: LaunchConfig,
    input: *const u8,
    input_rows: u32,
    columns: u32,
    data: *mut u8,
    rows: u32,
    scales: *mut u8,
    row_tiles: u32,
    scale_map: *const u8,
    routing: &'a DeviceRouting,
    sf: *const f32,
    sf_len: u32,
    rules: u32,
    scale_store: u32,
    shape: BlockShape,
}

/// A line of [`for_each_quantize_entry`].
struct Entry {
    name: &'static str,
    /// Names of the kernel crate's types, which are those of the options but for upper case.
    format: &'static str,
    input_type: &'static str,
    /// Threads that run on a multiprocessor at once, and the most of a block.
    threads: u32,
    launcher: Launcher,
    /// That of its traffic twin.
    twin: Launcher,
}

type Launcher = unsafe fn(Call<'_>) -> Result<(), DeviceError>;

macro_rules! launcher {
    ($name:ident) => {
        |call| {
            let routing = call.routing;
            let args = quantize::$name::Args {
                input: call.input.cast(),
                input_rows: call.input_rows,
                columns: call.columns,
                data: call.data,
                rows: call.rows,
                scales: call.scales,
                row_tiles: call.row_tiles,
                scale_map: call.scale_map.cast(),
                row_offsets: routing.row_offsets.as_ptr(),
                scales_offsets: routing.scales_offsets.as_ptr(),
                expert_ids: routing.expert_ids.as_ptr(),
                slots: routing.slots() as u32,
                sf: call.sf,
                sf_len: call.sf_len,
                source_rows: routing
                    .source_rows
                    .as_ref()
                    .map_or(std::ptr::null(), |rows| rows.as_ptr()),
                rules: call.rules,
                scale_store: call.scale_store,
                runs_per_block: call.shape.runs,
            };
            // SAFETY: the caller's obligation.
            unsafe { call.stream.launch(call.config, args) }
        }
    };
}

macro_rules! entries {
    ($($name:ident, $twin:ident: $format:ident, $input:ident, $threads:literal;)*) => {
        &[$(Entry {
            name: stringify!($name),
            format: stringify!($format),
            input_type: stringify!($input),
            threads: $threads,
            launcher: launcher!($name),
            twin: launcher!($twin),
        }),*]
    };
}

/// The quantize entries.
const ENTRIES: &[Entry] = for_each_quantize_entry!(entries);

/// Makes a [`GroupedQuantizer`]; see [`GroupedQuantizer::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct GroupedQuantizerBuilder {
    device: Device,
    format: Format,
    columns: usize,
    input_type: InputType,
    options: QuantizeOptions,
    scale_store: ScaleStore,
    runs_per_block: Option<u32>,
    threads_per_block: Option<u32>,
    max_experts: usize,
    traffic_twin: bool,
}

impl GroupedQuantizerBuilder {
    /// Columns of a row (K), a multiple of 8. 0 unless told.
    pub fn columns(mut self, columns: usize) -> Self {
        self.columns = columns;
        self
    }

    /// The input type. BF16 unless told.
    pub fn input_type(mut self, input_type: InputType) -> Self {
        self.input_type = input_type;
        self
    }

    /// Rounding of E8M0 scales. RCEIL unless told; NVFP4 has no choice.
    pub fn scale_rounding(mut self, rounding: ScaleRounding) -> Self {
        self.options.scale_rounding = rounding;
        self
    }

    /// What becomes of blocks too small for a scale. Hardened unless told.
    pub fn dead_blocks(mut self, policy: DeadBlocks) -> Self {
        self.options.dead_blocks = policy;
        self
    }

    /// What a NaN does to its block. Ignored in the largest magnitude unless told.
    pub fn nan_policy(mut self, policy: NanPolicy) -> Self {
        self.options.nan_policy = policy;
        self
    }

    /// All three policies at once.
    pub fn options(mut self, options: QuantizeOptions) -> Self {
        self.options = options;
        self
    }

    /// How scale tiles are written.
    pub fn scale_store(mut self, store: ScaleStore) -> Self {
        self.scale_store = store;
        self
    }

    /// Runs of 512 columns that a thread block takes: 1, 2, 4 or 8. The bytes are the same.
    ///
    /// Chosen by the numbers of rows and experts unless told; 1 if only the
    /// [threads](Self::threads_per_block) are told.
    pub fn runs_per_block(mut self, runs: u32) -> Self {
        self.runs_per_block = Some(runs);
        self
    }

    /// Threads of a block: a multiple of a warp for each of its [runs](Self::runs_per_block), up to 1024 (256
    /// below compute capability 9.0, and 768 or 512 for FP32 input). The bytes are the same.
    ///
    /// Chosen by the numbers of rows and experts unless told; 256 if only the runs are told.
    pub fn threads_per_block(mut self, threads: u32) -> Self {
        self.threads_per_block = Some(threads);
        self
    }

    /// Refuse routings with more experts than this. No limit unless told.
    pub fn max_experts(mut self, experts: usize) -> Self {
        self.max_experts = experts;
        self
    }

    /// Launch the kernel's *traffic twin*: the same grid, the same loads and the same stores, and no
    /// arithmetic between them. For measuring: what it writes means nothing, and how long it takes is
    /// what memory alone would take.
    pub fn traffic_twin(mut self) -> Self {
        self.traffic_twin = true;
        self
    }

    /// Checks the choices.
    ///
    /// # Errors
    ///
    /// The first choice that does not work, with its numbers.
    pub fn build(self) -> Result<GroupedQuantizer, QuantizeError> {
        let columns = check_columns(self.columns)?;
        self.options.check(self.format)?;
        let copy_engine = self.device.compute_capability() >= (9, 0);
        let scale_store = match self.scale_store {
            ScaleStore::Auto if copy_engine => ScaleStore::Bulk,
            ScaleStore::Auto => ScaleStore::Plain,
            store @ (ScaleStore::Bulk | ScaleStore::TensorMap(_)) if !copy_engine => {
                return Err(QuantizeError::NoCopyEngine {
                    store,
                    capability: self.device.compute_capability(),
                });
            }
            store => store,
        };
        let Some(entry) = ENTRIES.iter().find(|entry| {
            entry.format.eq_ignore_ascii_case(self.format.name())
                && entry
                    .input_type
                    .eq_ignore_ascii_case(self.input_type.name())
        }) else {
            let names: Vec<_> = ENTRIES.iter().map(|entry| entry.name).collect();
            return Err(QuantizeError::NoKernel {
                format: self.format,
                input_type: self.input_type,
                available: names.join(", "),
            });
        };
        let room = Room::new(&self.device, entry.threads);
        let shape = room.checked(self.threads_per_block, self.runs_per_block)?;
        let rules = Rules::new(
            match self.options.scale_rounding {
                ScaleRounding::Rceil => formats::ScaleRounding::Rceil,
                ScaleRounding::Floor => formats::ScaleRounding::Floor,
                ScaleRounding::Even => formats::ScaleRounding::Even,
            },
            match self.options.dead_blocks {
                DeadBlocks::Hardened => formats::DeadBlocks::Hardened,
                DeadBlocks::Strict => formats::DeadBlocks::Strict,
            },
            match self.options.nan_policy {
                NanPolicy::Ignore => formats::NanPolicy::Ignore,
                NanPolicy::Propagate => formats::NanPolicy::Propagate,
            },
        );
        Ok(GroupedQuantizer {
            columns,
            rules,
            scale_store,
            room,
            shape,
            launcher: match self.traffic_twin {
                true => entry.twin,
                false => entry.launcher,
            },
            choices: self,
        })
    }
}

/// Quantizes rows grouped by expert.
///
/// Built once for a format, a number of columns and a set of policies, then used for any number of
/// rows and experts. See the [crate documentation](crate) for an example.
#[derive(Debug)]
pub struct GroupedQuantizer {
    choices: GroupedQuantizerBuilder,
    columns: u32,
    rules: Rules,
    scale_store: ScaleStore,
    room: Room,
    /// What was asked for.
    shape: Option<BlockShape>,
    launcher: Launcher,
}

impl GroupedQuantizer {
    /// Begins to describe a quantizer.
    pub fn builder(device: &Device, format: Format) -> GroupedQuantizerBuilder {
        GroupedQuantizerBuilder {
            device: device.clone(),
            format,
            columns: 0,
            input_type: InputType::Bf16,
            options: QuantizeOptions::default(),
            scale_store: ScaleStore::Auto,
            runs_per_block: None,
            threads_per_block: None,
            max_experts: usize::MAX,
            traffic_twin: false,
        }
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.choices.format
    }

    /// Columns of a row.
    pub fn columns(&self) -> usize {
        self.choices.columns
    }

    /// How scale tiles are written: never [`ScaleStore::Auto`].
    pub fn scale_store(&self) -> ScaleStore {
        self.scale_store
    }

    /// Memory for `rows` rows and `row_tiles` row tiles of scales. The content is unspecified until
    /// something is quantized into it, and stays so in row tiles that no expert occupies.
    ///
    /// # Errors
    ///
    /// Extents that are too large; a device that cannot allocate.
    pub fn allocate(&self, rows: usize, row_tiles: usize) -> Result<Quantized, QuantizeError> {
        let format = self.choices.format;
        let columns = self.choices.columns;
        let (data, scales) = output_bytes(format, rows, columns, row_tiles)?;
        let device = &self.choices.device;
        let (data, scales) = (device.alloc(data)?, device.alloc(scales)?);
        self.adopt(Quantized::from_buffers(
            format, rows, columns, row_tiles, data, scales,
        )?)
    }

    /// Prepares memory of the caller's as this quantizer's output.
    ///
    /// # Errors
    ///
    /// An output of another format or device.
    pub fn adopt(&self, mut output: Quantized) -> Result<Quantized, QuantizeError> {
        self.check_output(&output)?;
        if let ScaleStore::TensorMap(swizzle) = self.scale_store {
            output.describe_scales(swizzle)?;
        }
        Ok(output)
    }

    /// Quantizes `input` into new memory.
    ///
    /// # Errors
    ///
    /// As [`quantize_into`](Self::quantize_into) and [`allocate`](Self::allocate).
    pub fn quantize<'a>(
        &self,
        stream: &Stream,
        input: impl Into<Input<'a>>,
        routing: &DeviceRouting,
        tensor_scales: &TensorScales,
    ) -> Result<Quantized, QuantizeError> {
        let mut output = self.allocate(routing.rows(), routing.tiles_needed())?;
        self.quantize_into(stream, input, routing, tensor_scales, &mut output)?;
        Ok(output)
    }

    /// Quantizes `input` into `output`. Neither allocates nor waits, if this quantizer made or
    /// [adopted](Self::adopt) the output: the work is done when the stream has got there. Work on other
    /// streams that writes any of these buffers must be ordered by [events](Stream::wait).
    ///
    /// Rows of no slot, and rows of a slot whose expert has no tensor-wise factor, are not written.
    /// Every byte of an occupied scale tile is written, zeros where there is no row or block; other
    /// tiles keep their content.
    ///
    /// # Errors
    ///
    /// The first thing that does not fit, with its numbers; nothing was launched then.
    pub fn quantize_into<'a>(
        &self,
        stream: &Stream,
        input: impl Into<Input<'a>>,
        routing: &DeviceRouting,
        tensor_scales: &TensorScales,
        output: &mut Quantized,
    ) -> Result<(), QuantizeError> {
        let input = input.into();
        let device = &self.choices.device;
        device.check_same("the stream", stream.device())?;
        device.check_same("the input", input.device())?;
        device.check_same("the routing", routing.device())?;
        device.check_same("the tensor-wise factors", tensor_scales.0.device())?;
        self.check_output(output)?;
        let input_rows = self.input_rows(input, routing)?;
        if routing.slots() > self.choices.max_experts {
            return Err(QuantizeError::Experts {
                found: routing.slots(),
                max: self.choices.max_experts,
            });
        }
        if output.rows != routing.rows() {
            return Err(QuantizeError::OutputRows {
                found: output.rows,
                expected: routing.rows(),
            });
        }
        if output.row_tiles < routing.tiles_needed() {
            return Err(QuantizeError::RowTiles {
                found: output.row_tiles,
                needed: routing.tiles_needed(),
            });
        }
        let store = match (self.scale_store, &output.scale_map) {
            (ScaleStore::TensorMap(wanted), Some((_, made))) if wanted == *made => {
                quantize::ScaleStore::tensor_map(wanted)
            }
            // An output that another quantizer allocated: its scales are described on first use.
            (ScaleStore::TensorMap(wanted), _) => {
                output.describe_scales(wanted)?;
                quantize::ScaleStore::tensor_map(wanted)
            }
            (ScaleStore::Plain, _) => quantize::ScaleStore::PLAIN,
            (ScaleStore::Auto | ScaleStore::Bulk, _) => quantize::ScaleStore::BULK,
        };
        let row_tiles = output.row_tiles as u32;
        let shape = self.shape.unwrap_or_else(|| {
            let (rows, slots) = (output.rows, routing.slots());
            self.room
                .shape(self.choices.format, rows, self.columns, slots)
        });
        let call = Call {
            stream,
            config: LaunchConfig::line(
                quantize::grid_size(row_tiles, self.columns, shape.runs),
                shape.threads,
                quantize::shared_bytes(shape.runs),
            )?,
            input: input.address(),
            input_rows,
            columns: self.columns,
            data: output.data.as_mut_ptr(),
            rows: output.rows as u32,
            scales: output.scales.as_mut_ptr(),
            row_tiles,
            scale_map: output
                .scale_map
                .as_ref()
                .map_or(std::ptr::null(), |(map, _)| map.as_ptr()),
            routing,
            sf: tensor_scales.0.as_ptr(),
            sf_len: tensor_scales.0.len() as u32,
            rules: self.rules.bits(),
            scale_store: store.bits(),
            shape,
        };
        // SAFETY: every extent is that of the buffer it goes with: `data` and `scales` by
        // `Quantized`, the tables by `DeviceRouting`, the input by `input_rows`. The launch is the
        // one that the entry asks for. That no other stream writes the buffers meanwhile is the
        // documented duty of whoever uses several; the kernel stays inside them either way.
        unsafe { (self.launcher)(call) }?;
        Ok(())
    }

    fn check_output(&self, output: &Quantized) -> Result<(), QuantizeError> {
        self.choices
            .device
            .check_same("the output", output.data.device())?;
        if output.format != self.choices.format || output.columns != self.choices.columns {
            return Err(QuantizeError::OutputMismatch {
                found_format: output.format,
                found_columns: output.columns,
                format: self.choices.format,
                columns: self.choices.columns,
            });
        }
        Ok(())
    }

    /// Rows of the input, after checking that it has whole rows and enough of them.
    fn input_rows(&self, input: Input<'_>, routing: &DeviceRouting) -> Result<u32, QuantizeError> {
        if input.input_type() != self.choices.input_type {
            return Err(QuantizeError::InputType {
                found: input.input_type(),
                expected: self.choices.input_type,
            });
        }
        let columns = self.choices.columns;
        let rows = match routing.gathers() {
            Some(_) => input.len().checked_div(columns).unwrap_or(0),
            None => routing.rows(),
        };
        if Some(input.len()) != rows.checked_mul(columns) {
            return Err(QuantizeError::BufferLength {
                buffer: "the input",
                found: input.len(),
                expected: rows.saturating_mul(columns),
                rows,
                columns,
            });
        }
        if let Some(Some(end)) = routing.gathers()
            && end > rows
            && columns > 0
        {
            return Err(QuantizeError::SourceRow { row: end - 1, rows });
        }
        to_index("the number of input rows", rows)
    }
}
