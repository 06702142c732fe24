//! The record of a run: one format for simulated runs and measured ones.

pub mod rows;
pub mod transfers;

use serde::{Deserialize, Serialize};

use crate::kernel::time::{SimDuration, SimTime};
use crate::kube::record::ClusterRecord;
use crate::metrics::course::Course;
use crate::metrics::definition::{Metric, Slo};
use crate::metrics::distribution::{Distribution, quantiles};
use crate::metrics::flow::Flow;
use crate::metrics::series::Series;
pub use rows::{RequestRow, StepRow};
pub use transfers::{TransferRecord, TransferRow};

/// Counts by outcome; `offered` is their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests that clients sent.
    pub offered: u64,
    /// Answered in full.
    pub finished: u64,
    /// Refused.
    pub rejected: u64,
    /// Given up by their client.
    pub timed_out: u64,
    /// Accepted but not served.
    pub failed: u64,
    /// Still under way when the run ended.
    pub in_flight: u64,
}

impl Counts {
    /// Whether every offered request is accounted for.
    pub fn conserved(&self) -> bool {
        self.offered
            == self.finished + self.rejected + self.timed_out + self.failed + self.in_flight
    }
}

/// What a replica is, as far as reports need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaInfo {
    /// What it is called in reports, e.g. `g5.2xlarge/0`.
    pub name: String,
    /// Accelerators it spans.
    pub devices: u32,
    /// Pipeline stages.
    pub stages: u32,
    /// KV blocks it has (0: the engine does not page KV).
    pub kv_blocks: u64,
    /// Tokens per KV block [tokens].
    pub block_tokens: u32,
}

/// What a pool of replicas is, as far as reports need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolInfo {
    /// What it is called.
    pub name: String,
    /// What its replicas do of a request.
    pub role: crate::cluster::pools::Role,
    /// The model that it serves.
    pub model: String,
    /// How many replicas are its own.
    pub replicas: u32,
}

/// A profile that the run used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileUse {
    /// Its name.
    pub name: String,
    /// Whether a validation on data that it was not fitted on passed.
    pub trusted: bool,
    /// One line on what it was fitted on or why it is not trusted.
    pub note: String,
}

/// How far predictions of one metric were from measured runs of the same kind that nothing was fitted on.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MeasuredError {
    /// The measured runs, as `docs/accuracy.md` calls them.
    pub set: String,
    /// The metric, by the set's name for it.
    pub metric: String,
    /// Rows that were predicted.
    pub n: u64,
    /// Median of their absolute relative errors [ratio].
    pub median_error_ratio: f64,
    /// How their requests came, where it was otherwise than in this run: `open` (at times of their own), `closed` (from users in a loop),
    /// `saturated` (all at once).
    pub load: Option<String>,
}

impl From<&hwmodels::profile::Validation> for MeasuredError {
    fn from(v: &hwmodels::profile::Validation) -> MeasuredError {
        MeasuredError {
            set: v.set.clone(),
            metric: v.metric.clone(),
            n: v.n,
            // A decimal figure of the file stays one: 12.97 % is 0.1297.
            median_error_ratio: (v.median_ape * 1e4).round() / 1e6,
            load: None,
        }
    }
}

impl MeasuredError {
    /// Those of the shipped measurements that were taken under the engine and on the accelerator (catalog name) of a run of this kind.
    pub fn shipped(kind: hwmodels::doubt::Kind, accelerator: &str) -> Vec<MeasuredError> {
        let sets = hwmodels::doubt::measured_on(hwmodels::doubt::shipped(), kind, accelerator);
        let one = |(set, on): &(&hwmodels::doubt::SetErrors, &hwmodels::doubt::OnAccelerator)| {
            MeasuredError {
                set: set.set.clone(),
                metric: on.metric.clone(),
                n: on.rows,
                median_error_ratio: on.median_error,
                load: (set.kind.load != kind.load).then(|| set.kind.load.name().into()),
            }
        };
        sets.iter().map(one).collect()
    }
}

