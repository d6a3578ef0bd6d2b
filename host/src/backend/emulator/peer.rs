//! Emulated device memory that several processes use: memory files.

use super::EmulatorBackend;
use crate::backend::Mapping;
use crate::error::DeviceError;
use crate::peer::{Key, Sharing, Ticket};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

/// What a memory file is made in multiples of: the largest page of the platforms.
const PAGE: usize = 64 << 10;

/// No process can change the length of a memory file once others use it: touching what is not there any more would
/// kill them.
const FIXED_LENGTH: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

fn failed(call: &'static str) -> impl Fn(Errno) -> DeviceError {
    move |error| DeviceError::System {
        call,
        source: error.into(),
    }
}

impl EmulatorBackend {
    pub(in crate::backend) fn can_share(&self, sharing: Sharing) -> Result<bool, DeviceError> {
        Ok(sharing == Sharing::Descriptor)
    }

    pub(in crate::backend) fn alloc_shared(
        &self,
        bytes: usize,
        sharing: Sharing,
    ) -> Result<(Mapping, Ticket), DeviceError> {
        debug_assert_eq!(sharing, Sharing::Descriptor);
        self.check_not_capturing("an allocation")?;
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(PAGE)
            .ok_or(DeviceError::TooLarge {
                elements: bytes,
                element_bytes: 1,
            })?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("tokenyard", flags).map_err(failed("memfd_create"))?;
        ftruncate(&file, bytes as u64).map_err(|error| DeviceError::OutOfMemory {
            bytes,
            message: error.to_string(),
        })?;
        fcntl_add_seals(&file, FIXED_LENGTH | SealFlags::SEAL).map_err(failed("fcntl"))?;
        let mapping = self.map(file.as_fd(), bytes, true)?;
        let key = Key::Descriptor(file);
        Ok((mapping, Ticket { key, bytes }))
    }

    pub(in crate::backend) fn open_shared(&self, ticket: &Ticket) -> Result<Mapping, DeviceError> {
        self.check_not_capturing("an allocation")?;
        let refused = |reason: &str| DeviceError::SharedMemory {
            device: self.description(),
            bytes: ticket.bytes,
            sharing: ticket.sharing(),
            reason: reason.to_owned(),
        };
        let Key::Descriptor(file) = &ticket.key else {
            return Err(refused("an emulated device has memory files alone"));
        };
        let length = fstat(file).map_err(failed("fstat"))?.st_size;
        if ticket.bytes == 0 || usize::try_from(length) != Ok(ticket.bytes) {
            return Err(refused("the memory file has another length"));
        }
        if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(FIXED_LENGTH)) {
            return Err(refused("the length of the memory file is not fixed"));
        }
        self.map(file.as_fd(), ticket.bytes, false)
    }

    fn map(&self, file: BorrowedFd<'_>, bytes: usize, own: bool) -> Result<Mapping, DeviceError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses where, so nothing else is there.
        let pointer = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) };
        let mapping = Mapping {
            pointer: pointer.map_err(failed("mmap"))?.cast(),
            bytes,
            sharing: Sharing::Descriptor,
            own,
        };
        // SAFETY: mapped for reading and writing until `close_shared`, which first ends this.
        let adopted = unsafe { self.machine.adopt(mapping.pointer, bytes) };
        adopted.inspect_err(|_| {
            // SAFETY: nobody knows the mapping.
            let _ = unsafe { munmap(mapping.pointer.cast(), bytes) };
        })?;
        Ok(mapping)
    }

    pub(in crate::backend) unsafe fn close_shared(
        &self,
        mapping: &Mapping,
    ) -> Result<(), DeviceError> {
        // It waits for pending work, and after a fault nothing runs any more.
        let disowned = self.machine.disown(mapping.pointer);
        // SAFETY: the mapping came from `map`, and by the caller's promise nobody uses it.
        unsafe { munmap(mapping.pointer.cast(), mapping.bytes) }.map_err(failed("munmap"))?;
        Ok(disowned?)
    }
}
