//! What is measured: each metric defined once, its distribution, and the recorder that a run feeds.

pub mod course;
pub mod definition;
pub mod distribution;
pub mod fingerprint;
pub mod flow;
pub mod interval;
pub mod objective;
pub mod recorder;
pub mod series;

pub use definition::{Metric, Slo};
pub use distribution::Distribution;
pub use objective::Objective;
pub use recorder::{RecordOptions, Recorder};
