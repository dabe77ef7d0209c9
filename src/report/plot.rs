//! Drawing: marks between two axes become an SVG image whose colours are CSS variables.

use std::ops::Range;

use plotters::chart::ChartBuilder;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::drawing::{DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Polygon, Rectangle, Text};
use plotters::prelude::SVGBackend;
use plotters::series::DashedLineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, IntoTextStyle, ShapeStyle, TextStyle};

use super::axis::Axis;
use super::palette::{self, Ink};

/// The library places everything at whole pixels: images are drawn at twice their size.
const SCALE: u32 = 2;

/// Width of an image as it is shown, where there is room: a telephone's, so that text keeps its size
/// there.
pub const WIDTH: u32 = 420;

const FONT: &str = "system-ui, sans-serif";
/// The library divides sizes by 1.24 for SVG; what is shown is 12 pixels high.
const FONT_SIZE: f64 = 12.0 * 1.24 * SCALE as f64;
/// Of a letter, on average; longer labels get more room than they need.
const LETTER_WIDTH: f64 = 0.62 * 12.0 * SCALE as f64;

/// How a series is told from others, beside its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    None,
    Circle,
    Square,
    Triangle,
    Diamond,
}

impl Marker {
    /// For the series of this index.
    pub fn of(index: usize) -> Marker {
        let all = [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond];
        // Where colours begin anew, shapes are others.
        all[(index + index / 8) % all.len()]
    }
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    None,
    Solid,
    Dashed,
}

/// What is drawn between the axes; places are the axes' positions.
#[derive(Clone, Debug)]
pub enum Mark {
    Line {
        points: Vec<(f64, f64)>,
        ink: Ink,
        stroke: Stroke,
        marker: Marker,
    },
    Bar {
        from: (f64, f64),
        to: (f64, f64),
        ink: Ink,
    },
    /// Beginning at this place and centred upon its height.
    Text {
        at: (f64, f64),
        text: String,
    },
}

/// Draws marks between axes, `height` pixels high.
pub fn draw(x: &Axis, y: &Axis, height: u32, marks: &[Mark]) -> String {
    let mut svg = String::new();
    draw_into(&mut svg, x, y, height, marks).expect("a string takes any drawing");
    palette::with_variables(&svg)
}

type Failure = DrawingAreaErrorKind<std::io::Error>;

