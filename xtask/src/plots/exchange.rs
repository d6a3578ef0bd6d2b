//! How many rows and bytes each rank sends to each other one.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::canvas::{Draw, INK, Picture, PlotError, SERIES, Scale, render, titled};
use crate::report::{bytes, grouped};

/// Messages of one size between ranks.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// What the messages hold, for the title.
    pub format: String,
    /// Bytes of a message.
    pub message_bytes: usize,
}

/// Draws one heat map for each exchange, side by side and in the same colours for the same bytes.
/// `rows[source][destination]` are the messages.
///
/// # Errors
/// [`PlotError`]
pub fn exchange_map(
    rows: &[Vec<usize>],
    exchanges: &[Exchange],
    subtitle: &str,
) -> Result<Picture, PlotError> {
    render(&Drawing {
        rows,
        exchanges,
        subtitle,
    })
}

struct Drawing<'a> {
    rows: &'a [Vec<usize>],
    exchanges: &'a [Exchange],
    subtitle: &'a str,
}

impl Draw for Drawing<'_> {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: Scale,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let area = titled(
            area,
            "Dispatch: rows and bytes between ranks",
            self.subtitle,
            scale,
        )?;
        let most_rows = self.rows.iter().flatten().copied().max().unwrap_or(0);
        let largest = self
            .exchanges
            .iter()
            .map(|exchange| exchange.message_bytes)
            .max();
        let most = (most_rows * largest.unwrap_or(0)).max(1);
        let panels = area.split_evenly((1, self.exchanges.len().max(1)));
        for (exchange, panel) in self.exchanges.iter().zip(&panels) {
            self.panel(panel, exchange, most, scale)?;
        }
        Ok(())
    }
}

impl Drawing<'_> {
    fn panel<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        exchange: &Exchange,
        most: usize,
        scale: Scale,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let ranks = self.rows.len();
        let total: usize = self.rows.iter().flatten().sum();
        let caption = format!(
            "{}: {} a row, {} in all",
            exchange.format,
            bytes(exchange.message_bytes as u64),
            bytes((total * exchange.message_bytes) as u64),
        );
        let end = ranks as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(caption, scale.font(18))
            .margin(scale.px(14))
            .x_label_area_size(scale.px(40))
            .y_label_area_size(scale.px(48))
            // The first source is on top.
            .build_cartesian_2d(0.0..end, end..0.0)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc("Destination rank")
            .y_desc("Source rank")
            .axis_desc_style(scale.font(15))
            .x_labels(0)
            .y_labels(0)
            .axis_style(INK)
            .draw()?;
        for (source, row) in self.rows.iter().enumerate() {
            for (destination, &count) in row.iter().enumerate() {
                let (x, y) = (destination as f64, source as f64);
                let moved = count * exchange.message_bytes;
                let share = moved as f64 / most as f64;
                let fill = SERIES[0].mix(0.08 + 0.92 * share).filled();
                let corners = [(x + 0.02, y + 0.02), (x + 0.98, y + 0.98)];
                chart.draw_series([Rectangle::new(corners, fill)])?;
                let ink = if share > 0.55 { WHITE } else { INK };
                let text = |size: u32| {
                    let centred = Pos::new(HPos::Center, VPos::Center);
                    scale.font(size).color(&ink).pos(centred)
                };
                let lines = [
                    (0.26, format!("{source} to {destination}"), text(14)),
                    (0.50, format!("{} rows", grouped(count as u64)), text(15)),
                    (0.72, bytes(moved as u64), text(14)),
                ];
                chart.draw_series(
                    lines.map(|(down, line, style)| Text::new(line, (x + 0.5, y + down), style)),
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_one_rank_four_and_no_traffic() {
        let exchanges = ["MXFP4", "BF16"].map(|format| Exchange {
            format: format.to_owned(),
            message_bytes: 3840,
        });
        for rows in [
            vec![vec![3]],
            vec![vec![1, 20, 300, 4000]; 4],
            vec![vec![0; 2]; 2],
        ] {
            let picture = exchange_map(&rows, &exchanges, "test").unwrap();
            assert!(picture.svg.contains("Source rank") && picture.svg.contains("MXFP4"));
            assert!(picture.png.starts_with(b"\x89PNG"));
        }
    }
}
