//! Views of device memory: checked in the emulator, bare loads and stores in PTX.
//!
//! A kernel wraps the pointers it was given once, where their extent is known, and uses safe loads
//! and stores from there on. In PTX a view is the pointer alone, without bounds checks, since each
//! would cost a compare, a branch and a trap. The emulator checks every access against the view, the
//! allocation behind it, its lifetime and the alignment of `T`.
//!
//! Accesses through a [`GlobalView`] of a kernel parameter are `ld.global` and `st.global`; through a
//! [`SharedView`] of memory from [`shared`](crate::shared), `ld.shared` and `st.shared`: the compiler
//! knows where the pointer is from. Of one that was itself loaded from memory, or came in a struct, it
//! knows nothing, and accesses would be generic; an [`IndirectView`] says that the memory is global. A
//! `T` of [`u32x4`] moves 16 bytes per access.

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;
use crate::simd::{u32x2, u32x4};

/// Global memory to read.
#[derive(Debug)]
pub struct GlobalView<T> {
    ptr: *const T,
    len: usize,
}

/// Global memory to read and write.
#[derive(Debug)]
pub struct GlobalViewMut<T> {
    ptr: *mut T,
    len: usize,
}

/// Global memory to read, by a pointer of which the compiler cannot know that.
#[derive(Debug)]
pub struct IndirectView<T> {
    ptr: *const T,
    len: usize,
}

/// Global memory to read and write, by a pointer of which the compiler cannot know that.
#[derive(Debug)]
pub struct IndirectViewMut<T> {
    ptr: *mut T,
    len: usize,
}

/// Shared memory of the block, to read and write.
#[derive(Debug)]
pub struct SharedView<T> {
    ptr: *mut T,
    len: usize,
}

macro_rules! view {
    ($view:ident, $pointer:ty, $memory:literal, $element:ident, $read:path) => {
        impl<T> Clone for $view<T> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $view<T> {}

        impl<T: $element> $view<T> {
            #[doc = concat!("A view of `len` elements of ", $memory, " memory at `ptr`.")]
            ///
            /// # Safety
            ///
            /// For as long as the view or a copy of it is used:
            ///
            /// * `ptr` is aligned for `T` and the `len` elements from it on are valid memory of that
            #[doc = concat!("  kind (", $memory, ");")]
            /// * every index used is below `len`, every element is written before it is read, and its
            ///   bytes are a valid `T`;
            /// * two threads that access the same element, one of them writing, are ordered by a
            ///   barrier or by atomics.
            #[inline(always)]
            pub const unsafe fn new(ptr: $pointer, len: usize) -> Self {
                Self { ptr, len }
            }

            /// The number of elements.
            #[inline(always)]
            pub const fn len(self) -> usize {
                self.len
            }

            /// Whether there are no elements.
            #[inline(always)]
            pub const fn is_empty(self) -> bool {
                self.len == 0
            }

            /// The first element.
            #[inline(always)]
            pub const fn as_ptr(self) -> $pointer {
                self.ptr
            }

            /// Element `index`, which must be below [`len`](Self::len).
            #[inline(always)]
            #[track_caller]
            pub fn load(self, index: usize) -> T {
                let address = self.address(index);
                by_target! {
                    // SAFETY: by the contract of `new`, `index` is in bounds and the element valid.
                    gpu: unsafe { $read(address) },
                    // SAFETY: as above; the emulator checks it.
                    cpu: unsafe { simt::device::read(address.cast_const()) },
                }
            }

            /// The element at byte `offset`: a multiple of `T`'s alignment, at least `T`'s size before the
            /// end.
            ///
            /// For rows at a pitch in bytes: a row number times a pitch, both `u32`, is one multiply-add
            /// with the address, where an index would take a shift more.
            #[inline(always)]
            #[track_caller]
            pub fn load_at(self, offset: usize) -> T {
                let address = self.address_at(offset);
                by_target! {
                    // SAFETY: by the contract of `new`, the offset is in bounds and the element valid.
                    gpu: unsafe { $read(address) },
                    // SAFETY: as above; the emulator checks it.
                    cpu: unsafe { simt::device::read(address.cast_const()) },
                }
            }

            /// The same memory as elements of another type, of which the last may be cut off.
            ///
            /// # Safety
            ///
            /// The memory is aligned for `U`, and [`new`](Self::new)'s conditions hold for it as `U`.
            #[inline(always)]
            pub const unsafe fn cast<U>(self) -> $view<U> {
                $view {
                    ptr: self.ptr.cast(),
                    len: self.len * size_of::<T>() / size_of::<U>(),
                }
            }

            /// The elements from `start` on; none if `start` is beyond them.
            #[inline(always)]
            pub fn skip(self, start: usize) -> Self {
                Self {
                    ptr: self.ptr.wrapping_add(start),
                    len: self.len.saturating_sub(start),
                }
            }

            #[inline(always)]
            #[track_caller]
            fn address_at(self, offset: usize) -> *mut T {
                #[cfg(not(target_arch = "nvptx64"))]
                check_offset::<T>(stringify!($view), offset, self.len);
                // SAFETY: by the contract of `new`, the offset is in bounds.
                unsafe { self.ptr.cast_mut().byte_add(offset) }
            }

            #[inline(always)]
            #[track_caller]
            fn address(self, index: usize) -> *mut T {
                #[cfg(not(target_arch = "nvptx64"))]
                check_index(stringify!($view), index, self.len);
                // SAFETY: by the contract of `new`, `index` is in bounds.
                unsafe { self.ptr.cast_mut().add(index) }
            }
        }
    };
}

