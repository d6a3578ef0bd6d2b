//! What the pictures share: size, fonts, colours, and drawing the same thing as SVG and as PNG.

use std::path::{Path, PathBuf};
use std::sync::Once;

use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use crate::files::{FileError, write_atomically};

/// Width and height in the units of the drawing functions; an SVG has this size, a PNG twice as
/// many pixels.
pub const SIZE: (u32, u32) = (960, 540);
const PNG_SCALE: u32 = 2;

/// The name under which the bundled typeface is registered; SVG viewers that do not have it fall
/// back to their own sans-serif.
const FONT: &str = "Ubuntu, sans-serif";

/// Ink for axes and text.
pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Grid lines, and areas that are there for comparison.
pub const PALE: RGBColor = RGBColor(0xDD, 0xDD, 0xDD);
/// Series colours, from the palette of Okabe and Ito, which stays distinct under every common kind
/// of colour blindness and in greyscale.
pub const SERIES: [RGBColor; 3] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
];

/// A picture that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The plotting library refused.
    #[error("cannot draw: {0}")]
    Draw(String),
    /// The PNG encoder refused.
    #[error("cannot encode a PNG")]
    Png(#[from] png::EncodingError),
}

/// One picture in both encodings.
#[derive(Debug)]
pub struct Picture {
    /// The SVG document.
    pub svg: String,
    /// The PNG file.
    pub png: Vec<u8>,
}

impl Picture {
    /// Writes `NAME.svg` and `NAME.png` into a folder and returns their paths.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn write(&self, folder: &Path, name: &str) -> Result<[PathBuf; 2], FileError> {
        let (svg, png) = (
            folder.join(format!("{name}.svg")),
            folder.join(format!("{name}.png")),
        );
        write_atomically(&svg, |file| file.write_all(self.svg.as_bytes()))?;
        write_atomically(&png, |file| file.write_all(&self.png))?;
        Ok([svg, png])
    }
}

/// Sizes on a canvas that may be enlarged.
#[derive(Clone, Copy)]
pub struct Scale(u32);

impl Scale {
    /// `units` of the drawing, in pixels.
    pub fn px(self, units: u32) -> u32 {
        units * self.0
    }

    /// Text of `size` units.
    pub fn font(self, size: u32) -> TextStyle<'static> {
        (FONT, self.px(size) as i32).into_font().color(&INK)
    }

    /// A line of `width` units.
    pub fn stroke(self, color: RGBColor, width: u32) -> ShapeStyle {
        color.stroke_width(self.px(width))
    }
}

/// A drawing, for any backend.
pub trait Draw {
    /// Draws on `area`, which is blank.
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: Scale,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>>;
}

/// The part of `area` below a title and a line under it.
pub fn titled<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    subtitle: &str,
    scale: Scale,
) -> Result<DrawingArea<B, Shift>, DrawingAreaErrorKind<B::ErrorType>> {
    area.margin(scale.px(16), 0, 0, 0)
        .titled(title, scale.font(24))?
        .titled(subtitle, scale.font(15))
}

/// Draws the legend of a chart's labelled series, `margin` units away from the edge.
pub fn legend<'a, B: DrawingBackend + 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, B, C>,
    position: SeriesLabelPosition,
    margin: u32,
    scale: Scale,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    chart
        .configure_series_labels()
        .position(position)
        .margin(scale.px(margin))
        .legend_area_size(scale.px(30))
        .label_font(scale.font(16))
        .background_style(WHITE.mix(0.9))
        .border_style(PALE)
        .draw()
}

/// Draws `drawing` in both encodings.
pub fn render(drawing: &impl Draw) -> Result<Picture, PlotError> {
    static FONTS: Once = Once::new();
    FONTS.call_once(|| {
        let font = epaint_default_fonts::UBUNTU_LIGHT;
        // Registering fails for bytes that are no font; then drawing reports the missing font.
        let _ = register_font(FONT, FontStyle::Normal, font);
    });

    let mut svg = String::new();
    paint(SVGBackend::with_string(&mut svg, SIZE), drawing, Scale(1))?;

    let (width, height) = (SIZE.0 * PNG_SCALE, SIZE.1 * PNG_SCALE);
    let mut pixels = vec![0; (width * height * 3) as usize];
    let backend = BitMapBackend::with_buffer(&mut pixels, (width, height));
    paint(backend, drawing, Scale(PNG_SCALE))?;

    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(Picture { svg, png })
}

fn paint<B: DrawingBackend>(
    backend: B,
    drawing: &impl Draw,
    scale: Scale,
) -> Result<(), PlotError> {
    let area = backend.into_drawing_area();
    area.fill(&WHITE)
        .and_then(|()| drawing.draw(&area, scale))
        .and_then(|()| area.present())
        .map_err(|error| PlotError::Draw(error.to_string()))
}
