//! Models that share the accelerators of a cluster and are loaded on demand: what the controller sees of pods and nodes, and what becomes of its decisions.
//!
//! Each model is a Deployment. A swap tells replicas of others to end (they drain, and sleep or go) and creates one of the model that is asked for, whose pod is
//! Pending until the accelerators are free.

use super::cluster::Cluster;
use super::event::Event;
use super::record::{Controller, DecisionRow, SwapRow};
use super::shared_models::Shared;
use super::sight::Sight;
use super::unit::State;
use crate::control::on_demand::{Action, ModelView, NodeView, Resident};
use crate::kernel::time::SimTime;

impl Cluster {
    /// A request waits at the gateway: models that are loaded on demand are looked at now. Whether there are such.
    pub fn call(&mut self, now: SimTime) -> bool {
        let is_there = self.shared.is_some();
        self.plan_look(now);
        is_there
    }

    pub(super) fn plan_look(&mut self, at: SimTime) {
        if let Some(shared) = &mut self.shared
            && at < shared.planned
        {
            shared.planned = at;
            self.plan(at, Event::Look);
        }
    }

    /// A look at models that are loaded on demand.
    pub(super) fn look(&mut self, now: SimTime, sight: &dyn Sight) {
        let Some(mut shared) = self.shared.take() else {
            return;
        };
        if shared.planned > now {
            // An earlier plan took its place.
            self.shared = Some(shared);
            return;
        }
        shared.planned = SimTime::NEVER;
        self.withdraw(now, &mut shared);
        let models: Vec<ModelView> = (shared.pools.iter())
            .map(|d| self.model_view(*d, sight))
            .collect();
        let nodes = self.shared_nodes(&shared);
        let (actions, due) = shared.control.look(now, &models, &nodes);
        for action in actions {
            match action {
                Action::Load {
                    model,
                    evict,
                    node,
                    why,
                } => self.swap(now, &mut shared, model, (evict, node), why),
                Action::Unload { unit, model, why } => {
                    self.give_up(now, shared.pools[model], unit, &why);
                }
            }
        }
        self.shared = Some(shared);
        self.plan_look(due);
    }

    fn model_view(&self, d: usize, sight: &dyn Sight) -> ModelView {
        let t = sight.traffic(d);
        let ready = self.ready_of(d);
        ModelView {
            offered: t.offered,
            unanswered: t.offered.saturating_sub(t.ended),
            held: t.held,
            starting: self.counted_units(d).saturating_sub(ready),
            ready,
        }
    }

    /// Pods that found no room where it was meant for them are withdrawn: their models are loaded anew where they are still asked for.
    fn withdraw(&mut self, now: SimTime, shared: &mut Shared) {
        let is_pending = |c: &Cluster, unit: usize| {
            let u = &c.units[unit];
            u.state == State::Starting && c.pods[u.pods[0]].node.is_none()
        };
        shared.intended.retain(|(unit, _)| is_pending(self, *unit));
        for n in self.present.clone() {
            let of_node = |i: &(usize, Option<usize>)| i.1 == Some(n);
            while self.coming(n) < self.wanted_on(n, shared) {
                // The youngest finds none.
                let Some(i) = shared.intended.iter().rposition(of_node) else {
                    break;
                };
                shared.intended.remove(i);
            }
        }
        let usable = |d: usize| {
            (self.present.iter()).any(|n| {
                let node = &self.nodes[*n];
                node.is_usable() && self.spec.deployments[d].may_use(node.group)
            })
        };
        let is_meant = |unit: usize, d: usize| {
            (shared.intended.iter()).any(|(u, node)| {
                *u == unit
                    && match node {
                        Some(n) => self.nodes[*n].is_usable(),
                        None => !usable(d),
                    }
            })
        };
        let lost: Vec<(usize, usize)> = (self.live.iter())
            .map(|u| (*u, self.units[*u].deployment))
            .filter(|(u, d)| {
                shared.pools.contains(d) && is_pending(self, *u) && usable(*d) && !is_meant(*u, *d)
            })
            .collect();
        for (unit, d) in lost {
            self.give_up(now, d, unit, "its pod found no room");
        }
    }

    /// Accelerators of node `n` that nobody holds, or nobody will once those that end are gone.
    fn coming(&self, n: usize) -> i64 {
        let node = &self.nodes[n];
        let all = self.spec.groups[node.group].template.gpus;
        let held: i64 = (node.pods.iter())
            .filter(|p| !self.is_ending(**p))
            .map(|p| self.requests_of(*p).gpus)
            .sum();
        match node.is_usable() {
            true => all - held,
            false => 0,
        }
    }

    /// Accelerators of node `n` that replicas are to find there.
    fn wanted_on(&self, n: usize, shared: &Shared) -> i64 {
        (shared.intended.iter())
            .filter(|(_, node)| *node == Some(n))
            .map(|(unit, _)| self.requests_of(self.units[*unit].pods[0]).gpus)
            .sum()
    }

    fn shared_nodes(&self, shared: &Shared) -> Vec<NodeView> {
        let resident = |p: &usize| {
            let unit = self.pods[*p].unit;
            let u = &self.units[unit];
            let model = shared.pools.iter().position(|d| *d == u.deployment)?;
            u.is_serving().then_some(Resident {
                unit,
                model,
                since: u.ready,
            })
        };
        let view = |n: usize| NodeView {
            id: n,
            available: self.coming(n) - self.wanted_on(n, shared),
            residents: self.nodes[n].pods.iter().filter_map(resident).collect(),
            may: (shared.pools.iter())
                .map(|d| self.spec.deployments[*d].may_use(self.nodes[n].group))
                .collect(),
        };
        (self.present.iter().copied())
            .filter(|n| self.nodes[*n].is_usable())
            .map(view)
            .collect()
    }

    /// Replica `unit` of deployment `d` goes.
    fn give_up(&mut self, now: SimTime, d: usize, unit: usize, why: &str) {
        let from = self.deployments[d].desired;
        self.deployments[d].desired = from.saturating_sub(1).max(0);
        self.remove(now, unit, why);
        self.swapped(now, d, (from, self.deployments[d].desired), why.to_owned());
    }

    /// A replica of `model` is to come, in place of others.
    fn swap(
        &mut self,
        now: SimTime,
        shared: &mut Shared,
        model: usize,
        (evict, node): (Vec<usize>, Option<usize>),
        why: String,
    ) {
        let d = shared.pools[model];
        for unit in &evict {
            let why = format!("evicted for {}", self.spec.deployments[d].name);
            self.give_up(now, self.units[*unit].deployment, *unit, &why);
        }
        let from = self.deployments[d].desired;
        self.deployments[d].desired = from.saturating_add(1);
        let unit = self.units.len();
        self.create(now, d);
        shared.intended.push((unit, node));
        shared.swaps.push(SwapRow {
            at: now,
            deployment: d,
            replica: unit,
            evicted: evict,
        });
        self.swapped(now, d, (from, from.saturating_add(1)), why);
    }

    fn swapped(&mut self, now: SimTime, d: usize, (from, to): (i32, i32), why: String) {
        self.note(DecisionRow {
            at: now,
            controller: Controller::OnDemand,
            about: self.about(d),
            from: from.into(),
            to: to.into(),
            ready: self.ready_of(d) as u32,
            inputs: String::new(),
            why,
        });
    }
}
