//! Where values stand on an axis, and which of them are written beside it.

/// At most so many labels stand on an axis.
const TICKS_MAX: usize = 6;

/// An axis: its name, its ticks, and how far it goes.
#[derive(Clone, Debug)]
pub struct Axis {
    pub name: String,
    /// Positions and what is written there.
    pub ticks: Vec<(f64, String)>,
    /// Positions of its two ends; the first is the lower.
    pub ends: (f64, f64),
    logarithmic: bool,
}

impl Axis {
    /// From 0, or from below the smallest value where `from_zero` is off, to above the largest.
    pub fn linear(
        name: &str,
        values: impl IntoIterator<Item = f64>,
        from_zero: bool,
        label: impl Fn(f64) -> String,
    ) -> Axis {
        let (mut low, mut high) = extent(values).unwrap_or((0.0, 1.0));
        if from_zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if low == high {
            (low, high) = (low - low.abs().max(1.0) / 2.0, high + high.abs().max(1.0) / 2.0);
            low = if from_zero { low.max(0.0) } else { low };
        }
        let step = round_step((high - low) / (TICKS_MAX - 1) as f64);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        let ticks = (first..=last).map(|i| i as f64 * step).map(|at| (at, label(at))).collect();
        let ends = (first as f64 * step, last as f64 * step);
        Axis { name: name.to_owned(), ticks, ends, logarithmic: false }
    }

