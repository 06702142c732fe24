//! Workloads: where requests come from, and how their clients react to what they get.

pub mod arrival;
pub mod input;
pub mod lengths;
pub mod mix;
mod source;
pub mod spec;
pub mod stream;
pub mod synth;
pub mod tokens;
pub mod trace;

pub use mix::Mix;
pub use spec::{Arrival, Length, Lengths, Limits, StreamSpec, WorkloadError};
pub use trace::TraceFormat;

pub use source::{RequestEnd, Workload};
