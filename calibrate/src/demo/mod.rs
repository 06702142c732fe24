//! The closed loop: loads measured on the bundled engine, a step model fitted on some, the others predicted.
//!
//! - [`cases`] the loads: which are fitted, which are held out, and the scenario of each
//! - [`way`] what a request spends outside of steps
//! - [`scaling`] a fleet under an autoscaler: what was measured against what was predicted, second by second
//! - [`table`] measured beside predicted, with the errors and the run-to-run noise
//!
//! The command `servetwin demo` starts engines, puts the loads on them and fits; here is what it decides and reports.

pub mod cases;
pub mod scaling;
pub mod table;
pub mod way;

pub use cases::{BUSY, CASES, Case, Paces, order};
pub use table::{Failed, Figures, Measured, Table};
