//! `servetwin sweep`: one scenario over axes of its keys.
//!
//! - [`axes`]: the sweep file, and the points it asks for; [`journal`]: what is done, on disk, line by line
//! - [`run`]: makes what is not done yet, on all cores; [`result`]: the table, in the order of the points; `table`: the same as Parquet
//!
//! A run's result is a line of the journal, written when the run is over. A sweep that is killed goes on where its journal ends; since results are
//! put in order only when all are there, they are the same bytes as without the kill.

pub mod axes;
pub mod journal;
pub mod result;
pub mod run;
mod table;

pub use axes::{Point, Sweep};
pub use result::SweepResult;
pub use run::{Shard, merge, run};
