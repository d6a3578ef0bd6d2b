//! The combine operations by name, behind the dispatch operations.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use tokenyard::ep::{CombineFormat, EpError, EpGroup, TokenFormat};
use tokenyard::ops::{
    self, Attributes, DType, EpSession, OpContext, OpError, Operation, PointerTables, TensorType,
    TensorView,
};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard::{Device, DeviceError, Stream};
use tokenyard_tests::ep::{DeviceReturns, EpCase, Returns, Traffic};
use tokenyard_tests::values::DeviceRows;
use tokenyard_tests::{Context, Suite};

use super::{BACKGROUND, Tensors, attributes, outputs, setups, spelling};

pub fn register(suite: &mut Suite) {
    for format in CombineFormat::ALL {
        suite.both(&format!("ops::combine::{format}"), move |context| {
            round_trips(context, format)
        });
    }
    suite.both("ops::combine::refusals", refusals);
}

/// The attributes of a combine: those of a dispatch, with the types of the way back.
fn way_back(setup: &Setup, format: CombineFormat) -> Attributes {
    let (rows, wire, scales) = match format {
        CombineFormat::F16 => (DType::F16, DType::F16, None),
        CombineFormat::F32 => (DType::F32, DType::F32, None),
        CombineFormat::Mxfp8 => (DType::Bf16, DType::Float8E4m3, Some(DType::Float8E8m0)),
        CombineFormat::Nvfp4 => (DType::Bf16, DType::U8, Some(DType::Float8E4m3)),
        _ => (DType::Bf16, DType::Bf16, None),
    };
    let plain = Setup {
        format: TokenFormat::Bf16,
        scale_preshuffle: None,
        ..setup.clone()
    };
    let attributes = attributes(&plain)
        .with("input_dtype", rows)
        .with("dispatch_dtype", wire);
    match scales {
        Some(scales) => attributes.with("dispatch_scale_dtype", scales),
        None => attributes,
    }
}

/// A group, what its ranks dispatch, and what comes back.
struct World {
    case: EpCase,
    session: EpSession,
    dispatched: Vec<Tensors>,
    types: Vec<TensorType>,
    returns: Returns,
    on_device: DeviceReturns,
}

impl World {
    fn new(device: &Device, setup: &Setup, format: CombineFormat) -> Result<Self> {
        let mut case = EpCase::new(setup.clone(), &[5, 3], Traffic::Holes, 4);
        case.combine = Some(format);
        let session = EpSession::new(EpGroup::new(device, case.config()?)?);
        let receive = ops::find(&format!("ep.dispatch{}", spelling(setup.format).0))?;
        let types = outputs(receive, &case, 0)?;
        let dispatched = (0..2).map(|rank| Tensors::new(device, &case, rank, &types));
        let returns = Returns::random(&case, Some(InputType::Bf16), &mut Rng::with_seed(5))?;
        Ok(Self {
            dispatched: dispatched.collect::<Result<_>>()?,
            on_device: returns.upload(&case, device, BACKGROUND)?,
            case,
            session,
            types,
            returns,
        })
    }

    /// Dispatches by name, for all ranks at once or one after the other.
    fn dispatch(&mut self, device: &Device, fused: bool) -> Result<()> {
        let setup = &self.case.setup;
        let suffix = spelling(setup.format).0;
        let names: &[&str] = match fused {
            true => &["ep.dispatch"],
            false => &["ep.dispatch_async", "ep.dispatch_wait"],
        };
        let stream = device.create_stream()?;
        let tables = self.session.pointer_tables();
        for name in names {
            let operation = ops::find(&format!("{name}{suffix}"))?;
            let mut calls = Vec::new();
            for rank in &mut self.dispatched {
                calls.push(rank.views(operation, &self.types, &tables, setup)?);
            }
            execute(
                &mut self.session,
                &stream,
                operation,
                &attributes(setup),
                calls,
                fused,
            )?;
        }
        Ok(())
    }

