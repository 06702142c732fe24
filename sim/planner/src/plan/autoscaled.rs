//! The winner's replicas under a HorizontalPodAutoscaler, against as many all the time: what a load that changes over the day costs either way, and the
//! settings with which a steady one keeps its replicas.
//!
//! Each trial is a run of the simulator's cluster: pods start as long as the scenario's defaults say (docs/startup.md), nodes come and go with the Cluster
//! Autoscaler, and the requests are those of the plan.

use rayon::prelude::*;
use sim::metrics::RecordOptions;
use sim::report::RunReport;
use sim::report::autoscale::RunOf;
use sim::scenario::{STORAGE, Scenario, running_metric, runs_more_than};
use sim::simulation::RunOptions;
use toml::Value;

use super::candidate::Candidate;
use super::question::Question;
use super::ready::Ready;
use super::report::{Autoscaled, ScaledTrial};
use super::search::Settled;
use crate::Error;
use crate::conditions::Standing;
use crate::fleet::Extent;

/// Targets as shares of the requests that a replica runs in the busiest stretch.
const TARGETS: [f64; 4] = [0.4, 0.6, 0.8, 1.0];
/// Requests of that stretch.
const BUSIEST: usize = 1_000;
/// Shortest run of a load that does not change: an autoscaler waits for minutes before it takes replicas away [s].
const SPAN_S: f64 = 1_800.0;
/// Most requests of such a run.
const MOST_REQUESTS: f64 = 100_000.0;

/// What was tried, the keys of the best trial's scenario, and how its pods start, in words.
pub type Tried = (Autoscaled, Vec<String>, String);

/// What is the same in all trials.
struct Setting {
    metric: &'static str,
    least: u32,
    most: u32,
    /// Keys that make the run long enough.
    run: Vec<String>,
}

/// The trials; or why there are none.
///
/// # Errors
/// The simulator's own.
pub fn trials(
    question: &Question,
    ready: &Ready,
    winner: &Settled,
) -> Result<Result<Tried, &'static str>, Error> {
    let c = &ready.candidate;
    if c.apart.is_some() {
        return Ok(Err("prefill and decode apart want one each"));
    }
    let own = c.replicas(winner.units);
    let least = 1 + question.redundancy.spare(c.per_instance);
    // The replicas of a load that changes are those of its peak; one that does not may grow.
    let changes = !question.steady && !question.requests.is_closed();
    let most = if changes { own } else { own.saturating_mul(2) };
    let scenario = c.scenario(question, &[own])?;
    let Some(metric) = running_metric(scenario.engine.params.kind()) else {
        return Ok(Err(
            "no metric of its engine shows the requests that it runs",
        ));
    };
    if least >= most {
        return Ok(Err("all its replicas are needed at all times"));
    }
    if c.usd_per_hour.is_none() {
        return Ok(Err("its price is not known"));
    }
    let load = question.requests.busiest(BUSIEST);
    let record = ready.fleet.run(&[own], load, Extent::default())?;
    let running = RunReport::new(&record, 0.0).replicas.mean_running;
    let per_s = record.counts.finished as f64 / record.end.as_secs().max(1e-9);
    let setting = Setting {
        metric,
        least,
        most,
        run: if changes {
            Vec::new()
        } else {
            longer(question, &scenario, per_s)
        },
    };
    let trials = (targets(running, ready.limits.max_seqs).par_iter())
        .map(|target| trial(question, ready, winner, &setting, *target))
        .collect::<Result<Vec<_>, Error>>()?;
    // One that holds before one that does not, then the cheapest.
    let best = (trials.iter()).min_by(|a, b| {
        let missed = |t: &ScaledTrial| !t.standing.holds;
        (missed(a).cmp(&missed(b))).then(a.usd.total_cmp(&b.usd))
    });
    let keys = best
        .map(|t| setting.keys(c, t.target_running))
        .unwrap_or_default();
    let start = start_in_words(question, c, own, &keys)?;
    let chosen = (trials.iter().enumerate())
        .filter(|(_, t)| t.standing.holds && t.usd < t.fixed_usd)
        .min_by(|a, b| a.1.usd.total_cmp(&b.1.usd))
        .map(|(i, _)| i as u64);
    let report = Autoscaled {
        metric: metric.to_owned(),
        min_replicas: least,
        max_replicas: most,
        hours: match trials.first().filter(|_| !changes) {
            Some(t) => t.fixed_usd / winner.cost,
            None => question.requests.span_s() / 3600.0,
        },
        trials,
        chosen,
    };
    Ok(Ok((report, keys, start)))
}

