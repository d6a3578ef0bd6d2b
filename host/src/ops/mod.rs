//! Operations by name, as an inference engine binds them: a name, attributes, and tensors in a fixed
//! order.
//!
//! [`find`] looks an operation up. Its [`attributes`](Operation::attributes) and
//! [`operands`](Operation::operands) say what it takes, in call order; [`infer`](Operation::infer) gives
//! the types of the outputs for types of the inputs; [`execute`](Operation::execute) checks everything and
//! calls the typed API, which is the only implementation there is. What does not fit is an error that names the
//! attribute or the operand. `docs/operations.md` in the repository maps each of them to its place in the
//! typed API.
//!
//! ```
//! use half::bf16;
//! use tokenyard::Device;
//! use tokenyard::ops::{self, Attributes, DType, OpContext, TensorType, TensorView};
//!
//! let operation = ops::find("grouped.quantize.dynamic.block.scaled")?;
//! let attributes = Attributes::new()
//!     .with("input_dtype", DType::Bf16)
//!     .with("output_dtype", DType::U8)
//!     .with("scales_dtype", DType::Float8E8m0)
//!     .with("target", "gpu");
//! // Three rows of 64 elements for two experts: input, row and scale offsets, expert ids, factors.
//! let outputs = operation.infer(&attributes, &[
//!     TensorType::new(DType::Bf16, [3, 64]),
//!     TensorType::new(DType::U32, [3]),
//!     TensorType::new(DType::U32, [2]),
//!     TensorType::new(DType::I32, [2]),
//!     TensorType::new(DType::F32, [2]),
//! ])?;
//! assert_eq!(outputs[0], TensorType::new(DType::U8, [3, 32]));
//! assert_eq!(outputs[1], TensorType::new(DType::Float8E8m0, [3, 1, 32, 4, 4]));
//!
//! let device = Device::best();
//! let stream = device.create_stream()?;
//! let mut output = device.alloc::<u8>(outputs[0].bytes())?;
//! let mut scales = device.alloc::<u8>(outputs[1].bytes())?;
//! let input = device.upload(&[bf16::ONE; 3 * 64])?;
//! let (row_offsets, scales_offsets) = (device.upload(&[0_u32, 1, 3])?, device.upload(&[0_u32, 1])?);
//! let (expert_ids, sf) = (device.upload(&[0_i32, 1])?, device.upload(&[1_f32; 2])?);
//! operation.execute(&mut OpContext::new(&stream), &attributes, &mut [
//!     TensorView::output_bytes(&mut output, outputs[0].clone())?,
//!     TensorView::output_bytes(&mut scales, outputs[1].clone())?,
//!     TensorView::input(&input, [3, 64])?,
//!     TensorView::input(&row_offsets, [3])?,
//!     TensorView::input(&scales_offsets, [2])?,
//!     TensorView::input(&expert_ids, [2])?,
//!     TensorView::input(&sf, [2])?,
//! ])?;
//! assert_eq!(output.download()?, [0x66; 96]); // 1 is 4 (code 6) times 2^-2
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attributes;
mod ep;
mod error;
mod grouped_quantize;
mod tensor;

pub use attributes::{Attribute, AttributeKind, AttributeValue, Attributes};
pub use ep::{EpSession, PointerTables};
pub use error::OpError;
pub use tensor::{DType, Element, TensorType, TensorView};

use crate::stream::Stream;

/// What happens to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It is read.
    In,
    /// It is read on the host, when the operation is executed.
    HostIn,
    /// It is written.
    Out,
    /// It is read and written.
    InOut,
}

/// A tensor that an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Its name.
    pub name: &'static str,
    /// What happens to it.
    pub direction: Direction,
    /// Its extents, in the symbols that the operation's documentation uses; as many as it has dimensions.
    pub shape: &'static [&'static str],
}

/// Where operations run, and what they need beyond their tensors.
#[derive(Debug)]
pub struct OpContext<'a> {
    stream: &'a Stream,
    /// A group and the rank that operations of one rank are for.
    session: Option<(&'a mut EpSession, usize)>,
}

