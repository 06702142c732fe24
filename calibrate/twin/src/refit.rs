//! Refit: how much slower or faster steps have become, found from a recorded window by simulating it.
//!
//! One factor on every step's time is the parameter that any window can identify: what makes a deployment drift
//! (throttling, noisy neighbours, another release) stretches its steps. The factor is the one with which the replay
//! comes nearest to what was measured, in the pace and the length of answers. More parameters need the loads of
//! `servetwin calibrate`. What is written is a new file; the old one stays, and the new one is untrusted until a
//! validation on other data has passed.

use std::path::{Path, PathBuf};

use hwmodels::files::Disk;
use sim::scenario::Scenario;

use super::compare::{Comparison, compare};
use super::replay::{Change, ReplayError, replay};
use super::window::Window;

/// Factors that are tried lie between this and its inverse [ratio].
const LEAST: f64 = 0.2;

/// Simulations of the search: each narrows the logarithm of the factor to 0.618 of what it was, 2 ln 5 at first, so
/// that the last is narrower than 0.1 %.
const SEARCH: usize = 18;

/// The figures that the factor brings together.
const FITTED: [&str; 3] = ["tpot_mean", "e2e_mean", "e2e_p50"];

/// Why there is no refit.
#[derive(Debug, thiserror::Error)]
pub enum RefitError {
    /// The window cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The window's rows contradict each other.
    #[error(transparent)]
    Record(#[from] sim::record::RecordError),
    /// Nothing to fit to.
    #[error(
        "the window has {compared} request(s) with times to compare; a refit needs at least {needed}"
    )]
    TooFew {
        /// Requests that can be compared.
        compared: u64,
        /// Requests that are needed.
        needed: u64,
    },
    /// The best factor is at the edge of what is tried.
    #[error(
        "the best factor on step times is {factor:.2}, at the edge of what is tried: the deployment is another one than \
         the scenario describes; calibrate it anew (servetwin calibrate --endpoint)"
    )]
    Edge {
        /// The factor.
        factor: f64,
    },
    /// The scenario has no parameters of its own that could be scaled.
    #[error(
        "steps take {factor:.3} times as long as predicted, but the scenario's step times come from the catalog's models, \
         which have no one parameter to scale; calibrate the endpoint (servetwin calibrate --endpoint) and name the profile"
    )]
    NothingToScale {
        /// The factor.
        factor: f64,
    },
    /// A file cannot be read or written.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// Times of a fitted step model that are not part of a step.
const NOT_OF_STEPS: [&str; 3] = [
    "host.request_in_s",
    "host.prompt_token_in_s",
    "host.token_out_s",
];

/// Requests that a refit needs at least.
pub const MIN_REQUESTS: u64 = 20;

/// What a window says about step times.
#[derive(Clone, Debug, PartialEq)]
pub struct Refit {
    /// Steps take this many times as long as the scenario says [ratio].
    pub factor: f64,
    /// Standard deviation of the factor by chance [ratio]: that of the mean end-to-end error.
    pub noise: f64,
    /// Measured against predicted as the scenario is.
    pub before: Comparison,
    /// ... and with the factor.
    pub after: Comparison,
}

/// Finds the factor on step times with which the replay of `window` comes nearest to what was measured.
///
/// # Errors
/// See [`RefitError`].
pub fn refit(window: &Window, scenario: &Scenario) -> Result<Refit, RefitError> {
    let with = |factor: f64| -> Result<Comparison, RefitError> {
        let change = Change {
            step_time: factor,
            ..Change::default()
        };
        Ok(compare(window, &replay(window, scenario, &change)?)?)
    };
    let before = with(1.0)?;
    if before.compared < MIN_REQUESTS {
        return Err(RefitError::TooFew {
            compared: before.compared,
            needed: MIN_REQUESTS,
        });
    }
    // Golden-section search (Kiefer 1953) over the logarithm: the distance falls, then rises.
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (LEAST.ln(), -LEAST.ln());
    let at = |x: f64| -> Result<f64, RefitError> { Ok(distance(&with(x.exp())?)) };
    let (mut a, mut b) = (high - golden * (high - low), low + golden * (high - low));
    let (mut at_a, mut at_b) = (at(a)?, at(b)?);
    for _ in 0..SEARCH {
        if at_a < at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - golden * (high - low);
            at_a = at(a)?;
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + golden * (high - low);
            at_b = at(b)?;
        }
    }
    let factor = ((low + high) / 2.0).exp();
    if !(LEAST * 1.02..=0.98 / LEAST).contains(&factor) {
        return Err(RefitError::Edge { factor });
    }
    let after = with(factor)?;
    let noise = after
        .figure("e2e_mean")
        .and_then(|f| f.noise_ratio)
        .unwrap_or(f64::NAN);
    Ok(Refit {
        factor,
        noise,
        before,
        after,
    })
}

