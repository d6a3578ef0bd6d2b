//! `grouped.quantize.dynamic.block.scaled`: [`GroupedQuantizer`] by name.

use super::{
    Attribute, AttributeKind, Attributes, Behaviour, DType, Direction, OpContext, OpError, Operand,
    Operation, TensorType, TensorView,
};
use crate::device_routing::DeviceRouting;
use crate::options::{COLUMN_MULTIPLE, Format, InputType, QuantizeOptions, ScaleRounding};
use crate::quantizer::{GroupedQuantizer, Input, Quantized, TensorScales};
use crate::routing::max_tiles;
use half::{bf16, f16};

const fn operand(
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

pub(super) static OPERATION: Operation = Operation {
    name: "grouped.quantize.dynamic.block.scaled",
    attributes: &[
        Attribute::required("input_dtype", AttributeKind::DType),
        Attribute::required("output_dtype", AttributeKind::DType),
        Attribute::required("scales_dtype", AttributeKind::DType),
        Attribute::required("target", AttributeKind::Text),
        Attribute::optional("scale_rounding", AttributeKind::Text),
    ],
    operands: &[
        operand("output", Direction::Out, &["R", "bytes per row"]),
        operand("scales", Direction::Out, &["Mt", "Kt", "32", "4", "4"]),
        operand("input", Direction::In, &["R", "K"]),
        operand("row_offsets", Direction::In, &["E + 1"]),
        operand("scales_offsets", Direction::In, &["E"]),
        operand("expert_ids", Direction::In, &["E"]),
        operand("sf_tensor", Direction::In, &["X"]),
    ],
    behaviour: &GroupedQuantize,
};

struct GroupedQuantize;

/// What the attributes ask for.
struct Choices {
    input_type: InputType,
    format: Format,
    rounding: ScaleRounding,
}

impl Choices {
    fn new(operation: &Operation, attributes: &Attributes) -> Result<Self, OpError> {
        attributes.check_target(operation)?;
        let wrong = |attribute, expected: &str, found: String| OpError::Attribute {
            operation: operation.name(),
            attribute,
            expected: expected.to_owned(),
            found,
        };
        let input_type = match attributes.dtype("input_dtype") {
            DType::Bf16 => InputType::Bf16,
            DType::F16 => InputType::F16,
            DType::F32 => InputType::F32,
            other => {
                let expected = "bfloat16, float16 or float32";
                return Err(wrong("input_dtype", expected, other.to_string()));
            }
        };
        let scales = attributes.dtype("scales_dtype");
        let format = match (attributes.dtype("output_dtype"), scales) {
            (DType::U8, DType::Float8E4m3) => Format::Nvfp4,
            (DType::U8, DType::Float8E8m0) => Format::Mxfp4,
            (DType::Float8E4m3, DType::Float8E8m0) => Format::Mxfp8,
            (DType::U8, other) => {
                let expected = "float8_e4m3fn (NVFP4) or float8_e8m0fnu (MXFP4) with uint8 output";
                return Err(wrong("scales_dtype", expected, other.to_string()));
            }
            (DType::Float8E4m3, other) => {
                let expected = "float8_e8m0fnu (MXFP8) with float8_e4m3fn output";
                return Err(wrong("scales_dtype", expected, other.to_string()));
            }
            (other, _) => {
                let expected = "uint8 or float8_e4m3fn";
                return Err(wrong("output_dtype", expected, other.to_string()));
            }
        };
        let rounding = match attributes.text("scale_rounding") {
            None => ScaleRounding::default(),
            Some(name) => name.parse().map_err(|_| {
                wrong(
                    "scale_rounding",
                    "rceil, floor or even",
                    format!("{name:?}"),
                )
            })?,
        };
        let options = QuantizeOptions {
            scale_rounding: rounding,
            ..QuantizeOptions::default()
        };
        options.check(format).map_err(|error| {
            wrong(
                "scale_rounding",
                "rceil with NVFP4",
                error.rounding.to_string(),
            )
        })?;
        Ok(Self {
            input_type,
            format,
            rounding,
        })
    }
}

impl Behaviour for GroupedQuantize {
    fn infer(
        &self,
        operation: &Operation,
        attributes: &Attributes,
        inputs: &[TensorType],
    ) -> Result<Vec<TensorType>, OpError> {
        let Choices { format, .. } = Choices::new(operation, attributes)?;
        let [input, row_offsets, scales_offsets, expert_ids, sf] = inputs else {
            unreachable!("the number of inputs was checked");
        };
        let slots = expert_ids.shape[0];
        for (name, dtype, found, extent) in [
            ("input", attributes.dtype("input_dtype"), input, None),
            ("row_offsets", DType::U32, row_offsets, Some(slots + 1)),
            ("scales_offsets", DType::U32, scales_offsets, Some(slots)),
            ("expert_ids", DType::I32, expert_ids, None),
            ("sf_tensor", DType::F32, sf, None),
        ] {
            let operand = operation.operand(name);
            operation.check_dtype(operand, dtype, found.dtype)?;
            if let Some(extent) = extent {
                operation.check_extent(operand, 0, extent, found.shape[0])?;
            }
        }
        let (rows, columns) = (input.shape[0], input.shape[1]);
        operation.check_multiple(operation.operand("input"), 1, COLUMN_MULTIPLE, columns)?;
        Ok(vec![
            TensorType::new(
                attributes.dtype("output_dtype"),
                [rows, format.bytes_per_row(columns)],
            ),
            TensorType::new(
                attributes.dtype("scales_dtype"),
                [
                    max_tiles(rows, slots),
                    format.column_tiles(columns),
                    32,
                    4,
                    4,
                ],
            ),
        ])
    }

    fn execute(
        &self,
        operation: &Operation,
        context: &mut OpContext<'_>,
        attributes: &Attributes,
        tensors: &mut [TensorView<'_>],
    ) -> Result<(), OpError> {
        let choices = Choices::new(operation, attributes)?;
        let operation = operation.name();
        let device = |source| OpError::Device { operation, source };
        let quantize = |source| OpError::Quantize { operation, source };
        let [
            output,
            scales,
            input,
            row_offsets,
            scales_offsets,
            expert_ids,
            sf,
        ] = tensors
        else {
            unreachable!("the number of tensors was checked");
        };
        let (rows, columns) = (input.tensor_type().shape[0], input.tensor_type().shape[1]);
        let quantizer = GroupedQuantizer::builder(context.stream.device(), choices.format)
            .columns(columns)
            .input_type(choices.input_type)
            .scale_rounding(choices.rounding)
            .build()
            .map_err(quantize)?;
        let routing = DeviceRouting::from_buffers(
            row_offsets.buffer().map_err(device)?,
            scales_offsets.buffer().map_err(device)?,
            expert_ids.buffer().map_err(device)?,
            None,
            rows,
        )
        .map_err(|source| OpError::Routing { operation, source })?;
        let factors = sf.buffer().map_err(device)?;
        let factors = TensorScales::from_buffer(factors).map_err(quantize)?;
        let mut output = Quantized::from_buffers(
            choices.format,
            rows,
            columns,
            scales.tensor_type().shape[0],
            output.buffer().map_err(device)?,
            scales.buffer().map_err(device)?,
        )
        .map_err(quantize)?;
        let mut run = |rows: Input<'_>| {
            quantizer
                .quantize_into(context.stream, rows, &routing, &factors, &mut output)
                .map_err(quantize)
        };
        match choices.input_type {
            InputType::Bf16 => run((&input.buffer::<bf16>().map_err(device)?).into()),
            InputType::F16 => run((&input.buffer::<f16>().map_err(device)?).into()),
            InputType::F32 => run((&input.buffer::<f32>().map_err(device)?).into()),
        }
    }
}
