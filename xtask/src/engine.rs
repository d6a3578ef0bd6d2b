//! One interface over what can quantize: a device, or the reference.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use half::slice::HalfFloatSliceExt;
use tokenyard::options::{Format, QuantizeOptions};
use tokenyard::{
    Device, DeviceError, DeviceRouting, GroupedQuantizer, Input, Quantized, TensorScales, reference,
};

use crate::files::{GroupedInput, HiddenStates, QuantizedFile};
use crate::flags::{BackendChoice, BackendFlags};

/// What does the work.
pub enum Engine {
    /// A GPU or the emulator.
    Device {
        /// The device.
        device: Device,
        /// Why it was chosen.
        reason: String,
    },
    /// The plain CPU implementation.
    Reference,
}

/// A result, and how long it took: for a device, from the launch until the results are complete
/// there, copies to and from the host not included.
#[derive(Debug)]
pub struct Timed<T> {
    /// The result.
    pub value: T,
    /// The time.
    pub time: Duration,
}

impl Engine {
    /// Opens what the flags ask for.
    ///
    /// # Errors
    /// `--backend cuda` where there is no GPU that works.
    pub fn open(flags: BackendFlags) -> Result<Self> {
        let emulator = || Device::emulator(flags.seed);
        let (device, reason) = match flags.backend {
            BackendChoice::Reference => return Ok(Self::Reference),
            BackendChoice::Emulator => (emulator(), "as --backend asks for".to_owned()),
            BackendChoice::Cuda => {
                let device = Device::cuda(0).context("--backend cuda needs a GPU")?;
                (device, "as --backend asks for".to_owned())
            }
            BackendChoice::Auto => match Device::cuda(0) {
                Ok(device) => (device, "the first GPU of this machine".to_owned()),
                Err(error) => (emulator(), why_no_gpu(&error)),
            },
        };
        Ok(Self::Device { device, reason })
    }

    /// One word for tables: `cuda`, `emulator` or `reference`.
    pub fn name(&self) -> &'static str {
        match self {
            Engine::Device { device, .. } if device.is_emulator() => "emulator",
            Engine::Device { .. } => "cuda",
            Engine::Reference => "reference",
        }
    }

    /// What it is and why it was chosen, in a line.
    pub fn description(&self) -> String {
        match self {
            Engine::Device { device, reason } => format!("{} ({reason})", device.description()),
            Engine::Reference => {
                "the reference on the CPU, without kernels (as --backend asks for)".to_owned()
            }
        }
    }

    /// Quantizes `input`; `tensor_scales` are per expert.
    ///
    /// # Errors
    /// Options without a meaning for the format, or whatever the device reports.
    pub fn quantize(
        &self,
        input: &GroupedInput,
        format: Format,
        options: QuantizeOptions,
        tensor_scales: &[f32],
    ) -> Result<Timed<QuantizedFile>> {
        let Timed { value, time } = match self {
            Engine::Device { device, .. } => {
                quantize_on_device(device, input, format, options, tensor_scales)
            }
            Engine::Reference => quantize_by_reference(input, format, options, tensor_scales),
        }
        .with_context(|| format!("cannot quantize to {format} ({})", self.name()))?;
        let (data, mut scales) = value;
        // The tiles after the last occupied one are slack of the allocation.
        scales.truncate(
            input.routing.occupied_tiles()
                * format.column_tiles(input.columns)
                * reference::TILE_BYTES,
        );
        let source_rows = match input.routing.source_rows() {
            Some(rows) => rows.to_vec(),
            None => (0..input.routing.rows() as i32).collect(),
        };
        let file = QuantizedFile {
            format,
            columns: input.columns,
            options,
            routing: input.routing.clone(),
            source_rows,
            data,
            scales,
            tensor_scales: tensor_scales.to_vec(),
        };
        Ok(Timed { value: file, time })
    }

    /// Decodes to `[R, K]`.
    ///
    /// # Errors
    /// Whatever the device reports.
    pub fn dequantize(&self, file: &QuantizedFile) -> Result<Timed<Vec<f32>>> {
        match self {
            Engine::Device { device, .. } => dequantize_on_device(device, file),
            Engine::Reference => dequantize_by_reference(file),
        }
        .with_context(|| format!("cannot dequantize {} ({})", file.format, self.name()))
    }
}

/// Why there is no GPU, in a few words.
pub fn why_no_gpu(error: &DeviceError) -> String {
    match error {
        // Its own words list every file that was tried.
        DeviceError::NoDriver(_) => "this machine has no NVIDIA driver".to_owned(),
        error => error.to_string(),
    }
}