fn draw_into(
    svg: &mut String,
    x: &Axis,
    y: &Axis,
    height: u32,
    marks: &[Mark],
) -> Result<(), Failure> {
    let root = SVGBackend::with_string(svg, (WIDTH * SCALE, height * SCALE)).into_drawing_area();
    let text = text(Ink::Text);
    let letters = y.ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
    let label_width = (letters as f64 * LETTER_WIDTH) as u32 + 14 * SCALE;
    let top = if y.name.is_empty() { 8 } else { 26 };
    let mut chart = ChartBuilder::on(&root)
        .margin_top(top * SCALE)
        // Half of the last label stands beyond the axis.
        .margin_right(22 * SCALE)
        .x_label_area_size((if x.name.is_empty() { 22 } else { 40 }) * SCALE)
        .y_label_area_size(label_width.min(WIDTH * SCALE / 2))
        .build_cartesian_2d(Coordinate(x.clone()), Coordinate(y.clone()))?;
    chart
        .configure_mesh()
        .bold_line_style(line(Ink::Grid, 1))
        .light_line_style(plotters::style::TRANSPARENT)
        .axis_style(line(Ink::Axis, 1))
        .set_all_tick_mark_size(4 * SCALE)
        .label_style(text.clone())
        .x_desc(x.name.clone())
        .draw()?;
    if !y.name.is_empty() {
        root.draw(&Text::new(y.name.clone(), (4 * SCALE as i32, 4 * SCALE as i32), text.clone()))?;
    }
    for mark in marks {
        match mark {
            Mark::Bar { from, to, ink } => {
                let filled = Rectangle::new([*from, *to], ink.rgb().filled());
                chart.draw_series([filled])?;
            }
            Mark::Text { at, text: words } => {
                let style = text.pos(Pos::new(HPos::Left, VPos::Center));
                chart.draw_series([Text::new(words.clone(), *at, style)])?;
            }
            Mark::Line { points, ink, stroke, marker } => {
                let style = line(*ink, 2);
                match stroke {
                    Stroke::None => {}
                    Stroke::Solid => {
                        chart.draw_series([PathElement::new(points.clone(), style)])?;
                    }
                    Stroke::Dashed => {
                        let (dash, gap) = (6 * SCALE, 4 * SCALE);
                        let dashes = DashedLineSeries::new(points.clone(), dash, gap, style);
                        chart.draw_series(dashes)?;
                    }
                }
                let fill = ink.rgb().filled();
                let shape = |corners: &[(i32, i32)], point: (f64, f64)| {
                    let corners = corners.iter().map(|(x, y)| (x * SCALE as i32, y * SCALE as i32));
                    plotters::element::EmptyElement::at(point)
                        + Polygon::new(corners.collect::<Vec<_>>(), fill)
                };
                let points = points.iter().copied();
                match marker {
                    Marker::None => {}
                    Marker::Circle => {
                        let circles = points.map(|point| Circle::new(point, 4 * SCALE, fill));
                        chart.draw_series(circles)?;
                    }
                    Marker::Square => {
                        let corners = [(-4, -4), (4, -4), (4, 4), (-4, 4)];
                        chart.draw_series(points.map(|point| shape(&corners, point)))?;
                    }
                    Marker::Triangle => {
                        let corners = [(0, -5), (5, 4), (-5, 4)];
                        chart.draw_series(points.map(|point| shape(&corners, point)))?;
                    }
                    Marker::Diamond => {
                        let corners = [(0, -5), (5, 0), (0, 5), (-5, 0)];
                        chart.draw_series(points.map(|point| shape(&corners, point)))?;
                    }
                }
            }
        }
    }
    root.present()
}

/// An axis as the library knows coordinates.
struct Coordinate(Axis);

impl Ranged for Coordinate {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (first, last): (i32, i32)) -> i32 {
        let (low, high) = self.0.ends;
        let share = ((place - low) / (high - low)).clamp(-1.0, 2.0);
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // There are no light lines between the others.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks() }
    }

    fn range(&self) -> Range<f64> {
        self.0.ends.0..self.0.ends.1
    }
}

impl Coordinate {
    fn ticks(&self) -> Vec<f64> {
        self.0.ticks.iter().map(|(place, _)| *place).collect()
    }
}

impl ValueFormatter<f64> for Coordinate {
    fn format_ext(&self, place: &f64) -> String {
        let tick = self.0.ticks.iter().find(|(tick, _)| tick == place);
        tick.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

fn line(ink: Ink, width: u32) -> ShapeStyle {
    ink.rgb().stroke_width(width * SCALE)
}

fn text(ink: Ink) -> TextStyle<'static> {
    let color = ink.rgb();
    (FONT, FONT_SIZE).into_font().color(&color).into_text_style(&(0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::numbers::short;

    #[test]
    fn a_drawing_names_colours_by_their_variables_alone() {
        let x = Axis::linear("steps", [0.0, 10.0], true, short);
        let y = Axis::linear("loss & <more>", [0.0, 2.0], true, short);
        let line = |stroke, marker| Mark::Line {
            points: vec![(0.0, 2.0), (5.0, 1.0), (10.0, 0.5)],
            ink: Ink::Data(1),
            stroke,
            marker,
        };
        let svg = draw(
            &x,
            &y,
            240,
            &[
                line(Stroke::Solid, Marker::Circle),
                line(Stroke::Dashed, Marker::Square),
                line(Stroke::None, Marker::Triangle),
                line(Stroke::None, Marker::Diamond),
                Mark::Bar { from: (0.0, 0.0), to: (1.0, 1.0), ink: Ink::Data(2) },
                Mark::Text { at: (1.0, 1.0), text: "a<b".into() },
            ],
        );
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(!svg.contains("=\"#"), "a colour of its own would not follow the theme: {svg}");
        for part in
            ["var(--data-1)", "var(--data-2)", "a&lt;b", "loss &amp; &lt;more&gt;", "polygon"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }
}
