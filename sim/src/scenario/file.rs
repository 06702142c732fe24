//! Scenario files as written: every key, optional where it has a default, values not yet checked.
//!
//! [`super::resolve`] turns these into the checked types of [`super`]; the comments here are what
//! `servetwin scenario schema` and `docs/scenario.md` say about each key, with its unit and default.

use std::fmt;

use hwmodels::units::{PerSec, Ratio, Secs};
use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Serialize};

use crate::workload::TraceFormat;
use crate::workload::spec::RowOrder;
use crate::workload::trace::TraceColumns;

use super::cluster_file::{AutoscalerFile, ChangeFile, ClusterFile, FaultFile};
pub use super::deployment_file::{HardwareFile, LayoutFile, ModelFile, RouterPolicy, StepFile};
use super::gateway_file::{GatewayRetriesFile, OutlierFile};
use super::pools_file::{KvTransferFile, PoolFile};
use super::slo::SloKeys;

/// A deployment, the load on it and the limits of the run. `[engine]` is read apart, since its keys
/// depend on its `kind`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// Name of the scenario. Default: the file's name without `.toml`.
    pub name: Option<String>,
    /// What the scenario shows, in a sentence. Default: empty.
    pub description: Option<String>,
    /// Seed of all randomness, 0 to 2^63 - 1. Default: 1.
    pub seed: Option<u64>,
    /// The model that is served. Needed unless `[step]` or `hardware.step_profile` is given.
    pub model: Option<ModelFile>,
    /// The hardware it is served on. Needed unless `[step]` is given.
    pub hardware: Option<HardwareFile>,
    /// How a replica is spread over devices, and how many replicas there are.
    pub layout: Option<LayoutFile>,
    /// A step time of constant terms in place of model and hardware, for queueing theory and teaching.
    /// Needs `engine.kv_blocks`.
    pub step: Option<StepFile>,
    /// Pools of replicas that differ in hardware, model, engine or in what they do of a request. Without it all replicas are alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<PoolFile>,
    /// How KV goes from pools that prefill to pools that decode.
    pub kv_transfer: Option<KvTransferFile>,
    /// What stands between clients and replicas.
    pub router: Option<RouterFile>,
    /// Nodes and pods around the replicas. Without it the replicas are there from start to end.
    pub cluster: Option<ClusterFile>,
    /// Who changes the number of replicas and nodes. Needs `[cluster]`.
    pub autoscaler: Option<AutoscalerFile>,
    /// What breaks. Needs `[cluster]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fault: Vec<FaultFile>,
    /// What operators do during the run. Needs `[cluster]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub change: Vec<ChangeFile>,
    /// Streams of requests; at least one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workload: Vec<StreamFile>,
    /// When the run ends.
    pub run: Option<RunFile>,
    /// What the run is judged by: a list of objectives such as `["ttft.p95 < 1 s", "tpot.p95 < 50 ms"]`, each of which must be met, or a table
    /// `[slo]` of limits that 99 % of the requests keep. Goodput counts the requests that keep the limits. Default: nothing.
    pub slo: Option<SloKeys>,
}

/// What stands between clients and replicas.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouterFile {
    /// How the replica of a request is chosen. Default: "round_robin".
    pub policy: Option<RouterPolicy>,
    /// The gateway gives up on a request this long after it came (SageMaker: "60 s"). Default: never.
    pub timeout: Option<Secs>,
    /// Delay that gateway and network add to a request on its way in. Default: "0 s".
    pub overhead: Option<Secs>,
    /// How often the router reads the engines' state (least_kv, prefix_aware); between two readings it decides on
    /// old news. "0 s" is always fresh. Default: "50 ms".
    pub scrape_period: Option<Secs>,
    /// Requests that the gateway may have unanswered; one more is answered 503 (Envoy's circuit breaker: `max_requests`, 1024 there). Default: no limit.
    pub max_requests: Option<u32>,
    /// The gateway sends requests again whose try failed. Default: it passes every answer on.
    pub retries: Option<GatewayRetriesFile>,
    /// The gateway stops sending to replicas whose tries fail. Default: it does not.
    pub outlier_detection: Option<OutlierFile>,
}

