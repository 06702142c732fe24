//! Events of a cluster, and their order within an instant.

use crate::kernel::time::{SimDuration, SimTime};

/// What happens in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Begin,
    Change(usize),
    Fault(usize),
    NodeFault {
        node: usize,
        fault: usize,
    },
    UnitFault {
        unit: usize,
        epoch: u32,
        fault: usize,
    },
    /// A partition ends.
    UnitReached {
        unit: usize,
        epoch: u32,
        fault: usize,
    },
    NodeSlow {
        node: usize,
        fault: usize,
        begin: SimTime,
    },
    StorageFast {
        fault: usize,
        begin: SimTime,
    },
    /// A link between pools is as fast as it was.
    LinkWell {
        fault: usize,
        begin: SimTime,
    },
    NodeRefused(usize),
    NodeReady(usize),
    NodeUsable(usize),
    NodeEvict(usize),
    /// A node is gone; its pods are replaced so long after.
    NodeLost(usize, SimDuration),
    /// Whoever keeps a group at its size has noticed the loss of an instance.
    GroupNotices(usize),
    NodeGone(usize),
    /// The requester of a pod runs, which a vLLM instance is to serve for.
    PodBound {
        pod: usize,
        epoch: u32,
    },
    PodStarted {
        pod: usize,
        epoch: u32,
    },
    PodReads {
        pod: usize,
        epoch: u32,
    },
    LoadEnds(u64),
    PodLoaded {
        pod: usize,
        epoch: u32,
        version: u32,
    },
    UnitUp {
        unit: usize,
        epoch: u32,
    },
    UnitReady {
        unit: usize,
        epoch: u32,
    },
    /// The instance of a replica that has drained sleeps.
    UnitAsleep {
        unit: usize,
        epoch: u32,
    },
    UnitNoticed(usize),
    Deadline(usize),
    LookAtDraining,
    Sample,
    Scrape,
    /// Of the ScaledObject of a deployment.
    Poll(usize),
    /// Of the HPA of a deployment.
    Sync(usize),
    /// Of an autoscaler that is no HPA.
    Scale(usize),
    /// Of models that are loaded on demand.
    Look,
    Scan,
    Provision,
}

impl Event {
    /// Its place within an instant (the table of [`crate::cluster`]).
    pub fn class(self) -> u8 {
        use Event::*;
        match self {
            Begin => 0,
            Change(_) => 1,
            // Of the kind of the fault: `FaultKind::class`.
            Fault(_) | StorageFast { .. } | LinkWell { .. } => 2,
            NodeFault { .. } | NodeSlow { .. } | NodeLost(..) => 3,
            UnitFault { .. } | UnitReached { .. } => 4,
            GroupNotices(_) | NodeRefused(_) | NodeReady(_) | NodeUsable(_) | NodeEvict(_)
            | NodeGone(_) => 5,
            PodBound { .. }
            | PodStarted { .. }
            | PodReads { .. }
            | LoadEnds(_)
            | PodLoaded { .. }
            | UnitUp { .. }
            | UnitReady { .. }
            | UnitAsleep { .. }
            | UnitNoticed(_) => 6,
            Deadline(_) => 7,
            LookAtDraining => 8,
            Sample | Scrape => 9,
            Poll(_) => 10,
            Sync(_) | Scale(_) | Look => 11,
            Scan | Provision => 12,
        }
    }
}
