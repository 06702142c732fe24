//! Where requests wait while no replica is ready.

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel::time::{SimDuration, SimTime};
use crate::request::{ReqId, RequestSpec};

/// Requests in the order in which they were sent, with the instants at which their clients give up.
type Lane = BTreeMap<ReqId, (RequestSpec, Option<SimTime>)>;

/// Requests that no replica can take yet: a lane for each service, whose replicas another's do not stand in for.
#[derive(Default)]
pub struct Gateway {
    lanes: Vec<Lane>,
    /// When, which, and in which lane.
    deadlines: BTreeSet<(SimTime, ReqId, usize)>,
}

impl Gateway {
    /// When the first of their clients gives up.
    pub fn next(&self) -> SimTime {
        self.deadlines.first().map_or(SimTime::NEVER, |d| d.0)
    }

    /// Takes a request in; its client gives up `patience` after it was sent.
    pub fn hold(
        &mut self,
        lane: usize,
        id: ReqId,
        spec: RequestSpec,
        patience: Option<SimDuration>,
    ) {
        let deadline = patience.map(|p| spec.arrival + p);
        self.deadlines.extend(deadline.map(|d| (d, id, lane)));
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, Lane::new);
        }
        self.lanes[lane].insert(id, (spec, deadline));
    }

    fn remove(&mut self, lane: usize, id: ReqId) -> Option<RequestSpec> {
        let (spec, deadline) = self.lanes.get_mut(lane)?.remove(&id)?;
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, id, lane));
        }
        Some(spec)
    }

    /// Takes out the first of a lane.
    pub fn take(&mut self, lane: usize) -> Option<(ReqId, RequestSpec)> {
        let id = *self.lanes.get(lane)?.first_key_value()?.0;
        Some((id, self.remove(lane, id)?))
    }

    /// Requests there are.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }

    /// Requests there are in a lane.
    pub fn len_of(&self, lane: usize) -> usize {
        self.lanes.get(lane).map_or(0, Lane::len)
    }

    /// Takes out the first whose client has given up by `now`.
    pub fn timed_out(&mut self, now: SimTime) -> Option<(ReqId, RequestSpec)> {
        let &(at, id, lane) = self.deadlines.first()?;
        if at > now {
            return None;
        }
        Some((id, self.remove(lane, id)?))
    }

    /// All of them, taken out in the order in which they were sent.
    pub fn drain(&mut self) -> impl Iterator<Item = (ReqId, RequestSpec)> {
        self.deadlines.clear();
        let all: Lane = std::mem::take(&mut self.lanes)
            .into_iter()
            .flatten()
            .collect();
        all.into_iter().map(|(id, (spec, _))| (id, spec))
    }
}
