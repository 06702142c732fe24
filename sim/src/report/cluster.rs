//! The cluster of a run in its report: what it cost, where start-up time went, who decided what and why, and how service was over time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::kernel::time::SimTime;
use crate::kube::record::{ClusterRecord, DecisionRow, PHASES, SampleRow};
use crate::metrics::definition;
use crate::record::RunRecord;
use crate::report::actuation::{ActuationReport, actuation, write_actuation};
use crate::report::deployments::{DeploymentReport, deployments, write_deployments};
use crate::report::figures::{field, figure, secs};
use crate::report::starts::{StartWaits, start_waits};
use crate::report::swaps::{SwapReport, swaps, write_swaps};
use crate::request::Outcome;

/// Most rows of each list in the JSON report; the tables of `--csv` hold all.
const MAX_ROWS: usize = 1000;
/// Stretches of time that the course of the service is told in.
const STRETCHES: u64 = 48;
/// Decisions that the text shows.
const SHOWN: usize = 24;

/// A cluster, summarised.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClusterReport {
    /// What all nodes cost, by the second, from the request of each instance to its end [USD]; null where a price is not known.
    pub usd: Option<f64>,
    /// Lifetimes of all nodes [h].
    pub node_hours: f64,
    /// What the accelerators drew.
    pub energy: EnergyReport,
    /// Share of the accelerators' paid time that ready replicas held them [0, 1].
    pub serving_ratio: f64,
    /// Replicas.
    pub replicas: ReplicaCounts,
    /// Nodes.
    pub nodes: NodeCounts,
    /// Where the start of the pods that became ready spent its time.
    pub start: Vec<PhaseReport>,
    /// Containers that crashed; left out where none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crashes: Option<CrashReport>,
    /// Requests that waited for replicas that were starting; left out where all were there from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_waits: Option<StartWaits>,
    /// Changes of sizes, faults and what operators did, in the order of time.
    pub decisions: Vec<DecisionReport>,
    /// Times that a controller left a size as it was for another reason than before; `scaling.csv` has them.
    pub kept: u64,
    /// How requests fared over time.
    pub course: Vec<Stretch>,
    /// Nodes, in the order of their requests.
    pub node_list: Vec<NodeReport>,
    /// Pods, in the order of their creation.
    pub pod_list: Vec<PodReport>,
    /// Pods that were Pending at the end, and what the scheduler says of them.
    pub pending: Vec<PendingReport>,
    /// Pods that never had a node and were withdrawn before the end, those with the same reasons together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withdrawn: Vec<WithdrawnReport>,
    /// Models that were loaded on demand; left out where none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swaps: Option<SwapReport>,
    /// Instances that slept and woke; left out where none may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actuation: Option<ActuationReport>,
    /// What each pool's Deployment or LeaderWorkerSet had; left out where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<DeploymentReport>,
}

/// Energy of the accelerators of all nodes, over the nodes' lives: the idle power all the time, and what the busy power is more while a step is under
/// way. Steps before the end of the warm-up count as idle time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EnergyReport {
    /// All of it [Wh]; null where the power of an accelerator is not known.
    pub wh: Option<f64>,
    /// Of that, what idle accelerators would have drawn as well [Wh].
    pub idle_wh: Option<f64>,
    /// For each output token of finished requests [J].
    pub joules_per_output_token: Option<f64>,
    /// What is not known; empty where all is.
    pub note: String,
}

/// Replicas over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReplicaCounts {
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
}

/// Nodes over time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct NodeCounts {
    /// Instances that were asked for, those at the start included.
    pub requested: u64,
    /// Requests that the cloud refused.
    pub refused: u64,
    /// Nodes that ended before the run did.
    pub ended: u64,
    /// Most that were Ready at once, as sampled.
    pub most: u64,
}

/// One phase of the start of pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PhaseReport {
    /// Its name.
    pub phase: String,
    /// Pods that became ready during the run.
    pub pods: u64,
    /// Mean over them [s].
    pub mean_s: f64,
    /// Longest [s].
    pub max_s: f64,
}

