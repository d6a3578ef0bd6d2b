//! Atomic accesses and fences with explicit ordering and scope.
//!
//! `core::sync::atomic` is no substitute: this backend drops the ordering of its read-modify-writes
//! and narrows their scope. Everything here needs compute capability 7.0 and PTX 6.0 and clobbers
//! memory, so that LLVM keeps other accesses on their side of it.

use core::arch::asm;

use super::cvta_to_global;
use crate::atomic::scoped::{Order, Reach, Space};

/// The address within `space` of what `ptr` points to.
#[inline(always)]
fn address<T>(ptr: *mut T, space: Space) -> *mut T {
    match space {
        Space::Generic => ptr,
        Space::Global => cvta_to_global(ptr.cast()).cast_mut().cast(),
    }
}

/// Expands `$words!(order, reach, $emit!(space, …))` with the word for a space, which is a constant once
/// everything is inlined.
macro_rules! with_space {
    ($space:expr, $words:ident!($order:expr, $reach:expr, $emit:ident!($($args:tt)*) $($only:tt)*)) => {
        match $space {
            Space::Generic => $words!($order, $reach, $emit!("", $($args)*) $($only)*),
            Space::Global => $words!($order, $reach, $emit!(".global", $($args)*) $($only)*),
        }
    };
}

/// Expands `$emit!(sem, scope, …)` with the words for an order and a reach, which are constants
/// once everything is inlined.
macro_rules! with_words {
    ($order:expr, $reach:expr, $emit:ident!($($args:tt)*)) => {
        match ($order, $reach) {
            (Order::Relaxed, Reach::Block) => $emit!("relaxed", "cta", $($args)*),
            (Order::Relaxed, Reach::Device) => $emit!("relaxed", "gpu", $($args)*),
            (Order::Relaxed, Reach::System) => $emit!("relaxed", "sys", $($args)*),
            (Order::Acquire, Reach::Block) => $emit!("acquire", "cta", $($args)*),
            (Order::Acquire, Reach::Device) => $emit!("acquire", "gpu", $($args)*),
            (Order::Acquire, Reach::System) => $emit!("acquire", "sys", $($args)*),
            (Order::Release, Reach::Block) => $emit!("release", "cta", $($args)*),
            (Order::Release, Reach::Device) => $emit!("release", "gpu", $($args)*),
            (Order::Release, Reach::System) => $emit!("release", "sys", $($args)*),
            (Order::AcqRel, Reach::Block) => $emit!("acq_rel", "cta", $($args)*),
            (Order::AcqRel, Reach::Device) => $emit!("acq_rel", "gpu", $($args)*),
            (Order::AcqRel, Reach::System) => $emit!("acq_rel", "sys", $($args)*),
        }
    };
}

/// As [`with_words`], for instructions that exist in the given orders only.
macro_rules! with_words_of {
    ($order:expr, $reach:expr, $emit:ident!($($args:tt)*); $a:ident $a_word:literal, $b:ident $b_word:literal) => {
        match ($order, $reach) {
            (Order::$a, Reach::Block) => $emit!($a_word, "cta", $($args)*),
            (Order::$a, Reach::Device) => $emit!($a_word, "gpu", $($args)*),
            (Order::$a, Reach::System) => $emit!($a_word, "sys", $($args)*),
            (Order::$b, Reach::Block) => $emit!($b_word, "cta", $($args)*),
            (Order::$b, Reach::Device) => $emit!($b_word, "gpu", $($args)*),
            (Order::$b, Reach::System) => $emit!($b_word, "sys", $($args)*),
            _ => unreachable!(),
        }
    };
}

macro_rules! emit_atom {
    ($sem:literal, $scope:literal, $space:literal, $op:literal, $class:ident, $ptr:ident, $value:ident, $d:ident) => {
        asm!(
            concat!("atom.", $sem, ".", $scope, $space, ".", $op, " {d}, [{ptr}], {value};"),
            ptr = in(reg64) $ptr,
            value = in($class) $value,
            d = lateout($class) $d,
            options(nostack, preserves_flags)
        )
    };
}

macro_rules! atom {
    ($($name:ident: $ty:ty, $class:ident, $op:literal;)*) => {$(
        #[doc = concat!("`atom.SEM.SCOPE.SPACE.", $op, "`; returns the value before.")]
        ///
        /// # Safety
        ///
        /// `ptr` is valid for reading and writing, aligned to its size, in global or shared memory, and in `space`.
        #[inline(always)]
        pub unsafe fn $name(
            ptr: *mut $ty,
            value: $ty,
            order: Order,
            reach: Reach,
            space: Space,
        ) -> $ty {
            let ptr = address(ptr, space);
            let d: $ty;
            // SAFETY: forwarded to the caller.
            unsafe { with_space!(space, with_words!(order, reach, emit_atom!($op, $class, ptr, value, d))) };
            d
        }
    )*};
}

