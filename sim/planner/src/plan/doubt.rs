//! How sure the answer is: the finalists again with the profiles' parameters drawn within their standard errors, and other requests of the same load.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::question::Question;
use super::ready::Ready;
use super::report::{Doubt, Finalist, Sensitivity};
use super::search::{Found, Settled};
use crate::Error;
use crate::conditions::Standing;
use crate::fleet::Extent;
use crate::requests::Requests;

/// Deployments that are compared.
const FINALISTS: usize = 4;
/// A deployment that costs more than this times the winner is no finalist.
const WITHIN: f64 = 1.6;
/// Requests of each run.
const REQUESTS: usize = 1_500;
/// Requests of each run that moves one parameter.
const MOVED_REQUESTS: usize = 500;
/// Units around its own that a finalist is tried with.
const UNITS_AROUND: u32 = 4;
/// Parameters that are told.
const TOLD: usize = 3;
/// Chance that one more draw lies inside an interval, where there are draws enough.
const COVERAGE: f64 = 0.9;

/// One draw.
struct Drawn {
    /// Lowest price at which each finalist holds [USD/h].
    prices: Vec<Option<f64>>,
    /// The winner as it is.
    winner: Standing,
}

/// Draws `draws` times.
///
/// # Errors
/// The simulator's own.
pub fn doubt(
    question: &Question,
    ready: &[Ready],
    found: &Found,
    winner: &Settled,
    draws: u64,
) -> Result<Doubt, Error> {
    let finalists = finalists(ready, found, winner);
    let runs = (0..draws)
        .into_par_iter()
        .map(|i| one(question, ready, &finalists, i))
        .collect::<Result<Vec<Drawn>, Error>>()?;
    let n = runs.len().max(1) as f64;
    let cheapest = |d: &Drawn| -> Option<usize> {
        let priced = d
            .prices
            .iter()
            .enumerate()
            .filter_map(|(i, p)| Some((i, (*p)?)));
        // Of equal prices the first, which is the winner where it is among them.
        priced
            .min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
            .map(|(i, _)| i)
    };
    let own = finalists[0].cost;
    let wins = |d: &Drawn| {
        d.winner.holds
            && d.prices
                .iter()
                .skip(1)
                .flatten()
                .all(|p| *p >= own * (1.0 - 1e-9))
    };
    let lowest: Vec<f64> = runs
        .iter()
        .filter_map(|d| d.prices.iter().flatten().copied().min_by(f64::total_cmp))
        .collect();
    let complete = lowest.len() == runs.len();
    let values = (0..question.conditions.len())
        .map(|c| {
            interval(
                runs.iter()
                    .filter_map(|d| d.winner.values_ms.get(c).copied().flatten())
                    .collect(),
            )
        })
        .collect();
    let parameters: BTreeSet<&String> = finalists
        .iter()
        .flat_map(|f| ready[f.at].fleet.uncertain.keys())
        .collect();
    let mut notes = Vec::new();
    if parameters.is_empty() {
        notes.push(
            "no profile in use gives its parameters a standard error, so the draws hold the chance of the load alone".to_owned(),
        );
    }
    if !question.seeded {
        notes.push("the load is a trace: every draw plays the same requests".to_owned());
    }
    notes.push("the draws hold what the fit does not know about its parameters, not the error of the model's form".to_owned());
    Ok(Doubt {
        draws,
        coverage_ratio: coverage(runs.len()),
        requests: REQUESTS.min(question.requests.len()) as u64,
        holds_ratio: runs.iter().filter(|d| d.winner.holds).count() as f64 / n,
        cheapest_ratio: runs.iter().filter(|d| wins(d)).count() as f64 / n,
        usd_per_hour: interval(lowest).filter(|_| complete && !question.offers.by_devices),
        values_ms: values,
        finalists: finalists
            .iter()
            .enumerate()
            .map(|(i, f)| Finalist {
                label: ready[f.at].candidate.label(),
                usd_per_hour: ready[f.at].candidate.usd(f.units),
                cheapest_ratio: runs.iter().filter(|d| cheapest(d) == Some(i)).count() as f64 / n,
            })
            .collect(),
        sensitive: sensitive(question, &ready[winner.at], winner)?,
        notes,
    })
}

/// The winner and the next best of other instance types and layouts.
fn finalists(ready: &[Ready], found: &Found, winner: &Settled) -> Vec<Settled> {
    let shape = |s: &Settled| {
        let c = &ready[s.at].candidate;
        (c.instance.clone(), c.layouts())
    };
    let mut out = vec![winner.clone()];
    let mut rest: Vec<&Settled> = found.settled.iter().collect();
    rest.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.at.cmp(&b.at)));
    for s in rest {
        let new = out.iter().all(|o| shape(o) != shape(s));
        if new && s.cost <= WITHIN * winner.cost && out.len() < FINALISTS {
            out.push(s.clone());
        }
    }
    out
}

