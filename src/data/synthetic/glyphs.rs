//! How digits are written: strokes through a few points, and the curves through them.

use crate::model::layers::CLASSES;

/// A point; x grows to the right, y downwards.
pub type Point = (f64, f64);

/// A smooth curve through these points; closed if it ends where it begins. Two points are a line.
pub type Stroke = &'static [Point];

/// The usual ways of writing each digit, in a square of side 1.
#[rustfmt::skip]
pub const GLYPHS: [&[&[Stroke]]; CLASSES] = [
    // 0: an oval, and one that does not quite close.
    &[
        &[&[
            (0.52, 0.04), (0.32, 0.14), (0.21, 0.42), (0.26, 0.78), (0.48, 0.96), (0.70, 0.84),
            (0.79, 0.52), (0.72, 0.18), (0.52, 0.04),
        ]],
        &[&[
            (0.62, 0.10), (0.40, 0.07), (0.22, 0.34), (0.24, 0.74), (0.48, 0.95), (0.72, 0.78),
            (0.77, 0.40), (0.64, 0.12), (0.48, 0.12),
        ]],
    ],
    // 1: a stroke, with a flag, with flag and foot.
    &[
        &[&[(0.52, 0.04), (0.50, 0.96)]],
        &[&[(0.36, 0.24), (0.55, 0.05)], &[(0.55, 0.05), (0.52, 0.96)]],
        &[
            &[(0.34, 0.22), (0.52, 0.06)],
            &[(0.52, 0.06), (0.51, 0.94)],
            &[(0.32, 0.94), (0.70, 0.94)],
        ],
    ],
    // 2: with a straight foot, with a loop.
    &[
        &[
            &[
                (0.25, 0.27), (0.36, 0.09), (0.58, 0.06), (0.73, 0.22), (0.65, 0.46),
                (0.44, 0.71), (0.23, 0.93),
            ],
            &[(0.23, 0.93), (0.79, 0.92)],
        ],
        &[&[
            (0.27, 0.22), (0.42, 0.06), (0.64, 0.10), (0.70, 0.32), (0.56, 0.60), (0.36, 0.86),
            (0.24, 0.92), (0.21, 0.80), (0.34, 0.76), (0.54, 0.90), (0.80, 0.88),
        ]],
    ],
    // 3: two bows, and one with a flat top.
    &[
        &[
            &[(0.26, 0.17), (0.44, 0.05), (0.67, 0.12), (0.67, 0.34), (0.42, 0.47)],
            &[
                (0.42, 0.47), (0.67, 0.52), (0.76, 0.72), (0.62, 0.91), (0.40, 0.95),
                (0.23, 0.83),
            ],
        ],
        &[
            &[(0.26, 0.07), (0.73, 0.07)],
            &[(0.73, 0.07), (0.46, 0.40)],
            &[
                (0.46, 0.40), (0.70, 0.48), (0.76, 0.70), (0.62, 0.91), (0.40, 0.94),
                (0.24, 0.84),
            ],
        ],
    ],
    // 4: open, and closed at the top.
    &[
        &[
            &[(0.30, 0.07), (0.26, 0.34), (0.21, 0.56)],
            &[(0.21, 0.56), (0.82, 0.53)],
            &[(0.68, 0.08), (0.64, 0.96)],
        ],
        &[
            &[(0.62, 0.05), (0.19, 0.63)],
            &[(0.19, 0.63), (0.83, 0.62)],
            &[(0.62, 0.05), (0.61, 0.96)],
        ],
    ],
    // 5: the bar straight, and drawn in one go.
    &[
        &[
            &[(0.75, 0.07), (0.33, 0.08)],
            &[(0.33, 0.08), (0.28, 0.45)],
            &[
                (0.28, 0.45), (0.50, 0.37), (0.72, 0.48), (0.76, 0.70), (0.60, 0.92),
                (0.38, 0.95), (0.22, 0.85),
            ],
        ],
        &[
            &[(0.72, 0.09), (0.52, 0.11), (0.36, 0.08), (0.30, 0.28), (0.29, 0.46)],
            &[
                (0.29, 0.46), (0.52, 0.42), (0.70, 0.56), (0.68, 0.80), (0.48, 0.94),
                (0.24, 0.90),
            ],
        ],
    ],
    // 6: with a bent and with a straight back.
    &[
        &[&[
            (0.67, 0.07), (0.46, 0.16), (0.29, 0.42), (0.25, 0.72), (0.38, 0.94), (0.60, 0.94),
            (0.74, 0.76), (0.66, 0.56), (0.46, 0.53), (0.27, 0.70),
        ]],
        &[&[
            (0.56, 0.04), (0.36, 0.36), (0.26, 0.68), (0.36, 0.92), (0.58, 0.95), (0.71, 0.78),
            (0.61, 0.61), (0.42, 0.63), (0.28, 0.78),
        ]],
    ],
    // 7: plain, with a bar, with a bent stem.
    &[
        &[&[(0.22, 0.08), (0.78, 0.08)], &[(0.78, 0.08), (0.42, 0.96)]],
        &[
            &[(0.22, 0.09), (0.78, 0.07)],
            &[(0.78, 0.07), (0.44, 0.96)],
            &[(0.38, 0.52), (0.76, 0.48)],
        ],
        &[
            &[(0.22, 0.16), (0.26, 0.07), (0.50, 0.10), (0.76, 0.07)],
            &[(0.76, 0.07), (0.58, 0.36), (0.46, 0.66), (0.43, 0.96)],
        ],
    ],
    // 8: in one go, and of two rings.
    &[
        &[&[
            (0.69, 0.15), (0.50, 0.04), (0.31, 0.17), (0.38, 0.39), (0.64, 0.58), (0.73, 0.79),
            (0.51, 0.96), (0.28, 0.80), (0.37, 0.58), (0.63, 0.38), (0.69, 0.15),
        ]],
        &[
            &[
                (0.50, 0.05), (0.33, 0.14), (0.33, 0.35), (0.50, 0.46), (0.67, 0.35),
                (0.67, 0.14), (0.50, 0.05),
            ],
            &[
                (0.50, 0.46), (0.28, 0.58), (0.27, 0.83), (0.50, 0.96), (0.73, 0.83),
                (0.72, 0.58), (0.50, 0.46),
            ],
        ],
    ],
    // 9: with a straight stem, and with a hook.
    &[
        &[
            &[
                (0.70, 0.17), (0.52, 0.05), (0.31, 0.16), (0.29, 0.38), (0.46, 0.51),
                (0.65, 0.42), (0.72, 0.20),
            ],
            &[(0.72, 0.10), (0.70, 0.50), (0.62, 0.96)],
        ],
        &[&[
            (0.70, 0.22), (0.54, 0.05), (0.34, 0.13), (0.28, 0.34), (0.44, 0.49), (0.64, 0.40),
            (0.71, 0.18), (0.72, 0.56), (0.60, 0.88), (0.42, 0.96), (0.28, 0.86),
        ]],
    ],
];

