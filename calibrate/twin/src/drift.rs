//! Drift: when prediction and measurement are further apart than profile and chance explain.
//!
//! Each judged figure has a sequential test of its own ([`super::chart`]), with the profile's own error of that figure and the noise of
//! its windows. Only windows that do not overlap are taken in: looks in between show news of the same requests.

use std::collections::BTreeMap;

use hwmodels::profile::Validation;
use serde::{Deserialize, Serialize};
use sim::scenario::Scenario;

use super::chart::{Chart, Rules, threshold};
use super::compare::Comparison;
use super::replay::profile_file;

/// The figures that drift is judged by: one for the start of an answer, two for its pace (as chunks and as answers show it), one for the
/// whole, and the rate at which work is done.
pub const JUDGED: [&str; 5] = [
    "ttft_p50",
    "itl_mean",
    "tpot_mean",
    "e2e_mean",
    "output_tokens_per_s",
];

/// Median absolute errors of a normal distribution are this share of its standard deviation.
const MEDIAN_OF_NORMAL: f64 = 0.6745;

/// Standard deviation of a prediction's error where no validation says it [ratio].
pub const UNVALIDATED: f64 = 0.10;

/// Windows overlap by this share of their length at most [ratio].
const OVERLAP: f64 = 0.01;

/// Standard deviation of the profile's own error, figure by figure [ratio].
#[derive(Clone, Debug, PartialEq)]
pub struct Sigmas {
    of: BTreeMap<&'static str, f64>,
    rest: f64,
}

impl Default for Sigmas {
    /// That of a profile which was never validated.
    fn default() -> Sigmas {
        Sigmas::all(UNVALIDATED)
    }
}

impl Sigmas {
    /// The same for every figure.
    pub fn all(sigma: f64) -> Sigmas {
        Sigmas {
            of: BTreeMap::new(),
            rest: sigma,
        }
    }

    /// From validations on data that a profile was not fitted on: each figure's own, the worst set of it. A figure that none is of has the
    /// worst of all. `None` without validations.
    pub fn of_validations(validations: &[Validation]) -> Option<Sigmas> {
        let sigma = |v: &Validation| v.median_ape / 100.0 / MEDIAN_OF_NORMAL;
        let rest = validations.iter().map(sigma).max_by(f64::total_cmp)?;
        let mut of: BTreeMap<&'static str, f64> = BTreeMap::new();
        for v in validations {
            for figure in figures_of(&v.metric) {
                let worst = of.entry(figure).or_insert(0.0);
                *worst = worst.max(sigma(v));
            }
        }
        Some(Sigmas { of, rest })
    }

    /// Those of the scenario's profile. `None`: no profile file, or none that was validated.
    pub fn of_profile(scenario: &Scenario) -> Option<Sigmas> {
        let profile = hwmodels::profiles::load(&*scenario.files, &profile_file(scenario)?).ok()?;
        Sigmas::of_validations(&profile.validations)
    }

    /// That of `figure` [ratio].
    pub fn get(&self, figure: &str) -> f64 {
        self.of.get(figure).copied().unwrap_or(self.rest)
    }
}

/// The judged figures that a validation's metric speaks of, e.g. `ttft p50` or `ttft_ms` of `ttft_p50`. Tails speak of none.
fn figures_of(metric: &str) -> &'static [&'static str] {
    let metric = metric.to_ascii_lowercase();
    if metric.contains("p99") || metric.contains("p90") {
        return &[];
    }
    for (word, figures) in [
        ("ttft", &["ttft_p50"][..]),
        ("itl", &["itl_mean", "tpot_mean"]),
        ("tpot", &["itl_mean", "tpot_mean"]),
        ("per_token", &["itl_mean", "tpot_mean"]),
        ("step", &["itl_mean", "tpot_mean"]),
        ("e2e", &["e2e_mean"]),
        ("throughput", &["output_tokens_per_s"]),
        ("tok_s", &["output_tokens_per_s"]),
    ] {
        if metric.contains(word) {
            return figures;
        }
    }
    &[]
}

