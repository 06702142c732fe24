//! How far the mean TTFT hangs on how long replicas take to start.
//!
//! A request waits for a start where a replica became ready between the beginning of its backlog and its own first step. A request is in a backlog where
//! it waited longer to be scheduled than it then took to its first token; it shares that of the one before it, where it came before that was scheduled.
//!
//! Had the replica been ready a time `d` later, the work that it did meanwhile would have been left over, and all replicas together work that off: a request
//! that is first served by `n` ready replicas comes `d / n` later. `d` is the share by which predicted starts are off ([`START_ERROR`]) of what the start
//! took, all starts of a run being off together. No request gains or loses more than it waited.

use serde::{Deserialize, Serialize};

use hwmodels::doubt::START_ERROR;

use crate::cluster::pools::Role;
use crate::kernel::time::{SimDuration, SimTime};
use crate::kube::record::{ClusterRecord, PHASES, ReplicaRow};
use crate::metrics::definition;
use crate::record::RunRecord;
use crate::record::rows::RequestRow;

/// Requests that waited for replicas that were starting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StartWaits {
    /// Replicas that became ready after their creation.
    pub starts: u64,
    /// Share of the measured requests that waited for one [0, 1]; null where rows of requests were not kept, or prefill and decode are apart.
    pub waited_ratio: Option<f64>,
    /// By how much the mean TTFT moves where all starts take longer, or shorter, by as much as nine of ten predicted ones were off at most [ms]; null
    /// likewise.
    pub ttft_error_ms: Option<f64>,
}

/// The starts of one deployment, and when its replicas were ready.
#[derive(Default)]
struct Starts {
    /// When a replica became ready, ascending, and what all starts up to it took together [s].
    ready: Vec<(SimTime, f64)>,
    /// When replicas began to serve, and when they stopped, each ascending.
    served: [Vec<SimTime>; 2],
}

impl Starts {
    fn of<'a>(c: &ClusterRecord, replicas: impl Iterator<Item = &'a ReplicaRow>) -> Starts {
        let mut starts = Starts::default();
        for r in replicas {
            if let Some((_, first, _)) = r.served.first().filter(|(_, t, _)| *t > r.created) {
                starts.ready.push((*first, seconds(c, r)));
            }
            for (_, from, until) in &r.served {
                starts.served[0].push(*from);
                starts.served[1].push(*until);
            }
        }
        starts.ready.sort_by_key(|(ready, _)| *ready);
        let mut sum = 0.0;
        for (_, seconds) in &mut starts.ready {
            sum += *seconds;
            *seconds = sum;
        }
        starts.served.iter_mut().for_each(|s| s.sort());
        starts
    }

    /// What the starts took that ended after `from` and no later than `to`, all together [s].
    fn between(&self, from: SimTime, to: SimTime) -> f64 {
        let up_to = |t: SimTime| match self.ready.partition_point(|(ready, _)| *ready <= t) {
            0 => 0.0,
            n => self.ready[n - 1].1,
        };
        up_to(to) - up_to(from)
    }

    /// Replicas that were ready at `t`.
    fn ready_at(&self, t: SimTime) -> usize {
        let [from, until] = &self.served;
        let passed = |times: &[SimTime]| times.partition_point(|s| *s <= t);
        passed(from).saturating_sub(passed(until))
    }
}

/// What the start of a replica took of what is predicted: all phases of its slowest pod but the wait for room and that for the next probe [s].
fn seconds(c: &ClusterRecord, r: &ReplicaRow) -> f64 {
    let pods = r.pods.iter().map(|p| {
        let pod = &c.pods[*p];
        let phases = pod.phases(c.node_of(pod), c.end);
        (PHASES.iter().zip(phases))
            .filter(|(name, _)| !matches!(**name, "pending" | "readiness"))
            .map(|(_, d)| d.as_secs())
            .sum::<f64>()
    });
    pods.fold(0.0, f64::max)
}

/// How long a request waited to be scheduled, where that was longer than it then took to its first token.
fn long_wait(row: &RequestRow) -> Option<SimDuration> {
    if row.first_scheduled == SimTime::NEVER || row.first_token == SimTime::NEVER {
        return None;
    }
    let wait = row.first_scheduled.since(row.arrival);
    (wait > row.first_token.since(row.first_scheduled)).then_some(wait)
}

/// The requests of `record` that waited for replicas of `c`; `None`: all replicas were there from the start.
pub(super) fn start_waits(record: &RunRecord, c: &ClusterRecord) -> Option<StartWaits> {
    let by_deployment: Vec<Starts> = (0..c.deployments.len().max(1))
        .map(|d| Starts::of(c, c.replicas.iter().filter(|r| r.deployment == d)))
        .collect();
    let starts: usize = by_deployment.iter().map(|s| s.ready.len()).sum();
    if starts == 0 {
        return None;
    }
    let mut found = StartWaits {
        starts: starts as u64,
        ..StartWaits::default()
    };
    // A row names one replica: with prefill and decode apart it does not say for whose start a request waited.
    let apart = (record.info.pools.iter()).any(|p| p.role != Role::Both);
    let Some(all) = record.request_rows.as_ref().filter(|_| !apart) else {
        return Some(found);
    };
    let of_engine = c.engine_deployments(record.info.replicas.len());
    let mut rows: Vec<Vec<&RequestRow>> = vec![Vec::new(); by_deployment.len()];
    for row in all {
        if let Some(own) = of_engine.get(row.replica as usize)
            && let Some(rows) = rows.get_mut(*own)
        {
            rows.push(row);
        }
    }
    let (mut measured, mut waited, mut seconds) = (0u64, 0u64, 0.0);
    let start = SimTime::ZERO + record.warmup;
    for (starts, mut rows) in by_deployment.iter().zip(rows) {
        rows.sort_by_key(|r| (r.arrival, r.id));
        // The beginning of the backlog, and when the last of its requests was scheduled.
        let mut backlog = (SimTime::ZERO, SimTime::ZERO);
        for row in rows {
            let counts = row.arrival >= start && definition::ttft(row).is_some();
            measured += u64::from(counts);
            let Some(wait) = long_wait(row) else { continue };
            backlog = match backlog {
                (from, until) if row.arrival < until => (from, until.max(row.first_scheduled)),
                _ => (row.arrival, row.first_scheduled),
            };
            let took = starts.between(backlog.0, row.first_scheduled);
            if counts && took > 0.0 {
                let replicas = starts.ready_at(row.first_scheduled).max(1);
                waited += 1;
                seconds += (START_ERROR * took / replicas as f64).min(wait.as_secs());
            }
        }
    }
    let mean = |sum: f64| (measured > 0).then(|| sum / measured as f64);
    found.waited_ratio = mean(waited as f64);
    found.ttft_error_ms = mean(1e3 * seconds);
    Some(found)
}
