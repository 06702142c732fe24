//! Benchmark harness: drives a live endpoint with a scenario's workload and records what it did.
//!
//! - [`endpoint`] the client: sends requests, times every chunk
//! - [`prometheus`] reads what an engine says of itself at `/metrics`
//! - [`probe`] finds out what an endpoint is and what it takes
//! - [`prompts`] writes prompts of exact length that share what the workload says they share
//! - [`sharing`] what of them a prefix cache may know, and what it knew
//! - [`driver`] keeps the schedule and collects the record
//! - [`session`] all of that in one call: prepare an endpoint, run scenarios on it
//! - [`failures`] whether enough was answered for the figures to mean anything
//! - [`report`] what it found, for people and machines
//! - [`printable`] text from a server, made fit for a terminal
//! - [`formats`] reads and writes the result files of other benchmarks
//! - [`sweep`] several loads in one go
//! - [`client_csv`] a table of what only a client knows
//! - [`self_test`] what the harness itself costs, against [`echo`], a server that streams on schedule

pub mod client_csv;
pub mod driver;
pub mod echo;
pub mod endpoint;
pub mod failures;
pub mod formats;
pub mod printable;
pub mod probe;
pub mod prometheus;
pub mod prompts;
pub mod report;
pub mod self_test;
pub mod server_figures;
pub mod session;
pub mod sharing;
pub mod sweep;
#[cfg(test)]
mod testing;
pub mod tokenizer;
