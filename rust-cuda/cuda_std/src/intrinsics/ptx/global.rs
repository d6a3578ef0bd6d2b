//! Loads and stores that name global memory, without and with cache hints.
//!
//! Of a pointer that comes out of memory, LLVM does not know the state space, and no attribute, assumption or
//! intrinsic of Rust's can tell it.

use core::arch::asm;

use crate::simd::{u32x2, u32x4};

/// A value as the registers that it is loaded into and stored from.
trait Registers {
    type Words;
    fn from_words(words: Self::Words) -> Self;
    fn to_words(self) -> Self::Words;
}

macro_rules! registers {
    ($($ty:ty: $words:ty = |$from:ident| $value:expr, |$this:ident| $to:expr;)*) => {$(
        impl Registers for $ty {
            type Words = $words;

            #[inline(always)]
            fn from_words($from: $words) -> Self {
                $value
            }

            #[inline(always)]
            fn to_words(self) -> $words {
                let $this = self;
                $to
            }
        }
    )*};
}

registers! {
    u8: [u16; 1] = |words| words[0] as u8, |value| [value.into()];
    u16: [u16; 1] = |words| words[0], |value| [value];
    u32: [u32; 1] = |words| words[0], |value| [value];
    u64: [u64; 1] = |words| words[0], |value| [value];
    u32x2: [u32; 2] = |words| Self::from_array(words), |value| value.to_array();
    u32x4: [u32; 4] = |words| Self::from_array(words), |value| value.to_array();
}

/// `load` or `store`: for each line, the function `name` by a mnemonic, whose last part says how many bits, and the
/// targets that have it; after `where`, what a caller owes besides an aligned pointer to global memory.
macro_rules! accesses {
    ($kind:ident $options:tt where $owed:literal:
        $($name:ident($ty:ident) = $mnemonic:literal, $targets:literal;)*) => {
        $(accesses! { @$ty $kind $options $owed $name $mnemonic $targets })*
    };

    // The registers of a type: how many of which class, and how an instruction spells them.
    (@u8 $($line:tt)*) => { accesses! { @$($line)* u8, reg16, [x: u16], "{x}" } };
    (@u16 $($line:tt)*) => { accesses! { @$($line)* u16, reg16, [x: u16], "{x}" } };
    (@u32 $($line:tt)*) => { accesses! { @$($line)* u32, reg32, [x: u32], "{x}" } };
    (@u64 $($line:tt)*) => { accesses! { @$($line)* u64, reg64, [x: u64], "{x}" } };
    (@u32x2 $($line:tt)*) => {
        accesses! { @$($line)* u32x2, reg32, [x: u32, y: u32], "{{{x}, {y}}}" }
    };
    (@u32x4 $($line:tt)*) => {
        accesses! { @$($line)* u32x4, reg32, [x: u32, y: u32, z: u32, w: u32], "{{{x}, {y}, {z}, {w}}}" }
    };

    (@load $options:tt $owed:literal $name:ident $mnemonic:literal $targets:literal
        $ty:ty, $class:ident, [$($x:ident: $word:ty),*], $registers:literal) => {
        #[doc = concat!("`", $mnemonic, "`; ", $targets, ".")]
        ///
        /// # Safety
        ///
        #[doc = concat!("`ptr` is valid for reading, aligned to its size, in global memory", $owed, ".")]
        #[inline(always)]
        pub unsafe fn $name(ptr: *const $ty) -> $ty {
            $(let $x: $word;)*
            // SAFETY: forwarded to the caller.
            unsafe {
                asm!(
                    concat!("{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; ", $mnemonic, " ", $registers, ", [a]; }}"),
                    ptr = in(reg64) ptr,
                    $($x = lateout($class) $x,)*
                    options $options
                );
            }
            <$ty>::from_words([$($x),*])
        }
    };

    (@store $options:tt $owed:literal $name:ident $mnemonic:literal $targets:literal
        $ty:ty, $class:ident, [$($x:ident: $word:ty),*], $registers:literal) => {
        #[doc = concat!("`", $mnemonic, "`; ", $targets, ".")]
        ///
        /// # Safety
        ///
        #[doc = concat!("`ptr` is valid for writing, aligned to its size, in global memory", $owed, ".")]
        #[inline(always)]
        pub unsafe fn $name(ptr: *mut $ty, value: $ty) {
            let [$($x),*] = value.to_words();
            // SAFETY: forwarded to the caller.
            unsafe {
                asm!(
                    concat!("{{ .reg .b64 a; cvta.to.global.u64 a, {ptr}; ", $mnemonic, " [a], ", $registers, "; }}"),
                    ptr = in(reg64) ptr,
                    $($x = in($class) $x,)*
                    options $options
                );
            }
        }
    };
}

accesses! {
    load (readonly, nostack, preserves_flags) where "":
    ld_global_b8(u8) = "ld.global.b8", "any target";
    ld_global_b16(u16) = "ld.global.b16", "any target";
    ld_global_b32(u32) = "ld.global.b32", "any target";
    ld_global_b64(u64) = "ld.global.b64", "any target";
    ld_global_v2_b32(u32x2) = "ld.global.v2.b32", "any target";
    ld_global_v4_b32(u32x4) = "ld.global.v4.b32", "any target";
}

accesses! {
    load (pure, readonly, nostack, preserves_flags) where " nobody writes during the launch":
    ld_global_nc_b32(u32) = "ld.global.nc.L1::no_allocate.b32", "cc 7.0, PTX 7.4";
    ld_global_nc_v2_b32(u32x2) = "ld.global.nc.L1::no_allocate.v2.b32", "cc 7.0, PTX 7.4";
    ld_global_nc_v4_b32(u32x4) = "ld.global.nc.L1::no_allocate.v4.b32", "cc 7.0, PTX 7.4";
}

accesses! {
    store (nostack, preserves_flags) where "":
    st_global_b8(u8) = "st.global.b8", "any target";
    st_global_b16(u16) = "st.global.b16", "any target";
    st_global_b32(u32) = "st.global.b32", "any target";
    st_global_b64(u64) = "st.global.b64", "any target";
    st_global_v2_b32(u32x2) = "st.global.v2.b32", "any target";
    st_global_v4_b32(u32x4) = "st.global.v4.b32", "any target";
    st_global_cs_b32(u32) = "st.global.cs.b32", "any target";
    st_global_cs_v2_b32(u32x2) = "st.global.cs.v2.b32", "any target";
    st_global_cs_v4_b32(u32x4) = "st.global.cs.v4.b32", "any target";
}
