//! A complete small Mixture-of-Experts layer: router, dispatch, experts, combine.
//!
//! It is here to show how the parts go together, and to be checked as a whole: its router and its experts are plain
//! kernels (`kernels_gpu::moe`), written to be read, not to be fast. Dispatch and combine are those of [`ep`](crate::ep).
//!
//! For a token `x` with the K experts of the largest logits `x R`, and `w` the softmax over these K logits,
//!
//! ```text
//! y = sum over k of w[k] * E(e[k], q(x)),    E(e, x) = (silu(x Wg[e]) * (x Wu[e])) Wd[e],    silu(z) = z / (1 + exp(-z))
//! ```
//!
//! where `q` is what the dispatch format makes of a token: nothing for BF16. [`reference::moe`](crate::reference::moe)
//! computes the same densely on the CPU, in f64, with bounds for what rounding may do and a budget for what `q` may.

mod error;
mod experts;
mod layer;
mod router;
mod weights;

pub use error::MoeError;
pub use experts::ExpertMlp;
pub use layer::{MoeLayer, MoeLayerConfig};
pub use router::Router;
pub use weights::{MoeShape, MoeWeights};
