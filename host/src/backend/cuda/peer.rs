//! Memory of a GPU that several processes use, or several GPUs.

use super::{CudaBackend, CudaError, driver_error, out_of_memory, outside_captures};
use crate::backend::Mapping;
use crate::error::DeviceError;
use crate::peer::{Key, LEGACY_BYTES, Sharing, Ticket};
use cust::sys;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What legacy allocations are made in multiples of. The driver puts smaller ones into a common block, all of which
/// a process that opens one of them would get.
const LEGACY_GRANULARITY: usize = 2 << 20;

const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

impl CudaBackend {
    fn location(&self) -> sys::CUmemLocation {
        sys::CUmemLocation {
            type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.device.as_raw(),
        }
    }

    /// Lets kernels of this GPU use the memory of another one. False if there is no path.
    pub(in crate::backend) fn reach(&self, other: &Self) -> Result<bool, DeviceError> {
        if self.device.as_raw() == other.device.as_raw() {
            return Ok(true);
        }
        let mut possible = 0;
        // SAFETY: the answer is written before the call returns.
        unsafe {
            driver!(cuDeviceCanAccessPeer(
                &mut possible,
                self.device.as_raw(),
                other.device.as_raw()
            ))?;
        }
        if possible == 0 {
            return Ok(false);
        }
        self.enter()?;
        // SAFETY: the other context lives as long as its backend, and primary contexts longer.
        match unsafe { driver!(cuCtxEnablePeerAccess(other.context.as_raw(), 0)) } {
            Err(DeviceError::Driver { code, .. })
                if code == CudaError::PeerAccessAlreadyEnabled as u32 =>
            {
                Ok(true)
            }
            enabled => enabled.map(|()| true),
        }
    }

