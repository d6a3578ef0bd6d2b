//! Tensors as operations take them: a type, and memory that somebody else owns.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use half::{bf16, f16};

use super::{Direction, OpError, Operand, Operation};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::DeviceError;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 8 bits without a meaning of their own: two E2M1 codes, for example.
    U8,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer: an address.
    U64,
    /// Signed 32-bit integer.
    I32,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
    /// E4M3 without infinities.
    Float8E4m3,
    /// E8M0: a power of two.
    Float8E8m0,
}

impl DType {
    /// Every one, in documentation order.
    pub const ALL: [DType; 9] = [
        DType::U8,
        DType::U32,
        DType::U64,
        DType::I32,
        DType::Bf16,
        DType::F16,
        DType::F32,
        DType::Float8E4m3,
        DType::Float8E8m0,
    ];

    /// The name that engines give it: `uint8`, `float8_e4m3fn`, ...
    pub const fn name(self) -> &'static str {
        match self {
            DType::U8 => "uint8",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::I32 => "int32",
            DType::Bf16 => "bfloat16",
            DType::F16 => "float16",
            DType::F32 => "float32",
            DType::Float8E4m3 => "float8_e4m3fn",
            DType::Float8E8m0 => "float8_e8m0fnu",
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::U8 | DType::Float8E4m3 | DType::Float8E8m0 => 1,
            DType::Bf16 | DType::F16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 => 8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that is a tensor's element.
pub trait Element: Pod {
    /// The element type that it stands for.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements!(u8 => U8, u32 => U32, u64 => U64, i32 => I32, bf16 => Bf16, f16 => F16, f32 => F32);

/// Element type and extents, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Type of the elements.
    pub dtype: DType,
    /// Extents, the slowest first.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// A type.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self {
            dtype,
            shape: shape.into(),
        }
    }

    /// Number of elements, [`usize::MAX`] if there are more.
    pub fn elements(&self) -> usize {
        self.shape.iter().copied().fold(1, usize::saturating_mul)
    }

    /// Bytes of the tensor, [`usize::MAX`] if there are more.
    pub fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.dtype.bytes())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}

/// A tensor in memory that outlives it.
#[derive(Debug)]
pub struct TensorView<'a> {
    tensor_type: TensorType,
    memory: Memory<'a>,
}

#[derive(Debug)]
enum Memory<'a> {
    Device {
        device: Device,
        address: *mut u8,
        writable: bool,
        buffer: PhantomData<&'a mut [u8]>,
    },
    Host(&'a [u64]),
}

impl<'a> TensorView<'a> {
    /// A tensor to be read, all of `buffer`.
    ///
    /// # Errors
    /// [`DeviceError::LengthMismatch`] unless the extents' product is the buffer's length.
    pub fn input<T: Element>(
        buffer: &'a DeviceBuffer<T>,
        shape: impl Into<Vec<usize>>,
    ) -> Result<Self, DeviceError> {
        Self::on_device(buffer, shape.into(), false)
    }

    /// A tensor to be written, all of `buffer`.
    ///
    /// # Errors
    /// As [`input`](Self::input).
    pub fn output<T: Element>(
        buffer: &'a mut DeviceBuffer<T>,
        shape: impl Into<Vec<usize>>,
    ) -> Result<Self, DeviceError> {
        Self::on_device(buffer, shape.into(), true)
    }

    /// A tensor of this type to be written, all of a buffer of bytes.
    ///
    /// # Errors
    /// [`DeviceError::LengthMismatch`] unless the tensor has as many bytes.
    pub fn output_bytes(
        buffer: &'a mut DeviceBuffer<u8>,
        tensor_type: TensorType,
    ) -> Result<Self, DeviceError> {
        let mut view = Self::on_device(buffer, vec![tensor_type.bytes()], true)?;
        view.tensor_type = tensor_type;
        Ok(view)
    }

    /// A vector in host memory, of addresses for example.
    pub fn host(words: &'a [u64]) -> Self {
        Self {
            tensor_type: TensorType::new(DType::U64, [words.len()]),
            memory: Memory::Host(words),
        }
    }

    fn on_device<T: Element>(
        buffer: &DeviceBuffer<T>,
        shape: Vec<usize>,
        writable: bool,
    ) -> Result<Self, DeviceError> {
        let tensor_type = TensorType::new(T::DTYPE, shape);
        if tensor_type.elements() != buffer.len() {
            return Err(DeviceError::LengthMismatch {
                buffer: buffer.len(),
                host: tensor_type.elements(),
            });
        }
        Ok(Self {
            tensor_type,
            memory: Memory::Device {
                device: buffer.device().clone(),
                address: buffer.as_ptr().cast_mut().cast(),
                writable,
                buffer: PhantomData,
            },
        })
    }

    /// The same memory as elements of another type of the same size.
    ///
    /// # Errors
    /// [`DeviceError::LengthMismatch`] for an element of another size, with both sizes in bytes.
    pub fn with_dtype(mut self, dtype: DType) -> Result<Self, DeviceError> {
        let (old, new) = (self.tensor_type.dtype.bytes(), dtype.bytes());
        if old != new {
            return Err(DeviceError::LengthMismatch {
                buffer: old,
                host: new,
            });
        }
        self.tensor_type.dtype = dtype;
        Ok(self)
    }

    /// Element type and extents.
    pub fn tensor_type(&self) -> &TensorType {
        &self.tensor_type
    }

    /// Demands that the tensor is where the operand must be, and writable if it is written.
    pub(super) fn check_place(
        &self,
        operation: &Operation,
        operand: &Operand,
        on: &Device,
    ) -> Result<(), OpError> {
        let (operation, operand, direction) = (operation.name(), operand.name, operand.direction);
        let on_host = direction == Direction::HostIn;
        match &self.memory {
            Memory::Device { .. } if on_host => Err(OpError::Place {
                operation,
                operand,
                expected: "host",
            }),
            Memory::Host(_) if !on_host => Err(OpError::Place {
                operation,
                operand,
                expected: "device",
            }),
            Memory::Host(_) => Ok(()),
            Memory::Device { writable, .. } if !writable && direction != Direction::In => {
                Err(OpError::ReadOnly { operation, operand })
            }
            Memory::Device { device, .. } => on
                .check_same(operand, device)
                .map_err(|source| OpError::Device { operation, source }),
        }
    }

    /// The words of a tensor in host memory; none of one on the device.
    pub(super) fn host_words(&self) -> &[u64] {
        match self.memory {
            Memory::Host(words) => words,
            Memory::Device { .. } => &[],
        }
    }

    /// A buffer over the tensor's memory, for the typed API, as elements of `T`. It must not outlive the view,
    /// nor may an input be written through it.
    ///
    /// # Panics
    /// Panics when the tensor is in host memory, or is no whole number of `T`: by then both have been checked.
    pub(super) fn buffer<T: Pod>(&self) -> Result<DeviceBuffer<T>, DeviceError> {
        let Memory::Device {
            device, address, ..
        } = &self.memory
        else {
            unreachable!("{} is in host memory", self.tensor_type);
        };
        let bytes = self.tensor_type.bytes();
        assert!(bytes.is_multiple_of(size_of::<T>()), "{}", self.tensor_type);
        // SAFETY: the address and the number of bytes are those of the buffer that the view borrows, and the
        // caller drops the result before the view.
        unsafe { DeviceBuffer::from_raw(device, address.cast(), bytes / size_of::<T>()) }
    }
}
