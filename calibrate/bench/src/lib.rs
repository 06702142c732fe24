//! Benchmark harness: drives a live endpoint with a scenario's workload and records what it did.
