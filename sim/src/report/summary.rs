//! The JSON contract of `run --json` (`docs/machine-contracts.md`), schema `docs/schema/run-report.schema.json`.

use serde::{Deserialize, Serialize};

use crate::kernel::time::{SimDuration, SimTime};
use crate::metrics::definition::Metric;
use crate::record::{GatewayRecord, MeasuredError, RunRecord, Served, Window};
use crate::report::cluster::ClusterReport;
use crate::report::counts::{self, Rejections, RequestCounts};
use crate::report::diagnosis::{self, BlockedBy, BoundBy, Diagnosis, Waits};
use crate::report::doubt::Ranges;
use crate::report::figures::secs;
pub use crate::report::latency::LatencySummary;
use crate::report::lives::lives;
use crate::report::pools::{self, KvTransferReport, ModelReport, PoolReport};
use crate::report::slo::SloReport;
use crate::report::stationarity::Stationarity;
use crate::request::Outcome;

/// One run, summarised. Latencies in milliseconds over finished requests sent after the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RunReport {
    /// Version of this contract; raised when a field changes its meaning or goes away.
    pub contract: u32,
    /// Name of the scenario.
    pub name: String,
    /// What the scenario shows.
    pub description: String,
    /// What was offered, in words.
    pub load: String,
    /// What it ran on, in words.
    pub deployment: String,
    /// Version of servetwin.
    pub version: String,
    /// Seed of every random stream.
    pub seed: u64,
    /// End of the run on its virtual clock [s].
    pub duration_s: f64,
    /// Time at the start that latencies, throughput and shares leave out [s].
    pub warmup_s: f64,
    /// Requests by outcome over the whole run; `offered` is the sum of the others.
    pub requests: RequestCounts,
    /// Rejected requests by reason; null where the run was too long to keep request rows.
    pub rejections: Option<Rejections>,
    /// Time to first token [ms].
    pub ttft_ms: LatencySummary,
    /// Gaps between consecutive tokens, pooled over requests [ms].
    pub itl_ms: LatencySummary,
    /// (E2E - TTFT) / (n - 1), one value per request of at least two tokens [ms].
    pub tpot_ms: LatencySummary,
    /// End-to-end latency [ms].
    pub e2e_ms: LatencySummary,
    /// Sent until first scheduled [ms].
    pub queue_ms: LatencySummary,
    /// Normalised latency: E2E / n, one value per request [ms].
    pub normalised_ms: LatencySummary,
    /// Tokens of finished requests over the whole run.
    pub tokens: Tokens,
    /// By workload stream, where there are several and request rows are kept.
    pub streams: Vec<StreamReport>,
    /// Rates while requests are sent: from the end of the warm-up until the last was sent.
    pub throughput: Throughput,
    /// The same until the last request ended, as vLLM's `bench serve` and GenAI-Perf count: the drain of the run is in it.
    pub throughput_with_drain: Throughput,
    /// Whether the latencies are those of a steady state or grow with the length of the run.
    pub stationarity: Stationarity,
    /// The objective, how often it was met, and whether it holds.
    pub slo: SloReport,
    /// KV cache.
    pub kv: Kv,
    /// Replicas and how busy they were.
    pub replicas: Replicas,
    /// By pool of replicas; left out where all are alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolReport>,
    /// By model, where streams ask for several and request rows are kept; left out otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelReport>,
    /// What the gateway did with tries that failed; left out where it passes every answer on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayRecord>,
    /// KV that went from prefill pools to decode pools; left out where there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_transfer: Option<KvTransferReport>,
    /// The cluster around the replicas; left out where the run had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterReport>,
    /// Price; null where the price is not known or nothing was produced.
    pub cost: Cost,
    /// Shares of the replicas' time by what bound it; they add up to 1.
    pub bound_by: BoundBy,
    /// Shares of the replicas' time during which a limit of the engine made requests wait.
    pub blocked_by: BlockedBy,
    /// What this means.
    pub diagnosis: Diagnosis,
    /// Profiles that step times came from; empty: analytic from the catalog alone.
    pub profiles: Vec<ProfileReport>,
    /// How far such predictions were from measured runs of the same engine and accelerator that nothing was fitted on;
    /// empty: not known.
    pub accuracy: Vec<MeasuredError>,
    /// Where nine of ten such deployments would be measured; left out where the run was measured itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Ranges>,
    /// What the run is like, for the ranges of its figures.
    #[serde(skip)]
    #[schemars(skip)]
    pub like: Option<hwmodels::doubt::Kind>,
    /// How the run itself went; differs from run to run.
    pub stats: RunStats,
    /// Stable hash over every request, step and gap: 16 hexadecimal digits.
    pub fingerprint: String,
    /// What the reader must know to judge the figures.
    pub warnings: Vec<String>,
}

