//! How steady the machine was while the logs were written: the same batch takes the same time on a quiet one.
//!
//! Steps are compared with steps like them (the same kind, about as many tokens), each relative to its predicted time, so that
//! neither the load nor the form of the model matters. What a machine does between two loads of a fit, it will do
//! between the fit and whatever is predicted: no prediction is better than that.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::errors::file_name;
use super::log::Step;
use super::shape::median;
use crate::drift::{self, Drift, Sample};

/// Times the typical one from which a step counts as slow.
const SLOW: f64 = 1.5;
/// Share of slow steps, and change of the machine's speed, beyond which a fit warns: the error in all that a profile may have
/// and be trusted [ratio].
const UNSTEADY: f64 = 0.05;
/// Fewest steps of a kind that say what is typical of it.
const LEAST: usize = 20;
/// Rounds in which the levels of logs and of kinds of steps settle.
const ROUNDS: usize = 50;

/// How steady the machine was.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Steadiness {
    /// Share of steps that took more than 1.5 times what steps like them in the same log typically did [ratio].
    pub slow_ratio: f64,
    /// What these took beyond the typical, as a share of all time [ratio].
    pub slow_time_ratio: f64,
    /// By log.
    pub logs: Vec<Level>,
    /// Standard deviation of the level between loads [ratio]: what intervals of the parameters allow for.
    pub level_deviation: f64,
    /// How the machine's speed drifts within a load, where that shows: what predictions have in their spread.
    pub drift: Option<Drift>,
    /// What is beyond the ordinary, in words.
    pub warnings: Vec<String>,
}

/// The machine's level during one log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Level {
    /// The log.
    pub log: String,
    /// Time of its steps over that of the same batches in the other logs, less one [ratio]; none where no other log has such steps.
    pub beside_others: Option<f64>,
    /// Time of steps in its second half over that of the same batches in its first, less one [ratio]; none where no
    /// kind of steps is in both.
    pub second_half: Option<f64>,
}

/// Kind of a step: whether it holds prompts, and tokens by half octaves.
type Kind = (bool, i64);

fn kind(s: &Step) -> Kind {
    let half_octave = (2.0 * f64::from(s.stats.tokens().max(1)).log2()).floor() as i64;
    (s.stats.prefill_tokens > 0, half_octave)
}

/// What is typical of a kind of steps.
#[derive(Clone, Copy)]
struct Typical {
    /// Median of `ln(measured / predicted)`.
    off: f64,
    /// Steps.
    n: usize,
}

fn typical<'a>(steps: impl Iterator<Item = &'a (Step, f64)>) -> BTreeMap<Kind, Typical> {
    let mut kinds: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
    for (s, off) in steps {
        kinds.entry(kind(s)).or_default().push(*off);
    }
    let of = |offs: Vec<f64>| Typical {
        off: median(&offs),
        n: offs.len(),
    };
    (kinds.into_iter())
        .filter(|(_, offs)| offs.len() >= LEAST)
        .map(|(k, offs)| (k, of(offs)))
        .collect()
}

/// Looks at `logs`, by name, each with its steps in order; `predict` gives a step's typical time [s].
pub fn look(logs: &[(&str, &[Step])], predict: impl Fn(&Step) -> f64) -> Steadiness {
    let logs: Vec<(&str, Vec<(Step, f64)>)> = logs
        .iter()
        .map(|(name, steps)| {
            let off = |s: &Step| (s.seconds.max(1e-9) / predict(s).max(1e-9)).ln();
            (*name, steps.iter().map(|s| (*s, off(s))).collect())
        })
        .collect();
    let kinds: Vec<BTreeMap<Kind, Typical>> = logs
        .iter()
        .map(|(_, steps)| typical(steps.iter()))
        .collect();
    let mut out = Steadiness::default();
    let (mut seen, mut slow, mut beyond, mut time) = (0usize, 0usize, 0.0, 0.0);
    for ((_, steps), kinds) in logs.iter().zip(&kinds) {
        for (s, off) in steps {
            let Some(t) = kinds.get(&kind(s)) else {
                continue;
            };
            seen += 1;
            time += s.seconds;
            if off - t.off > SLOW.ln() {
                slow += 1;
                beyond += s.seconds * (1.0 - (t.off - off).exp());
            }
        }
    }
    if seen > 0 {
        out.slow_ratio = slow as f64 / seen as f64;
        out.slow_time_ratio = beyond / time;
    }
    let beside = between(&kinds);
    for ((name, steps), beside) in logs.iter().zip(&beside) {
        out.logs.push(Level {
            log: file_name(name),
            beside_others: beside.map(f64::exp_m1),
            second_half: halves(steps).map(f64::exp_m1),
        });
    }
    // A level's deviation between two loads is at least what half a load shows.
    let known: Vec<f64> = beside.iter().flatten().copied().collect();
    let within: Vec<f64> = (out.logs.iter())
        .filter_map(|l| l.second_half.map(f64::ln_1p))
        .collect();
    let square = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>();
    let samples: Vec<Vec<Sample>> = (logs.iter().zip(&kinds))
        .map(|((_, steps), kinds)| samples(steps, kinds))
        .collect();
    out.drift = drift::estimate(&samples);
    let of_logs = square(&known) / (known.len().max(2) - 1) as f64;
    let of_halves = square(&within) / (2 * within.len().max(1)) as f64;
    out.level_deviation = of_logs.max(of_halves).sqrt();
    out.warnings = warnings(&out);
    out
}

