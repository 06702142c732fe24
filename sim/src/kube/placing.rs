//! Where pods are placed: the scores of kube-scheduler, over nodes that are kept by what they hold.
//!
//! Of the nodes with room the pod gets the one with the highest sum of
//! - NodeResourcesFit ([`SchedulerSpec::strategy`]), times its weight: the share of each resource that is free (`LeastAllocated`) or taken (`MostAllocated`)
//!   with the pod on it, 0 to 100. A pod that requests no CPU or memory counts 100m and 200 MiB.
//! - PodTopologySpread with the system's default constraints, times 2: for the node (`maxSkew` 3) and its zone (5) the sum of `count x ln(domains + 2) +
//!   maxSkew - 1` over the pods of the same Deployment, turned over so that the fewest score 100.
//!
//! Sources: kubernetes/kubernetes `pkg/scheduler/framework/plugins/noderesources/{least_allocated,most_allocated,resource_allocation}.go`,
//! `plugins/podtopologyspread/{plugin,scoring}.go`, `apis/config/v1/default_plugins.go` (weights). kube-scheduler draws among equals; here it is the oldest node.
//! Image locality and balanced allocation are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster::Cluster;
use super::spec::{SchedulerSpec, ScoringStrategy};
use crate::control::cluster_autoscaler::spec::Resources;

/// What a pod without a request counts in scores: CPU [thousandths of a core] and memory [bytes].
const UNREQUESTED: (i64, i64) = (100, 200 << 20);
/// Weight of PodTopologySpread.
const SPREAD_WEIGHT: i64 = 2;
/// `maxSkew` of the default constraints: over nodes, over zones.
const MAX_SKEW: (f64, f64) = (3.0, 5.0);

/// Pods of a deployment on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Own {
    deployment: usize,
    /// All that hold room.
    held: u32,
    /// Of those, pods that were not told to end.
    staying: u32,
}

/// What makes nodes alike to the scheduler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    group: usize,
    /// Its accelerators are known.
    is_usable: bool,
    pods: Vec<Own>,
}

impl Kind {
    fn staying(&self, d: usize) -> u32 {
        (self.pods.iter().find(|o| o.deployment == d)).map_or(0, |o| o.staying)
    }
}

/// Nodes that are Ready, by what they hold.
#[derive(Default)]
pub(super) struct Rooms {
    kinds: BTreeMap<Kind, BTreeSet<usize>>,
    /// Those with a taint, by it.
    tainted: BTreeMap<&'static str, BTreeSet<usize>>,
    /// Where each node is filed.
    filed: Vec<Filed>,
    /// Raised with each change.
    pub version: u64,
}

#[derive(Clone, Default)]
enum Filed {
    /// Not Ready, or gone.
    #[default]
    Nowhere,
    Tainted(&'static str),
    Kind(Kind),
}

impl Rooms {
    fn file(&mut self, n: usize, place: Filed) {
        if self.filed.len() <= n {
            self.filed.resize(n + 1, Filed::Nowhere);
        }
        self.version += 1;
        match &self.filed[n] {
            Filed::Nowhere => {}
            Filed::Tainted(taint) => take(&mut self.tainted, taint, n),
            Filed::Kind(kind) => take(&mut self.kinds, kind, n),
        }
        match &place {
            Filed::Nowhere => {}
            Filed::Tainted(taint) => {
                self.tainted.entry(taint).or_default().insert(n);
            }
            Filed::Kind(kind) => {
                self.kinds.entry(kind.clone()).or_default().insert(n);
            }
        }
        self.filed[n] = place;
    }
}

/// Takes `n` out of the set under `key`, and an empty set with it.
fn take<K: Ord>(sets: &mut BTreeMap<K, BTreeSet<usize>>, key: &K, n: usize) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(&n);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

/// Nodes that a pod may be placed on and that are alike.
struct Choice {
    /// The oldest of them.
    node: usize,
    many: usize,
    /// Pods of the same Deployment on each of them, and in their zone.
    counts: (u32, u32),
    /// Score of NodeResourcesFit.
    fit: i64,
}

impl Cluster {
    /// Files a node anew: it came, went, was tainted, or a pod of it came, went or was told to end.
    pub(super) fn refile(&mut self, n: usize) {
        let node = &self.nodes[n];
        let place = if !node.is_registered() {
            Filed::Nowhere
        } else if node.is_tainted() {
            Filed::Tainted(node.taint)
        } else {
            let mut pods: Vec<Own> = Vec::new();
            for p in &node.pods {
                let deployment = self.deployment_of(*p);
                let staying = u32::from(!self.is_ending(*p));
                match pods.iter_mut().find(|o| o.deployment == deployment) {
                    Some(own) => {
                        own.held += 1;
                        own.staying += staying;
                    }
                    None => pods.push(Own {
                        deployment,
                        held: 1,
                        staying,
                    }),
                }
            }
            pods.sort_unstable();
            Filed::Kind(Kind {
                group: node.group,
                is_usable: node.is_usable(),
                pods,
            })
        };
        self.rooms.file(n, place);
    }

