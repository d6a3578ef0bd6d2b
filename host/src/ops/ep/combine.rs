//! `ep.combine` and its halves.
//!
//! They combine what the last dispatch operation of the rank left: `src_info` and `atomic_counters` are its tensors,
//! `topk_ids` is what it was given. The tensors may have been used for something else in between, to the harm of
//! nothing but the result.

use std::sync::Arc;

use half::{bf16, f16};

use super::super::{
    Attributes, Behaviour, DType, Direction, OpContext, OpError, Operand, Operation, TensorType,
    TensorView,
};
use super::Half;
use super::execute::{Named, check_tables, checked_session};
use super::infer::{Choices, check_tokens, refused};
use super::schema::{COMMON_ATTRIBUTES, COUNTERS, COUNTS, IDS, RECV, SEND, operand};
use crate::buffer::DeviceBuffer;
use crate::ep::{
    Batch, CombineFormat, CombineOutput, CombineTarget, DispatchRecord, EpConfig, ExpertOutputs,
    Received, ReceivedParts, Refused, RouterWeights, TokenFormat,
};
use crate::error::DeviceError;

const COMBINED: Operand = operand("output_tokens", Direction::Out, &["T", "H"]);
const ROWS: Operand = operand("input_tokens", Direction::In, &["maxrecv", "H"]);
const SRC_INFO: Operand = operand("src_info", Direction::In, &["maxrecv", "2"]);
const WEIGHTS: Operand = operand("router_weights", Direction::In, &["T", "K"]);

pub(super) static BOTH: Operation = Operation {
    name: "ep.combine",
    attributes: COMMON_ATTRIBUTES,
    operands: &[
        COMBINED, ROWS, SRC_INFO, COUNTERS, SEND, RECV, COUNTS, WEIGHTS, IDS,
    ],
    behaviour: &CombineOperation { half: Half::Both },
};
pub(super) static SEND_HALF: Operation = Operation {
    name: "ep.combine_async",
    attributes: COMMON_ATTRIBUTES,
    operands: &[ROWS, SRC_INFO, COUNTERS, SEND, RECV, COUNTS],
    behaviour: &CombineOperation { half: Half::Send },
};
pub(super) static RECEIVE_HALF: Operation = Operation {
    name: "ep.combine_wait",
    attributes: COMMON_ATTRIBUTES,
    operands: &[
        COMBINED, ROWS, SRC_INFO, COUNTERS, RECV, COUNTS, WEIGHTS, IDS,
    ],
    behaviour: &CombineOperation {
        half: Half::Receive,
    },
};

/// An operation of the family.
struct CombineOperation {
    half: Half,
}

/// The format that rows travel home in, by their own type and those of elements and scales on the way.
fn format(operation: &Operation, attributes: &Attributes) -> Result<CombineFormat, OpError> {
    let rows = attributes.dtype("input_dtype");
    let wire = attributes.dtype("dispatch_dtype");
    let scales = attributes.optional_dtype("dispatch_scale_dtype");
    Ok(match (rows, wire, scales) {
        (DType::Bf16, DType::Bf16, None) => CombineFormat::Bf16,
        (DType::F16, DType::F16, None) => CombineFormat::F16,
        (DType::F32, DType::F32, None) => CombineFormat::F32,
        (DType::Bf16, DType::Float8E4m3, Some(DType::Float8E8m0)) => CombineFormat::Mxfp8,
        (DType::Bf16, DType::U8, Some(DType::Float8E4m3)) => CombineFormat::Nvfp4,
        _ => {
            let scales = scales.map_or("no scales", DType::name);
            return Err(refused(
                operation,
                "dispatch_dtype",
                "`input_dtype` (bfloat16, float16 or float32) without scales; or, of bfloat16, float8_e4m3fn with \
                 float8_e8m0fnu, or uint8 with float8_e4m3fn"
                    .to_owned(),
                format!("{wire} of {rows} with {scales}"),
            ));
        }
    })
}

impl CombineOperation {
    /// Attributes, read, and the type of rows.
    fn read(
        &self,
        operation: &Operation,
        attributes: &Attributes,
    ) -> Result<(Choices, DType), OpError> {
        attributes.check_target(operation)?;
        // What tokens were dispatched as does not matter here.
        let builder = EpConfig::builder(TokenFormat::Bf16).combine(format(operation, attributes)?);
        let choices = Choices::read(operation, attributes, builder, self.half)?;
        Ok((choices, attributes.dtype("input_dtype")))
    }
}