/// One stream of requests.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamFile {
    /// Name of the stream in reports; unique. Default: "stream-0", "stream-1", ...
    pub name: Option<String>,
    /// The model that it asks for, where pools serve several. Default: the one that is served.
    pub model: Option<String>,
    /// When its requests are sent.
    pub arrival: Option<ArrivalFile>,
    /// Prompt lengths [tokens]; of a session's turn: the new text, without what is sent back. A number is a
    /// fixed length. Needed unless `lengths` or a trace gives them.
    pub prompt: Option<LengthFile>,
    /// Output lengths [tokens]. A number is a fixed length. Needed unless `lengths` or a trace gives them.
    pub output: Option<LengthFile>,
    /// Prompt and output lengths drawn together from the rows of a file, instead of `prompt` and `output`.
    pub lengths: Option<PairsFile>,
    /// `max_tokens` that the calls carry [tokens]; longer outputs end there (finish reason: length), and the report says how many. Default:
    /// the output length.
    pub max_tokens: Option<u32>,
    /// Prompts start with one of a few shared texts. Default: nothing shared.
    pub prefix: Option<PrefixFile>,
    /// Requests come as dialogues of several turns. Default: single requests.
    pub sessions: Option<SessionsFile>,
    /// The client gives up on a request after this long. Default: never.
    pub timeout: Option<Secs>,
    /// Clients that leave on their own account. Default: none.
    pub cancel: Option<CancelFile>,
    /// Clients send again what was not served. Default: they do not.
    pub retries: Option<RetriesFile>,
    /// Priority; lower is more urgent. Default: 0.
    pub priority: Option<i32>,
    /// How tokens are chosen, e.g. { temperature = 0.6, top_k = 20, top_p = 0.95 }. Engines sample a batch in all the ways that any of its requests
    /// asks for. vLLM from 0.8 on takes what a call leaves out from the model's `generation_config.json`: say it here. Default: greedy.
    pub sampling: Option<SamplingFile>,
    /// The stream stops after this many requests (retries not counted). Default: `run.requests` alone limits it.
    pub requests: Option<u64>,
}

/// How the tokens of a stream are chosen.
#[serde_with::skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SamplingFile {
    /// Temperature, 0 to 100; 0 takes the most likely token. Default: 1.
    pub temperature: Option<f64>,
    /// Only so many of the most likely tokens; 0 is all. Default: 0.
    pub top_k: Option<u32>,
    /// Only the most likely tokens of this total probability, above 0 to 1. Default: 1.
    pub top_p: Option<f64>,
    /// Whether a repetition, presence or frequency penalty is set. Default: false.
    pub penalties: Option<bool>,
    /// Log-probabilities returned for each token. Default: 0.
    pub logprobs: Option<u32>,
}

/// When requests are sent. Which of the keys apply depends on `kind`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArrivalFile {
    /// The arrival process.
    pub kind: ArrivalKind,
    /// Mean rate, e.g. "2.5 req/s" (poisson, gamma, constant); needed there.
    pub rate: Option<PerSec>,
    /// Coefficient of variation of the gaps: 0 is constant, 1 Poisson. Needed for gamma; for steps, ramp and
    /// rate_table the default is 1.
    pub cv: Option<f64>,
    /// Stretches of constant rate, one after another (steps); at least one.
    pub steps: Option<Vec<RateStepFile>>,
    /// Start again when the curve is over (steps, rate_table). Default: false, the stream ends.
    pub repeat: Option<bool>,
    /// Rate at the start (ramp).
    pub from: Option<PerSec>,
    /// Rate at the end (ramp), held from then on.
    pub to: Option<PerSec>,
    /// How long the rate takes from `from` to `to` (ramp).
    pub over: Option<Secs>,
    /// File of the rate curve (rate_table) or of the requests (trace), relative to the scenario file; may
    /// end in `.gz`.
    pub file: Option<String>,
    /// Column of the time [s] (rate_table). Default: "t_s".
    pub time_column: Option<String>,
    /// Column of the rate [req/s] (rate_table). Default: "rate_rps".
    pub rate_column: Option<String>,
    /// Factor on all rates of the table (rate_table). Default: 1.
    pub scale: Option<f64>,
    /// Users that each have one request under way (closed).
    pub concurrency: Option<u32>,
    /// Pause between the first requests of consecutive users (closed). Default: "0 s", all at once.
    pub stagger: Option<Secs>,
    /// Mean pause of a user between an answer and the next request (closed). Default: "0 s".
    pub think: Option<Secs>,
    /// Coefficient of variation of the pause: 0 is constant, 1 exponential (closed). Default: 0.
    pub think_cv: Option<f64>,
    /// Least pause after a refusal before the same user or place sends again (closed, burst). Default: "100 ms".
    pub refused_pause: Option<Secs>,
    /// Requests sent at once at the start (burst).
    pub requests: Option<u64>,
    /// Most requests that the client keeps under way (burst; GuideLLM's throughput mode: 128). Default: no limit.
    pub max_in_flight: Option<u32>,
    /// Format of the trace. Default: "auto", told from its first line.
    pub format: Option<TraceFormat>,
    /// Which columns of a CSV file, or keys of JSON lines, say what, in place of `format`: { arrival = "ts", prompt = "in", output = "out",
    /// time = "ms" } (trace). Default: those of the format.
    pub columns: Option<TraceColumns>,
    /// Factor on the trace's times: 0.5 sends twice as fast (trace). Default: 1.
    pub time_scale: Option<f64>,
}

