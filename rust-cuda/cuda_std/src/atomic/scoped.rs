//! Atomic operations with the scope in the type and the ordering in the call.
//!
//! ```no_run
//! use cuda_std::atomic::scoped::{Acquire, Atomic, Device, Release};
//! use cuda_std::thread;
//!
//! # let (flag, producers) = (core::ptr::null_mut::<u32>(), 4);
//! let ready = unsafe { Atomic::<u32, Device>::from_ptr(flag) };
//! // Each producer, once its data is written:
//! ready.fetch_add(1, Release);
//! // The consumer, before it reads them:
//! while ready.load(Acquire) < producers {
//!     thread::nanosleep(100);
//! }
//! ```
//!
//! The scope says among which threads an operation is atomic and ordered: [`Block`], [`Device`] or
//! [`System`] (other devices and the host too). An ordering that an operation cannot have does not
//! compile. Each operation is one PTX instruction with `.sem` and `.scope` spelled out, compute
//! capability 7.0, PTX 6.0; with [`SeqCst`] a `fence.sc` of the same scope precedes it.
//!
//! `core::sync::atomic` compiles for `nvptx64` but is not to be used for synchronisation: the backend
//! drops the ordering of its read-modify-writes.

use core::marker::PhantomData;

#[cfg(target_arch = "nvptx64")]
use crate::intrinsics::ptx;

/// The orderings PTX has.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

/// The scopes PTX has, clusters left out.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Block,
    Device,
    System,
}

/// What an instruction says of where its operand is.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    Generic,
    Global,
}

/// Which memory an atomic is in.
pub trait Memory: Copy + sealed::Sealed {
    #[doc(hidden)]
    const SPACE: Space;
}

/// Among which threads an operation is atomic and ordered.
pub trait Scope: Copy + sealed::Sealed {
    #[doc(hidden)]
    const REACH: Reach;
}

/// An ordering of any atomic operation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an ordering of scoped atomics",
    note = "the orderings are `Relaxed`, `Acquire`, `Release`, `AcqRel` and `SeqCst` of `cuda_std::atomic::scoped`"
)]
pub trait Ordering: Copy + sealed::Sealed {
    #[doc(hidden)]
    const ORDER: Order;
    /// Whether a `fence.sc` comes first.
    #[doc(hidden)]
    const SEQUENTIAL: bool = false;
}

/// An ordering a load can have: [`Relaxed`], [`Acquire`], [`SeqCst`].
#[diagnostic::on_unimplemented(
    message = "a load cannot have the ordering `{Self}`",
    note = "the orderings of a load are `Relaxed`, `Acquire` and `SeqCst`"
)]
pub trait LoadOrdering: Ordering {
    #[doc(hidden)]
    const LOAD: Order = Self::ORDER;
}

/// An ordering a store can have: [`Relaxed`], [`Release`], [`SeqCst`].
#[diagnostic::on_unimplemented(
    message = "a store cannot have the ordering `{Self}`",
    note = "the orderings of a store are `Relaxed`, `Release` and `SeqCst`"
)]
pub trait StoreOrdering: Ordering {
    #[doc(hidden)]
    const STORE: Order = Self::ORDER;
}

macro_rules! markers {
    ($($(#[$doc:meta])* $name:ident: $($trait:ident { $($item:tt)* })*;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        $(
            #[diagnostic::do_not_recommend]
            impl $trait for $name { $($item)* }
        )*
    )*};
}

markers! {
    /// The threads of the block. PTX `.cta`.
    Block: Scope { const REACH: Reach = Reach::Block; };
    /// The threads of the device. PTX `.gpu`.
    Device: Scope { const REACH: Reach = Reach::Device; };
    /// The threads of all devices and of the host. PTX `.sys`.
    System: Scope { const REACH: Reach = Reach::System; };
    /// Global or shared memory: the address says which.
    Generic: Memory { const SPACE: Space = Space::Generic; };
    /// Global memory. PTX `.global`.
    Global: Memory { const SPACE: Space = Space::Global; };
    /// Atomic, but orders nothing else.
    Relaxed: Ordering { const ORDER: Order = Order::Relaxed; } LoadOrdering {} StoreOrdering {};
    /// What follows comes after the write this reads.
    Acquire: Ordering { const ORDER: Order = Order::Acquire; } LoadOrdering {};
    /// What precedes comes before whoever reads this.
    Release: Ordering { const ORDER: Order = Order::Release; } StoreOrdering {};
    /// Both.
    AcqRel: Ordering { const ORDER: Order = Order::AcqRel; };
    /// Both, and one order of all such operations that all threads agree on.
    SeqCst: Ordering { const ORDER: Order = Order::AcqRel; const SEQUENTIAL: bool = true; }
        LoadOrdering { const LOAD: Order = Order::Acquire; }
        StoreOrdering { const STORE: Order = Order::Release; };
}

