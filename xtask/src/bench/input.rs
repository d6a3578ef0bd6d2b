//! Rows as models have them: normally distributed, with outliers.

use half::{bf16, f16};
use rayon::prelude::*;
use tokenyard::options::InputType;

use crate::files::HiddenStates;

/// One column in so many is an outlier channel.
const OUTLIER_COLUMNS: u64 = 128;
/// How much larger its values are.
const OUTLIER_GAIN: f32 = 16.0;
/// One value in 256 is larger than its neighbours by this factor.
const SPIKE_GAIN: f32 = 6.0;

/// No value is larger than this.
pub const LARGEST: f32 = NORMAL_MAX * OUTLIER_GAIN * ROW_GAIN_MAX * SPIKE_GAIN;

/// Rows differ in magnitude between these factors.
const ROW_GAIN_MIN: f32 = 0.5;
const ROW_GAIN_MAX: f32 = 2.0;

/// The square root of 12, the largest [`normal`].
const NORMAL_MAX: f32 = 3.464_101_6;

/// `[rows, columns]` random values, the same on every run. Most are of the order of 1; a few columns,
/// and a few values anywhere, are much larger, as in the activations of language models. (Zeros, or one
/// value throughout, would toggle fewer wires and run faster.)
pub fn hidden_states(rows: usize, columns: usize, input_type: InputType) -> HiddenStates {
    match input_type {
        InputType::F16 => HiddenStates::F16(generate(rows, columns, f16::from_f32)),
        InputType::F32 => HiddenStates::F32(generate(rows, columns, |value| value)),
        _ => HiddenStates::Bf16(generate(rows, columns, bf16::from_f32)),
    }
}

fn generate<T: Copy + Default + Send + Sync>(
    rows: usize,
    columns: usize,
    convert: impl Fn(f32) -> T + Sync,
) -> Vec<T> {
    let mut random = fastrand::Rng::with_seed(columns as u64);
    let gains: Vec<f32> = (0..columns)
        .map(|_| match random.u64(0..OUTLIER_COLUMNS) {
            0 => OUTLIER_GAIN,
            _ => 1.0,
        })
        .collect();
    let mut values = vec![T::default(); rows * columns];
    values
        .par_chunks_mut(columns.max(1))
        .enumerate()
        .for_each(|(row, values)| {
            let mut random = fastrand::Rng::with_seed(row as u64);
            let row_gain = ROW_GAIN_MIN + (ROW_GAIN_MAX - ROW_GAIN_MIN) * random.f32();
            for (values, gains) in values.chunks_mut(8).zip(gains.chunks(8)) {
                let spikes = random.u64(..).to_le_bytes();
                for ((value, gain), spike) in values.iter_mut().zip(gains).zip(spikes) {
                    let spike = if spike == 0 { SPIKE_GAIN } else { 1.0 };
                    *value = convert(normal(random.u64(..)) * gain * row_gain * spike);
                }
            }
        });
    values
}

/// The sum of four uniform values, shifted and scaled to mean 0 and variance 1.
fn normal(bits: u64) -> f32 {
    let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xFFFF).sum();
    (sum as f32 / 65536.0 - 2.0) * (NORMAL_MAX / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_random_of_order_one_with_outliers_and_repeatable() {
        let (rows, columns) = (64, 1024);
        let states = hidden_states(rows, columns, InputType::Bf16);
        assert!(matches!(&states, HiddenStates::Bf16(values) if values.len() == rows * columns));
        let values = states.to_f32();
        assert_eq!(
            values,
            hidden_states(rows, columns, InputType::Bf16).to_f32()
        );
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.1, "{mean}");
        let share = |test: fn(f32) -> bool| {
            values.iter().filter(|&&value| test(value)).count() as f64 / values.len() as f64
        };
        assert!((0.4..0.7).contains(&share(|value| value.abs() < 1.0)));
        assert!((0.001..0.05).contains(&share(|value| value.abs() > 8.0)));
        assert!(share(|value| value == 0.0) < 0.01);
        assert!(values.iter().all(|value| value.abs() <= LARGEST));
        // No row is another one.
        assert_ne!(values[..columns], values[columns..2 * columns]);
    }

    #[test]
    fn every_input_type_has_its_values() {
        for input_type in InputType::ALL {
            let states = hidden_states(3, 40, input_type);
            assert_eq!(states.input_type(), input_type);
            assert_eq!(states.to_f32().len(), 120);
        }
    }
}
