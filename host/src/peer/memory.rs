//! Device memory that several processes use.

use super::error::PeerError;
use crate::backend::Mapping;
use crate::device::Device;
use std::fmt;
use std::os::fd::OwnedFd;

/// How memory gets into another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Sharing {
    /// By a descriptor that is passed over a Unix socket: an allocation of the virtual memory management API, or,
    /// emulated, a memory file. The memory stays as long as anybody has it, whoever dies.
    Descriptor,
    /// By the handle of `cuIpcGetMemHandle`, for drivers and devices without the other. It is gone with the
    /// process that allocated it.
    LegacyIpc,
}

impl fmt::Display for Sharing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Descriptor => "a file descriptor",
            Self::LegacyIpc => "a legacy IPC handle",
        })
    }
}

/// What another process needs to [open](PeerMemory::open) memory.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) key: Key,
    /// Bytes of the memory.
    pub(crate) bytes: usize,
}

/// How a [`Ticket`] names memory.
#[derive(Debug)]
pub(crate) enum Key {
    Descriptor(OwnedFd),
    LegacyIpc([u8; LEGACY_BYTES]),
}

/// Bytes of a `CUipcMemHandle`.
pub(crate) const LEGACY_BYTES: usize = 64;

impl Ticket {
    /// How the memory is shared.
    pub fn sharing(&self) -> Sharing {
        match self.key {
            Key::Descriptor(_) => Sharing::Descriptor,
            Key::LegacyIpc(_) => Sharing::LegacyIpc,
        }
    }

    /// Bytes of the memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The descriptor, which must travel beside the text.
    pub(super) fn descriptor(&self) -> Option<&OwnedFd> {
        match &self.key {
            Key::Descriptor(descriptor) => Some(descriptor),
            Key::LegacyIpc(_) => None,
        }
    }

    /// One line of text.
    pub(super) fn encode(&self) -> String {
        match &self.key {
            Key::Descriptor(_) => format!("descriptor {}", self.bytes),
            Key::LegacyIpc(handle) => {
                let digits: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{digits} {}", self.bytes)
            }
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; the next descriptor is its own, if it has one.
    pub(super) fn decode(
        text: &str,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Self, &'static str> {
        let (key, bytes) = text.split_once(' ').ok_or("memory without a size")?;
        let bytes = bytes.parse().map_err(|_| "not a size")?;
        if key == "descriptor" {
            let descriptor = descriptors.next().ok_or("memory without a descriptor")?;
            let key = Key::Descriptor(descriptor);
            return Ok(Self { key, bytes });
        }
        let mut handle = [0; LEGACY_BYTES];
        if key.len() != 2 * LEGACY_BYTES || !key.is_ascii() {
            return Err("not a handle");
        }
        for (byte, place) in handle.iter_mut().zip(0..) {
            let digits = &key[2 * place..][..2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| "not a handle")?;
        }
        let key = Key::LegacyIpc(handle);
        Ok(Self { key, bytes })
    }
}

/// Memory of a device that other processes can map, or memory of another process, mapped for this one's device.
///
/// Neither needs privileges. Dropping it waits for the device's work.
///
/// ```
/// use tokenyard::Device;
/// use tokenyard::peer::{PeerMemory, Sharing};
///
/// // Two devices that know nothing of each other, as in two processes.
/// let (writer, reader) = (Device::emulator(0), Device::emulator(1));
/// let (memory, ticket) = PeerMemory::allocate(&writer, 4096, Sharing::Descriptor)?;
/// let opened = PeerMemory::open(&reader, &ticket)?;
/// // SAFETY: both are as long as that, and live to the end; nothing else uses them.
/// let (mut written, read) = unsafe { (memory.buffer::<u32>(4)?, opened.buffer::<u32>(4)?) };
/// written.upload_from(&[1, 2, 3, 4])?;
/// assert_eq!(read.download()?, [1, 2, 3, 4]);
/// # Ok::<(), tokenyard::peer::PeerError>(())
/// ```
#[derive(Debug)]
pub struct PeerMemory {
    device: Device,
    mapping: Mapping,
}

impl PeerMemory {
    /// At least `bytes` bytes of unspecified content, and what other processes need to open them.
    ///
    /// # Errors
    ///
    /// [`PeerError::Sharing`] where there is no such memory, [`PeerError::Device`] where there is not enough of it.
    pub fn allocate(
        device: &Device,
        bytes: usize,
        sharing: Sharing,
    ) -> Result<(Self, Ticket), PeerError> {
        let backend = device.backend();
        if !backend.can_share(sharing)? {
            return Err(PeerError::Sharing {
                device: device.description(),
                sharing,
            });
        }
        let (mapping, ticket) = backend.alloc_shared(bytes, sharing)?;
        let device = device.clone();
        Ok((Self { device, mapping }, ticket))
    }

    /// The best way in which memory of `device` can be shared.
    ///
    /// # Errors
    ///
    /// Whatever the driver refuses.
    pub fn sharing(device: &Device) -> Result<Sharing, PeerError> {
        let descriptors = device.backend().can_share(Sharing::Descriptor)?;
        Ok(match descriptors {
            true => Sharing::Descriptor,
            false => Sharing::LegacyIpc,
        })
    }

    /// Memory of another process, for use by `device`.
    ///
    /// # Errors
    ///
    /// A device that cannot reach the memory, or a ticket of something else.
    pub fn open(device: &Device, ticket: &Ticket) -> Result<Self, PeerError> {
        Ok(Self {
            device: device.clone(),
            mapping: device.backend().open_shared(ticket)?,
        })
    }

    /// Where it is, on this process's device.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.pointer
    }

    /// Bytes of it; never less than asked for.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// Its first `len` values as a buffer, which does not own them.
    ///
    /// # Errors
    ///
    /// More values than there are.
    ///
    /// # Safety
    ///
    /// The buffer, and all work that was given it, end before this memory does. What other processes do with it
    /// meanwhile is ordered by atomic operations.
    pub unsafe fn buffer<T: bytemuck::Pod>(
        &self,
        len: usize,
    ) -> Result<crate::DeviceBuffer<T>, PeerError> {
        if len
            .checked_mul(size_of::<T>())
            .is_none_or(|bytes| bytes > self.bytes())
        {
            return Err(PeerError::Device(crate::DeviceError::LengthMismatch {
                buffer: self.bytes() / size_of::<T>().max(1),
                host: len,
            }));
        }
        // SAFETY: the memory has as much, and the rest is the caller's obligation.
        Ok(unsafe { crate::DeviceBuffer::from_raw(&self.device, self.as_ptr().cast(), len)? })
    }
}

// SAFETY: the pointer is an address on the device, whose backend may be called from any thread.
unsafe impl Send for PeerMemory {}
// SAFETY: as above; there is no access through it but that of `buffer`'s caller.
unsafe impl Sync for PeerMemory {}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        // A failure here is a fault of earlier work, which whoever waits for it is told.
        // SAFETY: it came from this backend, and nothing refers to it after this: see `buffer`.
        let _ = unsafe { self.device.backend().close_shared(&self.mapping) };
    }
}