/// Sum of the squared logarithms of predicted over measured.
fn distance(c: &Comparison) -> f64 {
    FITTED
        .iter()
        .filter_map(|name| c.figure(name)?.error_ratio)
        .map(|e| (1.0 + e).max(1e-6).ln().powi(2))
        .sum()
}

/// Writes the refitted step times into a new file at `out`: a step profile where the scenario names one, else the
/// scenario itself with its `[step]` scaled. Never overwrites.
///
/// # Errors
/// When the scenario has nothing to scale, a parameter would leave its physical bounds, or `out` exists or cannot be
/// written.
pub fn write(
    refit: &Refit,
    scenario: &Scenario,
    file: &Path,
    out: &Path,
) -> Result<(), RefitError> {
    let text = match (&scenario.fitted, &scenario.step) {
        (Some(fitted), _) => profile_text(refit, &scenario.base.join(&fitted.profile), out)?,
        (_, Some(_)) => scenario_text(refit.factor, file)?,
        _ => {
            return Err(RefitError::NothingToScale {
                factor: refit.factor,
            });
        }
    };
    let write = |to: &mut files::Out| std::io::Write::write_all(to, text.as_bytes());
    files::write_new(out, write).map_err(|e| RefitError::File {
        path: e.path,
        problem: e.source.to_string(),
    })
}

/// The profile with its step times scaled.
fn profile_text(refit: &Refit, from: &Path, out: &Path) -> Result<String, RefitError> {
    let fail = |problem: String| RefitError::File {
        path: from.to_owned(),
        problem,
    };
    let mut profile = hwmodels::profiles::load(&Disk, from).map_err(|e| fail(e.to_string()))?;
    let f = refit.factor;
    let mut scaled = 0;
    for (name, p) in &mut profile.params {
        if p.unit != "s" || NOT_OF_STEPS.contains(&name.as_str()) {
            continue;
        }
        if p.value * f > p.max {
            return Err(fail(format!(
                "{name} x {f:.3} would leave its physical bounds [{}, {}]",
                p.min, p.max
            )));
        }
        p.value = (p.value * f).max(p.min);
        // The factor's own noise comes on top of the parameter's.
        p.std_error = p
            .std_error
            .map(|s| (s * f).hypot(p.value * refit.noise.max(0.0)));
        scaled += 1;
    }
    if scaled == 0 {
        return Err(RefitError::NothingToScale { factor: f });
    }
    if let Some(stem) = out.file_stem() {
        profile.name = stem.to_string_lossy().into_owned();
    }
    profile.provenance.command = format!(
        "servetwin twin refit, on top of: {}",
        profile.provenance.command
    );
    let c = &refit.before;
    profile.provenance.notes.push(format!(
        "step times of {} x {f:.4} (+- {:.1} % by chance), from a window of {:.0} s with {} requests that ended at {:.0} s \
         since 1970",
        from.display(),
        refit.noise * 100.0,
        c.window_s,
        c.compared,
        c.at_unix_s,
    ));
    // What was validated was another set of numbers.
    profile.validations.clear();
    toml::to_string(&profile).map_err(|e| fail(e.to_string()))
}

/// The scenario file with the times of its `[step]` scaled.
fn scenario_text(factor: f64, file: &Path) -> Result<String, RefitError> {
    let fail = |problem: String| RefitError::File {
        path: file.to_owned(),
        problem,
    };
    let text = std::fs::read_to_string(file).map_err(|e| fail(e.to_string()))?;
    let mut table: toml::Table = toml::from_str(&text).map_err(|e| fail(e.to_string()))?;
    let steps = table.get_mut("step").and_then(toml::Value::as_table_mut);
    for (key, value) in steps.into_iter().flatten() {
        let time: hwmodels::units::Secs = value
            .as_str()
            .and_then(|t| t.parse().ok())
            .ok_or_else(|| fail(format!("step.{key} is no time")))?;
        *value = toml::Value::String(format!("{} s", time.secs() * factor));
    }
    toml::to_string(&table).map_err(|e| fail(e.to_string()))
}
