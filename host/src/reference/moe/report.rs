//! A device's result, held against the dense computation.

use super::{Dense, Routed, WireFormat, dense, route};
use crate::moe::{MoeError, MoeWeights};
use crate::reference::formats::bf16_widen;
use thiserror::Error;

/// The budget over the expected error. The noise is one sample of it, good for a few hundredths; and real elements are
/// not spread evenly between two codes, which makes a few hundredths more.
pub const MARGIN: f64 = 1.1;

/// How a device's result compares. Errors are relative: RMS of the differences over RMS of the dense results.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerReport {
    /// What tokens were dispatched as.
    pub wire: WireFormat,
    /// The device's error, against the tokens as they are.
    pub error: f64,
    /// What noise of the format's step makes.
    pub expected: f64,
    /// What rounding to f32 and BF16 may make.
    pub rounding: f64,
    /// The most that any element used of its rounding bound, against the tokens that the experts got.
    pub worst_of_bound: f64,
    worst: Worst,
}

/// The element that used the most of its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Worst {
    token: usize,
    column: usize,
    found: f32,
    dense: f64,
    bound: f64,
}

/// Why a device's result is not that of the layer.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LayerError {
    /// An element is farther from the dense computation than rounding explains.
    #[error(
        "token {token}, column {column} is {found}; the dense computation has {dense}, and rounding explains {bound:.2e}"
    )]
    Rounding {
        /// The token.
        token: usize,
        /// The column.
        column: usize,
        /// What the device has.
        found: f32,
        /// What the dense computation has, on the tokens that the experts got.
        dense: f64,
        /// How far they may be apart.
        bound: f64,
    },

    /// The error as a whole is beyond what the format may cost.
    #[error(
        "the relative error is {error:.2e}; {expected:.2e} were expected, and the budget is {budget:.2e}"
    )]
    Budget {
        /// The error.
        error: f64,
        /// The expected error.
        expected: f64,
        /// The budget.
        budget: f64,
    },
}

/// Root of the mean square.
fn rms(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    (values.map(|value| value * value).sum::<f64>() / count).sqrt()
}

impl LayerReport {
    /// Compares `outputs` with the dense computation on `tokens`, both `[T, H]` bfloat16 bit patterns; tokens were
    /// dispatched as `wire`. `seed` is that of the noise.
    ///
    /// # Errors
    ///
    /// [`MoeError::Length`].
    pub fn new(
        weights: &MoeWeights,
        wire: WireFormat,
        tokens: &[u16],
        outputs: &[u16],
        seed: u64,
    ) -> Result<Self, MoeError> {
        let hidden_size = weights.shape().hidden_size;
        let whole = tokens.len() / hidden_size * hidden_size;
        for (what, found, expected) in [
            ("tokens", tokens.len(), whole),
            ("outputs", outputs.len(), tokens.len()),
        ] {
            if found != expected {
                return Err(MoeError::Length {
                    what,
                    found,
                    expected,
                });
            }
        }
        let original: Vec<f32> = tokens.iter().map(|&bits| bf16_widen(bits)).collect();
        // The router sees tokens before they are quantized.
        let routed: Routed = route(weights, &original);
        let passed = wire.pass(tokens, hidden_size);
        let noisy = passed.noisy(seed);
        let Dense { outputs: ideal, .. } = dense(weights, &original, &routed);
        let Dense { outputs: noisy, .. } = dense(weights, &noisy, &routed);
        let Dense {
            outputs: on_wire,
            bounds,
        } = dense(weights, &passed.values, &routed);

        let found: Vec<f32> = outputs.iter().map(|&bits| bf16_widen(bits)).collect();
        let used = |index: usize| {
            let difference = (f64::from(found[index]) - on_wire[index]).abs();
            // A NaN is beyond any bound.
            match difference.is_nan() {
                true => f64::INFINITY,
                false => difference / bounds[index],
            }
        };
        let worst = (0..found.len()).max_by(|&a, &b| used(a).total_cmp(&used(b)));
        let size = rms(ideal.iter().copied());
        let relative = |error: f64| if error == 0.0 { 0.0 } else { error / size };
        let pairs = |other: &[f64]| {
            let differences = ideal.iter().zip(other).map(|(a, b)| a - b);
            relative(rms(differences))
        };
        let wide: Vec<f64> = found.iter().map(|&value| value.into()).collect();
        Ok(Self {
            wire,
            error: pairs(&wide),
            expected: pairs(&noisy),
            rounding: relative(rms(bounds.iter().copied())),
            worst_of_bound: worst.map_or(0.0, used),
            worst: worst.map_or(
                Worst {
                    token: 0,
                    column: 0,
                    found: 0.0,
                    dense: 0.0,
                    bound: 0.0,
                },
                |index| Worst {
                    token: index / hidden_size,
                    column: index % hidden_size,
                    found: found[index],
                    dense: on_wire[index],
                    bound: bounds[index],
                },
            ),
        })
    }

    /// The most that [`error`](Self::error) may be: [`MARGIN`] times the expected error, and the rounding.
    pub fn budget(&self) -> f64 {
        MARGIN * self.expected + self.rounding
    }

    /// Whether every element is within its rounding bound, and the error within the budget.
    ///
    /// # Errors
    ///
    /// [`LayerError::Rounding`] with the element that is farthest beyond, else [`LayerError::Budget`].
    pub fn check(&self) -> Result<(), LayerError> {
        let worst = self.worst;
        if self.worst_of_bound > 1.0 {
            return Err(LayerError::Rounding {
                token: worst.token,
                column: worst.column,
                found: worst.found,
                dense: worst.dense,
                bound: worst.bound,
            });
        }
        // Not `>`: a NaN is over budget.
        if self.error <= self.budget() {
            return Ok(());
        }
        Err(LayerError::Budget {
            error: self.error,
            expected: self.expected,
            budget: self.budget(),
        })
    }
}