/// One of several workload streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StreamReport {
    /// Its name.
    pub name: String,
    /// Its requests over the whole run.
    pub requests: RequestCounts,
    /// Time to first token [ms].
    pub ttft_ms: LatencySummary,
    /// Time per output token [ms].
    pub tpot_ms: LatencySummary,
    /// End-to-end latency [ms].
    pub e2e_ms: LatencySummary,
    /// Share of its requests finished in the window that met every limit; null without limits or requests.
    pub attainment_ratio: Option<f64>,
}

/// Tokens [tokens].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Tokens {
    /// Prompt tokens.
    pub prompt: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
    /// Times a request lost its KV and had to be recomputed.
    pub preemptions: u64,
}

/// Rates. What finished is counted when it did; what was sent, when it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Throughput {
    /// Time that the rates of what finished are taken over [s]. Fewer than half as many requests finished as were sent (a burst, a few long
    /// requests, more than twice the capacity): until the end of the run.
    pub window_s: f64,
    /// Requests sent per second, until the last was sent.
    pub offered_per_s: f64,
    /// Requests finished per second.
    pub requests_per_s: f64,
    /// Output tokens of finished requests per second.
    pub output_tokens_per_s: f64,
    /// Prompt and output tokens of finished requests per second.
    pub total_tokens_per_s: f64,
    /// Requests per second that finished within the objective; all that finished where there is none.
    pub goodput_per_s: f64,
}

/// KV cache, over all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Kv {
    /// Blocks there are.
    pub blocks: u64,
    /// Tokens they hold [tokens].
    pub capacity_tokens: u64,
    /// Most blocks in use on any replica, of those it has [0, 1].
    pub peak_ratio: f64,
    /// Time-weighted mean use in the measurement window [0, 1].
    pub mean_ratio: f64,
}

/// Replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Replicas {
    /// Replicas there are.
    pub count: u64,
    /// Accelerators they span.
    pub devices: u64,
    /// Share of time with a step under way, mean over replicas [0, 1]; of those in a cluster over the time that each was there.
    pub busy_ratio: f64,
    /// Of the busiest replica [0, 1], over the time that it was there.
    pub busiest_ratio: f64,
    /// Running requests per replica, time-weighted over busy time.
    pub mean_running: f64,
}

/// Price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Cost {
    /// Of the whole deployment [USD/h].
    pub usd_per_hour: Option<f64>,
    /// Per million output tokens of finished requests at the window's rate [USD].
    pub usd_per_million_output_tokens: Option<f64>,
}

/// A profile and whether it may be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProfileReport {
    /// Its name.
    pub name: String,
    /// Whether a validation on data it was not fitted on passed.
    pub trusted: bool,
    /// What it was fitted on, or why it is not trusted.
    pub note: String,
}

/// How the run itself went, on the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RunStats {
    /// Wall time of the simulation [s].
    pub wall_s: f64,
    /// Steps simulated.
    pub steps: u64,
    /// Offered requests simulated per second of wall time.
    pub requests_per_wall_s: f64,
}

