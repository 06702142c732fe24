//! Rows of a record: steps, replicas and what became of them, counts over time.

use serde::{Deserialize, Serialize};
use sim::observer::FleetEvent;
use sim::record::{ReplicaInfo, TransferRow};

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

/// KV of a request that went from one replica to another: from where it was prefilled to where it was decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Id of the request.
    pub request: u32,
    /// Index of the replica that made it.
    pub from: u32,
    /// Index of the replica that it went to.
    pub to: u32,
    /// How much of it went [tokens].
    pub tokens: u32,
    /// The prefill was done [ns].
    pub prefilled: u64,
    /// The receiver had set blocks aside [ns].
    pub began: u64,
    /// It was all there [ns].
    pub ended: u64,
}

impl From<&TransferRow> for Transfer {
    fn from(t: &TransferRow) -> Transfer {
        Transfer {
            request: t.request,
            from: t.from,
            to: t.to,
            tokens: t.tokens,
            prefilled: t.prefilled.0,
            began: t.began.0,
            ended: t.ended.0,
        }
    }
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
