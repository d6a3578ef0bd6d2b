//! Running the operations: tensors become batches and outputs of the typed API.

use std::sync::Arc;

use bytemuck::Pod;
use half::bf16;

use super::super::{Attributes, Behaviour, OpContext, OpError, Operation, TensorType, TensorView};
use super::infer::Choices;
use super::{EpOperation, EpSession, Half, PointerTables};
use crate::buffer::DeviceBuffer;
use crate::ep::{Batch, EpConfig, EpError, Pending, Received, ReceivedParts};
use crate::error::DeviceError;

impl Behaviour for EpOperation {
    fn infer(
        &self,
        operation: &Operation,
        attributes: &Attributes,
        inputs: &[TensorType],
    ) -> Result<Vec<TensorType>, OpError> {
        let choices = self.choices(operation, attributes)?;
        self.check_inputs(operation, &choices, inputs)?;
        Ok(self.outputs(operation, &choices.config))
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
        let choices = self.choices(operation, attributes)?;
        let stream = context.stream;
        let (session, rank) = checked_session(operation, context, attributes, &choices)?;
        let calls = tensors.chunks(operation.operands().len());
        check_tables(operation, &session.pointer_tables(), calls.clone())?;
        let failed = |source| OpError::Ep {
            operation: name,
            source,
        };
        let config = session.group.shared_config();
        match self.half {
            Half::Both => {
                let sets = calls.map(|tensors| {
                    let named = Named { operation, tensors };
                    Ok((named.inputs()?, named.received(&config)?))
                });
                let sets: Vec<_> = sets.collect::<Result<_, EpError>>().map_err(failed)?;
                let (inputs, mut outputs): (Vec<_>, Vec<_>) = sets.into_iter().unzip();
                let batches: Vec<_> = inputs.iter().map(Inputs::batch).collect();
                let group = &mut session.group;
                let dispatched = group.dispatch(stream, &batches, &mut outputs);
                let ranks = dispatched.map_err(failed)?.into_ranks();
                session.dispatched = ranks.map(|rank| Some(rank.record())).collect();
            }
            Half::Send => {
                let inputs = Named { operation, tensors }.inputs().map_err(failed)?;
                let sender = &mut session.group.ranks_mut()[rank];
                // The rank knows what it has sent, and says so when it is to receive.
                let sent = sender.dispatch_async(stream, &inputs.batch());
                let _: Pending = sent.map_err(failed)?;
            }
            Half::Receive => {
                let output = Named { operation, tensors }.received(&config);
                let mut output = output.map_err(failed)?;
                let receiver = &mut session.group.ranks_mut()[rank];
                let pending = receiver.pending().ok_or(OpError::NothingSent {
                    operation: name,
                    rank,
                })?;
                let received = receiver.dispatch_wait(stream, pending, &mut output);
                session.dispatched[rank] = Some(received.map_err(failed)?.record());
            }
        }
        Ok(())
    }
}

/// The session that the operation runs in, and the rank that it is for unless it is for all. Its group is of the
/// configuration that the attributes describe.
pub(super) fn checked_session<'a>(
    operation: &Operation,
    context: &'a mut OpContext<'_>,
    attributes: &Attributes,
    choices: &Choices,
) -> Result<(&'a mut EpSession, usize), OpError> {
    let Some((session, rank)) = &mut context.session else {
        return Err(OpError::NoSession {
            operation: operation.name(),
        });
    };
    check_group(operation, attributes, choices, session)?;
    Ok((session, *rank))
}

