//! Operations by name: what they compute is what the typed API computes, whose results the reference
//! decides.

mod combine;

use anyhow::{Result, ensure};
use half::bf16;
use tokenyard::ep::{EpGroup, TokenFormat};
use tokenyard::ops::{
    self, Attributes, DType, Direction, EpSession, OpContext, Operation, PointerTables, TensorType,
    TensorView,
};
use tokenyard::options::{Format, InputType};
use tokenyard::reference::ep::{ReceivedBytes, Setup};
use tokenyard::{Device, DeviceBuffer};
use tokenyard_tests::ep::{EpCase, Traffic};
use tokenyard_tests::memory::Background;
use tokenyard_tests::shapes::slots;
use tokenyard_tests::values::activations;
use tokenyard_tests::{Context, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("ops::grouped_quantize", grouped_quantize);
    combine::register(suite);
    for format in TokenFormat::ALL {
        suite.both(&format!("ops::dispatch::{format}"), move |context| {
            dispatch(context, format)
        });
        suite.both(
            &format!("ops::dispatch_async_and_wait::{format}"),
            move |context| dispatch_async_and_wait(context, format),
        );
    }
}

fn grouped_quantize(context: &Context) -> Result<()> {
    let device = context.device();
    let operation = ops::find("grouped.quantize.dynamic.block.scaled")?;
    let random = &mut fastrand::Rng::with_seed(1);
    for (format, output, scales) in [
        (Format::Nvfp4, DType::U8, DType::Float8E4m3),
        (Format::Mxfp4, DType::U8, DType::Float8E8m0),
        (Format::Mxfp8, DType::Float8E4m3, DType::Float8E8m0),
    ] {
        let (rows, columns) = ([3, 0, 130], 72);
        let values = activations(133 * columns, random);
        let input = Rows::rounded(InputType::Bf16, values);
        let problem = Problem {
            sf: vec![0.5, 1.0, 2.0],
            background: Background::Byte(0),
            ..Problem::new(format, columns, slots(&rows), input.clone())
        };
        let expected = problem.expected()?;
        let attributes = Attributes::new()
            .with("input_dtype", DType::Bf16)
            .with("output_dtype", output)
            .with("scales_dtype", scales)
            .with("target", "gpu");
        let types = operation.infer(
            &attributes,
            &[
                TensorType::new(DType::Bf16, [133, columns]),
                TensorType::new(DType::U32, [4]),
                TensorType::new(DType::U32, [3]),
                TensorType::new(DType::I32, [3]),
                TensorType::new(DType::F32, [3]),
            ],
        )?;
        let mut data = device.alloc_filled::<u8>(types[0].bytes(), 0)?;
        let mut scale_bytes = device.alloc_filled::<u8>(types[1].bytes(), 0)?;
        let Rows::Bf16(values) = &input else {
            unreachable!("rounded to BF16");
        };
        let groups = problem.grouping.groups();
        let input = device.upload(values)?;
        let row_offsets = device.upload(groups.row_offsets)?;
        let scales_offsets = device.upload(groups.scales_offsets)?;
        let expert_ids = device.upload(groups.expert_ids)?;
        let sf = device.upload(&problem.sf)?;
        operation.execute(
            &mut OpContext::new(&device.create_stream()?),
            &attributes,
            &mut [
                TensorView::output(&mut data, types[0].shape.clone())?.with_dtype(output)?,
                TensorView::output(&mut scale_bytes, types[1].shape.clone())?.with_dtype(scales)?,
                TensorView::input(&input, [133, columns])?,
                TensorView::input(&row_offsets, [4])?,
                TensorView::input(&scales_offsets, [3])?,
                TensorView::input(&expert_ids, [3])?,
                TensorView::input(&sf, [3])?,
            ],
        )?;
        ensure!(data.download()? == expected.data(), "{format}: elements");
        let scales = scale_bytes.download()?;
        let occupied = expected.scales().len().min(scales.len());
        ensure!(
            scales[..occupied] == expected.scales()[..occupied],
            "{format}: scales"
        );
        ensure!(
            scales[occupied..].iter().all(|&byte| byte == 0),
            "{format}: slack"
        );
    }
    Ok(())
}

/// What an operation is suffixed with for a format, and the types of its elements and scales.
fn spelling(format: TokenFormat) -> (&'static str, DType, Option<DType>) {
    match format {
        TokenFormat::Bf16 => ("", DType::Bf16, None),
        TokenFormat::Fp8Block128 => (".fp8", DType::Float8E4m3, Some(DType::F32)),
        TokenFormat::Nvfp4 => (".nvfp4", DType::U8, Some(DType::Float8E4m3)),
        TokenFormat::Mxfp4 => (".mxfp4", DType::U8, Some(DType::Float8E8m0)),
        _ => (".mxfp8", DType::Float8E4m3, Some(DType::Float8E8m0)),
    }
}