/// An atomic in global or shared memory, `T` one of `u32`, `i32`, `u64`, `i64`, `f32`, `f64`.
///
/// It is a pointer; copies of it name the same memory. If the type says that the memory is [`Global`], so do the
/// instructions.
#[derive(Debug)]
pub struct Atomic<T, S, M = Generic> {
    ptr: *mut T,
    kind: PhantomData<(S, M)>,
}

impl<T, S, M> Clone for Atomic<T, S, M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, S, M> Copy for Atomic<T, S, M> {}

impl<T: AtomicValue, S: Scope> Atomic<T, S> {
    /// The atomic at `ptr`.
    ///
    /// # Safety
    ///
    /// For as long as the result or a copy of it is used:
    ///
    /// * `ptr` is valid for reading and writing, aligned to the size of `T`, in global or shared
    ///   memory (not on a thread's stack);
    /// * while threads may meet at it, all of them use atomic operations, of a scope that includes
    ///   all of them.
    #[inline(always)]
    pub const unsafe fn from_ptr(ptr: *mut T) -> Self {
        Self {
            ptr,
            kind: PhantomData,
        }
    }
}

impl<T: AtomicValue, S: Scope> Atomic<T, S, Global> {
    /// The atomic at `ptr`, in global memory.
    ///
    /// # Safety
    ///
    /// As for [`Atomic::from_ptr`], and the memory is global.
    #[inline(always)]
    pub const unsafe fn from_global_ptr(ptr: *mut T) -> Self {
        Self {
            ptr,
            kind: PhantomData,
        }
    }
}

impl<T: AtomicValue, S: Scope, M: Memory> Atomic<T, S, M> {
    /// The value. PTX `ld.SEM.SCOPE`.
    #[inline(always)]
    #[track_caller]
    pub fn load<O: LoadOrdering>(self, _order: O) -> T {
        Self::fence_if_sequential::<O>();
        // SAFETY: by the contract of `from_ptr`.
        unsafe { T::load(self.ptr, O::LOAD, S::REACH, M::SPACE) }
    }

    /// Writes `value`. PTX `st.SEM.SCOPE`.
    #[inline(always)]
    #[track_caller]
    pub fn store<O: StoreOrdering>(self, value: T, _order: O) {
        Self::fence_if_sequential::<O>();
        // SAFETY: by the contract of `from_ptr`.
        unsafe { T::store(self.ptr, value, O::STORE, S::REACH, M::SPACE) }
    }

    /// Writes `value` and returns the value before. PTX `atom.SEM.SCOPE.exch`.
    #[inline(always)]
    #[track_caller]
    pub fn swap<O: Ordering>(self, value: T, _order: O) -> T {
        Self::fence_if_sequential::<O>();
        // SAFETY: by the contract of `from_ptr`.
        unsafe { T::swap(self.ptr, value, O::ORDER, S::REACH, M::SPACE) }
    }

    /// Writes `new` if the value's bits are those of `current`; returns the value before, as `Ok` if
    /// it wrote. PTX `atom.SEM.SCOPE.cas`; never fails spuriously.
    ///
    /// # Errors
    ///
    /// The value that was there in place of `current`.
    #[inline(always)]
    #[track_caller]
    pub fn compare_exchange<O: Ordering>(self, current: T, new: T, _order: O) -> Result<T, T> {
        Self::fence_if_sequential::<O>();
        // SAFETY: by the contract of `from_ptr`.
        unsafe { T::compare_exchange(self.ptr, current, new, O::ORDER, S::REACH, M::SPACE) }
    }

    /// Adds `value`, integers wrapping around, and returns the value before. PTX
    /// `atom.SEM.SCOPE.add`; floats round to nearest, and FP32 in global memory flushes subnormals.
    #[inline(always)]
    #[track_caller]
    pub fn fetch_add<O: Ordering>(self, value: T, _order: O) -> T {
        Self::fence_if_sequential::<O>();
        // SAFETY: by the contract of `from_ptr`.
        unsafe { T::fetch_add(self.ptr, value, O::ORDER, S::REACH, M::SPACE) }
    }