/// A sample per step of which is known what is typical of it.
fn samples(steps: &[(Step, f64)], kinds: &BTreeMap<Kind, Typical>) -> Vec<Sample> {
    let mut end = f64::NEG_INFINITY;
    let mut out = Vec::new();
    for (s, off) in steps {
        let Some(typical) = kinds.get(&kind(s)) else {
            continue;
        };
        // Of steps that are under way at once (replicas, pipeline stages) the first one is enough.
        if s.start >= end {
            end = s.start + s.seconds;
            out.push(Sample {
                start: s.start,
                seconds: s.seconds,
                off: off - typical.off,
            });
        }
    }
    out
}

/// Level of each log: `typical(log, kind) = level(log) + usual(kind)`, levels with mean zero.
fn between(logs: &[BTreeMap<Kind, Typical>]) -> Vec<Option<f64>> {
    let mut shared: BTreeMap<Kind, Vec<(usize, Typical)>> = BTreeMap::new();
    for (i, kinds) in logs.iter().enumerate() {
        for (k, t) in kinds {
            shared.entry(*k).or_default().push((i, *t));
        }
    }
    shared.retain(|_, t| t.len() > 1);
    let mut level = vec![0.0; logs.len()];
    let mut weight = vec![0.0; logs.len()];
    for _ in 0..ROUNDS {
        let mut sum = vec![0.0; logs.len()];
        weight = vec![0.0; logs.len()];
        for all in shared.values() {
            let n: f64 = all.iter().map(|(_, t)| t.n as f64).sum();
            let usual = all
                .iter()
                .map(|(i, t)| t.n as f64 * (t.off - level[*i]))
                .sum::<f64>()
                / n;
            for (i, t) in all {
                // Few steps in any other log say little, however many there are in this one.
                let w = (t.n as f64).min(n - t.n as f64);
                sum[*i] += w * (t.off - usual);
                weight[*i] += w;
            }
        }
        for i in (0..logs.len()).filter(|&i| weight[i] > 0.0) {
            level[i] = sum[i] / weight[i];
        }
        let there: Vec<f64> = (0..logs.len())
            .filter(|&i| weight[i] > 0.0)
            .map(|i| level[i])
            .collect();
        let mean = there.iter().sum::<f64>() / there.len().max(1) as f64;
        level.iter_mut().for_each(|l| *l -= mean);
    }
    (level.iter().zip(&weight))
        .map(|(l, w)| (*w > 0.0).then_some(*l))
        .collect()
}

/// What the second half of a log takes beyond the first.
fn halves(steps: &[(Step, f64)]) -> Option<f64> {
    let (first, last) = (steps.first()?, steps.last()?);
    let middle = 0.5 * (first.0.start + last.0.start);
    let before = typical(steps.iter().filter(|(s, _)| s.start < middle));
    let after = typical(steps.iter().filter(|(s, _)| s.start >= middle));
    let (mut sum, mut weight) = (0.0, 0.0);
    for (k, b) in &before {
        if let Some(a) = after.get(k) {
            let w = a.n.min(b.n) as f64;
            sum += w * (a.off - b.off);
            weight += w;
        }
    }
    (weight > 0.0).then(|| sum / weight)
}

fn warnings(s: &Steadiness) -> Vec<String> {
    let mut out = Vec::new();
    if s.slow_ratio.max(s.slow_time_ratio) > UNSTEADY {
        out.push(format!(
            "the machine was busy: {:.1} % of the steps took more than {SLOW} times as long as steps like them, which is {:.1} % of \
             all time; stop what else runs there and measure again",
            100.0 * s.slow_ratio,
            100.0 * s.slow_time_ratio
        ));
    }
    let faster = |x: f64| if x > 0.0 { "longer" } else { "less long" };
    for l in &s.logs {
        if let Some(h) = l.second_half.filter(|h| h.abs() > UNSTEADY) {
            out.push(format!(
                "the machine's speed changed during {}: the same batches took {:.1} % {} in its second half than in its first",
                l.log,
                100.0 * h.abs(),
                faster(h)
            ));
        }
    }
    let known = || (s.logs.iter()).filter_map(|l| Some((l.beside_others?, l)));
    let slowest = known().max_by(|a, b| a.0.total_cmp(&b.0));
    let fastest = known().min_by(|a, b| a.0.total_cmp(&b.0));
    if let (Some((high, slow)), Some((low, fast))) = (slowest, fastest) {
        let apart = (1.0 + high) / (1.0 + low) - 1.0;
        if apart > UNSTEADY {
            out.push(format!(
                "the machine's speed changed between loads: the same batches took {:.1} % longer in {} than in {}; loads measured \
                 at another time may be off by as much, whatever is fitted",
                100.0 * apart,
                slow.log,
                fast.log
            ));
        }
    }
    out
}

impl fmt::Display for Steadiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = |of: fn(&Level) -> Option<f64>| {
            let sizes = self.logs.iter().filter_map(of).map(f64::abs);
            sizes.reduce(f64::max).map_or_else(
                || "unknown".to_owned(),
                |x| format!("up to {:.1} %", 100.0 * x),
            )
        };
        write!(
            f,
            "the machine while it was measured: {:.1} % of the steps slow (over {SLOW} times the typical), drift within a log {}, a log's \
             level beside the others' {}",
            100.0 * self.slow_ratio,
            most(|l| l.second_half),
            most(|l| l.beside_others)
        )?;
        if let Some(drift) = &self.drift {
            write!(f, "; {drift}")?;
        }
        Ok(())
    }
}
