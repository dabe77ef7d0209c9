//! The page that a digit is written on, the pen, and the image in the making.

use super::Random;
use super::glyphs::Point;
use crate::model::layers::{IMAGE_PIXELS, IMAGE_SIDE};

/// How a glyph's square comes to lie on the image.
pub struct Page {
    /// Displacements at the corners of a grid over the square.
    bend: [[Point; BEND_NODES]; BEND_NODES],
    /// Rows of the linear map from the square, its centre at 0, to pixels.
    linear: [[f64; 2]; 2],
    centre: Point,
}

/// Nodes along an axis of the elastic field: few, so that it bends strokes without crumpling them.
const BEND_NODES: usize = 4;

impl Page {
    pub fn random(random: &mut Random) -> Page {
        let mut bend = [[(0.0, 0.0); BEND_NODES]; BEND_NODES];
        for node in bend.as_flattened_mut() {
            *node = (random.between(-0.085, 0.085), random.between(-0.085, 0.085));
        }
        let angle = random.between(-0.26, 0.26);
        let (sin, cos) = (libm::sin(angle), libm::cos(angle));
        let slant = random.between(-0.35, 0.2);
        let height = random.between(17.0, 21.5);
        let width = height * random.between(0.70, 1.10);
        // Scale, then slant, then turn.
        let linear = [
            [cos * width, (cos * slant - sin) * height],
            [sin * width, (sin * slant + cos) * height],
        ];
        let centre = (14.0 + random.between(-1.5, 1.5), 14.0 + random.between(-1.5, 1.5));
        Page { bend, linear, centre }
    }

    /// From the glyph's square to pixels.
    pub fn place(&self, point: Point) -> Point {
        let (dx, dy) = self.bend_at(point);
        let (x, y) = (point.0 + dx - 0.5, point.1 + dy - 0.5);
        let [[xx, xy], [yx, yy]] = self.linear;
        (self.centre.0 + (xx * x + xy * y), self.centre.1 + (yx * x + yy * y))
    }

    /// The field between its nodes, with a smooth step so that it has no creases.
    fn bend_at(&self, point: Point) -> Point {
        let cell = |position: f64| {
            let scaled = (position * (BEND_NODES - 1) as f64).clamp(0.0, (BEND_NODES - 1) as f64);
            let node = (scaled as usize).min(BEND_NODES - 2);
            let t = scaled - node as f64;
            (node, t * t * (3.0 - 2.0 * t))
        };
        let ((column, tx), (row, ty)) = (cell(point.0), cell(point.1));
        let mix = |a: Point, b: Point, t: f64| (a.0 + (b.0 - a.0) * t, a.1 + (b.1 - a.1) * t);
        let nodes = |row: usize| mix(self.bend[row][column], self.bend[row][column + 1], tx);
        mix(nodes(row), nodes(row + 1), ty)
    }
}

/// What draws: a round nib.
pub struct Pen {
    /// Half the width of its line in pixels.
    radius: f64,
    /// Grey value of its line, 255 at most.
    ink: f64,
}

impl Pen {
    pub fn random(random: &mut Random) -> Pen {
        Pen { radius: random.between(0.7, 1.6), ink: random.between(170.0, 255.0) }
    }
}

/// An image in the making: grey values from 0 to 255, not yet rounded.
pub struct Canvas {
    grey: [f64; IMAGE_PIXELS],
}

impl Canvas {
    pub fn new() -> Canvas {
        Canvas { grey: [0.0; IMAGE_PIXELS] }
    }

    /// Draws a line with round ends; its edge fades over one pixel. Where lines cross, the
    /// stronger ink stands: it does not add up.
    pub fn line(&mut self, from: Point, to: Point, pen: &Pen) {
        let along = (to.0 - from.0, to.1 - from.1);
        let length_squared = along.0 * along.0 + along.1 * along.1;
        let reach = pen.radius + 0.5;
        let columns = pixel_range(from.0.min(to.0) - reach, from.0.max(to.0) + reach);
        for row in pixel_range(from.1.min(to.1) - reach, from.1.max(to.1) + reach) {
            for column in columns.clone() {
                let (x, y) = (column as f64 + 0.5 - from.0, row as f64 + 0.5 - from.1);
                let t = if length_squared > 0.0 {
                    ((x * along.0 + y * along.1) / length_squared).clamp(0.0, 1.0)
                } else {
                    0.0
                };
                let (x, y) = (x - t * along.0, y - t * along.1);
                let distance = (x * x + y * y).sqrt();
                let coverage = (reach - distance).clamp(0.0, 1.0);
                let grey = &mut self.grey[row * IMAGE_SIDE + column];
                *grey = grey.max(pen.ink * coverage);
            }
        }
    }

    /// A short line that belongs to nothing.
    pub fn stray_mark(&mut self, random: &mut Random) {
        let side = IMAGE_SIDE as f64;
        let from = (random.between(0.0, side), random.between(0.0, side));
        let to = (from.0 + random.between(-7.0, 7.0), from.1 + random.between(-7.0, 7.0));
        let pen = Pen { radius: random.between(0.4, 1.1), ink: random.between(70.0, 220.0) };
        self.line(from, to, &pen);
    }

    /// A disc near the middle where the ink did not take.
    pub fn gap(&mut self, random: &mut Random) {
        let centre = (random.between(6.0, 22.0), random.between(6.0, 22.0));
        let radius = random.between(1.3, 3.0);
        for row in pixel_range(centre.1 - radius, centre.1 + radius) {
            for column in pixel_range(centre.0 - radius, centre.0 + radius) {
                let (x, y) = (column as f64 + 0.5 - centre.0, row as f64 + 0.5 - centre.1);
                if x * x + y * y < radius * radius {
                    self.grey[row * IMAGE_SIDE + column] = 0.0;
                }
            }
        }
    }

    /// Adds grain and rounds to bytes.
    pub fn scan(&self, random: &mut Random) -> [u8; IMAGE_PIXELS] {
        let deviation = random.between(4.0, 32.0);
        std::array::from_fn(|i| {
            let value = self.grey[i] + deviation * random.bell();
            // The cast saturates: what is below 0 is black, what is above 255 white.
            (value + 0.5) as u8
        })
    }
}

/// The pixels whose centres may lie between two positions along an axis.
fn pixel_range(from: f64, to: f64) -> std::ops::Range<usize> {
    let side = IMAGE_SIDE as f64;
    from.clamp(0.0, side) as usize..to.clamp(0.0, side).ceil() as usize
}
