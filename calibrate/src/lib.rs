//! From measured runs to profiles.

pub mod fit;
pub mod neuron;
pub mod validate;
