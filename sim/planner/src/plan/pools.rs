//! Two pools by prompt length: short prompts to one deployment, long ones to another.
//!
//! Closed form first: for each boundary the bounds of the deployments that came far give the least that two pools can cost. The cheapest boundaries are then
//! simulated, each pool under its part of the same requests. Each pool keeps the objectives and the redundancy by itself, so the whole does.

use std::collections::BTreeSet;

use super::candidate::Candidate;
use super::question::Question;
use super::ready::{Ready, start_all};
use super::report::{Pool, Split};
use super::search::{Found, Search, Settled};
use crate::Error;

/// Quantiles of the prompt length at which the load is split.
const QUANTILES: [f64; 6] = [0.3, 0.5, 0.7, 0.8, 0.9, 0.95];
/// Boundaries that are simulated.
const SIMULATED: usize = 3;
/// Deployments that each pool chooses among.
const CANDIDATES: usize = 12;
/// Fewest requests of a pool.
const LEAST: usize = 200;

/// The cheapest split that holds; none where the load cannot be split, or no split holds.
///
/// # Errors
/// The simulator's own.
pub fn split(
    question: &Question,
    ready: &[Ready],
    found: &Found,
    winner: &Settled,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Option<Split>, Error> {
    let candidates = candidates(ready, found, winner);
    let prompts = &question.moments.prompts;
    let at = |q: f64| prompts[((prompts.len() - 1) as f64 * q) as usize];
    let boundaries: BTreeSet<u32> = QUANTILES.map(at).into_iter().collect();
    let mut bounded: Vec<(f64, u32, [Question; 2])> = Vec::new();
    for boundary in boundaries {
        let part = |short: bool| {
            let prompts = match short {
                true => 0..=boundary,
                false => boundary.saturating_add(1)..=u32::MAX,
            };
            let part = question.requests.only(prompts);
            (part.len() >= LEAST).then(|| question.with(part))
        };
        if let (Some(short), Some(long)) = (part(true), part(false)) {
            let least = least(&short, &candidates)? + least(&long, &candidates)?;
            bounded.push((least, boundary, [short, long]));
        }
    }
    bounded.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut best: Option<Split> = None;
    for (least, boundary, pools) in bounded.into_iter().take(SIMULATED) {
        let so_far = best.as_ref().map_or(f64::INFINITY, |b| b.usd_per_hour);
        if least >= so_far {
            break;
        }
        progress(&format!("two pools, split at {boundary} prompt tokens"));
        let [short, long] = &pools;
        let (Some(short), Some(long)) = (pool(short, &candidates)?, pool(long, &candidates)?)
        else {
            continue;
        };
        let usd = short.usd_per_hour + long.usd_per_hour;
        if usd < so_far {
            let all = question.requests.len() as f64;
            best = Some(Split {
                boundary_tokens: boundary,
                short_ratio: pools[0].requests.len() as f64 / all,
                usd_per_hour: usd,
                more_usd_per_hour: usd - winner.cost,
                short,
                long,
            });
        }
    }
    Ok(best)
}

/// The winner and what else held, cheapest first, each shape once beside the winner's.
fn candidates(ready: &[Ready], found: &Found, winner: &Settled) -> Vec<Candidate> {
    let mut all: Vec<&Settled> = found.settled.iter().collect();
    all.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.at.cmp(&b.at)));
    let mut out = vec![ready[winner.at].candidate.clone()];
    for s in all {
        let c = &ready[s.at].candidate;
        if out.len() < CANDIDATES && out.iter().all(|o| o.index != c.index) {
            out.push(c.clone());
        }
    }
    out
}

/// The least that a pool can cost by the bounds [USD/h]; infinite where none can carry it.
fn least(question: &Question, candidates: &[Candidate]) -> Result<f64, Error> {
    let ready = start_all(question, candidates, &mut Vec::new());
    question.world.check()?;
    Ok(Search::new(question, &ready, &|_| {})?.least())
}

/// The cheapest deployment for a pool.
fn pool(question: &Question, candidates: &[Candidate]) -> Result<Option<Pool>, Error> {
    let ready = start_all(question, candidates, &mut Vec::new());
    question.world.check()?;
    let found = Search::new(question, &ready, &|_| {})?.run()?;
    let Some(best) = found.settled.first() else {
        return Ok(None);
    };
    let c = &ready[best.at].candidate;
    Ok(Some(Pool {
        label: c.label(),
        instances: c.instances(best.units),
        replicas: c.replicas(best.units),
        usd_per_hour: best.cost,
        standing: best.standing.clone(),
    }))
}