    #[inline(always)]
    fn fence_if_sequential<O: Ordering>() {
        #[cfg(target_arch = "nvptx64")]
        if O::SEQUENTIAL {
            ptx::fence_sc(S::REACH);
        }
    }
}

macro_rules! integer_operations {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        impl<T: AtomicInteger, S: Scope, M: Memory> Atomic<T, S, M> {$(
            $(#[$doc])*
            #[inline(always)]
            #[track_caller]
            pub fn $name<O: Ordering>(self, value: T, _order: O) -> T {
                Self::fence_if_sequential::<O>();
                // SAFETY: by the contract of `from_ptr`.
                unsafe { T::$name(self.ptr, value, O::ORDER, S::REACH, M::SPACE) }
            }
        )*}

        /// An integer that lives in an [`Atomic`].
        pub trait AtomicInteger: AtomicValue {$(
            /// # Safety
            ///
            /// The contract of [`Atomic::from_ptr`].
            #[doc(hidden)]
            #[track_caller]
            unsafe fn $name(ptr: *mut Self, value: Self, order: Order, reach: Reach, space: Space) -> Self;
        )*}
    };
}

integer_operations! {
    /// Writes the lesser of value and `value`, returns the value before. PTX `atom.SEM.SCOPE.min`.
    fetch_min;
    /// Writes the greater of value and `value`, returns the value before. PTX `atom.SEM.SCOPE.max`.
    fetch_max;
    /// Writes the bitwise AND, returns the value before. PTX `atom.SEM.SCOPE.and`.
    fetch_and;
    /// Writes the bitwise OR, returns the value before. PTX `atom.SEM.SCOPE.or`.
    fetch_or;
    /// Writes the bitwise XOR, returns the value before. PTX `atom.SEM.SCOPE.xor`.
    fetch_xor;
}

/// A value that lives in an [`Atomic`].
#[allow(missing_docs)]
pub trait AtomicValue: Copy + sealed::Sealed {
    /// # Safety
    ///
    /// The contract of [`Atomic::from_ptr`].
    #[doc(hidden)]
    #[track_caller]
    unsafe fn load(ptr: *mut Self, order: Order, reach: Reach, space: Space) -> Self;

    /// # Safety
    ///
    /// The contract of [`Atomic::from_ptr`].
    #[doc(hidden)]
    #[track_caller]
    unsafe fn store(ptr: *mut Self, value: Self, order: Order, reach: Reach, space: Space);

    /// # Safety
    ///
    /// The contract of [`Atomic::from_ptr`].
    #[doc(hidden)]
    #[track_caller]
    unsafe fn swap(ptr: *mut Self, value: Self, order: Order, reach: Reach, space: Space) -> Self;

    /// # Safety
    ///
    /// The contract of [`Atomic::from_ptr`].
    #[doc(hidden)]
    #[track_caller]
    unsafe fn compare_exchange(
        ptr: *mut Self,
        current: Self,
        new: Self,
        order: Order,
        reach: Reach,
        space: Space,
    ) -> Result<Self, Self>;

