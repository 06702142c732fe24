//! A provisioner after Karpenter: nodes chosen by price for the pods that wait, and given back where fewer or cheaper ones do (5.2).
//!
//! [`Karpenter::tick`] is told the nodes, the claims that it made and the pods that the scheduler could not place. It batches those pods, puts them on what is there or
//! coming, and claims the cheapest instance types that hold the rest; it takes empty nodes away, and nodes whose pods fit elsewhere, within the budgets. Launches are
//! the caller's, who tells refusals with [`Karpenter::refused`]. Sources: kubernetes-sigs/karpenter `pkg/controllers/{provisioning,disruption}`, `pkg/apis/v1/nodepool.go`;
//! aws/karpenter-provider-aws `pkg/cache` (how long a refused offering is left alone); karpenter.sh "Disruption".
//!
//! Not modelled: drift, expiration, node repair, several pools' weights beyond their order, the balanced policy, spot-to-spot consolidation (off by default there, too).

mod disruption;
pub mod spec;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::cluster_autoscaler::spec::{GroupSet, PodView, Resources};
use crate::kernel::time::{SimDuration, SimTime};
use spec::{CapacityType, KarpenterSpec, Observed, Offering, Reason};

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Launch an instance for a NodeClaim.
    Launch {
        /// Number of the claim; its node bears it too.
        claim: u64,
        /// Index of the offering.
        offering: usize,
    },
    /// Give a claim up: its instance did not launch or register in time.
    Withdraw {
        /// Which.
        claim: u64,
    },
    /// Taint, drain and delete nodes, once the claims that replace them are ready.
    Disrupt {
        /// Nodes.
        nodes: Vec<u64>,
        /// Claims that must be initialized first.
        after: Vec<u64>,
        /// Why: `Empty` or `Underutilized`.
        reason: Reason,
    },
}

/// What a tick decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// What is to be done, in order.
    pub actions: Vec<Action>,
    /// Why, in words.
    pub why: String,
}

/// Time after which a pod that still waits is looked at again.
const POD_REQUEUE: SimDuration = SimDuration(10_000_000_000);

/// A claim whose node is not initialized yet.
#[derive(Clone, Debug)]
struct Claim {
    offering: usize,
    created: SimTime,
    launched: Option<SimTime>,
}

/// The provisioner, and what it remembers.
#[derive(Clone, Debug)]
pub struct Karpenter {
    spec: KarpenterSpec,
    claims: BTreeMap<u64, Claim>,
    next_claim: u64,
    /// First and last new pending pod of the batch.
    batch: Option<(SimTime, SimTime)>,
    /// Pending pods that were seen.
    seen: BTreeSet<u64>,
    /// When pods that still wait open a batch again.
    retry: Option<SimTime>,
    /// Offerings that were refused, and until when they are left alone.
    unavailable: BTreeMap<usize, SimTime>,
    next_disruption: SimTime,
    /// A consolidation that waits to be found right again.
    proposed: Option<(SimTime, disruption::Command)>,
}

impl Karpenter {
    /// A provisioner that begins at `start`.
    ///
    /// # Errors
    /// What is wrong with the spec.
    pub fn new(start: SimTime, spec: KarpenterSpec) -> Result<Karpenter, String> {
        spec.check()?;
        Ok(Karpenter {
            next_disruption: start + SimDuration::from_secs(spec.disruption_poll.secs()),
            spec,
            claims: BTreeMap::new(),
            next_claim: 0,
            batch: None,
            seen: BTreeSet::new(),
            retry: None,
            unavailable: BTreeMap::new(),
            proposed: None,
        })
    }

    /// Its settings.
    pub fn spec(&self) -> &KarpenterSpec {
        &self.spec
    }

    /// When the next tick is due, whatever changes before; a new pending pod is told at once.
    pub fn due(&self) -> SimTime {
        let batch = self
            .batch
            .map_or(SimTime::NEVER, |(first, last)| self.batch_end(first, last));
        let disruption = self
            .proposed
            .as_ref()
            .map_or(self.next_disruption, |(at, _)| *at);
        let retry = self
            .retry
            .filter(|_| self.batch.is_none())
            .unwrap_or(SimTime::NEVER);
        batch.min(disruption).min(retry)
    }

    fn batch_end(&self, first: SimTime, last: SimTime) -> SimTime {
        let idle = SimDuration::from_secs(self.spec.batch_idle_duration.secs());
        let most = SimDuration::from_secs(self.spec.batch_max_duration.secs());
        (last + idle).min(first + most)
    }

    /// An instance of `claim` was launched.
    pub fn launched(&mut self, now: SimTime, claim: u64) {
        if let Some(c) = self.claims.get_mut(&claim) {
            c.launched = Some(now);
        }
    }

