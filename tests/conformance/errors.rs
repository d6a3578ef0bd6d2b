//! Every refusal that a caller can provoke, by its type and its numbers.

use anyhow::{Result, ensure};
use half::bf16;
use kernels_gpu::quantize::MAX_RUNS_PER_BLOCK;
use tokenyard::options::{Format, InputType, ScaleRounding};
use tokenyard::routing::Routing;
use tokenyard::{
    Device, DeviceBuffer, DeviceError, DeviceRouting, DeviceRoutingError, GroupedQuantizer,
    QuantizeError, Quantized, ScaleStore, Stream, Swizzle, TensorScales, TopkRouter,
};
use tokenyard_tests::backend::{TARGETS, emulator};
use tokenyard_tests::{Context, Suite};

pub fn register(suite: &mut Suite) {
    suite.host("errors::no_such_gpu", no_such_gpu);
    suite.emulator("errors::no_copy_engine", no_copy_engine);
    suite.both("errors::builder", builder);
    suite.both("errors::tensor_scales", tensor_scales);
    suite.both("errors::buffers", buffers);
    suite.both("errors::outputs", outputs);
    suite.both("errors::quantize", quantize);
    suite.both("errors::gather", gather);
    suite.both("errors::wrong_device", wrong_device);
    suite.both("errors::dequantize", dequantize);
    suite.both("errors::grid", grid);
}

/// Asking for a GPU that is not there is answered, with or without a driver; and there is always a
/// device to work with.
fn no_such_gpu() -> Result<Option<String>> {
    refused!(
        Device::cuda(10_000),
        DeviceError::NoSuchGpu {
            ordinal: 10_000,
            ..
        } | DeviceError::NoDriver(_)
            | DeviceError::KernelsMissing { .. }
            | DeviceError::Driver { .. }
    );
    let best = Device::best();
    match Device::cuda(0) {
        Ok(_) => ensure!(!best.is_emulator(), "{best:?} in place of a GPU"),
        Err(error) => {
            ensure!(best.is_emulator(), "{best:?} where there is no GPU");
            ensure!(
                best.description().contains(&error.to_string()),
                "{best:?} does not say why it is no GPU: {error}"
            );
        }
    }
    Ok(None)
}

fn no_copy_engine(_: &Context) -> Result<()> {
    let device = emulator(TARGETS[0], Default::default(), 0);
    for asked in [ScaleStore::Bulk, ScaleStore::TensorMap(Swizzle::B128)] {
        let built = GroupedQuantizer::builder(&device, Format::Nvfp4)
            .scale_store(asked)
            .build();
        refused!(built, QuantizeError::NoCopyEngine { store, capability: (8, 0) } if *store == asked);
    }
    Ok(())
}

fn builder(context: &Context) -> Result<()> {
    let device = context.device();
    let new = |format| GroupedQuantizer::builder(&device, format);
    for columns in [1, 4, 7, 12, 71] {
        refused!(
            new(Format::Mxfp8).columns(columns).build(),
            QuantizeError::Columns { columns: found } if *found == columns
        );
    }
    for columns in [1 << 30, 1 << 40] {
        refused!(
            new(Format::Mxfp8).columns(columns).build(),
            QuantizeError::TooLarge { value, limit, .. }
                if *value == columns && *limit == (1 << 30) - 1
        );
    }
    new(Format::Mxfp8).columns((1 << 30) - 8).build()?;
    for rounding in [ScaleRounding::Floor, ScaleRounding::Even] {
        refused!(
            new(Format::Nvfp4).scale_rounding(rounding).build(),
            QuantizeError::Rounding(found) if found.rounding == rounding
        );
        new(Format::Mxfp4).scale_rounding(rounding).build()?;
    }
    for runs in [0, 3, 5, 6, 7, 9, 16, 1 << 31, u32::MAX] {
        refused!(
            new(Format::Nvfp4).runs_per_block(runs).build(),
            QuantizeError::RunsPerBlock { found, most: MAX_RUNS_PER_BLOCK } if *found == runs
        );
    }
    for runs in [1, 2, 4, 8] {
        new(Format::Nvfp4).runs_per_block(runs).build()?;
    }
    for (threads, runs) in [(0, 1), (48, 1), (96, 2), (128, 8), (2048, 1), (u32::MAX, 1)] {
        let builder = new(Format::Nvfp4).threads_per_block(threads);
        refused!(
            builder.runs_per_block(runs).build(),
            QuantizeError::ThreadsPerBlock { found, multiple, .. }
                if (*found, *multiple) == (threads, 32 * runs)
        );
    }
    let f32_input = |threads| {
        let builder = new(Format::Mxfp4).input_type(InputType::F32);
        builder.threads_per_block(threads).build()
    };
    f32_input(256)?;
    refused!(
        f32_input(544),
        QuantizeError::ThreadsPerBlock {
            found: 544,
            multiple: 32,
            most: 256 | 512
        }
    );
    Ok(())
}