fn attributes(setup: &Setup) -> Attributes {
    let (_, dtype, scales) = spelling(setup.format);
    let mut attributes = Attributes::new()
        .with("input_dtype", DType::Bf16)
        .with("dispatch_dtype", dtype)
        .with("hidden_size", setup.hidden_size as u64)
        .with("top_k", setup.top_k as u64)
        .with("n_experts", setup.experts as u64)
        .with("max_token_per_rank", setup.max_tokens_per_rank as u64)
        .with("n_gpus_per_node", setup.ranks as u64)
        .with("n_nodes", 1)
        .with("fused_shared_expert", setup.fused_shared_expert)
        .with("skip_a2a", setup.skip_a2a)
        .with("target", "gpu");
    if let Some(scales) = scales {
        attributes = attributes.with("dispatch_scale_dtype", scales);
    }
    if setup.skip_a2a {
        attributes = attributes
            .with("n_experts", setup.local_experts() as u64)
            .with("n_gpus_per_node", 1)
            .with("allreduce_world_size", setup.ranks as u64);
    }
    if let Some(rows) = setup.scale_preshuffle {
        attributes = attributes
            .with("fuse_a_scale_preshuffle", true)
            .with("max_padded_M", rows as u64);
    }
    attributes
}

/// What every output of an operation holds beforehand.
const BACKGROUND: u8 = 0x4D;

/// The tensors of one rank.
struct Tensors {
    tokens: DeviceBuffer<bf16>,
    topk_ids: DeviceBuffer<i32>,
    factor: DeviceBuffer<f32>,
    counters: DeviceBuffer<i32>,
    outputs: Vec<DeviceBuffer<u8>>,
}

impl Tensors {
    fn new(device: &Device, case: &EpCase, rank: usize, outputs: &[TensorType]) -> Result<Self> {
        let setup = &case.setup;
        let outputs = outputs
            .iter()
            .map(|it| device.alloc_filled(it.bytes(), BACKGROUND));
        Ok(Self {
            tokens: device.upload(&case.ranks[rank].tokens)?,
            topk_ids: device.upload(&case.ranks[rank].topk_ids)?,
            factor: device.upload(&[setup.global_factor])?,
            counters: device.alloc_filled(2 * setup.local_experts() * setup.sources(), 0)?,
            outputs: outputs.collect::<Result<_, _>>()?,
        })
    }

    /// Views in call order. `types` are those of the outputs.
    fn views<'a>(
        &'a mut self,
        operation: &Operation,
        types: &[TensorType],
        tables: &'a PointerTables,
        setup: &Setup,
    ) -> Result<Vec<TensorView<'a>>> {
        let Self {
            tokens,
            topk_ids,
            factor,
            counters,
            outputs,
        } = self;
        let (hidden, top_k) = (setup.hidden_size, setup.top_k);
        let count = topk_ids.len() / top_k;
        let mut outputs = outputs.iter_mut().zip(types);
        let mut counters = Some(counters);
        let mut views = Vec::new();
        for operand in operation.operands() {
            views.push(match (operand.name, operand.direction) {
                (_, Direction::Out) => {
                    let (buffer, it) = outputs.next().expect("an output for each type");
                    TensorView::output_bytes(buffer, it.clone())?
                }
                ("atomic_counters", _) => {
                    let counters = counters.take().expect("one such operand");
                    let len = counters.len();
                    TensorView::output(counters, [len])?
                }
                ("input_tokens", _) => TensorView::input(tokens, [count, hidden])?,
                ("topk_ids", _) => TensorView::input(topk_ids, [count, top_k])?,
                ("input_scales", _) => TensorView::input(factor, [1])?,
                ("send_ptrs", _) => TensorView::host(&tables.send),
                ("recv_ptrs", _) => TensorView::host(&tables.recv),
                _ => TensorView::host(&tables.recv_count),
            });
        }
        Ok(views)
    }

    /// The outputs as the reference compares them.
    fn received(&self, operation: &Operation) -> Result<ReceivedBytes> {
        let names = operation
            .operands()
            .iter()
            .filter(|it| it.direction == Direction::Out);
        let mut received = ReceivedBytes {
            tokens: Vec::new(),
            scales: Vec::new(),
            row_offsets: Vec::new(),
            expert_ids: Vec::new(),
            src_info: Vec::new(),
            scales_offsets: Vec::new(),
        };
        for (operand, buffer) in names.zip(&self.outputs) {
            let bytes = buffer.download()?;
            match operand.name {
                "output_tokens" => received.tokens = bytes,
                "output_scales" => received.scales = bytes,
                "row_offsets" => received.row_offsets = bytemuck::pod_collect_to_vec(&bytes),
                "scales_offsets" => received.scales_offsets = bytemuck::pod_collect_to_vec(&bytes),
                "expert_ids" => received.expert_ids = bytemuck::pod_collect_to_vec(&bytes),
                _ => received.src_info = bytemuck::pod_collect_to_vec(&bytes),
            }
        }
        Ok(received)
    }
}

