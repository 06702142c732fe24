//! A request: what the client asks for, and what became of it.

use crate::kernel::time::{SimDuration, SimTime};

/// Index of a request within a run; arrival order for open-loop workloads.
pub type ReqId = u32;

/// A stretch of prompt content. Equal (`content`, offset) pairs are equal tokens, so two requests share a
/// prefix exactly as far as their segments agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Identity of the content: a shared system prompt, a session's dialogue, a trace's block hash.
    pub content: u64,
    /// Tokens taken from its start [tokens].
    pub tokens: u32,
}

/// One request as the client sends it.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSpec {
    /// When the client sends it.
    pub arrival: SimTime,
    /// Prompt length [tokens], at least 1.
    pub prompt_tokens: u32,
    /// Tokens the model will really produce before it stops [tokens], at least 1.
    pub output_tokens: u32,
    /// `max_tokens` of the call: what reserving schedulers set aside [tokens], at least `output_tokens`.
    pub max_tokens: u32,
    /// Index of the workload stream it belongs to.
    pub stream: u16,
    /// Priority, lower is more urgent (vLLM's convention).
    pub priority: i32,
    /// Session it belongs to (routing affinity, follow-up turns), if any.
    pub session: Option<u64>,
    /// Prompt content from the start. Empty: the whole prompt is unique to this request. If the segments
    /// cover less than `prompt_tokens`, the rest is unique.
    pub segments: Vec<Segment>,
    /// Content identity of the generated tokens when a later turn will send them back; 0: never.
    pub output_content: u64,
    /// The client gives up this long after sending, if at all.
    pub timeout: Option<SimDuration>,
    /// The source's own mark, handed back when the request ends (index of a user, of a retry, ...).
    pub tag: u64,
}

impl Default for RequestSpec {
    /// One token in, one out, sent at the start, unique and patient.
    fn default() -> Self {
        RequestSpec {
            arrival: SimTime::ZERO,
            prompt_tokens: 1,
            output_tokens: 1,
            max_tokens: 1,
            stream: 0,
            priority: 0,
            session: None,
            segments: Vec::new(),
            output_content: 0,
            timeout: None,
            tag: 0,
        }
    }
}

/// How a request ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All its tokens reached the client.
    Finished,
    /// Refused on arrival (429, 503, 422: the reason says which).
    Rejected(RejectReason),
    /// The client gave up first.
    TimedOut,
    /// Accepted but could not be served (e.g. never fits, replica lost).
    Failed,
    /// Neither ended when the run did.
    InFlight,
}

/// Why a request was refused, with the status code that the named system answers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// Too many requests at once (TGI: HTTP 429 `overloaded`).
    Overloaded,
    /// Queue limit reached (vLLM, Triton: HTTP 503).
    QueueFull,
    /// Prompt or prompt + max_tokens beyond a limit (HTTP 422, 400).
    TooLong,
    /// Its KV can never fit.
    NeverFits,
    /// No replica was ready, or none within the time for which the gateway holds requests (HTTP 502, 503).
    NoEndpoint,
}

impl RejectReason {
    /// The HTTP status a client would see.
    pub fn http_status(self) -> u16 {
        match self {
            RejectReason::Overloaded => 429,
            RejectReason::QueueFull | RejectReason::NoEndpoint => 503,
            RejectReason::TooLong | RejectReason::NeverFits => 422,
        }
    }
}
