//! The CPU reference of a [Mixture-of-Experts layer](crate::moe): every token through its experts, densely, in f64;
//! and what may be between that and a device's result.
//!
//! Two things make the difference, and they are held apart:
//!
//! * **Rounding.** A device adds up in f32 and stores expert outputs and results in BF16. [`dense`] carries along,
//!   for every number, how far a device may be from it: a running error analysis, with u = 2^-24 for f32,
//!   v = 2^-8 for BF16, and `g(n) = n u / (1 - n u)` for a sum of n fused terms.
//!
//!   | value | bound of its error |
//!   | --- | --- |
//!   | `p = sum over h of x[h] W[h]`, for gate and up | `dp = g(H) sum of abs(x[h] W[h])` |
//!   | `s = silu(p)` | `ds = L dp + 8 u (abs(s) + L dp)`, with `L = 1.1` above the largest slope of silu |
//!   | `a = s q` | `da = abs(s) dq + abs(q) ds + ds dq + u (abs(s) + ds) (abs(q) + dq)` |
//!   | `z = sum over i of a[i] W[i]` | `dz = sum of da[i] abs(W[i]) + g(I) sum of (abs(a[i]) + da[i]) abs(W[i])`, then `dz + v (abs(z) + dz)` |
//!   | `y = sum over k of w[k] z[k]` | `dy = sum of w[k] (dz[k] + (g(K) + e) (abs(z[k]) + dz[k]))`, then `dy + v (abs(y) + dy)`; `e = (16 + largest - smallest logit) u` for the weights |
//!
//!   No element of a device's result may be farther than its bound from the dense computation on *the tokens that the
//!   experts get*: the dequantized ones ([`WireTokens`]). This finds a wrong expert, weight or row whatever the format.
//! * **Quantization.** Rounding an element to a grid of step d is taken as noise, uniform in ±d/2, of its own for every
//!   element but the largest of a block, whose error is known with the scale ([`WireTokens::noisy`]). The dense computation on the tokens plus such noise says what that does to the results; its RMS
//!   difference from the dense computation on the tokens as they are is the *expected* error. The *budget* is
//!   [`MARGIN`] times that, plus the RMS of the rounding bounds. A device's RMS error, against the tokens as they are,
//!   must be within the budget. For BF16 there is no noise, so the budget is the rounding alone.

mod dense;
mod report;
mod wire;

pub use dense::{Dense, Routed, dense, route};
pub use report::{LayerError, LayerReport, MARGIN};
pub use wire::{WireFormat, WireTokens};