fn tensor_scales(context: &Context) -> Result<()> {
    let device = context.device();
    refused!(
        TensorScales::upload(&device, &[]),
        QuantizeError::NoTensorScale
    );
    refused!(TensorScales::ones(&device, 0), QuantizeError::NoTensorScale);
    refused!(
        TensorScales::from_buffer(device.alloc(0)?),
        QuantizeError::NoTensorScale
    );
    for bad in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        refused!(
            TensorScales::upload(&device, &[1.0, 2.0, bad, 1.0]),
            QuantizeError::TensorScale { expert: 2, value } if value.to_bits() == bad.to_bits()
        );
    }
    TensorScales::upload(&device, &[f32::from_bits(1), f32::MAX])?;
    Ok(())
}

fn buffers(context: &Context) -> Result<()> {
    let device = context.device();
    let mut buffer = device.upload(&[1u32, 2, 3])?;
    refused!(
        buffer.download_into(&mut [0; 2]),
        DeviceError::LengthMismatch { buffer: 3, host: 2 }
    );
    refused!(
        buffer.upload_from(&[0; 4]),
        DeviceError::LengthMismatch { buffer: 3, host: 4 }
    );
    ensure!(
        buffer.download()? == [1, 2, 3],
        "a refused copy changed the buffer"
    );
    refused!(
        device.alloc::<u32>(usize::MAX),
        DeviceError::TooLarge {
            elements: usize::MAX,
            element_bytes: 4
        }
    );
    refused!(
        device.alloc::<u8>(1 << 60),
        DeviceError::OutOfMemory { .. } | DeviceError::Emulator(simt::Error::OutOfMemory { .. })
    );
    ensure!(
        buffer.download()? == [1, 2, 3],
        "a refused allocation changed the buffer"
    );

    let start = buffer.as_mut_ptr();
    for off in [4, 8, 12] {
        // SAFETY: refused for its address, and so never read.
        let view = unsafe { DeviceBuffer::from_raw(&device, start.wrapping_byte_add(off), 0) };
        let wanted = start.addr() + off;
        refused!(view, DeviceError::Misaligned { address } if *address == wanted);
    }
    ensure!(
        device.alloc::<u64>(0)?.is_empty() && device.upload::<f32>(&[])?.download()?.is_empty()
    );
    Ok(())
}

fn outputs(context: &Context) -> Result<()> {
    let device = context.device();
    let bytes = |len| device.alloc::<u8>(len);
    let output = |rows, columns, tiles, data, scales| {
        Quantized::from_buffers(Format::Nvfp4, rows, columns, tiles, data, scales)
    };
    refused!(
        output(2, 64, 1, bytes(63)?, bytes(512)?),
        QuantizeError::BufferLength {
            buffer: "data",
            found: 63,
            expected: 64,
            rows: 2,
            columns: 64
        }
    );
    refused!(
        output(2, 64, 1, bytes(64)?, bytes(1024)?),
        QuantizeError::BufferLength {
            buffer: "scales",
            found: 1024,
            expected: 512,
            ..
        }
    );
    refused!(
        output(2, 60, 1, bytes(60)?, bytes(512)?),
        QuantizeError::Columns { columns: 60 }
    );
    for (rows, tiles) in [(1 << 33, 1), (2, 1 << 33)] {
        refused!(
            output(rows, 0, tiles, bytes(0)?, bytes(0)?),
            QuantizeError::TooLarge { value, .. } if *value == 1 << 33
        );
    }
    let quantizer = GroupedQuantizer::builder(&device, Format::Mxfp4)
        .columns(64)
        .build()?;
    refused!(
        quantizer.adopt(output(2, 64, 1, bytes(64)?, bytes(512)?)?),
        QuantizeError::OutputMismatch {
            found_format: Format::Nvfp4,
            format: Format::Mxfp4,
            found_columns: 64,
            columns: 64,
        }
    );
    refused!(
        quantizer.allocate(usize::MAX, 1),
        QuantizeError::Device(DeviceError::TooLarge {
            elements: usize::MAX,
            ..
        })
    );
    Ok(())
}

/// Two slots of three rows, and everything to quantize them with.
struct Setting {
    device: Device,
    stream: Stream,
    quantizer: GroupedQuantizer,
    input: DeviceBuffer<bf16>,
    routing: DeviceRouting,
    sf: TensorScales,
    output: Quantized,
}

