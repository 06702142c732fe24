//! Drift: when prediction and measurement are further apart than profile and chance explain.
//!
//! An error is outside its interval when `|error| > max(floor, z x sqrt(sigma_profile^2 + sigma_noise^2))`:
//! `sigma_profile` from the validation of the profile (a median absolute error `m` of normal errors belongs to a standard
//! deviation `m / 0.6745`), `sigma_noise` from the bootstrap of the window itself. Drift is raised after `windows`
//! consecutive windows outside on the same side, and cleared after as many inside.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sim::scenario::Scenario;

use super::compare::Comparison;
use super::replay::profile_file;

/// The figures that drift is judged by: one for the start of an answer, one for its pace, one for the whole, and the
/// rate at which work is done.
pub const JUDGED: [&str; 4] = ["ttft_p50", "tpot_mean", "e2e_mean", "output_tokens_per_s"];

/// Median absolute errors of a normal distribution are this share of its standard deviation.
const MEDIAN_OF_NORMAL: f64 = 0.6745;

/// Standard deviation of a prediction's error where no validation says it [ratio].
pub const UNVALIDATED: f64 = 0.10;

/// When drift is raised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriftConfig {
    /// Errors up to this are never drift [ratio].
    pub floor: f64,
    /// Standard deviation of the profile's error [ratio].
    pub sigma_profile: f64,
    /// Standard deviations that the interval reaches to either side.
    pub z: f64,
    /// Consecutive windows that raise or clear it.
    pub windows: u32,
    /// Windows with fewer compared requests are not judged.
    pub min_requests: u64,
}

impl Default for DriftConfig {
    fn default() -> DriftConfig {
        DriftConfig {
            floor: 0.05,
            sigma_profile: UNVALIDATED,
            z: 2.0,
            windows: 3,
            min_requests: 20,
        }
    }
}

/// Standard deviation of the profile's error, from its validations on data that it was not fitted on [ratio]: the
/// largest, since a deployment is judged by its worst figure. `None`: no profile file, or none that was validated.
pub fn sigma_of_profile(scenario: &Scenario) -> Option<f64> {
    let profile = hwmodels::profiles::load(&profile_file(scenario)?).ok()?;
    profile
        .validations
        .iter()
        .map(|v| v.median_ape / 100.0 / MEDIAN_OF_NORMAL)
        .max_by(f64::total_cmp)
}

/// Where a judged figure stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The figure.
    pub figure: String,
    /// Its error in the latest window [ratio].
    pub error_ratio: f64,
    /// Half width of its interval in that window [ratio].
    pub limit_ratio: f64,
    /// Consecutive windows outside, negative when the prediction is too low.
    pub streak: i32,
    /// Whether drift is raised.
    pub drift: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Track {
    /// Windows outside on one side, by its sign.
    outside: i32,
    /// Windows inside.
    inside: u32,
    raised: bool,
}

/// Follows the errors of window after window.
#[derive(Clone, Debug)]
pub struct Drift {
    config: DriftConfig,
    tracks: BTreeMap<&'static str, Track>,
}

impl Drift {
    /// Nothing seen, nothing raised.
    pub fn new(config: DriftConfig) -> Drift {
        Drift {
            config,
            tracks: BTreeMap::new(),
        }
    }

    /// How it judges.
    pub fn config(&self) -> &DriftConfig {
        &self.config
    }

    /// Takes in a window; where each judged figure stands. Empty: the window has too few requests to be judged.
    pub fn take(&mut self, comparison: &Comparison) -> Vec<Verdict> {
        if comparison.compared < self.config.min_requests {
            return Vec::new();
        }
        let mut verdicts = Vec::new();
        for name in JUDGED {
            let Some((figure, error)) = comparison
                .figure(name)
                .and_then(|f| Some((f, f.error_ratio?)))
            else {
                continue;
            };
            let noise = figure.noise_ratio.unwrap_or(0.0);
            let limit =
                (self.config.z * self.config.sigma_profile.hypot(noise)).max(self.config.floor);
            let track = self.tracks.entry(name).or_default();
            track.step(error, limit, self.config.windows.max(1));
            verdicts.push(Verdict {
                figure: name.into(),
                error_ratio: error,
                limit_ratio: limit,
                streak: track.outside,
                drift: track.raised,
            });
        }
        verdicts
    }

    /// Whether drift is raised for any figure.
    pub fn raised(&self) -> bool {
        self.tracks.values().any(|t| t.raised)
    }

    /// Starts anew, e.g. after a refit.
    pub fn reset(&mut self) {
        self.tracks.clear();
    }
}

impl Track {
    fn step(&mut self, error: f64, limit: f64, windows: u32) {
        if error.abs() <= limit {
            self.outside = 0;
            self.inside = self.inside.saturating_add(1);
            if self.inside >= windows {
                self.raised = false;
            }
            return;
        }
        self.inside = 0;
        let side = if error > 0.0 { 1 } else { -1 };
        self.outside = if self.outside.signum() == side {
            self.outside.saturating_add(side)
        } else {
            side
        };
        if self.outside.unsigned_abs() >= windows {
            self.raised = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::compare::Figure;
    use super::*;

    fn window(error: f64, noise: f64, compared: u64) -> Comparison {
        Comparison {
            at_unix_s: 0.0,
            window_s: 300.0,
            requests: compared,
            compared,
            refused: 0,
            cancelled: 0,
            in_flight: 0,
            figures: vec![Figure {
                name: "tpot_mean".into(),
                unit: "ms".into(),
                measured: Some(10.0),
                predicted: Some(10.0 * (1.0 + error)),
                error_ratio: Some(error),
                noise_ratio: Some(noise),
            }],
            notes: Vec::new(),
        }
    }

    fn raised(errors: &[(f64, f64)]) -> bool {
        let mut drift = Drift::new(DriftConfig {
            sigma_profile: 0.03,
            ..DriftConfig::default()
        });
        for (error, noise) in errors {
            drift.take(&window(*error, *noise, 100));
        }
        drift.raised()
    }

    #[test]
    fn drift_needs_several_windows_in_a_row_on_one_side() {
        let (out, inside) = ((-0.25, 0.02), (0.01, 0.02));
        assert!(!raised(&[out, out]));
        assert!(raised(&[out, out, out]));
        assert!(!raised(&[out, out, inside, out, out]));
        assert!(!raised(&[out, (0.25, 0.02), out, (0.25, 0.02)]));
    }

    #[test]
    fn drift_stays_until_several_windows_in_a_row_are_inside() {
        let (out, inside) = ((-0.25, 0.02), (0.01, 0.02));
        assert!(raised(&[out, out, out, inside, inside]));
        assert!(!raised(&[out, out, out, inside, inside, inside]));
        assert!(raised(&[out, out, out, inside, inside, out, inside]));
    }

    #[test]
    fn a_noisy_window_has_a_wider_interval() {
        assert!(!raised(&[(-0.25, 0.2); 5]));
        assert!(!raised(&[(-0.04, 0.0); 5]), "below the floor");
    }

    #[test]
    fn windows_with_few_requests_are_not_judged() {
        let mut drift = Drift::new(DriftConfig::default());
        for _ in 0..9 {
            assert!(drift.take(&window(9.0, 0.0, 5)).is_empty());
        }
        assert!(!drift.raised());
    }
}
