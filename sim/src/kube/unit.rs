//! A replica as the cluster sees it: the unit that its Deployment or LeaderWorkerSet counts.

use super::record::ReplicaRow;
use super::slow::Speed;
use crate::kernel::time::{SimDuration, SimTime};

/// Where a replica stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its pods are Pending or start.
    Starting,
    /// The router may choose it.
    Serving,
    /// It was told to end.
    Draining,
    /// It is no more, which nobody has noticed.
    Lost,
    Gone,
}

/// A replica: a pod, or the group of a LeaderWorkerSet.
pub(super) struct Unit {
    /// Its Deployment or LeaderWorkerSet.
    pub deployment: usize,
    /// Rolling updates before it was created.
    pub generation: u32,
    /// Number in its name: of a LeaderWorkerSet the lowest that is free.
    pub ordinal: u32,
    pub name: String,
    pub pods: Vec<usize>,
    pub state: State,
    /// Raised with each start, so that what was planned for an earlier one is stale.
    pub epoch: u32,
    pub created: SimTime,
    pub ready: SimTime,
    pub draining: SimTime,
    pub gone: SimTime,
    pub why_gone: String,
    /// The engine that serves it, or has.
    pub engine: Option<u32>,
    /// The kubelet ends it with its node: nobody has deleted it, and it counts until it has ended.
    pub is_shut_down: bool,
    /// It has drained, and its instance falls asleep.
    pub falls_asleep: bool,
    /// Partitions that keep the gateway from it.
    pub partitions: u32,
    /// How fast that is, where faults may slow it.
    pub speed: Option<Speed>,
    pub served: Vec<(u32, SimTime, SimTime)>,
}

impl Unit {
    /// Whether its controller counts it.
    pub fn counts(&self) -> bool {
        matches!(self.state, State::Starting | State::Serving | State::Lost)
            || self.state == State::Draining && self.is_shut_down
    }

    pub fn is_serving(&self) -> bool {
        self.state == State::Serving
    }

    /// Whether its exporter can be scraped.
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Serving | State::Draining) && self.engine.is_some()
    }
}

impl From<Unit> for ReplicaRow {
    fn from(u: Unit) -> ReplicaRow {
        ReplicaRow {
            name: u.name,
            deployment: u.deployment,
            pods: u.pods,
            created: u.created,
            served: u.served,
            draining: u.draining,
            gone: u.gone,
            why_gone: u.why_gone,
        }
    }
}

/// A container that crashes again and again.
pub(super) struct Curse {
    /// Name of its replica: a group that is made anew keeps it.
    pub name: String,
    pub until: SimTime,
    pub after: SimDuration,
    pub fault: usize,
}
