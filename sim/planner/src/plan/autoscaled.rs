//! The winner's replicas under a HorizontalPodAutoscaler, against as many all the time: what a load that changes over the day costs either way.
//!
//! Each trial is a run of the simulator's cluster: pods start as long as the scenario's defaults say (docs/startup.md), nodes come and go with the Cluster
//! Autoscaler, and the requests are those of the plan.

use hwmodels::EngineKind;
use rayon::prelude::*;
use sim::metrics::RecordOptions;
use sim::report::RunReport;
use sim::report::autoscale::RunOf;
use sim::simulation::RunOptions;

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

/// The trials; none for an engine whose running requests no metric shows, or a fleet that cannot shrink.
///
/// # Errors
/// The simulator's own.
pub fn trials(
    question: &Question,
    ready: &Ready,
    winner: &Settled,
) -> Result<Option<Autoscaled>, Error> {
    let c = &ready.candidate;
    if c.apart.is_some() {
        return Ok(None);
    }
    let most = c.replicas(winner.units);
    let least = 1 + question.redundancy.spare(c.per_instance);
    let scenario = c.scenario(question, &[most])?;
    let metric = match scenario.engine.params.kind() {
        EngineKind::VllmV1 => "vllm:num_requests_running",
        EngineKind::Tgi => "tgi_batch_current_size",
        EngineKind::Sglang => "sglang:num_running_reqs",
        _ => return Ok(None),
    };
    if least >= most {
        return Ok(None);
    }
    let load = question.requests.busiest(BUSIEST);
    let record = ready.fleet.run(&[most], load, Extent::default())?;
    let running = RunReport::new(&record, 0.0).replicas.mean_running;
    let mut targets: Vec<u32> = (TARGETS.iter())
        .map(|t| (t * running).round().max(1.0) as u32)
        .collect();
    targets.dedup();
    let trials = targets
        .par_iter()
        .map(|target| trial(question, ready, winner, (metric, *target), (least, most)))
        .collect::<Result<Vec<_>, Error>>()?;
    let hours = question.requests.span_s() / 3600.0;
    let chosen = (trials.iter().enumerate())
        .filter(|(_, t)| t.standing.holds && t.usd < t.fixed_usd)
        .min_by(|a, b| a.1.usd.total_cmp(&b.1.usd))
        .map(|(i, _)| i as u64);
    Ok(Some(Autoscaled {
        metric: metric.to_owned(),
        min_replicas: least,
        max_replicas: most,
        hours,
        trials,
        chosen,
    }))
}

fn trial(
    question: &Question,
    ready: &Ready,
    winner: &Settled,
    (metric, target): (&str, u32),
    (least, most): (u32, u32),
) -> Result<ScaledTrial, Error> {
    let c = &ready.candidate;
    let instances = |replicas: u32| match c.per_instance {
        0 => replicas.saturating_mul(c.instances_per_replica),
        n => replicas.div_ceil(n),
    };
    let mut overrides = c.overrides.clone();
    overrides.extend([
        format!("layout.replicas={most}"),
        format!(
            "cluster.node_group=[{{ name = \"nodes\", min = {}, max = {} }}]",
            instances(least),
            instances(most)
        ),
        format!(
            "autoscaler.hpa={{ minReplicas = {least}, maxReplicas = {most}, metrics = [{{ type = \"Pods\", metric = \"{metric}\", averageValue = {target} }}] }}"
        ),
        "autoscaler.cluster_autoscaler={}".to_owned(),
    ]);
    let scenario = (question.world).scenario(&question.base, &question.origin, &overrides)?;
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