const COLUMNS: usize = 64;

impl Setting {
    fn new(device: Device) -> Result<Self> {
        let quantizer = GroupedQuantizer::builder(&device, Format::Nvfp4)
            .columns(COLUMNS)
            .max_experts(2)
            .build()?;
        let routing = Routing::from_row_offsets(&[0, 1, 3], None, 3)?;
        let output = Quantized::from_buffers(
            Format::Nvfp4,
            3,
            COLUMNS,
            2,
            device.alloc_filled(3 * COLUMNS / 2, 0xEE)?,
            device.alloc_filled(2 * 512, 0xEE)?,
        )?;
        Ok(Self {
            stream: device.create_stream()?,
            input: device.alloc_filled(3 * COLUMNS, 0)?,
            routing: DeviceRouting::upload(&device, &routing)?,
            sf: TensorScales::ones(&device, 2)?,
            quantizer,
            output,
            device,
        })
    }

    fn routing(&self, offsets: &[u32], rows: usize) -> Result<DeviceRouting> {
        let routing = Routing::from_row_offsets(offsets, None, rows)?;
        Ok(DeviceRouting::upload(&self.device, &routing)?)
    }

    /// A refusal must not have written anything.
    fn is_untouched(&self) -> Result<()> {
        for buffer in [self.output.data(), self.output.scales()] {
            ensure!(
                buffer.download()?.iter().all(|&byte| byte == 0xEE),
                "an output was written"
            );
        }
        Ok(())
    }
}

fn quantize(context: &Context) -> Result<()> {
    let mut s = Setting::new(context.device())?;
    let short = s.device.alloc::<bf16>(3 * COLUMNS - 8)?;
    refused!(
        s.quantizer
            .quantize_into(&s.stream, &short, &s.routing, &s.sf, &mut s.output),
        QuantizeError::BufferLength {
            buffer: "the input",
            found: 184,
            expected: 192,
            rows: 3,
            columns: 64
        }
    );
    let wide = s.device.alloc::<f32>(3 * COLUMNS)?;
    refused!(
        s.quantizer
            .quantize_into(&s.stream, &wide, &s.routing, &s.sf, &mut s.output),
        QuantizeError::InputType {
            found: InputType::F32,
            expected: InputType::Bf16
        }
    );
    let four_rows = s.routing(&[0, 1, 3], 4)?;
    let input = s.device.alloc::<bf16>(4 * COLUMNS)?;
    refused!(
        s.quantizer
            .quantize_into(&s.stream, &input, &four_rows, &s.sf, &mut s.output),
        QuantizeError::OutputRows {
            found: 3,
            expected: 4
        }
    );
    let three_slots = s.routing(&[0, 1, 2, 3], 3)?;
    refused!(
        s.quantizer
            .quantize_into(&s.stream, &s.input, &three_slots, &s.sf, &mut s.output),
        QuantizeError::Experts { found: 3, max: 2 }
    );
    let mut one_tile = s.quantizer.allocate(3, 1)?;
    refused!(
        s.quantizer
            .quantize_into(&s.stream, &s.input, &s.routing, &s.sf, &mut one_tile),
        QuantizeError::RowTiles {
            found: 1,
            needed: 2
        }
    );
    let narrow = GroupedQuantizer::builder(&s.device, Format::Nvfp4)
        .columns(56)
        .build()?;
    let narrow_input = s.device.alloc::<bf16>(3 * 56)?;
    refused!(
        narrow.quantize_into(&s.stream, &narrow_input, &s.routing, &s.sf, &mut s.output),
        QuantizeError::OutputMismatch {
            found_columns: 64,
            columns: 56,
            ..
        }
    );
    s.is_untouched()?;
    s.quantizer
        .quantize_into(&s.stream, &s.input, &s.routing, &s.sf, &mut s.output)?;
    ensure!(
        s.output.data().download()? == [0; 96],
        "after refusals it does not work"
    );
    Ok(())
}

