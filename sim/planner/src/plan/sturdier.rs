//! What survives more than the question asks: a growth of the load while a replica is lost.
//!
//! The winner is looked at first. Of the others, each deployment that was settled and the best by its bound of each instance type and layout are looked at in
//! the order of what they cost at least, until no other can cost less than the best that holds. A short run sets aside what misses clearly; the judge of the steady
//! state has the last word. Where every candidate was settled, what is not among them does not even hold the load as it is.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::question::{Question, Redundancy};
use super::ready::Ready;
use super::search::{Found, Settled, better};
use crate::Error;
use crate::conditions::Standing;
use crate::fleet::Extent;
use crate::smallest::smallest;

/// Growth of the load that is to be survived [ratio].
pub const GROWTH: f64 = 0.25;
/// Requests of the short run.
const REQUESTS: usize = 1_000;
/// Miss of an objective up to which so short a run does not rule a deployment out [ratio].
const LENIENCE: f64 = 0.15;
/// Deployments that are looked at, at most.
const MOST: usize = 48;
/// Deployments that are looked at before the best price is looked at again.
const AT_ONCE: usize = 8;

/// What is lost: what the question says, a replica where it says nothing.
pub fn lost(question: &Question) -> Redundancy {
    match question.redundancy {
        Redundancy::None => Redundancy::Replica,
        other => other,
    }
}

/// The cheapest deployment that holds under [`GROWTH`] more load with [`lost`] lost; none where none of those looked at does. `exhaustive`: every candidate was
/// settled.
///
/// # Errors
/// The simulator's own.
pub fn sturdier(
    question: &Question,
    ready: &[Ready],
    found: &Found,
    winner: &Settled,
    exhaustive: bool,
) -> Result<Option<Settled>, Error> {
    let question = &Question {
        redundancy: lost(question),
        ..question.clone()
    };
    let judge = match question.judge(1.0 + GROWTH) {
        Ok(judge) => judge,
        // More requests than may be simulated: nothing is said of it.
        Err(e) if e.is_input() => return Ok(None),
        Err(e) => return Err(e),
    };
    let stands = |at: usize, units: u32| -> Result<Standing, Error> {
        let load = || question.requests.stretch(REQUESTS, 1.0 + GROWTH);
        let what = question.redundancy;
        let short = ready[at].losing(question, units, what, load, Extent::default())?;
        if short.lost > 0 || short.margin_ratio < -LENIENCE {
            return Ok(short);
        }
        ready[at].judged(&judge, units, what)
    };
    let standing = stands(winner.at, winner.units)?;
    if standing.holds {
        return Ok(Some(Settled {
            standing,
            ..winner.clone()
        }));
    }
    let mut best: Option<Settled> = None;
    for batch in by_least_price(question, ready, found, exhaustive).chunks(AT_ONCE) {
        let price = best.as_ref().map_or(f64::INFINITY, |b| b.cost);
        let looks = batch
            .par_iter()
            .filter(|(_, _, usd)| *usd <= price)
            .map(|(at, floor, _)| {
                let candidate = &ready[*at].candidate;
                let most = candidate.most_units(question);
                let most = most.min(candidate.units_for(price.min(1e9)));
                let found = smallest(*floor, *floor, most, |units| {
                    let standing = stands(*at, units)?;
                    Ok::<_, Error>((standing.holds, standing))
                })?;
                Ok(found.map(|(units, standing)| Settled {
                    at: *at,
                    units,
                    cost: candidate.cost(units),
                    standing,
                    room: None,
                }))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        best = (best.into_iter().chain(looks.into_iter().flatten())).min_by(better);
    }
    Ok(best)
}

/// Candidates with the fewest units that may hold by their bound and what those cost, cheapest first.
fn by_least_price(
    question: &Question,
    ready: &[Ready],
    found: &Found,
    exhaustive: bool,
) -> Vec<(usize, u32, f64)> {
    let per_s = question.least_per_s().unwrap_or(0.0) * (1.0 + GROWTH);
    let mut firsts: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for (at, r) in ready.iter().enumerate() {
        let bound = &found.bounds[at];
        if exhaustive || bound.impossible.is_some() {
            continue;
        }
        let shape = (r.candidate.instance.as_str(), r.candidate.layouts());
        let first = firsts.entry(shape).or_insert(at);
        if bound.requests_per_s > found.bounds[*first].requests_per_s {
            *first = at;
        }
    }
    let settled = found.settled.iter().map(|s| s.at);
    let mut all: Vec<usize> = firsts.into_values().chain(settled).collect();
    all.sort_unstable();
    all.dedup();
    let mut out: Vec<(usize, u32, f64)> = all
        .into_iter()
        .map(|at| {
            let c = &ready[at].candidate;
            let cells = per_s / found.bounds[at].requests_per_s.max(1e-12);
            let floor = c.units_of(cells.ceil().clamp(1.0, 1e6) as u32, question);
            (at, floor, c.cost(floor))
        })
        .collect();
    out.sort_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
    out.truncate(MOST);
    out
}