/// The types of an operation's outputs for the tensors of a rank.
fn outputs(operation: &Operation, case: &EpCase, rank: usize) -> Result<Vec<TensorType>> {
    let setup = &case.setup;
    let count = case.ranks[rank].topk_ids.len() / setup.top_k;
    let inputs = operation
        .operands()
        .iter()
        .filter(|it| it.direction != Direction::Out);
    let inputs = inputs.map(|operand| match operand.name {
        "atomic_counters" => {
            TensorType::new(DType::I32, [2 * setup.local_experts() * setup.sources()])
        }
        "input_tokens" => TensorType::new(DType::Bf16, [count, setup.hidden_size]),
        "topk_ids" => TensorType::new(DType::I32, [count, setup.top_k]),
        "input_scales" => TensorType::new(DType::F32, [1]),
        _ => TensorType::new(DType::U64, [setup.ranks]),
    });
    Ok(operation.infer(&attributes(setup), &inputs.collect::<Vec<_>>())?)
}

/// Holds what every rank received to the reference, handle words included.
fn compare(case: &EpCase, operation: &Operation, ranks: &[Tensors]) -> Result<()> {
    let (rows, quantized) = case.expected()?;
    let before = case.background(BACKGROUND);
    for (tensors, rows) in ranks.iter().zip(&rows) {
        let received = tensors.received(operation)?;
        rows.check(&quantized, &before, &received, case.order)?;
        let handles: Vec<_> = rows
            .handles
            .iter()
            .flat_map(|&(end, count)| [end, count])
            .collect();
        let found: Vec<u32> = bytemuck::cast_vec(tensors.counters.download()?);
        ensure!(found == handles, "handle words {found:?}, not {handles:?}");
    }
    Ok(())
}

fn setups(format: TokenFormat) -> Vec<Setup> {
    let plain = Setup {
        experts: 6,
        ranks: 2,
        top_k: 2,
        ..Setup::new(format, 256, 5)
    };
    let shared = Setup {
        fused_shared_expert: true,
        ..plain.clone()
    };
    let skip = Setup {
        skip_a2a: true,
        ..shared.clone()
    };
    let mut setups = vec![plain.clone(), shared, skip];
    if matches!(format, TokenFormat::Mxfp4 | TokenFormat::Mxfp8) {
        setups.push(Setup {
            scale_preshuffle: Some(32),
            ..plain
        });
    }
    setups
}

fn dispatch(context: &Context, format: TokenFormat) -> Result<()> {
    let device = context.device();
    let operation = ops::find(&format!("ep.dispatch{}", spelling(format).0))?;
    for setup in setups(format) {
        let case = EpCase::new(setup.clone(), &[5, 3], Traffic::Holes, 2);
        let mut session = EpSession::new(EpGroup::new(&device, case.config()?)?);
        let tables = session.pointer_tables();
        let types = outputs(operation, &case, 0)?;
        let mut ranks = (0..2)
            .map(|rank| Tensors::new(&device, &case, rank, &types))
            .collect::<Result<Vec<_>>>()?;
        let mut views = Vec::new();
        for rank in &mut ranks {
            views.extend(rank.views(operation, &types, &tables, &setup)?);
        }
        let stream = device.create_stream()?;
        let context = &mut OpContext::with_ranks(&stream, &mut session, 0)?;
        operation.execute(context, &attributes(&setup), &mut views)?;
        session.group().check()?;
        compare(&case, operation, &ranks)?;
    }
    Ok(())
}

fn dispatch_async_and_wait(context: &Context, format: TokenFormat) -> Result<()> {
    let device = context.device();
    let suffix = spelling(format).0;
    let send = ops::find(&format!("ep.dispatch_async{suffix}"))?;
    let receive = ops::find(&format!("ep.dispatch_wait{suffix}"))?;
    for setup in setups(format)
        .into_iter()
        .filter(|it| !it.fused_shared_expert)
    {
        let case = EpCase::new(setup.clone(), &[5, 3], Traffic::Holes, 3);
        let mut session = EpSession::new(EpGroup::new(&device, case.config()?)?);
        let tables = session.pointer_tables();
        let types = outputs(receive, &case, 0)?;
        let mut ranks = (0..2)
            .map(|rank| Tensors::new(&device, &case, rank, &types))
            .collect::<Result<Vec<_>>>()?;
        let stream = device.create_stream()?;
        for operation in [send, receive] {
            if operation.name() == receive.name() {
                // Refused, as tensors and stream are another device's; what was sent is received all the same.
                let elsewhere = Device::emulator(9);
                let mut tensors = Tensors::new(&elsewhere, &case, 0, &types)?;
                let mut views = tensors.views(operation, &types, &tables, &setup)?;
                let stream = elsewhere.create_stream()?;
                let context = &mut OpContext::with_ranks(&stream, &mut session, 0)?;
                let result = operation.execute(context, &attributes(&setup), &mut views);
                ensure!(result.is_err(), "another device's tensors were accepted");
            }
            for (number, rank) in ranks.iter_mut().enumerate() {
                let mut views = rank.views(operation, &types, &tables, &setup)?;
                let context = &mut OpContext::with_ranks(&stream, &mut session, number)?;
                operation.execute(context, &attributes(&setup), &mut views)?;
            }
        }
        session.group().check()?;
        compare(&case, receive, &ranks)?;
    }
    Ok(())
}