/// A routing that names input rows which are not there: refused where the host knows it.
fn gather(context: &Context) -> Result<()> {
    let mut s = Setting::new(context.device())?;
    let gathered = Routing::from_topk(&[0, 1, -1, 0], 4, 1, 2)?;
    let gathered = DeviceRouting::upload(&s.device, &gathered)?;
    refused!(
        s.quantizer
            .quantize_into(&s.stream, &s.input, &gathered, &s.sf, &mut s.output),
        QuantizeError::SourceRow { row: 3, rows: 3 }
    );
    let ragged = s.device.alloc::<bf16>(4 * COLUMNS + 8)?;
    refused!(
        s.quantizer
            .quantize_into(&s.stream, &ragged, &gathered, &s.sf, &mut s.output),
        QuantizeError::BufferLength {
            buffer: "the input",
            found: 264,
            expected: 256,
            ..
        }
    );
    s.is_untouched()?;
    let enough = s.device.alloc_filled::<bf16>(4 * COLUMNS, 0)?;
    s.quantizer
        .quantize_into(&s.stream, &enough, &gathered, &s.sf, &mut s.output)?;
    Ok(s.stream.synchronize()?)
}

/// Each argument in turn from another device.
fn wrong_device(context: &Context) -> Result<()> {
    let mut s = Setting::new(context.device())?;
    let mut other = Setting::new(Device::emulator(1))?;
    macro_rules! foreign {
        ($what:literal: $stream:expr, $input:expr, $routing:expr, $sf:expr, $output:expr) => {
            refused!(
                s.quantizer
                    .quantize_into(&$stream, &$input, &$routing, &$sf, &mut $output),
                QuantizeError::Device(DeviceError::WrongDevice { what: $what, .. })
            )
        };
    }
    foreign!("the stream": other.stream, s.input, s.routing, s.sf, s.output);
    foreign!("the input": s.stream, other.input, s.routing, s.sf, s.output);
    foreign!("the routing": s.stream, s.input, other.routing, s.sf, s.output);
    foreign!("the tensor-wise factors": s.stream, s.input, s.routing, other.sf, s.output);
    foreign!("the output": s.stream, s.input, s.routing, s.sf, other.output);
    s.is_untouched()?;
    other.is_untouched()?;

    let (mine, others) = (s.stream.record()?, other.stream.record()?);
    refused!(
        s.stream.wait(&others),
        DeviceError::WrongDevice {
            what: "the event",
            ..
        }
    );
    refused!(mine.elapsed_ms(&others), DeviceError::WrongDevice { .. });
    refused!(
        Quantized::from_buffers(
            Format::Nvfp4,
            0,
            64,
            0,
            s.device.alloc(0)?,
            other.device.alloc(0)?
        ),
        QuantizeError::Device(DeviceError::WrongDevice {
            what: "the scales",
            ..
        })
    );
    refused!(
        s.output.dequantize(&other.stream, &s.routing, &s.sf),
        QuantizeError::Device(DeviceError::WrongDevice {
            what: "the stream",
            ..
        })
    );
    refused!(
        DeviceRouting::from_buffers(
            s.device.alloc(3)?,
            other.device.alloc(2)?,
            s.device.alloc(2)?,
            None,
            0
        ),
        DeviceRoutingError::Device(DeviceError::WrongDevice {
            what: "scales_offsets",
            ..
        })
    );
    let mut router = TopkRouter::new(&s.device, 3, 1, 2)?;
    let mut tables = router.allocate()?;
    refused!(
        router.route(&s.stream, &other.device.alloc(3)?, &mut tables),
        DeviceRoutingError::Device(DeviceError::WrongDevice {
            what: "the ids",
            ..
        })
    );
    Ok(())
}

fn dequantize(context: &Context) -> Result<()> {
    let s = Setting::new(context.device())?;
    let four_rows = s.routing(&[0, 1, 3], 4)?;
    refused!(
        s.output.dequantize(&s.stream, &four_rows, &s.sf),
        QuantizeError::OutputRows {
            found: 3,
            expected: 4
        }
    );
    Ok(())
}

/// More thread blocks than a grid can have.
fn grid(context: &Context) -> Result<()> {
    let device = context.device();
    let quantizer = GroupedQuantizer::builder(&device, Format::Mxfp8)
        .columns(8)
        .build()?;
    let routing = DeviceRouting::upload(&device, &Routing::from_row_offsets(&[0, 0], None, 0)?)?;
    let row_tiles = 1 << 31;
    // SAFETY: the launch is refused, so that nothing is read or written there.
    let scales = unsafe { DeviceBuffer::from_raw(&device, 16 as *mut u8, row_tiles * 512)? };
    let mut output =
        Quantized::from_buffers(Format::Mxfp8, 0, 8, row_tiles, device.alloc(0)?, scales)?;
    let (stream, sf) = (device.create_stream()?, TensorScales::ones(&device, 1)?);
    refused!(
        quantizer.quantize_into(&stream, &device.alloc::<bf16>(0)?, &routing, &sf, &mut output),
        QuantizeError::Device(DeviceError::GridTooLarge { blocks, .. }) if *blocks == 1 << 31
    );
    Ok(())
}