/// A decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DecisionReport {
    /// When [s].
    pub at_s: f64,
    /// Whose: hpa, keda, cluster-autoscaler, operator, fault.
    pub controller: String,
    /// `replicas`, or the name of a node group.
    pub about: String,
    /// Size before.
    pub from: i64,
    /// Size after.
    pub to: i64,
    /// Replicas that were ready.
    pub ready: u32,
    /// What the controller was told.
    pub inputs: String,
    /// Why.
    pub why: String,
}

/// How requests that were sent in a stretch of time fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Stretch {
    /// Its start [s].
    pub from_s: f64,
    /// Its end [s].
    pub to_s: f64,
    /// Requests sent in it.
    pub offered: u64,
    /// Of those, requests that finished.
    pub finished: u64,
    /// Share of those sent that met the objective [0, 1]; null without an objective or requests.
    pub attainment_ratio: Option<f64>,
    /// Median of their time to first token [ms].
    pub ttft_p50_ms: Option<f64>,
    /// Ready replicas, mean of the samples.
    pub ready: f64,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Its instance type.
    pub instance: String,
    /// When it was asked for [s].
    pub requested_s: f64,
    /// When it was Ready [s].
    pub ready_s: Option<f64>,
    /// When its accelerators could be used [s].
    pub usable_s: Option<f64>,
    /// When it ended [s].
    pub gone_s: Option<f64>,
    /// Why.
    pub why_gone: String,
    /// What it cost [USD].
    pub usd: Option<f64>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PodReport {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: Option<String>,
    /// When it was created [s].
    pub created_s: f64,
    /// When it was ready [s].
    pub ready_s: Option<f64>,
    /// When it ended [s].
    pub gone_s: Option<f64>,
    /// Time in each phase of its start [s], in the order of `start`.
    pub phases_s: Vec<f64>,
    /// Times that its container crashed.
    pub restarts: u32,
}

/// Containers that crashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CrashReport {
    /// Crashes after which the container was started again.
    pub crashes: u64,
    /// Pods in which there were any.
    pub pods: u64,
    /// Of the starts after them, those that became ready.
    pub ready_again: u64,
    /// From the crash until then, mean over those [s].
    pub mean_s: f64,
    /// The longest [s].
    pub max_s: f64,
}

/// Pods that never had a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WithdrawnReport {
    /// How many.
    pub pods: u64,
    /// When the first was created [s].
    pub from_s: f64,
    /// Longest that one waited [s].
    pub longest_s: f64,
    /// Why, as Kubernetes says it.
    pub reason: String,
    /// What kept nodes from being added when they were withdrawn.
    pub limit: String,
}

/// A Pending pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PendingReport {
    /// Its name.
    pub name: String,
    /// Since when it has waited [s].
    pub since_s: f64,
    /// Why, as Kubernetes says it.
    pub reason: String,
    /// What kept nodes from being added for it.
    #[serde(default)]
    pub limit: String,
}

fn at(t: SimTime) -> f64 {
    t.0 as f64 / 1e9
}

fn reached(t: SimTime) -> Option<f64> {
    (t != SimTime::NEVER).then(|| at(t))
}

impl ClusterReport {
    /// The report of the cluster of `record`, where the run had one.
    pub fn of(record: &RunRecord) -> Option<ClusterReport> {
        let c = record.cluster.as_ref()?;
        let lifetimes: Vec<f64> = (0..c.nodes.len())
            .map(|n| c.lifetime(n).as_secs())
            .collect();
        let paid: f64 = (c.nodes.iter().zip(&lifetimes))
            .map(|(n, life)| n.gpus as f64 * life)
            .sum();
        let served: f64 = c.nodes.iter().map(|n| n.serving_gpu_ns as f64 / 1e9).sum();
        let (changes, kept): (Vec<&DecisionRow>, Vec<&DecisionRow>) =
            c.decisions.iter().partition(|d| is_told(d));
        Some(ClusterReport {
            usd: c.usd(),
            node_hours: lifetimes.iter().sum::<f64>() / 3600.0,
            energy: energy(record, c),
            serving_ratio: if paid > 0.0 { served / paid } else { 0.0 },
            replicas: replicas(c),
            nodes: NodeCounts {
                requested: c.nodes.len() as u64,
                refused: c.nodes.iter().filter(|n| n.is_refused).count() as u64,
                ended: (c.nodes.iter())
                    .filter(|n| n.gone != SimTime::NEVER && !n.is_refused)
                    .count() as u64,
                most: most(c, |s| s.nodes),
            },
            start: start(c),
            crashes: crashes(c),
            start_waits: start_waits(record, c),
            decisions: changes.iter().take(MAX_ROWS).map(|d| decision(d)).collect(),
            kept: kept.len() as u64,
            course: course(record, c),
            node_list: (0..c.nodes.len().min(MAX_ROWS))
                .map(|n| node(c, n))
                .collect(),
            pod_list: c.pods.iter().take(MAX_ROWS).map(|p| pod(c, p)).collect(),
            pending: pending(c),
            withdrawn: withdrawn(c),
            swaps: swaps(c, paid),
            actuation: actuation(c),
            deployments: deployments(c),
        })
    }
}

