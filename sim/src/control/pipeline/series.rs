//! Series as Prometheus keeps them: samples, staleness, instant values and `rate` (4.9).
//!
//! Source: prometheus/prometheus `promql/functions.go` (`extrapolatedRate`), `promql/engine.go` (lookback delta, stale markers).

use crate::kernel::time::{SimDuration, SimTime};

/// How far back an instant query looks: 5 minutes.
pub const LOOKBACK: SimDuration = SimDuration(300_000_000_000);

/// A sample; no value is a stale marker.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    at: SimTime,
    value: Option<f64>,
}

/// One series, in order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    points: Vec<Point>,
}

impl Series {
    /// Appends a sample. One that is not later than the last is dropped.
    pub fn push(&mut self, at: SimTime, value: f64) {
        self.append(Point {
            at,
            value: Some(value),
        });
    }

    /// Marks the series stale: its target, or the rule's result, has vanished.
    pub fn mark_stale(&mut self, at: SimTime) {
        if self.points.last().is_some_and(|p| p.value.is_some()) {
            self.append(Point { at, value: None });
        }
    }

    fn append(&mut self, point: Point) {
        if self.points.last().is_none_or(|last| last.at < point.at) {
            self.points.push(point);
        }
    }

    /// Forgets what nothing looks at any more: samples older than `keep`.
    pub fn forget_before(&mut self, now: SimTime, keep: SimDuration) {
        let first = self.points.partition_point(|p| now.since(p.at) > keep);
        self.points.drain(..first);
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// The value that an instant query sees: the last sample younger than [`LOOKBACK`], unless it is a stale marker.
    pub fn instant(&self, now: SimTime) -> Option<f64> {
        let until = self.points.partition_point(|p| p.at <= now);
        let last = self.points[..until].last()?;
        last.value.filter(|_| now.since(last.at) < LOOKBACK)
    }

    /// `avg_over_time(series[window])`; none without a sample in the window.
    pub fn avg(&self, now: SimTime, window: SimDuration) -> Option<f64> {
        let (mut n, mut sum) = (0u32, 0.0);
        for value in self.inside(now, window) {
            n += 1;
            sum += value;
        }
        (n > 0).then(|| sum / f64::from(n))
    }

    /// `max_over_time(series[window])`; none without a sample in the window.
    pub fn max(&self, now: SimTime, window: SimDuration) -> Option<f64> {
        self.inside(now, window).reduce(f64::max)
    }

    /// Values in a window that is open at its start.
    fn inside(&self, now: SimTime, window: SimDuration) -> impl Iterator<Item = f64> {
        let inside = move |p: &&Point| p.at <= now && now.since(p.at) < window;
        self.points.iter().filter(inside).filter_map(|p| p.value)
    }

    /// `rate(series[window])` at `now` [1/s]; none with fewer than two samples in the window.
    pub fn rate(&self, now: SimTime, window: SimDuration) -> Option<f64> {
        let inside = |p: &&Point| p.at <= now && now.since(p.at) < window;
        let samples: Vec<(f64, f64)> = self
            .points
            .iter()
            .filter(inside)
            .filter_map(|p| Some((now.since(p.at).as_secs(), p.value?)))
            .collect();
        let (Some(&(first_age, first)), Some(&(last_age, last))) =
            (samples.first(), samples.last())
        else {
            return None;
        };
        if samples.len() < 2 {
            return None;
        }
        // A counter that fell was reset: what it stood at is added.
        let resets: f64 = samples
            .windows(2)
            .filter(|w| w[1].1 < w[0].1)
            .map(|w| w[0].1)
            .sum();
        let increase = last - first + resets;
        let sampled = first_age - last_age;
        let spacing = sampled / (samples.len() - 1) as f64;
        let reach = |gap: f64| {
            if gap >= spacing * 1.1 {
                spacing / 2.0
            } else {
                gap
            }
        };
        let mut to_start = reach(window.as_secs() - first_age);
        if increase > 0.0 && first >= 0.0 {
            // A counter is not extrapolated below zero.
            to_start = to_start.min(sampled * (first / increase));
        }
        let to_end = reach(last_age);
        Some(increase * (sampled + to_start + to_end) / sampled / window.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: f64) -> SimTime {
        SimTime::from_secs(secs)
    }

    const MINUTE: SimDuration = SimDuration(60_000_000_000);

    fn series(points: &[(f64, f64)]) -> Series {
        let mut series = Series::default();
        points.iter().for_each(|&(t, v)| series.push(at(t), v));
        series
    }

    fn close(got: Option<f64>, expected: f64) {
        let got = got.expect("a rate");
        assert!(
            (got - expected).abs() < 1e-9 * expected.abs().max(1.0),
            "{got}, expected {expected}"
        );
    }

    #[test]
    fn two_samples_in_a_minute_are_extrapolated_by_a_factor_of_two() {
        // Scraped at 15 and 45 s, asked at 60 s: 15 s to either edge, less than 1.1 spacings.
        close(
            series(&[(15.0, 1000.0), (45.0, 1300.0)]).rate(at(60.0), MINUTE),
            300.0 * 2.0 / 60.0,
        );
    }

    #[test]
    fn a_distant_edge_is_reached_by_half_a_spacing() {
        // 5 s between samples, the window begins 40 s before the first.
        close(
            series(&[(40.0, 1000.0), (45.0, 1100.0), (50.0, 1200.0)]).rate(at(60.0), MINUTE),
            200.0 * 15.0 / 10.0 / 60.0,
        );
    }

    #[test]
    fn a_counter_is_not_extrapolated_below_zero() {
        // It would have been zero 5 s before the first sample.
        close(
            series(&[(20.0, 100.0), (40.0, 500.0)]).rate(at(60.0), MINUTE),
            400.0 * (20.0 + 5.0 + 20.0) / 20.0 / 60.0,
        );
    }

    #[test]
    fn a_reset_counts_what_came_after_it() {
        close(
            series(&[(10.0, 500.0), (30.0, 600.0), (50.0, 40.0)]).rate(at(60.0), MINUTE),
            140.0 * 60.0 / 40.0 / 60.0,
        );
    }

    #[test]
    fn one_sample_has_no_rate_and_the_window_is_open_at_its_start() {
        assert_eq!(series(&[(30.0, 1.0)]).rate(at(60.0), MINUTE), None);
        assert_eq!(
            series(&[(0.0, 1.0), (30.0, 2.0)]).rate(at(60.0), MINUTE),
            None
        );
        assert_eq!(
            series(&[(31.0, 1.0), (61.0, 2.0)]).rate(at(60.0), MINUTE),
            None,
            "the future is not seen"
        );
    }

    #[test]
    fn instant_values_look_back_five_minutes_and_end_at_a_stale_marker() {
        let mut s = series(&[(10.0, 7.0)]);
        assert_eq!(s.instant(at(9.0)), None);
        assert_eq!(s.instant(at(309.0)), Some(7.0));
        assert_eq!(s.instant(at(310.0)), None);
        s.mark_stale(at(40.0));
        assert_eq!(s.instant(at(39.0)), Some(7.0));
        assert_eq!(s.instant(at(40.0)), None);
        s.push(at(50.0), 8.0);
        assert_eq!(s.instant(at(50.0)), Some(8.0));
    }

    #[test]
    fn averages_and_maxima_are_over_what_the_window_holds() {
        let mut s = series(&[(0.0, 90.0), (30.0, 2.0), (50.0, 4.0)]);
        assert_eq!(s.avg(at(60.0), MINUTE), Some(3.0), "open at its start");
        assert_eq!(s.max(at(60.0), MINUTE), Some(4.0));
        assert_eq!(s.max(at(59.0), MINUTE), Some(90.0));
        s.mark_stale(at(55.0));
        assert_eq!(s.avg(at(60.0), MINUTE), Some(3.0));
        assert_eq!(s.avg(at(120.0), MINUTE), None);
    }

    #[test]
    fn old_samples_are_forgotten() {
        let mut s = series(&[(0.0, 1.0), (100.0, 2.0)]);
        s.forget_before(at(160.0), MINUTE);
        assert_eq!(s, series(&[(100.0, 2.0)]));
        s.forget_before(at(161.0), MINUTE);
        assert!(s.is_empty());
    }
}
