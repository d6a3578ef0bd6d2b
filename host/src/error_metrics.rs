//! How far dequantized rows are from the original ones.

use rayon::prelude::*;

/// Differences between original values and what became of them, over the pairs that are both finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorMetrics {
    /// Pairs that were compared.
    pub compared: usize,
    /// Pairs left out because one or both are NaN or infinite.
    pub left_out: usize,
    /// Root of the mean squared error; 0 when nothing was compared.
    pub rms: f64,
    /// Largest absolute error; 0 when nothing was compared.
    pub max: f64,
    /// Signal to quantization noise ratio in decibels: 10 log10(sum of squares / sum of squared
    /// errors). +Inf when there is no error at all, -Inf when there is error but no signal.
    pub sqnr_db: f64,
}

/// The two sides are not equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot compare {original} original values with {decoded} decoded ones")]
pub struct LengthMismatch {
    /// Values on the original side.
    pub original: usize,
    /// Values on the decoded side.
    pub decoded: usize,
}

/// What is summed over the values, in FP64.
#[derive(Clone, Copy, Default)]
struct Sums {
    compared: usize,
    signal: f64,
    noise: f64,
    max: f64,
}

impl Sums {
    fn of(original: &[f32], decoded: &[f32]) -> Sums {
        let mut sums = Sums::default();
        for (&x, &y) in original.iter().zip(decoded) {
            if x.is_finite() && y.is_finite() {
                let (x, error) = (f64::from(x), f64::from(x) - f64::from(y));
                sums.compared += 1;
                sums.signal += x * x;
                sums.noise += error * error;
                sums.max = sums.max.max(error.abs());
            }
        }
        sums
    }

    fn plus(self, other: Sums) -> Sums {
        Sums {
            compared: self.compared + other.compared,
            signal: self.signal + other.signal,
            noise: self.noise + other.noise,
            max: self.max.max(other.max),
        }
    }
}

impl ErrorMetrics {
    /// Compares `decoded` with `original`, element by element.
    ///
    /// The same input gives the same bits on any number of threads.
    ///
    /// ```
    /// use tokenyard::error_metrics::ErrorMetrics;
    ///
    /// let metrics = ErrorMetrics::between(&[3.0, -4.0, f32::NAN], &[3.0, -4.5, 0.0])?;
    /// assert_eq!((metrics.compared, metrics.left_out), (2, 1));
    /// assert_eq!((metrics.rms, metrics.max), (0.125_f64.sqrt(), 0.5));
    /// assert_eq!(metrics.sqnr_db, 20.0);
    /// # Ok::<(), tokenyard::error_metrics::LengthMismatch>(())
    /// ```
    ///
    /// # Errors
    /// [`LengthMismatch`] when the two are not equally long.
    pub fn between(original: &[f32], decoded: &[f32]) -> Result<ErrorMetrics, LengthMismatch> {
        if original.len() != decoded.len() {
            return Err(LengthMismatch {
                original: original.len(),
                decoded: decoded.len(),
            });
        }
        // Fixed pieces, added up in order: a sum must not depend on how work was divided.
        const PIECE: usize = 1 << 16;
        let pieces: Vec<Sums> = original
            .par_chunks(PIECE)
            .zip(decoded.par_chunks(PIECE))
            .map(|(original, decoded)| Sums::of(original, decoded))
            .collect();
        let sums = pieces.into_iter().fold(Sums::default(), Sums::plus);

        let mean = if sums.compared == 0 {
            0.0
        } else {
            sums.noise / sums.compared as f64
        };
        let sqnr_db = if sums.noise == 0.0 {
            f64::INFINITY
        } else {
            10.0 * (sums.signal / sums.noise).log10()
        };
        Ok(ErrorMetrics {
            compared: sums.compared,
            left_out: original.len() - sums.compared,
            rms: mean.sqrt(),
            max: sums.max,
            sqnr_db,
        })
    }
}

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;

    use super::*;

    #[test]
    fn nothing_and_no_error_are_defined() {
        let nothing = ErrorMetrics::between(&[], &[]).unwrap();
        assert_eq!((nothing.compared, nothing.rms, nothing.max), (0, 0.0, 0.0));
        assert_eq!(nothing.sqnr_db, f64::INFINITY);
        let lost = ErrorMetrics::between(&[0.0, 0.0], &[1.0, 0.0]).unwrap();
        assert_eq!(lost.sqnr_db, f64::NEG_INFINITY);
        let specials = [f32::NAN, f32::INFINITY, 1.0, 2.0];
        let decoded = [f32::NAN, f32::INFINITY, f32::NAN, f32::INFINITY];
        let left_out = ErrorMetrics::between(&specials, &decoded).unwrap();
        assert_eq!(
            (left_out.compared, left_out.left_out, left_out.rms),
            (0, 4, 0.0)
        );
    }

    #[test]
    fn lengths_must_agree() {
        assert_eq!(
            ErrorMetrics::between(&[1.0], &[]).unwrap_err(),
            LengthMismatch {
                original: 1,
                decoded: 0
            }
        );
    }

    #[test]
    fn many_pieces_are_added_up() {
        let original: Vec<f32> = (0..300_000).map(|i| (i % 7) as f32).collect();
        let decoded: Vec<f32> = original.iter().map(|x| x + 0.25).collect();
        let metrics = ErrorMetrics::between(&original, &decoded).unwrap();
        // Every error is exactly a quarter and its square a sixteenth: sums of 300,000 of those are
        // exact in FP64, and only the root is rounded.
        assert_relative_eq!(metrics.rms, 0.25, max_relative = f64::EPSILON);
        assert_eq!((metrics.max, metrics.compared), (0.25, 300_000));
    }
}
