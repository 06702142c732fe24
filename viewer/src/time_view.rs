//! Which stretch of the run is shown, and how it maps to pixels. In f64 nanoseconds: the screen's f32 would jitter when zoomed in.

/// Narrowest stretch that is shown [ns].
const MIN_WIDTH: f64 = 1_000.0;

/// The stretch of the run that is shown, shared by all views over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeView {
    /// Start of the stretch [ns].
    pub start: f64,
    /// Its width [ns].
    pub width: f64,
    /// End of the run [ns].
    pub end: f64,
}

impl TimeView {
    /// All of a run that ends at `end` [ns].
    pub fn all(end: u64) -> TimeView {
        let end = (end as f64).max(MIN_WIDTH);
        TimeView {
            start: 0.0,
            width: end,
            end,
        }
    }

    /// Whether all of the run is shown.
    pub fn is_all(&self) -> bool {
        self.start <= 0.0 && self.width >= self.end
    }

    /// Shows from `a` to `b` [ns], within the run.
    pub fn set(&mut self, a: f64, b: f64) {
        let (a, b) = (a.min(b), a.max(b));
        self.width = (b - a).clamp(MIN_WIDTH, self.end);
        self.start = a.clamp(0.0, self.end - self.width);
    }

    /// Zooms so that the stretch is `1 / factor` times as wide and `at` [ns] stays where it is.
    pub fn zoom(&mut self, factor: f64, at: f64) {
        let width = (self.width / factor).clamp(MIN_WIDTH, self.end);
        let share = ((at - self.start) / self.width).clamp(0.0, 1.0);
        self.width = width;
        self.start = (at - share * width).clamp(0.0, self.end - width);
    }

    /// Moves the stretch by `share` of its width.
    pub fn pan(&mut self, share: f64) {
        self.start = (self.start + share * self.width).clamp(0.0, self.end - self.width);
    }

    /// Shows all.
    pub fn reset(&mut self) {
        *self = TimeView::all(self.end as u64);
    }

    /// The stretch in whole nanoseconds.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.start as u64..(self.start + self.width).ceil() as u64
    }

    /// Its map to `pixels` pixels.
    pub fn map(&self, pixels: f32) -> TimeMap {
        TimeMap {
            start: self.start,
            px_per_ns: f64::from(pixels.max(1.0)) / self.width,
        }
    }

    /// Moves the stretch, at its width, so that `at` [ns] is in it.
    pub fn follow(&mut self, at: f64) {
        if at < self.start || at > self.start + self.width {
            self.start = (at - 0.1 * self.width).clamp(0.0, self.end - self.width);
        }
    }
}

/// From instants to pixels and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeMap {
    start: f64,
    px_per_ns: f64,
}

impl TimeMap {
    /// The pixel of an instant [ns]: the start is subtracted before anything is rounded.
    pub fn x(&self, ns: u64) -> f32 {
        ((ns as f64 - self.start) * self.px_per_ns) as f32
    }

    /// The instant at a pixel [ns].
    pub fn ns(&self, x: f32) -> f64 {
        self.start + f64::from(x) / self.px_per_ns
    }

    /// Pixels per nanosecond.
    pub fn scale(&self) -> f64 {
        self.px_per_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zoom_keeps_the_instant_under_the_pointer() {
        let mut view = TimeView::all(1_000_000_000);
        let at = view.map(1000.0).ns(250.0);
        view.zoom(8.0, at);
        assert!((view.map(1000.0).ns(250.0) - at).abs() < 1.0);
        assert_eq!(view.width, 125_000_000.0);
        view.zoom(1e-9, at);
        assert!(view.is_all());
    }

    #[test]
    fn the_stretch_stays_within_the_run() {
        let mut view = TimeView::all(1_000_000);
        view.set(900_000.0, 100_000.0);
        assert_eq!((view.start, view.width), (100_000.0, 800_000.0));
        view.pan(5.0);
        assert_eq!(view.start, 200_000.0);
        view.pan(-5.0);
        assert_eq!(view.start, 0.0);
        view.zoom(1e12, 500_000.0);
        assert_eq!(view.width, MIN_WIDTH);
        view.follow(999_999.0);
        assert!(view.start + view.width >= 999_999.0);
    }

    #[test]
    fn a_deep_zoom_late_in_a_long_run_does_not_jitter() {
        let hour = 3_600_000_000_000;
        let mut view = TimeView::all(10 * hour);
        view.set((9 * hour) as f64, (9 * hour + 10_000) as f64);
        let map = view.map(1000.0);
        assert!((map.x(9 * hour + 5_000) - 500.0).abs() < 0.1);
        assert!((map.x(9 * hour + 5_010) - 501.0).abs() < 0.1);
    }

    #[test]
    fn a_run_without_length_can_be_shown() {
        let view = TimeView::all(0);
        assert!(view.map(100.0).x(0).is_finite() && view.is_all());
    }
}
