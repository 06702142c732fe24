//! What breaks, and what operators change.

use rand::RngExt;

use super::nodes::RECLAIMED;
use super::record::Controller;
use super::spec::{ChangeKind, FaultKind, When};
use super::{Cluster, Event};
use crate::kernel::rng;
use crate::kernel::time::{SimDuration, SimTime};

impl Cluster {
    /// A fault with an instant of its own.
    pub(super) fn fault(&mut self, now: SimTime, i: usize) {
        let kind = self.spec.faults[i].kind.clone();
        match kind {
            FaultKind::MetricsOutage { duration } => {
                self.outage_until = self.outage_until.max(now + duration);
                let why = format!("no metrics for {:.0} s", duration.as_secs());
                self.decided(now, Controller::Fault, "metrics", (0, 0), why);
            }
            FaultKind::NoCapacity { group, duration } => {
                let until = &mut self.groups[group].no_capacity_until;
                *until = (*until).max(now + duration);
                let name = self.spec.groups[group].name.clone();
                let size = self.groups[group].target as i64;
                let why = format!("the cloud has no capacity for {:.0} s", duration.as_secs());
                self.decided(now, Controller::Fault, &name, (size, size), why);
            }
            FaultKind::Replica => {
                let serving = self.serving();
                match self.chosen(i, &serving) {
                    Some(unit) => self.crash(now, unit),
                    None => self.nothing_broke(now, "replica"),
                }
            }
            FaultKind::Node { .. } | FaultKind::Spot { .. } | FaultKind::Straggler { .. } => {
                let is_spot = matches!(kind, FaultKind::Spot { .. });
                let there: Vec<usize> = (self.present.iter().copied())
                    .filter(|n| {
                        let node = &self.nodes[*n];
                        node.is_registered()
                            && !node.is_tainted()
                            && (!is_spot || self.spec.groups[node.group].is_spot)
                    })
                    .collect();
                match self.chosen(i, &there) {
                    Some(node) => self.node_fault(now, node, i),
                    None => self.nothing_broke(now, "node"),
                }
            }
        }
    }

    /// Which of those there are.
    fn chosen(&self, fault: usize, there: &[usize]) -> Option<usize> {
        let When::At { target, .. } = self.spec.faults[fault].when else {
            return None;
        };
        match target {
            Some(k) => there.get(k).copied(),
            None if there.is_empty() => None,
            None => {
                let mut draws = rng::stream(self.seed, &format!("cluster/fault/{fault}"));
                Some(there[draws.random_range(0..there.len())])
            }
        }
    }

    fn nothing_broke(&mut self, now: SimTime, what: &str) {
        let why = format!("a fault found no {what} that it could break");
        self.decided(now, Controller::Fault, what, (0, 0), why);
    }

    /// A fault of one node.
    pub(super) fn node_fault(&mut self, now: SimTime, n: usize, fault: usize) {
        if self.nodes[n].gone != SimTime::NEVER {
            return;
        }
        let name = self.nodes[n].name.clone();
        let why = match self.spec.faults[fault].kind {
            FaultKind::Node { noticed_after } => {
                self.node_lost(now, n, noticed_after, "it failed");
                format!("{name} is lost")
            }
            FaultKind::Spot { notice } => {
                self.taint(now, n, RECLAIMED);
                self.nodes[n].why_gone = "reclaimed".into();
                self.plan(now + notice, Event::NodeLost(n));
                self.drain_before(now, n, notice);
                format!("{name} is reclaimed in {:.0} s", notice.as_secs())
            }
            FaultKind::Straggler { factor } => {
                self.nodes[n].slowdown = factor;
                format!("steps of engines that start on {name} take {factor} times as long")
            }
            _ => return,
        };
        let group = self.nodes[n].group;
        let about = self.spec.groups[group].name.clone();
        let size = self.groups[group].target as i64;
        self.decided(now, Controller::Fault, &about, (size, size), why);
    }

    /// Evicts the pods of a node that is taken away after `notice`. The node stays until then, as its instance does.
    fn drain_before(&mut self, now: SimTime, n: usize, notice: SimDuration) {
        if notice == SimDuration::ZERO {
            return;
        }
        let mut units: Vec<usize> = self.nodes[n]
            .pods
            .iter()
            .map(|p| self.pods[*p].unit)
            .collect();
        units.dedup();
        for unit in units {
            self.remove(now, unit, "evicted: its node is reclaimed");
        }
    }

    /// What an operator does.
    pub(super) fn change(&mut self, now: SimTime, i: usize) {
        match self.spec.changes[i].what {
            ChangeKind::Replicas(replicas) => {
                let from = self.desired;
                self.desired = replicas;
                let (from, to) = (from.into(), replicas.into());
                self.decided(
                    now,
                    Controller::Operator,
                    "replicas",
                    (from, to),
                    "kubectl scale".into(),
                );
            }
            ChangeKind::Bounds { min, max } => {
                let why = self.patch(min, max);
                let size = self.desired.into();
                self.decided(now, Controller::Operator, "replicas", (size, size), why);
            }
            ChangeKind::Group {
                group,
                min,
                max,
                nodes,
            } => self.resize(now, group, (min, max), nodes),
        }
    }

    fn patch(&mut self, min: Option<i32>, max: Option<i32>) -> String {
        let (done, now_min, now_max) = if let Some(keda) = &mut self.keda {
            let spec = keda.spec();
            let (a, b) = (
                min.unwrap_or(spec.min_replica_count),
                max.unwrap_or(spec.max_replica_count),
            );
            (keda.set_bounds(a, b), a, b)
        } else if let Some(hpa) = &mut self.hpa {
            let spec = hpa.spec();
            let (a, b) = (min.or(spec.min_replicas), max.unwrap_or(spec.max_replicas));
            let done = hpa.set_bounds(a, b).map_err(|e| e.to_string());
            (done, a.unwrap_or(1), b)
        } else {
            return "there is no autoscaler to patch".into();
        };
        match done {
            Ok(()) => format!("kubectl patch: minimum {now_min}, maximum {now_max}"),
            Err(why) => format!("kubectl patch was refused: {why}"),
        }
    }

    fn resize(
        &mut self,
        now: SimTime,
        group: usize,
        (min, max): (Option<usize>, Option<usize>),
        nodes: Option<usize>,
    ) {
        let from = self.groups[group].target;
        let g = &mut self.groups[group];
        g.min = min.unwrap_or(g.min);
        g.max = max.unwrap_or(g.max);
        let size = nodes.unwrap_or(from).clamp(g.min, g.max.max(g.min));
        let why = format!(
            "node group set to min {}, max {}, {size} nodes",
            g.min, g.max
        );
        let (min, max) = (g.min, g.max);
        if let Some(autoscaler) = &mut self.autoscaler {
            autoscaler.set_bounds(group, min, max);
            if size != from {
                autoscaler.set_target(group, size);
            }
        }
        if size < from {
            self.shrink(now, group, size);
        } else {
            self.set_group_size(now, group, size);
        }
        let name = self.spec.groups[group].name.clone();
        let sizes = (from as i64, size as i64);
        self.decided(now, Controller::Operator, &name, sizes, why);
    }
}