    /// Between powers of 10 around the values, which are positive; others have no place.
    pub fn logarithmic(
        name: &str,
        values: impl IntoIterator<Item = f64>,
        label: impl Fn(f64) -> String,
    ) -> Axis {
        let positive = values.into_iter().filter(|&value| value > 0.0);
        let (low, high) = extent(positive).unwrap_or((1.0, 10.0));
        let (low, high) = (low.log10(), high.log10());
        // Within a decade or two, powers alone would say too little.
        let marks: &[f64] = match high - low {
            span if span < 1.5 => &[1.0, 2.0, 5.0],
            span if span < 2.5 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let decades = low.floor() as i32 - 1..=high.ceil() as i32 + 1;
        let all: Vec<f64> = decades
            .flat_map(|decade| marks.iter().map(move |mark| mark * 10f64.powi(decade)))
            .collect();
        let below = all.iter().rposition(|tick| tick.log10() <= low + 1e-9).unwrap_or(0);
        let above = all.iter().position(|tick| tick.log10() >= high - 1e-9);
        let above = above.unwrap_or(all.len() - 1).max(below + 1);
        let shown = &all[below..=above];
        let every = shown.len().div_ceil(TICKS_MAX + 1);
        Axis {
            name: name.to_owned(),
            ticks: shown.iter().step_by(every).map(|&tick| (tick.log10(), label(tick))).collect(),
            ends: (all[below].log10(), all[above].log10()),
            logarithmic: true,
        }
    }

    /// Logarithmic, with a tick at each whole number that is given, such as numbers of workers; where
    /// they are many, at some.
    pub fn at_values(name: &str, values: impl IntoIterator<Item = f64>) -> Axis {
        let mut values: Vec<f64> = values.into_iter().filter(|&value| value > 0.0).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let places: Vec<f64> = values.iter().map(|value| value.log10()).collect();
        let (low, high) = extent(places.iter().copied()).unwrap_or((0.0, 1.0));
        let margin = if high > low { (high - low) * 0.04 } else { 0.5 };
        // Labels of neighbours must not touch each other; powers of 2 are the usual numbers.
        let apart = (high - low) / 11.0;
        values.sort_by_key(|value| value.log2().fract() != 0.0);
        let mut ticks: Vec<(f64, String)> = Vec::new();
        for value in values {
            let place = value.log10();
            if ticks.iter().all(|(other, _)| (place - other).abs() >= apart) {
                ticks.push((place, super::numbers::count(value as usize)));
            }
        }
        Axis {
            name: name.to_owned(),
            ticks,
            ends: (low - margin, high + margin),
            logarithmic: true,
        }
    }

    /// A row for each name, the first one at the top.
    pub fn rows(names: &[String]) -> Axis {
        let rows = names.len();
        let ticks = names.iter().enumerate().map(|(i, name)| (Axis::row(rows, i), name.clone()));
        Axis {
            name: String::new(),
            ticks: ticks.collect(),
            ends: (0.0, rows.max(1) as f64),
            logarithmic: false,
        }
    }

    /// A column for each name, from 0 on, one wide.
    pub fn columns(name: &str, names: &[String]) -> Axis {
        let ticks = names.iter().enumerate().map(|(i, name)| (i as f64 + 0.5, name.clone()));
        Axis {
            name: name.to_owned(),
            ticks: ticks.collect(),
            ends: (0.0, names.len().max(1) as f64),
            logarithmic: false,
        }
    }

    /// The middle of row `index` of so many.
    pub fn row(rows: usize, index: usize) -> f64 {
        rows as f64 - index as f64 - 0.5
    }

    /// The position of a value; none if the axis has no place for it.
    pub fn place(&self, value: f64) -> Option<f64> {
        let place = match self.logarithmic {
            true if value <= 0.0 => return None,
            true => value.log10(),
            false => value,
        };
        place.is_finite().then_some(place)
    }
}

/// The smallest and the largest finite value.
fn extent(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| value.is_finite()).fold(None, |extent, value| {
        let (low, high) = extent.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// The next larger of 1, 2, 2.5 and 5 times a power of 10.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powi(least.log10().floor() as i32);
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|mark| mark * power);
    steps.into_iter().find(|&step| step >= least * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::numbers::short;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_enclose_the_values() {
        let axis = Axis::linear("", [3.0, 47.0], true, short);
        assert_eq!(labels(&axis), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(axis.ends, (0.0, 50.0));
        let axis = Axis::linear("", [0.91, 0.94], false, short);
        assert!(axis.ends.0 > 0.9 && axis.ends.0 <= 0.91 && axis.ends.1 >= 0.94, "{axis:?}");
        assert!(axis.ticks.len() <= TICKS_MAX + 1, "{axis:?}");
    }

    #[test]
    fn logarithmic_ticks_are_powers_and_what_lies_between() {
        let axis = Axis::logarithmic("", [30.0, 400.0], short);
        assert_eq!(labels(&axis), ["20", "50", "100", "200", "500"]);
        let axis = Axis::logarithmic("", [2.0, 80_000.0], short);
        assert_eq!(labels(&axis), ["1", "10", "100", "1,000", "10,000", "100,000"]);
        assert_eq!(axis.place(100.0), Some(2.0));
        assert_eq!(axis.place(0.0), None);
    }

    #[test]
    fn no_values_and_equal_values_have_an_axis_too() {
        for axis in [
            Axis::linear("", [], true, short),
            Axis::linear("", [0.0], true, short),
            Axis::linear("", [5.0, f64::NAN], false, short),
            Axis::logarithmic("", [7.0], short),
            Axis::logarithmic("", [0.0], short),
            Axis::at_values("", [4.0]),
            Axis::at_values("", []),
        ] {
            assert!(axis.ends.1 > axis.ends.0, "{axis:?}");
            assert!(axis.ticks.iter().all(|(at, _)| at.is_finite()), "{axis:?}");
        }
    }

    #[test]
    fn workers_are_written_where_they_are() {
        let axis = Axis::at_values("", [1.0, 2.0, 4.0, 8.0, 16.0, 4.0]);
        assert_eq!(labels(&axis), ["1", "2", "4", "8", "16"]);
        let many = Axis::at_values("", (0..13).map(|i| f64::from(1 << i)));
        assert_eq!(many.ticks.last().unwrap().1, "4,096");
        let crowded = Axis::at_values("", (1..=100).map(f64::from));
        assert!(crowded.ticks.len() <= 12, "{crowded:?}");
    }
}
