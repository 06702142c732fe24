//! A run from its start to its end in one go.

use super::{Run, RunError, RunOptions};
use crate::record::{RunInfo, RunRecord};
use crate::simulation::Simulation;
use crate::workload::Workload;

impl Simulation {
    /// Runs `workload` to its end, or to that of the options.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run(
        &self,
        workload: &mut dyn Workload,
        options: &RunOptions,
        info: RunInfo,
    ) -> Result<RunRecord, RunError> {
        let mut run = Run::new(self, Box::new(workload), options)?;
        run.run_to_end()?;
        run.finish(info)
    }
}