/// Targets that can act: the controller takes more replicas only where each runs more requests than the target and its tolerance, and none runs more than
/// `most`.
fn targets(running: f64, most: Option<u32>) -> Vec<u32> {
    let mut out: Vec<u32> = (TARGETS.iter())
        .map(|t| (t * running).round().max(1.0) as u32)
        .filter(|t| most.is_none_or(|most| runs_more_than(f64::from(*t), most)))
        .collect();
    if let (true, Some(most)) = (out.is_empty(), most) {
        out.push((most / 2).max(1));
    }
    out.dedup();
    out
}

/// Keys that make a run of `per_s` requests per second last long enough for an autoscaler to act.
fn longer(question: &Question, scenario: &Scenario, per_s: f64) -> Vec<String> {
    let mut out = Vec::new();
    let requests = (per_s * SPAN_S).ceil().min(MOST_REQUESTS);
    if scenario.limits.requests.is_some() && requests > question.requests.len() as f64 {
        out.push(format!("run.requests={requests}"));
    }
    if scenario.limits.duration.is_some_and(|d| d.secs() < SPAN_S) {
        out.push(format!("run.duration=\"{SPAN_S} s\""));
    }
    out
}

impl Setting {
    /// The keys of the scenario under the autoscaler.
    fn keys(&self, c: &Candidate, target: u32) -> Vec<String> {
        let Setting {
            metric,
            least,
            most,
            run,
        } = self;
        let nodes = |replicas: u32| match c.per_instance {
            0 if c.per_machine.is_some() => replicas,
            0 => replicas.saturating_mul(c.instances_per_replica),
            n => replicas.div_ceil(n),
        };
        let mut out = run.clone();
        out.extend([
            format!(
                "cluster.node_group=[{{ name = \"nodes\", min = {}, max = {} }}]",
                nodes(*least),
                nodes(*most)
            ),
            format!(
                "autoscaler.hpa={{ minReplicas = {least}, maxReplicas = {most}, metrics = [{{ type = \"Pods\", metric = {}, averageValue = {target} }}] }}",
                Value::from(*metric)
            ),
            "autoscaler.cluster_autoscaler={}".to_owned(),
        ]);
        out
    }
}

fn trial(
    question: &Question,
    ready: &Ready,
    winner: &Settled,
    setting: &Setting,
    target: u32,
) -> Result<ScaledTrial, Error> {
    let c = &ready.candidate;
    let own = c.replicas(winner.units);
    let scenario = c.scenario_with(question, &[own], &setting.keys(c, target))?;
    let options = RunOptions {
        record: RecordOptions {
            series_bins: 0,
            ..RecordOptions::default()
        },
        cancel: question.world.cancel.clone(),
        ..RunOptions::default()
    };
    let record = scenario.run(&options)?;
    let of = RunOf::of(&record).unwrap_or_default();
    Ok(ScaledTrial {
        target_running: target,
        usd: of.usd.unwrap_or(0.0),
        fixed_usd: winner.cost * record.end.as_secs() / 3600.0,
        mean_ready: of.mean_ready,
        changes: of.changes as u64,
        standing: Standing::of(&record, &question.conditions, false),
    })
}

/// Where pods take the weights from, and how long they take to start.
fn start_in_words(
    question: &Question,
    c: &Candidate,
    replicas: u32,
    keys: &[String],
) -> Result<String, Error> {
    let scenario = c.scenario_with(question, &[replicas], keys)?;
    let pod = (scenario.cluster.as_ref()).and_then(|c| c.cluster.pod.as_ref());
    let storage = pod.and_then(|p| p.storage.as_deref()).unwrap_or(STORAGE);
    let decided = scenario.build()?.decided;
    let start = decided.get("start on nodes").and_then(Value::as_str);
    let nvme = question.catalog.instance(&c.instance).ok();
    let nvme = match nvme.and_then(|i| i.local_nvme_bytes).filter(|b| *b > 0) {
        Some(bytes) => format!(
            "; the {} GB of NVMe of the instance are empty when it boots, cluster.pod.storage = \"nvme\" is for weights that are there",
            sim::report::text::figure(bytes as f64 / 1e9)
        ),
        None => String::new(),
    };
    Ok(format!(
        "autoscaled pods take their weights from {storage} (cluster.pod.storage): {}{nvme}",
        start.unwrap_or("how long they take to start is in the scenario")
    ))
}