impl<'a> OpContext<'a> {
    /// A context for operations on one stream.
    pub fn new(stream: &'a Stream) -> Self {
        Self {
            stream,
            session: None,
        }
    }

    /// A context for operations of a group: those of one rank are for rank `rank`.
    ///
    /// # Errors
    /// [`OpError::NoSuchRank`]
    pub fn with_ranks(
        stream: &'a Stream,
        session: &'a mut EpSession,
        rank: usize,
    ) -> Result<Self, OpError> {
        let ranks = session.group().config().ranks();
        if rank >= ranks {
            return Err(OpError::NoSuchRank { rank, ranks });
        }
        Ok(Self {
            stream,
            session: Some((session, rank)),
        })
    }
}

/// What an operation does. Types of outputs are those of the operands that are [`Direction::Out`], in
/// call order; of inputs, those of all others.
trait Behaviour: Sync {
    fn infer(
        &self,
        operation: &Operation,
        attributes: &Attributes,
        inputs: &[TensorType],
    ) -> Result<Vec<TensorType>, OpError>;

    /// How many times the operands are given, one set for each rank.
    fn instances(&self, _: &OpContext<'_>) -> usize {
        1
    }

    /// Runs it. Attributes, dtypes, shapes, places and devices have been checked.
    fn execute(
        &self,
        operation: &Operation,
        context: &mut OpContext<'_>,
        attributes: &Attributes,
        tensors: &mut [TensorView<'_>],
    ) -> Result<(), OpError>;
}

/// An operation that can be called by name.
pub struct Operation {
    name: &'static str,
    attributes: &'static [Attribute],
    operands: &'static [Operand],
    behaviour: &'static dyn Behaviour,
}

/// All operations.
pub fn operations() -> impl Iterator<Item = &'static Operation> {
    let quantize: &Operation = &grouped_quantize::OPERATION;
    std::iter::once(quantize).chain(ep::OPERATIONS.iter().copied())
}

/// The operation of this name.
///
/// # Errors
/// [`OpError::UnknownOperation`], which lists the names there are.
pub fn find(name: &str) -> Result<&'static Operation, OpError> {
    operations()
        .find(|operation| operation.name == name)
        .ok_or_else(|| OpError::UnknownOperation {
            name: name.to_owned(),
            known: operations().map(Operation::name).collect(),
        })
}