/// What a gateway did with tries that failed, over the whole run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct GatewayRecord {
    /// Times that it sent a request again.
    pub retries: u64,
    /// Times that it took a replica out of the rotation.
    pub ejections: u64,
    /// Requests that it refused with 503 because it had as many as it may have.
    pub overflowed: u64,
}

/// What was run: everything that makes the record reproducible, and what reports need to know about the deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunInfo {
    /// Name of the scenario.
    pub name: String,
    /// One line on what it shows.
    pub description: String,
    /// The resolved scenario, every default visible (TOML).
    pub config: String,
    /// Seed of every random stream.
    pub seed: u64,
    /// What was offered, for the reader, e.g. `Poisson 2 req/s`.
    pub load: String,
    /// What it ran on, for the reader, e.g. `llama-2-7b on 1 x g5.2xlarge (A10G), TGI, TP1`.
    pub deployment: String,
    /// Names of the workload streams, by index.
    pub streams: Vec<String>,
    /// The replicas, by index.
    pub replicas: Vec<ReplicaInfo>,
    /// The pools that they belong to (see [`RunRecord::replicas_of_pools`]); empty: all are alike.
    pub pools: Vec<PoolInfo>,
    /// The model that each stream asks for, where pools say what they serve; empty: the one that is served.
    pub stream_models: Vec<String>,
    /// Price of the whole deployment [USD/h], where known.
    pub usd_per_hour: Option<f64>,
    /// Profiles that step times came from. None: analytic from the catalog alone.
    pub profiles: Vec<ProfileUse>,
    /// Errors on measured runs of the same engine and accelerator with these profiles. None: not known.
    pub accuracy: Vec<MeasuredError>,
    /// What the run is like, for the ranges of its figures; `None`: only `accuracy` says something of them.
    pub like: Option<hwmodels::doubt::Kind>,
    /// The objectives that the run is judged by, where the scenario lists them.
    pub objectives: Vec<crate::metrics::Objective>,
    /// What the reader must know to judge the figures.
    pub warnings: Vec<String>,
}

/// Tokens of finished requests [tokens].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenTotals {
    /// Prompt tokens.
    pub prompt: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
}

impl TokenTotals {
    /// Adds those of `row`.
    pub fn add(&mut self, row: &RequestRow) {
        self.prompt += u64::from(row.prompt_tokens);
        self.cached += u64::from(row.cached_tokens);
        self.output += u64::from(row.output_tokens);
    }

    /// Adds those of `other`.
    pub fn merge(&mut self, other: TokenTotals) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.output += other.output;
    }
}

/// Requests that finished in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// All of them.
    pub finished: u64,
    /// Of those, requests that met the objective.
    pub good: u64,
    /// Their tokens.
    pub tokens: TokenTotals,
}

impl Served {
    /// Adds `row`, which finished, and within the objective where `good`.
    pub fn add(&mut self, row: &RequestRow, good: bool) {
        self.finished += 1;
        self.good += u64::from(good);
        self.tokens.add(row);
    }
}

/// What happened inside the measurement window: from the end of the warm-up to the end of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Its length.
    pub length: SimDuration,
    /// From its start until the last request was sent: a run that drains goes on after that.
    pub sending: SimDuration,
    /// Requests sent inside it.
    pub offered: u64,
    /// Requests that finished inside it.
    pub finished: u64,
    /// Of those, requests that met the objective.
    pub good: u64,
    /// Tokens of the requests that finished inside it.
    pub tokens: TokenTotals,
    /// What finished until the last request was sent.
    pub while_sending: Served,
}