    /// The cloud refused to launch a claim's instance (no capacity): the claim is gone and its offering left alone for a while.
    pub fn refused(&mut self, now: SimTime, claim: u64) {
        if let Some(c) = self.claims.remove(&claim) {
            let ttl = SimDuration::from_secs(self.spec.unavailable_offerings_ttl.secs());
            self.unavailable.insert(c.offering, now + ttl);
        }
    }

    /// One event: new pending pods, a batch that ends, the disruption loop.
    pub fn tick(&mut self, now: SimTime, seen: &Observed) -> Decision {
        self.unavailable.retain(|_, until| *until > now);
        // A claim is done once its node is initialized.
        self.claims
            .retain(|id, _| !seen.nodes.iter().any(|n| n.id == *id && n.is_initialized));
        let mut decision = Decision::default();
        let mut why = Vec::new();
        let overdue = self.withdraw_overdue(now, seen, &mut decision.actions);
        if overdue > 0 {
            why.push(format!("{overdue} claim(s) withdrawn: not up in time"));
        }
        self.collect(now, seen.pending);
        if let Some((first, last)) = self.batch {
            if now >= self.batch_end(first, last) {
                self.batch = None;
                why.push(self.provision(now, seen, &mut decision.actions));
            } else {
                why.push(format!(
                    "waits: a batch of {} pending pods is open",
                    seen.pending.len()
                ));
            }
        }
        if let Some(told) = self.disrupt(now, seen, &mut decision.actions) {
            why.push(told);
        }
        decision.why = match why.is_empty() {
            true => "nothing".to_owned(),
            false => why.join("; "),
        };
        decision
    }

    /// Claims that did not launch or register in time.
    fn withdraw_overdue(
        &mut self,
        now: SimTime,
        seen: &Observed,
        actions: &mut Vec<Action>,
    ) -> usize {
        let launch = SimDuration::from_secs(self.spec.launch_timeout.secs());
        let registration = SimDuration::from_secs(self.spec.registration_timeout.secs());
        let late = |id: u64, c: &Claim| match c.launched {
            None => now.since(c.created) >= launch,
            Some(_) => {
                now.since(c.created) >= registration && !seen.nodes.iter().any(|n| n.id == id)
            }
        };
        let overdue: Vec<u64> = self
            .claims
            .iter()
            .filter(|(id, c)| late(**id, c))
            .map(|(id, _)| *id)
            .collect();
        for claim in &overdue {
            self.claims.remove(claim);
            actions.push(Action::Withdraw { claim: *claim });
        }
        overdue.len()
    }

    /// Opens the batch with the first new pending pod and prolongs it with each further one. Pods that wait on do so again every [`POD_REQUEUE`].
    fn collect(&mut self, now: SimTime, pending: &[PodView]) {
        self.seen.retain(|id| pending.iter().any(|p| p.id == *id));
        let new = pending.iter().filter(|p| self.seen.insert(p.id)).count();
        if pending.is_empty() {
            self.retry = None;
            return;
        }
        let again = self.retry.is_some_and(|at| now >= at);
        if new > 0 || again {
            self.retry = Some(now + POD_REQUEUE);
            let first = self.batch.map_or(now, |(first, _)| first);
            self.batch = Some((first, now));
        }
    }

    /// Places pending pods on nodes and claims, and claims offerings for the rest.
    fn provision(&mut self, now: SimTime, seen: &Observed, actions: &mut Vec<Action>) -> String {
        // Pods of nodes that are going need a place as well.
        let going = seen
            .nodes
            .iter()
            .filter(|n| n.is_disrupted)
            .flat_map(|n| &n.pods);
        let pods: Vec<PodView> = seen.pending.iter().chain(going).copied().collect();
        let left = place(&pods, &mut self.free(seen, &[]));
        let (bins, homeless) = self.pack(&left, seen);
        let mut launched: BTreeMap<String, usize> = BTreeMap::new();
        for bin in &bins {
            let claim = self.claim(now, bin.offering);
            *launched
                .entry(self.spec.offerings[bin.offering].shown())
                .or_default() += 1;
            actions.push(Action::Launch {
                claim,
                offering: bin.offering,
            });
        }
        let mut told = match bins.is_empty() {
            true => "no node claimed".to_owned(),
            false => {
                let kinds: Vec<String> = launched
                    .iter()
                    .map(|(name, n)| format!("{n} x {name}"))
                    .collect();
                format!("claimed {}", kinds.join(", "))
            }
        };
        told += &format!(
            " for {} of {} pods",
            left.len() - homeless.len(),
            pods.len()
        );
        if let Some((_, reason)) = homeless.first() {
            told += &format!("; {} have no place: {reason}", homeless.len());
        }
        told
    }

    fn claim(&mut self, now: SimTime, offering: usize) -> u64 {
        let id = self.spec.first_claim + self.next_claim;
        self.next_claim += 1;
        let claim = Claim {
            offering,
            created: now,
            launched: None,
        };
        self.claims.insert(id, claim);
        id
    }

