//! The sequential test of one figure: a two-sided CUSUM (Page 1954) over standardised log errors.
//!
//! The log error of a window is `y = ln(predicted / measured)`. While nothing changes it is
//!
//! ```text
//! y = b + e     b: the profile's own error of this figure, the same in all windows; before any window b ~ N(0, sigma_profile^2)
//!               e: chance, N(0, noise^2 + extra^2)
//! ```
//!
//! `noise` comes with each window (a bootstrap over its requests); `extra` is what windows vary by beyond that, learnt from them. A
//! machine's speed wanders, so neighbours are alike: with the correlation `r` from one window to the next, which is learnt too, a sum
//! of windows varies as if `extra^2` were `(1 + r) / (1 - r)` times as large, and is judged by that. What earlier windows say of `b` is its posterior N(m, v), so that `u = (y - m) / sqrt(v + noise^2 + extra^2)` is a standard
//! normal number. The CUSUM sums `u` less `REFERENCE` on either side, never below zero, and
//! raises drift above a threshold that follows from the false alarms that are allowed ([`threshold`]). One window adds at
//! most `SHARE` of the threshold, so that a single bad one raises nothing; nor do windows that are off by less than the
//! floor. Windows that look like drift teach nothing, or drift would become what is expected.

/// Standard deviations that are taken off each window: shifts of twice as many are found soonest.
const REFERENCE: f64 = 1.0;
/// Share of the threshold that one window adds at most [ratio].
const SHARE: f64 = 0.6;
/// Consecutive windows beyond the floor that drift needs, and within the interval that clear it.
const CONSECUTIVE: u32 = 2;
/// Standard deviations beyond which a window teaches nothing.
const TEACHES: f64 = 2.5;
/// Standard deviations that the shown interval reaches to either side.
const INTERVAL: f64 = 2.0;
/// What windows vary by beyond their noise before any was seen [log ratio], and how many windows that counts as.
const EXTRA: (f64, f64) = (0.03, 4.0);
/// Least of it, however alike windows were [log ratio].
const LEAST_EXTRA: f64 = 0.005;
/// Correlation from one window to the next before any was seen, and how many windows that counts as.
const ALIKE: (f64, f64) = (1.0 / 3.0, 10.0);
/// Most that it is taken for.
const MOST_ALIKE: f64 = 0.8;
/// Variance of a standard normal number within [`TEACHES`] of zero: windows beyond teach nothing, and what they would have added is missing.
const TRUNCATED: f64 = 0.911;
/// False alarms come so much more often than the formula says, since variances are learnt and bootstraps are off: it is asked for as
/// many times fewer.
const MARGIN: f64 = 4.0;

/// The threshold at which one of two sides raises a false alarm once in `windows` windows on average, or less often.
pub fn threshold(windows: f64) -> f64 {
    siegmund(MARGIN * windows).max(2.0 * REFERENCE)
}

/// The threshold at which a one-sided CUSUM of independent standard normal numbers raises a false alarm once in `windows` windows on
/// average: Siegmund (1985), (2.56): `windows = (exp(2 k b) - 2 k b - 1) / (2 k^2)` with b = threshold + 1.166 and k the
/// reference.
fn siegmund(windows: f64) -> f64 {
    const BEYOND: f64 = 1.166;
    let k = REFERENCE;
    let mut b = 1.0;
    // A contraction: the right side grows as a logarithm.
    for _ in 0..60 {
        b = (2.0 * k * k * windows + 2.0 * k * b + 1.0).ln() / (2.0 * k);
    }
    b - BEYOND
}

/// How one figure is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Deviations from the usual error up to this are never drift [log ratio].
    pub floor: f64,
    /// Standard deviation of the profile's own error of this figure [log ratio].
    pub sigma_profile: f64,
    /// The sum above which drift is raised [standard deviations]; see [`threshold`].
    pub threshold: f64,
}

/// Where the figure stands after a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// The error that is usual, by the windows before [log ratio].
    pub usual: f64,
    /// Half width of the interval around it that this window was expected in [log ratio].
    pub limit: f64,
    /// The larger sum over the threshold [ratio].
    pub score: f64,
    /// Consecutive windows beyond the interval, negative when the prediction is too low.
    pub streak: i32,
    /// Whether drift is raised.
    pub drift: bool,
}

