//! Typed memory on a device.

use crate::device::Device;
use crate::error::DeviceError;
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;

/// `len` values of `T` in the memory of a device, aligned to at least 16 bytes.
///
/// Dropping a buffer waits for work that may still use it.
pub struct DeviceBuffer<T> {
    device: Device,
    pointer: *mut u8,
    len: usize,
    /// Whether the memory is ours to free.
    owned: bool,
    _values: PhantomData<T>,
}

// SAFETY: the pointer is an address on the device; the device's backend may be called from any thread.
unsafe impl<T: Pod> Send for DeviceBuffer<T> {}
// SAFETY: as above; writing through the buffer takes `&mut`.
unsafe impl<T: Pod> Sync for DeviceBuffer<T> {}

impl<T: Pod> DeviceBuffer<T> {
    pub(crate) fn new(device: &Device, len: usize) -> Result<Self, DeviceError> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(DeviceError::TooLarge {
                elements: len,
                element_bytes: size_of::<T>(),
            })?;
        Ok(Self {
            device: device.clone(),
            pointer: device.backend().alloc(bytes)?,
            len,
            owned: true,
            _values: PhantomData,
        })
    }

    /// Memory of this device that somebody else owns, another library for example.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Misaligned`] unless `pointer` is a multiple of 16.
    ///
    /// # Safety
    ///
    /// `pointer` is valid for `len` values on `device` until the buffer is dropped and all work
    /// that was given it is done.
    pub unsafe fn from_raw(
        device: &Device,
        pointer: *mut T,
        len: usize,
    ) -> Result<Self, DeviceError> {
        if !pointer.addr().is_multiple_of(16) {
            return Err(DeviceError::Misaligned {
                address: pointer.addr(),
            });
        }
        Ok(Self {
            device: device.clone(),
            pointer: pointer.cast(),
            len,
            owned: false,
            _values: PhantomData,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first value, on the device.
    pub fn as_ptr(&self) -> *const T {
        self.pointer.cast()
    }

    /// Address of the first value, on the device, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.pointer.cast()
    }

    /// Waits for the device's work so far and copies all values to the host.
    ///
    /// # Errors
    ///
    /// A fault of earlier work, or whatever the driver refuses.
    pub fn download(&self) -> Result<Vec<T>, DeviceError> {
        let mut values = vec![T::zeroed(); self.len];
        self.download_into(&mut values)?;
        Ok(values)
    }

    /// [`download`](Self::download) into memory that is there already.
    ///
    /// # Errors
    ///
    /// [`DeviceError::LengthMismatch`], and as `download`.
    pub fn download_into(&self, values: &mut [T]) -> Result<(), DeviceError> {
        self.check_len(values.len())?;
        let bytes = bytemuck::cast_slice_mut(values);
        // SAFETY: the buffer holds as many bytes as `values`, checked above.
        unsafe { self.device.backend().download(bytes, self.pointer) }
    }

    /// Waits for the device's work so far and overwrites all values.
    ///
    /// # Errors
    ///
    /// [`DeviceError::LengthMismatch`], and as [`download`](Self::download).
    pub fn upload_from(&mut self, values: &[T]) -> Result<(), DeviceError> {
        self.check_len(values.len())?;
        // SAFETY: the buffer holds as many bytes as `values`, checked above.
        unsafe {
            self.device
                .backend()
                .upload(self.pointer, bytemuck::cast_slice(values))
        }
    }

    /// Waits for the device's work so far and sets every byte.
    ///
    /// # Errors
    ///
    /// As [`download`](Self::download).
    pub fn fill(&mut self, byte: u8) -> Result<(), DeviceError> {
        // SAFETY: the buffer holds this many bytes.
        unsafe {
            self.device
                .backend()
                .fill(self.pointer, byte, self.len * size_of::<T>())
        }
    }

    fn check_len(&self, host: usize) -> Result<(), DeviceError> {
        if host != self.len {
            return Err(DeviceError::LengthMismatch {
                buffer: self.len,
                host,
            });
        }
        Ok(())
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.owned {
            // A failure here is a fault of earlier work, which whoever waits for it is told.
            // SAFETY: the memory came from `alloc`, and nothing refers to it after this.
            let _ = unsafe { self.device.backend().free(self.pointer) };
        }
    }
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DeviceBuffer")
            .field("address", &self.pointer)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