fn energy(record: &RunRecord, c: &ClusterRecord) -> EnergyReport {
    if let Some(node) = c.nodes.iter().find(|n| n.watts.is_none() && !n.is_refused) {
        let note = format!(
            "the rated power of the accelerators of {} is not known; write idle_watts and busy_watts in its node group",
            node.instance
        );
        return EnergyReport {
            note,
            ..EnergyReport::default()
        };
    }
    // Time that a step was under way on each node's accelerators [GPU s].
    let mut busy = vec![0.0; c.nodes.len()];
    for r in &c.replicas {
        let own = r
            .served
            .iter()
            .filter_map(|s| record.replicas.get(s.0 as usize));
        let steps: f64 = own.map(|u| u.busy.as_secs()).sum();
        for n in r.pods.iter().filter_map(|p| c.pods[*p].node) {
            busy[n] += steps * c.gpus_per_pod(r) as f64;
        }
    }
    let (mut idle_j, mut more_j) = (0.0, 0.0);
    for (n, node) in c.nodes.iter().enumerate() {
        if let Some(w) = node.watts {
            idle_j += w.idle * c.lifetime(n).as_secs();
            more_j += (w.busy - w.idle) * busy[n] / node.gpus.max(1) as f64;
        }
    }
    let tokens = record.tokens.output;
    EnergyReport {
        wh: Some((idle_j + more_j) / 3600.0),
        idle_wh: Some(idle_j / 3600.0),
        joules_per_output_token: (tokens > 0).then(|| (idle_j + more_j) / tokens as f64),
        note: String::new(),
    }
}

/// Whether a decision changed something, or tells of something that happened.
fn is_told(d: &DecisionRow) -> bool {
    d.from != d.to || d.controller.tells()
}

fn most(c: &ClusterRecord, of: impl Fn(&SampleRow) -> u32) -> u64 {
    c.samples
        .iter()
        .map(|s| u64::from(of(s)))
        .max()
        .unwrap_or(0)
}

fn replicas(c: &ClusterRecord) -> ReplicaCounts {
    let served: f64 = (c.replicas.iter())
        .flat_map(|r| &r.served)
        .map(|(_, from, to)| to.min(&c.end).since(*from).as_secs())
        .sum();
    let time = at(c.end);
    ReplicaCounts {
        created: c.replicas.len() as u64,
        most_ready: most(c, |s| s.ready),
        least_ready: c
            .samples
            .iter()
            .map(|s| u64::from(s.ready))
            .min()
            .unwrap_or(0),
        mean_ready: if time > 0.0 { served / time } else { 0.0 },
        most_wanted: most(c, |s| s.desired),
    }
}

fn start(c: &ClusterRecord) -> Vec<PhaseReport> {
    // Pods that were ready from the start have no start.
    let ready: Vec<_> = (c.pods.iter())
        .filter(|p| p.ready != SimTime::NEVER && p.ready > p.created)
        .map(|p| p.phases(c.node_of(p), c.end))
        .collect();
    let phase = |(i, name): (usize, &&str)| {
        let times: Vec<f64> = ready.iter().map(|p| p[i].as_secs()).collect();
        let n = times.len().max(1) as f64;
        PhaseReport {
            phase: (*name).to_owned(),
            pods: times.len() as u64,
            mean_s: times.iter().sum::<f64>() / n,
            max_s: times.iter().copied().fold(0.0, f64::max),
        }
    };
    PHASES.iter().enumerate().map(phase).collect()
}