    /// Runs a combine operation, for all ranks at once if it is the fused one.
    fn combine(
        &mut self,
        device: &Device,
        name: &str,
        attributes: &Attributes,
        tables: &PointerTables,
    ) -> Result<(), OpError> {
        let operation = ops::find(name)?;
        let DeviceReturns {
            outputs,
            weights,
            combined,
        } = &mut self.on_device;
        let weights = weights.as_ref().expect("the returns are weighted");
        let ranks = self
            .dispatched
            .iter_mut()
            .zip(outputs)
            .zip(weights)
            .zip(combined);
        let calls = ranks.map(|(((dispatched, rows), weights), combined)| {
            let returned = Returned {
                rows,
                weights,
                combined,
            };
            views(
                operation,
                &self.case.setup,
                dispatched,
                &self.types,
                returned,
                tables,
            )
        });
        let calls = calls.collect::<Result<Vec<_>, DeviceError>>();
        let failed = |source| OpError::Device {
            operation: operation.name(),
            source,
        };
        let stream = device.create_stream().map_err(failed)?;
        let fused = name == "ep.combine";
        execute(
            &mut self.session,
            &stream,
            operation,
            attributes,
            calls.map_err(failed)?,
            fused,
        )
    }

    /// Holds what came back to the reference.
    fn check(&self) -> Result<()> {
        self.session.group().check()?;
        let sources = self.dispatched.iter().map(|rank| {
            let bytes = rank
                .outputs
                .last()
                .expect("the sources come last")
                .download()?;
            Ok(bytemuck::pod_collect_to_vec(&bytes))
        });
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let found = self.on_device.download()?;
        self.returns.check(&self.case, &sources, BACKGROUND, &found)
    }
}

/// Runs an operation once with the tensors of all ranks, or for each rank with its own.
fn execute(
    session: &mut EpSession,
    stream: &Stream,
    operation: &Operation,
    attributes: &Attributes,
    calls: Vec<Vec<TensorView<'_>>>,
    fused: bool,
) -> Result<(), OpError> {
    let calls = match fused {
        true => vec![calls.into_iter().flatten().collect()],
        false => calls,
    };
    for (rank, mut tensors) in calls.into_iter().enumerate() {
        let context = &mut OpContext::with_ranks(stream, session, rank)?;
        operation.execute(context, attributes, &mut tensors)?;
    }
    Ok(())
}

/// What a rank gives and gets beside what dispatch left.
struct Returned<'a> {
    rows: &'a DeviceRows,
    weights: &'a DeviceRows,
    combined: &'a mut DeviceRows,
}

fn input(rows: &DeviceRows, shape: [usize; 2]) -> Result<TensorView<'_>, DeviceError> {
    match rows {
        DeviceRows::Bf16(buffer) => TensorView::input(buffer, shape),
        DeviceRows::F16(buffer) => TensorView::input(buffer, shape),
        DeviceRows::F32(buffer) => TensorView::input(buffer, shape),
    }
}

fn output(rows: &mut DeviceRows, shape: [usize; 2]) -> Result<TensorView<'_>, DeviceError> {
    match rows {
        DeviceRows::Bf16(buffer) => TensorView::output(buffer, shape),
        DeviceRows::F16(buffer) => TensorView::output(buffer, shape),
        DeviceRows::F32(buffer) => TensorView::output(buffer, shape),
    }
}

/// The tensors of a rank for a combine operation, in call order.
fn views<'a>(
    operation: &Operation,
    setup: &Setup,
    dispatched: &'a mut Tensors,
    types: &[TensorType],
    returned: Returned<'a>,
    tables: &'a PointerTables,
) -> Result<Vec<TensorView<'a>>, DeviceError> {
    let (hidden, top_k) = (setup.hidden_size, setup.top_k);
    let Tensors {
        topk_ids,
        counters,
        outputs,
        ..
    } = dispatched;
    let tokens = topk_ids.len() / top_k;
    let mut source = outputs.last_mut().zip(types.last());
    let (mut counters, mut combined) = (Some(counters), Some(returned.combined));
    let maxrecv = types.last().map_or(0, |it| it.shape[0]);
    let operands = operation.operands().iter();
    let views = operands.map(|operand| match operand.name {
        "output_tokens" => output(combined.take().expect("one such operand"), [tokens, hidden]),
        "input_tokens" => input(returned.rows, [maxrecv, hidden]),
        "src_info" => {
            let (buffer, it) = source.take().expect("one such operand");
            TensorView::output_bytes(buffer, it.clone())
        }
        "atomic_counters" => {
            let counters = counters.take().expect("one such operand");
            let len = counters.len();
            TensorView::output(counters, [len])
        }
        "router_weights" => input(returned.weights, [tokens, top_k]),
        "topk_ids" => TensorView::input(topk_ids, [tokens, top_k]),
        "send_ptrs" => Ok(TensorView::host(&tables.send)),
        "recv_ptrs" => Ok(TensorView::host(&tables.recv)),
        _ => Ok(TensorView::host(&tables.recv_count)),
    });
    views.collect()
}