macro_rules! view_mut {
    ($view:ident, $element:ident, $write:path) => {
        impl<T: $element> $view<T> {
            /// Writes element `index`, which must be below [`len`](Self::len).
            #[inline(always)]
            #[track_caller]
            pub fn store(self, index: usize, value: T) {
                let address = self.address(index);
                by_target! {
                    // SAFETY: by the contract of `new`, `index` is in bounds.
                    gpu: unsafe { $write(address, value) },
                    // SAFETY: as above; the emulator checks it.
                    cpu: unsafe { simt::device::write(address, value) },
                }
            }

            /// Writes the element at byte `offset`: a multiple of `T`'s alignment, at least `T`'s size
            /// before the end.
            #[inline(always)]
            #[track_caller]
            pub fn store_at(self, offset: usize, value: T) {
                let address = self.address_at(offset);
                by_target! {
                    // SAFETY: by the contract of `new`, the offset is in bounds.
                    gpu: unsafe { $write(address, value) },
                    // SAFETY: as above; the emulator checks it.
                    cpu: unsafe { simt::device::write(address, value) },
                }
            }
        }
    };
}

view!(GlobalView, *const T, "global", Copy, core::ptr::read);
view!(GlobalViewMut, *mut T, "global", Copy, core::ptr::read);
view!(IndirectView, *const T, "global", Word, Word::load_global);
view!(IndirectViewMut, *mut T, "global", Word, Word::load_global);
view!(SharedView, *mut T, "shared", Copy, core::ptr::read);
view_mut!(GlobalViewMut, Copy, core::ptr::write);
view_mut!(IndirectViewMut, Word, Word::store_global);
view_mut!(SharedView, Copy, core::ptr::write);

/// `cast_mut` for pointers that are mutable already, so that one macro serves all views.
trait CastMut<T> {
    fn cast_mut(self) -> *mut T;
}

impl<T> CastMut<T> for *mut T {
    #[inline(always)]
    fn cast_mut(self) -> *mut T {
        self
    }
}

#[cfg(not(target_arch = "nvptx64"))]
#[track_caller]
fn check_index(view: &str, index: usize, len: usize) {
    if index >= len {
        simt::device::trap(&std::format!(
            "index {index} is out of range for a {view} of {len} elements"
        ));
    }
}

#[cfg(not(target_arch = "nvptx64"))]
#[track_caller]
fn check_offset<T>(view: &str, offset: usize, len: usize) {
    let bytes = len * size_of::<T>();
    if offset > bytes || bytes - offset < size_of::<T>() {
        simt::device::trap(&std::format!(
            "offset {offset} is out of range for a {view} of {bytes} bytes"
        ));
    }
}

impl<T: Streamed> GlobalView<T> {
    /// Element `index` of data that is read once.
    ///
    /// PTX `ld.global.nc.L1::no_allocate`, any target, PTX 7.4: through the read-only path, without
    /// displacing other lines of the L1 cache. `index` must be below [`len`](Self::len), and nobody
    /// may write the element during the launch.
    #[inline(always)]
    #[track_caller]
    pub fn load_streaming(self, index: usize) -> T {
        let address = self.address(index);
        by_target! {
            // SAFETY: by the contract of `new`, `index` is in bounds and the element valid.
            gpu: unsafe { T::load_streaming(address) },
            // SAFETY: as above; the emulator checks it.
            cpu: unsafe { simt::device::read(address.cast_const()) },
        }
    }
}