/// When drift is raised.
#[derive(Clone, Debug, PartialEq)]
pub struct DriftConfig {
    /// Deviations from the usual error up to this are never drift [ratio].
    pub floor: f64,
    /// Standard deviation of the profile's own error, figure by figure.
    pub sigma_profile: Sigmas,
    /// Windows between two false alarms on average, of all figures together.
    pub windows_per_false_alarm: f64,
    /// Windows with fewer compared requests are not judged.
    pub min_requests: u64,
}

impl Default for DriftConfig {
    /// A false alarm in 30 days of windows of five minutes.
    fn default() -> DriftConfig {
        DriftConfig {
            floor: 0.05,
            sigma_profile: Sigmas::default(),
            windows_per_false_alarm: 8640.0,
            min_requests: 20,
        }
    }
}

/// Where a judged figure stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The figure.
    pub figure: String,
    /// Its error in the latest window [ratio].
    pub error_ratio: f64,
    /// The error that is usual, by the windows before [ratio].
    pub usual_ratio: f64,
    /// Half width of the interval around it that the window was expected in [ratio].
    pub limit_ratio: f64,
    /// What the sequential test has summed up, over what raises drift [ratio].
    pub score_ratio: f64,
    /// Consecutive windows outside of the interval, negative when the prediction is too low.
    pub streak: i32,
    /// Whether drift is raised.
    pub drift: bool,
}

/// Follows the errors of window after window.
#[derive(Clone, Debug)]
pub struct Drift {
    config: DriftConfig,
    charts: BTreeMap<&'static str, Chart>,
    /// End of the last window that was taken in [s since 1970].
    taken_until: Option<f64>,
}

impl Drift {
    /// Nothing seen, nothing raised.
    pub fn new(config: DriftConfig) -> Drift {
        Drift {
            config,
            charts: BTreeMap::new(),
            taken_until: None,
        }
    }

    /// How it judges.
    pub fn config(&self) -> &DriftConfig {
        &self.config
    }

    /// Takes in a window that does not overlap the one taken in before, and only looks at one that does; where each judged figure
    /// stands. Empty: the window has too few requests to be judged.
    pub fn take(&mut self, comparison: &Comparison) -> Vec<Verdict> {
        if comparison.compared < self.config.min_requests {
            return Vec::new();
        }
        let begins = comparison.at_unix_s - comparison.window_s * (1.0 - OVERLAP);
        let new = self.taken_until.is_none_or(|until| begins >= until);
        if new {
            self.taken_until = Some(comparison.at_unix_s);
        }
        // A chart and its other side per figure share the false alarms.
        let charts = 2.0 * JUDGED.len() as f64;
        let threshold = threshold(self.config.windows_per_false_alarm * charts);
        let mut verdicts = Vec::new();
        for name in JUDGED {
            let Some((figure, error)) = comparison
                .figure(name)
                .and_then(|f| Some((f, f.error_ratio?)))
                .filter(|(_, e)| e.is_finite() && *e > -1.0)
            else {
                continue;
            };
            let noise = figure.noise_ratio.filter(|n| n.is_finite()).unwrap_or(0.0) / (1.0 + error);
            let chart = self.charts.entry(name).or_insert_with(|| {
                Chart::new(Rules {
                    floor: self.config.floor,
                    sigma_profile: self.config.sigma_profile.get(name),
                    threshold,
                })
            });
            let standing = if new {
                chart.take(error.ln_1p(), noise)
            } else {
                chart.standing(noise)
            };
            verdicts.push(Verdict {
                figure: name.into(),
                error_ratio: error,
                usual_ratio: standing.usual.exp_m1(),
                limit_ratio: standing.limit,
                score_ratio: standing.score,
                streak: standing.streak,
                drift: standing.drift,
            });
        }
        verdicts
    }

    /// Whether drift is raised for any figure.
    pub fn raised(&self) -> bool {
        self.charts.values().any(Chart::raised)
    }

