//! Where requests wait while no replica is ready.

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel::time::{SimDuration, SimTime};
use crate::request::{ReqId, RequestSpec};

/// Requests in the order in which they were sent, with the instants at which their wait ends.
type Lane = BTreeMap<ReqId, (RequestSpec, Option<Deadline>)>;

/// When the wait of a request ends, and by whom: its client gives up, or the gateway does.
type Deadline = (SimTime, WhoGivesUp);

/// Who gives up on a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhoGivesUp {
    /// The client.
    Client,
    /// The gateway, which holds requests for so long only.
    Gateway,
}

/// Requests that no replica can take yet: a lane for each service, whose replicas another's do not stand in for.
#[derive(Default)]
pub struct Gateway {
    lanes: Vec<Lane>,
    /// When, which, and in which lane.
    deadlines: BTreeSet<(SimTime, ReqId, usize)>,
}

impl Gateway {
    /// When the first wait ends.
    pub fn next(&self) -> SimTime {
        self.deadlines.first().map_or(SimTime::NEVER, |d| d.0)
    }

    /// Takes a request in; its client gives up `patience` after it was sent, the gateway `timeout` after that.
    pub fn hold(
        &mut self,
        lane: usize,
        id: ReqId,
        spec: RequestSpec,
        patience: Option<SimDuration>,
        timeout: Option<SimDuration>,
    ) {
        let ends = [
            (patience, WhoGivesUp::Client),
            (timeout, WhoGivesUp::Gateway),
        ];
        let deadline = (ends.into_iter())
            .filter_map(|(after, who)| Some((spec.arrival + after?, who)))
            .min();
        self.deadlines
            .extend(deadline.map(|(at, _)| (at, id, lane)));
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, Lane::new);
        }
        self.lanes[lane].insert(id, (spec, deadline));
    }

    fn remove(&mut self, lane: usize, id: ReqId) -> Option<(RequestSpec, Option<Deadline>)> {
        let (spec, deadline) = self.lanes.get_mut(lane)?.remove(&id)?;
        if let Some((at, _)) = deadline {
            self.deadlines.remove(&(at, id, lane));
        }
        Some((spec, deadline))
    }

    /// Takes out the first of a lane.
    pub fn take(&mut self, lane: usize) -> Option<(ReqId, RequestSpec)> {
        let id = *self.lanes.get(lane)?.first_key_value()?.0;
        Some((id, self.remove(lane, id)?.0))
    }

    /// Requests there are.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }

    /// Requests there are in a lane.
    pub fn len_of(&self, lane: usize) -> usize {
        self.lanes.get(lane).map_or(0, Lane::len)
    }

    /// Takes out the first whose wait has ended by `now`, and who gave up.
    pub fn timed_out(&mut self, now: SimTime) -> Option<(ReqId, RequestSpec, WhoGivesUp)> {
        let &(at, id, lane) = self.deadlines.first()?;
        if at > now {
            return None;
        }
        let (spec, deadline) = self.remove(lane, id)?;
        Some((id, spec, deadline?.1))
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
