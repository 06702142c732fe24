//! How long replicas were there.

use crate::kernel::time::SimTime;
use crate::record::RunRecord;

/// How long each replica was there in the measurement window [ns]; `None`: all of them from start to end.
pub(super) fn lives(record: &RunRecord) -> Option<Vec<f64>> {
    let around = record.cluster.as_ref()?;
    let start = SimTime::ZERO + record.warmup;
    let lives = around.engine_lives(record.replicas.len()).into_iter();
    Some(
        lives
            .map(|(from, until)| until.since(from.max(start)).0 as f64)
            .collect(),
    )
}
