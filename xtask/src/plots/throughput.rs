//! How much of what memory gives the quantizer takes.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{Draw, INK, PALE, Picture, PlotError, SERIES, Scale, legend, render, titled};
use crate::report::grouped;

/// A bar, and the ceilings over it. All in GB/s.
#[derive(Clone, Debug)]
pub struct ThroughputBar {
    /// What stands under it; lines are separated by `\n`.
    pub label: String,
    /// The quantizer.
    pub kernel: f64,
    /// Its traffic twin, where it was measured.
    pub twin: Option<f64>,
    /// A plain copy.
    pub copy: f64,
}

/// Draws one bar a case, with a line for the twin and one for the copy across it.
///
/// # Errors
/// [`PlotError`]
pub fn throughput(bars: &[ThroughputBar], subtitle: &str) -> Result<Picture, PlotError> {
    render(&Drawing { bars, subtitle })
}

struct Drawing<'a> {
    bars: &'a [ThroughputBar],
    subtitle: &'a str,
}

impl Draw for Drawing<'_> {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: Scale,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let area = titled(area, "Throughput against the ceiling", self.subtitle, scale)?;
        let bars = self.bars;
        let top = bars
            .iter()
            .flat_map(|bar| [bar.kernel, bar.twin.unwrap_or(0.0), bar.copy])
            .fold(1.0, f64::max);
        // Room for a few lines of labels below, and for the legend above.
        let labels = bars.iter().map(|bar| bar.label.lines().count()).max();
        let label_height = 18 * labels.unwrap_or(1) as u32 + 8;
        let mut chart = ChartBuilder::on(&area)
            .margin(scale.px(14))
            .margin_right(scale.px(28))
            .x_label_area_size(scale.px(label_height))
            .y_label_area_size(scale.px(72))
            .build_cartesian_2d(-0.6..bars.len().max(1) as f64 - 0.4, 0.0..top * 1.3)?;
        chart
            .configure_mesh()
            .y_desc("GB/s, padded scales included")
            .axis_desc_style(scale.font(16))
            .label_style(scale.font(15))
            .x_labels(0)
            .y_label_formatter(&|&rate| grouped(rate.round() as u64))
            .disable_x_mesh()
            .bold_line_style(PALE)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .draw()?;

        let (length, half_thick) = (scale.px(22) as i32, scale.px(5) as i32);
        let swatch = move |(x, y): (i32, i32), half: i32, style: ShapeStyle| {
            Rectangle::new([(x, y - half), (x + length, y + half)], style)
        };
        let place = |index: usize| index as f64;
        chart
            .draw_series(bars.iter().enumerate().map(|(index, bar)| {
                let corners = [
                    (place(index) - 0.36, 0.0),
                    (place(index) + 0.36, bar.kernel),
                ];
                Rectangle::new(corners, SERIES[0].filled())
            }))?
            .label("quantizer")
            .legend(move |at| swatch(at, half_thick, SERIES[0].filled()));
        let thin = scale.px(1) as i32;
        type Ceiling = fn(&ThroughputBar) -> Option<f64>;
        let twin: Ceiling = |bar| bar.twin;
        let copy: Ceiling = |bar| Some(bar.copy);
        for (name, color, height) in [
            ("its traffic twin", SERIES[1], twin),
            ("plain copy", INK, copy),
        ] {
            chart
                .draw_series(bars.iter().enumerate().filter_map(|(index, bar)| {
                    let height = height(bar)?;
                    let line = vec![(place(index) - 0.44, height), (place(index) + 0.44, height)];
                    Some(PathElement::new(line, scale.stroke(color, 2)))
                }))?
                .label(name)
                .legend(move |at| swatch(at, thin, color.filled()));
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight, 8, scale)?;

        // Labels of several lines, which axes do not draw.
        use plotters::style::text_anchor::{HPos, Pos, VPos};
        let style = scale.font(13).pos(Pos::new(HPos::Center, VPos::Top));
        for (index, bar) in bars.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(place(index), 0.0));
            // Coordinates of the whole picture; drawing wants those of the area.
            let origin = area.get_base_pixel();
            for (line, text) in bar.label.lines().enumerate() {
                let y = y - origin.1 + scale.px(6 + 18 * line as u32) as i32;
                area.draw_text(text, &style, (x - origin.0, y))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_any_number_of_bars_with_or_without_a_twin() {
        let bar = |kernel, twin| ThroughputBar {
            label: "MXFP4\n32768 x 7168\n64 experts".to_owned(),
            kernel,
            twin,
            copy: 4200.0,
        };
        for bars in [
            vec![],
            vec![bar(4000.0, Some(4100.0))],
            vec![bar(1.0, None); 9],
        ] {
            let picture = throughput(&bars, "test").unwrap();
            assert!(picture.svg.contains("Throughput against the ceiling"));
            assert_eq!(picture.svg.contains("64 experts"), !bars.is_empty());
            assert!(picture.png.starts_with(b"\x89PNG"));
        }
    }
}
