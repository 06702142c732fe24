//! Swaps of models that are loaded on demand: how many there were, and what they took.

use serde::{Deserialize, Serialize};

use crate::kernel::time::SimTime;
use crate::kube::record::{ClusterRecord, SwapRow};
use crate::report::figures::{field, figure};

/// Swaps of models on shared accelerators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SwapReport {
    /// Times that a replica was loaded because requests waited for its model.
    pub loads: u64,
    /// Of these, those that evicted others.
    pub swaps: u64,
    /// Loads whose replica was ready before the run ended, or it went.
    pub completed: u64,
    /// From the decision until the replica was ready: mean of these [s].
    pub mean_s: f64,
    /// The longest [s].
    pub max_s: f64,
    /// Of the mean, until those that were evicted had answered what they had, and slept or were gone [s].
    pub mean_evict_s: f64,
    /// Accelerators that were held without being ready to serve: those of the evicted from the decision until they were gone, draining included, and those of the
    /// replicas that came until they were ready [h].
    pub accelerator_hours: f64,
    /// Share of the accelerators' paid time that this is [0, 1].
    pub lost_ratio: f64,
    /// By model.
    pub models: Vec<ModelSwaps>,
}

/// Swaps to one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ModelSwaps {
    /// Its pool.
    pub pool: String,
    /// Times that a replica of it was loaded.
    pub loads: u64,
    /// Times that one was evicted for another model.
    pub evicted: u64,
    /// From the decision until the replica was ready, mean [s].
    pub mean_s: f64,
}

/// When the replica of a swap was ready.
fn ready(c: &ClusterRecord, s: &SwapRow) -> Option<SimTime> {
    Some(c.replicas.get(s.replica)?.served.first()?.1)
}

fn took(c: &ClusterRecord, s: &SwapRow) -> Option<f64> {
    Some(ready(c, s)?.since(s.at).as_secs())
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len().max(1) as f64
}

/// Those of `c`, where models are loaded on demand; `paid`: time of accelerators that was paid for [s].
pub(super) fn swaps(c: &ClusterRecord, paid: f64) -> Option<SwapReport> {
    let all = c.swaps.as_ref()?;
    let times: Vec<f64> = all.iter().filter_map(|s| took(c, s)).collect();
    let evicting = |s: &SwapRow| {
        ready(c, s)?;
        let gone = s
            .evicted
            .iter()
            .filter_map(|e| c.replicas.get(*e))
            .map(|r| r.gone);
        Some(
            gone.max()
                .map_or(0.0, |at| at.min(c.end).since(s.at).as_secs()),
        )
    };
    let evict: Vec<f64> = all.iter().filter_map(evicting).collect();
    // An accelerator is of one pod at a time, so what is counted here is never more than what there is.
    let held = |r: usize, from: Option<SimTime>, until: Option<SimTime>| {
        let r = c.replicas.get(r)?;
        let gpus = c.gpus_per_pod(r) as f64;
        let of = |p: &usize| {
            let p = &c.pods[*p];
            let until = until.unwrap_or(r.gone).min(p.gone).min(c.end);
            until
                .since(from.unwrap_or(p.scheduled).min(until))
                .as_secs()
        };
        Some(gpus * r.pods.iter().map(of).sum::<f64>())
    };
    let lost = |s: &SwapRow| {
        let going = s.evicted.iter().filter_map(|e| held(*e, Some(s.at), None));
        Some(going.sum::<f64>() + held(s.replica, None, ready(c, s))?)
    };
    let lost_s: f64 = all.iter().filter_map(lost).sum();
    let of = |d: usize| {
        let own = || all.iter().filter(move |s| s.deployment == d);
        let times: Vec<f64> = own().filter_map(|s| took(c, s)).collect();
        let evicted = all.iter().flat_map(|s| &s.evicted);
        ModelSwaps {
            pool: c.deployments[d].name.clone(),
            loads: own().count() as u64,
            evicted: evicted
                .filter(|e| c.replicas.get(**e).is_some_and(|r| r.deployment == d))
                .count() as u64,
            mean_s: mean(&times),
        }
    };
    Some(SwapReport {
        loads: all.len() as u64,
        swaps: all.iter().filter(|s| !s.evicted.is_empty()).count() as u64,
        completed: times.len() as u64,
        mean_s: mean(&times),
        max_s: times.iter().copied().fold(0.0, f64::max),
        mean_evict_s: mean(&evict),
        accelerator_hours: lost_s / 3600.0,
        lost_ratio: if paid > 0.0 { lost_s / paid } else { 0.0 },
        models: (0..c.deployments.len()).map(of).collect(),
    })
}

/// Its lines in a text report.
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub(super) fn write_swaps(out: &mut String, s: &SwapReport) -> std::fmt::Result {
    let text = format!(
        "{} loads on demand, {} of which evicted others: ready after {:.1} s on average, {:.1} s of it until the evicted were gone, {:.1} s at most; {} \
         accelerator hours, {:.1} % of those paid for",
        s.loads,
        s.swaps,
        s.mean_s,
        s.mean_evict_s,
        s.max_s,
        figure(s.accelerator_hours),
        100.0 * s.lost_ratio
    );
    field(out, "swaps", &text)?;
    for m in s.models.iter().filter(|m| m.loads + m.evicted > 0) {
        let text = format!(
            "loaded {} times, ready after {:.1} s on average; evicted {} times",
            m.loads, m.mean_s, m.evicted
        );
        field(out, &format!("of {}", m.pool), &text)?;
    }
    Ok(())
}
