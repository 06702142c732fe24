//! What each of several Deployments or LeaderWorkerSets of a cluster had: replicas over time, and its part of the cost.
//!
//! A node costs what it costs, whoever is on it. A deployment's part is that of the accelerators that its pods hold, from when a pod is placed until it
//! or its node is gone; what no pod holds is nobody's.

use serde::{Deserialize, Serialize};

use crate::kernel::time::SimTime;
use crate::kube::record::{ClusterRecord, DeploymentRow, PodRow, ReplicaRow};
use crate::report::figures::{field, figure};

/// A Deployment or LeaderWorkerSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DeploymentReport {
    /// Name of its pool.
    pub name: String,
    /// Replicas that were created.
    pub created: u64,
    /// Most that were ready at once, as sampled.
    pub most_ready: u64,
    /// Fewest that were ready at once, as sampled.
    pub least_ready: u64,
    /// Ready ones on average over the run.
    pub mean_ready: f64,
    /// Most that were wanted.
    pub most_wanted: u64,
    /// Accelerators that its pods held, over time [h].
    pub accelerator_hours: f64,
    /// Share of that for which its replicas were ready [0, 1].
    pub serving_ratio: f64,
    /// What those accelerators cost [USD]; null where a price is not known.
    pub usd: Option<f64>,
}

/// Those of `c`, where there are several.
pub(super) fn deployments(c: &ClusterRecord) -> Vec<DeploymentReport> {
    match c.deployments.len() {
        0 | 1 => Vec::new(),
        _ => (c.deployments.iter().enumerate())
            .map(|(i, d)| deployment(c, i, d))
            .collect(),
    }
}

fn deployment(c: &ClusterRecord, i: usize, d: &DeploymentRow) -> DeploymentReport {
    let own: Vec<&ReplicaRow> = c.replicas.iter().filter(|r| r.deployment == i).collect();
    let ready = |r: &&ReplicaRow| -> f64 {
        (r.served.iter())
            .map(|(_, from, to)| to.min(&c.end).since(*from).as_secs())
            .sum()
    };
    let served: f64 = own.iter().map(ready).sum();
    let serving: f64 = (own.iter())
        .map(|r| ready(r) * r.pods.len() as f64 * d.gpus_per_pod as f64)
        .sum();
    let pods = || own.iter().flat_map(|r| &r.pods).map(|p| &c.pods[*p]);
    let held: f64 = pods().map(|p| held_s(c, p) * d.gpus_per_pod as f64).sum();
    let usd = pods().map(|p| usd(c, p, d.gpus_per_pod)).sum();
    let most = |of: fn(&crate::kube::record::DeploymentSample) -> u32| {
        d.samples.iter().map(of).max().unwrap_or(0).into()
    };
    let time = c.end.as_secs();
    DeploymentReport {
        name: d.name.clone(),
        created: own.len() as u64,
        most_ready: most(|s| s.ready),
        least_ready: d.samples.iter().map(|s| s.ready).min().unwrap_or(0).into(),
        mean_ready: if time > 0.0 { served / time } else { 0.0 },
        most_wanted: most(|s| s.desired),
        accelerator_hours: held / 3600.0,
        serving_ratio: if held > 0.0 { serving / held } else { 0.0 },
        usd,
    }
}

/// How long a pod held its node [s].
fn held_s(c: &ClusterRecord, p: &PodRow) -> f64 {
    let Some(node) = c.node_of(p).filter(|_| p.scheduled != SimTime::NEVER) else {
        return 0.0;
    };
    let until = p.gone.min(node.gone).min(c.end);
    until.since(p.scheduled.min(until)).as_secs()
}

/// What the accelerators cost that a pod held [USD]; none where the price is not known.
fn usd(c: &ClusterRecord, p: &PodRow, gpus: i64) -> Option<f64> {
    let Some(node) = c.node_of(p) else {
        return Some(0.0);
    };
    let share = gpus as f64 / node.gpus.max(1) as f64;
    Some(node.usd_per_hour? * share * held_s(c, p) / 3600.0)
}

/// A line for each; `usd`: what all nodes cost.
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub(super) fn write_deployments(
    out: &mut String,
    all: &[DeploymentReport],
    usd: Option<f64>,
) -> std::fmt::Result {
    let price =
        |usd: Option<f64>| usd.map_or("price unknown".to_owned(), |usd| format!("{usd:.2} USD"));
    for d in all {
        let text = format!(
            "{} replicas ready on average, {} to {}; at most {} wanted, {} created; {} accelerator hours, {}, of which ready {:.1} %",
            figure(d.mean_ready),
            d.least_ready,
            d.most_ready,
            d.most_wanted,
            d.created,
            figure(d.accelerator_hours),
            price(d.usd),
            100.0 * d.serving_ratio
        );
        field(out, &format!("of {}", d.name), &text)?;
    }
    let held: Option<f64> = all.iter().map(|d| d.usd).sum();
    if let (Some(usd), Some(held), false) = (usd, held, all.is_empty()) {
        let text = format!(
            "{:.2} USD for accelerators that no pod held",
            (usd - held).max(0.0)
        );
        field(out, "of no pool", &text)?;
    }
    Ok(())
}
