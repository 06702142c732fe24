//! A row per request and a row per step.

use crate::kernel::time::SimTime;
use crate::policy::Blocked;
use crate::request::{Outcome, ReqId};

/// What became of one request. Instants the request never reached are [`SimTime::NEVER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRow {
    /// Its index.
    pub id: ReqId,
    /// Workload stream.
    pub stream: u16,
    /// Replica that served it.
    pub replica: u32,
    /// Prompt length [tokens].
    pub prompt_tokens: u32,
    /// Prompt tokens found in the prefix cache when first scheduled [tokens].
    pub cached_tokens: u32,
    /// Tokens the client got [tokens].
    pub output_tokens: u32,
    /// Times it lost its KV.
    pub preemptions: u32,
    /// Client sends.
    pub arrival: SimTime,
    /// First scheduled in a step.
    pub first_scheduled: SimTime,
    /// First token reaches the client.
    pub first_token: SimTime,
    /// Last token reaches the client, or the instant of refusal, time-out or failure.
    pub end: SimTime,
    /// How it ended.
    pub outcome: Outcome,
}

/// One step of one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRow {
    /// Replica.
    pub replica: u32,
    /// Start of the step.
    pub start: SimTime,
    /// Its tokens are known.
    pub end: SimTime,
    /// What it held.
    pub stats: hwmodels::BatchStats,
    /// Where its time went.
    pub parts: hwmodels::Parts,
    /// Running requests after the step was chosen.
    pub running: u32,
    /// Requests waiting.
    pub waiting: u32,
    /// KV blocks in use.
    pub kv_used_blocks: u64,
    /// What kept waiting requests out of the step.
    pub blocked: Blocked,
}
