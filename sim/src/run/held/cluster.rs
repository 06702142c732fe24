//! A run in a cluster: when the cluster acts, what it sees, and what becomes of engines.

use hwmodels::StepModel;

use super::Run;
use crate::cluster::replica::Lifecycle;
use crate::kernel::time::SimTime;
use crate::kube::record::ClusterRecord;
use crate::kube::slow::{Slowed, Speed};
use crate::kube::{Order, Sight, Traffic, Vitals};
use crate::record::RunInfo;
use crate::run::gate::Gate;
use crate::run::gateway::Gateway;
use crate::run::group::Fleet;
use crate::run::options::RunError;
use crate::run::plans::Change;
use crate::run::services::Services;
use crate::simulation::{ReplicaSpec, Simulation};

/// What the cluster sees of a run.
struct Seen<'a> {
    fleet: &'a Fleet,
    services: &'a Services,
    gateway: &'a Gateway,
    gate: Option<&'a Gate>,
    offered: u64,
    ended: u64,
    templates: &'a [ReplicaSpec],
}

impl Sight for Seen<'_> {
    fn engine(&self, index: u32) -> Vitals {
        self.fleet.peek(index).vitals()
    }

    fn held(&self) -> u64 {
        self.gateway.len() as u64
    }

    fn offered(&self) -> u64 {
        self.offered
    }

    fn ended(&self) -> u64 {
        self.ended
    }

    fn traffic(&self, deployment: usize) -> Traffic {
        if self.services.len() == 1 {
            return Traffic {
                offered: self.offered,
                ended: self.ended,
                held: self.held(),
            };
        }
        let service = self.services.of_pool(deployment);
        let held = self.gateway.len_of(service) as u64;
        let at_replicas: usize = (0..self.fleet.len())
            .filter(|i| self.services.of_replica(*i) == service)
            .map(|i| self.fleet.peek(i).outstanding())
            .sum();
        let again = (self.gate.and_then(|g| g.retries.as_ref())).map_or(0, |r| {
            let of = r.waiting_specs().map(|spec| self.services.entry(spec));
            of.filter(|s| *s == Some(service)).count()
        });
        let offered = self.services.offered(service);
        Traffic {
            offered,
            ended: offered.saturating_sub(held + (at_replicas + again) as u64),
            held,
        }
    }

    fn steps(&self, deployment: usize) -> &dyn StepModel {
        &*self.templates[deployment].step
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
        let Some((mut cluster, templates)) = self.cluster.take() else {
            return Ok(());
        };
        while cluster.next() <= now {
            let seen = Seen {
                fleet: &self.fleet,
                services: &self.services,
                gateway: &self.gateway,
                gate: self.gate.as_deref(),
                offered: self.offered - u64::from(self.drawn.is_some()),
                ended: self.ended(),
                templates: &templates,
            };
            for order in cluster.act(now, &seen) {
                match order {
                    Order::Start {
                        unit,
                        deployment,
                        speed,
                    } => {
                        let engine = self.start_engine(&templates, deployment, speed)?;
                        cluster.started(now, unit, engine);
                    }
                    Order::Drain(engine) => self.change(Change::Drain(engine))?,
                    Order::CutOff(engine, timeout) => {
                        self.change(Change::CutOff(engine, timeout))?;
                    }
                    Order::Reach(engine) => self.change(Change::Reach(engine))?,
                    Order::Kill(engine) => self.change(Change::Kill(engine))?,
                    Order::KvLinks(shares) => {
                        if let Some(h) = &mut self.handovers {
                            h.set_shares(now, shares);
                        }
                    }
                    Order::KvPort(engine, share) => {
                        if let Some(h) = &mut self.handovers {
                            h.set_own_share(now, engine, share);
                        }
                    }
                }
            }
        }
        self.cluster = Some((cluster, templates));
        Ok(())
    }

    /// Starts an engine, ready at once: the pods that it runs in have gone through their start.
    fn start_engine(
        &mut self,
        templates: &[ReplicaSpec],
        pool: usize,
        speed: Option<Speed>,
    ) -> Result<u32, RunError> {
        let mut spec = templates[pool].clone();
        let share = (speed.as_ref()).map_or(1.0, |speed| speed.get().link_share());
        if let Some(speed) = speed {
            let inner = spec.step;
            spec.step = std::sync::Arc::new(Slowed { inner, speed });
        }
        if let Some(drift) = &mut spec.drift {
            drift.machine = self.fleet.len();
        }
        self.reached = self.reached.max(self.now);
        let engine = self.add_to(pool, &spec)?;
        if let Some(h) = self.handovers.as_mut().filter(|_| share != 1.0) {
            h.set_own_share(self.now, engine, share);
        }
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

/// What the replicas of each deployment are like: the first of each pool of `sim`.
///
/// # Errors
/// [`RunError::NoReplica`] where a pool has none.
pub(super) fn templates(sim: &Simulation) -> Result<Vec<ReplicaSpec>, RunError> {
    let pools = sim.serving.pools.len().max(1);
    let mut firsts = vec![None; pools];
    let of = sim.serving.pool_of_replicas().chain(std::iter::repeat(0));
    for (spec, pool) in sim.replicas.iter().zip(of) {
        firsts[pool].get_or_insert(spec);
    }
    (firsts.into_iter())
        .map(|first| first.cloned().ok_or(RunError::NoReplica))
        .collect()
}

/// Tells reports of the engines that a cluster had, and what its nodes cost on average.
pub(super) fn describe(info: &mut RunInfo, around: &ClusterRecord, engines: u32) {
    let mut firsts = vec![0];
    for pool in &info.pools {
        firsts.push(firsts[firsts.len() - 1] + pool.replicas as usize);
    }
    let mut counts = vec![0; firsts.len()];
    let of = around.engine_deployments(engines as usize);
    let replicas: Option<Vec<_>> = (of.into_iter())
        .map(|pool| {
            let mut replica = info.replicas.get(firsts[pool])?.clone();
            let prefix = (replica.name.rsplit_once('/')).map_or(replica.name.as_str(), |(p, _)| p);
            replica.name = format!("{prefix}/{}", counts[pool]);
            counts[pool] += 1;
            Some(replica)
        })
        .collect();
    if let Some(replicas) = replicas {
        info.replicas = replicas;
    }
    for (pool, n) in info.pools.iter_mut().zip(counts) {
        pool.replicas = n;
    }
    let hours = around.end.as_secs() / 3600.0;
    info.usd_per_hour = around.usd().filter(|_| hours > 0.0).map(|usd| usd / hours);
}
