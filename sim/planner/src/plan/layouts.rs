//! Why the winner's layout and no other of the same hardware, in a sentence.

use std::collections::BTreeMap;

use sim::report::text::figure;

use super::question::Question;
use super::ready::Ready;
use super::report::{Aside, Rejection};
use super::search::{Found, Settled};

/// Other layouts that are told.
const TOLD: usize = 5;

/// What became of the candidates of a layout.
#[derive(Default)]
struct Look {
    /// Most requests per second of an accelerator, by the bounds.
    per_s: f64,
    /// Fewest accelerators with which one holds.
    holds: Option<u32>,
    /// Stages.
    pp: u32,
}

/// The sentence; none where there was no choice.
pub(super) fn in_words(
    question: &Question,
    ready: &[Ready],
    found: &Found,
    rejected: &[Rejection],
    winner: &Settled,
) -> Option<String> {
    let won = &ready[winner.at].candidate;
    if won.apart.is_some() {
        return None;
    }
    let mut all: BTreeMap<String, Look> = BTreeMap::new();
    for (r, b) in ready.iter().zip(&found.bounds) {
        let c = &r.candidate;
        if c.instance != won.instance || c.apart.is_some() {
            continue;
        }
        let look = all.entry(c.layouts()).or_default();
        look.pp = c.layout.pp;
        if b.impossible.is_none() {
            let per_s = b.requests_per_s / f64::from(c.devices.max(1));
            look.per_s = look.per_s.max(per_s);
        }
    }
    for s in found.settled.iter().chain(&found.others) {
        let c = &ready[s.at].candidate;
        if let Some(look) = all
            .get_mut(&c.layouts())
            .filter(|_| c.instance == won.instance)
        {
            let devices = c.accelerators(s.units);
            look.holds = Some(look.holds.map_or(devices, |n| n.min(devices)));
        }
    }
    let own = all.remove(&won.layouts())?;
    if all.is_empty() || question.moments.shares {
        return None;
    }
    let has_stages = all.values().any(|l| l.pp > 1) && won.layout.pp == 1;
    let mut others: Vec<(String, Look)> = all.into_iter().collect();
    others.sort_by(|a, b| b.1.per_s.total_cmp(&a.1.per_s).then(a.0.cmp(&b.0)));
    others.truncate(TOLD);
    let told = others.iter().map(|(layout, look)| {
        let why = match look.holds {
            Some(n) => format!("holds with {n}"),
            None => why(&format!("{}, {layout}", won.instance), rejected).to_owned(),
        };
        format!("{layout} {} ({why})", figure(look.per_s))
    });
    let told: Vec<String> = told.collect();
    let stages = match has_stages {
        true => "; stages (PP) pass each token on, so they make room and no answer faster",
        false => "",
    };
    Some(format!(
        "of the layouts, {} finishes at most {} req/s per accelerator within the SLO (bound), {}{stages}",
        won.layouts(),
        figure(own.per_s),
        told.join(", ")
    ))
}

/// How far the best of the candidates called `what` came.
fn why(what: &str, rejected: &[Rejection]) -> &'static str {
    let kinds = (rejected.iter()).filter(|r| r.what == what).map(|r| r.kind);
    match kinds.min() {
        Some(Aside::Beaten) => "no cheaper, or less room",
        Some(Aside::Dear) => "dearer even at its best",
        Some(Aside::MissAtPrice) => "misses the SLO for this price",
        Some(Aside::Miss) => "misses the SLO",
        Some(Aside::Slow) => "too slow or too small for one request",
        Some(Aside::Small) => "too small for the load",
        _ => "not looked at",
    }
}
