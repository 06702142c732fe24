//! Tests of the simulator from outside, a file for each subject: `cargo test -p sim --test all held_runs` runs one of them.
//!
//! They are one program, since each program of tests takes long to link.

mod cluster;
mod cluster_actuation;
mod cluster_base;
mod cluster_controllers;
mod cluster_faults;
mod cluster_on_demand;
mod cluster_pools;
mod cluster_random;
mod cluster_reports;
mod cluster_runs;
mod cluster_starts;
mod common;
mod every_engine;
mod fast_equals_reference;
mod fitted_profile;
mod gateway;
mod held_runs;
mod hpa;
mod invariants;
mod pools;
mod queueing;
mod ranges;
mod records;
mod scenarios;
mod schemas;
mod sglang_apart;
mod stale;
mod vllm_v1_rules;
