//! The CUDA device library for kernels written in Rust.
//!
//! It carries the names, module layout and meaning of the published `cuda_std` 0.2.2, on rustc's own
//! `nvptx64-nvidia-cuda` backend in place of `rustc_codegen_nvvm`, plus what newer hardware needs. A
//! kernel crate says `#![no_std]` and `use cuda_std::prelude::*;` and nothing else.
//!
//! ```
//! use cuda_std::prelude::*;
//! use cuda_std::view::{GlobalView, GlobalViewMut};
//!
//! /// Doubles `n` values.
//! ///
//! /// # Safety
//! ///
//! /// `x` and `y` hold `n` values each, and nothing else touches `y`.
//! #[kernel(max_threads = 256)]
//! pub unsafe fn double(x: *const f32, y: *mut f32, n: u32) {
//!     let n = n as usize;
//!     // SAFETY: the kernel's contract; `i` is compared with `n`.
//!     let (x, y) = unsafe { (GlobalView::new(x, n), GlobalViewMut::new(y, n)) };
//!     let i = thread::index_1d() as usize;
//!     if i < n {
//!         y.store(i, 2.0 * x.load(i));
//!     }
//! }
//! # fn main() {}
//! ```
//!
//! # Two targets, one source
//!
//! Every device function has two bodies. For `nvptx64` it is one instruction, or a few. For any other
//! target it is a twin with the same result, bit for bit, that runs under the SIMT emulator `simt`:
//! collectives meet the other lanes there, memory accesses are checked, copies land late. Twins that
//! are pure arithmetic ([`cvt`], [`math`]) also work outside a kernel; all others panic there.
//!
//! # Modules
//!
//! | Module | Contents | Origin |
//! |---|---|---|
//! | [`thread`], [`warp`], [`shared`] | indices, barriers, collectives, shared memory | published and repository HEAD |
//! | [`atomic`] | float atomics; [`atomic::scoped`]: ordering and scope in types | published; new |
//! | [`ptr`], [`mem`], [`misc`], [`io`] | address spaces, device heap, clocks, printing | published |
//! | [`float`] | `GpuFloat` | published |
//! | [`mod@cfg`] | compute capability, `has_*` questions | published, extended |
//! | [`launch`] | typed kernel arguments, on the CPU side | new |
//! | [`view`], [`simd`] | checked views of device memory, vector accesses | new |
//! | [`cvt`], [`math`] | narrow-float conversions, packed arithmetic | new |
//! | [`tma`], [`mbarrier`], [`fence`] | bulk and tensor copies, their barriers, fences | new |
//!
//! Vectors come from [`glam`] and have fields `.x`, `.y`, `.z`, as in the repository; the published
//! version used `vek`.
//!
//! # What the published crate has and this one has not
//!
//! * What is libdevice by nature (`intrinsics`, `FloatExt`): its bitcode cannot be linked into PTX that
//!   rustc emits directly. [`GpuFloat`] is complete, in software where the hardware has no instruction.
//! * The raw layers `atomic::intrinsics` and `atomic::mid`, which [`atomic::scoped`] replaces.
//! * `alloc` types in the prelude, unless the feature `alloc` asks for them: see [`mem`].

#![no_std]
#![feature(portable_simd)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(
        abi_unadjusted,
        asm_experimental_arch,
        core_intrinsics,
        gpu_intrinsics,
        gpu_launch_sized_workgroup_mem,
        link_llvm_intrinsics
    ),
    allow(internal_features)
)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

/// One expression for PTX, one for the CPU.
macro_rules! by_target {
    (gpu: $gpu:expr, cpu: $cpu:expr $(,)?) => {{
        #[cfg(target_arch = "nvptx64")]
        {
            $gpu
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            $cpu
        }
    }};
}

pub mod atomic;
pub mod cfg;
pub mod cvt;
pub mod fence;
pub mod float;
#[cfg(target_arch = "nvptx64")]
mod intrinsics;
pub mod io;
#[cfg(not(target_arch = "nvptx64"))]
pub mod launch;
pub mod math;
pub mod mbarrier;
pub mod mem;
pub mod misc;
pub mod prelude;
pub mod ptr;
#[doc(hidden)]
pub mod rt;
pub mod shared;
pub mod simd;
pub mod thread;
pub mod tma;
pub mod view;
pub mod warp;

pub use cuda_std_macros::{address_space, externally_visible, gpu_only, kernel};
pub use float::GpuFloat;
pub use glam;
pub use half;
pub use half::{bf16, f16};
