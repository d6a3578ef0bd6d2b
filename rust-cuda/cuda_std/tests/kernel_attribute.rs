//! What `#[kernel]` makes of a function on the CPU.

use std::ffi::c_void;

use cuda_std::kernel;
use cuda_std::launch::{KernelArgs, KernelInfo, Param};

/// A value passed as bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Scale {
    factor: f32,
    offset: f32,
}

const THREADS: u32 = 64;

/// Applies a scale.
///
/// # Safety
///
/// `y` holds as many elements as `x`, and `total` one.
#[kernel(max_threads = THREADS * 2, min_blocks = 8)]
pub unsafe fn apply(x: &[f32], y: *mut f32, mut scale: Scale, bias: &f32, total: *mut f32) {
    scale.offset += bias;
    let mut sum = 0.0;
    for (i, x) in x.iter().enumerate() {
        let scaled = x * scale.factor + scale.offset;
        // SAFETY: the kernel's contract.
        unsafe { *y.add(i) = scaled };
        sum += scaled;
    }
    // SAFETY: the kernel's contract.
    unsafe { *total = sum };
}

#[test]
fn the_function_stays_what_it_was() {
    let (x, mut y, mut total) = ([1.0, 2.0], [0.0; 2], 0.0);
    let scale = Scale {
        factor: 3.0,
        offset: 1.0,
    };
    // SAFETY: both buffers have two elements.
    unsafe { apply(&x, y.as_mut_ptr(), scale, &0.5, &mut total) };
    assert_eq!((y, total), ([4.5, 7.5], 12.0));
}

const fn param(name: &'static str, ty: &'static str, size: usize, align: usize) -> Param {
    Param {
        name,
        ty,
        size,
        align,
    }
}

#[test]
fn a_launch_is_described_argument_by_argument() {
    assert_eq!(
        apply::Args::KERNEL,
        KernelInfo {
            name: "apply",
            max_threads: Some(128),
            min_blocks: Some(8),
            params: const {
                &[
                    param("x", "*const f32", 8, 8),
                    param("x_len", "usize", 8, 8),
                    param("y", "*mut f32", 8, 8),
                    param("scale", "Scale", 8, 4),
                    param("bias", "*const f32", 8, 8),
                    param("total", "*mut f32", 8, 8),
                ]
            },
        }
    );
}

#[test]
fn arguments_can_be_called_and_pointed_at() {
    let (x, mut y, bias, mut total) = ([1.0f32, 2.0, 3.0], [0.0; 3], 1.0, 0.0);
    let args = apply::Args {
        x: x.as_ptr(),
        x_len: 3,
        y: y.as_mut_ptr(),
        scale: Scale {
            factor: 2.0,
            offset: 0.0,
        },
        bias: &bias,
        total: &mut total,
    };
    let seen = args.with_params(|params: &mut [*mut c_void]| {
        assert_eq!(params.len(), apply::Args::KERNEL.params.len());
        // SAFETY: each points at an argument of the type that `KERNEL` says.
        unsafe {
            (
                *params[0].cast::<*const f32>(),
                *params[1].cast::<usize>(),
                *params[3].cast::<Scale>(),
            )
        }
    });
    assert_eq!(seen, (x.as_ptr(), 3, args.scale));
    // SAFETY: the pointers are valid for three elements.
    unsafe { args.call() };
    assert_eq!((y, total), ([3.0, 5.0, 7.0], 15.0));
}

#[test]
fn an_empty_buffer_has_no_address() {
    let (bias, mut total) = (0.0, 1.0);
    let args = apply::Args {
        x: std::ptr::null(),
        x_len: 0,
        y: std::ptr::null_mut(),
        scale: Scale {
            factor: 0.0,
            offset: 0.0,
        },
        bias: &bias,
        total: &mut total,
    };
    // SAFETY: nothing but `total` is accessed.
    unsafe { args.call() };
    assert_eq!(total, 0.0);
}

/// Older kernels state the dimensions they are written for.
///
/// # Safety
///
/// None beyond the launch's.
#[kernel(grid_dim = 1d, block_dim = 2D)]
unsafe fn hinted() {}

#[test]
fn kernels_without_parameters_or_bounds() {
    assert_eq!(hinted::Args::KERNEL.name, "hinted");
    assert_eq!(hinted::Args::KERNEL.max_threads, None);
    assert_eq!(hinted::Args::KERNEL.params, []);
    hinted::Args {}.with_params(|params| assert!(params.is_empty()));
    // SAFETY: does nothing.
    unsafe { hinted() };
}

macro_rules! fills {
    ($($(#[$doc:meta])* $name:ident: $ty:ty, $slice:ty, $bound:expr;)*) => {$(
        $(#[$doc])*
        #[kernel(max_threads = $bound)]
        pub unsafe fn $name(out: *mut $ty, values: $slice, pair: (*const $ty, [u8; 4])) {
            // SAFETY: the kernel's contract.
            unsafe { *out = values[0] };
            let _ = pair;
        }
    )*};
}

fills! {
    /// # Safety
    ///
    /// `out` holds a value, `values` at least one.
    fill_u8: u8, &[u8], 32;
    /// # Safety
    ///
    /// `out` holds a value, `values` at least one.
    fill_half: half::f16, &[half::f16], THREADS;
}

#[test]
fn kernels_come_out_of_macros_too() {
    let names = |info: KernelInfo| info.params.iter().map(|param| param.ty).collect::<Vec<_>>();
    assert_eq!(fill_u8::Args::KERNEL.max_threads, Some(32));
    assert_eq!(
        names(fill_u8::Args::KERNEL),
        ["*mut u8", "*const u8", "usize", "(*const u8, [u8; 4])"]
    );
    assert_eq!(fill_half::Args::KERNEL.max_threads, Some(64));
    assert_eq!(names(fill_half::Args::KERNEL)[1], "*const half::f16");
    let mut out = 0;
    let args = fill_u8::Args {
        out: &mut out,
        values: [9, 8].as_ptr(),
        values_len: 2,
        pair: (std::ptr::null(), [0; 4]),
    };
    // SAFETY: `out` holds a value, `values` two.
    unsafe { args.call() };
    assert_eq!(out, 9);
}

/// A device function with a panicking twin.
#[cuda_std::gpu_only]
pub fn only_there(x: u32) -> u32 {
    x + 1
}

#[test]
#[should_panic(expected = "`only_there` runs on a GPU only")]
fn gpu_only_functions_panic() {
    only_there(1);
}

/// A function that other PTX modules may call.
///
/// # Safety
///
/// None.
#[cuda_std::externally_visible]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn visible_from_outside() {}

#[cuda_std::address_space(global)]
static COUNTER: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(3);

#[cuda_std::address_space(constant)]
static TABLE: [u32; 2] = [4, 5];

#[test]
fn statics_are_statics() {
    assert_eq!(
        COUNTER.load(core::sync::atomic::Ordering::Relaxed) + TABLE[1],
        8
    );
}
