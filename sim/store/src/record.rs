//! What a record file holds.

use serde::{Deserialize, Serialize};
use sim::metrics::Slo;
use sim::record::{RequestRow, RunRecord};
use sim::report::RunReport;

use crate::{Cluster, Event, FORMAT, MAX_ROWS, Packed, Rates, Replica, StepLevel, Transfer};

/// Limits of the objective [ns].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SloLimits {
    /// Largest TTFT.
    pub ttft: Option<u64>,
    /// Largest TPOT.
    pub tpot: Option<u64>,
    /// Largest E2E latency.
    pub e2e: Option<u64>,
}

impl From<Slo> for SloLimits {
    fn from(slo: Slo) -> SloLimits {
        SloLimits {
            ttft: slo.ttft.map(|d| d.0),
            tpot: slo.tpot.map(|d| d.0),
            e2e: slo.e2e.map(|d| d.0),
        }
    }
}

impl SloLimits {
    /// As the simulator has it.
    pub fn slo(self) -> Slo {
        let of = |ns: Option<u64>| ns.map(sim::kernel::time::SimDuration);
        Slo {
            ttft: of(self.ttft),
            tpot: of(self.tpot),
            e2e: of(self.e2e),
        }
    }
}

/// What was run, and what of it the file holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// Version of the format.
    pub format: u32,
    /// Version of servetwin that wrote it.
    pub version: String,
    /// The resolved scenario (TOML): running it gives this run again.
    pub scenario: String,
    /// Names of the workload streams, by index.
    #[serde(default)]
    pub streams: Vec<String>,
    /// The replicas, by index.
    #[serde(default)]
    pub replicas: Vec<Replica>,
    /// End of the run [ns].
    pub end: u64,
    /// Start of the measurement window [ns].
    #[serde(default)]
    pub warmup: u64,
    /// Limits of the objective.
    #[serde(default)]
    pub slo: SloLimits,
    /// Events of the fleet, in order.
    #[serde(default)]
    pub events: Vec<Event>,
    /// Rows of transfers in the file.
    #[serde(default)]
    pub transfer_rows: u64,
    /// Requests of the run.
    pub requests: u64,
    /// Rows of requests in the file.
    #[serde(default)]
    pub request_rows: u64,
    /// Every so-many-th request has a row, by its id; 1: each has.
    #[serde(default)]
    pub request_stride: u32,
    /// Steps of the run.
    pub steps: u64,
    /// Rows of each level of steps in the file.
    #[serde(default)]
    pub step_rows: Vec<u64>,
    /// Most steps in a row of the finest level; 1: each step has a row.
    #[serde(default)]
    pub step_merge: u32,
    /// Width of a bin of counts [ns].
    #[serde(default)]
    pub bin_width: u64,
    /// Gaps between tokens: midpoint of a bucket [ns] and gaps in it, ascending.
    #[serde(default)]
    pub itl: Vec<(u64, u64)>,
}

impl Info {
    /// What the file leaves out, in words; none where each request and each step has a row.
    pub fn thinned(&self) -> Option<String> {
        let requests = (self.request_stride > 1).then(|| {
            format!(
                "every {}th of {} requests",
                self.request_stride, self.requests
            )
        });
        let steps = (self.step_merge > 1)
            .then(|| format!("{} steps in rows of up to {}", self.steps, self.step_merge));
        let parts: Vec<String> = requests.into_iter().chain(steps).collect();
        (!parts.is_empty()).then(|| format!("shows {}", parts.join(", and ")))
    }
}

/// A run as a file holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What was run.
    pub info: Info,
    /// Its figures: the object of `run --json`.
    pub report: RunReport,
    /// Rows of requests, in the order of their ends.
    pub requests: Packed<RequestRow>,
    /// Steps by level: first the finest, each further one merges [`crate::FAN_OUT`] neighbours.
    pub steps: Vec<StepLevel>,
    /// KV that went from one replica to another, by request: of those requests that have a row.
    pub transfers: Packed<Transfer>,
    /// Counts over time.
    pub rates: Rates,
    /// The cluster around the replicas, where there was one.
    pub cluster: Option<Cluster>,
}

impl Record {
    /// The record of a run that `collected` was told of.
    pub fn new(run: &RunRecord, report: RunReport, collected: crate::Collected) -> Record {
        let mut replicas: Vec<Replica> = run.info.replicas.iter().map(Replica::from).collect();
        for i in replicas.len()..collected.replicas {
            // It joined the run later: like the others.
            let like = replicas.last().cloned().unwrap_or_default();
            let pool = like.pool().to_owned();
            replicas.push(Replica {
                name: format!("{pool}/{i}"),
                ..like
            });
        }
        let transfers = transfers(run, collected.request_stride);
        let info = Info {
            format: FORMAT,
            transfer_rows: transfers.len() as u64,
            version: run.version.to_owned(),
            scenario: run.info.config.clone(),
            streams: run.info.streams.clone(),
            replicas,
            end: run.end.0,
            warmup: run.warmup.0,
            slo: run.slo.into(),
            events: collected.events,
            requests: run.counts.offered,
            request_rows: collected.requests.len() as u64,
            request_stride: collected.request_stride,
            steps: run.steps,
            step_rows: collected
                .steps
                .iter()
                .map(|l| l.rows().len() as u64)
                .collect(),
            step_merge: collected.step_merge,
            bin_width: collected.rates.width,
            itl: run.latencies.itl.buckets().map(|(d, n)| (d.0, n)).collect(),
        };
        Record {
            info,
            report,
            requests: collected.requests,
            steps: collected.steps,
            transfers: transfers.into_iter().collect(),
            rates: collected.rates,
            cluster: run.cluster.as_ref().map(Cluster::from),
        }
    }
}

/// The transfers of every `stride`-th request of a run.
fn transfers(run: &RunRecord, stride: u32) -> Vec<Transfer> {
    let rows = run.transfers.as_ref().and_then(|t| t.rows.as_ref());
    let kept = |t: &Transfer| t.request.is_multiple_of(stride.max(1));
    let mut all: Vec<Transfer> = (rows.into_iter().flatten().map(Transfer::from))
        .filter(kept)
        .take(MAX_ROWS)
        .collect();
    all.sort_unstable_by_key(|t| (t.request, t.ended));
    all
}
