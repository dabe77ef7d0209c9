//! Figures as people read them.

/// Keeps a figure and its unit on one line.
const NO_BREAK: char = '\u{a0}';

/// A whole number, with commas between groups of three.
pub fn count(value: usize) -> String {
    with_commas(&value.to_string())
}

/// Three significant digits, with commas between groups of three: `0.0123`, `1.23`, `12,300`.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    // The library knows how to round to so many significant digits.
    let rounded: f64 = format!("{:.2e}", value.abs()).parse().unwrap_or(0.0);
    let sign = if value < 0.0 && rounded > 0.0 { "−" } else { "" };
    format!("{sign}{}", with_commas(&format!("{rounded}")))
}

/// Commas between groups of three of the digits before the point.
fn with_commas(text: &str) -> String {
    let whole = text.find('.').unwrap_or(text.len());
    let mut grouped = String::with_capacity(text.len() + whole / 3);
    for (index, character) in text.char_indices() {
        if index > 0 && index < whole && (whole - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(character);
    }
    grouped
}

/// In powers of 1,000, such as `2.47 MB`.
pub fn bytes(value: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{}{NO_BREAK}{name}", short(value / unit)),
        None => format!("{}{NO_BREAK}B", short(value)),
    }
}

/// Large counts on an axis, such as `20k`.
pub fn compact(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e4, "")];
    match units.into_iter().find(|(unit, _)| value.abs() >= *unit) {
        Some((_, "")) => format!("{}k", short(value / 1e3)),
        Some((unit, name)) => format!("{}{name}", short(value / unit)),
        None => short(value),
    }
}

/// A share of 1.
pub fn percent(share: f64) -> String {
    format!("{}{NO_BREAK}%", short(100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_shown() {
        let texts = [0.0, 0.012_34, 1.0, 1.999, 12.34, 123.4, 1_234.0, 9_999.0, -3.5].map(short);
        assert_eq!(texts, ["0", "0.0123", "1", "2", "12.3", "123", "1,230", "10,000", "−3.5"]);
        assert_eq!(short(f64::NAN), "–");
        assert_eq!(short(f64::INFINITY), "–");
        assert_eq!(short(1_234_567.8), "1,230,000");
    }

    #[test]
    fn bytes_have_units() {
        let texts = [0.0, 999.0, 1_000.0, 246_824.0, 2.5e9].map(bytes);
        let texts = texts.map(|text| text.replace(NO_BREAK, " "));
        assert_eq!(texts, ["0 B", "999 B", "1 kB", "247 kB", "2.5 GB"]);
        assert_eq!([1, 1_024].map(count), ["1", "1,024"]);
    }

    #[test]
    fn axes_have_short_labels() {
        assert_eq!([2_000.0, 20_000.0, 1.5e6].map(compact), ["2,000", "20k", "1.5M"]);
        assert_eq!(percent(0.899), "89.9\u{a0}%");
    }
}
