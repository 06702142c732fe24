//! A step between its submission and its end.

use sim::policy::StepPlan;
use sim::record::StepRow;
use sim::request::ReqId;

use crate::executor::StepTimes;
use crate::request::{Failure, Finish};
use crate::step_log::LogEntry;

/// A planned step.
pub(super) struct InFlight {
    pub(super) plan: StepPlan,
    pub(super) row: StepRow,
    pub(super) preempted: Vec<u64>,
    pub(super) entries: Vec<LogEntry>,
    /// Time spent on planning and building it [s].
    pub(super) prepared: f64,
    /// Time spent on handing out its tokens [s].
    pub(super) handed_out: f64,
    /// It was not even taken in, or a step before it has failed.
    pub(super) failed: Option<String>,
    pub(super) submitted: bool,
}

/// The oldest step, with its tokens handed out.
pub(super) struct Collected {
    pub(super) step: InFlight,
    pub(super) times: StepTimes,
    pub(super) sample: f64,
    pub(super) stopped: Vec<ReqId>,
    /// How those ended, in the same order.
    pub(super) finishes: Vec<Finish>,
    pub(super) failure: Option<String>,
    /// Sequences that cannot go on, and why.
    pub(super) broken: Vec<(ReqId, Failure)>,
}
