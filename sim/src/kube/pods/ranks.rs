//! Which replicas go first when there are too many.
//!
//! A Deployment's ReplicaSet sorts its pods as `ActivePodsWithRanks` does (kubernetes/kubernetes `pkg/controller/controller_utils.go`, sorted in
//! `replicaset/replica_set.go`): without a node, then Pending, then not ready ones, then (with equal `pod-deletion-cost`, which all pods of a template share) those with
//! more pods of the Deployment on their node, then those that became ready more recently, by powers of two of the time since, then those with more restarts, then
//! the younger, by powers of two. Among equals the UID decides, which is drawn. Instants are whole seconds, as in the API. A LeaderWorkerSet removes the highest index.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rand::Rng;

use super::super::cluster::Cluster;
use crate::kernel::rng;
use crate::kernel::time::{SimDuration, SimTime};

/// Whole seconds of an instant, as the API tells it.
fn told(t: SimTime) -> SimTime {
    SimTime(t.0 - t.0 % 1_000_000_000)
}

/// The power of two of a time [ns]; -1 where there is none.
fn magnitude(age: SimDuration) -> i32 {
    age.0.checked_ilog2().map_or(-1, |n| n as i32)
}

impl Cluster {
    /// Replicas of deployment `d`, those first that go first.
    pub(in crate::kube) fn ranked(
        &self,
        now: SimTime,
        d: usize,
        mut units: Vec<usize>,
    ) -> Vec<usize> {
        if self.is_set_of_groups(d) {
            units.sort_by_key(|u| Reverse(self.units[*u].ordinal));
            return units;
        }
        let pod = |u: usize| &self.pods[self.units[u].pods[0]];
        let mut on_node: BTreeMap<usize, usize> = BTreeMap::new();
        for n in self.counted(d).into_iter().filter_map(|u| pod(u).node) {
            *on_node.entry(n).or_default() += 1;
        }
        let uid = |u: usize| rng::stream(self.seed, &format!("cluster/uid/{u}")).next_u64();
        // Those that became ready in the same second are compared by what comes after that: they stand together, where the first of them does.
        let mut first_of: BTreeMap<SimTime, u64> = BTreeMap::new();
        for u in &units {
            let first = first_of
                .entry(told(self.units[*u].ready))
                .or_insert(u64::MAX);
            *first = uid(*u).min(*first);
        }
        units.sort_by_cached_key(|u| {
            let unit = &self.units[*u];
            let p = pod(*u);
            let is_ready = unit.is_serving();
            let since = |t: SimTime| magnitude(now.since(told(t)));
            let ready = is_ready.then(|| (since(unit.ready), first_of[&told(unit.ready)]));
            (
                (
                    p.node.is_some(),
                    p.started <= now || p.restarts > 0,
                    is_ready,
                ),
                Reverse(p.node.map_or(0, |n| on_node[&n])),
                ready,
                Reverse(p.restarts),
                since(unit.created),
                uid(*u),
            )
        });
        units
    }
}
