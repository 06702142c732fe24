//! Replays what was measured and says how far the predictions were off.

pub mod report;

pub use report::{Direction, Errors, Report, Row, Summary};