/// `data` and `scales`.
type Payload = (Vec<u8>, Vec<u8>);

fn quantize_on_device(
    device: &Device,
    input: &GroupedInput,
    format: Format,
    options: QuantizeOptions,
    tensor_scales: &[f32],
) -> Result<Timed<Payload>> {
    let stream = device.create_stream()?;
    let quantizer = GroupedQuantizer::builder(device, format)
        .columns(input.columns)
        .input_type(input.hidden_states.input_type())
        .options(options)
        .build()?;
    let routing = DeviceRouting::upload(device, &input.routing)?;
    let tensor_scales = TensorScales::upload(device, tensor_scales)?;
    let (rows, row_tiles) = (input.routing.rows(), input.routing.occupied_tiles());
    // Zeros, so that rows that belong to no expert have a defined content in the file.
    let output = Quantized::from_buffers(
        format,
        rows,
        input.columns,
        row_tiles,
        device.alloc_filled(rows * format.bytes_per_row(input.columns), 0)?,
        device.alloc_filled(
            row_tiles * format.column_tiles(input.columns) * reference::TILE_BYTES,
            0,
        )?,
    )?;
    let mut output = quantizer.adopt(output)?;

    let mut quantize = |rows: Input<'_>| {
        time_on(device, || {
            quantizer.quantize_into(&stream, rows, &routing, &tensor_scales, &mut output)?;
            Ok(stream.synchronize()?)
        })
    };
    let Timed { time, .. } = match &input.hidden_states {
        HiddenStates::Bf16(values) => quantize((&device.upload(values)?).into()),
        HiddenStates::F16(values) => quantize((&device.upload(values)?).into()),
        HiddenStates::F32(values) => quantize((&device.upload(values)?).into()),
    }?;
    let (data, scales) = output.into_buffers();
    Ok(Timed {
        value: (data.download()?, scales.download()?),
        time,
    })
}

fn dequantize_on_device(device: &Device, file: &QuantizedFile) -> Result<Timed<Vec<f32>>> {
    let stream = device.create_stream()?;
    let routing = DeviceRouting::upload(device, &file.routing)?;
    let tensor_scales = TensorScales::upload(device, &file.tensor_scales)?;
    let quantized = Quantized::from_buffers(
        file.format,
        file.routing.rows(),
        file.columns,
        file.routing.occupied_tiles(),
        device.upload(&file.data)?,
        device.upload(&file.scales)?,
    )?;
    let Timed { value, time } = time_on(device, || {
        let rows = quantized.dequantize(&stream, &routing, &tensor_scales)?;
        stream.synchronize()?;
        Ok(rows)
    })?;
    Ok(Timed {
        value: value.download()?,
        time,
    })
}

/// Times `work`, which waits for the device. On a GPU it is done once before that, because the first
/// launch of a kernel also loads it.
pub fn time_on<T>(device: &Device, mut work: impl FnMut() -> Result<T>) -> Result<Timed<T>> {
    if !device.is_emulator() {
        work()?;
    }
    let start = Instant::now();
    let value = work()?;
    Ok(Timed {
        value,
        time: start.elapsed(),
    })
}

fn quantize_by_reference(
    input: &GroupedInput,
    format: Format,
    options: QuantizeOptions,
    tensor_scales: &[f32],
) -> Result<Timed<Payload>> {
    let start = Instant::now();
    let quantized = reference::quantize_to_vec(&reference::Problem {
        format,
        input: match &input.hidden_states {
            HiddenStates::Bf16(values) => reference::Input::Bf16(values.reinterpret_cast()),
            HiddenStates::F16(values) => reference::Input::F16(values.reinterpret_cast()),
            HiddenStates::F32(values) => reference::Input::F32(values),
        },
        input_rows: input.tokens,
        columns: input.columns,
        groups: (&input.routing).into(),
        sf: tensor_scales,
        source_rows: input.routing.source_rows(),
        options,
    })?;
    Ok(Timed {
        value: (quantized.data, quantized.scales),
        time: start.elapsed(),
    })
}

fn dequantize_by_reference(file: &QuantizedFile) -> Result<Timed<Vec<f32>>> {
    let start = Instant::now();
    let value = reference::dequantize_to_vec(&reference::Encoded {
        format: file.format,
        data: &file.data,
        scales: &file.scales,
        rows: file.routing.rows(),
        columns: file.columns,
        groups: (&file.routing).into(),
        sf: &file.tensor_scales,
    })?;
    Ok(Timed {
        value,
        time: start.elapsed(),
    })
}