impl Operation {
    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The attributes, in order.
    pub fn attributes(&self) -> &'static [Attribute] {
        self.attributes
    }

    /// The tensors, in call order.
    pub fn operands(&self) -> &'static [Operand] {
        self.operands
    }

    /// Types of the outputs (the operands that are [`Direction::Out`], in call order) for types of all
    /// other operands.
    ///
    /// # Errors
    /// An [`OpError`] that names the attribute or operand at fault.
    pub fn infer(
        &self,
        attributes: &Attributes,
        inputs: &[TensorType],
    ) -> Result<Vec<TensorType>, OpError> {
        attributes.check(self)?;
        let operands: Vec<_> = self.inputs().collect();
        if operands.len() != inputs.len() {
            return Err(OpError::OperandCount {
                operation: self.name,
                what: "inputs",
                expected: operands.len(),
                found: inputs.len(),
            });
        }
        for (operand, input) in operands.iter().zip(inputs) {
            self.check_rank(operand, input)?;
        }
        self.behaviour.infer(self, attributes, inputs)
    }

    /// Runs the operation on tensors in call order; the fused `ep.dispatch` operations take them once for each
    /// rank. As far as the typed API neither allocates nor waits,
    /// this does not either.
    ///
    /// # Errors
    /// An [`OpError`] that names the attribute or operand at fault, or says why the typed API refused the
    /// call. Nothing was launched then.
    pub fn execute(
        &self,
        context: &mut OpContext<'_>,
        attributes: &Attributes,
        tensors: &mut [TensorView<'_>],
    ) -> Result<(), OpError> {
        let expected = self.operands.len() * self.behaviour.instances(context);
        if expected != tensors.len() {
            return Err(OpError::OperandCount {
                operation: self.name,
                what: "tensors",
                expected,
                found: tensors.len(),
            });
        }
        for tensors in tensors.chunks(self.operands.len()) {
            self.check(context, attributes, tensors)?;
        }
        self.behaviour.execute(self, context, attributes, tensors)
    }

    /// Checks one set of operands.
    fn check(
        &self,
        context: &OpContext<'_>,
        attributes: &Attributes,
        tensors: &[TensorView<'_>],
    ) -> Result<(), OpError> {
        let pairs = || self.operands.iter().zip(tensors);
        for (operand, tensor) in pairs() {
            tensor.check_place(self, operand, context.stream.device())?;
        }
        let of = |out: bool| {
            pairs().filter(move |(operand, _)| (operand.direction == Direction::Out) == out)
        };
        let inputs: Vec<_> = of(false).map(|(_, it)| it.tensor_type().clone()).collect();
        let expected = self.infer(attributes, &inputs)?;
        for ((operand, tensor), expected) in of(true).zip(&expected) {
            self.check_rank(operand, tensor.tensor_type())?;
            self.check_type(operand, expected, tensor.tensor_type())?;
        }
        Ok(())
    }

    fn inputs(&self) -> impl Iterator<Item = &'static Operand> {
        let operands = self.operands.iter();
        operands.filter(|operand| operand.direction != Direction::Out)
    }

    /// The operand of this name.
    fn operand(&self, name: &str) -> &'static Operand {
        let found = self.operands.iter().find(|operand| operand.name == name);
        found.unwrap_or_else(|| unreachable!("{} has no operand {name}", self.name))
    }

    fn check_rank(&self, operand: &Operand, found: &TensorType) -> Result<(), OpError> {
        if operand.shape.len() != found.shape.len() {
            return Err(OpError::Rank {
                operation: self.name,
                operand: operand.name,
                shape: operand.shape,
                found: found.shape.clone(),
            });
        }
        Ok(())
    }

    /// Demands a dtype and extents. Ranks are equal.
    fn check_type(
        &self,
        operand: &Operand,
        expected: &TensorType,
        found: &TensorType,
    ) -> Result<(), OpError> {
        self.check_dtype(operand, expected.dtype, found.dtype)?;
        let extents = expected.shape.iter().zip(&found.shape).enumerate();
        for (dimension, (&expected, &found)) in extents {
            self.check_extent(operand, dimension, expected, found)?;
        }
        Ok(())
    }

    fn check_dtype(&self, operand: &Operand, expected: DType, found: DType) -> Result<(), OpError> {
        if expected != found {
            return Err(OpError::WrongDType {
                operation: self.name,
                operand: operand.name,
                expected: expected.name().to_owned(),
                found,
            });
        }
        Ok(())
    }

    fn check_multiple(
        &self,
        operand: &Operand,
        dimension: usize,
        multiple: usize,
        found: usize,
    ) -> Result<(), OpError> {
        if !found.is_multiple_of(multiple) {
            return Err(OpError::ExtentMultiple {
                operation: self.name,
                operand: operand.name,
                dimension,
                symbol: operand.shape[dimension],
                multiple,
                found,
            });
        }
        Ok(())
    }

    fn check_extent(
        &self,
        operand: &Operand,
        dimension: usize,
        expected: usize,
        found: usize,
    ) -> Result<(), OpError> {
        if expected != found {
            return Err(OpError::Extent {
                operation: self.name,
                operand: operand.name,
                dimension,
                symbol: operand.shape[dimension],
                expected,
                found,
            });
        }
        Ok(())
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation")
            .field("name", &self.name)
            .field("attributes", &self.attributes)
            .field("operands", &self.operands)
            .finish_non_exhaustive()
    }
}
