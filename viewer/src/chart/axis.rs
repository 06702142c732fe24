//! Axes: ranges, ticks and their words.

use crate::format;

/// How values become positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// In proportion.
    #[default]
    Linear,
    /// In proportion to their logarithm; what is not positive lies at the left end.
    Log,
}

/// What the values are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A number.
    #[default]
    Number,
    /// Nanoseconds.
    Duration,
    /// A share of one.
    Share,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What is on it, with its unit.
    pub label: String,
    /// How values become positions.
    pub scale: Scale,
    /// What the values are.
    pub kind: Kind,
    /// The range that is shown; none: that of the data.
    pub range: Option<(f64, f64)>,
    /// Zero is always shown.
    pub zero: bool,
}

impl Axis {
    /// A linear axis over the data.
    pub fn new(label: impl Into<String>) -> Axis {
        Axis {
            label: label.into(),
            ..Axis::default()
        }
    }

    /// From zero on.
    pub fn from_zero(mut self) -> Axis {
        self.zero = true;
        self
    }

    /// Of nanoseconds.
    pub fn duration(mut self) -> Axis {
        self.kind = Kind::Duration;
        self
    }

    /// Of shares, from 0 to 1.
    pub fn share(mut self) -> Axis {
        self.kind = Kind::Share;
        self.range = Some((0.0, 1.0));
        self
    }

    /// Logarithmic.
    pub fn log(mut self) -> Axis {
        self.scale = Scale::Log;
        self
    }

    /// Over this range.
    pub fn over(mut self, from: f64, to: f64) -> Axis {
        self.range = Some((from, to));
        self
    }

    /// A value in words.
    pub fn words(&self, v: f64) -> String {
        match self.kind {
            Kind::Number => format::figures(v),
            Kind::Duration => format::duration(v),
            Kind::Share => format::percent(v),
        }
    }

    /// Ticks in words: all in one unit, with as many figures as it takes to tell neighbours apart.
    pub fn tick_words(&self, ticks: &[f64]) -> Vec<String> {
        let words: Vec<String> = ticks.iter().map(|v| self.words(*v)).collect();
        let same = |all: &[String]| all.windows(2).any(|pair| pair[0] == pair[1]);
        if self.kind != Kind::Duration || self.scale == Scale::Log {
            return words;
        }
        let minutes = |v: &f64| *v >= 120e9;
        let mixed = ticks.iter().any(minutes) && ticks.iter().any(|v| *v > 0.0 && !minutes(v));
        if mixed && ticks.iter().all(|v| v % 60e9 == 0.0) && ticks.iter().all(|v| *v < 7200e9) {
            let text = |v: &f64| match *v {
                0.0 => "0 s".to_owned(),
                v => format!("{} min", v / 60e9),
            };
            return ticks.iter().map(text).collect();
        }
        if !mixed && !same(&words) {
            return words;
        }
        let seconds = |digits: usize| -> Vec<String> {
            let text = |v: &f64| format!("{:.digits$} s", v * 1e-9);
            ticks.iter().map(text).collect()
        };
        let told = (usize::from(!mixed)..=9)
            .map(seconds)
            .find(|all| !same(all));
        told.unwrap_or(words)
    }

    /// The range that shows all of `values`, with room above; never empty, and positive where the scale is logarithmic.
    pub fn span(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| v.is_finite()) {
            if self.scale == Scale::Linear || v > 0.0 {
                low = low.min(v);
                high = high.max(v);
            }
        }
        let (low, high) = self.range.unwrap_or(match self.scale {
            _ if low > high => (if self.scale == Scale::Log { 1.0 } else { 0.0 }, 10.0),
            Scale::Linear if self.zero || low >= 0.0 && low < 0.5 * high => {
                (low.min(0.0), high * 1.05)
            }
            Scale::Linear => (low - 0.03 * (high - low), high + 0.03 * (high - low)),
            Scale::Log => (low / 1.1, high * 1.1),
        });
        if high > low {
            (low, high)
        } else {
            let room = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
            match self.scale {
                Scale::Linear => (low - if self.zero { 0.0 } else { room }, low + room),
                Scale::Log => (low.max(1e-9) / 2.0, low.max(1e-9) * 2.0),
            }
        }
    }

    /// Where a value lies in `range`, from 0 to 1; beyond it for values outside.
    pub fn position(&self, v: f64, range: (f64, f64)) -> f64 {
        match self.scale {
            Scale::Linear => (v - range.0) / (range.1 - range.0),
            Scale::Log => {
                let low = range.0.max(f64::MIN_POSITIVE).ln();
                (v.max(range.0 * 1e-3).max(f64::MIN_POSITIVE).ln() - low) / (range.1.ln() - low)
            }
        }
    }

    /// The value at a position.
    pub fn value(&self, position: f64, range: (f64, f64)) -> f64 {
        match self.scale {
            Scale::Linear => range.0 + position * (range.1 - range.0),
            Scale::Log => {
                let (a, b) = (range.0.max(f64::MIN_POSITIVE).ln(), range.1.ln());
                (a + position * (b - a)).exp()
            }
        }
    }

    /// At most about `most` round values within `range`.
    pub fn ticks(&self, range: (f64, f64), most: usize) -> Vec<f64> {
        let most = most.max(2);
        match self.scale {
            Scale::Log if range.1 / range.0.max(f64::MIN_POSITIVE) > 8.0 => log_ticks(range, most),
            _ => {
                // One tick says nothing of the scale.
                let of = |most: usize| match self.kind {
                    Kind::Duration => linear_ticks(range, duration_step(range, most)),
                    _ => linear_ticks(range, round_step((range.1 - range.0) / most as f64)),
                };
                let few = (most..most + 3).map(of).find(|ticks| ticks.len() > 1);
                few.unwrap_or_else(|| of(most + 3))
            }
        }
    }
}