fn decision(d: &DecisionRow) -> DecisionReport {
    DecisionReport {
        at_s: at(d.at),
        controller: d.controller.name().to_owned(),
        about: d.about.clone(),
        from: d.from,
        to: d.to,
        ready: d.ready,
        inputs: d.inputs.clone(),
        why: d.why.clone(),
    }
}

fn node(c: &ClusterRecord, n: usize) -> NodeReport {
    let row = &c.nodes[n];
    NodeReport {
        name: row.name.clone(),
        group: row.group.clone(),
        instance: row.instance.clone(),
        requested_s: at(row.requested),
        ready_s: reached(row.ready),
        usable_s: reached(row.usable),
        gone_s: reached(row.gone),
        why_gone: row.why_gone.clone(),
        usd: row
            .usd_per_hour
            .map(|p| p * c.lifetime(n).as_secs() / 3600.0),
    }
}

fn pod(c: &ClusterRecord, p: &crate::kube::record::PodRow) -> PodReport {
    PodReport {
        name: p.name.clone(),
        node: c.node_of(p).map(|n| n.name.clone()),
        created_s: at(p.created),
        ready_s: reached(p.ready),
        gone_s: reached(p.gone),
        phases_s: p.phases(c.node_of(p), c.end).map(|d| d.as_secs()).to_vec(),
        restarts: p.restarts,
    }
}

fn pending(c: &ClusterRecord) -> Vec<PendingReport> {
    (c.pods.iter())
        .filter(|p| p.scheduled == SimTime::NEVER && p.node.is_none() && p.gone == SimTime::NEVER)
        .take(MAX_ROWS)
        .map(|p| PendingReport {
            name: p.name.clone(),
            since_s: at(p.created),
            reason: p.unschedulable.clone(),
            limit: p.limit.clone(),
        })
        .collect()
}

fn withdrawn(c: &ClusterRecord) -> Vec<WithdrawnReport> {
    let mut all: BTreeMap<(&str, &str), WithdrawnReport> = BTreeMap::new();
    for p in (c.pods.iter()).filter(|p| p.node.is_none() && p.gone != SimTime::NEVER) {
        let waited = p.gone.since(p.created).as_secs();
        // One that was created and withdrawn at once was never looked at.
        if waited == 0.0 {
            continue;
        }
        let key = (p.unschedulable.as_str(), p.limit.as_str());
        let of = all.entry(key).or_insert_with(|| WithdrawnReport {
            from_s: at(p.created),
            reason: p.unschedulable.clone(),
            limit: p.limit.clone(),
            ..WithdrawnReport::default()
        });
        of.pods += 1;
        of.longest_s = of.longest_s.max(waited);
    }
    let mut list: Vec<WithdrawnReport> = all.into_values().collect();
    list.sort_by(|a, b| b.pods.cmp(&a.pods).then(a.from_s.total_cmp(&b.from_s)));
    list.truncate(MAX_ROWS);
    list
}

fn crashes(c: &ClusterRecord) -> Option<CrashReport> {
    let mut report = CrashReport::default();
    let mut sum = 0.0;
    for pod in c.pods.iter().filter(|p| !p.earlier.is_empty()) {
        report.pods += 1;
        report.crashes += pod.earlier.len() as u64;
        for start in pod.starts().skip(1).filter(|s| s.ready != SimTime::NEVER) {
            let took = start.ready.since(start.after).as_secs();
            report.ready_again += 1;
            report.max_s = report.max_s.max(took);
            sum += took;
        }
    }
    report.mean_s = sum / report.ready_again.max(1) as f64;
    (report.crashes > 0).then_some(report)
}

