//! Karpenter at work: what it has asked for and what waits to be disrupted.

use crate::control::karpenter::Karpenter;
use crate::control::karpenter::spec::Reason;
use crate::kernel::time::SimTime;

/// Number of the first claim: nodes that were there before the run have lower ones.
pub const FIRST_CLAIM: u64 = 1_000_000;

/// Nodes that go once their replacements are there.
pub(super) struct Disruption {
    pub nodes: Vec<usize>,
    pub after: Vec<u64>,
    pub reason: Reason,
}

/// The provisioner at work.
pub(super) struct Provisioner {
    pub karpenter: Karpenter,
    pub disruptions: Vec<Disruption>,
    /// When its next turn is planned.
    pub planned: SimTime,
    /// The youngest pending pod that it was told of.
    pub told: Option<usize>,
}

impl Provisioner {
    pub fn new(karpenter: Karpenter) -> Provisioner {
        Provisioner {
            karpenter,
            disruptions: Vec::new(),
            planned: SimTime::NEVER,
            told: None,
        }
    }
}
