//! A run, recorded.

use sim::record::RunRecord;
use sim::report::RunReport;
use sim::scenario::ScenarioRunError;
use sim::scenario::built::Built;
use sim::simulation::RunOptions;

use crate::{Collector, Limits, Record};

/// Runs `built` and keeps what a record file holds. `wall_s` is asked at the end how long the run took [s].
///
/// # Errors
/// See [`ScenarioRunError`].
pub fn run(
    built: Built,
    options: &RunOptions,
    limits: Limits,
    wall_s: impl FnOnce() -> f64,
) -> Result<(RunRecord, Record), ScenarioRunError> {
    let collector = Collector::new(limits);
    let run = built.run_watched(options, Some(Box::new(collector.clone())))?;
    let report = RunReport::new(&run, wall_s());
    let record = Record::new(&run, report, collector.take());
    Ok((run, record))
}
