//! Checked memory, and the block's shared memory.

use std::panic::Location;

use crate::context::{self, Next};
use crate::fault::FaultKind;
use crate::geometry::MAX_SHARED_BYTES;
use crate::shared::StaticError;

/// How memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// An ordinary load.
    Read,
    /// An ordinary store.
    Write,
    /// An atomic operation of any kind.
    Atomic,
}

/// The block's dynamic shared memory, aligned to 1024. Poisoned with a pattern that depends on the seed and
/// has no zero byte.
pub fn dynamic_shared() -> *mut u8 {
    context::peek(|engine, id| engine.blocks[engine.fibers[id].block].shared.dynamic().0)
}

/// Bytes of [`dynamic_shared`], as given at launch.
pub fn dynamic_shared_bytes() -> usize {
    context::peek(|engine, id| engine.blocks[engine.fibers[id].block].shared.dynamic().1)
}

/// The block's static shared array `site`: `bytes` bytes aligned to `align` (a power of two up to 1024),
/// poisoned. All threads of a block get the same array for the same site, whoever asks first. Arrays of
/// different sites do not overlap, and neither do arrays of one site that differ in size or alignment, as
/// instances of generic code may.
///
/// Faults where the block's arrays exceed [`MAX_SHARED_BYTES`], and where the alignment is not possible.
#[track_caller]
pub fn static_shared(site: usize, bytes: usize, align: usize) -> *mut u8 {
    let location = Location::caller();
    let mut array = std::ptr::null_mut();
    context::act(|engine, id| {
        let slot = engine.fibers[id].block;
        let message = match engine.blocks[slot].shared.static_array(site, bytes, align) {
            Ok(found) => {
                array = found;
                return Next::Continue;
            }
            Err(StaticError::Exceeds(total)) => {
                format!(
                    "the block needs {total} bytes of shared memory, at most {MAX_SHARED_BYTES} exist"
                )
            }
            Err(StaticError::Alignment) => {
                format!(
                    "a static shared array cannot be aligned to {align}: powers of two up to 1024 can"
                )
            }
        };
        engine.fail(id, FaultKind::SharedMemoryExceeded, location, message)
    });
    array
}

/// Checked load: the value must lie in a live allocation of the machine, in the block's shared memory or on
/// the thread's own stack, and be aligned for `T`. Otherwise the thread faults and does not go on.
///
/// May be preempted before the load (see [`crate::Config::preempt_every`]).
///
/// # Safety
/// The memory, where it passes the check, must hold a valid `T`.
#[inline]
#[track_caller]
pub unsafe fn read<T: Copy>(ptr: *const T) -> T {
    check(ptr.cast(), size_of::<T>(), align_of::<T>(), Access::Read);
    // SAFETY: the check has shown that the pointer is aligned and valid; the value is the caller's promise.
    unsafe { ptr.read() }
}

/// Checked store, as [`read`]. A store to shared memory is remembered until the thread's next
/// [`super::fence_proxy_async`].
///
/// # Safety
/// No reference may exist to the memory.
#[inline]
#[track_caller]
pub unsafe fn write<T: Copy>(ptr: *mut T, value: T) {
    check(ptr.cast(), size_of::<T>(), align_of::<T>(), Access::Write);
    // SAFETY: the check has shown that the pointer is aligned and valid for writes; references are the
    // caller's promise.
    unsafe { ptr.write(value) };
}

/// The check of [`read()`] and [`write()`] for `bytes` bytes at a multiple of `align` (not zero), for accesses
/// that the caller makes itself, right after.
#[track_caller]
pub fn check(ptr: *const u8, bytes: usize, align: usize, access: Access) {
    let location = Location::caller();
    let range = (ptr.addr(), bytes, align);
    context::act(|engine, id| engine.access(id, range, access, location));
}

/// Whether the address is in an array of the block's shared memory.
pub fn is_shared(ptr: *const u8) -> bool {
    context::peek(|engine, id| {
        engine.blocks[engine.fibers[id].block]
            .shared
            .offset_of(ptr.addr(), 1)
            .is_some()
    })
}

/// Whether the address is in a live allocation of the machine.
pub fn is_global(ptr: *const u8) -> bool {
    context::with(|engine, _| engine.memory.contains(ptr.addr(), 1))
}
