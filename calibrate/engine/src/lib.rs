//! A real CPU inference engine that runs the simulator's schedulers on the wall clock.
//!
//! Start with [`engine`] (replicas behind a router) and [`replica`] (one scheduler and one forward pass, tick by tick);
//! [`executor`] is the contract with the forward pass, and [`model`] computes it. `docs/engine.md` tells the rest.

pub mod engine;
pub mod executor;
pub mod fleet;
pub mod http;
pub mod launch;
pub mod metrics;
pub mod model;
pub mod pace;
pub mod pages;
pub mod policy;
pub mod replay;
pub mod replica;
pub mod request;
pub mod sampling;
pub mod step_log;
pub mod text;
pub mod timing;
