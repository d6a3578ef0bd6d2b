//! Vector types whose loads and stores are one instruction.
//!
//! A `u32x4` loads as `ld.global.v4.b32`. Arrays and aligned structs in its place are split into
//! scalars or go through local memory. The names are aliases of [`core::simd`], so a kernel crate can
//! use them, their arithmetic, indexing and `From<[u32; N]>`, without a feature gate.

/// Two 32-bit words, 8-byte aligned.
#[allow(non_camel_case_types)]
pub type u32x2 = core::simd::u32x2;

/// Four 32-bit words, 16-byte aligned.
#[allow(non_camel_case_types)]
pub type u32x4 = core::simd::u32x4;