/// How requests fared, by when they were sent; from counts over time where rows of requests were not kept.
fn course(record: &RunRecord, c: &ClusterRecord) -> Vec<Stretch> {
    let Some(rows) = &record.request_rows else {
        return course_of_counts(record, c);
    };
    let width = c.end.0.div_ceil(STRETCHES).max(1);
    let n = c.end.0.div_ceil(width).max(1) as usize;
    let mut stretches = vec![Stretch::default(); n];
    let mut good = vec![0u64; n];
    let mut ttft: Vec<Vec<u64>> = vec![Vec::new(); n];
    for row in rows {
        let i = ((row.arrival.0 / width) as usize).min(n - 1);
        stretches[i].offered += 1;
        if row.outcome == Outcome::Finished {
            stretches[i].finished += 1;
            good[i] += u64::from(record.slo.met_by(row));
        }
        ttft[i].extend(definition::ttft(row).map(|t| t.0));
    }
    for (i, s) in stretches.iter_mut().enumerate() {
        s.from_s = at(SimTime(i as u64 * width));
        s.to_s = at(SimTime(((i as u64 + 1) * width).min(c.end.0)));
        if !record.slo.is_empty() && s.offered > 0 {
            s.attainment_ratio = Some(good[i] as f64 / s.offered as f64);
        }
        ttft[i].sort_unstable();
        let p50 = crate::metrics::distribution::quantile_of_sorted(&ttft[i], 0.5);
        s.ttft_p50_ms = p50.map(|ns| ns / 1e6);
        let inside = || (c.samples.iter()).filter(|r| (r.at.0 / width) as usize == i);
        s.ready =
            inside().map(|r| f64::from(r.ready)).sum::<f64>() / inside().count().max(1) as f64;
    }
    stretches
}

/// The same from what is kept of any number of requests: stretches of a power of two of nanoseconds, medians within a few percent.
fn course_of_counts(record: &RunRecord, c: &ClusterRecord) -> Vec<Stretch> {
    let Some(course) = &record.course else {
        return Vec::new();
    };
    let stretch = |p: crate::metrics::course::CoursePoint| {
        let end = (p.start + p.width).min(c.end);
        let inside = || (c.samples.iter()).filter(|s| (p.start..end).contains(&s.at));
        let has_share = !record.slo.is_empty() && p.offered > 0;
        Stretch {
            from_s: at(p.start),
            to_s: at(end),
            offered: p.offered,
            finished: p.finished,
            attainment_ratio: has_share.then(|| p.good as f64 / p.offered as f64),
            ttft_p50_ms: p.ttft_p50_ns.map(|ns| ns / 1e6),
            ready: inside().map(|s| f64::from(s.ready)).sum::<f64>()
                / inside().count().max(1) as f64,
        }
    };
    course.points().map(stretch).collect()
}

/// The lines of the cluster in a text report.
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub fn write(out: &mut String, c: &ClusterReport) -> std::fmt::Result {
    let price = c
        .usd
        .map_or("price unknown".to_owned(), |usd| format!("{usd:.2} USD"));
    field(
        out,
        "cluster",
        &format!(
            "{price} for {} node hours; ready replicas held {:.1} % of the accelerator time paid for",
            figure(c.node_hours),
            100.0 * c.serving_ratio
        ),
    )?;
    let r = &c.replicas;
    field(
        out,
        "ready",
        &format!(
            "{} replicas on average, {} to {}; at most {} wanted, {} created",
            figure(r.mean_ready),
            r.least_ready,
            r.most_ready,
            r.most_wanted,
            r.created
        ),
    )?;
    let n = &c.nodes;
    field(
        out,
        "nodes",
        &format!(
            "{} requested, {} refused, {} ended; at most {}",
            n.requested, n.refused, n.ended, n.most
        ),
    )?;
    write_deployments(out, &c.deployments, c.usd)?;
    energy_line(out, &c.energy)?;
    start_line(out, c)?;
    crash_line(out, c)?;
    if let Some(s) = &c.swaps {
        write_swaps(out, s)?;
    }
    if let Some(a) = &c.actuation {
        write_actuation(out, a)?;
    }
    worst_stretch(out, c)?;
    for p in c.pending.iter().take(4) {
        let since = secs(p.since_s);
        field(
            out,
            "Pending",
            &format!("{} since {since}: {}; {}", p.name, p.reason, p.limit),
        )?;
    }
    for w in c.withdrawn.iter().take(4) {
        let (from, longest) = (secs(w.from_s), secs(w.longest_s));
        let pods = plural(w.pods, "pod");
        field(
            out,
            "withdrawn",
            &format!(
                "{} {pods} from {from} on had no node for up to {longest}: {}; {}",
                w.pods, w.reason, w.limit
            ),
        )?;
    }
    decisions(out, c)
}

