//! Virtual time and randomness.

pub mod rng;
pub mod time;
pub mod tournament;