/// The smallest of 1, 2, 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let factor = least / power;
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| *f >= factor - 1e-9);
    factor.unwrap_or(10.0) * power
}

/// The same for nanoseconds: whole minutes and hours beyond a minute.
fn duration_step(range: (f64, f64), most: usize) -> f64 {
    let least = (range.1 - range.0) / most as f64;
    let second = 1e9;
    if least <= 30.0 * second {
        return round_step(least);
    }
    let steps = [
        60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0,
    ];
    let step = steps.into_iter().find(|s| s * second >= least);
    step.map_or_else(
        || 3600.0 * second * round_step(least / 3600.0 / second),
        |s| s * second,
    )
}

fn linear_ticks(range: (f64, f64), step: f64) -> Vec<f64> {
    let first = (range.0 / step).ceil();
    let n = ((range.1 / step).floor() - first).clamp(0.0, 100.0) as usize;
    (0..=n)
        .map(|i| (first + i as f64) * step)
        .filter(|t| *t >= range.0 && *t <= range.1)
        .collect()
}

fn log_ticks(range: (f64, f64), most: usize) -> Vec<f64> {
    let (low, high) = (range.0.log10(), range.1.log10().ceil() as i32);
    let decades = ((range.1 / range.0).log10().ceil() as usize).max(1);
    let (low, factors): (i32, &[f64]) = if 3 * decades <= most {
        (low.floor() as i32, &[1.0, 2.0, 5.0])
    } else {
        (low.ceil() as i32, &[1.0])
    };
    let every = decades.div_ceil(most).max(1);
    (low..=high)
        .step_by(every)
        .flat_map(|e| factors.iter().map(move |f| f * 10f64.powi(e)))
        .filter(|t| *t >= range.0 && *t <= range.1)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let axis = Axis::new("x");
        assert_eq!(axis.ticks((0.0, 10.0), 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(axis.ticks((0.0, 1.0), 4), [0.0, 0.5, 1.0]);
        let time = Axis::new("t").duration();
        assert_eq!(time.ticks((0.0, 400e9), 5), [0.0, 120e9, 240e9, 360e9]);
        assert_eq!(axis.ticks((0.0, 430.0), 2), [0.0, 200.0, 400.0]);
        assert_eq!(time.ticks((0.0, 390e9), 3), [0.0, 180e9, 360e9]);
        let log = Axis::new("x").log();
        assert_eq!(
            log.ticks((0.9, 120.0), 9),
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
        );
        assert_eq!(log.ticks((0.9, 1.1e6), 4), [1.0, 100.0, 1e4, 1e6]);
        assert!(axis.ticks((f64::NAN, 1.0), 4).len() <= 101);
    }

    #[test]
    fn ranges_are_never_empty_and_positions_go_both_ways() {
        for axis in [
            Axis::new("a"),
            Axis::new("b").log(),
            Axis::new("c").from_zero(),
        ] {
            for values in [
                vec![],
                vec![5.0],
                vec![0.0],
                vec![1.0, 1000.0],
                vec![f64::NAN],
            ] {
                let range = axis.span(values.iter().copied());
                assert!(range.1 > range.0, "{axis:?} {values:?}");
                let v = axis.value(0.25, range);
                assert!((axis.position(v, range) - 0.25).abs() < 1e-9);
            }
        }
        let (low, _) = Axis::new("q").from_zero().span([90.0, 100.0].into_iter());
        assert_eq!(low, 0.0);
    }

    #[test]
    fn neighbouring_ticks_are_told_apart() {
        let axis = Axis::new("t").duration();
        let at = |seconds: &[f64]| {
            let ticks: Vec<f64> = seconds.iter().map(|s| s * 1e9).collect();
            axis.tick_words(&ticks)
        };
        assert_eq!(at(&[0.0, 60.0, 120.0]), ["0 s", "1 min", "2 min"]);
        assert_eq!(at(&[118.0, 119.0, 120.0]), ["118 s", "119 s", "120 s"]);
        assert_eq!(at(&[0.0, 20.0, 40.0]), ["0 s", "20 s", "40 s"]);
        assert_eq!(
            at(&[118.0, 118.5, 119.0]),
            ["118.0 s", "118.5 s", "119.0 s"]
        );
        assert_eq!(at(&[600.0, 600.01]), ["600.00 s", "600.01 s"]);
    }
}
