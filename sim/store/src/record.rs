//! What a record file holds.

use serde::{Deserialize, Serialize};
use sim::metrics::Slo;
use sim::observer::FleetEvent;
use sim::record::{ReplicaInfo, RequestRow, RunRecord};
use sim::report::RunReport;

use crate::{Cluster, FORMAT, StepLevel};

/// Least, mean and most of a quantity over a stretch of time. The mean is weighted by the time that steps were under way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stat {
    /// Least.
    pub min: u32,
    /// Time-weighted mean.
    pub mean: f32,
    /// Most.
    pub max: u32,
}

impl Stat {
    /// Of a quantity that did not change.
    pub fn of(value: u64) -> Stat {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        Stat {
            min: value,
            mean: value as f32,
            max: value,
        }
    }
}

/// One step of a replica, or several neighbours with their sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepSpan {
    /// Index of the replica.
    pub replica: u32,
    /// Steps in it; 1: a step as it was.
    pub steps: u32,
    /// Start of the first step [ns].
    pub start: u64,
    /// End of the last step [ns].
    pub end: u64,
    /// Time of the steps added up [ns]; more than `end - start` where stages of a pipeline overlap.
    pub busy: u64,
    /// Where that time went, in the order of [`hwmodels::Parts::NAMES`] [s].
    pub parts: [f32; 6],
    /// Tokens prefilled [tokens].
    pub prefill_tokens: u64,
    /// Prompt chunks that they were in.
    pub prefill_seqs: u64,
    /// Tokens decoded [tokens].
    pub decode_tokens: u64,
    /// Sum over decodes of the context read [tokens].
    pub decode_ctx: u64,
    /// Query-key pairs of the prefill.
    pub prefill_pairs: u64,
    /// Requests running.
    pub running: Stat,
    /// Requests waiting.
    pub waiting: Stat,
    /// KV blocks in use.
    pub kv_blocks: Stat,
    /// Time in which waiting requests were kept out, in the order of [`sim::policy::Blocked::CAUSES`] [ns].
    pub blocked: [u64; 3],
}

/// A replica of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// What it is called, e.g. `g5.2xlarge/0`.
    pub name: String,
    /// Accelerators it spans.
    pub devices: u32,
    /// Pipeline stages.
    pub stages: u32,
    /// KV blocks it has; 0: its engine does not page KV.
    pub kv_blocks: u64,
    /// Tokens per KV block [tokens].
    pub block_tokens: u32,
}

impl From<&ReplicaInfo> for Replica {
    fn from(r: &ReplicaInfo) -> Replica {
        Replica {
            name: r.name.clone(),
            devices: r.devices,
            stages: r.stages,
            kv_blocks: r.kv_blocks,
            block_tokens: r.block_tokens,
        }
    }
}

impl Replica {
    /// Its pool: the name up to the last `/`.
    pub fn pool(&self) -> &str {
        self.name.rsplit_once('/').map_or("", |(pool, _)| pool)
    }
}

/// What became of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// Added, not ready yet.
    Added,
    /// The router may choose it.
    Ready,
    /// The router does not choose it any more.
    Draining,
    /// Gone, its last request answered.
    Drained,
    /// Gone with whatever it held.
    Killed,
}

impl From<FleetEvent> for EventKind {
    fn from(e: FleetEvent) -> EventKind {
        match e {
            FleetEvent::Added => EventKind::Added,
            FleetEvent::Ready => EventKind::Ready,
            FleetEvent::Draining => EventKind::Draining,
            FleetEvent::Drained => EventKind::Drained,
            FleetEvent::Killed => EventKind::Killed,
        }
    }
}

impl EventKind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Added => "added",
            EventKind::Ready => "ready",
            EventKind::Draining => "draining",
            EventKind::Drained => "drained",
            EventKind::Killed => "killed",
        }
    }
}

/// Something became of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When [ns].
    pub at: u64,
    /// Index of the replica.
    pub replica: u32,
    /// What.
    pub kind: EventKind,
}

/// Counts of all requests in a stretch of time: exact, whatever rows were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Requests sent.
    pub sent: u64,
    /// Requests finished.
    pub finished: u64,
    /// Requests that ended otherwise: refused, timed out, failed.
    pub lost: u64,
    /// Prompt tokens of the requests sent [tokens].
    pub prompt_tokens: u64,
    /// Output tokens of the requests finished [tokens].
    pub output_tokens: u64,
}

/// Counts over time, in equal bins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Width of a bin [ns].
    pub width: u64,
    /// The bins, from the start of the run.
    pub bins: Vec<Bin>,
}

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
    pub requests: Vec<RequestRow>,
    /// Steps by level: first the finest, each further one merges [`crate::FAN_OUT`] neighbours.
    pub steps: Vec<StepLevel>,
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
        let info = Info {
            format: FORMAT,
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
                .map(|l| l.rows.len() as u64)
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
            rates: collected.rates,
            cluster: run.cluster.as_ref().map(Cluster::from),
        }
    }
}