    /// Starts anew, e.g. after a refit.
    pub fn reset(&mut self) {
        self.charts.clear();
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use rand_distr::{Distribution, Normal};

    use super::super::compare::Figure;
    use super::*;

    /// A window that ends `at` and is 300 s long, with the error and noise of each figure.
    fn window(at: f64, compared: u64, figures: &[(&str, f64, f64)]) -> Comparison {
        Comparison {
            at_unix_s: at,
            window_s: 300.0,
            requests: compared,
            compared,
            refused: 0,
            cancelled: 0,
            in_flight: 0,
            figures: figures
                .iter()
                .map(|(name, error, noise)| Figure {
                    name: (*name).into(),
                    unit: "ms".into(),
                    measured: Some(10.0),
                    predicted: Some(10.0 * (1.0 + error)),
                    error_ratio: Some(*error),
                    noise_ratio: Some(*noise),
                })
                .collect(),
            notes: Vec::new(),
        }
    }

    fn validation(metric: &str, median_ape: f64) -> Validation {
        Validation {
            set: "held out".into(),
            metric: metric.into(),
            n: 9,
            median_ape,
            tolerance: 10.0,
        }
    }

    #[test]
    fn each_figure_has_the_sigma_of_its_own_validation() {
        let found = Sigmas::of_validations(&[
            validation("e2e mean", 2.0),
            validation("e2e p99", 30.0),
            validation("ttft p50", 20.0),
            validation("output throughput", 1.0),
            validation("step time", 3.0),
        ])
        .unwrap();
        for (figure, median) in [
            ("e2e_mean", 2.0),
            ("ttft_p50", 20.0),
            ("output_tokens_per_s", 1.0),
            ("tpot_mean", 3.0),
            ("itl_mean", 3.0),
        ] {
            let sigma = median / 100.0 / MEDIAN_OF_NORMAL;
            assert!((found.get(figure) - sigma).abs() < 1e-12, "{figure}");
        }
        assert_eq!(Sigmas::of_validations(&[]), None);
        let one = Sigmas::of_validations(&[validation("e2e mean", 2.0)]).unwrap();
        assert_eq!(one.get("ttft_p50"), one.get("e2e_mean"));
    }

    /// Errors of figures as windows of a live deployment have them: a bias of the profile, a speed of the machine that wanders
    /// from window to window (correlated by a third, 2 %) and moves all latencies, and chance, whose bootstrap is off by up to a third.
    struct Deployment {
        rng: StdRng,
        bias: [f64; 5],
        machine: f64,
        at: f64,
    }

    /// Chance of each judged figure in a window of some hundred requests [ratio].
    const CHANCE: [f64; 5] = [0.035, 0.01, 0.01, 0.02, 0.015];

    impl Deployment {
        fn new(seed: u64) -> Deployment {
            let mut rng = StdRng::seed_from_u64(seed);
            let bias = Normal::new(0.0, 0.03).unwrap();
            Deployment {
                bias: std::array::from_fn(|_| bias.sample(&mut rng)),
                machine: 0.0,
                at: 0.0,
                rng,
            }
        }

        fn next(&mut self, slower: f64) -> Comparison {
            let unit = Normal::new(0.0, 1.0).unwrap();
            self.machine = self.machine / 3.0 + 0.02 * unit.sample(&mut self.rng);
            self.at += 300.0;
            let mut figures = Vec::new();
            for (i, name) in JUDGED.into_iter().enumerate() {
                // Requests come as before: what is done per second stays.
                let latency = f64::from(u8::from(name != "output_tokens_per_s"));
                let y = self.bias[i] - latency * (self.machine + slower.ln())
                    + CHANCE[i] * unit.sample(&mut self.rng);
                let said = CHANCE[i] * (1.0 + 0.33 * unit.sample(&mut self.rng).clamp(-1.0, 1.0));
                figures.push((name, y.exp_m1(), said));
            }
            window(self.at, 300, &figures)
        }
    }

    /// The profile's start of answers is poor, the rest is good.
    fn config() -> DriftConfig {
        DriftConfig {
            sigma_profile: Sigmas::of_validations(&[
                validation("ttft p50", 20.0),
                validation("e2e mean", 2.5),
                validation("step time", 2.5),
                validation("output throughput", 2.0),
            ])
            .unwrap(),
            ..DriftConfig::default()
        }
    }

    #[test]
    fn a_slowdown_of_20_percent_is_raised_within_two_windows_and_an_hour_without_one_raises_nothing()
     {
        let (mut late, mut false_alarms) = (Vec::new(), Vec::new());
        for seed in 0..200 {
            let mut deployment = Deployment::new(seed);
            let mut drift = Drift::new(config());
            for _ in 0..12 {
                drift.take(&deployment.next(1.0));
            }
            if drift.raised() {
                false_alarms.push(seed);
            }
            let raised = (0..2).any(|_| {
                drift.take(&deployment.next(1.2));
                drift.raised()
            });
            if !raised {
                late.push(seed);
            }
        }
        // The first hour, in which everything is still learnt, has more of them than those after it.
        assert!(false_alarms.len() <= 4, "{false_alarms:?}");
        assert!(late.len() <= 4, "{late:?}");
    }

    #[test]
    fn false_alarms_come_no_more_often_than_stated() {
        let windows = 10_000;
        let mut alarms = 0;
        for seed in 0..10 {
            let mut deployment = Deployment::new(seed);
            let mut drift = Drift::new(DriftConfig {
                windows_per_false_alarm: 500.0,
                ..config()
            });
            let mut before = false;
            for _ in 0..windows / 10 {
                drift.take(&deployment.next(1.0));
                alarms += u32::from(drift.raised() && !before);
                before = drift.raised();
            }
        }
        assert!(alarms <= windows / 500, "{alarms}");
    }

    #[test]
    fn a_slowdown_that_is_there_from_the_start_is_raised_within_three_windows() {
        let late = (0..100).filter(|seed| {
            let mut deployment = Deployment::new(*seed);
            let mut drift = Drift::new(config());
            !(0..3).any(|_| {
                drift.take(&deployment.next(1.3));
                drift.raised()
            })
        });
        assert!(late.count() <= 2);
    }

    #[test]
    fn a_single_bad_window_raises_nothing() {
        let mut raised = 0;
        for seed in 0..100 {
            let mut deployment = Deployment::new(seed);
            let mut drift = Drift::new(config());
            for i in 0..12 {
                drift.take(&deployment.next(if i == 7 { 3.0 } else { 1.0 }));
                assert!(i != 7 || !drift.raised(), "seed {seed}");
            }
            raised += u32::from(drift.raised());
        }
        // What follows it is judged less kindly for a while.
        assert!(raised <= 4, "{raised}");
    }

    #[test]
    fn windows_that_overlap_are_looked_at_and_not_taken_in() {
        let mut drift = Drift::new(DriftConfig {
            sigma_profile: Sigmas::all(0.03),
            ..DriftConfig::default()
        });
        for look in 0..10 {
            let verdicts = drift.take(&window(
                30.0 * f64::from(look),
                100,
                &[("e2e_mean", -0.4, 0.01)],
            ));
            assert_eq!(verdicts[0].streak, -1);
            assert!(!drift.raised(), "look {look}");
        }
        drift.take(&window(300.0, 100, &[("e2e_mean", -0.4, 0.01)]));
        assert!(drift.raised());
        drift.reset();
        assert!(!drift.raised());
    }

    #[test]
    fn windows_with_few_requests_are_not_judged() {
        let mut drift = Drift::new(DriftConfig::default());
        for i in 0..9 {
            let few = window(300.0 * f64::from(i), 5, &[("e2e_mean", 9.0, 0.0)]);
            assert!(drift.take(&few).is_empty());
        }
        assert!(!drift.raised());
    }
}
