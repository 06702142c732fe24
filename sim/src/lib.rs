//! Discrete-event simulator of LLM serving.
//!
//! A scenario says what is deployed and what is sent to it; a run plays that on a virtual clock; a record holds what happened; reports
//! read records.
//!
//! ```text
//!  scenario file            workload: when requests come, how long they are, what they share
//!       |                      |
//!       v                      v
//!  scenario::Scenario --> run::Run ---------------------------------------------> record::RunRecord --> report
//!    (checked,              | router: which replica                                 a row per request,
//!     defaults visible)     | cluster::replica: front desk -> engine                per step; series;
//!                           |   engine = policy (what a step holds)                 distributions
//!                           |          + step model (how long it takes: hwmodels)
//!                           |          + kv (where sequences' KV lies)
//! ```
//!
//! Where to begin: [`scenario::Scenario`] (a text in, a [`run::Run`] or a record out), [`run`] (who is advanced when),
//! [`policy`] (the serving engines, one a file). The examples are short programs: `cargo run -p sim --example queue` (a queue whose waiting
//! time theory knows), `one_replica`, `fleet` (a router before replicas that come and go), `own_policy` (a scheduling policy of your own).
//!
//! - [`scenario`] files as written, checked, resolved; what is built from them
//! - [`workload`] arrivals, lengths, sessions, traces, mixes
//! - [`run`] a run that is held: advanced, looked at, changed, cancelled; [`simulation`] what is run; [`observer`] who watches
//! - [`cluster`] replicas, their requests and events, routers, and the order of things at one instant
//! - [`engines`] the serving engines' keys and start-up, a file each; [`policy`] their schedulers; [`fast`] vLLM's in lockstep, with the same result; [`kv`] KV blocks and prefix caches
//! - [`control`] autoscaling controllers as state machines of their own: HPA, KEDA, the metric path, the Cluster Autoscaler
//! - [`kube`] the cluster around the replicas: nodes, pods, faults, and the controllers' turns in a run
//! - [`metrics`] definitions, distributions, series; [`record`] what a run leaves; [`report`] what people and machines read of it
//! - [`kernel`] the clock, named random streams, the earliest of many clocks
//!
//! What always holds stands in `docs/invariants.md`: the same seed gives the same bytes on any number of threads; requests and KV blocks
//! are conserved; time never goes back.

pub mod cluster;
pub mod control;
pub mod engines;
pub mod fast;
pub mod kernel;
pub mod kube;
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
