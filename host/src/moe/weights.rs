//! The weights of a layer, on the host.

use super::error::{MoeError, check_length, to_u32};
use std::ops::Range;

/// The extents of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeShape {
    /// H: elements of a token. A multiple of 8.
    pub hidden_size: usize,
    /// I: elements between an expert's projections. A multiple of 4.
    pub intermediate_size: usize,
    /// E: experts.
    pub experts: usize,
    /// K: experts of a token, at least 1 and at most E.
    pub top_k: usize,
}

impl MoeShape {
    /// Checks every extent.
    ///
    /// # Errors
    ///
    /// [`MoeError::Multiple`], [`MoeError::TooLarge`].
    pub fn check(&self) -> Result<(), MoeError> {
        for (what, value, multiple) in [
            ("hidden_size", self.hidden_size, 8),
            ("intermediate_size", self.intermediate_size, 4),
            ("experts", self.experts, 1),
            ("top_k", self.top_k, 1),
        ] {
            if value == 0 || !value.is_multiple_of(multiple) {
                return Err(MoeError::Multiple {
                    what,
                    value,
                    multiple,
                });
            }
            to_u32(what, value)?;
        }
        if self.top_k > self.experts {
            return Err(MoeError::TooLarge {
                what: "top_k",
                value: self.top_k,
                limit: self.experts,
            });
        }
        Ok(())
    }

    /// Values of one projection of one expert.
    pub fn projection_len(&self) -> usize {
        self.hidden_size * self.intermediate_size
    }
}

/// The weights of a layer: matrices are `[in, out]`, row after row.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeWeights {
    shape: MoeShape,
    router: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
}

impl MoeWeights {
    /// Weights of the caller's: `router` is `[H, E]`, `gate` and `up` are `[E, H, I]`, `down` is `[E, I, H]`.
    ///
    /// # Errors
    ///
    /// As [`MoeShape::check`], and [`MoeError::Length`].
    pub fn new(
        shape: MoeShape,
        router: Vec<f32>,
        gate: Vec<f32>,
        up: Vec<f32>,
        down: Vec<f32>,
    ) -> Result<Self, MoeError> {
        shape.check()?;
        let projections = shape.experts * shape.projection_len();
        check_length("router", router.len(), shape.hidden_size * shape.experts)?;
        check_length("gate", gate.len(), projections)?;
        check_length("up", up.len(), projections)?;
        check_length("down", down.len(), projections)?;
        Ok(Self {
            shape,
            router,
            gate,
            up,
            down,
        })
    }

    /// Random weights, the same for the same seed: uniform with the variance `1 / in` of a trained layer's usual
    /// start, so that a token's magnitude passes through every projection.
    ///
    /// # Errors
    ///
    /// As [`MoeShape::check`].
    pub fn random(shape: MoeShape, seed: u64) -> Result<Self, MoeError> {
        shape.check()?;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut matrix = |count: usize, inputs: usize| -> Vec<f32> {
            // Uniform in ±a has the variance a² / 3.
            let reach = (3.0 / inputs as f32).sqrt();
            let mut value = || (2.0 * random.f32() - 1.0) * reach;
            (0..count).map(|_| value()).collect()
        };
        let projections = shape.experts * shape.projection_len();
        let router = matrix(shape.hidden_size * shape.experts, shape.hidden_size);
        let gate = matrix(projections, shape.hidden_size);
        let up = matrix(projections, shape.hidden_size);
        let down = matrix(projections, shape.intermediate_size);
        Self::new(shape, router, gate, up, down)
    }

    /// The extents.
    pub fn shape(&self) -> MoeShape {
        self.shape
    }

    /// `[H, E]`.
    pub fn router(&self) -> &[f32] {
        &self.router
    }

    /// The gate projections of some experts, `[experts, H, I]`.
    pub fn gate(&self, experts: Range<usize>) -> &[f32] {
        self.projections(&self.gate, experts)
    }

    /// The up projections of some experts, `[experts, H, I]`.
    pub fn up(&self, experts: Range<usize>) -> &[f32] {
        self.projections(&self.up, experts)
    }

    /// The down projections of some experts, `[experts, I, H]`.
    pub fn down(&self, experts: Range<usize>) -> &[f32] {
        self.projections(&self.down, experts)
    }

    fn projections<'a>(&self, matrices: &'a [f32], experts: Range<usize>) -> &'a [f32] {
        let len = self.shape.projection_len();
        &matrices[experts.start * len..experts.end * len]
    }
}
