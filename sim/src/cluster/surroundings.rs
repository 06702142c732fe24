//! What surrounds the engine of a replica, on whichever path.

use super::drift::StepTimes;
use super::requests::{Requests, Slot};
use crate::kernel::time::{SimDuration, SimTime};
use crate::metrics::Recorder;
use crate::record::StepRow;

/// What an engine writes to while it advances.
pub struct Out<'a> {
    /// The requests under way.
    pub requests: &'a mut Requests,
    /// The record.
    pub recorder: &'a mut Recorder,
    /// Requests that the engine is done with: true when all tokens were made, false when it dropped them.
    pub done: &'a mut Vec<(Slot, bool)>,
    /// What became of KV that goes from one replica to another.
    pub kv: &'a mut KvNews,
}

/// What an engine says of KV that goes from one replica to another.
#[derive(Debug, Default)]
pub struct KvNews {
    /// Requests whose prefill is done here and that go on elsewhere; their KV stays until it has been fetched.
    pub prefilled: Vec<Slot>,
    /// Requests whose blocks are set aside: so many tokens of KV may come.
    pub wanted: Vec<(Slot, u32)>,
}

/// What surrounds the scheduler of a replica.
pub struct Surroundings {
    /// Index of the replica.
    pub replica: u32,
    /// Seed of the run.
    pub seed: u64,
    /// How long its steps take.
    pub step: StepTimes,
    /// From the end of a step until its tokens reach the client.
    pub output_delay: SimDuration,
}

/// A step that the end of the run at `now` cuts short: the share of it that was done.
pub(crate) fn cut(mut row: StepRow, now: SimTime) -> StepRow {
    if row.end > now {
        let share = now.since(row.start).0 as f64 / row.end.since(row.start).0 as f64;
        row.end = now.max(row.start);
        row.parts.scale(share);
    }
    row
}
