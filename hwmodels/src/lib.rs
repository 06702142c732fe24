//! What hardware, links, instances and models are, and how long a step takes on them.
//!
//! Pure: no clock and no randomness; what it reads is its catalog.
//!
//! ```text
//!  catalog: accelerators, links, instances, models (files in the binary, and the user's)
//!     |
//!     v
//!  deployment: model x instance x layout, checked --> memory: weights, activations, KV blocks, or why it does not fit
//!     |
//!     v
//!  operator_steps::OperatorSteps: a step walked operator by operator (ops: GEMM, attention, experts, collectives), with the parameters of
//!     |                   profiles: fitted on measurements, with their errors
//!     v
//!  step::StepModel: a batch's sums in, its time and what bound it out
//! ```
//!
//! A step's time depends on its batch through a few sums ([`BatchStats`]), so that predicting it costs the same for one sequence and for
//! a thousand.
//!
//! ```
//! use hwmodels::{BatchStats, LinearStep, StepModel};
//!
//! // 5 ms to read the weights, 30 us per token.
//! let model = LinearStep { base: 5e-3, per_token: 30e-6, ..LinearStep::default() };
//! let mut batch = BatchStats::default();
//! batch.add_decode(1000); // one sequence, with 1000 tokens of context
//! assert!((model.step(&batch).latency - 5.03e-3).abs() < 1e-9);
//! ```

pub mod accelerator;
pub mod batch;
pub mod blocks;
pub mod catalog;
pub mod deployment;
pub mod doubt;
pub mod dtype;
pub mod engine;
pub mod engine_cost;
pub mod error;
pub mod evidence;
pub mod files;
pub mod fitted;
pub mod hf_config;
pub mod indexer;
pub mod instance;
pub mod launches;
pub mod layout;
pub mod link;
pub mod memory;
pub mod mig;
pub mod model;
mod model_blocks;
pub mod neuron;
pub mod operator_steps;
pub mod ops;
mod packed;
pub mod power;
pub mod profile;
pub mod profiles;
pub mod recurrence;
pub mod roofline;
pub mod startup;
pub mod step;
pub mod units;
mod weights;

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
pub use operator_steps::{OperatorSteps, OperatorStepsSpec};
pub use profile::{Basis, Profile};
pub use roofline::Roofline;
pub use step::{LinearStep, Parts, Scaled, StepCost, StepModel};