impl Window {
    /// Takes in what another recorder of the same run has seen of it.
    pub fn merge(&mut self, other: Window) {
        self.offered += other.offered;
        self.sending = self.sending.max(other.sending);
        self.finished += other.finished;
        self.good += other.good;
        self.tokens.merge(other.tokens);
        self.while_sending.finished += other.while_sending.finished;
        self.while_sending.good += other.while_sending.good;
        self.while_sending.tokens.merge(other.while_sending.tokens);
    }

    /// What finished inside it.
    pub fn served(&self) -> Served {
        Served {
            finished: self.finished,
            good: self.good,
            tokens: self.tokens,
        }
    }

    /// The part of it that rates are taken over, and what finished in it: until the last request was sent, so that what comes and what is
    /// served are counted over the same time. All of it where fewer than half as many requests finished by then as were sent: a burst, a few long
    /// requests, a load of more than twice the capacity.
    pub fn rated(&self) -> (SimDuration, Served) {
        if self.sending > SimDuration::ZERO && 2 * self.while_sending.finished >= self.offered {
            (self.sending, self.while_sending)
        } else {
            (self.length, self.served())
        }
    }
}

/// What one replica did inside the measurement window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaUse {
    /// Steps of the whole run.
    pub steps: u64,
    /// Time with at least one step under way.
    pub busy: SimDuration,
    /// Attribution of the steps' time in the order of [`hwmodels::Parts::NAMES`] [ps].
    pub parts_ps: [u64; 6],
    /// Time during which waiting requests were kept out, in the order of [`Blocked::CAUSES`] [ns].
    pub blocked_ns: [u64; 3],
    /// Running requests integrated over time [requests x ns].
    pub running_ns: u128,
    /// Requests waiting in the engine integrated over time, whether a step was under way or not [requests x ns].
    pub waiting_ns: u128,
    /// KV blocks in use integrated over time [blocks x ns].
    pub kv_block_ns: u128,
    /// Most KV blocks in use at once, over the whole run.
    pub kv_peak_blocks: u64,
}

/// The distributions of the measured requests (those sent after the warm-up).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Time to first token.
    pub ttft: Distribution,
    /// Gaps between consecutive tokens, pooled.
    pub itl: Distribution,
    /// Time per output token, one value per request.
    pub tpot: Distribution,
    /// End-to-end latency.
    pub e2e: Distribution,
    /// Queue time.
    pub queue: Distribution,
    /// E2E latency per output token.
    pub normalised: Distribution,
}

impl Latencies {
    /// Takes in everything that `other` holds.
    pub fn merge(&mut self, other: &Latencies) {
        for (mine, theirs) in [
            (&mut self.ttft, &other.ttft),
            (&mut self.itl, &other.itl),
            (&mut self.tpot, &other.tpot),
            (&mut self.e2e, &other.e2e),
            (&mut self.queue, &other.queue),
            (&mut self.normalised, &other.normalised),
        ] {
            mine.merge(theirs);
        }
    }

    /// The distribution of `metric`.
    pub fn of(&self, metric: Metric) -> &Distribution {
        match metric {
            Metric::Ttft => &self.ttft,
            Metric::Itl => &self.itl,
            Metric::Tpot => &self.tpot,
            Metric::E2e => &self.e2e,
            Metric::Queue => &self.queue,
            Metric::Normalised => &self.normalised,
        }
    }
}