/// Nanoseconds as seconds; a division, so that 30 s do not become 30.000000000000004 s.
fn to_secs(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Version of the contract.
pub const CONTRACT: u32 = 1;

impl RunReport {
    /// Summarises a record; `wall_s` is how long its simulation took.
    pub fn new(record: &RunRecord, wall_s: f64) -> RunReport {
        let bound_by = diagnosis::bound_by(record);
        let blocked_by = diagnosis::blocked_by(record);
        let throughput = throughput(record);
        let stationarity = Stationarity::of(record);
        let [ttft_ms, itl_ms, tpot_ms, e2e_ms, queue_ms, normalised_ms] =
            Metric::ALL.map(|m| LatencySummary::of(record, m));
        let cluster = ClusterReport::of(record);
        let waits = cluster.as_ref().and_then(|c| c.start_waits);
        let for_starts = waits.and_then(|w| w.waited_ratio);
        let waits = Waits::of(&queue_ms, &ttft_ms, &e2e_ms, for_starts);
        let mut report = RunReport {
            contract: CONTRACT,
            name: record.info.name.clone(),
            description: record.info.description.clone(),
            load: record.info.load.clone(),
            deployment: record.info.deployment.clone(),
            version: record.version.to_string(),
            seed: record.info.seed,
            duration_s: to_secs(record.end.0),
            warmup_s: to_secs(record.warmup.0),
            requests: record.counts.into(),
            rejections: Rejections::of(record),
            tokens: Tokens {
                prompt: record.tokens.prompt,
                cached: record.tokens.cached,
                output: record.tokens.output,
                preemptions: record.preemptions,
            },
            streams: streams(record),
            throughput,
            throughput_with_drain: throughput_with_drain(record),
            stationarity,
            slo: SloReport::new(record, &ttft_ms, &tpot_ms, &e2e_ms),
            ttft_ms,
            itl_ms,
            tpot_ms,
            e2e_ms,
            queue_ms,
            normalised_ms,
            kv: kv(record),
            replicas: replicas(record),
            cluster,
            cost: cost(record.info.usd_per_hour, throughput.output_tokens_per_s),
            diagnosis: diagnosis::diagnose(
                &bound_by,
                &blocked_by,
                diagnosis::kv_fits_requests(record),
                &waits,
            ),
            bound_by,
            blocked_by,
            profiles: record
                .info
                .profiles
                .iter()
                .map(|p| ProfileReport {
                    name: p.name.clone(),
                    trusted: p.trusted,
                    note: p.note.clone(),
                })
                .collect(),
            accuracy: record.info.accuracy.clone(),
            like: record.info.like,
            ranges: None,
            stats: RunStats {
                wall_s,
                steps: record.steps,
                requests_per_wall_s: rate(record.counts.offered as f64, wall_s),
            },
            pools: pools::pools(record),
            models: pools::models(record),
            gateway: record.gateway,
            kv_transfer: KvTransferReport::of(record),
            fingerprint: format!("{:016x}", record.fingerprint),
            warnings: warnings(record, &stationarity),
        };
        report.ranges = Ranges::of(&report);
        report
    }

    /// The summary of `metric`.
    pub fn latency(&self, metric: Metric) -> &LatencySummary {
        match metric {
            Metric::Ttft => &self.ttft_ms,
            Metric::Itl => &self.itl_ms,
            Metric::Tpot => &self.tpot_ms,
            Metric::E2e => &self.e2e_ms,
            Metric::Queue => &self.queue_ms,
            Metric::Normalised => &self.normalised_ms,
        }
    }
}

fn streams(record: &RunRecord) -> Vec<StreamReport> {
    let (names, Some(rows)) = (&record.info.streams, &record.request_rows) else {
        return Vec::new();
    };
    if names.len() < 2 {
        return Vec::new();
    }
    let start = SimTime::ZERO + record.warmup;
    let report = |(index, name): (usize, &String)| {
        let own = || rows.iter().filter(move |r| usize::from(r.stream) == index);
        let mut requests = RequestCounts::default();
        let (mut finished, mut good) = (0u64, 0u64);
        for row in own() {
            requests.count(row.outcome);
            if row.outcome == Outcome::Finished && row.end >= start {
                finished += 1;
                good += u64::from(record.slo.met_by(row));
            }
        }
        let latency = |metric: Metric| {
            let measured = own().filter(|r| r.arrival >= start);
            LatencySummary::of_values(measured.filter_map(|r| metric.of(r)).map(|d| d.0).collect())
        };
        StreamReport {
            name: name.clone(),
            requests,
            ttft_ms: latency(Metric::Ttft),
            tpot_ms: latency(Metric::Tpot),
            e2e_ms: latency(Metric::E2e),
            attainment_ratio: (!record.slo.is_empty() && finished > 0)
                .then(|| good as f64 / finished as f64),
        }
    };
    names.iter().enumerate().map(report).collect()
}

/// `amount` per second; zero over no time.
fn rate(amount: f64, secs: f64) -> f64 {
    if secs > 0.0 { amount / secs } else { 0.0 }
}

fn throughput(record: &RunRecord) -> Throughput {
    let (length, served) = record.window.rated();
    rates(&record.window, length, &served)
}

fn throughput_with_drain(record: &RunRecord) -> Throughput {
    let w = &record.window;
    rates(w, w.length, &w.served())
}

/// What was `served` in `length`, beside what was sent.
fn rates(w: &Window, length: SimDuration, served: &Served) -> Throughput {
    let secs = length.as_secs();
    // A burst is sent in no time; then the window is all there is.
    let sending = if w.sending > SimDuration::ZERO {
        w.sending
    } else {
        w.length
    };
    let tokens = served.tokens;
    Throughput {
        window_s: secs,
        offered_per_s: rate(w.offered as f64, sending.as_secs()),
        requests_per_s: rate(served.finished as f64, secs),
        output_tokens_per_s: rate(tokens.output as f64, secs),
        total_tokens_per_s: rate((tokens.prompt + tokens.output) as f64, secs),
        goodput_per_s: rate(served.good as f64, secs),
    }
}

fn kv(record: &RunRecord) -> Kv {
    let mut kv = Kv::default();
    let mut used = 0.0;
    for (info, usage) in record.info.replicas.iter().zip(&record.replicas) {
        kv.blocks += info.kv_blocks;
        kv.capacity_tokens += info.kv_blocks * u64::from(info.block_tokens);
        used += usage.kv_block_ns as f64;
        if info.kv_blocks > 0 {
            kv.peak_ratio = kv
                .peak_ratio
                .max(usage.kv_peak_blocks as f64 / info.kv_blocks as f64);
        }
    }
    let whole = match lives(record) {
        // Of replicas that came and went, over their own lives.
        Some(lives) => (record.info.replicas.iter().zip(lives))
            .map(|(info, life)| info.kv_blocks as f64 * life)
            .sum(),
        None => kv.blocks as f64 * record.window.length.0 as f64,
    };
    if whole > 0.0 {
        kv.mean_ratio = used / whole;
    }
    kv
}

fn replicas(record: &RunRecord) -> Replicas {
    let count = record.replicas.len();
    let length = record.window.length.0 as f64;
    let busy: f64 = record.replicas.iter().map(|r| r.busy.0 as f64).sum();
    let running: f64 = record.replicas.iter().map(|r| r.running_ns as f64).sum();
    let share = |ns: f64, of: f64| if of > 0.0 { ns / of } else { 0.0 };
    let lives = lives(record);
    let whole = lives
        .as_ref()
        .map_or(length * count as f64, |l| l.iter().sum());
    let life = |i: usize| lives.as_ref().map_or(length, |l| l[i]);
    Replicas {
        count: count as u64,
        devices: record
            .info
            .replicas
            .iter()
            .map(|r| u64::from(r.devices))
            .sum(),
        busy_ratio: share(busy, whole),
        busiest_ratio: record
            .replicas
            .iter()
            .enumerate()
            .map(|(i, r)| share(r.busy.0 as f64, life(i)))
            .fold(0.0, f64::max),
        mean_running: share(running, busy),
    }
}

fn cost(usd_per_hour: Option<f64>, output_tokens_per_s: f64) -> Cost {
    Cost {
        usd_per_hour,
        usd_per_million_output_tokens: usd_per_hour
            .filter(|_| output_tokens_per_s > 0.0)
            .map(|usd| usd / 3600.0 / output_tokens_per_s * 1e6),
    }
}

/// The run's own warnings, and those that its figures call for.
fn warnings(record: &RunRecord, stationarity: &Stationarity) -> Vec<String> {
    let mut warnings = record.info.warnings.clone();
    warnings.extend(stationarity.warning(record.counts.offered));
    for p in record.info.profiles.iter().filter(|p| !p.trusted) {
        // What it is; its errors stand in `profiles`.
        let what = p.note.split(';').next().unwrap_or_default();
        warnings.push(format!(
            "profile {} is untrusted, since no validation on data that it was not fitted on has passed: {what}",
            p.name
        ));
    }
    let c = RequestCounts::from(record.counts);
    warnings.extend(counts::warning(&c, Rejections::of(record).as_ref()));
    if c.in_flight * 20 > c.offered {
        warnings.push(format!(
            "{} of {} requests were under way when the run ended; latencies leave them out and so look better than they are",
            c.in_flight, c.offered
        ));
    }
    let n = record.latencies.e2e.count();
    if n == 0 && c.finished > 0 {
        warnings.push(format!(
            "nothing was measured: the warm-up of {} leaves out all {} requests; shorten run.warmup or send more",
            secs(to_secs(record.warmup.0)),
            c.offered
        ));
    }
    if n > 0 && n < 100 {
        warnings.push(format!(
            "only {n} requests were measured: p99 is close to the maximum"
        ));
    }
    warnings
}

impl RunReport {
    /// The report of a run in which nothing happened: every field is there.
    pub fn empty() -> RunReport {
        use crate::metrics::{RecordOptions, Recorder};
        let nothing = Recorder::new(&RecordOptions::default());
        match nothing.finish(
            crate::kernel::time::SimTime::ZERO,
            crate::record::RunInfo::default(),
        ) {
            Ok(record) => RunReport::new(&record, 0.0),
            Err(e) => unreachable!("nothing offered, nothing lost: {e}"),
        }
    }
}