/// Every setup, whatever tokens travelled as; fused and by halves, in any combination.
fn round_trips(context: &Context, format: CombineFormat) -> Result<()> {
    let device = context.device();
    for (turn, token_format) in TokenFormat::ALL.into_iter().enumerate() {
        for setup in setups(token_format) {
            let attributes = way_back(&setup, format);
            let shared = setup.fused_shared_expert;
            let mut world = World::new(&device, &setup, format)?;
            let tables = world.session.combine_pointer_tables();
            for round in 0..2 {
                for combined in &mut world.on_device.combined {
                    combined.fill(BACKGROUND)?;
                }
                world.dispatch(&device, shared || (turn + round) % 2 == 0)?;
                let names: &[&str] = match shared || (turn + round / 2) % 2 == 0 {
                    true => &["ep.combine"],
                    false => &["ep.combine_async", "ep.combine_wait"],
                };
                for name in names {
                    world.combine(&device, name, &attributes, &tables)?;
                }
                world
                    .check()
                    .with_context(|| format!("{}, round {round}, {names:?}", world.case))?;
            }
        }
    }
    Ok(())
}

/// What the operations refuse, each by name; and that the round trip can be finished afterwards.
fn refusals(context: &Context) -> Result<()> {
    let device = context.device();
    let setup = setups(TokenFormat::Bf16).remove(0);
    let format = CombineFormat::Bf16;
    let right = way_back(&setup, format);
    let mut world = World::new(&device, &setup, format)?;
    let tables = world.session.combine_pointer_tables();
    for name in ["ep.combine", "ep.combine_async"] {
        refused!(
            world.combine(&device, name, &right, &tables),
            OpError::NothingDispatched { rank: 0, .. }
        );
    }
    world.dispatch(&device, false)?;
    refused!(
        world.combine(&device, "ep.combine_wait", &right, &tables),
        OpError::NothingSent { rank: 0, .. }
    );
    let dispatch_tables = world.session.pointer_tables();
    refused!(
        world.combine(&device, "ep.combine", &right, &dispatch_tables),
        OpError::Address { rank: 0, .. }
    );
    let wrong = [
        ("dispatch_dtype", way_back(&setup, CombineFormat::Mxfp8)),
        (
            "dispatch_dtype",
            right.clone().with("dispatch_dtype", DType::F32),
        ),
        ("top_k", right.clone().with("top_k", 1)),
        ("target", right.clone().with("target", "cpu")),
    ];
    for (name, attributes) in &wrong[..2] {
        refused!(
            world.combine(&device, "ep.combine", attributes, &tables),
            OpError::Attribute { attribute, .. } if attribute == name
        );
    }
    refused!(
        world.combine(&device, "ep.combine", &wrong[2].1, &tables),
        OpError::Extent {
            operand: "router_weights",
            expected: 1,
            found: 2,
            ..
        }
    );
    refused!(
        world.combine(&device, "ep.combine", &wrong[3].1, &tables),
        OpError::Attribute {
            attribute: "target",
            ..
        }
    );
    let halves = way_back(&setup, CombineFormat::F16);
    refused!(
        world.combine(&device, "ep.combine", &halves, &tables),
        OpError::WrongDType {
            operand: "input_tokens",
            found: DType::Bf16,
            ..
        }
    );
    let shared = right.clone().with("fused_shared_expert", true);
    refused!(
        world.combine(&device, "ep.combine_async", &shared, &tables),
        OpError::Attribute {
            attribute: "fused_shared_expert",
            ..
        }
    );
    world.combine(&device, "ep.combine", &right, &tables)?;
    world.check()?;
    refused!(
        world.combine(&device, "ep.combine", &right, &tables),
        OpError::NothingDispatched { rank: 0, .. }
    );

    // A group that was not made to combine.
    let mut case = world.case.clone();
    case.combine = None;
    world.session = EpSession::new(EpGroup::new(&device, case.config()?)?);
    ensure!(world.session.combine_pointer_tables().recv.is_empty());
    world.dispatch(&device, true)?;
    refused!(
        world.combine(&device, "ep.combine", &right, &tables),
        OpError::Ep {
            source: EpError::CombineNotConfigured,
            ..
        }
    );
    Ok(())
}
