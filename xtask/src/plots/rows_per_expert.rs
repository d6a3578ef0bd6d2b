//! How unevenly the router divides the rows.

use plotters::coord::Shift;
use plotters::prelude::*;
use tokenyard::routing::TILE_ROWS;

use super::canvas::{Draw, INK, PALE, Picture, PlotError, SERIES, Scale, legend, render, titled};
use crate::report::grouped;

/// Draws one bar per expert, with the rows that padding to whole scale tiles adds.
///
/// # Errors
/// [`PlotError`]
pub fn rows_per_expert(rows: &[usize], subtitle: &str) -> Result<Picture, PlotError> {
    render(&Drawing { rows, subtitle })
}

struct Drawing<'a> {
    rows: &'a [usize],
    subtitle: &'a str,
}

impl Draw for Drawing<'_> {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: Scale,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let area = titled(area, "Rows per expert", self.subtitle, scale)?;
        let experts = self.rows.len();
        let padded: Vec<usize> = self
            .rows
            .iter()
            .map(|rows| rows.next_multiple_of(TILE_ROWS))
            .collect();
        let top = padded.iter().copied().max().unwrap_or(0).max(TILE_ROWS);
        let mut chart = ChartBuilder::on(&area)
            .margin(scale.px(14))
            .margin_right(scale.px(28))
            .x_label_area_size(scale.px(46))
            .y_label_area_size(scale.px(72))
            // Room above the highest bar for the legend.
            .build_cartesian_2d(-0.6..experts as f64 - 0.4, 0.0..top as f64 * 1.25)?;
        chart
            .configure_mesh()
            .x_desc("Expert")
            .y_desc("Rows")
            .axis_desc_style(scale.font(16))
            .label_style(scale.font(15))
            .x_labels(experts.min(16))
            .x_label_formatter(&|&expert| format!("{expert:.0}"))
            .y_label_formatter(&|&rows| grouped(rows.round() as u64))
            .disable_x_mesh()
            .bold_line_style(PALE)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .draw()?;

        let bar = |expert: usize, from: usize, to: usize, style: ShapeStyle| {
            let center = expert as f64;
            Rectangle::new(
                [(center - 0.4, from as f64), (center + 0.4, to as f64)],
                style,
            )
        };
        let (color, padding) = (SERIES[0].filled(), PALE.filled());
        let (length, half_thick) = (scale.px(22) as i32, scale.px(5) as i32);
        let swatch = move |(x, y): (i32, i32), style: ShapeStyle| {
            Rectangle::new([(x, y - half_thick), (x + length, y + half_thick)], style)
        };
        let bars = self.rows.iter().enumerate();
        chart
            .draw_series(bars.map(|(expert, &rows)| bar(expert, 0, rows, color)))?
            .label("rows")
            .legend(move |at| swatch(at, color));
        let bars = self.rows.iter().zip(&padded).enumerate();
        chart
            .draw_series(bars.map(|(expert, (&rows, &padded))| bar(expert, rows, padded, padding)))?
            .label(format!(
                "padding of the scales to tiles of {TILE_ROWS} rows"
            ))
            .legend(move |at| swatch(at, padding));
        let mean = self.rows.iter().sum::<usize>() as f64 / experts.max(1) as f64;
        let style = scale.stroke(SERIES[1], 2);
        let line = [(-0.6, mean), (experts as f64 - 0.4, mean)];
        let thin = scale.px(1) as i32;
        chart
            .draw_series(LineSeries::new(line, style))?
            .label(format!("mean: {mean:.0} rows"))
            .legend(move |(x, y)| {
                Rectangle::new([(x, y - thin), (x + length, y + thin)], SERIES[1].filled())
            });
        legend(&mut chart, SeriesLabelPosition::UpperRight, 12, scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_few_many_and_no_experts() {
        for rows in [vec![], vec![0], vec![20, 0, 546], vec![3; 1024]] {
            let picture = rows_per_expert(&rows, "test").unwrap();
            assert!(picture.svg.contains("Rows per expert"));
            assert!(picture.png.starts_with(b"\x89PNG"));
        }
    }
}
