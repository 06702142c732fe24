//! What is to happen to replicas at instants to come.

use std::collections::BTreeMap;

use crate::kernel::time::{SimDuration, SimTime};
use crate::simulation::ReplicaSpec;

/// A change of the fleet.
pub enum Change {
    /// A replica that was added is ready: the router may choose it.
    Ready(u32),
    /// A replica gets nothing more and ends with its last request.
    Drain(u32),
    /// A replica is gone at once; its requests fail.
    Kill(u32),
    /// The gateway does not reach a replica; it tries to connect for so long.
    CutOff(u32, SimDuration),
    /// The gateway reaches it again.
    Reach(u32),
    /// A new replica that is ready at once.
    Add(Box<ReplicaSpec>),
}

/// Changes by instant; those of one instant in the order in which they were planned.
#[derive(Default)]
pub struct Plans {
    at: BTreeMap<SimTime, Vec<Change>>,
}

impl Plans {
    /// Plans `change` for `at`.
    pub fn push(&mut self, at: SimTime, change: Change) {
        self.at.entry(at).or_default().push(change);
    }

    /// When the next one is.
    pub fn next(&self) -> SimTime {
        self.at
            .first_key_value()
            .map_or(SimTime::NEVER, |(at, _)| *at)
    }

    /// Takes those of `now`.
    pub fn take(&mut self, now: SimTime) -> Vec<Change> {
        match self.at.first_key_value() {
            Some((at, _)) if *at <= now => self.at.pop_first().map(|(_, c)| c).unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}
