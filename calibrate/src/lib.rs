//! From measured runs to profiles.

pub mod collectives;
pub mod demo;
pub mod drift;
pub mod endpoint;
pub mod fit;
pub mod neuron;
pub mod operators;
pub mod serving;
pub mod statistics;
pub mod steps;
pub mod validate;
