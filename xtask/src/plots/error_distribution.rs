//! How the error of one element is distributed, format by format.

use plotters::coord::Shift;
use plotters::prelude::*;
use tokenyard::options::Format;

use super::canvas::{Draw, INK, PALE, Picture, PlotError, SERIES, Scale, legend, render, titled};

/// Width of a bin, in percent: wider than the steps in which BF16 elements can miss their value.
const BIN_WIDTH: f64 = 2.5;
/// Rounding to nearest moves an element by its own size at most, namely when it becomes zero or is
/// rounded up from half the smallest magnitude. One more bin takes what moved further, by clipping
/// for example.
const BINS: usize = (100.0 / BIN_WIDTH) as usize + 1;

/// Counts of the relative error |decoded - original| / |original| in percent.
#[derive(Clone, Debug)]
pub struct ErrorHistogram {
    counts: [u64; BINS],
    exact: u64,
    elements: u64,
}

impl ErrorHistogram {
    /// Counts all pairs that are both finite. An element that is zero and comes back as zero has no
    /// error; one that does not belongs to the last bin.
    pub fn between(original: &[f32], decoded: &[f32]) -> Self {
        let mut histogram = Self {
            counts: [0; BINS],
            exact: 0,
            elements: 0,
        };
        for (&x, &y) in original.iter().zip(decoded) {
            if !(x.is_finite() && y.is_finite()) {
                continue;
            }
            histogram.elements += 1;
            if x == y {
                histogram.exact += 1;
                histogram.counts[0] += 1;
                continue;
            }
            let (x, y) = (f64::from(x), f64::from(y));
            let percent = 100.0 * (y - x).abs() / x.abs();
            // An element that became zero, 100 % exactly, is in the last bin but one.
            let last = if percent <= 100.0 { BINS - 2 } else { BINS - 1 };
            histogram.counts[((percent / BIN_WIDTH) as usize).min(last)] += 1;
        }
        histogram
    }

    /// Share of elements that come back unchanged, 0 to 1.
    pub fn exact_share(&self) -> f64 {
        self.exact as f64 / self.elements.max(1) as f64
    }

    /// Share of elements that fall into a bin, in percent.
    fn percent(&self, bin: usize) -> f64 {
        100.0 * self.counts[bin] as f64 / self.elements.max(1) as f64
    }
}

/// One curve.
#[derive(Clone, Debug)]
pub struct ErrorSeries {
    /// The format.
    pub format: Format,
    /// Its errors.
    pub histogram: ErrorHistogram,
    /// Signal to quantization noise ratio, in decibels.
    pub sqnr_db: f64,
}

/// Draws one curve per format; `subtitle` says what was quantized.
///
/// # Errors
/// [`PlotError`]
pub fn error_distribution(series: &[ErrorSeries], subtitle: &str) -> Result<Picture, PlotError> {
    render(&Drawing { series, subtitle })
}

struct Drawing<'a> {
    series: &'a [ErrorSeries],
    subtitle: &'a str,
}

impl Drawing<'_> {
    /// Bins up to the last one that any series has counts in.
    fn bins(&self) -> usize {
        let occupied = self.series.iter().filter_map(|series| {
            let counts = &series.histogram.counts;
            counts.iter().rposition(|&count| count > 0)
        });
        occupied.max().map_or(1, |last| last + 1)
    }

    /// Power of ten, in percent of the elements, that is below every count.
    fn bottom(&self) -> i32 {
        let shares = self.series.iter().flat_map(|series| {
            (0..BINS)
                .map(|bin| series.histogram.percent(bin))
                .filter(|&share| share > 0.0)
        });
        let least = shares.fold(1.0, f64::min);
        (least.log10().floor() as i32).max(LEAST_DECADE)
    }
}

/// The vertical axis goes down to a millionth of the elements at most.
const LEAST_DECADE: i32 = -4;
/// It goes up to all of them: 100 %.
const TOP_DECADE: i32 = 2;

impl Draw for Drawing<'_> {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: Scale,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let area = titled(area, "Relative error of an element", self.subtitle, scale)?;
        let (bottom, top) = (f64::from(self.bottom()), f64::from(TOP_DECADE));
        let mut chart = ChartBuilder::on(&area)
            .margin(scale.px(14))
            .margin_right(scale.px(28))
            .x_label_area_size(scale.px(46))
            .y_label_area_size(scale.px(86))
            .build_cartesian_2d(0.0..self.bins() as f64 * BIN_WIDTH, bottom..top)?;
        chart
            .configure_mesh()
            .x_desc(format!(
                "|decoded - original| / |original| in bins of {BIN_WIDTH} %; at 100 % an element became zero"
            ))
            .y_desc("Share of all elements")
            .axis_desc_style(scale.font(16))
            .label_style(scale.font(15))
            .x_labels(11)
            .y_labels((TOP_DECADE - self.bottom() + 1) as usize)
            .x_label_formatter(&|percent| format!("{percent:.0} %"))
            .y_label_formatter(&|decade| format!("{} %", 10_f64.powf(decade.round())))
            .bold_line_style(PALE)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .draw()?;

        for (index, series) in self.series.iter().enumerate() {
            let color = SERIES[index % SERIES.len()];
            let mut outline = Vec::new();
            for bin in 0..self.bins() {
                // A bin without elements would be at minus infinity.
                let height = series.histogram.percent(bin).log10().max(bottom);
                outline.push((bin as f64 * BIN_WIDTH, height));
                outline.push(((bin + 1) as f64 * BIN_WIDTH, height));
            }
            let label = format!(
                "{}: SQNR {:.1} dB, {:.1} % unchanged",
                series.format.name().to_uppercase(),
                series.sqnr_db,
                100.0 * series.histogram.exact_share(),
            );
            let (length, half_thick) = (scale.px(22) as i32, scale.px(2) as i32);
            chart
                .draw_series(LineSeries::new(outline, scale.stroke(color, 2)))?
                .label(label)
                .legend(move |(x, y)| {
                    let corners = [(x, y - half_thick), (x + length, y + half_thick)];
                    Rectangle::new(corners, color.filled())
                });
        }
        legend(&mut chart, SeriesLabelPosition::UpperMiddle, 12, scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_fall_into_their_bins() {
        let histogram = ErrorHistogram::between(
            &[4.0, 2.0, f32::NAN, 1.0, 0.0, 8.0, 0.0, 1.0],
            &[4.0, 1.5, 0.0, f32::INFINITY, 0.0, -8.0, 1.0, 0.0],
        );
        assert_eq!((histogram.exact, histogram.elements), (2, 6));
        let occupied: Vec<_> = (0..BINS)
            .map(|bin| (bin, histogram.counts[bin]))
            .filter(|&(_, count)| count > 0)
            .collect();
        assert_eq!(occupied, [(0, 2), (10, 1), (BINS - 2, 1), (BINS - 1, 2)]);
    }

    #[test]
    fn draws_also_when_there_is_nothing_to_see() {
        for values in [&[][..], &[0.0, 0.0][..], &[1.0, 2.0][..]] {
            let series = [ErrorSeries {
                format: Format::Nvfp4,
                histogram: ErrorHistogram::between(values, values),
                sqnr_db: f64::INFINITY,
            }];
            let picture = error_distribution(&series, "nothing").unwrap();
            assert!(picture.svg.trim_end().ends_with("</svg>"));
            assert!(picture.png.starts_with(b"\x89PNG"));
        }
    }
}
