//! Nodes given back: empty ones, then several at once for at most one cheaper, then single ones.
//!
//! Every `disruption_poll`, one command at a time. Empty nodes go at once; other commands wait `consolidation_ttl` and are carried out if they are still right.

use super::spec::{CapacityType, ConsolidationPolicy, NodeView, Observed, Reason};
use super::{Action, Karpenter, place};
use crate::control::cluster_autoscaler::spec::{GroupSet, PodView};
use crate::kernel::time::{SimDuration, SimTime};

/// Most nodes that one command takes.
const MOST_NODES: usize = 100;

/// Nodes to take away, and the offering that takes their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    nodes: Vec<u64>,
    replacement: Option<usize>,
}

impl Karpenter {
    /// The disruption loop, where it is due; what was done, in words.
    pub(super) fn disrupt(
        &mut self,
        now: SimTime,
        seen: &Observed,
        actions: &mut Vec<Action>,
    ) -> Option<String> {
        if let Some((at, command)) = self.proposed.take() {
            if now < at {
                self.proposed = Some((at, command));
                return None;
            }
            self.next_disruption = now + SimDuration::from_secs(self.spec.disruption_poll.secs());
            return Some(self.validate(now, seen, &command, actions));
        }
        if now < self.next_disruption {
            return None;
        }
        self.next_disruption = now + SimDuration::from_secs(self.spec.disruption_poll.secs());
        self.spec.consolidate_after?;
        let candidates = self.candidates(now, seen);
        let empty: Vec<u64> = candidates
            .iter()
            .filter(|n| n.pods.is_empty())
            .map(|n| n.id)
            .take(self.budget(Reason::Empty, seen))
            .collect();
        if !empty.is_empty() {
            let told = format!("{} empty node(s) removed", empty.len());
            actions.push(Action::Disrupt {
                nodes: empty,
                after: Vec::new(),
                reason: Reason::Empty,
            });
            return Some(told);
        }
        if self.spec.consolidation_policy == ConsolidationPolicy::WhenEmpty {
            return None;
        }
        let candidates: Vec<&NodeView> = candidates
            .into_iter()
            .filter(|n| !n.pods.is_empty())
            .collect();
        let most = self.budget(Reason::Underutilized, seen).min(MOST_NODES);
        let command = self
            .several(seen, &candidates, most)
            .or_else(|| match most {
                0 => None,
                _ => candidates.iter().find_map(|n| self.command(seen, &[*n])),
            })?;
        let told = format!("{} proposed, to be validated", self.shown(&command));
        let ttl = SimDuration::from_secs(self.spec.consolidation_ttl.secs());
        self.proposed = Some((now + ttl, command));
        Some(told)
    }

    /// Carries a proposed command out if it still is what would be done.
    fn validate(
        &mut self,
        now: SimTime,
        seen: &Observed,
        command: &Command,
        actions: &mut Vec<Action>,
    ) -> String {
        let candidates = self.candidates(now, seen);
        let still: Vec<&NodeView> = candidates
            .into_iter()
            .filter(|n| command.nodes.contains(&n.id))
            .collect();
        let holds = still.len() == command.nodes.len()
            && still.len() <= self.budget(Reason::Underutilized, seen)
            && self.command(seen, &still).as_ref() == Some(command);
        if !holds {
            return format!("{} given up: it is not right any more", self.shown(command));
        }
        let mut after = Vec::new();
        if let Some(offering) = command.replacement {
            let claim = self.claim(now, offering);
            actions.push(Action::Launch { claim, offering });
            after.push(claim);
        }
        actions.push(Action::Disrupt {
            nodes: command.nodes.clone(),
            after,
            reason: Reason::Underutilized,
        });
        self.shown(command)
    }

