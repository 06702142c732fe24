//! A real CPU inference engine that runs the simulator's schedulers on the wall clock.

pub mod executor;
pub mod kernels;
pub mod model;
