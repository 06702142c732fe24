//! What a stream of requests is: checked values, before any file is opened or number drawn.

use std::path::PathBuf;

use hwmodels::units::{PerSec, Ratio, Secs, plain};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::trace::{TraceColumns, TraceFormat};

pub use super::tokens::MAX_TOKENS;

/// Lowest rate of an arrival process [1/s]: one request in 32 years.
pub const MIN_RATE: f64 = 1e-9;

/// Highest request rate [1/s]: virtual time has nothing between two nanoseconds.
pub const MAX_RATE: f64 = 1e9;

/// A rate that an arrival process can have.
///
/// # Errors
/// A rate outside of [`MIN_RATE`] to [`MAX_RATE`], with what would be right.
pub fn check_rate(per_sec: f64) -> Result<PerSec, String> {
    let rate = PerSec::new(per_sec).ok();
    rate.filter(|r| (MIN_RATE..=MAX_RATE).contains(&r.per_sec()))
        .ok_or_else(|| {
            format!(
                "must be from {MIN_RATE:e} to {MAX_RATE:e} req/s, got {} req/s",
                plain(per_sec)
            )
        })
}

/// Default of the largest drawn length [tokens].
pub const DEFAULT_MAX_TOKENS: u32 = 1_000_000;

/// One stream of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSpec {
    /// Name in reports, and of its random streams.
    pub name: String,
    /// The model that they ask for, where several are served.
    pub model: Option<String>,
    /// When requests are sent.
    pub arrival: Arrival,
    /// How long prompts and outputs are.
    pub lengths: Lengths,
    /// `max_tokens` of the calls [tokens]; `None`: the output length. Longer outputs are cut to it.
    pub max_tokens: Option<u32>,
    /// Shared beginnings.
    pub prefix: Option<Prefix>,
    /// Dialogues.
    pub sessions: Option<Sessions>,
    /// The client gives up after this long.
    pub timeout: Option<Secs>,
    /// Clients that leave on their own account.
    pub cancel: Option<Cancel>,
    /// Clients that send again.
    pub retries: Option<Retries>,
    /// Priority, lower is more urgent.
    pub priority: i32,
    /// How tokens are chosen.
    pub sampling: SamplingSpec,
    /// Requests after which the stream stops, retries not counted.
    pub requests: Option<u64>,
}

/// How the tokens of a stream are chosen: the parameters of the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingSpec {
    /// Temperature; 0 takes the most likely token.
    pub temperature: f64,
    /// Only so many of the most likely tokens; 0: all.
    pub top_k: u32,
    /// Only the most likely tokens of this total probability; 1: all.
    pub top_p: Option<f64>,
    /// Whether any penalty for repetition is set.
    pub penalties: bool,
    /// Log-probabilities returned for each token.
    pub logprobs: u32,
}

impl SamplingSpec {
    /// What of it costs time.
    pub fn work(&self) -> hwmodels::ops::Sampling {
        hwmodels::ops::Sampling {
            random: self.temperature > 0.0,
            // One candidate is the most likely token.
            top_k: self.top_k > 0,
            top_p: self.top_p.is_some_and(|p| p < 1.0),
            penalties: self.penalties,
            logprobs: self.logprobs > 0,
        }
    }
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival {
    /// Exponential gaps of this mean rate, above zero.
    Poisson {
        /// Mean rate.
        rate: PerSec,
    },
    /// Gamma gaps.
    Gamma {
        /// Mean rate, above zero.
        rate: PerSec,
        /// Coefficient of variation of the gaps, 0 to 100.
        cv: f64,
    },
    /// Equal gaps, the first request at the start.
    Constant {
        /// Rate, above zero.
        rate: PerSec,
    },
    /// A staircase of rates.
    Steps {
        /// Rate and length of each stretch; at least one, not all zero.
        steps: Vec<(PerSec, Secs)>,
        /// Coefficient of variation of the gaps where the rate is constant.
        cv: f64,
        /// Start again at the end.
        repeat: bool,
    },
    /// A linear change of rate, held at the end.
    Ramp {
        /// First rate.
        from: PerSec,
        /// Last rate, above zero.
        to: PerSec,
        /// Length of the change, above zero.
        over: Secs,
        /// Coefficient of variation of the gaps where the rate is constant.
        cv: f64,
    },
    /// A rate curve from a file.
    RateTable {
        /// CSV file.
        file: PathBuf,
        /// Column of times [s].
        time_column: String,
        /// Column of rates [req/s].
        rate_column: String,
        /// Factor on the rates, above zero.
        scale: f64,
        /// Coefficient of variation of the gaps where the rate is constant.
        cv: f64,
        /// Start again at the end.
        repeat: bool,
    },
    /// Users that each have one request under way.
    Closed {
        /// Users, at least one.
        concurrency: u32,
        /// Pause between the first requests of consecutive users.
        stagger: Secs,
        /// Mean pause after an answer.
        think: Secs,
        /// Its coefficient of variation.
        think_cv: f64,
        /// Least pause after a refusal, so that a refused user does not send at once again for ever.
        refused_pause: Secs,
    },
    /// All at once.
    Burst {
        /// Requests, at least one.
        requests: u64,
        /// Most requests under way.
        max_in_flight: Option<u32>,
        /// Least pause before a refused request's place is taken.
        refused_pause: Secs,
    },
    /// The requests of a file.
    Trace {
        /// The file.
        file: PathBuf,
        /// Its format.
        format: TraceFormat,
        /// Its columns, in place of a format.
        columns: Option<TraceColumns>,
        /// Factor on its times, above zero.
        time_scale: f64,
    },
}

/// How long prompts and outputs are.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// Drawn apart.
    Separate {
        /// Prompts [tokens].
        prompt: Length,
        /// Outputs [tokens].
        output: Length,
    },
    /// Drawn together from the rows of a file.
    Pairs {
        /// CSV file.
        file: PathBuf,
        /// Column of prompt lengths.
        prompt_column: String,
        /// Column of output lengths.
        output_column: String,
    },
    /// As the trace says.
    OfTrace,
}

