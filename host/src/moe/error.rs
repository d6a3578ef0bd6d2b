//! What can go wrong with a layer.

use crate::ep::{DequantizeError, EpConfigError, EpError};
use crate::error::DeviceError;
use crate::quantizer::QuantizeError;
use thiserror::Error;

/// Why a layer or a part of it cannot be made or run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MoeError {
    /// The device failed, or something lives on another one.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// There can be no group of this shape.
    #[error(transparent)]
    Config(#[from] EpConfigError),

    /// Dispatch or combine failed.
    #[error(transparent)]
    Exchange(#[from] EpError),

    /// What was received cannot be widened.
    #[error(transparent)]
    Dequantize(#[from] DequantizeError),

    /// A tensor-wise factor without meaning.
    #[error(transparent)]
    TensorScale(#[from] QuantizeError),

    /// An extent that no layer has.
    #[error("{what} is {value}; it must be a multiple of {multiple}, and at least that")]
    Multiple {
        /// The extent.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What it must be a multiple of.
        multiple: usize,
    },

    /// An extent beyond what there is, or what a kernel can count.
    #[error("{what} is {value}; the most there can be is {limit}")]
    TooLarge {
        /// The extent.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The most there can be.
        limit: usize,
    },

    /// A buffer or a list does not have the length that the shape leads to.
    #[error("{what} holds {found} values, expected {expected}")]
    Length {
        /// The buffer.
        what: &'static str,
        /// Values it holds.
        found: usize,
        /// Values that it should hold.
        expected: usize,
    },
}

/// Demands that `what` holds `expected` values.
pub(super) fn check_length(
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), MoeError> {
    if found == expected {
        return Ok(());
    }
    Err(MoeError::Length {
        what,
        found,
        expected,
    })
}

/// `value` as a kernel takes it.
pub(super) fn to_u32(what: &'static str, value: usize) -> Result<u32, MoeError> {
    u32::try_from(value).map_err(|_| MoeError::TooLarge {
        what,
        value,
        limit: u32::MAX as usize,
    })
}
