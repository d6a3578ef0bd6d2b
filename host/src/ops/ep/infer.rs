//! From attributes to a configuration, and from that to the types of all tensors.

use super::super::{Attributes, DType, Direction, OpError, Operand, Operation, TensorType};
use super::{EpOperation, Half};
use crate::ep::{EpConfig, EpConfigBuilder, TokenFormat};

/// Attributes, read.
pub(super) struct Choices {
    pub(super) config: EpConfig,
    /// Entries of the address tables.
    pub(super) ranks: usize,
    /// Whether only `allreduce_world_size` could say how many ranks there are, and is not given.
    pub(super) lacks_world: bool,
}

/// An attribute with a value that the operation cannot work with.
pub(super) fn refused(
    operation: &Operation,
    attribute: &'static str,
    expected: String,
    found: String,
) -> OpError {
    OpError::Attribute {
        operation: operation.name(),
        attribute,
        expected,
        found,
    }
}

impl Choices {
    /// Adds the shape that the attributes describe to what `builder` has.
    ///
    /// Under `skip_a2a` the engine gives `n_experts` of one rank, and one GPU; the ranks that hold the same tokens
    /// are `allreduce_world_size`.
    pub(super) fn read(
        operation: &Operation,
        attributes: &Attributes,
        builder: EpConfigBuilder,
        half: Half,
    ) -> Result<Self, OpError> {
        let skip = attributes.flag("skip_a2a");
        let (per_node, nodes) = (attributes.int("n_gpus_per_node"), attributes.int("n_nodes"));
        if skip {
            for (name, value) in [("n_gpus_per_node", per_node), ("n_nodes", nodes)] {
                if value != 1 {
                    let expected = "1 with skip_a2a".to_owned();
                    return Err(refused(operation, name, expected, value.to_string()));
                }
            }
        }
        let world = attributes.optional_int("allreduce_world_size");
        let ranks = match skip {
            true => world.unwrap_or(1),
            false => per_node.saturating_mul(nodes),
        };
        let experts = attributes.int("n_experts");
        let shared = attributes.flag("fused_shared_expert");
        let builder = builder
            .hidden_size(attributes.int("hidden_size"))
            .top_k(attributes.int("top_k"))
            .experts(if skip {
                experts.saturating_mul(ranks)
            } else {
                experts
            })
            .max_tokens_per_rank(attributes.int("max_token_per_rank"))
            .ranks(ranks)
            .ranks_per_node(if skip { ranks } else { per_node })
            .fused_shared_expert(shared)
            .skip_a2a(skip);
        if half != Half::Both && shared {
            let expected = "false: only the fused operation has a shared expert".to_owned();
            return Err(refused(
                operation,
                "fused_shared_expert",
                expected,
                "true".to_owned(),
            ));
        }
        let config = builder.build().map_err(|source| OpError::EpConfig {
            operation: operation.name(),
            source,
        })?;
        Ok(Self {
            config,
            ranks,
            lacks_world: skip && world.is_none(),
        })
    }

    /// The type of a table of addresses.
    pub(super) fn table(
        &self,
        operation: &Operation,
        found: &TensorType,
    ) -> Result<TensorType, OpError> {
        let entries = found.shape.iter().product();
        if self.lacks_world && entries > 1 {
            return Err(self.world_missing(operation, entries));
        }
        Ok(TensorType::new(DType::U64, [self.ranks]))
    }

    /// Demands the attribute that says that there are `ranks` ranks.
    pub(super) fn world_missing(&self, operation: &Operation, ranks: usize) -> OpError {
        OpError::Attribute {
            operation: operation.name(),
            attribute: "allreduce_world_size",
            expected: format!("given, as {ranks} ranks have the same tokens under skip_a2a"),
            found: "not given".to_owned(),
        }
    }
}

impl EpOperation {
    /// The configuration that the attributes describe.
    pub(super) fn choices(
        &self,
        operation: &Operation,
        attributes: &Attributes,
    ) -> Result<Choices, OpError> {
        attributes.check_target(operation)?;
        let (dtype, scale_dtype) = dtypes(self.format);
        for (name, expected) in [
            ("input_dtype", Some(DType::Bf16)),
            ("dispatch_dtype", Some(dtype)),
            ("dispatch_scale_dtype", scale_dtype),
        ] {
            let found = attributes.optional_dtype(name);
            if found != expected {
                let text = |it: Option<DType>| it.map_or("not given", DType::name).to_owned();
                return Err(refused(operation, name, text(expected), text(found)));
            }
        }
        if let Some(name) = attributes.text("MX_FORMAT")
            && name != "auto"
            && name != self.format.name()
        {
            let expected = format!("\"auto\" or {:?}", self.format.name());
            return Err(refused(
                operation,
                "MX_FORMAT",
                expected,
                format!("{name:?}"),
            ));
        }
        let mut builder = EpConfig::builder(self.format);
        if attributes.flag("fuse_a_scale_preshuffle") {
            builder =
                builder.scale_preshuffle(attributes.optional_int("max_padded_M").unwrap_or(0));
        }
        Choices::read(operation, attributes, builder, self.half)
    }