impl<T: Streamed> GlobalViewMut<T> {
    /// Writes element `index` of data that is not read again soon.
    ///
    /// PTX `st.global.cs`, any target: the line is the first to leave the caches. `index` must be
    /// below [`len`](Self::len).
    #[inline(always)]
    #[track_caller]
    pub fn store_streaming(self, index: usize, value: T) {
        let address = self.address(index);
        by_target! {
            // SAFETY: by the contract of `new`, `index` is in bounds.
            gpu: unsafe { T::store_streaming(address, value) },
            // SAFETY: as above; the emulator checks it.
            cpu: unsafe { simt::device::write(address, value) },
        }
    }
}

/// A type with streaming accesses: [`u32`], [`u32x2`], [`u32x4`].
pub trait Streamed: Copy + sealed::Sealed {
    /// # Safety
    ///
    /// As for [`core::ptr::read`], in global memory that nobody writes during the launch.
    #[doc(hidden)]
    #[cfg(target_arch = "nvptx64")]
    unsafe fn load_streaming(ptr: *const Self) -> Self;

    /// # Safety
    ///
    /// As for [`core::ptr::write`], in global memory.
    #[doc(hidden)]
    #[cfg(target_arch = "nvptx64")]
    unsafe fn store_streaming(ptr: *mut Self, value: Self);
}

/// What one access moves: 1, 2, 4, 8 or 16 bytes.
pub trait Word: Copy + sealed::Sealed {
    /// # Safety
    ///
    /// As for [`core::ptr::read`], in global memory.
    #[doc(hidden)]
    #[cfg(target_arch = "nvptx64")]
    unsafe fn load_global(ptr: *const Self) -> Self;

    /// # Safety
    ///
    /// As for [`core::ptr::write`], in global memory.
    #[doc(hidden)]
    #[cfg(target_arch = "nvptx64")]
    unsafe fn store_global(ptr: *mut Self, value: Self);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! streamed {
    ($($ty:ty, $load:ident, $store:ident;)*) => {$(
        impl Streamed for $ty {
            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            unsafe fn load_streaming(ptr: *const Self) -> Self {
                // SAFETY: forwarded to the caller.
                unsafe { ptx::$load(ptr) }
            }

            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            unsafe fn store_streaming(ptr: *mut Self, value: Self) {
                // SAFETY: forwarded to the caller.
                unsafe { ptx::$store(ptr, value) }
            }
        }
    )*};
}

streamed! {
    u32, ld_global_nc_b32, st_global_cs_b32;
    u32x2, ld_global_nc_v2_b32, st_global_cs_v2_b32;
    u32x4, ld_global_nc_v4_b32, st_global_cs_v4_b32;
}

macro_rules! words {
    ($($ty:ty, $load:ident, $store:ident, $from_bits:expr, $to_bits:expr;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl Word for $ty {
            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            unsafe fn load_global(ptr: *const Self) -> Self {
                // SAFETY: forwarded to the caller.
                $from_bits(unsafe { ptx::$load(ptr.cast()) })
            }

            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            unsafe fn store_global(ptr: *mut Self, value: Self) {
                // SAFETY: forwarded to the caller.
                unsafe { ptx::$store(ptr.cast(), $to_bits(value)) }
            }
        }
    )*};
}

words! {
    u8, ld_global_b8, st_global_b8, |bits| bits, |value| value;
    u16, ld_global_b16, st_global_b16, |bits| bits, |value| value;
    u32, ld_global_b32, st_global_b32, |bits| bits, |value| value;
    i32, ld_global_b32, st_global_b32, |bits: u32| bits as i32, |value: i32| value as u32;
    f32, ld_global_b32, st_global_b32, f32::from_bits, f32::to_bits;
    u64, ld_global_b64, st_global_b64, |bits| bits, |value| value;
    u32x2, ld_global_v2_b32, st_global_v2_b32, |bits| bits, |value| value;
    u32x4, ld_global_v4_b32, st_global_v4_b32, |bits| bits, |value| value;
}