    /// What is free on initialized nodes other than `without`, and on claims.
    fn free(&self, seen: &Observed, without: &[u64]) -> Vec<Free> {
        let used = |pods: &[PodView]| {
            pods.iter()
                .fold(Resources::default(), |sum, p| sum.plus(p.requests))
        };
        let nodes = seen
            .nodes
            .iter()
            .filter(|n| n.is_initialized && !n.is_disrupted && !without.contains(&n.id))
            .map(|n| (n.offering, n.allocatable.less(used(&n.pods))));
        let claims = self.claims.iter().map(|(id, c)| {
            let node = seen.nodes.iter().find(|n| n.id == *id);
            let used = node.map_or(Resources::default(), |n| used(&n.pods));
            let whole = self.spec.offerings[c.offering].allocatable;
            (c.offering, whole.less(used))
        });
        nodes.chain(claims).collect()
    }

    /// New nodes for pods, largest first: each takes pods as long as one offering holds them all, and becomes the cheapest that does. Pods
    /// without a place come back with the reason.
    fn pack(&self, pods: &[PodView], seen: &Observed) -> (Vec<Bin>, Vec<(u64, String)>) {
        let mut bins: Vec<Bin> = Vec::new();
        let mut homeless = Vec::new();
        let mut room = self.spec.nodes_limit.map(|most| {
            let claimed = self
                .claims
                .keys()
                .filter(|id| !seen.nodes.iter().any(|n| n.id == **id))
                .count();
            most.saturating_sub(seen.nodes.len() + claimed)
        });
        for pod in largest_first(pods) {
            let fitting = bins.iter_mut().find_map(|b| {
                let (used, groups) = (b.used.plus(pod.requests), b.groups.and(pod.groups));
                let offering = self.cheapest(used, groups)?;
                Some((
                    b,
                    Bin {
                        used,
                        groups,
                        offering,
                    },
                ))
            });
            if let Some((bin, fuller)) = fitting {
                *bin = fuller;
                continue;
            }
            match self.cheapest(pod.requests, pod.groups) {
                None => homeless.push((pod.id, self.why_none(&pod))),
                Some(_) if room == Some(0) => {
                    homeless.push((pod.id, "the pool is at its limit of nodes".to_owned()))
                }
                Some(offering) => {
                    room = room.map(|r| r - 1);
                    bins.push(Bin {
                        used: pod.requests,
                        groups: pod.groups,
                        offering,
                    });
                }
            }
        }
        (bins, homeless)
    }

    /// The cheapest offering among `groups` that holds `requests` and is not left alone.
    fn cheapest(&self, requests: Resources, groups: GroupSet) -> Option<usize> {
        let offerings = &self.spec.offerings;
        (0..offerings.len())
            .filter(|i| {
                !self.unavailable.contains_key(i)
                    && groups.has(*i)
                    && offerings[*i].allocatable.holds(requests)
            })
            .min_by(|a, b| {
                offerings[*a]
                    .price_per_hour
                    .total_cmp(&offerings[*b].price_per_hour)
            })
    }

    fn why_none(&self, pod: &PodView) -> String {
        let holds =
            |(i, o): &(usize, &Offering)| pod.groups.has(*i) && o.allocatable.holds(pod.requests);
        match self.spec.offerings.iter().enumerate().find(holds) {
            Some((_, o)) => format!("insufficient capacity of {}", o.shown()),
            None => "no instance type holds the pod".to_owned(),
        }
    }
}

/// A node that is to be.
#[derive(Clone, Debug)]
struct Bin {
    used: Resources,
    /// Where all of its pods may be.
    groups: GroupSet,
    offering: usize,
}

fn largest_first(pods: &[PodView]) -> Vec<PodView> {
    let mut pods = pods.to_vec();
    pods.sort_by_key(|p| {
        let r = p.requests;
        (
            std::cmp::Reverse((r.gpus, r.cpu_milli, r.memory_bytes)),
            p.id,
        )
    });
    pods
}

/// What is free on a node: the index of its offering, and how much.
type Free = (usize, Resources);

/// Puts pods on free room, largest first; those that are left.
fn place(pods: &[PodView], free: &mut [Free]) -> Vec<PodView> {
    let mut left = Vec::new();
    for pod in largest_first(pods) {
        let fits =
            |(offering, room): &&mut Free| pod.groups.has(*offering) && room.holds(pod.requests);
        match free.iter_mut().find(fits) {
            Some((_, room)) => *room = room.less(pod.requests),
            None => left.push(pod),
        }
    }
    left
}

impl Offering {
    fn shown(&self) -> String {
        match self.capacity_type {
            CapacityType::OnDemand => self.instance_type.clone(),
            CapacityType::Spot => format!("{} (spot)", self.instance_type),
        }
    }
}
