//! Address spaces of pointers.
//!
//! Rust's pointers are generic: an address says by its range which memory it means. PTX also has
//! addresses that count within one space.

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;

/// The memories of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressSpace {
    /// Memory that all threads read and write.
    Global,
    /// Memory that the threads of one block read and write.
    Shared,
    /// Memory that all threads read.
    Constant,
    /// Memory of a single thread.
    Local,
}

/// Whether a generic pointer points into an address space.
///
/// PTX `isspacep`, any target. Of the emulator's memory, the thread's stack is local and nothing is
/// constant.
///
/// # Safety
///
/// `ptr` is valid for a `T`.
#[inline(always)]
pub unsafe fn is_in_address_space<T>(ptr: *const T, address_space: AddressSpace) -> bool {
    let ptr = ptr.cast::<u8>();
    by_target! {
        gpu: match address_space {
            AddressSpace::Global => ptx::isspacep_global(ptr),
            AddressSpace::Shared => ptx::isspacep_shared(ptr),
            AddressSpace::Constant => ptx::isspacep_const(ptr),
            AddressSpace::Local => ptx::isspacep_local(ptr),
        },
        cpu: match address_space {
            AddressSpace::Global => simt::device::is_global(ptr),
            AddressSpace::Shared => simt::device::is_shared(ptr),
            AddressSpace::Constant => false,
            AddressSpace::Local => !simt::device::is_global(ptr) && !simt::device::is_shared(ptr),
        },
    }
}

/// The address within `address_space` of what a generic pointer points to.
///
/// PTX `cvta.to`, any target. The result is for instructions of that space alone and must not be
/// dereferenced. The emulator has one kind of address and returns `ptr`.
///
/// # Safety
///
/// `ptr` is valid for a `T` and points into `address_space`.
#[inline(always)]
pub unsafe fn convert_generic_to_specific_address_space<T>(
    ptr: *const T,
    address_space: AddressSpace,
) -> *const T {
    by_target! {
        gpu: {
            let ptr = ptr.cast();
            match address_space {
                AddressSpace::Global => ptx::cvta_to_global(ptr),
                AddressSpace::Shared => ptx::cvta_to_shared(ptr),
                AddressSpace::Constant => ptx::cvta_to_const(ptr),
                AddressSpace::Local => ptx::cvta_to_local(ptr),
            }
            .cast()
        },
        cpu: {
            let _ = address_space;
            ptr
        },
    }
}

/// The generic pointer to an address within `address_space`.
///
/// PTX `cvta`, any target. The emulator has one kind of address and returns `ptr`.
///
/// # Safety
///
/// `ptr` is an address within `address_space` that is valid for a `T`.
#[inline(always)]
pub unsafe fn convert_specific_address_space_to_generic<T>(
    ptr: *const T,
    address_space: AddressSpace,
) -> *const T {
    by_target! {
        gpu: {
            let ptr = ptr.cast();
            match address_space {
                AddressSpace::Global => ptx::cvta_global(ptr),
                AddressSpace::Shared => ptx::cvta_shared(ptr),
                AddressSpace::Constant => ptx::cvta_const(ptr),
                AddressSpace::Local => ptx::cvta_local(ptr),
            }
            .cast()
        },
        cpu: {
            let _ = address_space;
            ptr
        },
    }
}
