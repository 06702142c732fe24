//! Where requests wait while no replica is ready.

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel::time::{SimDuration, SimTime};
use crate::request::{ReqId, RequestSpec};

/// Requests that no replica can take yet, in the order in which they were sent.
#[derive(Default)]
pub struct Gateway {
    held: BTreeMap<ReqId, (RequestSpec, Option<SimTime>)>,
    deadlines: BTreeSet<(SimTime, ReqId)>,
}

impl Gateway {
    /// When the first of their clients gives up.
    pub fn next(&self) -> SimTime {
        self.deadlines.first().map_or(SimTime::NEVER, |d| d.0)
    }

    /// Takes a request in; its client gives up `patience` after it was sent.
    pub fn hold(&mut self, id: ReqId, spec: RequestSpec, patience: Option<SimDuration>) {
        let deadline = patience.map(|p| spec.arrival + p);
        self.deadlines.extend(deadline.map(|d| (d, id)));
        self.held.insert(id, (spec, deadline));
    }

    /// Takes a request out.
    pub fn remove(&mut self, id: ReqId) -> Option<RequestSpec> {
        let (spec, deadline) = self.held.remove(&id)?;
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, id));
        }
        Some(spec)
    }

    /// Requests there are.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Their ids, in the order in which they were sent.
    pub fn ids(&self) -> Vec<ReqId> {
        self.held.keys().copied().collect()
    }

    /// Takes out the first whose client has given up by `now`.
    pub fn timed_out(&mut self, now: SimTime) -> Option<(ReqId, RequestSpec)> {
        let &(at, id) = self.deadlines.first()?;
        if at > now {
            return None;
        }
        Some((id, self.remove(id)?))
    }

    /// All of them, taken out.
    pub fn drain(&mut self) -> impl Iterator<Item = (ReqId, RequestSpec)> {
        self.deadlines.clear();
        std::mem::take(&mut self.held)
            .into_iter()
            .map(|(id, (spec, _))| (id, spec))
    }
}