/// Demands that the group is of the configuration that the attributes describe, as far as they do.
fn check_group(
    operation: &Operation,
    attributes: &Attributes,
    choices: &Choices,
    session: &EpSession,
) -> Result<(), OpError> {
    let (asked, has) = (&choices.config, session.group.config());
    let skip = has.skip_a2a();
    if choices.lacks_world && skip && has.ranks() > 1 {
        return Err(choices.world_missing(operation, has.ranks()));
    }
    // The attribute counts a rank's experts in skip mode.
    let experts = |config: &EpConfig| match skip {
        true => config.local_experts(),
        false => config.experts(),
    };
    let given = |name| attributes.get(name).is_some();
    let mut pairs = vec![
        ("hidden_size", asked.hidden_size(), has.hidden_size()),
        ("top_k", asked.top_k(), has.top_k()),
        ("n_experts", experts(asked), experts(has)),
        (
            "max_token_per_rank",
            asked.max_tokens_per_rank(),
            has.max_tokens_per_rank(),
        ),
    ];
    let mut attributes_of_operation = operation.attributes().iter();
    if attributes_of_operation.any(|attribute| attribute.name == "max_padded_M") {
        let rows = |config: &EpConfig| config.scale_preshuffle().unwrap_or(0);
        pairs.push(("max_padded_M", rows(asked), rows(has)));
    }
    if skip && given("allreduce_world_size") {
        let (asked, has) = (asked.allreduce_world_size(), has.allreduce_world_size());
        pairs.push(("allreduce_world_size", asked, has));
    }
    if !skip {
        pairs.push((
            "n_gpus_per_node",
            asked.ranks_per_node(),
            has.ranks_per_node(),
        ));
        pairs.push((
            "n_nodes",
            asked.ranks() / asked.ranks_per_node(),
            has.ranks() / has.ranks_per_node(),
        ));
    }
    let flags = [
        ("skip_a2a", asked.skip_a2a(), skip),
        (
            "fused_shared_expert",
            asked.fused_shared_expert(),
            has.fused_shared_expert(),
        ),
    ];
    let flag = |(name, asked, has): (_, bool, bool)| (name, asked.to_string(), has.to_string());
    let number = |(name, asked, has): (_, usize, usize)| (name, asked.to_string(), has.to_string());
    // How a combine's tokens were dispatched does not matter; a group that does not combine refuses by itself.
    let formats = match asked.combine() {
        None => Some((asked.format().to_string(), has.format().to_string())),
        Some(asked) => has
            .combine()
            .map(|has| (asked.to_string(), has.to_string())),
    };
    let formats = formats.map(|(asked, has)| ("dispatch_dtype", asked, has));
    let all = flags.into_iter().map(flag);
    let all = all.chain(pairs.into_iter().map(number)).chain(formats);
    for (attribute, asked, has) in all {
        if asked != has {
            return Err(OpError::Attribute {
                operation: operation.name(),
                attribute,
                expected: format!("{has}, as the group was made with"),
                found: asked,
            });
        }
    }
    Ok(())
}

/// Demands the group's own tables of addresses in every call's tensors.
pub(super) fn check_tables<'a, 'b: 'a>(
    operation: &Operation,
    tables: &PointerTables,
    calls: impl Iterator<Item = &'a [TensorView<'b>]>,
) -> Result<(), OpError> {
    for (operand, tensor) in calls.flat_map(|tensors| operation.operands().iter().zip(tensors)) {
        let expected = match operand.name {
            "send_ptrs" => &tables.send,
            "recv_ptrs" => &tables.recv,
            "recv_count_ptrs" => &tables.recv_count,
            _ => continue,
        };
        let found = tensor.host_words();
        if let Some(rank) =
            (0..expected.len()).find(|&rank| found.get(rank) != Some(&expected[rank]))
        {
            return Err(OpError::Address {
                operation: operation.name(),
                operand: operand.name,
                rank,
                expected: expected[rank],
                found: found.get(rank).copied(),
            });
        }
    }
    Ok(())
}

/// The tensors of one rank.
#[derive(Clone, Copy)]
pub(super) struct Named<'a, 'b> {
    pub(super) operation: &'a Operation,
    pub(super) tensors: &'a [TensorView<'b>],
}

/// Buffers over a rank's inputs.
struct Inputs {
    tokens: DeviceBuffer<bf16>,
    topk_ids: DeviceBuffer<i32>,
    factor: Option<DeviceBuffer<f32>>,
}

impl Inputs {
    fn batch(&self) -> Batch<'_> {
        let batch = Batch::new(&self.tokens, &self.topk_ids);
        match &self.factor {
            Some(factor) => batch.input_scale(factor),
            None => batch,
        }
    }
}

impl Named<'_, '_> {
    fn find(&self, name: &str) -> Option<&TensorView<'_>> {
        let operands = self.operation.operands();
        let index = operands.iter().position(|operand| operand.name == name)?;
        self.tensors.get(index)
    }

    pub(super) fn get(&self, name: &str) -> &TensorView<'_> {
        let found = self.find(name);
        found.unwrap_or_else(|| unreachable!("{} has no operand {name}", self.operation.name()))
    }

    fn inputs(&self) -> Result<Inputs, EpError> {
        Ok(Inputs {
            tokens: self.get("input_tokens").buffer()?,
            topk_ids: self.get("topk_ids").buffer()?,
            factor: self.optional("input_scales")?,
        })
    }

    fn optional<T: Pod>(&self, name: &str) -> Result<Option<DeviceBuffer<T>>, DeviceError> {
        self.find(name).map(TensorView::buffer).transpose()
    }

    fn received(&self, config: &Arc<EpConfig>) -> Result<Received, EpError> {
        Ok(Received::from_parts(
            config,
            ReceivedParts {
                tokens: self.optional("output_tokens")?,
                scales: self.optional("output_scales")?,
                row_offsets: self.optional("row_offsets")?,
                scales_offsets: self.optional("scales_offsets")?,
                expert_ids: self.optional("expert_ids")?,
                src_info: self.get("src_info").buffer()?,
                pairs: self.get("atomic_counters").buffer()?,
            },
        )?)
    }
}