/// Everything a run leaves behind.
#[derive(Clone, Debug)]
pub struct RunRecord {
    /// What was run.
    pub info: RunInfo,
    /// Version of servetwin that ran it.
    pub version: &'static str,
    /// Stable hash over every request, step and gap.
    pub fingerprint: u64,
    /// End of the run.
    pub end: SimTime,
    /// Start of the measurement window.
    pub warmup: SimDuration,
    /// Objective that goodput counts against.
    pub slo: Slo,
    /// Requests by outcome, over the whole run.
    pub counts: Counts,
    /// Times a request lost its KV, over the whole run.
    pub preemptions: u64,
    /// Tokens of finished requests, over the whole run.
    pub tokens: TokenTotals,
    /// What happened inside the measurement window.
    pub window: Window,
    /// Arrivals, dequeuings and completions over the run.
    pub flow: Flow,
    /// Latency distributions.
    pub latencies: Latencies,
    /// Steps of the whole run.
    pub steps: u64,
    /// By replica.
    pub replicas: Vec<ReplicaUse>,
    /// What the gateway did with tries that failed, where it does anything.
    pub gateway: Option<GatewayRecord>,
    /// KV that went from prefill replicas to decode replicas, where there were such.
    pub transfers: Option<TransferRecord>,
    /// The cluster around the replicas, where the run had one.
    pub cluster: Option<ClusterRecord>,
    /// Cluster totals over time.
    pub series: Series,
    /// How requests fared by when they were sent, of a run in a cluster.
    pub course: Option<Course>,
    /// A row per request in order of their ends; none when there were more than the limit.
    pub request_rows: Option<Vec<RequestRow>>,
    /// A row per step, where asked for; none when there were more than the limit.
    pub step_rows: Option<Vec<StepRow>>,
}

impl RunRecord {
    /// The replicas of each pool, by their index: one pool's after the other's, but in a cluster in the order in which they were ready.
    pub fn replicas_of_pools(&self) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new(); self.info.pools.len()];
        if let Some(around) = &self.cluster {
            let of = around.engine_deployments(self.info.replicas.len());
            for (i, pool) in of.into_iter().enumerate() {
                if let Some(own) = all.get_mut(pool) {
                    own.push(i);
                }
            }
            return all;
        }
        let mut from = 0;
        for (own, pool) in all.iter_mut().zip(&self.info.pools) {
            own.extend(from..from + pool.replicas as usize);
            from += pool.replicas as usize;
        }
        all
    }

    /// The values of `metric` over the measured requests, ascending [ns]; none where rows are not kept, and for ITL.
    pub fn sorted_values(&self, metric: Metric) -> Option<Vec<u64>> {
        let mut values = self.values(metric)?;
        values.sort_unstable();
        Some(values)
    }

    /// The same in the order in which the requests ended.
    fn values(&self, metric: Metric) -> Option<Vec<u64>> {
        if metric == Metric::Itl {
            return None;
        }
        let start = SimTime::ZERO + self.warmup;
        let measured = (self.request_rows.as_ref()?.iter()).filter(|row| row.arrival >= start);
        Some(
            measured
                .filter_map(|row| metric.of(row))
                .map(|d| d.0)
                .collect(),
        )
    }

    /// The `p` quantile of `metric` [ns]: exact where rows are kept, else within
    /// [`crate::metrics::distribution::RELATIVE_ERROR`]. None when nothing was measured.
    pub fn quantile_ns(&self, metric: Metric, p: f64) -> Option<f64> {
        let [value] = self.quantiles_ns(metric, [p]);
        value
    }

    /// [`RunRecord::quantile_ns`] of several `ps`, which ascend.
    pub fn quantiles_ns<const N: usize>(&self, metric: Metric, ps: [f64; N]) -> [Option<f64>; N] {
        match self.values(metric) {
            Some(mut values) => quantiles(&mut values, ps),
            None => ps.map(|p| self.latencies.of(metric).quantile_ns(p)),
        }
    }
}

/// Why a record could not be closed or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Requests were lost or counted twice: a defect of the simulator, not of the input.
    #[error(
        "requests are not conserved: {offered} offered, but {finished} finished + {rejected} rejected + \
         {timed_out} timed out + {failed} failed + {in_flight} in flight; this is a defect of servetwin, please report it"
    )]
    NotConserved {
        /// Requests sent.
        offered: u64,
        /// Answered in full.
        finished: u64,
        /// Refused.
        rejected: u64,
        /// Given up.
        timed_out: u64,
        /// Not served.
        failed: u64,
        /// Under way.
        in_flight: u64,
    },
}
