//! Discrete-event simulator of LLM serving.

pub mod kernel;
pub mod policy;
pub mod record;
pub mod request;
pub mod workload;
