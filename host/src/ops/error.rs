//! Why a call by name is refused.

use thiserror::Error;

use super::{AttributeKind, DType};
use crate::device_routing::DeviceRoutingError;
use crate::ep::{EpConfigError, EpError};
use crate::error::DeviceError;
use crate::quantizer::QuantizeError;

/// Why a call by name was refused. Nothing was launched.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpError {
    /// No operation has the name.
    #[error("there is no operation {name:?}; there are: {}", known.join(", "))]
    UnknownOperation {
        /// The name given.
        name: String,
        /// The names there are.
        known: Vec<&'static str>,
    },

    /// The operation does not have the attribute.
    #[error("{operation} has no attribute {attribute:?}; it has: {}", known.join(", "))]
    UnknownAttribute {
        /// The operation.
        operation: &'static str,
        /// The name given.
        attribute: String,
        /// The names it has.
        known: Vec<&'static str>,
    },

    /// An attribute was not given.
    #[error("{operation} needs the attribute `{attribute}`, {kind}")]
    MissingAttribute {
        /// The operation.
        operation: &'static str,
        /// The attribute.
        attribute: &'static str,
        /// What it must be.
        kind: AttributeKind,
    },

    /// An attribute has a value that the operation cannot work with.
    #[error("{operation}: attribute `{attribute}` is {found}; it must be {expected}")]
    Attribute {
        /// The operation.
        operation: &'static str,
        /// The attribute.
        attribute: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },

    /// Too many tensors or too few.
    #[error("{operation} has {expected} {what}, got {found}")]
    OperandCount {
        /// The operation.
        operation: &'static str,
        /// Inputs, or all tensors.
        what: &'static str,
        /// How many it has.
        expected: usize,
        /// How many were given.
        found: usize,
    },

    /// A tensor's elements have the wrong type.
    #[error(
        "{operation}: operand `{operand}` has elements of type {found}; they must be {expected}"
    )]
    WrongDType {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
        /// The type, or types, that it can have.
        expected: String,
        /// The type that it has.
        found: DType,
    },

    /// A tensor has the wrong number of dimensions.
    #[error(
        "{operation}: operand `{operand}` has extents {found:?}; it must be [{}]",
        shape.join(", ")
    )]
    Rank {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
        /// What its extents mean.
        shape: &'static [&'static str],
        /// The extents that it has.
        found: Vec<usize>,
    },

    /// An extent of a tensor is wrong.
    #[error(
        "{operation}: extent {dimension} ({symbol}) of operand `{operand}` is {found}; it must be {expected}"
    )]
    Extent {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
        /// The dimension, from 0.
        dimension: usize,
        /// What the extent means.
        symbol: &'static str,
        /// What it must be.
        expected: usize,
        /// What it is.
        found: usize,
    },

    /// An extent of a tensor is no multiple of what it must be one of.
    #[error(
        "{operation}: extent {dimension} ({symbol}) of operand `{operand}` is {found}; it must be a multiple of {multiple}"
    )]
    ExtentMultiple {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
        /// The dimension, from 0.
        dimension: usize,
        /// What the extent means.
        symbol: &'static str,
        /// What it must be a multiple of.
        multiple: usize,
        /// What it is.
        found: usize,
    },

    /// An extent of a tensor is more than it may be.
    #[error(
        "{operation}: extent {dimension} ({symbol}) of operand `{operand}` is {found}; the most there can be is {limit}"
    )]
    TooMany {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
        /// The dimension, from 0.
        dimension: usize,
        /// What the extent means.
        symbol: &'static str,
        /// The most that it may be.
        limit: usize,
        /// What it is.
        found: usize,
    },

    /// A table of addresses is not that of the group.
    #[error(
        "{operation}: operand `{operand}` says {found:#x?} for rank {rank}; the group's address is {expected:#x}"
    )]
    Address {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
        /// The rank.
        rank: usize,
        /// The group's address.
        expected: u64,
        /// The table's, if it is long enough.
        found: Option<u64>,
    },

    /// The operation is one of a group of ranks, and the context has none.
    #[error("{operation} needs a context with a group of ranks")]
    NoSession {
        /// The operation.
        operation: &'static str,
    },

    /// The group has no such rank.
    #[error("there is no rank {rank}; the group has {ranks}")]
    NoSuchRank {
        /// The rank asked for.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },

    /// A rank is to combine a dispatch that there was not, or that was combined.
    #[error("{operation}: rank {rank} has no dispatch to combine")]
    NothingDispatched {
        /// The operation.
        operation: &'static str,
        /// The rank.
        rank: usize,
    },

    /// All ranks of a fused operation combine dispatches of one round.
    #[error("{operation}: the ranks' last dispatches are not of one round")]
    DifferentRounds {
        /// The operation.
        operation: &'static str,
    },

    /// A rank is to receive a round in which it has not sent.
    #[error("{operation}: rank {rank} has sent nothing since it last received")]
    NothingSent {
        /// The operation.
        operation: &'static str,
        /// The rank.
        rank: usize,
    },

    /// The attributes describe no group that there can be.
    #[error("{operation}: {source}")]
    EpConfig {
        /// The operation.
        operation: &'static str,
        /// What is wrong.
        source: EpConfigError,
    },

    /// The group refused the call.
    #[error("{operation}: {source}")]
    Ep {
        /// The operation.
        operation: &'static str,
        /// What the group says.
        source: EpError,
    },

    /// A tensor is in host memory and should be on the device, or the other way round.
    #[error("{operation}: operand `{operand}` must be in {expected} memory")]
    Place {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
        /// Where it must be.
        expected: &'static str,
    },

    /// A tensor to be written was given as an input.
    #[error("{operation} writes operand `{operand}`, which was given as an input")]
    ReadOnly {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
    },

    /// The device failed, or a tensor lives on another one.
    #[error("{operation}: {source}")]
    Device {
        /// The operation.
        operation: &'static str,
        /// What the device says.
        source: DeviceError,
    },

    /// The routing tables were refused.
    #[error("{operation}: {source}")]
    Routing {
        /// The operation.
        operation: &'static str,
        /// What is wrong with them.
        source: DeviceRoutingError,
    },

    /// The quantizer refused the call.
    #[error("{operation}: {source}")]
    Quantize {
        /// The operation.
        operation: &'static str,
        /// What the quantizer says.
        source: QuantizeError,
    },
}
