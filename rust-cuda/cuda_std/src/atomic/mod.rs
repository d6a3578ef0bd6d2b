//! Atomic types.
//!
//! [`AtomicF32`] and its siblings are the published ones: floats with an ordering per call, of device,
//! block or system scope. For integers, and wherever the ordering matters for correctness, use
//! [`scoped`], which puts scope and ordering into types.
//!
//! Of the published crate's raw layers, `atomic::intrinsics` and `atomic::mid`, there is no
//! counterpart: [`scoped`] replaces them.

pub mod scoped;

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

use scoped::Atomic;

/// Calls a method of [`Atomic`] with the ordering that is known at run time only.
macro_rules! with_ordering {
    ($order:expr, |$o:ident| $call:expr; $($ordering:ident)*) => {
        match $order {
            $(Ordering::$ordering => {
                let $o = scoped::$ordering;
                $call
            })*
            other => invalid(other),
        }
    };
}

#[cold]
#[track_caller]
fn invalid(order: Ordering) -> ! {
    panic!("this atomic operation cannot have the ordering {order:?}")
}

macro_rules! atomic_float {
    ($(#[$doc:meta])* $name:ident, $float:ident, $bits:ident, $align:literal, $scope:ident $(, $unsafe:ident $safety:literal)?) => {
        $(#[$doc])*
        ///
        /// Has the size, alignment and representation of the float. On the CPU it works outside
        /// kernels, too.
        #[derive(Debug)]
        #[repr(C, align($align))]
        pub struct $name(UnsafeCell<$float>);

        // SAFETY: all accesses through a shared reference are atomic.
        unsafe impl Sync for $name {}

        impl $name {
            /// A new atomic.
            pub const fn new(value: $float) -> Self {
                Self(UnsafeCell::new(value))
            }

            /// The value, once nobody else has the atomic.
            pub const fn into_inner(self) -> $float {
                self.0.into_inner()
            }

            #[inline(always)]
            fn float(&self) -> Atomic<$float, scoped::$scope> {
                // SAFETY: a valid, aligned location that is accessed by these methods only.
                unsafe { Atomic::from_ptr(self.0.get()) }
            }

            #[inline(always)]
            fn bits(&self) -> Atomic<$bits, scoped::$scope> {
                // SAFETY: as above; integer and float have the same size and alignment.
                unsafe { Atomic::from_ptr(self.0.get().cast()) }
            }

            /// Adds `value` and returns the value before. PTX `atom.add`.
            $(#[doc = $safety])?
            #[inline(always)]
            #[track_caller]
            pub $($unsafe)? fn fetch_add(&self, value: $float, order: Ordering) -> $float {
                with_ordering!(order, |o| self.float().fetch_add(value, o);
                    Relaxed Acquire Release AcqRel SeqCst)
            }

            /// Adds `-value`, there being no subtraction, and returns the value before.
            $(#[doc = $safety])?
            #[inline(always)]
            #[track_caller]
            pub $($unsafe)? fn fetch_sub(&self, value: $float, order: Ordering) -> $float {
                with_ordering!(order, |o| self.float().fetch_add(-value, o);
                    Relaxed Acquire Release AcqRel SeqCst)
            }

            /// ANDs the bits and returns the value before. PTX `atom.and`.
            $(#[doc = $safety])?
            #[inline(always)]
            #[track_caller]
            pub $($unsafe)? fn fetch_and(&self, value: $float, order: Ordering) -> $float {
                $float::from_bits(with_ordering!(order, |o| self.bits().fetch_and(value.to_bits(), o);
                    Relaxed Acquire Release AcqRel SeqCst))
            }

            /// ORs the bits and returns the value before. PTX `atom.or`.
            $(#[doc = $safety])?
            #[inline(always)]
            #[track_caller]
            pub $($unsafe)? fn fetch_or(&self, value: $float, order: Ordering) -> $float {
                $float::from_bits(with_ordering!(order, |o| self.bits().fetch_or(value.to_bits(), o);
                    Relaxed Acquire Release AcqRel SeqCst))
            }

            /// XORs the bits and returns the value before. PTX `atom.xor`.
            $(#[doc = $safety])?
            #[inline(always)]
            #[track_caller]
            pub $($unsafe)? fn fetch_xor(&self, value: $float, order: Ordering) -> $float {
                $float::from_bits(with_ordering!(order, |o| self.bits().fetch_xor(value.to_bits(), o);
                    Relaxed Acquire Release AcqRel SeqCst))
            }

            /// The value. PTX `ld`.
            ///
            /// # Panics
            ///
            /// If `order` is `Release` or `AcqRel`.
            $(#[doc = $safety])?
            #[inline(always)]
            #[track_caller]
            pub $($unsafe)? fn load(&self, order: Ordering) -> $float {
                with_ordering!(order, |o| self.float().load(o); Relaxed Acquire SeqCst)
            }

            /// Writes `value`. PTX `st`.
            ///
            /// # Panics
            ///
            /// If `order` is `Acquire` or `AcqRel`.
            $(#[doc = $safety])?
            #[inline(always)]
            #[track_caller]
            pub $($unsafe)? fn store(&self, value: $float, order: Ordering) {
                with_ordering!(order, |o| self.float().store(value, o); Relaxed Release SeqCst)
            }
        }
    };
}

atomic_float! {
    /// An FP32 that is atomic among the threads of the device.
    AtomicF32, f32, u32, 4, Device
}
atomic_float! {
    /// An FP64 that is atomic among the threads of the device.
    AtomicF64, f64, u64, 8, Device
}
atomic_float! {
    /// An FP32 that is atomic among the threads of the block.
    BlockAtomicF32, f32, u32, 4, Block,
    unsafe "\n# Safety\n\nOnly threads of one block access the atomic meanwhile."
}
atomic_float! {
    /// An FP64 that is atomic among the threads of the block.
    BlockAtomicF64, f64, u64, 8, Block,
    unsafe "\n# Safety\n\nOnly threads of one block access the atomic meanwhile."
}
atomic_float! {
    /// An FP32 that is atomic among the threads of all devices and of the host.
    ///
    /// The published type of this name had device scope by mistake.
    SystemAtomicF32, f32, u32, 4, System
}
atomic_float! {
    /// An FP64 that is atomic among the threads of all devices and of the host.
    ///
    /// The published type of this name had device scope by mistake.
    SystemAtomicF64, f64, u64, 8, System
}
