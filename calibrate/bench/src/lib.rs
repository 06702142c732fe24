//! Benchmark harness: drives a live endpoint with a scenario's workload and records what it did.
//!
//! - [`endpoint`] the client: sends requests, times every chunk
//! - [`prometheus`] reads what an engine says of itself at `/metrics`
//! - [`probe`] finds out what an endpoint is and what it takes

pub mod endpoint;
pub mod probe;
pub mod prometheus;
#[cfg(test)]
mod testing;