    /// Nodes that may be taken away, those with the fewest pods first.
    fn candidates<'a>(&self, now: SimTime, seen: &Observed<'a>) -> Vec<&'a NodeView> {
        let quiet = self
            .spec
            .consolidate_after
            .map_or(SimDuration(u64::MAX), |s| SimDuration::from_secs(s.secs()));
        let mut found: Vec<&NodeView> = seen
            .nodes
            .iter()
            .filter(|n| n.is_initialized && !n.is_disrupted && now.since(n.last_pod_event) >= quiet)
            .filter(|n| n.pods.iter().all(|p| p.is_movable))
            .collect();
        found.sort_by_key(|n| (n.pods.len(), n.id));
        found
    }

    /// Nodes that the budgets leave; those that are going or not ready count as disrupted.
    fn budget(&self, reason: Reason, seen: &Observed) -> usize {
        let going = seen
            .nodes
            .iter()
            .filter(|n| n.is_disrupted || !n.is_initialized)
            .count();
        self.spec
            .allowed(reason, seen.nodes.len())
            .saturating_sub(going)
    }

    /// The largest beginning of `candidates` of at least two nodes that one command can take, by bisection as there.
    fn several(&self, seen: &Observed, candidates: &[&NodeView], most: usize) -> Option<Command> {
        let most = candidates.len().min(most);
        let (mut low, mut high) = (2, most);
        let mut best = None;
        while low <= high {
            let middle = (low + high) / 2;
            match self.command(seen, &candidates[..middle]) {
                Some(command) => {
                    best = Some(command);
                    low = middle + 1;
                }
                None => high = middle - 1,
            }
        }
        best
    }

    /// What takes the place of `nodes`: nothing, where their pods fit elsewhere, or one cheaper node.
    fn command(&self, seen: &Observed, nodes: &[&NodeView]) -> Option<Command> {
        let ids: Vec<u64> = nodes.iter().map(|n| n.id).collect();
        let pods: Vec<PodView> = nodes.iter().flat_map(|n| n.pods.iter().copied()).collect();
        // Pods that wait, and those of nodes that are going, have the first claim on what is free ...
        let mut free = self.free(seen, &ids);
        let going = (seen.nodes.iter())
            .filter(|n| n.is_disrupted && !ids.contains(&n.id))
            .flat_map(|n| &n.pods);
        let waiting: Vec<PodView> = seen.pending.iter().chain(going).copied().collect();
        place(&waiting, &mut free);
        // ... and nodes that are not initialized take none of the others.
        let there = |n: &&NodeView| n.is_initialized && !n.is_disrupted && !ids.contains(&n.id);
        free.truncate(seen.nodes.iter().filter(there).count());
        let left = place(&pods, &mut free);
        if left.is_empty() {
            return Some(Command {
                nodes: ids,
                replacement: None,
            });
        }
        let offerings = &self.spec.offerings;
        let requests = left
            .iter()
            .skip(1)
            .fold(left[0].requests, |sum, p| sum.plus(p.requests));
        let price: f64 = nodes
            .iter()
            .map(|n| offerings[n.offering].price_per_hour)
            .sum();
        let groups = (left.iter()).fold(GroupSet::ALL, |all, p| all.and(p.groups));
        let replacement = self.cheapest(requests, groups)?;
        if offerings[replacement].price_per_hour >= price {
            return None;
        }
        let same = |n: &&NodeView| {
            offerings[n.offering].instance_type == offerings[replacement].instance_type
        };
        // Several for one of a type that is among them: fewer would do without a launch.
        if nodes.len() > 1 && nodes.iter().any(same) {
            return None;
        }
        let spot = |o: usize| offerings[o].capacity_type == CapacityType::Spot;
        // Spot for spot is off: the next cheaper one would follow, and each is likelier to be taken away.
        if nodes.iter().all(|n| spot(n.offering)) && spot(replacement) {
            return None;
        }
        Some(Command {
            nodes: ids,
            replacement: Some(replacement),
        })
    }

    fn shown(&self, command: &Command) -> String {
        let nodes = command.nodes.len();
        match command.replacement {
            Some(o) => format!(
                "consolidation of {nodes} node(s) into {}",
                self.spec.offerings[o].shown()
            ),
            None => format!("consolidation of {nodes} node(s) into the others"),
        }
    }
}