    /// What is free on nodes of this kind.
    fn free_on(&self, kind: &Kind) -> Resources {
        let mut free = self.spec.groups[kind.group].template;
        if !kind.is_usable {
            free.gpus = 0;
        }
        (kind.pods.iter()).fold(free, |free, own| {
            let each = self.spec.deployments[own.deployment].pod.requests;
            free.less(each.times(i64::from(own.held)))
        })
    }

    /// The node that the scheduler gives to a pod of deployment `d`; `None`: none has room.
    pub(super) fn node_with_room(&self, d: usize) -> Option<usize> {
        let spec = &self.spec.deployments[d];
        let zone = |group: usize| &self.spec.groups[group].zone;
        let mut of_zone: BTreeMap<&str, u32> = BTreeMap::new();
        for (kind, nodes) in &self.rooms.kinds {
            let pods = kind.staying(d) * nodes.len() as u32;
            *of_zone.entry(zone(kind.group)).or_default() += pods;
        }
        let mut zones: BTreeSet<&str> = BTreeSet::new();
        let mut choices: Vec<Choice> = Vec::new();
        for (kind, nodes) in &self.rooms.kinds {
            let has_room = || self.free_on(kind).holds(spec.pod.requests);
            if !kind.is_usable || !spec.may_use(kind.group) || !has_room() {
                continue;
            }
            let zone = zone(kind.group);
            zones.insert(zone);
            choices.extend(nodes.first().map(|node| Choice {
                node: *node,
                many: nodes.len(),
                counts: (kind.staying(d), of_zone[zone.as_str()]),
                fit: self.fit(kind, d),
            }));
        }
        best(&choices, zones.len(), &self.spec.scheduler)
    }

    /// NodeResourcesFit of a pod of deployment `d` on a node of this kind.
    fn fit(&self, kind: &Kind, d: usize) -> i64 {
        let s = &self.spec.scheduler;
        let has = self.spec.groups[kind.group].template;
        let count = |of: fn(Resources) -> i64, unrequested: i64| {
            let each = |d: usize| match of(self.spec.deployments[d].pod.requests) {
                0 => unrequested,
                n => n,
            };
            let there: i64 = (kind.pods.iter())
                .map(|o| each(o.deployment) * i64::from(o.held))
                .sum();
            there + each(d)
        };
        let parts = [
            (s.cpu, has.cpu_milli, count(|r| r.cpu_milli, UNREQUESTED.0)),
            (
                s.memory,
                has.memory_bytes,
                count(|r| r.memory_bytes, UNREQUESTED.1),
            ),
            (s.accelerators, has.gpus, count(|r| r.gpus, 0)),
        ];
        let (mut sum, mut weights) = (0, 0);
        for (weight, has, taken) in parts.into_iter().filter(|p| p.0 > 0 && p.1 > 0) {
            let taken = match s.strategy {
                ScoringStrategy::LeastAllocated => has - taken,
                ScoringStrategy::MostAllocated => taken,
            };
            let share = i128::from(taken.clamp(0, has)) * 100 / i128::from(has);
            sum += weight * share as i64;
            weights += weight;
        }
        if weights > 0 { sum / weights } else { 0 }
    }