fn energy_line(out: &mut String, e: &EnergyReport) -> std::fmt::Result {
    let (Some(wh), Some(idle)) = (e.wh, e.idle_wh) else {
        return match e.note.is_empty() {
            true => Ok(()),
            false => field(out, "energy", &format!("not known: {}", e.note)),
        };
    };
    let per_token = e.joules_per_output_token.map_or(String::new(), |j| {
        format!("; {} J for each output token", figure(j))
    });
    field(
        out,
        "energy",
        &format!(
            "{} Wh by the accelerators, {:.0} % of it their idle power{per_token}",
            figure(wh),
            100.0 * idle / wh.max(f64::MIN_POSITIVE)
        ),
    )
}

fn start_line(out: &mut String, c: &ClusterReport) -> std::fmt::Result {
    let pods = c.start.first().map_or(0, |p| p.pods);
    if pods == 0 {
        return Ok(());
    }
    let whole: f64 = c.start.iter().map(|p| p.mean_s).sum();
    let parts: Vec<String> = (c.start.iter())
        .filter(|p| p.max_s > 0.0)
        .map(|p| format!("{} {}", p.phase.replace('_', " "), whole_secs(p.mean_s)))
        .collect();
    field(
        out,
        "start",
        &format!(
            "{pods} pods became ready {} after their creation on average: {}",
            whole_secs(whole),
            parts.join(", ")
        ),
    )
}

fn crash_line(out: &mut String, c: &ClusterReport) -> std::fmt::Result {
    let Some(r) = &c.crashes else { return Ok(()) };
    let back = match r.ready_again {
        0 => "none was ready again".to_owned(),
        n => format!(
            "{n} ready again after {} on average, {} at most",
            whole_secs(r.mean_s),
            whole_secs(r.max_s)
        ),
    };
    let (crashes, pods) = (plural(r.crashes, "crash"), plural(r.pods, "pod"));
    let text = format!(
        "{} {crashes} of containers of {} {pods}: {back}",
        r.crashes, r.pods
    );
    field(out, "crashes", &text)
}

/// `what`, of which there are `n`.
fn plural(n: u64, what: &str) -> String {
    match (n, what) {
        (1, _) => what.to_owned(),
        (_, "crash") => "crashes".to_owned(),
        _ => format!("{what}s"),
    }
}

/// Seconds to a tenth.
fn whole_secs(s: f64) -> String {
    format!("{:.1} s", s)
}

/// The stretch of time in which the objective was met least.
fn worst_stretch(out: &mut String, c: &ClusterReport) -> std::fmt::Result {
    let of = |s: &Stretch| s.attainment_ratio;
    let with = c.course.iter().filter(|s| of(s).is_some());
    let Some(worst) = with.min_by(|a, b| of(a).unwrap_or(1.0).total_cmp(&of(b).unwrap_or(1.0)))
    else {
        return Ok(());
    };
    let ratio = worst.attainment_ratio.unwrap_or(1.0);
    field(
        out,
        "worst stretch",
        &format!(
            "{} to {}: {:.1} % of {} requests met the SLO, {} replicas ready",
            secs(worst.from_s),
            secs(worst.to_s),
            100.0 * ratio,
            worst.offered,
            figure(worst.ready)
        ),
    )
}

fn decisions(out: &mut String, c: &ClusterReport) -> std::fmt::Result {
    if c.decisions.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n  time [s]  who                 what           from   to  why"
    )?;
    for d in c.decisions.iter().take(SHOWN) {
        writeln!(
            out,
            "  {:>8.1}  {:<18}  {:<12}  {:>5}  {:>3}  {}",
            d.at_s, d.controller, d.about, d.from, d.to, d.why
        )?;
    }
    let left = c.decisions.len().saturating_sub(SHOWN);
    if left > 0 {
        writeln!(
            out,
            "  and {left} more: --json and scaling.csv of --csv have them"
        )?;
    }
    Ok(())
}
