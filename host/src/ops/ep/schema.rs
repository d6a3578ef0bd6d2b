//! Attributes and tensors, in the order of the operations' definition.

use super::super::{Attribute, AttributeKind, Direction, Operand, Operation};
use super::{EpOperation, Half, combine};
use crate::ep::TokenFormat;

const ATTRIBUTES: &[Attribute] = &[
    Attribute::required("input_dtype", AttributeKind::DType),
    Attribute::required("dispatch_dtype", AttributeKind::DType),
    Attribute::optional("dispatch_scale_dtype", AttributeKind::DType),
    Attribute::required("hidden_size", AttributeKind::Int),
    Attribute::required("top_k", AttributeKind::Int),
    Attribute::required("n_experts", AttributeKind::Int),
    Attribute::required("max_token_per_rank", AttributeKind::Int),
    Attribute::required("n_gpus_per_node", AttributeKind::Int),
    Attribute::required("n_nodes", AttributeKind::Int),
    Attribute::optional("fused_shared_expert", AttributeKind::Bool),
    Attribute::optional("skip_a2a", AttributeKind::Bool),
    Attribute::optional("allreduce_world_size", AttributeKind::Int),
    Attribute::required("target", AttributeKind::Text),
    Attribute::optional("fuse_a_scale_preshuffle", AttributeKind::Bool),
    Attribute::optional("max_padded_M", AttributeKind::Int),
    Attribute::optional("MX_FORMAT", AttributeKind::Text),
];

/// Those of combine as well: all but the last three, which concern scales.
pub(super) const COMMON_ATTRIBUTES: &[Attribute] = ATTRIBUTES.split_at(ATTRIBUTES.len() - 3).0;

pub(super) const fn operand(
    name: &'static str,
    direction: Direction,
    shape: &'static [&'static str],
) -> Operand {
    Operand {
        name,
        direction,
        shape,
    }
}

const TOKENS: Operand = operand("output_tokens", Direction::Out, &["maxrecv", "Q"]);
const ROW_SCALES: Operand = operand(
    "output_scales",
    Direction::Out,
    &["maxrecv or ng * M", "KS"],
);
const TRANSPOSED_SCALES: Operand = operand("output_scales", Direction::Out, &["KS", "maxrecv"]);
const TILED_SCALES: Operand = operand(
    "output_scales",
    Direction::Out,
    &["tiles", "ceil(KS / 4)", "32", "4", "4"],
);
const ROW_OFFSETS: Operand = operand("row_offsets", Direction::Out, &["ng + 1"]);
const SCALES_OFFSETS: Operand = operand("scales_offsets", Direction::Out, &["ng"]);
const EXPERT_IDS: Operand = operand("expert_ids", Direction::Out, &["ng"]);
const SRC_INFO: Operand = operand("src_info", Direction::Out, &["maxrecv", "2"]);
pub(super) const COUNTERS: Operand = operand("atomic_counters", Direction::InOut, &["2 * nl * R"]);
const INPUT: Operand = operand("input_tokens", Direction::In, &["T", "H"]);
pub(super) const IDS: Operand = operand("topk_ids", Direction::In, &["T", "K"]);
pub(super) const SEND: Operand = operand("send_ptrs", Direction::HostIn, &["ranks"]);
pub(super) const RECV: Operand = operand("recv_ptrs", Direction::HostIn, &["ranks"]);
pub(super) const COUNTS: Operand = operand("recv_count_ptrs", Direction::HostIn, &["ranks"]);
const INPUT_SCALES: Operand = operand("input_scales", Direction::In, &["1"]);

/// The three operations of a format: scales are what it adds to the outputs, factors to the inputs.
macro_rules! family {
    ($name:ident, $suffix:literal, $format:ident, [$($scales:expr),*], [$($offsets:expr),*], [$($factor:expr),*]) => {
        mod $name {
            use super::*;

            pub(super) static BOTH: Operation = Operation {
                name: concat!("ep.dispatch", $suffix),
                attributes: ATTRIBUTES,
                operands: &[
                    TOKENS, $($scales,)* ROW_OFFSETS, $($offsets,)* EXPERT_IDS, SRC_INFO, COUNTERS, INPUT,
                    IDS, SEND, RECV, COUNTS $(, $factor)*
                ],
                behaviour: &EpOperation { half: Half::Both, format: TokenFormat::$format },
            };
            pub(super) static SEND_HALF: Operation = Operation {
                name: concat!("ep.dispatch_async", $suffix),
                attributes: ATTRIBUTES,
                operands: &[COUNTERS, INPUT, IDS, SEND, RECV, COUNTS $(, $factor)*],
                behaviour: &EpOperation { half: Half::Send, format: TokenFormat::$format },
            };
            pub(super) static RECEIVE_HALF: Operation = Operation {
                name: concat!("ep.dispatch_wait", $suffix),
                attributes: ATTRIBUTES,
                operands: &[
                    TOKENS, $($scales,)* ROW_OFFSETS, $($offsets,)* EXPERT_IDS, SRC_INFO, COUNTERS, RECV,
                    COUNTS
                ],
                behaviour: &EpOperation { half: Half::Receive, format: TokenFormat::$format },
            };
        }
    };
}

family!(bf16, "", Bf16, [], [], []);
family!(fp8, ".fp8", Fp8Block128, [TRANSPOSED_SCALES], [], []);
family!(
    nvfp4,
    ".nvfp4",
    Nvfp4,
    [TILED_SCALES],
    [SCALES_OFFSETS],
    [INPUT_SCALES]
);
family!(mxfp4, ".mxfp4", Mxfp4, [ROW_SCALES], [], []);
family!(mxfp8, ".mxfp8", Mxfp8, [ROW_SCALES], [], []);

pub(in crate::ops) static OPERATIONS: &[&Operation] = &[
    &bf16::BOTH,
    &bf16::SEND_HALF,
    &bf16::RECEIVE_HALF,
    &fp8::BOTH,
    &fp8::SEND_HALF,
    &fp8::RECEIVE_HALF,
    &nvfp4::BOTH,
    &nvfp4::SEND_HALF,
    &nvfp4::RECEIVE_HALF,
    &mxfp4::BOTH,
    &mxfp4::SEND_HALF,
    &mxfp4::RECEIVE_HALF,
    &mxfp8::BOTH,
    &mxfp8::SEND_HALF,
    &mxfp8::RECEIVE_HALF,
    &combine::BOTH,
    &combine::SEND_HALF,
    &combine::RECEIVE_HALF,
];
