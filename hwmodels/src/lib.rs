//! Hardware and model catalog, and how long a step takes on it.
//!
//! Pure: no clock, no randomness, no I/O beyond reading the catalog.

pub mod accelerator;
pub mod batch;
pub mod catalog;
pub mod deployment;
pub mod dtype;
pub mod engine;
pub mod engine_cost;
pub mod error;
pub mod evidence;
pub mod fitted;
pub mod hf_config;
pub mod instance;
pub mod layout;
pub mod link;
pub mod memory;
pub mod model;
pub mod neuron;
pub mod ops;
pub mod profile;
pub mod profiles;
pub mod replica;
pub mod roofline;
pub mod step;
pub mod units;

pub use accelerator::Accelerator;
pub use batch::BatchStats;
pub use catalog::Catalog;
pub use dtype::Dtype;
pub use engine::EngineKind;
pub use engine_cost::EngineCost;
pub use error::Error;
pub use evidence::Evidence;
pub use fitted::FittedStep;
pub use instance::Instance;
pub use layout::Layout;
pub use link::Link;
pub use memory::{MemoryPlan, MemorySettings};
pub use model::ModelArch;
pub use profile::{Basis, Profile};
pub use replica::{ReplicaModel, ReplicaSpec};
pub use roofline::Roofline;
pub use step::{LinearStep, Parts, StepCost, StepModel};
