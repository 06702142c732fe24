//! Hardware and model catalog, and how long a step takes on it.
//!
//! Pure: no clock, no randomness, no I/O beyond reading the catalog.

pub mod accelerator;
pub mod batch;
pub mod dtype;
pub mod engine;
pub mod evidence;
pub mod layout;
pub mod model;
pub mod ops;
pub mod profile;
pub mod step;
pub mod units;

pub use accelerator::Accelerator;
pub use batch::BatchStats;
pub use dtype::Dtype;
pub use engine::EngineKind;
pub use evidence::Evidence;
pub use layout::Layout;
pub use model::ModelArch;
pub use profile::Profile;
pub use step::{LinearStep, Parts, StepCost, StepModel};
