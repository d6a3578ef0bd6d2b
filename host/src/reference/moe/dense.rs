//! Routing and the dense computation, with bounds for what rounding may do.

use crate::moe::MoeWeights;
use rayon::prelude::*;

/// Unit roundoff of f32.
const F32: f64 = 1.0 / (1 << 24) as f64;
/// Unit roundoff of BF16.
const BF16: f64 = 1.0 / (1 << 8) as f64;
/// Above the largest slope of silu, 1.0998.
const SILU_SLOPE: f64 = 1.1;

/// What a sum of `terms` fused multiply-adds may lose, relative to the sum of magnitudes.
fn sum_error(terms: usize) -> f64 {
    let error = terms as f64 * F32;
    error / (1.0 - error)
}

/// The experts of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    /// `[T, K]`: the K largest logits' experts, the largest first, of equal ones the lower id.
    pub ids: Vec<i32>,
    /// `[T, K]`: the softmax over the K logits.
    pub weights: Vec<f64>,
    /// `[T]`: the relative error that weights in f32 may have.
    pub weight_errors: Vec<f64>,
}

/// Routes `tokens`, `[T, H]`. Logits are sums over h = 0, 1, … in f32 by fused multiply-add, so that the choice of
/// experts is exactly that of a device which adds in this order.
pub fn route(weights: &MoeWeights, tokens: &[f32]) -> Routed {
    let shape = weights.shape();
    let choose = |token: &[f32]| {
        let mut logits = vec![0_f32; shape.experts];
        for (value, row) in token.iter().zip(weights.router().chunks(shape.experts)) {
            for (logit, weight) in logits.iter_mut().zip(row) {
                *logit = value.mul_add(*weight, *logit);
            }
        }
        let mut order: Vec<usize> = (0..shape.experts).collect();
        // Stable, so that of equal logits the lower id stays first.
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(shape.top_k);
        let above_first = |&expert: &usize| f64::from(logits[expert]) - f64::from(logits[order[0]]);
        let exponentials: Vec<f64> = order.iter().map(|e| above_first(e).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        let spread = order.last().map_or(0.0, |last| -above_first(last));
        let ids: Vec<i32> = order.iter().map(|&expert| expert as i32).collect();
        let weights: Vec<f64> = exponentials.iter().map(|value| value / sum).collect();
        (ids, weights, (16.0 + spread) * F32)
    };
    let chosen: Vec<_> = tokens.par_chunks(shape.hidden_size).map(choose).collect();
    Routed {
        ids: chosen.iter().flat_map(|(ids, ..)| ids).copied().collect(),
        weights: chosen.iter().flat_map(|(_, it, _)| it).copied().collect(),
        weight_errors: chosen.iter().map(|(.., error)| *error).collect(),
    }
}

/// Results of the layer, and how far a device's may be from them.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// `[T, H]`.
    pub outputs: Vec<f64>,
    /// `[T, H]`: bounds of the difference, absolute.
    pub bounds: Vec<f64>,
}

/// A value and a bound of a device's error.
#[derive(Clone, Copy, Default)]
struct Bounded {
    value: f64,
    error: f64,
}

impl Bounded {
    /// The most that a device's magnitude can be.
    fn reach(self) -> f64 {
        self.value.abs() + self.error
    }

    /// Rounded once more, with unit roundoff `unit`.
    fn rounded(self, unit: f64) -> Self {
        Self {
            error: self.error + unit * self.reach() + f64::from(f32::MIN_POSITIVE),
            ..self
        }
    }

    fn silu(self) -> Self {
        let value = self.value / (1.0 + (-self.value).exp());
        let passed_on = SILU_SLOPE * self.error;
        Self {
            value,
            error: passed_on + 8.0 * F32 * (value.abs() + passed_on),
        }
    }

    fn times(self, other: Self) -> Self {
        let product = Self {
            value: self.value * other.value,
            error: self.value.abs() * other.error
                + other.value.abs() * self.error
                + self.error * other.error,
        };
        product.rounded(F32)
    }
}

/// `inputs` times a matrix `[in, out]` of `outputs` columns.
fn project(inputs: &[Bounded], matrix: &[f32], outputs: usize) -> Vec<Bounded> {
    let mut sums = vec![Bounded::default(); outputs];
    let rounding = sum_error(inputs.len());
    for (input, row) in inputs.iter().zip(matrix.chunks(outputs)) {
        let error = input.error + rounding * input.reach();
        for (sum, &weight) in sums.iter_mut().zip(row) {
            let weight = f64::from(weight);
            sum.value += input.value * weight;
            sum.error += error * weight.abs();
        }
    }
    sums
}

/// A token through one expert; the result is rounded to BF16.
fn expert(weights: &MoeWeights, expert: usize, token: &[Bounded]) -> Vec<Bounded> {
    let shape = weights.shape();
    let one = expert..expert + 1;
    let gate = project(token, weights.gate(one.clone()), shape.intermediate_size);
    let up = project(token, weights.up(one.clone()), shape.intermediate_size);
    let pairs = gate.into_iter().zip(up);
    let activated: Vec<Bounded> = pairs.map(|(gate, up)| gate.silu().times(up)).collect();
    let outputs = project(&activated, weights.down(one), shape.hidden_size);
    outputs.into_iter().map(|it| it.rounded(BF16)).collect()
}

/// The layer on `tokens`, `[T, H]`, routed as `routed` says.
pub fn dense(weights: &MoeWeights, tokens: &[f32], routed: &Routed) -> Dense {
    let shape = weights.shape();
    let combine = |(index, token): (usize, &[f32])| {
        let exact = |&value: &f32| Bounded {
            value: value.into(),
            error: 0.0,
        };
        let token: Vec<Bounded> = token.iter().map(exact).collect();
        let mut sums = vec![Bounded::default(); shape.hidden_size];
        let relative = sum_error(shape.top_k) + routed.weight_errors[index];
        for position in index * shape.top_k..(index + 1) * shape.top_k {
            let weight = routed.weights[position];
            let outputs = expert(weights, routed.ids[position] as usize, &token);
            for (sum, output) in sums.iter_mut().zip(outputs) {
                sum.value += weight * output.value;
                sum.error += weight * (output.error + relative * output.reach());
            }
        }
        sums.into_iter().map(|sum| sum.rounded(BF16)).collect()
    };
    let results: Vec<Vec<Bounded>> = tokens
        .par_chunks(shape.hidden_size)
        .enumerate()
        .map(combine)
        .collect();
    let results = results.concat();
    Dense {
        outputs: results.iter().map(|it| it.value).collect(),
        bounds: results.iter().map(|it| it.error).collect(),
    }
}