    /// # Safety
    ///
    /// The contract of [`Atomic::from_ptr`].
    #[doc(hidden)]
    #[track_caller]
    unsafe fn fetch_add(
        ptr: *mut Self,
        value: Self,
        order: Order,
        reach: Reach,
        space: Space,
    ) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

/// `$ty` is accessed as `$bits`; `$add` and the integer operations have types of their own.
macro_rules! atomic_value {
    ($($ty:ty as $bits:ident, $to_bits:expr, $from_bits:expr, $emulated_add:expr;
        $ld:ident $st:ident $exch:ident $cas:ident $add:ident as $add_ty:ty;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl AtomicValue for $ty {
            #[inline(always)]
            #[track_caller]
            unsafe fn load(ptr: *mut Self, order: Order, reach: Reach, space: Space) -> Self {
                let bits = by_target! {
                    // SAFETY: forwarded to the caller.
                    gpu: unsafe { ptx::$ld(ptr.cast(), order, reach, space) },
                    cpu: {
                        let _ = (order, reach, space);
                        // SAFETY: forwarded to the caller.
                        unsafe { emulated::$bits::load(ptr.cast()) }
                    },
                };
                $from_bits(bits)
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn store(ptr: *mut Self, value: Self, order: Order, reach: Reach, space: Space) {
                let bits: $bits = $to_bits(value);
                by_target! {
                    // SAFETY: forwarded to the caller.
                    gpu: unsafe { ptx::$st(ptr.cast(), bits, order, reach, space) },
                    cpu: {
                        let _ = (order, reach, space);
                        // SAFETY: forwarded to the caller.
                        unsafe { emulated::$bits::update(ptr.cast(), |_| bits) };
                    },
                }
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn swap(ptr: *mut Self, value: Self, order: Order, reach: Reach, space: Space) -> Self {
                let bits: $bits = $to_bits(value);
                let before = by_target! {
                    // SAFETY: forwarded to the caller.
                    gpu: unsafe { ptx::$exch(ptr.cast(), bits, order, reach, space) },
                    cpu: {
                        let _ = (order, reach, space);
                        // SAFETY: forwarded to the caller.
                        unsafe { emulated::$bits::update(ptr.cast(), |_| bits) }
                    },
                };
                $from_bits(before)
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn compare_exchange(
                ptr: *mut Self,
                current: Self,
                new: Self,
                order: Order,
                reach: Reach,
                space: Space,
            ) -> Result<Self, Self> {
                let (current, new): ($bits, $bits) = ($to_bits(current), $to_bits(new));
                let before = by_target! {
                    // SAFETY: forwarded to the caller.
                    gpu: unsafe { ptx::$cas(ptr.cast(), current, new, order, reach, space) },
                    cpu: {
                        let _ = (order, reach, space);
                        // SAFETY: forwarded to the caller.
                        unsafe { emulated::$bits::compare_exchange(ptr.cast(), current, new) }
                    },
                };
                if before == current {
                    Ok($from_bits(before))
                } else {
                    Err($from_bits(before))
                }
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn fetch_add(ptr: *mut Self, value: Self, order: Order, reach: Reach, space: Space) -> Self {
                by_target! {
                    // SAFETY: forwarded to the caller.
                    gpu: unsafe { ptx::$add(ptr.cast(), value as $add_ty, order, reach, space) as $ty },
                    cpu: {
                        let _ = (order, reach, space);
                        let add = |bits| $to_bits($emulated_add($from_bits(bits), value));
                        // SAFETY: forwarded to the caller.
                        $from_bits(unsafe { emulated::$bits::update(ptr.cast(), add) })
                    },
                }
            }
        }
    )*};
}

atomic_value! {
    u32 as u32, |v: u32| v, |b: u32| b, u32::wrapping_add;
        ld_b32 st_b32 atom_exch_b32 atom_cas_b32 atom_add_u32 as u32;
    i32 as u32, |v: i32| v as u32, |b: u32| b as i32, i32::wrapping_add;
        ld_b32 st_b32 atom_exch_b32 atom_cas_b32 atom_add_u32 as u32;
    u64 as u64, |v: u64| v, |b: u64| b, u64::wrapping_add;
        ld_b64 st_b64 atom_exch_b64 atom_cas_b64 atom_add_u64 as u64;
    i64 as u64, |v: i64| v as u64, |b: u64| b as i64, i64::wrapping_add;
        ld_b64 st_b64 atom_exch_b64 atom_cas_b64 atom_add_u64 as u64;
    f32 as u32, f32::to_bits, f32::from_bits, |a: f32, b: f32| a + b;
        ld_b32 st_b32 atom_exch_b32 atom_cas_b32 atom_add_f32 as f32;
    f64 as u64, f64::to_bits, f64::from_bits, |a: f64, b: f64| a + b;
        ld_b64 st_b64 atom_exch_b64 atom_cas_b64 atom_add_f64 as f64;
}

macro_rules! atomic_integer {
    ($($ty:ty as $bits:ident { $($name:ident, $op:ident as $op_ty:ty, $emulated:expr;)* })*) => {$(
        impl AtomicInteger for $ty {$(
            #[inline(always)]
            #[track_caller]
            unsafe fn $name(ptr: *mut Self, value: Self, order: Order, reach: Reach, space: Space) -> Self {
                by_target! {
                    // SAFETY: forwarded to the caller.
                    gpu: unsafe { ptx::$op(ptr.cast(), value as $op_ty, order, reach, space) as $ty },
                    cpu: {
                        let _ = (order, reach, space);
                        let apply = |bits: $bits| $emulated(bits as $ty, value) as $bits;
                        // SAFETY: forwarded to the caller.
                        (unsafe { emulated::$bits::update(ptr.cast(), apply) }) as $ty
                    },
                }
            }
        )*}
    )*};
}

atomic_integer! {
    u32 as u32 {
        fetch_min, atom_min_u32 as u32, u32::min;
        fetch_max, atom_max_u32 as u32, u32::max;
        fetch_and, atom_and_b32 as u32, |a, b| a & b;
        fetch_or, atom_or_b32 as u32, |a, b| a | b;
        fetch_xor, atom_xor_b32 as u32, |a, b| a ^ b;
    }
    i32 as u32 {
        fetch_min, atom_min_s32 as i32, i32::min;
        fetch_max, atom_max_s32 as i32, i32::max;
        fetch_and, atom_and_b32 as u32, |a, b| a & b;
        fetch_or, atom_or_b32 as u32, |a, b| a | b;
        fetch_xor, atom_xor_b32 as u32, |a, b| a ^ b;
    }
    u64 as u64 {
        fetch_min, atom_min_u64 as u64, u64::min;
        fetch_max, atom_max_u64 as u64, u64::max;
        fetch_and, atom_and_b64 as u64, |a, b| a & b;
        fetch_or, atom_or_b64 as u64, |a, b| a | b;
        fetch_xor, atom_xor_b64 as u64, |a, b| a ^ b;
    }
    i64 as u64 {
        fetch_min, atom_min_s64 as i64, i64::min;
        fetch_max, atom_max_s64 as i64, i64::max;
        fetch_and, atom_and_b64 as u64, |a, b| a & b;
        fetch_or, atom_or_b64 as u64, |a, b| a | b;
        fetch_xor, atom_xor_b64 as u64, |a, b| a ^ b;
    }
}

/// The operations on a CPU: sequentially consistent, and scheduling points of the emulator.
#[cfg(not(target_arch = "nvptx64"))]
mod emulated {
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
    use simt::device::{self, Access, Yield};

    /// Outside a kernel these are ordinary atomics of the host.
    #[track_caller]
    fn enter<T>(ptr: *mut T, kind: Yield) {
        if device::on_device() {
            device::check(
                ptr.cast_const().cast(),
                size_of::<T>(),
                size_of::<T>(),
                Access::Atomic,
            );
            device::yield_point(kind);
        }
    }

    macro_rules! word {
        ($module:ident, $ty:ty, $atomic:ty) => {
            pub mod $module {
                use super::*;

                /// # Safety
                ///
                /// The contract of [`Atomic::from_ptr`](super::super::Atomic::from_ptr).
                #[track_caller]
                pub unsafe fn load(ptr: *mut $ty) -> $ty {
                    enter(ptr, Yield::Spin);
                    // SAFETY: forwarded to the caller.
                    unsafe { <$atomic>::from_ptr(ptr) }.load(SeqCst)
                }

                /// # Safety
                ///
                /// The contract of [`Atomic::from_ptr`](super::super::Atomic::from_ptr).
                #[track_caller]
                pub unsafe fn update(ptr: *mut $ty, f: impl Fn($ty) -> $ty) -> $ty {
                    enter(ptr, Yield::Progress);
                    // SAFETY: forwarded to the caller.
                    let atomic = unsafe { <$atomic>::from_ptr(ptr) };
                    match atomic.fetch_update(SeqCst, SeqCst, |value| Some(f(value))) {
                        Ok(before) | Err(before) => before,
                    }
                }

                /// # Safety
                ///
                /// The contract of [`Atomic::from_ptr`](super::super::Atomic::from_ptr).
                #[track_caller]
                pub unsafe fn compare_exchange(ptr: *mut $ty, current: $ty, new: $ty) -> $ty {
                    if device::on_device() {
                        device::check(
                            ptr.cast_const().cast(),
                            size_of::<$ty>(),
                            size_of::<$ty>(),
                            Access::Atomic,
                        );
                    }
                    // SAFETY: forwarded to the caller.
                    let atomic = unsafe { <$atomic>::from_ptr(ptr) };
                    // One that is about to fail is waiting for someone, for a lock for instance.
                    let kind = if atomic.load(SeqCst) == current {
                        Yield::Progress
                    } else {
                        Yield::Spin
                    };
                    enter(ptr, kind);
                    match atomic.compare_exchange(current, new, SeqCst, SeqCst) {
                        Ok(before) | Err(before) => before,
                    }
                }
            }
        };
    }

    word!(u32, core::primitive::u32, AtomicU32);
    word!(u64, core::primitive::u64, AtomicU64);
}
