//! Karpenter in place of the Cluster Autoscaler: claims become instances, disruptions drain nodes.
//!
//! Its offerings are the node groups. `max` of a group is what the account may have of it: a claim beyond that is refused as by a cloud without
//! capacity. Nobody keeps a group at a size: a lost node comes back when pods wait for it.

use super::cluster::Cluster;
use super::event::Event;
use super::provisioner::{Disruption, FIRST_CLAIM};
use super::record::{Controller, DecisionRow};
use crate::control::cluster_autoscaler::spec::Resources;
use crate::control::karpenter::Action;
use crate::control::karpenter::spec::{NodeView, Observed, Reason};
use crate::kernel::time::{SimDuration, SimTime};

/// Taint of a node that is to go.
const DISRUPTED: &str = "karpenter.sh/disrupted";

impl Cluster {
    /// Plans Karpenter's next turn: at once for a new pending pod.
    pub(super) fn plan_provisioner(&mut self, now: SimTime) {
        if self.karpenter.is_none() {
            return;
        }
        let pending = self.deployments.iter().filter_map(|d| d.pending.last());
        let youngest = pending.max().copied();
        let Some(p) = &mut self.karpenter else { return };
        let is_new = youngest.is_some_and(|pod| p.told.is_none_or(|told| pod > told));
        if is_new {
            p.told = youngest;
        }
        let due = match is_new {
            true => now,
            false => p.karpenter.due().max(now + SimDuration(1_000_000)),
        };
        if due < p.planned {
            p.planned = due;
            self.plan(due, Event::Provision);
        }
    }

    /// A turn of Karpenter.
    pub(super) fn provision(&mut self, now: SimTime) {
        let nodes = self.nodes_for_karpenter();
        let pending = self.pending();
        let pending: Vec<_> = pending.iter().map(|p| self.pod_view(*p)).collect();
        let Some(p) = &mut self.karpenter else { return };
        if p.planned > now {
            // An earlier plan took its place.
            return;
        }
        p.planned = SimTime::NEVER;
        let seen = Observed {
            nodes: &nodes,
            pending: &pending,
        };
        let decision = p.karpenter.tick(now, &seen);
        let mut row = DecisionRow {
            at: now,
            controller: Controller::Karpenter,
            about: "nodes".into(),
            from: nodes.len() as i64,
            to: nodes.len() as i64,
            ready: self.ready_units() as u32,
            inputs: format!("{} pending pods, {} nodes", pending.len(), nodes.len()),
            why: decision.why,
        };
        if decision.actions.is_empty() && row.why != "nothing" {
            self.note(row.clone());
        }
        for action in decision.actions {
            let group = match &action {
                Action::Launch { offering, .. } => *offering,
                Action::Withdraw { claim } => match self.node_of_claim(*claim) {
                    Some(n) => self.nodes[n].group,
                    None => continue,
                },
                Action::Disrupt { nodes, .. } => {
                    match nodes.first().and_then(|id| self.node_by_id(*id)) {
                        Some(n) => self.nodes[n].group,
                        None => continue,
                    }
                }
            };
            row.about.clone_from(&self.spec.groups[group].name);
            row.from = self.there(group);
            match action {
                Action::Launch { claim, .. } => self.launch_claim(now, group, claim),
                Action::Withdraw { claim } => {
                    if let Some(n) = self.node_of_claim(claim) {
                        self.forget_node(now, n, "its claim was withdrawn: not up in time");
                    }
                }
                Action::Disrupt {
                    nodes,
                    after,
                    reason,
                } => self.disrupt(now, &nodes, after, reason),
            }
            row.to = self.there(group);
            self.note(row.clone());
        }
        self.finish_disruptions(now);
    }

    /// Nodes of a group that are there or coming, and not to go.
    fn there(&self, group: usize) -> i64 {
        self.groups[group].there as i64
    }

    fn node_of_claim(&self, claim: u64) -> Option<usize> {
        let is_its = |n: &usize| self.nodes[*n].claim == Some(claim);
        self.present.iter().copied().find(is_its)
    }

