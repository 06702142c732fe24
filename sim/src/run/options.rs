//! How to run, and why a run could not be made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::kernel::time::SimTime;
use crate::metrics::RecordOptions;
use crate::record::RecordError;

/// Which code advances the replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// The fast path where it applies, the reference path elsewhere.
    #[default]
    Auto,
    /// Step by step, sequence by sequence.
    Reference,
    /// The fast path, or an error that says why it does not apply.
    Fast,
}

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Which code advances the replicas. Leaves no trace in the record.
    pub path: Path,
    /// What to keep.
    pub record: RecordOptions,
    /// The run ends here even if requests are under way; `None`: when all have ended.
    pub until: Option<SimTime>,
    /// Raised by one with each request that ends, for progress bars.
    pub progress: Option<Arc<AtomicU64>>,
    /// Set by whoever wants the run to stop: it then stops between two instants.
    pub cancel: Option<Arc<AtomicBool>>,
    /// Checks what must always hold at every instant (slow; panics when it does not). For tests.
    pub check: bool,
}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Nothing to send requests to.
    #[error("the deployment has no replica: give at least one")]
    NoReplica,
    /// The fast path was demanded.
    #[error("replica {replica} cannot take the fast path: {reason}; use the automatic choice")]
    NotFast {
        /// Index of the replica.
        replica: u32,
        /// What stands in the way.
        reason: &'static str,
    },
    /// A workload announced a request for an instant that had passed.
    #[error(
        "the workload announced a request at {announced:?} when the clock already showed {now:?}"
    )]
    WorkloadWentBack {
        /// What it said.
        announced: SimTime,
        /// The clock.
        now: SimTime,
    },
    /// Request ids are 32 bits wide.
    #[error("the workload offers more than {} requests in one run", u32::MAX)]
    TooManyRequests,
    /// Somebody raised [`RunOptions::cancel`].
    #[error("the run was cancelled at {at:?} of its virtual clock")]
    Cancelled {
        /// The clock.
        at: SimTime,
    },
    /// A controller of the cluster refuses its settings.
    #[error("the cluster cannot be set up: {0}")]
    Cluster(String),
    /// The books do not balance: a defect of the simulator.
    #[error(transparent)]
    Record(#[from] RecordError),
}