atom! {
    atom_add_u32: u32, reg32, "add.u32";
    atom_add_u64: u64, reg64, "add.u64";
    atom_add_f32: f32, reg32, "add.f32";
    atom_add_f64: f64, reg64, "add.f64";
    atom_min_u32: u32, reg32, "min.u32";
    atom_min_s32: i32, reg32, "min.s32";
    atom_min_u64: u64, reg64, "min.u64";
    atom_min_s64: i64, reg64, "min.s64";
    atom_max_u32: u32, reg32, "max.u32";
    atom_max_s32: i32, reg32, "max.s32";
    atom_max_u64: u64, reg64, "max.u64";
    atom_max_s64: i64, reg64, "max.s64";
    atom_and_b32: u32, reg32, "and.b32";
    atom_and_b64: u64, reg64, "and.b64";
    atom_or_b32: u32, reg32, "or.b32";
    atom_or_b64: u64, reg64, "or.b64";
    atom_xor_b32: u32, reg32, "xor.b32";
    atom_xor_b64: u64, reg64, "xor.b64";
    atom_exch_b32: u32, reg32, "exch.b32";
    atom_exch_b64: u64, reg64, "exch.b64";
}

macro_rules! emit_cas {
    ($sem:literal, $scope:literal, $space:literal, $bits:literal, $class:ident, $ptr:ident, $current:ident, $new:ident, $d:ident) => {
        asm!(
            concat!("atom.", $sem, ".", $scope, $space, ".cas.", $bits, " {d}, [{ptr}], {current}, {new};"),
            ptr = in(reg64) $ptr,
            current = in($class) $current,
            new = in($class) $new,
            d = lateout($class) $d,
            options(nostack, preserves_flags)
        )
    };
}

macro_rules! emit_ld {
    ($sem:literal, $scope:literal, $space:literal, $op:literal, $class:ident, $ptr:ident, $d:ident) => {
        asm!(
            concat!("ld.", $sem, ".", $scope, $space, ".", $op, " {d}, [{ptr}];"),
            ptr = in(reg64) $ptr,
            d = lateout($class) $d,
            options(nostack, preserves_flags)
        )
    };
}

macro_rules! emit_st {
    ($sem:literal, $scope:literal, $space:literal, $op:literal, $class:ident, $ptr:ident, $value:ident) => {
        asm!(
            concat!("st.", $sem, ".", $scope, $space, ".", $op, " [{ptr}], {value};"),
            ptr = in(reg64) $ptr,
            value = in($class) $value,
            options(nostack, preserves_flags)
        )
    };
}

macro_rules! cas_load_store {
    ($($ty:ty, $class:ident, $bits:literal, $cas:ident, $ld:ident, $st:ident;)*) => {$(
        #[doc = concat!("`atom.SEM.SCOPE.cas.", $bits, "`; returns the value before.")]
        ///
        /// # Safety
        ///
        /// `ptr` is valid for reading and writing, aligned to its size, in global or shared memory, and in `space`.
        #[inline(always)]
        pub unsafe fn $cas(
            ptr: *mut $ty,
            current: $ty,
            new: $ty,
            order: Order,
            reach: Reach,
            space: Space,
        ) -> $ty {
            let ptr = address(ptr, space);
            let d: $ty;
            // SAFETY: forwarded to the caller.
            unsafe {
                with_space!(
                    space,
                    with_words!(order, reach, emit_cas!($bits, $class, ptr, current, new, d))
                );
            }
            d
        }

        #[doc = concat!("`ld.SEM.SCOPE.", $bits, "`, relaxed or acquire.")]
        ///
        /// # Safety
        ///
        /// `ptr` is valid for reading, aligned to its size, and in `space`.
        #[inline(always)]
        pub unsafe fn $ld(ptr: *mut $ty, order: Order, reach: Reach, space: Space) -> $ty {
            let ptr = address(ptr, space);
            let d: $ty;
            // SAFETY: forwarded to the caller.
            unsafe {
                with_space!(
                    space,
                    with_words_of!(order, reach, emit_ld!($bits, $class, ptr, d); Relaxed "relaxed", Acquire "acquire")
                );
            }
            d
        }

        #[doc = concat!("`st.SEM.SCOPE.", $bits, "`, relaxed or release.")]
        ///
        /// # Safety
        ///
        /// `ptr` is valid for writing, aligned to its size, and in `space`.
        #[inline(always)]
        pub unsafe fn $st(ptr: *mut $ty, value: $ty, order: Order, reach: Reach, space: Space) {
            let ptr = address(ptr, space);
            // SAFETY: forwarded to the caller.
            unsafe {
                with_space!(
                    space,
                    with_words_of!(order, reach, emit_st!($bits, $class, ptr, value); Relaxed "relaxed", Release "release")
                );
            }
        }
    )*};
}

cas_load_store! {
    u32, reg32, "b32", atom_cas_b32, ld_b32, st_b32;
    u64, reg64, "b64", atom_cas_b64, ld_b64, st_b64;
}

/// `fence.acq_rel.SCOPE`.
#[inline(always)]
pub fn fence_acq_rel(reach: Reach) {
    // SAFETY: a fence.
    unsafe {
        match reach {
            Reach::Block => asm!("fence.acq_rel.cta;", options(nostack, preserves_flags)),
            Reach::Device => asm!("fence.acq_rel.gpu;", options(nostack, preserves_flags)),
            Reach::System => asm!("fence.acq_rel.sys;", options(nostack, preserves_flags)),
        }
    }
}

/// `fence.sc.SCOPE`.
#[inline(always)]
pub fn fence_sc(reach: Reach) {
    // SAFETY: a fence.
    unsafe {
        match reach {
            Reach::Block => asm!("fence.sc.cta;", options(nostack, preserves_flags)),
            Reach::Device => asm!("fence.sc.gpu;", options(nostack, preserves_flags)),
            Reach::System => asm!("fence.sc.sys;", options(nostack, preserves_flags)),
        }
    }
}
