//! One request of a run, as its client saw it.

use sim::request::{Outcome, RejectReason, RequestSpec};

use crate::endpoint::{ErrorKind, RequestTrace};

/// One request of a run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// As the workload asked for it; `arrival` is when it was due.
    pub spec: RequestSpec,
    /// When it was due, after the run's start [ns].
    pub planned_ns: u64,
    /// When it was sent, after the run's start [ns].
    pub sent_ns: u64,
    /// What its client saw.
    pub trace: RequestTrace,
}

impl Sample {
    /// How it ended, in the words of records.
    pub fn outcome(&self) -> Outcome {
        match self.trace.error.as_ref().map(|e| e.kind) {
            None => Outcome::Finished,
            Some(ErrorKind::Timeout) => Outcome::TimedOut,
            Some(ErrorKind::Cancelled) => Outcome::InFlight,
            Some(ErrorKind::Status(429)) => Outcome::Rejected(RejectReason::Overloaded),
            Some(ErrorKind::Status(503)) => Outcome::Rejected(RejectReason::QueueFull),
            Some(ErrorKind::Status(400 | 413 | 422)) => Outcome::Rejected(RejectReason::TooLong),
            Some(_) => Outcome::Failed,
        }
    }

    /// How late it was sent [ns].
    pub fn lateness_ns(&self) -> u64 {
        self.sent_ns.saturating_sub(self.planned_ns)
    }
}
