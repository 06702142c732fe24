//! From measured runs to profiles.

pub mod collectives;
pub mod fit;
pub mod neuron;
pub mod validate;