    fn node_by_id(&self, id: u64) -> Option<usize> {
        match id < FIRST_CLAIM {
            true => Some(id as usize).filter(|n| *n < self.nodes.len()),
            false => self.node_of_claim(id),
        }
    }

    /// Asks the cloud for the instance of a claim.
    fn launch_claim(&mut self, now: SimTime, group: usize, claim: u64) {
        let has_quota = self.groups[group].all < self.groups[group].max;
        let n = self.launch(now, group, has_quota);
        self.nodes[n].claim = Some(claim);
        self.groups[group].target = self.groups[group].there;
        if !self.nodes[n].is_refused
            && let Some(p) = &mut self.karpenter
        {
            p.karpenter.launched(now, claim);
        }
    }

    /// The cloud has no instance for a claim.
    pub(super) fn claim_refused(&mut self, now: SimTime, n: usize) {
        let Some(claim) = self.nodes[n].claim else {
            return;
        };
        let Some(p) = &mut self.karpenter else { return };
        p.karpenter.refused(now, claim);
        // What waited for it stays.
        let (given_up, left) = std::mem::take(&mut p.disruptions)
            .into_iter()
            .partition(|d| d.after.contains(&claim));
        p.disruptions = left;
        for d in given_up {
            let d: Disruption = d;
            for n in d.nodes {
                self.untaint(n);
                self.nodes[n].why_gone.clear();
            }
        }
    }

    fn disrupt(&mut self, now: SimTime, ids: &[u64], after: Vec<u64>, reason: Reason) {
        let nodes: Vec<usize> = ids.iter().filter_map(|id| self.node_by_id(*id)).collect();
        for n in &nodes {
            self.taint(now, *n, DISRUPTED);
            self.nodes[*n].why_gone = match reason {
                Reason::Empty => "removed by Karpenter: empty".into(),
                Reason::Underutilized => "removed by Karpenter: underutilized".into(),
            };
        }
        if let Some(p) = &mut self.karpenter {
            p.disruptions.push(Disruption {
                nodes,
                after,
                reason,
            });
        }
    }

    /// Drains nodes whose replacements are initialized.
    pub(super) fn finish_disruptions(&mut self, now: SimTime) {
        let Some(p) = &mut self.karpenter else { return };
        let all = std::mem::take(&mut p.disruptions);
        let mut left = Vec::new();
        for d in all {
            let is_there = |claim: &u64| {
                self.node_of_claim(*claim)
                    .is_some_and(|n| self.nodes[n].usable != SimTime::NEVER)
            };
            if !d.after.iter().all(is_there) {
                left.push(d);
                continue;
            }
            debug_assert!(d.reason == Reason::Underutilized || d.after.is_empty());
            for n in d.nodes {
                self.evict(now, n);
            }
        }
        if let Some(p) = &mut self.karpenter {
            p.disruptions.append(&mut left);
        }
    }

    fn nodes_for_karpenter(&self) -> Vec<NodeView> {
        let view = |n: usize| {
            let node = &self.nodes[n];
            let template = self.spec.groups[node.group].template;
            let is_initialized = node.usable != SimTime::NEVER;
            NodeView {
                id: node.claim.unwrap_or(n as u64),
                offering: node.group,
                is_initialized,
                is_disrupted: node.is_tainted(),
                // What ends holds its room, and needs no other.
                allocatable: match is_initialized {
                    true => (node.pods.iter())
                        .filter(|p| self.is_ending(**p))
                        .fold(template, |free, p| free.less(self.requests_of(*p))),
                    false => Resources {
                        gpus: 0,
                        ..template
                    },
                },
                pods: (node.pods.iter())
                    .filter(|p| !self.is_ending(**p))
                    .map(|p| self.pod_view(*p))
                    .collect(),
                last_pod_event: node.last_pod_event,
            }
        };
        (self.present.iter().copied())
            .filter(|n| self.nodes[*n].is_registered())
            .map(view)
            .collect()
    }
}
