//! What fast model actuation did in a run: how pods were satisfied and how soon, and what sleepers held.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::control::actuation::Path;
use crate::kernel::time::SimTime;
use crate::kube::record::{ActuationRecord, ClusterRecord, InstanceRow, PodRow};
use crate::report::csv::instant;
use crate::report::figures::{field, figure};

/// Fast model actuation, summarised.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ActuationReport {
    /// vLLM's level of sleep.
    pub level: u8,
    /// Pods by how they were satisfied: hot, warm, cold (`fma_actuation_seconds`). Pods that were ready at the start of the run are left out.
    pub paths: Vec<PathReport>,
    /// Share of the pods that became ready that woke a sleeping instance [0, 1]; null where none became ready.
    pub hot_hit_ratio: Option<f64>,
    /// Instances that were made.
    pub instances: u64,
    /// Times that one fell asleep.
    pub sleeps: u64,
    /// Instances that were deleted, for another or because they ended, before the run did.
    pub deleted: u64,
    /// Instances that ended because the host's memory had no room for their tensors.
    pub no_host_room: u64,
    /// Mean number of sleepers over the run.
    pub mean_asleep: f64,
    /// Most that slept on one accelerator at once.
    pub most_asleep: u64,
    /// What those kept of its memory [bytes].
    pub most_gpu_bytes: u64,
    /// Most tensors in the memory of one host [bytes].
    pub most_host_bytes: u64,
}

/// Pods that were satisfied in one way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PathReport {
    /// hot, warm or cold.
    pub path: String,
    /// Pods that became ready.
    pub pods: u64,
    /// From the creation of such a pod until it was ready, its wait for a node included: mean [s].
    pub mean_s: f64,
    /// The longest of these [s].
    pub max_s: f64,
    /// From when it was placed until it was ready: mean [s].
    pub mean_after_placing_s: f64,
}

/// That of `c`, where instances slept.
pub(super) fn actuation(c: &ClusterRecord) -> Option<ActuationReport> {
    let a = c.actuation.as_ref()?;
    let paths: Vec<PathReport> = Path::ALL.iter().map(|path| of_path(c, *path)).collect();
    let ready: u64 = paths.iter().map(|p| p.pods).sum();
    let naps = || a.instances.iter().flat_map(|i| &i.naps);
    let slept: f64 = naps()
        .map(|(from, to)| to.min(&c.end).since(*from).as_secs())
        .sum();
    let time = c.end.as_secs();
    Some(ActuationReport {
        level: a.level,
        hot_hit_ratio: (ready > 0).then(|| paths[0].pods as f64 / ready as f64),
        paths,
        instances: a.instances.len() as u64,
        sleeps: naps().count() as u64,
        deleted: a.instances.iter().filter(|i| i.gone.is_some()).count() as u64,
        no_host_room: a.no_host_room,
        mean_asleep: if time > 0.0 { slept / time } else { 0.0 },
        most_asleep: a.most_asleep,
        most_gpu_bytes: a.most_asleep * a.sleeping_gpu_bytes,
        most_host_bytes: a.most_host_bytes,
    })
}

fn of_path(c: &ClusterRecord, path: Path) -> PathReport {
    let own: Vec<&PodRow> = (c.pods.iter())
        .filter(|p| p.path == Some(path) && p.ready != SimTime::NEVER && p.ready > p.created)
        .collect();
    let mean = |from: fn(&PodRow) -> SimTime| {
        let sum: f64 = own.iter().map(|p| p.ready.since(from(p)).as_secs()).sum();
        sum / own.len().max(1) as f64
    };
    let whole = own.iter().map(|p| p.ready.since(p.created).as_secs());
    PathReport {
        path: path.name().to_owned(),
        pods: own.len() as u64,
        mean_s: mean(|p| p.created),
        max_s: whole.fold(0.0, f64::max),
        mean_after_placing_s: mean(|p| p.scheduled),
    }
}

/// Its lines in a text report.
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub(super) fn write_actuation(out: &mut String, a: &ActuationReport) -> std::fmt::Result {
    let paths: Vec<String> = (a.paths.iter())
        .filter(|p| p.pods > 0)
        .map(|p| {
            format!(
                "{} {} ready {:.1} s after they were placed",
                p.pods, p.path, p.mean_after_placing_s
            )
        })
        .collect();
    let paths = match paths.is_empty() {
        true => "no pod became ready".to_owned(),
        false => paths.join(", "),
    };
    field(out, "actuation", &paths)?;
    let gib = |bytes: u64| figure(bytes as f64 / (1u64 << 30) as f64);
    let text = format!(
        "{} instances fell asleep {} times, {} asleep on average, {} deleted; at most {} on an accelerator ({} GiB), {} GiB of tensors in a host",
        a.instances,
        a.sleeps,
        figure(a.mean_asleep),
        a.deleted,
        a.most_asleep,
        gib(a.most_gpu_bytes),
        gib(a.most_host_bytes)
    );
    field(out, "sleepers", &text)
}

/// What an instance is called: its deployment, its node and its accelerators there.
pub(super) fn instance_name(c: &ClusterRecord, i: &InstanceRow) -> String {
    let deployment = c.deployments.get(i.deployment).map_or("", |d| &d.name);
    let node = c.nodes.get(i.node).map_or("", |n| &n.name);
    let gpus: Vec<String> = i.gpus.iter().map(u32::to_string).collect();
    format!("{deployment} on {node}[{}]", gpus.join(","))
}

/// `instances.csv`: a row for each time that an instance slept, and one for each that never did.
///
/// # Errors
/// Those of `out`.
pub fn write_instances(out: impl Write, c: &ClusterRecord, a: &ActuationRecord) -> io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    w.write_record([
        "instance",
        "deployment",
        "node",
        "accelerators",
        "created_s",
        "asleep_s",
        "awake_s",
        "gone_s",
        "why_gone",
        "pods",
    ])?;
    for (k, i) in a.instances.iter().enumerate() {
        let gpus: Vec<String> = i.gpus.iter().map(u32::to_string).collect();
        let naps = match i.naps.is_empty() {
            true => vec![(SimTime::NEVER, SimTime::NEVER)],
            false => i.naps.clone(),
        };
        for (from, to) in naps {
            w.write_record([
                k.to_string(),
                (c.deployments.get(i.deployment)).map_or(String::new(), |d| d.name.clone()),
                c.nodes
                    .get(i.node)
                    .map_or(String::new(), |n| n.name.clone()),
                gpus.join(" "),
                instant(i.created),
                instant(from),
                instant(to),
                instant(i.gone.unwrap_or(SimTime::NEVER)),
                i.why_gone.clone(),
                i.pods.len().to_string(),
            ])?;
        }
    }
    w.flush()
}