impl Behaviour for CombineOperation {
    fn infer(
        &self,
        operation: &Operation,
        attributes: &Attributes,
        inputs: &[TensorType],
    ) -> Result<Vec<TensorType>, OpError> {
        let (choices, dtype) = self.read(operation, attributes)?;
        let config = &choices.config;
        let (mut rows, mut tokens) = (None, None);
        for (operand, found) in operation.inputs().zip(inputs) {
            let extent = found.shape[0];
            let expected = match operand.name {
                // How many there are depends on what tokens were dispatched as, which the group knows.
                "input_tokens" => {
                    TensorType::new(dtype, [*rows.get_or_insert(extent), config.hidden_size()])
                }
                "src_info" => TensorType::new(DType::I32, [*rows.get_or_insert(extent), 2]),
                "atomic_counters" => TensorType::new(DType::I32, [2 * config.pairs()]),
                "router_weights" => {
                    let floats = [DType::F32, DType::Bf16, DType::F16];
                    if !floats.contains(&found.dtype) {
                        return Err(OpError::WrongDType {
                            operation: operation.name(),
                            operand: operand.name,
                            expected: floats.map(DType::name).join(", "),
                            found: found.dtype,
                        });
                    }
                    check_tokens(operation, operand, config, found)?;
                    let shape = [*tokens.get_or_insert(extent), config.top_k()];
                    TensorType::new(found.dtype, shape)
                }
                "topk_ids" => {
                    let shape = [*tokens.get_or_insert(extent), config.top_k()];
                    TensorType::new(DType::I32, shape)
                }
                _ => choices.table(operation, found)?,
            };
            operation.check_type(operand, &expected, found)?;
        }
        let outputs = tokens.map(|tokens| TensorType::new(dtype, [tokens, config.hidden_size()]));
        Ok(outputs.into_iter().collect())
    }

    /// All ranks of the group for the fused operation, one for the others.
    fn instances(&self, context: &OpContext<'_>) -> usize {
        self.half.instances(context)
    }

    fn execute(
        &self,
        operation: &Operation,
        context: &mut OpContext<'_>,
        attributes: &Attributes,
        tensors: &mut [TensorView<'_>],
    ) -> Result<(), OpError> {
        let name = operation.name();
        let (choices, _) = self.read(operation, attributes)?;
        let stream = context.stream;
        let (session, rank) = checked_session(operation, context, attributes, &choices)?;
        let calls = tensors.chunks(operation.operands().len());
        check_tables(operation, &session.combine_pointer_tables(), calls.clone())?;
        let failed = |source| OpError::Ep {
            operation: name,
            source,
        };
        let config = session.group.shared_config();
        let missing = |rank| OpError::NothingDispatched {
            operation: name,
            rank,
        };
        let named = |tensors| Named { operation, tensors };
        match self.half {
            Half::Both => {
                let records = session.dispatched.iter().enumerate();
                let records = records.map(|(rank, record)| record.ok_or_else(|| missing(rank)));
                let records = records.collect::<Result<Vec<_>, _>>()?;
                let sets = calls.map(|tensors| {
                    let set = Tensors::new(named(tensors), &config)?;
                    Ok((set.received, (set.rows, set.reduction)))
                });
                let sets = sets.collect::<Result<Vec<_>, DeviceError>>();
                let sets = sets.map_err(|source| failed(source.into()))?;
                let (mut received, mut operands): (Vec<_>, Vec<_>) = sets.into_iter().unzip();
                let dispatched =
                    DispatchRecord::resume_all(&records, &session.group, &mut received)
                        .ok_or(OpError::DifferentRounds { operation: name })?;
                let (mut outputs, mut batches, mut targets) = (Vec::new(), Vec::new(), Vec::new());
                for (rows, reduction) in &mut operands {
                    outputs.push(rows.outputs());
                    let (batch, target) = reduction.operands();
                    batches.push(batch);
                    targets.push(target);
                }
                dispatched
                    .combine(stream, &outputs, &batches, targets)
                    .map_err(|Refused { error, .. }| failed(*error))?;
                session.dispatched.fill(None);
            }
            Half::Send => {
                let record = session.dispatched[rank].ok_or_else(|| missing(rank))?;
                let mut set = Sending::new(named(tensors), &config)
                    .map_err(|source| failed(source.into()))?;
                let dispatched = record.resume(&session.group, &mut set.received);
                let sent = dispatched.combine_async(stream, set.rows.outputs());
                let sent = sent.map_err(|Refused { error, .. }| failed(*error))?;
                session.returned[rank] = Some(sent.record());
                session.dispatched[rank] = None;
            }
            Half::Receive => {
                let record = session.returned[rank].ok_or(OpError::NothingSent {
                    operation: name,
                    rank,
                })?;
                let mut set = Tensors::new(named(tensors), &config)
                    .map_err(|source| failed(source.into()))?;
                let (batch, target) = set.reduction.operands();
                let outputs = set.rows.outputs();
                let sent = record.resume(&session.group, &mut set.received, outputs);
                sent.wait(stream, &batch, target)
                    .map_err(|Refused { error, .. }| failed(*error))?;
                session.returned[rank] = None;
            }
        }
        Ok(())
    }
}

/// A buffer of one of the types of rows and weights.
enum FloatBuffer {
    Bf16(DeviceBuffer<bf16>),
    F16(DeviceBuffer<f16>),
    F32(DeviceBuffer<f32>),
}

impl FloatBuffer {
    /// Over a tensor whose type was checked.
    fn new(tensor: &TensorView<'_>) -> Result<Self, DeviceError> {
        Ok(match tensor.tensor_type().dtype {
            DType::Bf16 => Self::Bf16(tensor.buffer()?),
            DType::F16 => Self::F16(tensor.buffer()?),
            _ => Self::F32(tensor.buffer()?),
        })
    }