    /// Memory of this GPU that can be exported as a descriptor.
    fn allocation(&self) -> sys::CUmemAllocationProp {
        sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: DESCRIPTOR,
            location: self.location(),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1::default(),
        }
    }

    pub(in crate::backend) fn can_share(&self, sharing: Sharing) -> Result<bool, DeviceError> {
        use sys::CUdevice_attribute_enum as Attribute;
        let attribute = match sharing {
            Sharing::LegacyIpc => Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
            Sharing::Descriptor => {
                Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            }
        };
        let mut value = 0;
        // SAFETY: the value is written before the call returns.
        unsafe {
            driver!(cuDeviceGetAttribute(
                &mut value,
                attribute,
                self.device.as_raw()
            ))?;
        }
        Ok(value != 0)
    }

    pub(in crate::backend) fn alloc_shared(
        &self,
        bytes: usize,
        sharing: Sharing,
    ) -> Result<(Mapping, Ticket), DeviceError> {
        match sharing {
            Sharing::Descriptor => self.alloc_virtual(bytes),
            Sharing::LegacyIpc => self.alloc_legacy(bytes),
        }
    }

    pub(in crate::backend) fn open_shared(&self, ticket: &Ticket) -> Result<Mapping, DeviceError> {
        let _guard = outside_captures("an allocation")?;
        self.enter()?;
        match &ticket.key {
            Key::Descriptor(descriptor) => {
                let raw = descriptor.as_raw_fd() as usize as *mut c_void;
                let mut handle = 0;
                // SAFETY: the handle is written before the call returns; a descriptor is passed by value, and stays
                // the caller's.
                unsafe { driver!(cuMemImportFromShareableHandle(&mut handle, raw, DESCRIPTOR))? };
                self.map_and_release(handle, ticket.bytes, false)
            }
            Key::LegacyIpc(bytes) => {
                let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
                for (to, from) in handle.reserved.iter_mut().zip(bytes) {
                    *to = from.cast_signed();
                }
                // Makes the one GPU reach the other, if they are two.
                let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
                let mut pointer = 0;
                // SAFETY: the pointer is written before the call returns.
                unsafe { driver!(cuIpcOpenMemHandle_v2(&mut pointer, handle, flags))? };
                Ok(Mapping {
                    pointer: pointer as *mut u8,
                    bytes: ticket.bytes,
                    sharing: Sharing::LegacyIpc,
                    own: false,
                })
            }
        }
    }

    fn alloc_virtual(&self, bytes: usize) -> Result<(Mapping, Ticket), DeviceError> {
        let _guard = outside_captures("an allocation")?;
        self.enter()?;
        let allocation = self.allocation();
        let (mut granularity, mut handle) = (0, 0);
        let smallest = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the granularity is written before the call returns.
        unsafe {
            driver!(cuMemGetAllocationGranularity(
                &mut granularity,
                &allocation,
                smallest
            ))?;
        }
        let bytes = whole(bytes, granularity)?;
        // SAFETY: the handle is written before the call returns.
        unsafe { driver!(cuMemCreate(&mut handle, bytes, &allocation, 0)) }
            .map_err(out_of_memory(bytes))?;
        let mut descriptor: c_int = -1;
        let to: *mut c_int = &mut descriptor;
        // SAFETY: a descriptor is written to the place given.
        let exported = unsafe {
            driver!(cuMemExportToShareableHandle(
                to.cast(),
                handle,
                DESCRIPTOR,
                0
            ))
        };
        if let Err(error) = exported {
            // SAFETY: the handle came from `cuMemCreate` and is not used again.
            let _ = unsafe { driver!(cuMemRelease(handle)) };
            return Err(error);
        }
        // SAFETY: the driver has made the descriptor for this call's caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let mapping = self.map_and_release(handle, bytes, true)?;
        let key = Key::Descriptor(descriptor);
        Ok((mapping, Ticket { key, bytes }))
    }

    /// Maps an allocation for this GPU, and gives the handle back: the mapping keeps the memory.
    fn map_and_release(
        &self,
        handle: sys::CUmemGenericAllocationHandle,
        bytes: usize,
        own: bool,
    ) -> Result<Mapping, DeviceError> {
        let access = sys::CUmemAccessDesc {
            location: self.location(),
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let mut address = 0;
        // SAFETY: the address is written before the call returns. What was done before a failure is undone; the
        // range is this call's own until it succeeds.
        let mapped = unsafe {
            driver!(cuMemAddressReserve(&mut address, bytes, 0, 0, 0)).and_then(|()| {
                driver!(cuMemMap(address, bytes, 0, handle, 0))
                    .and_then(|()| {
                        driver!(cuMemSetAccess(address, bytes, &access, 1)).inspect_err(|_| {
                            let _ = driver!(cuMemUnmap(address, bytes));
                        })
                    })
                    .inspect_err(|_| {
                        let _ = driver!(cuMemAddressFree(address, bytes));
                    })
            })
        };
        // SAFETY: the handle is the caller's to give away, and not used again.
        let released = unsafe { driver!(cuMemRelease(handle)) };
        mapped?;
        let mapping = Mapping {
            pointer: address as *mut u8,
            bytes,
            sharing: Sharing::Descriptor,
            own,
        };
        released.inspect_err(|_| {
            // SAFETY: nobody knows the mapping.
            let _ = unsafe { self.close_shared(&mapping) };
        })?;
        Ok(mapping)
    }

    fn alloc_legacy(&self, bytes: usize) -> Result<(Mapping, Ticket), DeviceError> {
        let bytes = whole(bytes, LEGACY_GRANULARITY)?;
        let mapping = Mapping {
            pointer: self.alloc(bytes)?,
            bytes,
            sharing: Sharing::LegacyIpc,
            own: true,
        };
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the handle is written before the call returns.
        let named = unsafe { driver!(cuIpcGetMemHandle(&mut handle, mapping.pointer as u64)) };
        named.inspect_err(|_| {
            // SAFETY: nobody knows the memory.
            let _ = unsafe { self.close_shared(&mapping) };
        })?;
        let mut bytes_of_handle = [0; LEGACY_BYTES];
        for (to, from) in bytes_of_handle.iter_mut().zip(handle.reserved) {
            *to = from.cast_unsigned();
        }
        let key = Key::LegacyIpc(bytes_of_handle);
        Ok((mapping, Ticket { key, bytes }))
    }

    pub(in crate::backend) unsafe fn close_shared(
        &self,
        mapping: &Mapping,
    ) -> Result<(), DeviceError> {
        let address = mapping.pointer as u64;
        let Mapping {
            bytes,
            sharing,
            own,
            ..
        } = *mapping;
        if sharing == Sharing::LegacyIpc && own {
            // SAFETY: the caller's obligation.
            return unsafe { self.free(mapping.pointer) };
        }
        let _guard = outside_captures("freeing memory")?;
        self.enter()?;
        // SAFETY: the caller's obligation. Work that failed does not use the memory any more, so it is given back
        // whatever the first call says.
        unsafe {
            let waited = driver!(cuCtxSynchronize());
            if sharing == Sharing::LegacyIpc {
                driver!(cuIpcCloseMemHandle(address))?;
            } else {
                driver!(cuMemUnmap(address, bytes))?;
                driver!(cuMemAddressFree(address, bytes))?;
            }
            waited
        }
    }
}

/// Bytes in whole units.
fn whole(bytes: usize, unit: usize) -> Result<usize, DeviceError> {
    let whole = bytes.max(1).checked_next_multiple_of(unit.max(1));
    whole.ok_or(DeviceError::TooLarge {
        elements: bytes,
        element_bytes: 1,
    })
}
