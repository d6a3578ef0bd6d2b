//! What a combine reads and writes.

use super::format::RowElement;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::ep::error::EpError;
use half::{bf16, f16};
use kernels_gpu::ep::combine::WeightType;

/// What the experts of a rank made of the rows that it received: `[output_rows, H]`, in the order of the rows, those
/// of the shared expert first. Rows that padding put between groups are not read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ExpertOutputs<'a> {
    /// bfloat16.
    Bf16(&'a DeviceBuffer<bf16>),
    /// IEEE binary16.
    F16(&'a DeviceBuffer<f16>),
    /// IEEE binary32.
    F32(&'a DeviceBuffer<f32>),
}

/// Router weights: `[T, K]`. They are widened to f32.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RouterWeights<'a> {
    /// IEEE binary32.
    F32(&'a DeviceBuffer<f32>),
    /// bfloat16.
    Bf16(&'a DeviceBuffer<bf16>),
    /// IEEE binary16.
    F16(&'a DeviceBuffer<f16>),
}

/// Memory for combined tokens.
#[derive(Debug)]
#[non_exhaustive]
pub enum CombineOutput<'a> {
    /// bfloat16.
    Bf16(&'a mut DeviceBuffer<bf16>),
    /// IEEE binary16.
    F16(&'a mut DeviceBuffer<f16>),
    /// IEEE binary32.
    F32(&'a mut DeviceBuffer<f32>),
}

macro_rules! from_buffers {
    ($($of:ident: $($variant:ident($buffer:ty)),*;)*) => {$($(
        impl<'a> From<$buffer> for $of<'a> {
            fn from(buffer: $buffer) -> Self {
                Self::$variant(buffer)
            }
        }
    )*)*};
}

from_buffers! {
    ExpertOutputs: Bf16(&'a DeviceBuffer<bf16>), F16(&'a DeviceBuffer<f16>), F32(&'a DeviceBuffer<f32>);
    RouterWeights: Bf16(&'a DeviceBuffer<bf16>), F16(&'a DeviceBuffer<f16>), F32(&'a DeviceBuffer<f32>);
    CombineOutput: Bf16(&'a mut DeviceBuffer<bf16>), F16(&'a mut DeviceBuffer<f16>), F32(&'a mut DeviceBuffer<f32>);
}

/// What is made of the rows that come home to a rank.
#[derive(Debug)]
#[must_use]
pub struct CombineTarget<'a> {
    weights: Option<RouterWeights<'a>>,
    output: CombineOutput<'a>,
}

impl<'a> CombineTarget<'a> {
    /// One row for each token: `[T, H]`.
    ///
    /// An f32 sum from 0 takes in `weight * value` for the token's experts in order, each with one rounding (a fused
    /// multiply-add), and is rounded once, to nearest even, to the element type. With a shared expert its value is
    /// added then, and the sum rounded again. A token without an expert is 0. In skip mode only this rank's experts
    /// and its share of the shared expert's rows take part: an all-reduce adds the rest.
    pub fn weighted(
        weights: impl Into<RouterWeights<'a>>,
        output: impl Into<CombineOutput<'a>>,
    ) -> Self {
        Self {
            weights: Some(weights.into()),
            output: output.into(),
        }
    }

    /// Every row by itself: `[T, K, H]`. Where a position has no expert, or in skip mode none of this rank, the output
    /// stays as it was. There is no place for the shared expert, so its groups refuse this.
    pub fn unweighted(output: impl Into<CombineOutput<'a>>) -> Self {
        Self {
            weights: None,
            output: output.into(),
        }
    }

    pub(super) fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }

    /// Checks the target for rank `rank` with `tokens` tokens, and returns its addresses.
    pub(super) fn bind(
        self,
        device: &Device,
        check: Check,
        tokens: usize,
        top_k: usize,
    ) -> Result<BoundTarget, EpError> {
        let (weights, weight_type) = match self.weights {
            None => (std::ptr::null(), WeightType::None),
            Some(weights) => {
                let (found, address, on, weight_type) = match weights {
                    RouterWeights::F32(buffer) => view(buffer, WeightType::F32),
                    RouterWeights::Bf16(buffer) => view(buffer, WeightType::Bf16),
                    RouterWeights::F16(buffer) => view(buffer, WeightType::F16),
                };
                device.check_same("the router weights", on)?;
                check.length("the router weights", found, tokens * top_k)?;
                (address, weight_type)
            }
        };
        let rows = match weight_type {
            WeightType::None => tokens * top_k,
            _ => tokens,
        };
        let (len, address, on, element) = match self.output {
            CombineOutput::Bf16(buffer) => view_mut(buffer, RowElement::Bf16),
            CombineOutput::F16(buffer) => view_mut(buffer, RowElement::F16),
            CombineOutput::F32(buffer) => view_mut(buffer, RowElement::F32),
        };
        device.check_same("the combined tokens", on)?;
        check.element("the combined tokens", element)?;
        check.length("the combined tokens", len, rows * check.hidden_size)?;
        Ok(BoundTarget {
            weights,
            weight_type,
            target: address,
        })
    }
}

impl ExpertOutputs<'_> {
    /// Checks the outputs of `rows` rows, and returns their address.
    pub(super) fn bind(
        &self,
        device: &Device,
        check: Check,
        rows: usize,
    ) -> Result<*const u8, EpError> {
        let (len, address, on, element) = match *self {
            Self::Bf16(buffer) => view(buffer, RowElement::Bf16),
            Self::F16(buffer) => view(buffer, RowElement::F16),
            Self::F32(buffer) => view(buffer, RowElement::F32),
        };
        device.check_same("the expert outputs", on)?;
        check.element("the expert outputs", element)?;
        check.length("the expert outputs", len, rows * check.hidden_size)?;
        Ok(address)
    }
}

/// Length, address, device, and what the caller knows.
fn view<T: bytemuck::Pod, K>(buffer: &DeviceBuffer<T>, kind: K) -> (usize, *const u8, &Device, K) {
    (buffer.len(), buffer.as_ptr().cast(), buffer.device(), kind)
}

/// [`view`], to write.
fn view_mut<T: bytemuck::Pod, K>(
    buffer: &mut DeviceBuffer<T>,
    kind: K,
) -> (usize, *mut u8, &Device, K) {
    let address = buffer.as_mut_ptr().cast();
    (buffer.len(), address, buffer.device(), kind)
}

/// What operands of a rank are held against.
#[derive(Clone, Copy)]
pub(super) struct Check {
    pub(super) rank: usize,
    pub(super) hidden_size: usize,
    pub(super) element: RowElement,
}

impl Check {
    fn length(self, operand: &'static str, found: usize, expected: usize) -> Result<(), EpError> {
        if found == expected {
            return Ok(());
        }
        Err(EpError::InputLength {
            rank: self.rank,
            operand,
            found,
            expected,
        })
    }

    fn element(self, operand: &'static str, found: RowElement) -> Result<(), EpError> {
        if found == self.element {
            return Ok(());
        }
        Err(EpError::CombineElement {
            rank: self.rank,
            operand,
            found,
            expected: self.element,
        })
    }
}

/// The addresses of a checked [`CombineTarget`].
#[derive(Clone, Copy)]
pub(super) struct BoundTarget {
    pub(super) weights: *const u8,
    pub(super) weight_type: WeightType,
    pub(super) target: *mut u8,
}
