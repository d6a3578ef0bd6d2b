//! The functions of floats, which `core` lacks.
//!
//! [`GpuFloat`] has the published names. Where the hardware has an exact instruction it is used; all
//! else is computed in software by `libm`, the same code on both targets, so results agree bit for bit
//! between GPU and CPU (NaN payloads aside). That is slower than libdevice, which the published crate
//! called and which cannot be linked here.
//!
//! | Methods | On a GPU | Result |
//! |---|---|---|
//! | `abs`, `copysign`, `signum`, `floor`, `ceil`, `trunc`, `fract` | one or two instructions | exact |
//! | `sqrt`, `mul_add` | `sqrt.rn`, `fma.rn` | correctly rounded |
//! | `round`, `rem_euclid`, `div_euclid` | software | exact, `div_euclid` as in `std` |
//! | everything else | software | as accurate as `libm`: within 1 ulp as a rule |

#[cfg(target_arch = "nvptx64")]
use core::intrinsics as exact;

/// Float functions for kernels, with the meaning of the `std` methods of the same names.
#[allow(missing_docs)]
pub trait GpuFloat: Copy + PartialOrd + private::Sealed {
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
    fn trunc(self) -> Self;
    fn fract(self) -> Self;
    fn abs(self) -> Self;
    fn signum(self) -> Self;
    fn copysign(self, sign: Self) -> Self;
    fn mul_add(self, a: Self, b: Self) -> Self;
    fn div_euclid(self, rhs: Self) -> Self;
    fn rem_euclid(self, rhs: Self) -> Self;
    fn powi(self, n: i32) -> Self;
    fn powf(self, n: Self) -> Self;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;
    fn exp2(self) -> Self;
    fn ln(self) -> Self;
    fn log(self, base: Self) -> Self;
    fn log2(self) -> Self;
    fn log10(self) -> Self;
    fn cbrt(self) -> Self;
    fn hypot(self, other: Self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn asin(self) -> Self;
    fn acos(self) -> Self;
    fn atan(self) -> Self;
    fn atan2(self, other: Self) -> Self;
    fn sin_cos(self) -> (Self, Self);
    fn exp_m1(self) -> Self;
    fn ln_1p(self) -> Self;
    fn sinh(self) -> Self;
    fn cosh(self) -> Self;
    fn tanh(self) -> Self;
    fn asinh(self) -> Self;
    fn acosh(self) -> Self;
    fn atanh(self) -> Self;
}

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// The exact functions under the names of `core::intrinsics`, for the CPU.
#[cfg(not(target_arch = "nvptx64"))]
mod exact {
    pub use libm::{
        ceil as ceilf64, ceilf as ceilf32, floor as floorf64, floorf as floorf32, fma as fmaf64,
        fmaf as fmaf32, sqrt as sqrtf64, sqrtf as sqrtf32, trunc as truncf64, truncf as truncf32,
    };
}

macro_rules! gpu_float {
    ($float:ident; $floor:ident $ceil:ident $trunc:ident $fma:ident $sqrt:ident;
        $round:ident $fmod:ident $pow:ident $exp:ident $exp2:ident $log:ident $log2:ident $log10:ident
        $cbrt:ident $hypot:ident $sin:ident $cos:ident $tan:ident $asin:ident $acos:ident $atan:ident
        $atan2:ident $sincos:ident $expm1:ident $log1p:ident $sinh:ident $cosh:ident $tanh:ident
        $asinh:ident $acosh:ident $atanh:ident) => {
        // The intrinsics are safe functions on one target and the twins on the other.
        impl GpuFloat for $float {
            #[inline]
            fn floor(self) -> Self {
                exact::$floor(self)
            }
            #[inline]
            fn ceil(self) -> Self {
                exact::$ceil(self)
            }
            #[inline]
            fn round(self) -> Self {
                libm::$round(self)
            }
            #[inline]
            fn trunc(self) -> Self {
                exact::$trunc(self)
            }
            #[inline]
            fn fract(self) -> Self {
                self - exact::$trunc(self)
            }
            #[inline]
            fn abs(self) -> Self {
                $float::abs(self)
            }
            #[inline]
            fn signum(self) -> Self {
                $float::signum(self)
            }
            #[inline]
            fn copysign(self, sign: Self) -> Self {
                $float::copysign(self, sign)
            }
            #[inline]
            fn mul_add(self, a: Self, b: Self) -> Self {
                exact::$fma(self, a, b)
            }
            #[inline]
            fn div_euclid(self, rhs: Self) -> Self {
                let quotient = exact::$trunc(self / rhs);
                if libm::$fmod(self, rhs) >= 0.0 {
                    quotient
                } else if rhs > 0.0 {
                    quotient - 1.0
                } else {
                    quotient + 1.0
                }
            }
            #[inline]
            fn rem_euclid(self, rhs: Self) -> Self {
                let remainder = libm::$fmod(self, rhs);
                if remainder < 0.0 {
                    remainder + $float::abs(rhs)
                } else {
                    remainder
                }
            }
            #[inline]
            fn powi(self, n: i32) -> Self {
                let (mut power, mut square, mut rest) = (1.0, self, n.unsigned_abs());
                while rest != 0 {
                    if rest & 1 == 1 {
                        power *= square;
                    }
                    square *= square;
                    rest >>= 1;
                }
                if n < 0 { 1.0 / power } else { power }
            }
            #[inline]
            fn powf(self, n: Self) -> Self {
                libm::$pow(self, n)
            }
            #[inline]
            fn sqrt(self) -> Self {
                exact::$sqrt(self)
            }
            #[inline]
            fn exp(self) -> Self {
                libm::$exp(self)
            }
            #[inline]
            fn exp2(self) -> Self {
                libm::$exp2(self)
            }
            #[inline]
            fn ln(self) -> Self {
                libm::$log(self)
            }
            #[inline]
            fn log(self, base: Self) -> Self {
                libm::$log(self) / libm::$log(base)
            }
            #[inline]
            fn log2(self) -> Self {
                libm::$log2(self)
            }
            #[inline]
            fn log10(self) -> Self {
                libm::$log10(self)
            }
            #[inline]
            fn cbrt(self) -> Self {
                libm::$cbrt(self)
            }
            #[inline]
            fn hypot(self, other: Self) -> Self {
                libm::$hypot(self, other)
            }
            #[inline]
            fn sin(self) -> Self {
                libm::$sin(self)
            }
            #[inline]
            fn cos(self) -> Self {
                libm::$cos(self)
            }
            #[inline]
            fn tan(self) -> Self {
                libm::$tan(self)
            }
            #[inline]
            fn asin(self) -> Self {
                libm::$asin(self)
            }
            #[inline]
            fn acos(self) -> Self {
                libm::$acos(self)
            }
            #[inline]
            fn atan(self) -> Self {
                libm::$atan(self)
            }
            #[inline]
            fn atan2(self, other: Self) -> Self {
                libm::$atan2(self, other)
            }
            #[inline]
            fn sin_cos(self) -> (Self, Self) {
                libm::$sincos(self)
            }
            #[inline]
            fn exp_m1(self) -> Self {
                libm::$expm1(self)
            }
            #[inline]
            fn ln_1p(self) -> Self {
                libm::$log1p(self)
            }
            #[inline]
            fn sinh(self) -> Self {
                libm::$sinh(self)
            }
            #[inline]
            fn cosh(self) -> Self {
                libm::$cosh(self)
            }
            #[inline]
            fn tanh(self) -> Self {
                libm::$tanh(self)
            }
            #[inline]
            fn asinh(self) -> Self {
                libm::$asinh(self)
            }
            #[inline]
            fn acosh(self) -> Self {
                libm::$acosh(self)
            }
            #[inline]
            fn atanh(self) -> Self {
                libm::$atanh(self)
            }
        }
    };
}

gpu_float! { f32; floorf32 ceilf32 truncf32 fmaf32 sqrtf32;
roundf fmodf powf expf exp2f logf log2f log10f cbrtf hypotf sinf cosf tanf asinf acosf atanf
atan2f sincosf expm1f log1pf sinhf coshf tanhf asinhf acoshf atanhf }
gpu_float! { f64; floorf64 ceilf64 truncf64 fmaf64 sqrtf64;
round fmod pow exp exp2 log log2 log10 cbrt hypot sin cos tan asin acos atan
atan2 sincos expm1 log1p sinh cosh tanh asinh acosh atanh }
