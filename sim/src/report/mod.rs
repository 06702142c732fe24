//! Records turned into what people and machines read. The only place where nanoseconds become milliseconds.
//!
//! - [`summary`] the JSON contract of `run --json`, and what every other form is made from
//! - [`text`] the report on the terminal, [`headline`] its first screen
//! - [`slo`] whether the objective holds, [`diagnosis`] what limits the run, [`outcomes`] what became of its requests
//! - [`replications`], [`draws`], [`compare`], [`curve`] several runs at once
//! - [`stationarity`] whether a run's figures would grow with its length
//! - [`expect`] conditions such as `ttft.p99 < 500 ms`
//! - [`csv`] tables of requests, steps and the time series
//! - [`cluster`] nodes, pods, decisions and cost of a run in a cluster, [`deployments`] what each pool had of it, [`cluster_csv`] their tables
//! - [`starts`] what TTFT owes to replicas that were starting
//! - [`swaps`] models that were loaded on demand
//! - [`actuation`] vLLM instances that slept and woke
//! - [`pools`] pools of replicas, several models, KV that goes between pools
//! - [`autoscale`] settings of an autoscaler beside each other
//! - [`trace`] a trace that Perfetto opens

pub mod actuation;
pub mod autoscale;
pub mod cluster;
pub mod cluster_csv;
pub mod compare;
mod compare_words;
pub mod counts;
pub mod csv;
pub mod curve;
pub mod deployments;
pub mod diagnosis;
pub mod doubt;
pub mod draws;
pub mod expect;
pub mod figures;
pub mod headline;
pub mod keys;
pub mod latency;
mod latency_line;
mod lives;
pub mod outcomes;
pub mod pools;
mod pools_text;
pub mod replications;
pub mod schema;
pub mod slo;
pub mod starts;
pub mod stationarity;
pub mod summary;
pub mod swaps;
pub mod text;
pub mod trace;
pub mod trust;

pub use expect::Expectation;
pub use summary::{RunReport, RunStats};