    /// Demands the types that inputs must have. `inputs` are all operands that are not outputs.
    pub(super) fn check_inputs(
        &self,
        operation: &Operation,
        choices: &Choices,
        inputs: &[TensorType],
    ) -> Result<(), OpError> {
        let config = &choices.config;
        let operands = operation.inputs().zip(inputs);
        let mut tokens = None;
        for (operand, found) in operands {
            let (dtype, shape) = match operand.name {
                "atomic_counters" => (DType::I32, vec![2 * config.pairs()]),
                "input_tokens" => {
                    tokens = Some(found.shape[0]);
                    (DType::Bf16, vec![found.shape[0], config.hidden_size()])
                }
                "topk_ids" => {
                    let rows = tokens.unwrap_or(found.shape[0]);
                    (DType::I32, vec![rows, config.top_k()])
                }
                "input_scales" => (DType::F32, vec![1]),
                // Tables of addresses.
                _ => {
                    operation.check_type(operand, &choices.table(operation, found)?, found)?;
                    continue;
                }
            };
            operation.check_type(operand, &TensorType::new(dtype, shape), found)?;
            if operand.name == "input_tokens" {
                check_tokens(operation, operand, config, found)?;
            }
        }
        Ok(())
    }

    /// The type of an output.
    fn output(&self, config: &EpConfig, operand: &Operand) -> TensorType {
        let (dtype, scale_dtype) = dtypes(self.format);
        let (rows, groups) = (config.output_rows(), config.groups());
        match operand.name {
            "output_tokens" => {
                let bytes = self.format.payload_bytes(config.hidden_size());
                TensorType::new(dtype, [rows, bytes / dtype.bytes()])
            }
            "output_scales" => {
                let columns = self.format.scales_per_row(config.hidden_size());
                let shape = match (self.format, config.scale_preshuffle()) {
                    (TokenFormat::Fp8Block128, _) => vec![columns, config.scale_stride()],
                    (TokenFormat::Nvfp4, _) => {
                        vec![config.scale_tiles(), columns.div_ceil(4), 32, 4, 4]
                    }
                    (_, Some(slot_rows)) => vec![groups * slot_rows, columns],
                    (_, None) => vec![rows, columns],
                };
                TensorType::new(scale_dtype.unwrap_or(DType::U8), shape)
            }
            "row_offsets" => TensorType::new(DType::U32, [groups + 1]),
            "scales_offsets" => TensorType::new(DType::U32, [groups]),
            "expert_ids" => TensorType::new(DType::I32, [groups]),
            _ => TensorType::new(DType::I32, [rows, 2]),
        }
    }

    /// The types of all outputs, in call order.
    pub(super) fn outputs(&self, operation: &Operation, config: &EpConfig) -> Vec<TensorType> {
        let operands = operation.operands().iter();
        let outputs = operands.filter(|operand| operand.direction == Direction::Out);
        outputs
            .map(|operand| self.output(config, operand))
            .collect()
    }
}

/// Demands no more rows than a rank may have tokens.
pub(super) fn check_tokens(
    operation: &Operation,
    operand: &Operand,
    config: &EpConfig,
    found: &TensorType,
) -> Result<(), OpError> {
    let limit = config.max_tokens_per_rank();
    match found.shape[0] {
        tokens if tokens > limit => Err(OpError::TooMany {
            operation: operation.name(),
            operand: operand.name,
            dimension: 0,
            symbol: operand.shape[0],
            limit,
            found: tokens,
        }),
        _ => Ok(()),
    }
}

/// Types of elements and of scales.
fn dtypes(format: TokenFormat) -> (DType, Option<DType>) {
    match format {
        TokenFormat::Bf16 => (DType::Bf16, None),
        TokenFormat::Fp8Block128 => (DType::Float8E4m3, Some(DType::F32)),
        TokenFormat::Nvfp4 => (DType::U8, Some(DType::Float8E4m3)),
        TokenFormat::Mxfp4 => (DType::U8, Some(DType::Float8E8m0)),
        TokenFormat::Mxfp8 => (DType::Float8E4m3, Some(DType::Float8E8m0)),
    }
}
