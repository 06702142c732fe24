//! What others see of pods and replicas.

use super::super::cluster::Cluster;
use super::super::sight::Order;
use super::super::slow::Slow;
use super::super::unit::{State, Unit};
use crate::control::hpa::pods::{PodPhase, PodState, ReadyCondition};
use crate::kernel::time::SimTime;

impl Cluster {
    /// The pods that the HPA's selector matches, leaders alone, by replica.
    pub(in crate::kube) fn pods_for_hpa(&self, d: usize) -> (Vec<u64>, Vec<PodState>) {
        let mut ids = Vec::new();
        let mut states = Vec::new();
        for unit in self.live_of(d) {
            let u = &self.units[unit];
            let leader = &self.pods[u.pods[0]];
            // While its container waits to start again its phase stays Running.
            let is_running = leader.started != SimTime::NEVER || leader.restarts > 0;
            let set = |t: SimTime| (t != SimTime::NEVER).then_some(t);
            ids.push(unit as u64);
            states.push(PodState {
                phase: if is_running {
                    PodPhase::Running
                } else {
                    PodPhase::Pending
                },
                deleted: u.state == State::Draining && !u.is_shut_down,
                started: set(leader.scheduled),
                ready: set(leader.scheduled).map(|scheduled| ReadyCondition {
                    is_ready: u.state == State::Serving,
                    since: set(u.ready).unwrap_or(scheduled),
                }),
            });
        }
        (ids, states)
    }

    /// Units of deployment `d` that have not ended, in the order in which they came.
    fn live_of(&self, d: usize) -> impl Iterator<Item = usize> {
        (self.live.iter().copied()).filter(move |u| self.units[*u].deployment == d)
    }

    /// The deployment of pod `p`.
    pub(in crate::kube) fn deployment_of(&self, p: usize) -> usize {
        self.units[self.pods[p].unit].deployment
    }

    /// Units of deployment `d` whose engines can be looked at, with their engines.
    pub(in crate::kube) fn engines(&self, d: usize) -> impl Iterator<Item = (usize, u32)> {
        (self.live_of(d))
            .filter(|u| self.units[*u].is_up())
            .filter_map(|u| Some((u, self.units[u].engine?)))
    }

    /// How much longer the steps of a replica take: the slowest node of a gang sets its pace.
    pub(in crate::kube) fn slowdown_of(&self, unit: usize) -> Slow {
        (self.units[unit].pods.iter())
            .filter_map(|p| self.pods[*p].node)
            .map(|n| self.nodes[n].slowdown())
            .fold(Slow::default(), Slow::worst)
    }

    /// The nodes of some replicas have another speed: their engines too.
    pub(in crate::kube) fn set_speeds(&mut self, node: usize) {
        for p in self.nodes[node].pods.clone() {
            let unit = self.pods[p].unit;
            let slow = self.slowdown_of(unit);
            let of = &self.units[unit];
            let Some(speed) = &of.speed else {
                continue;
            };
            let before = speed.get();
            speed.set(slow);
            if let Some(engine) = of.engine
                && before.communication != slow.communication
            {
                self.orders.push(Order::KvPort(engine, slow.link_share()));
            }
        }
    }

    /// Name of a replica.
    pub(in crate::kube) fn name_of(&self, unit: usize) -> &str {
        &self.units[unit].name
    }

    /// Replicas of deployment `d` whose controller counts them, in the order in which they came.
    pub(in crate::kube) fn counted(&self, d: usize) -> Vec<usize> {
        (self.live_of(d))
            .filter(|u| self.units[*u].counts())
            .collect()
    }

    /// Replicas of deployment `d`, or of all, for which `is` holds, in the order in which they came.
    pub(in crate::kube) fn those(&self, d: Option<usize>, is: fn(&Unit) -> bool) -> Vec<usize> {
        (self.live.iter().copied())
            .filter(|u| d.is_none_or(|d| self.units[*u].deployment == d))
            .filter(|u| is(&self.units[*u]))
            .collect()
    }

    /// Whether a pod was told to end.
    pub(in crate::kube) fn is_ending(&self, p: usize) -> bool {
        self.units[self.pods[p].unit].state == State::Draining
    }

    pub(in crate::kube) fn generation_of(&self, unit: usize) -> u32 {
        self.units[unit].generation
    }

    pub(in crate::kube) fn is_ready(&self, unit: usize) -> bool {
        self.units[unit].is_serving()
    }

    /// Which of several ready replicas a rolling update takes next: of a LeaderWorkerSet the highest index, of a Deployment the one that became
    /// ready last.
    pub(in crate::kube) fn last_of(&self, units: &[usize]) -> Option<usize> {
        units.iter().copied().max_by_key(|u| {
            let unit = &self.units[*u];
            (
                if self.is_set_of_groups(unit.deployment) {
                    u64::from(unit.ordinal)
                } else {
                    unit.ready.0
                },
                *u,
            )
        })
    }

    /// Replicas of all deployments that are ready.
    pub(in crate::kube) fn ready_units(&self) -> usize {
        self.deployments.iter().map(|d| d.ready).sum()
    }

    /// Replicas of deployment `d` that are ready.
    pub(in crate::kube) fn ready_of(&self, d: usize) -> usize {
        self.deployments[d].ready
    }

    /// Replicas that Deployment or LeaderWorkerSet `d` counts: `status.replicas`.
    pub(in crate::kube) fn counted_units(&self, d: usize) -> usize {
        self.deployments[d].counted
    }

    /// Index of the replica whose start `epoch` is under way.
    pub(in crate::kube) fn is_current(&self, unit: usize, epoch: u32) -> bool {
        let u = &self.units[unit];
        u.epoch == epoch && !matches!(u.state, State::Gone | State::Lost)
    }
}
