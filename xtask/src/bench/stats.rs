//! Medians and their spread.

use serde::{Deserialize, Serialize};

/// What repeated measurements of one thing came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// The tenth percentile.
    pub p10: f64,
    /// The ninetieth percentile.
    pub p90: f64,
    /// How many measurements there were.
    pub samples: usize,
}

impl Summary {
    /// Of `samples`; `None` of none at all.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let share = |share| Some(rounded(percentile(&sorted, share)?));
        Some(Self {
            median: share(0.5)?,
            p10: share(0.1)?,
            p90: share(0.9)?,
            samples: sorted.len(),
        })
    }
}

/// To four decimals, a tenth of a nanosecond in microseconds: more than a clock can tell, and records
/// stay readable.
pub fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// The value that a share of a sorted list lies below, interpolated between neighbours.
fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    let weight = place - below as f64;
    Some(sorted[below] * (1.0 - weight) + sorted[above] * weight)
}

/// The median of `numerators[i] / denominators[i]`. Both of a pair were measured in the same round, so
/// that a clock that drifts over the run cancels out.
pub fn median_ratio(numerators: &[f64], denominators: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = numerators
        .iter()
        .zip(denominators)
        .map(|(numerator, denominator)| numerator / denominator)
        .collect();
    Some(Summary::of(&ratios)?.median)
}

/// Bytes moved in a number of microseconds, in GB/s (10^9 bytes).
pub fn gigabytes_per_second(bytes: u64, microseconds: f64) -> f64 {
    rounded(bytes as f64 / microseconds / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_interpolated() {
        let summary = Summary::of(&[5.0, 1.0, 2.0, 4.0, 3.0]).unwrap();
        assert_eq!(summary.median, 3.0);
        assert_eq!((summary.p10, summary.p90), (1.4, 4.6));
        assert_eq!(Summary::of(&[2.0, 4.0]).unwrap().median, 3.0);
        assert_eq!(Summary::of(&[7.0]).unwrap().p90, 7.0);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        let summary = Summary::of(&[10.0, 10.0, 10.0, 10.0, 900.0]).unwrap();
        assert_eq!((summary.median, summary.p10), (10.0, 10.0));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The clock halves in the last round, for both.
        assert_eq!(
            median_ratio(&[9.0, 9.0, 18.0], &[10.0, 10.0, 20.0]),
            Some(0.9)
        );
        assert_eq!(median_ratio(&[], &[]), None);
    }

    #[test]
    fn a_thousand_bytes_in_a_microsecond_are_a_gigabyte_per_second() {
        assert_eq!(gigabytes_per_second(4_800_000, 1000.0), 4.8);
        assert_eq!(gigabytes_per_second(1000, 1.0), 1.0);
    }
}