/// A distribution of token counts. Every draw lies in 1..=[`MAX_TOKENS`].
#[derive(Clone, Debug, PartialEq)]
pub enum Length {
    /// Always the same.
    Fixed(u32),
    /// Every length from `min` to `max` alike.
    Uniform {
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Normal, rounded and clamped.
    Normal {
        /// Mean before the limits.
        mean: f64,
        /// Standard deviation before the limits.
        std: f64,
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Lognormal given by its moments, rounded and clamped.
    Lognormal {
        /// Mean before the limits.
        mean: f64,
        /// Standard deviation before the limits.
        std: f64,
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Lognormal given by its median, rounded and clamped.
    LognormalMedian {
        /// Median before the limits.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Exponential, rounded and clamped.
    Exponential {
        /// Mean before the limits.
        mean: f64,
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Inverse distribution through `(share, tokens)` points, linear in between.
    Quantiles(Vec<[f64; 2]>),
    /// Rows of a file.
    Empirical {
        /// CSV file.
        file: PathBuf,
        /// Column.
        column: String,
        /// Which row is next.
        order: RowOrder,
    },
}

/// In which order the rows of a file are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowOrder {
    /// Each drawn with equal chance.
    #[default]
    Drawn,
    /// One after another, from the first again after the last.
    InTurn,
    /// Each once in an order that the seed gives, then each once again in another one.
    Shuffled,
}

/// Shared beginnings of prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefix {
    /// Tokens shared by a group.
    pub tokens: u32,
    /// Different texts.
    pub groups: u32,
    /// Exponent of their popularity.
    pub zipf: f64,
}

/// Dialogues.
#[derive(Clone, Debug, PartialEq)]
pub struct Sessions {
    /// Turns per session.
    pub turns: Length,
    /// Mean pause before the next turn.
    pub think: Secs,
    /// Its coefficient of variation.
    pub think_cv: f64,
    /// Prompts stay within this [tokens].
    pub max_context: u32,
}

/// Clients that leave on their own account.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cancel {
    /// Share of requests.
    pub fraction: Ratio,
    /// Mean time until the client leaves (exponential).
    pub after: Secs,
}

/// Clients that send again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retries {
    /// Most retries of one request.
    pub max: u32,
    /// Pause before the first.
    pub backoff: Secs,
    /// Factor on the pause from one to the next.
    pub factor: f64,
    /// The pause is drawn uniformly from (1 - jitter, 1 + jitter) times its length.
    pub jitter: Ratio,
    /// After a refusal.
    pub on_rejected: bool,
    /// After a time-out.
    pub on_timed_out: bool,
    /// After a failure.
    pub on_failed: bool,
}

/// What ends the sending.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Requests of all streams together, retries not counted.
    pub requests: Option<u64>,
    /// Nothing is sent after this.
    pub duration: Option<Secs>,
}

/// A workload that cannot be made: which key of the stream is at fault, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct WorkloadError {
    /// Key path within the stream, e.g. `arrival.file`.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl WorkloadError {
    /// An error at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> WorkloadError {
        WorkloadError {
            path: path.into(),
            message: message.into(),
        }
    }
}
