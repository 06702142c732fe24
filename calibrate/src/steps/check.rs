//! Where a profile is right and where it is not: predicted against measured time of a log, summed up by kind of step.

use std::collections::BTreeMap;
use std::fmt;

use hwmodels::{BatchStats, Profile, StepModel as _};
use serde::Serialize;

use super::errors::{Use, file_name, usable};
use super::log::{Facts, Log};
use super::shape::median;
use super::{StepsError, layouts};

/// Predicted and measured time of the steps of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kind {
    /// `decode` and the sequences, `prefill` or `mixed` and the tokens of the whole step: `decode 5-8`.
    pub kind: String,
    /// Steps.
    pub steps: u64,
    /// Their measured time in all [s].
    pub measured_s: f64,
    /// Their predicted time in all [s].
    pub predicted_s: f64,
    /// Median over the steps of predicted over measured [ratio].
    pub typical_ratio: f64,
}

impl Kind {
    /// Predicted over measured time in all [ratio].
    pub fn ratio(&self) -> f64 {
        self.predicted_s / self.measured_s.max(1e-12)
    }
}

/// A log by kind of step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The log.
    pub log: String,
    /// What it was to the fit; none where nothing was fitted.
    pub used: Option<Use>,
    /// Kinds of steps, decodes first, each from small to large.
    pub kinds: Vec<Kind>,
    /// All steps together.
    pub all: Kind,
}

/// Order, name and size of a kind.
fn kind(b: &BatchStats) -> (u8, u32) {
    // Sizes from one power of two (without) to the next (with).
    let octave = |n: u32| n.max(1).next_power_of_two();
    match (b.prefill_tokens > 0, b.decode_tokens > 0) {
        (false, _) => (0, octave(b.decode_seqs)),
        (true, false) => (1, octave(b.tokens()).max(16)),
        (true, true) => (2, octave(b.tokens()).max(16)),
    }
}

fn words((of, to): (u8, u32)) -> String {
    let name = ["decode", "prefill", "mixed"][usize::from(of.min(2))];
    let from = if of > 0 && to == 16 { 1 } else { to / 2 + 1 };
    if from >= to {
        format!("{name} {to}")
    } else {
        format!("{name} {from}-{to}")
    }
}

/// Sums up `rows` of measured and predicted time.
fn sum(kind: String, rows: &[(f64, f64)]) -> Kind {
    let ratios: Vec<f64> = rows.iter().map(|(m, p)| p / m.max(1e-12)).collect();
    Kind {
        kind,
        steps: rows.len() as u64,
        measured_s: rows.iter().map(|r| r.0).sum(),
        predicted_s: rows.iter().map(|r| r.1).sum(),
        typical_ratio: median(&ratios),
    }
}

/// What `profile` predicts of the steps of `log`; `facts` holds where the log says nothing.
///
/// # Errors
/// A layout that the profile cannot be scaled to.
pub fn check(
    profile: &Profile,
    log: &Log,
    facts: &Facts,
    used: Option<Use>,
) -> Result<Checked, StepsError> {
    let log = Log {
        facts: log.facts.clone().or(facts),
        ..log.clone()
    };
    let model = layouts::on_layout(profile, &log)?;
    let mut kinds: BTreeMap<(u8, u32), Vec<(f64, f64)>> = BTreeMap::new();
    for s in usable(&log) {
        let row = (s.seconds, model.step(&s.stats).latency);
        kinds.entry(kind(&s.stats)).or_default().push(row);
    }
    let all: Vec<(f64, f64)> = kinds.values().flatten().copied().collect();
    Ok(Checked {
        log: log.name.clone(),
        used,
        kinds: (kinds.iter())
            .map(|(k, rows)| sum(words(*k), rows))
            .collect(),
        all: sum("all".into(), &all),
    })
}

/// Refuses logs that are among those fitted.
///
/// # Errors
/// The first of `others` that is.
pub fn distinct(fitted: &[Log], others: &[Log]) -> Result<(), StepsError> {
    let same = |o: &&Log| (fitted.iter()).any(|l| l.name == o.name || l.steps == o.steps);
    match others.iter().find(same) {
        Some(twice) => Err(StepsError::Both(twice.name.clone())),
        None => Ok(()),
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = match self.used {
            Some(Use::Fitted) => " (fitted)",
            Some(_) => " (not fitted)",
            None => "",
        };
        writeln!(
            f,
            "\n{:<22} {:>7} {:>12} {:>12} {:>16} {:>9}   {}{used}",
            "kind of step",
            "steps",
            "mean [ms]",
            "sum [s]",
            "predicted/meas.",
            "typical",
            file_name(&self.log)
        )?;
        for k in self.kinds.iter().chain([&self.all]) {
            writeln!(
                f,
                "{:<22} {:>7} {:>12.2} {:>12.2} {:>16.3} {:>9.3}",
                k.kind,
                k.steps,
                1e3 * k.measured_s / k.steps.max(1) as f64,
                k.measured_s,
                k.ratio(),
                k.typical_ratio
            )?;
        }
        Ok(())
    }
}
