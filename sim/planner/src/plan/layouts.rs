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
    /// Most requests per second of an accelerator, by the bounds of those that hold.
    per_s: f64,
    /// Fewest accelerators with which one holds.
    holds: Option<u32>,
    /// How far the best of those that were set aside came.
    aside: Option<Aside>,
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
    if won.apart.is_some() || question.moments.shares {
        return None;
    }
    let mut all: BTreeMap<String, Look> = BTreeMap::new();
    for s in &found.settled {
        let c = &ready[s.at].candidate;
        if c.instance != won.instance || c.apart.is_some() {
            continue;
        }
        let look = all.entry(c.layouts()).or_default();
        let per_s = found.bounds[s.at].requests_per_s / f64::from(c.devices.max(1));
        look.per_s = look.per_s.max(per_s);
        let devices = c.accelerators(s.units);
        look.holds = Some(look.holds.map_or(devices, |n| n.min(devices)));
    }
    for r in rejected {
        let of_won = r.what.strip_prefix(&won.instance);
        let Some(layout) = of_won.and_then(|rest| rest.strip_prefix(", ")) else {
            continue;
        };
        if !layout.contains(" to prefill") && r.kind != Aside::Place {
            let look = all.entry(layout.to_owned()).or_default();
            look.aside = Some(look.aside.map_or(r.kind, |k| k.min(r.kind)));
        }
    }
    let own = all.remove(&won.layouts())?;
    if all.is_empty() {
        return None;
    }
    let has_stages = won.layout.pp == 1 && all.keys().any(|l| l.contains("PP"));
    let mut others: Vec<(String, Look)> = all.into_iter().collect();
    let order = |l: &Look| (l.holds.is_none(), l.holds, l.aside);
    others.sort_by(|a, b| order(&a.1).cmp(&order(&b.1)).then(a.0.cmp(&b.0)));
    others.truncate(TOLD);
    let told: Vec<String> = (others.iter())
        .map(|(layout, look)| match look.holds {
            Some(n) => format!("{layout} at most {} and takes {n}", figure(look.per_s)),
            None => format!("{layout} {}", why(look.aside)),
        })
        .collect();
    let stages = match has_stages {
        true => "; stages (PP) make room and throughput, and no answer faster",
        false => "",
    };
    Some(format!(
        "of the layouts, {} serves at most {} req/s per accelerator within the SLO (bound), {}{stages}",
        won.layouts(),
        figure(own.per_s),
        told.join(", ")
    ))
}

/// How far the best of a layout came.
fn why(aside: Option<Aside>) -> &'static str {
    match aside {
        Some(Aside::Beaten) => "is no cheaper",
        Some(Aside::Dear) => "is dearer even at its best",
        Some(Aside::MissAtPrice) => "misses the SLO for this price",
        Some(Aside::Miss) => "misses the SLO",
        Some(Aside::Slow) => "is too slow or too small for one request",
        Some(Aside::Small) => "is too small for the load",
        Some(Aside::Start) => "does not fit",
        _ => "was not looked at",
    }
}