/// One figure, window after window.
#[derive(Clone, Debug)]
pub struct Chart {
    rules: Rules,
    /// Posterior of the profile's own error: mean and variance.
    mean: f64,
    variance: f64,
    /// Sum of squares beyond the windows' own noise, and how many windows it is of.
    extra: (f64, f64),
    /// Sum of products of neighbours' standardised errors, and how many it is of; the last one.
    alike: (f64, f64),
    last: Option<f64>,
    /// Sums on either side: errors above and below what is usual.
    sums: [f64; 2],
    /// Windows in a row beyond the floor, by the side's sign.
    beyond: i32,
    streak: i32,
    inside: u32,
    raised: bool,
}

impl Chart {
    /// Nothing seen.
    pub fn new(rules: Rules) -> Chart {
        Chart {
            rules,
            mean: 0.0,
            variance: rules.sigma_profile.powi(2),
            extra: (EXTRA.0.powi(2) * EXTRA.1, EXTRA.1),
            alike: (ALIKE.0 * ALIKE.1, ALIKE.1),
            last: None,
            sums: [0.0; 2],
            beyond: 0,
            streak: 0,
            inside: 0,
            raised: false,
        }
    }

    /// Whether drift is raised.
    pub fn raised(&self) -> bool {
        self.raised
    }

    /// Variance by which windows differ beyond their noise.
    fn extra(&self) -> f64 {
        (self.extra.0 / self.extra.1).max(LEAST_EXTRA.powi(2))
    }

    /// Variance of a window of `noise` around the profile's own error, as its neighbours make it count.
    fn chance(&self, noise: f64) -> f64 {
        let r = (self.alike.0 / self.alike.1).clamp(0.0, MOST_ALIKE);
        noise.powi(2) + self.extra() * (1.0 + r) / (1.0 - r)
    }

    /// Where it stands, without taking anything in; `noise` is that of the window that would come [log ratio].
    pub fn standing(&self, noise: f64) -> Standing {
        let sd = (self.variance + self.chance(noise)).sqrt();
        Standing {
            usual: self.mean,
            limit: (INTERVAL * sd).max(self.rules.floor),
            score: self.sums[0].max(self.sums[1]) / self.rules.threshold,
            streak: self.streak,
            drift: self.raised,
        }
    }

    /// Takes in a window with the log error `y` and its `noise` [log ratio].
    pub fn take(&mut self, y: f64, noise: f64) -> Standing {
        let expected = self.standing(noise);
        let deviation = y - self.mean;
        let chance = self.chance(noise);
        let whole = self.variance + chance;
        let u = deviation / whole.sqrt();
        let most = REFERENCE + SHARE * self.rules.threshold;
        let clipped = u.clamp(-most, most);
        for (sum, side) in self.sums.iter_mut().zip([1.0, -1.0]) {
            // Twice the threshold is enough to remember.
            *sum = (*sum + side * clipped - REFERENCE).clamp(0.0, 2.0 * self.rules.threshold);
        }
        let side = if deviation > 0.0 { 1 } else { -1 };
        run(&mut self.beyond, side, deviation.abs() > self.rules.floor);
        run(&mut self.streak, side, deviation.abs() > expected.limit);
        self.inside = if deviation.abs() > expected.limit {
            0
        } else {
            self.inside.saturating_add(1)
        };
        let enough = self.beyond.unsigned_abs() >= CONSECUTIVE;
        let sum = self.sums[usize::from(self.beyond < 0)];
        if enough && sum > self.rules.threshold {
            self.raised = true;
        } else if self.raised && self.inside >= CONSECUTIVE {
            self.raised = false;
            self.sums = [0.0; 2];
        }
        if !self.raised && u.abs() <= TEACHES {
            self.learn(deviation, noise);
            self.mean += deviation * self.variance / whole;
            self.variance *= chance / whole;
        } else {
            self.last = None;
        }
        Standing {
            score: self.sums[0].max(self.sums[1]) / self.rules.threshold,
            streak: self.streak,
            drift: self.raised,
            ..expected
        }
    }

    /// What a window teaches of chance.
    fn learn(&mut self, deviation: f64, noise: f64) {
        let own = noise.powi(2) + self.extra();
        let whole = self.variance + own;
        let z = deviation / whole.sqrt();
        if let Some(last) = self.last.replace(z) {
            self.alike.0 += (last * z).clamp(-4.0, 4.0);
            self.alike.1 += 1.0;
        }
        // Of the squared deviation, `own / whole` is expected to come from chance; what the noise does not explain is extra.
        self.extra.0 += deviation.powi(2) * own / whole / TRUNCATED - noise.powi(2);
        self.extra.1 += 1.0;
    }
}

