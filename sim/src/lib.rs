//! Discrete-event simulator of LLM serving.

pub mod cluster;
pub mod fast;
pub mod files;
pub mod kernel;
pub mod kv;
pub mod metrics;
pub mod observer;
pub mod policy;
pub mod record;
pub mod report;
pub mod request;
pub mod run;
pub mod scenario;
pub mod simulation;
pub mod workload;
