//! Colours that colour-blind people tell apart, on light and on dark paper.
//!
//! The eight are those of Okabe and Ito (Color Universal Design, 2008). A chart is drawn with their
//! names, CSS variables, so that one drawing does for both themes. On white, four of them are too
//! faint for a thin line, and on black two too dark: there they are darkened or lightened until the
//! contrast is 3:1, which WCAG 2.1 asks of graphics (success criterion 1.4.11).

use std::fmt::Write;

use plotters::style::RGBColor;

/// What a colour is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    Text,
    /// Axes' lines.
    Axis,
    /// Lines behind the data.
    Grid,
    /// Of data, by index; the ninth is the first again.
    Data(usize),
}

/// Red, green and blue.
type Rgb = [u8; 3];

struct Color {
    /// The CSS variable.
    name: &'static str,
    light: Rgb,
    dark: Rgb,
}

const BACKGROUND: Color =
    Color { name: "--paper", light: [0xff, 0xff, 0xff], dark: [0x16, 0x1a, 0x1e] };
const TEXT: Color = Color { name: "--text", light: [0x1b, 0x1f, 0x24], dark: [0xe6, 0xe9, 0xec] };
const AXIS: Color = Color { name: "--axis", light: [0x6a, 0x72, 0x7c], dark: [0x9a, 0xa3, 0xad] };
const GRID: Color = Color { name: "--grid", light: [0xe2, 0xe5, 0xe9], dark: [0x2f, 0x35, 0x3c] };

/// Blue, vermillion, bluish green, orange, reddish purple, sky blue, black, yellow.
const DATA: [Color; 8] = [
    Color { name: "--data-0", light: [0x00, 0x72, 0xb2], dark: [0x2b, 0x8f, 0xce] },
    Color { name: "--data-1", light: [0xd5, 0x5e, 0x00], dark: [0xe4, 0x6c, 0x0a] },
    Color { name: "--data-2", light: [0x00, 0x96, 0x6c], dark: [0x00, 0x9e, 0x73] },
    Color { name: "--data-3", light: [0xc2, 0x83, 0x00], dark: [0xe6, 0x9f, 0x00] },
    Color { name: "--data-4", light: [0xc0, 0x6a, 0x98], dark: [0xcc, 0x79, 0xa7] },
    Color { name: "--data-5", light: [0x2f, 0x93, 0xc9], dark: [0x56, 0xb4, 0xe9] },
    Color { name: "--data-6", light: [0x30, 0x30, 0x30], dark: [0xd0, 0xd0, 0xd0] },
    Color { name: "--data-7", light: [0x9c, 0x91, 0x00], dark: [0xf0, 0xe4, 0x42] },
];

impl Ink {
    fn color(self) -> &'static Color {
        match self {
            Ink::Text => &TEXT,
            Ink::Axis => &AXIS,
            Ink::Grid => &GRID,
            Ink::Data(index) => &DATA[index % DATA.len()],
        }
    }

    /// What the plotting library draws with; [`with_variables`] puts the variable in its place.
    pub fn rgb(self) -> RGBColor {
        let [red, green, blue] = self.color().light;
        RGBColor(red, green, blue)
    }

    /// As a CSS value.
    pub fn css(self) -> String {
        format!("var({})", self.color().name)
    }
}

fn all() -> impl Iterator<Item = &'static Color> {
    [&BACKGROUND, &TEXT, &AXIS, &GRID].into_iter().chain(&DATA)
}

fn hex([red, green, blue]: Rgb) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// Replaces the attributes' colours by their CSS variables.
pub fn with_variables(svg: &str) -> String {
    all().fold(svg.to_owned(), |svg, color| {
        let value = format!("=\"{}\"", hex(color.light));
        svg.replace(&value, &format!("=\"var({})\"", color.name))
    })
}

/// The variables' definitions, for a light and for a dark page.
pub fn css() -> String {
    let list = |of: fn(&Color) -> Rgb| {
        all().fold(String::new(), |mut text, color| {
            let _ = write!(text, "{}:{};", color.name, hex(of(color)));
            text
        })
    };
    let (light, dark) = (list(|color| color.light), list(|color| color.dark));
    format!(
        ":root{{color-scheme:light dark;{light}}}\n\
         @media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As WCAG 2.1 defines it.
    fn luminance(color: Rgb) -> f64 {
        let linear = |byte: u8| {
            let share = f64::from(byte) / 255.0;
            if share <= 0.040_45 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        let [red, green, blue] = color.map(linear);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }

    fn contrast(a: Rgb, b: Rgb) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// 3:1 for graphics and 4.5:1 for text, as WCAG 2.1 asks (1.4.11 and 1.4.3).
    #[test]
    fn everything_drawn_can_be_seen_in_both_themes() {
        let seen = |color: &Color, ratio: f64| {
            for (ink, paper) in [(color.light, BACKGROUND.light), (color.dark, BACKGROUND.dark)] {
                assert!(contrast(ink, paper) >= ratio, "{} {}", color.name, contrast(ink, paper));
            }
        };
        DATA.iter().for_each(|color| seen(color, 3.0));
        seen(&TEXT, 4.5);
        seen(&AXIS, 4.5);
    }

    #[test]
    fn no_two_colours_are_one() {
        let mut values: Vec<Rgb> = all().map(|color| color.light).collect();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), all().count(), "a drawing could not tell their variables apart");
    }

    #[test]
    fn attributes_become_variables_and_text_does_not() {
        let svg = r##"<path fill="#0072B2"/><text>#0072B2</text>"##;
        assert_eq!(with_variables(svg), r##"<path fill="var(--data-0)"/><text>#0072B2</text>"##);
    }
}