/// Counts windows in a row that are `beyond` on one side.
fn run(count: &mut i32, side: i32, beyond: bool) {
    *count = match beyond {
        false => 0,
        true if count.signum() == side => count.saturating_add(side),
        true => side,
    };
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use rand_distr::{Distribution, Normal};

    use super::*;

    fn rules(windows: f64) -> Rules {
        Rules {
            floor: 0.05,
            sigma_profile: 0.05,
            threshold: threshold(windows),
        }
    }

    #[test]
    fn false_alarms_come_no_more_often_than_stated() {
        // One side of one chart raises once in 400 windows at most; so two sides raise 2 in 400 at most. The floor is off.
        let rules = Rules {
            floor: 0.0,
            ..rules(400.0)
        };
        let windows = 12_000;
        let mut alarms = 0;
        for seed in 0..10 {
            let mut rng = StdRng::seed_from_u64(seed);
            let normal = Normal::new(0.02, 0.04).unwrap();
            let mut chart = Chart::new(rules);
            let mut before = false;
            for _ in 0..windows / 10 {
                let drift = chart.take(normal.sample(&mut rng), 0.03).drift;
                alarms += u32::from(drift && !before);
                before = drift;
            }
        }
        assert!(
            f64::from(alarms) <= 2.0 * f64::from(windows) / 400.0,
            "{alarms}"
        );
    }

    #[test]
    fn a_shift_of_six_sigma_is_raised_by_its_second_window_and_a_single_bad_window_by_none() {
        let (mut late, mut false_ones) = (0, 0);
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let normal = Normal::new(0.0, 0.03).unwrap();
            let mut chart = Chart::new(rules(86_400.0));
            for _ in 0..10 {
                false_ones += u32::from(chart.take(normal.sample(&mut rng), 0.025).drift);
            }
            let mut bad = chart.clone();
            for shift in [-0.9, 0.0, 0.0] {
                false_ones += u32::from(bad.take(shift + normal.sample(&mut rng), 0.025).drift);
            }
            let shifted: Vec<bool> = (0..2)
                .map(|_| chart.take(-0.2 + normal.sample(&mut rng), 0.025).drift)
                .collect();
            late += u32::from(!shifted[1]);
        }
        assert!(false_ones <= 6, "{false_ones} of 2600 windows");
        assert!(
            late <= 10,
            "{late} of 200 were not raised by the second window"
        );
    }

    #[test]
    fn a_profile_that_is_off_by_as_much_as_it_says_is_no_drift_and_one_that_is_off_by_more_is() {
        let drift = |error: f64, sigma: f64| {
            let mut chart = Chart::new(Rules {
                sigma_profile: sigma,
                ..rules(86_400.0)
            });
            (0..6).any(|_| chart.take(error, 0.01).drift)
        };
        assert!(!drift(0.1, 0.1));
        assert!(drift(0.3, 0.02));
        assert!(!drift(0.04, 0.001), "below the floor");
    }

    #[test]
    fn drift_stays_until_windows_are_again_as_they_were() {
        let mut chart = Chart::new(rules(86_400.0));
        for _ in 0..8 {
            chart.take(0.03, 0.01);
        }
        let mut all = Vec::new();
        for y in [-0.3, -0.3, -0.3, 0.03, -0.3, 0.03, 0.02, 0.03] {
            all.push(chart.take(y, 0.01).drift);
        }
        assert_eq!(all, [false, true, true, true, true, true, false, false]);
        let standing = chart.standing(0.01);
        assert!((standing.usual - 0.03).abs() < 0.01, "{standing:?}");
    }

    #[test]
    fn the_threshold_grows_with_the_logarithm_of_the_windows_between_false_alarms() {
        // Siegmund's formula, the other way round.
        for windows in [100.0, 8640.0, 1e6] {
            let b = siegmund(windows) + 1.166;
            let back = ((2.0 * b).exp() - 2.0 * b - 1.0) / 2.0;
            assert!((back / windows - 1.0).abs() < 1e-6, "{windows} {back}");
        }
    }
}