    fn outputs(&self) -> ExpertOutputs<'_> {
        match self {
            Self::Bf16(buffer) => buffer.into(),
            Self::F16(buffer) => buffer.into(),
            Self::F32(buffer) => buffer.into(),
        }
    }

    fn weights(&self) -> RouterWeights<'_> {
        match self {
            Self::Bf16(buffer) => buffer.into(),
            Self::F16(buffer) => buffer.into(),
            Self::F32(buffer) => buffer.into(),
        }
    }

    fn target(&mut self) -> CombineOutput<'_> {
        match self {
            Self::Bf16(buffer) => buffer.into(),
            Self::F16(buffer) => buffer.into(),
            Self::F32(buffer) => buffer.into(),
        }
    }
}

/// Buffers over what a rank sends.
struct Sending {
    received: Received,
    rows: FloatBuffer,
}

impl Sending {
    fn new(named: Named<'_, '_>, config: &Arc<EpConfig>) -> Result<Self, DeviceError> {
        let parts = ReceivedParts {
            tokens: None,
            scales: None,
            row_offsets: None,
            scales_offsets: None,
            expert_ids: None,
            src_info: named.get("src_info").buffer()?,
            pairs: named.get("atomic_counters").buffer()?,
        };
        Ok(Self {
            received: Received::from_parts(config, parts)?,
            rows: FloatBuffer::new(named.get("input_tokens"))?,
        })
    }
}

/// Buffers over what a rank's tokens become.
struct Reduction {
    topk_ids: DeviceBuffer<i32>,
    weights: FloatBuffer,
    combined: FloatBuffer,
}

impl Reduction {
    fn operands(&mut self) -> (Batch<'_>, CombineTarget<'_>) {
        let weights = self.weights.weights();
        (
            Batch::of_ids(&self.topk_ids),
            CombineTarget::weighted(weights, self.combined.target()),
        )
    }
}

/// Buffers over all tensors of a rank.
struct Tensors {
    received: Received,
    rows: FloatBuffer,
    reduction: Reduction,
}

impl Tensors {
    fn new(named: Named<'_, '_>, config: &Arc<EpConfig>) -> Result<Self, DeviceError> {
        let Sending { received, rows } = Sending::new(named, config)?;
        Ok(Self {
            received,
            rows,
            reduction: Reduction {
                topk_ids: named.get("topk_ids").buffer()?,
                weights: FloatBuffer::new(named.get("router_weights"))?,
                combined: FloatBuffer::new(named.get("output_tokens"))?,
            },
        })
    }
}