fn one(
    question: &Question,
    ready: &[Ready],
    finalists: &[Settled],
    i: u64,
) -> Result<Drawn, Error> {
    let other;
    let requests = if question.seeded {
        let probe = finalists_load(question, ready, finalists)?;
        other = Requests::of(&probe, question.seed.wrapping_add(i + 1))?;
        &other
    } else {
        &question.requests
    };
    let mut prices = Vec::new();
    let mut winner = Standing::default();
    for (n, f) in finalists.iter().enumerate() {
        let drawn = ready[f.at].drawn(question, i)?;
        let run = |units: u32| -> Result<Standing, Error> {
            let load = || requests.stretch(REQUESTS, 1.0);
            let what = question.redundancy;
            drawn.losing(question, units, what, load, Extent::default())
        };
        let own = run(f.units)?;
        let mut price = own.holds.then_some(f.cost);
        // Up where it fails, down where it holds, a few units either way.
        for step in 1..=UNITS_AROUND {
            let units = if own.holds {
                f.units.saturating_sub(step)
            } else {
                f.units + step
            };
            let holds = units >= 1 && run(units)?.holds;
            if holds {
                price = Some(drawn.candidate.cost(units));
            }
            if holds != own.holds {
                break;
            }
        }
        if n == 0 {
            winner = own;
        }
        prices.push(price);
    }
    Ok(Drawn { prices, winner })
}

/// A scenario with the question's load.
fn finalists_load(
    question: &Question,
    ready: &[Ready],
    finalists: &[Settled],
) -> Result<sim::scenario::Scenario, Error> {
    ready[finalists[0].at].candidate.scenario(question, &[1])
}

/// The chance that one more draw lies in the interval of `n` draws: no more than from the lowest to the highest, which holds n - 1 of the n + 1 places
/// where it may come to lie.
pub fn coverage(n: usize) -> f64 {
    let n = n as f64;
    ((n - 1.0) / (n + 1.0)).clamp(0.0, COVERAGE)
}

/// The interval in which one more draw lies with the chance [`coverage`], whatever the distribution: the draws are as likely in any order, so each of the
/// n + 1 places among them is as likely for the next (prediction interval of order statistics; linear between two of them).
pub fn interval(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let tail = 0.5 - coverage(values.len()) / 2.0;
    // Place k of n + 1, counted from 1.
    let place = (tail * (values.len() + 1) as f64 - 1.0).max(0.0);
    let last = values.len().checked_sub(1)? as f64;
    let at = |place: f64| {
        let (low, part) = (place.floor(), place.fract());
        let next = values
            .get(low as usize + 1)
            .unwrap_or(&values[low as usize]);
        values[low as usize] * (1.0 - part) + next * part
    };
    Some((at(place.min(last)), at((last - place).max(0.0))))
}

/// What each parameter of the winner's profile does to its smallest margin, one standard error either way.
fn sensitive(
    question: &Question,
    ready: &Ready,
    winner: &Settled,
) -> Result<Vec<Sensitivity>, Error> {
    let parameters: Vec<_> = ready.fleet.uncertain.iter().collect();
    let mut out = parameters
        .par_iter()
        .map(|(name, p)| {
            let at = |value: f64| -> Result<Standing, Error> {
                let over = BTreeMap::from([((*name).clone(), value.clamp(p.min, p.max))]);
                let moved = Ready::start(question, &ready.candidate, &over)?;
                let load = || question.requests.stretch(MOVED_REQUESTS, 1.0);
                let what = question.redundancy;
                moved.losing(question, winner.units, what, load, Extent::default())
            };
            let error = p.std_error.unwrap_or(0.0);
            let (low, high) = (at(p.value - error)?, at(p.value + error)?);
            Ok(Sensitivity {
                parameter: (*name).clone(),
                margin_ratio: (low.margin_ratio, high.margin_ratio),
                flips: low.margin_ratio < 0.0 || high.margin_ratio < 0.0,
                measure: measurement(name).to_owned(),
            })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let swing = |s: &Sensitivity| (s.margin_ratio.0 - s.margin_ratio.1).abs();
    out.sort_by(|a, b| {
        swing(b)
            .total_cmp(&swing(a))
            .then(a.parameter.cmp(&b.parameter))
    });
    out.retain(|s| swing(s) > 0.0);
    out.truncate(TOLD);
    Ok(out)
}

/// What would narrow a parameter.
fn measurement(parameter: &str) -> &'static str {
    match parameter.split('.').next().unwrap_or_default() {
        "engine" => "a step log of the engine under load (servetwin calibrate steps)",
        "collective" | "allreduce" | "all_reduce" => {
            "collectives between the devices of the instance (nccl-tests), or a step log at two TP degrees"
        }
        _ => {
            "a step log on one such accelerator at several batch sizes (servetwin calibrate steps)"
        }
    }
}