    /// What the scheduler says of a pod of deployment `d` without room, as `kubectl describe pod` shows it.
    pub(super) fn why_no_room(&self, d: usize) -> String {
        let spec = &self.spec.deployments[d];
        let requests = spec.pod.requests;
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for (taint, nodes) in &self.rooms.tainted {
            let reason = format!("node(s) had untolerated taint {{{taint}: }}");
            reasons.insert(reason, nodes.len());
        }
        for (kind, nodes) in &self.rooms.kinds {
            let free = self.free_on(kind);
            let reason = if !spec.may_use(kind.group) {
                "node(s) didn't match Pod's node affinity/selector".into()
            } else if free.gpus < requests.gpus {
                format!("Insufficient {}", spec.pod.resource)
            } else if free.cpu_milli < requests.cpu_milli {
                "Insufficient cpu".into()
            } else {
                "Insufficient memory".into()
            };
            *reasons.entry(reason).or_default() += nodes.len();
        }
        let all: usize = reasons.values().sum();
        if all == 0 {
            return "no nodes available to schedule pods".into();
        }
        let parts: Vec<String> = reasons
            .iter()
            .map(|(why, n)| format!("{n} {why}"))
            .collect();
        format!("0/{all} nodes are available: {}", parts.join(", "))
    }
}

/// The node with the highest score, the oldest of several; nodes with room are in so many zones.
fn best(choices: &[Choice], zones: usize, s: &SchedulerSpec) -> Option<usize> {
    let nodes: usize = choices.iter().map(|c| c.many).sum();
    let weight = |domains: usize| (domains as f64 + 2.0).ln();
    let crowd = |c: &Choice| {
        let of_node = f64::from(c.counts.0) * weight(nodes) + MAX_SKEW.0 - 1.0;
        let of_zone = f64::from(c.counts.1) * weight(zones) + MAX_SKEW.1 - 1.0;
        (of_node + of_zone).round() as i64
    };
    let most = choices.iter().map(crowd).max()?;
    let least = choices.iter().map(crowd).min()?;
    let spread = |c: &Choice| match (s.spreads, most) {
        (false, _) => 0,
        (true, 0) => 100,
        (true, most) => 100 * (most + least - crowd(c)) / most,
    };
    (choices.iter())
        .max_by_key(|c| {
            let score = s.weight * c.fit + SPREAD_WEIGHT * spread(c);
            (score, std::cmp::Reverse(c.node))
        })
        .map(|c| c.node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(node: usize, many: usize, counts: (u32, u32), fit: i64) -> Choice {
        Choice {
            node,
            many,
            counts,
            fit,
        }
    }

    #[test]
    fn pods_of_a_deployment_go_where_the_fewest_are_and_the_oldest_of_equal_nodes_wins() {
        let s = SchedulerSpec::default();
        let choices = [
            choice(0, 1, (2, 3), 50),
            choice(1, 1, (1, 3), 50),
            choice(2, 2, (0, 3), 50),
        ];
        assert_eq!(best(&choices, 1, &s), Some(2));
        let equal = [choice(3, 1, (1, 2), 50), choice(2, 1, (1, 2), 50)];
        assert_eq!(best(&equal, 1, &s), Some(2));
        assert_eq!(best(&[], 0, &s), None);
    }

    #[test]
    fn most_allocated_packs_where_nothing_spreads() {
        let choices = [choice(0, 1, (0, 3), 12), choice(1, 1, (3, 3), 50)];
        let packs = SchedulerSpec {
            strategy: ScoringStrategy::MostAllocated,
            spreads: false,
            ..SchedulerSpec::default()
        };
        assert_eq!(best(&choices, 1, &packs), Some(1));
        // With the default constraints spreading weighs more.
        let spreads = SchedulerSpec {
            spreads: true,
            ..packs
        };
        assert_eq!(best(&choices, 1, &spreads), Some(0));
    }

    #[test]
    fn a_zone_with_fewer_pods_comes_first() {
        let s = SchedulerSpec::default();
        let choices = [choice(0, 1, (0, 4), 50), choice(1, 1, (0, 1), 50)];
        assert_eq!(best(&choices, 2, &s), Some(1));
    }
}
