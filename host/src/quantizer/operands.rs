//! What is quantized: rows, and the tensor-wise factors of experts.

use super::QuantizeError;
use super::error::to_index;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::options::InputType;
use half::{bf16, f16};

/// Tensor-wise factors, one for each expert, on a device.
///
/// A factor *multiplies* the largest magnitude before the block scale is formed (the "encode"
/// factor): elements decode as `code * block_scale / factor`. A common choice for NVFP4 is
/// `448 * 6 / amax` of the tensor; the MX formats use 1. A subnormal factor is allowed and useless: its
/// reciprocal counts as infinite, so all elements become 0.
///
/// MXFP4 with another factor than 1 takes the kernel's general path, for all of an expert's rows; it reads them
/// twice and is several times as slow.
#[derive(Debug)]
pub struct TensorScales(pub(crate) DeviceBuffer<f32>);

impl TensorScales {
    /// Copies factors to a device.
    ///
    /// # Errors
    ///
    /// [`QuantizeError::NoTensorScale`] for none, [`QuantizeError::TensorScale`] for one that is
    /// not finite and above 0.
    pub fn upload(device: &Device, factors: &[f32]) -> Result<Self, QuantizeError> {
        for (expert, &value) in factors.iter().enumerate() {
            if !(value.is_finite() && value > 0.0) {
                return Err(QuantizeError::TensorScale { expert, value });
            }
        }
        Self::from_buffer(device.upload(factors)?)
    }

    /// A factor of 1 for each of `experts` experts.
    ///
    /// # Errors
    ///
    /// As [`upload`](Self::upload).
    pub fn ones(device: &Device, experts: usize) -> Result<Self, QuantizeError> {
        Self::upload(device, &vec![1.0; experts])
    }

    /// Factors that are on the device already. Their values are not looked at; a block whose factor
    /// is not finite and above 0 quantizes to meaningless values.
    ///
    /// # Errors
    ///
    /// [`QuantizeError::NoTensorScale`] for none.
    pub fn from_buffer(factors: DeviceBuffer<f32>) -> Result<Self, QuantizeError> {
        if factors.is_empty() {
            return Err(QuantizeError::NoTensorScale);
        }
        to_index("the number of tensor-wise factors", factors.len())?;
        Ok(Self(factors))
    }

    /// The factors.
    pub fn buffer(&self) -> &DeviceBuffer<f32> {
        &self.0
    }
}

/// Rows to quantize, in device memory: `[rows, columns]`, row-major.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Input<'a> {
    /// bfloat16.
    Bf16(&'a DeviceBuffer<bf16>),
    /// IEEE binary16.
    F16(&'a DeviceBuffer<f16>),
    /// IEEE binary32.
    F32(&'a DeviceBuffer<f32>),
}

macro_rules! input_from {
    ($($type:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a DeviceBuffer<$type>> for Input<'a> {
            fn from(buffer: &'a DeviceBuffer<$type>) -> Self {
                Input::$variant(buffer)
            }
        }
    )*};
}

input_from!(bf16 => Bf16, f16 => F16, f32 => F32);

impl Input<'_> {
    /// The element type.
    pub fn input_type(&self) -> InputType {
        match self {
            Input::Bf16(_) => InputType::Bf16,
            Input::F16(_) => InputType::F16,
            Input::F32(_) => InputType::F32,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Input::Bf16(buffer) => buffer.len(),
            Input::F16(buffer) => buffer.len(),
            Input::F32(buffer) => buffer.len(),
        }
    }

    pub(super) fn device(&self) -> &Device {
        match self {
            Input::Bf16(buffer) => buffer.device(),
            Input::F16(buffer) => buffer.device(),
            Input::F32(buffer) => buffer.device(),
        }
    }

    pub(super) fn address(&self) -> *const u8 {
        match self {
            Input::Bf16(buffer) => buffer.as_ptr().cast(),
            Input::F16(buffer) => buffer.as_ptr().cast(),
            Input::F32(buffer) => buffer.as_ptr().cast(),
        }
    }
}
