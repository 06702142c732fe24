//! The planner over HTTP: plans, runs, what-ifs and capacity tables for dashboards and portals.
//!
//! - [`request`] what a caller sends; [`work`] the answer to it
//! - [`jobs`] answers under way, their queue, their end
//! - [`problem`] errors as callers read them
//! - [`routes`] paths and methods; [`openapi`] their description for machines
//! - [`server`] connections
//!
//! A request names no file of the server: what it refers to is in the program (catalog, profiles) or in the request itself. A caller can take
//! no more memory and time than [`Limits`] allow.

pub mod answer;
pub mod jobs;
pub mod openapi;
pub mod problem;
pub mod request;
pub mod routes;
pub mod server;
pub mod work;

use std::time::Duration;

/// How much callers may take.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Largest body of a request [bytes].
    pub body_bytes: usize,
    /// Jobs that run at once; each uses all cores.
    pub jobs: usize,
    /// Jobs that wait.
    pub queue: usize,
    /// Longest time that a job runs.
    pub job_time: Duration,
    /// Ended jobs that are kept.
    pub kept: usize,
    /// Results that are kept, together [bytes].
    pub kept_bytes: usize,
    /// Requests of a simulated run.
    pub requests: u64,
    /// Replicas of a simulated deployment.
    pub replicas: u32,
    /// Candidates of a plan.
    pub candidates: usize,
    /// Key that callers send as `Authorization: Bearer KEY`; none: no key is asked for.
    pub key: Option<String>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 8 << 20,
            jobs: 1,
            queue: 16,
            job_time: Duration::from_secs(300),
            kept: 100,
            kept_bytes: 256 << 20,
            requests: 1_000_000,
            replicas: 1024,
            candidates: 20_000,
            key: None,
        }
    }
}