/// Arrival processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalKind {
    /// Open loop, independent clients: exponential gaps. Keys: rate.
    #[default]
    Poisson,
    /// Open loop, gamma gaps: bursty above cv 1, smooth below. Keys: rate, cv.
    Gamma,
    /// Open loop, equal gaps. Keys: rate.
    Constant,
    /// Open loop, a staircase of rates. Keys: steps, cv, repeat.
    Steps,
    /// Open loop, a rate that grows or falls linearly and then stays. Keys: from, to, over, cv.
    Ramp,
    /// Open loop, a rate curve from a file, linear between its points. Keys: file, time_column, rate_column,
    /// scale, cv, repeat.
    RateTable,
    /// Closed loop: each user sends the next request when the last is answered. Keys: concurrency, stagger,
    /// think, think_cv, refused_pause.
    Closed,
    /// All at once. Keys: requests, max_in_flight, refused_pause.
    Burst,
    /// The requests of a file, at their times. Keys: file, format or columns, time_scale.
    Trace,
}

/// A stretch of constant rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateStepFile {
    /// Mean rate; "0 req/s" is a pause.
    pub rate: PerSec,
    /// How long it lasts.
    pub duration: Secs,
}

/// Lengths as written: a number, or a table with `kind`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct LengthFile(pub LengthTable);

/// A distribution of token counts. Which of the keys apply depends on `kind`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LengthTable {
    /// The distribution.
    pub kind: LengthKind,
    /// The length (fixed).
    pub tokens: Option<u32>,
    /// Mean before limits (normal, lognormal, exponential).
    pub mean: Option<f64>,
    /// Standard deviation before limits (normal, lognormal).
    pub std: Option<f64>,
    /// Median, instead of `mean` and together with `sigma` (lognormal).
    pub median: Option<f64>,
    /// Standard deviation of the logarithm, instead of `std` (lognormal).
    pub sigma: Option<f64>,
    /// Smallest length; shorter draws are lifted to it. Default: 1; needed for uniform.
    pub min: Option<u32>,
    /// Largest length; longer draws are cut to it. Default: 1000000; needed for uniform.
    pub max: Option<u32>,
    /// Points `[share, tokens]` of the inverse distribution, shares rising from 0 to 1 (quantiles).
    pub points: Option<Vec<[f64; 2]>>,
    /// CSV file with a column of lengths; may end in `.gz` (empirical).
    pub file: Option<String>,
    /// Name of that column (empirical).
    pub column: Option<String>,
    /// Which row is next: drawn with equal chance, in turn, or each once in an order of the seed's before any comes again (empirical). Default: drawn.
    pub order: Option<RowOrder>,
}

/// Distributions of lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LengthKind {
    /// Always the same. Keys: tokens.
    #[default]
    Fixed,
    /// Every length from min to max alike. Keys: min, max.
    Uniform,
    /// Bell curve. Keys: mean, std, min, max.
    Normal,
    /// Skewed, as real prompts are. Keys: mean and std, or median and sigma; min, max.
    Lognormal,
    /// Memoryless, for queueing theory. Keys: mean, min, max.
    Exponential,
    /// From a table of quantiles, linear in between. Keys: points.
    Quantiles,
    /// Rows of a file. Keys: file, column, order.
    Empirical,
}

impl<'de> Deserialize<'de> for LengthFile {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct LengthVisitor;
        impl<'de> Visitor<'de> for LengthVisitor {
            type Value = LengthFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of tokens, or a table such as { kind = \"normal\", mean = 512, std = 64 }")
            }

