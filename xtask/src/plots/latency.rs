//! How long a call takes as one extent grows.

use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use super::canvas::{Draw, INK, PALE, Picture, PlotError, SERIES, Scale, legend, render, titled};
use crate::report::grouped;

/// One line of the picture.
#[derive(Clone, Debug)]
pub struct TimeSeries {
    /// Its name in the legend.
    pub name: String,
    /// Which of the palette's colours; beyond those it is ink.
    pub color: usize,
    /// Whether it is a bound, drawn thinner and without points.
    pub is_bound: bool,
    /// Extent and microseconds, by ascending extent, both above 0.
    pub points: Vec<(f64, f64)>,
}

/// What the picture says besides the lines.
#[derive(Clone, Copy, Debug)]
pub struct TimeLabels<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// Below the title.
    pub subtitle: &'a str,
    /// The extent that grows.
    pub extent: &'a str,
}

/// Draws times against an extent on a logarithmic axis. The times are on one too where they span a
/// decade; else theirs begins at 0.
///
/// # Errors
/// [`PlotError`]
pub fn times(series: &[TimeSeries], labels: TimeLabels<'_>) -> Result<Picture, PlotError> {
    render(&Drawing { series, labels })
}

struct Drawing<'a> {
    series: &'a [TimeSeries],
    labels: TimeLabels<'a>,
}

impl Drawing<'_> {
    /// The range of one coordinate, a little widened; some range where there is no point.
    fn range(&self, coordinate: impl Fn(&(f64, f64)) -> f64) -> std::ops::Range<f64> {
        let values = || {
            let points = self.series.iter().flat_map(|series| &series.points);
            points.map(&coordinate)
        };
        let low = values().fold(f64::INFINITY, f64::min);
        let high = values().fold(0.0, f64::max);
        if low > high {
            return 1.0..10.0;
        }
        low / 1.3..high * 1.3
    }
}

impl Draw for Drawing<'_> {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: Scale,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let TimeLabels {
            title,
            subtitle,
            extent,
        } = self.labels;
        let area = titled(area, title, subtitle, scale)?;
        let (x, y) = (self.range(|point| point.0), self.range(|point| point.1));
        let mut builder = ChartBuilder::on(&area);
        builder
            .margin(scale.px(14))
            .margin_right(scale.px(28))
            .x_label_area_size(scale.px(46))
            .y_label_area_size(scale.px(72));
        if y.end / y.start > 10.0 {
            let chart = builder.build_cartesian_2d(x.log_scale(), y.log_scale())?;
            self.lines(chart, extent, scale)
        } else {
            // Room above for the legend.
            let chart = builder.build_cartesian_2d(x.log_scale(), 0.0..y.end * 1.3)?;
            self.lines(chart, extent, scale)
        }
    }
}

impl Drawing<'_> {
    fn lines<'b, B: DrawingBackend + 'b, Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
        &self,
        mut chart: ChartContext<'b, B, Cartesian2d<LogCoord<f64>, Y>>,
        extent: &str,
        scale: Scale,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let number = |value: f64| match value {
            10.0.. => grouped(value.round() as u64),
            _ => format!("{value}"),
        };
        chart
            .configure_mesh()
            .x_desc(extent)
            .y_desc("µs")
            .axis_desc_style(scale.font(16))
            .label_style(scale.font(15))
            .x_label_formatter(&|&value| number(value))
            .y_label_formatter(&|&value| number(value))
            .bold_line_style(PALE)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .draw()?;

        let length = scale.px(22) as i32;
        for series in self.series {
            let color = SERIES.get(series.color).copied().unwrap_or(INK);
            let width = if series.is_bound { 1 } else { 2 };
            let half = scale.px(width) as i32;
            let points = series.points.iter().copied();
            chart
                .draw_series(LineSeries::new(points.clone(), scale.stroke(color, width)))?
                .label(&series.name)
                .legend(move |(x, y)| {
                    Rectangle::new(
                        [(x, y - half / 2), (x + length, y + (half + 1) / 2)],
                        color.filled(),
                    )
                });
            if !series.is_bound {
                let radius = scale.px(3);
                chart.draw_series(points.map(|at| Circle::new(at, radius, color.filled())))?;
            }
        }
        legend(&mut chart, SeriesLabelPosition::UpperLeft, 12, scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_lines_of_any_length() {
        let series = |points: Vec<(f64, f64)>, is_bound| TimeSeries {
            name: "MXFP8".to_owned(),
            color: 2,
            is_bound,
            points,
        };
        let labels = TimeLabels {
            title: "Time of a call",
            subtitle: "test",
            extent: "Rows",
        };
        for series in [
            vec![],
            vec![series(vec![], false)],
            vec![series(vec![(1.0, 2.5)], true)],
            vec![series(
                vec![(1.0, 152.5), (64.0, 150.0), (1024.0, 155.0)],
                false,
            )],
            vec![
                series(vec![(1.0, 2.5), (65536.0, 180.0)], false),
                series(vec![(1.0, 2.0), (65536.0, 2.0)], true),
            ],
        ] {
            let picture = times(&series, labels).unwrap();
            assert!(picture.svg.contains("Time of a call"));
            assert!(picture.png.starts_with(b"\x89PNG"));
        }
    }
}