/// Straight pieces between two points of a stroke. A curve's points lie some five pixels apart, so
/// a piece is about one pixel long; a line across the whole glyph has pieces of four, short enough
/// to follow the bent page.
pub const SEGMENTS_PER_POINT: usize = 5;

/// The point of a stroke `step / SEGMENTS_PER_POINT` of the way from its first point on: a
/// Catmull-Rom spline (1974), whose tangents at inner points are half the way between neighbours.
pub fn curve_point(stroke: Stroke, step: usize) -> Point {
    let last = stroke.len() - 1;
    let piece = (step / SEGMENTS_PER_POINT).min(last - 1);
    let t = (step - piece * SEGMENTS_PER_POINT) as f64 / SEGMENTS_PER_POINT as f64;
    let closed = stroke[0] == stroke[last];
    let before = match piece {
        0 if closed => stroke[last - 1],
        0 => stroke[0],
        _ => stroke[piece - 1],
    };
    let after = match piece + 2 {
        next if next <= last => stroke[next],
        _ if closed => stroke[1],
        _ => stroke[last],
    };
    let (p1, p2) = (stroke[piece], stroke[piece + 1]);
    let blend = |p0: f64, p1: f64, p2: f64, p3: f64| {
        let a = 3.0 * (p1 - p2) + p3 - p0;
        let b = 2.0 * p0 - 5.0 * p1 + 4.0 * p2 - p3;
        0.5 * (((a * t + b) * t + (p2 - p0)) * t + 2.0 * p1)
    };
    (blend(before.0, p1.0, p2.0, after.0), blend(before.1, p1.1, p2.1, after.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_pass_through_their_points() {
        for stroke in GLYPHS.iter().flat_map(|glyphs| glyphs.iter().copied()).flatten() {
            for (i, &point) in stroke.iter().enumerate() {
                let on_curve = curve_point(stroke, i * SEGMENTS_PER_POINT);
                // Coordinates are below 1 and a polynomial of five terms is evaluated.
                let tolerance = 8.0 * f64::EPSILON;
                assert!((on_curve.0 - point.0).abs() <= tolerance, "{point:?}");
                assert!((on_curve.1 - point.1).abs() <= tolerance, "{point:?}");
            }
        }
    }
}
