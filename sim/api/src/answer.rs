//! Answers that are no result of a job.

use serde::{Deserialize, Serialize};

use crate::jobs::{Counts, JobView};

/// Longest time that an answer waits for a job's end [s].
pub const MOST_WAIT_S: f64 = 60.0;

/// `GET /health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Health {
    /// `ok`, or `stopping`.
    pub status: String,
    /// Version of servetwin.
    pub version: String,
    /// How many jobs there are.
    pub jobs: Counts,
}

/// `GET /v1/jobs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct JobList {
    /// All jobs, the oldest first.
    pub jobs: Vec<JobView>,
}
