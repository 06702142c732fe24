//! A run in a cluster: when the cluster acts, what it sees, and what becomes of engines.

use hwmodels::StepModel;

use super::Run;
use crate::cluster::replica::Lifecycle;
use crate::kernel::time::SimTime;
use crate::kube::record::ClusterRecord;
use crate::kube::slow::{Slowed, Speed};
use crate::kube::{Order, Sight, Vitals};
use crate::record::RunInfo;
use crate::run::group::Fleet;
use crate::run::options::RunError;
use crate::run::plans::Change;
use crate::simulation::ReplicaSpec;

/// What the cluster sees of a run.
struct Seen<'a> {
    fleet: &'a Fleet,
    held: u64,
    offered: u64,
    ended: u64,
    steps: &'a dyn StepModel,
}

impl Sight for Seen<'_> {
    fn engine(&self, index: u32) -> Vitals {
        self.fleet.peek(index).vitals()
    }

    fn held(&self) -> u64 {
        self.held
    }

    fn offered(&self) -> u64 {
        self.offered
    }

    fn ended(&self) -> u64 {
        self.ended
    }

    fn steps(&self) -> &dyn StepModel {
        self.steps
    }
}

impl Run<'_> {
    /// When something happens next outside of replicas and clients.
    pub(super) fn next_own(&self) -> SimTime {
        let cluster = (self.cluster.as_ref()).map_or(SimTime::NEVER, |(cluster, _)| cluster.next());
        self.plans.next().min(self.gateway.next()).min(cluster)
    }

    /// Lets the cluster do all that is due at `now`: class 2b of [`crate::cluster`].
    pub(super) fn act_in_cluster(&mut self, now: SimTime) -> Result<(), RunError> {
        let Some((mut cluster, template)) = self.cluster.take() else {
            return Ok(());
        };
        while cluster.next() <= now {
            let seen = Seen {
                fleet: &self.fleet,
                held: self.gateway.len() as u64,
                offered: self.offered - u64::from(self.drawn.is_some()),
                ended: self.ended(),
                steps: &*template.step,
            };
            for order in cluster.act(now, &seen) {
                match order {
                    Order::Start { unit, speed } => {
                        let engine = self.start_engine(&template, speed)?;
                        cluster.started(now, unit, engine);
                    }
                    Order::Drain(engine) => self.change(Change::Drain(engine))?,
                    Order::CutOff(engine, timeout) => {
                        self.change(Change::CutOff(engine, timeout))?;
                    }
                    Order::Reach(engine) => self.change(Change::Reach(engine))?,
                    Order::Kill(engine) => self.change(Change::Kill(engine))?,
                }
            }
        }
        self.cluster = Some((cluster, template));
        Ok(())
    }

    /// Starts an engine, ready at once: the pods that it runs in have gone through their start.
    fn start_engine(
        &mut self,
        template: &ReplicaSpec,
        speed: Option<Speed>,
    ) -> Result<u32, RunError> {
        let mut spec = template.clone();
        if let Some(speed) = speed {
            let inner = spec.step;
            spec.step = std::sync::Arc::new(Slowed { inner, speed });
        }
        if let Some(drift) = &mut spec.drift {
            drift.machine = self.fleet.len();
        }
        self.reached = self.reached.max(self.now);
        let engine = self.add(&spec)?;
        self.change(Change::Ready(engine))?;
        Ok(engine)
    }

    /// Whether a run in a cluster is over before `at`: every request has ended, or those that have not wait for a replica that does not
    /// come. The cluster's own turns would go on for ever.
    pub(super) fn ends_in_cluster(&mut self, at: SimTime) -> bool {
        if self.until != SimTime::NEVER
            || self.cluster.is_none()
            || self.announced().is_some()
            || self.plans.next() != SimTime::NEVER
            || self.gate.as_ref().is_some_and(|g| g.waiting() > 0)
        {
            return false;
        }
        let is_busy = (0..self.fleet.len()).any(|i| {
            let replica = self.fleet.peek(i);
            replica.lifecycle != Lifecycle::Gone && replica.outstanding() > 0
        });
        if is_busy {
            return false;
        }
        let ended = self.ended();
        let is_waiting = self.gateway.len() > 0;
        match &mut self.cluster {
            Some((cluster, _)) => !(is_waiting && cluster.may_still_serve(at, ended)),
            None => true,
        }
    }
}

/// Tells reports of the engines that a cluster had, and what its nodes cost on average.
pub(super) fn describe(info: &mut RunInfo, around: &ClusterRecord, engines: u32) {
    if let Some(first) = info.replicas.first().cloned() {
        let prefix = first
            .name
            .rsplit_once('/')
            .map_or(first.name.as_str(), |(p, _)| p)
            .to_owned();
        info.replicas = (0..engines)
            .map(|i| {
                let mut replica = first.clone();
                replica.name = format!("{prefix}/{i}");
                replica
            })
            .collect();
    }
    let hours = around.end.as_secs() / 3600.0;
    info.usd_per_hour = around.usd().filter(|_| hours > 0.0).map(|usd| usd / hours);
}