            fn visit_i64<E: de::Error>(self, v: i64) -> Result<LengthFile, E> {
                let tokens = u32::try_from(v)
                    .map_err(|_| E::custom(format!("must be from 1 to 4294967295, got {v}")))?;
                Ok(LengthFile(LengthTable {
                    tokens: Some(tokens),
                    ..LengthTable::default()
                }))
            }

            fn visit_u64<E: de::Error>(self, v: u64) -> Result<LengthFile, E> {
                match i64::try_from(v) {
                    Ok(v) => self.visit_i64(v),
                    Err(_) => Err(E::custom(format!("must be from 1 to 4294967295, got {v}"))),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LengthFile, A::Error> {
                LengthTable::deserialize(MapAccessDeserializer::new(map)).map(LengthFile)
            }
        }
        d.deserialize_any(LengthVisitor)
    }
}

impl JsonSchema for LengthFile {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Length".into()
    }

    fn json_schema(g: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let table = g.subschema_for::<LengthTable>();
        schemars::json_schema!({
            "description": "a number of tokens, or a distribution",
            "anyOf": [{ "type": "integer", "minimum": 1 }, table],
        })
    }
}

/// Pairs of lengths from a file.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PairsFile {
    /// CSV file with a header, relative to the scenario file; may end in `.gz`. Rows are drawn with equal chance.
    pub file: String,
    /// Column of the prompt lengths. Default: "input_tokens".
    pub prompt_column: Option<String>,
    /// Column of the output lengths. Default: "output_tokens".
    pub output_column: Option<String>,
}

/// Shared beginnings of prompts.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrefixFile {
    /// Tokens that requests of one group share, in front of their own prompt.
    pub tokens: Option<u32>,
    /// How many different texts there are. Default: 1.
    pub groups: Option<u32>,
    /// Popularity: group k is drawn with weight 1/k^zipf; 0 is uniform. Default: 0.
    pub zipf: Option<f64>,
}

/// Dialogues: each turn sends back all that was said before.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionsFile {
    /// Turns per session; a number or a distribution.
    pub turns: Option<LengthFile>,
    /// Mean pause between an answer and the next turn. Default: "0 s".
    pub think: Option<Secs>,
    /// Coefficient of variation of the pause: 0 is constant, 1 exponential. Default: 1.
    pub think_cv: Option<f64>,
    /// A session ends before its prompt would pass this [tokens]. Default: 1000000.
    pub max_context: Option<u32>,
}

/// Clients that leave on their own account.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelFile {
    /// Share of the requests whose client may leave, 0 to 1.
    pub fraction: Option<Ratio>,
    /// Mean time until it leaves (exponential).
    pub after: Option<Secs>,
}

/// Clients that send again.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetriesFile {
    /// Most times that a request is sent again, 1 to 100.
    pub max: Option<u32>,
    /// Pause before the first retry. Default: "1 s".
    pub backoff: Option<Secs>,
    /// Factor on the pause from one retry to the next, 1 to 100. Default: 2.
    pub factor: Option<f64>,
    /// Each pause is drawn uniformly within this share around its length. Default: 0.
    pub jitter: Option<Ratio>,
    /// What is tried again: rejected, timed_out, failed. Default: ["rejected", "failed"].
    pub on: Option<Vec<RetryOn>>,
}

/// Ends of a request after which its client may send it again.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RetryOn {
    /// Refused on arrival (429, 503).
    Rejected,
    /// Given up by the client or the gateway.
    TimedOut,
    /// Accepted but not served.
    Failed,
}

/// When the run ends. At least one of `requests` and `duration` is needed unless every stream ends by itself.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// Requests sent by all streams together, retries not counted; then the run ends when all are answered.
    /// Default: no limit.
    pub requests: Option<u64>,
    /// Nothing is sent after this. Default: no limit.
    pub duration: Option<Secs>,
    /// Wait for what is under way when nothing more is sent. If false the run stops at `duration`, and what is
    /// under way then counts as in flight. Default: true.
    pub drain: Option<bool>,
    /// Requests sent before this are served but left out of the statistics. Default: "0 s".
    pub warmup: Option<Secs>,
}

/// Latency targets; a request is good when it meets all that are given.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SloFile {
    /// Time to first token. Default: no target.
    pub ttft: Option<Secs>,
    /// Longest mean gap between tokens. Default: no target.
    pub itl: Option<Secs>,
    /// Time per output token after the first. Default: no target.
    pub tpot: Option<Secs>,
    /// Arrival to last token. Default: no target.
    pub e2e: Option<Secs>,
}
