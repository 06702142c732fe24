//! Decisions from the simulator.
//!
//! - [`plan`]: a model, a load, objectives and hardware in; a ranking of deployments out, with its doubt
//! - [`capacity`]: how many replicas for each load
//! - [`whatif`]: each single change worth trying, ranked by its effect
//! - [`judge`]: whether a deployment keeps its objectives in steady state, for all of them; [`interval`]: how sure that is
//! - [`sweep`]: a scenario over axes of its keys, on all cores, resumable, in shards
//!
//! All of them run scenarios of `sim` and nothing else: a figure of theirs is one that `servetwin run` gives for the scenario they name.
//! No file is written and nothing is printed here but by [`sweep`], whose journal is a file; commands do that.
//! Results do not depend on the number of threads.

pub mod capacity;
pub mod conditions;
mod error;
pub mod fleet;
mod hash;
pub mod interval;
pub mod judge;
pub mod loads;
pub mod plan;
pub mod requests;
pub mod schema;
pub mod smallest;
pub mod sweep;
pub mod whatif;
mod world;

pub use error::Error;
pub use world::World;
