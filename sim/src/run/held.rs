//! The run itself: its state, its start, and the loop over its instants.

mod advancing;
mod arrivals;
mod cluster;
mod ending;
mod gate;
mod handover;
mod instant;
mod scrapes;

use super::gate::Gate;
use super::gateway::Gateway;
use super::group::{Fleet, Group, MOST_GROUPS};
use super::handovers::Handovers;
use super::options::{Path, RunError, RunOptions};
use super::plans::{Change, Plans};
use super::services::Services;
use super::view::{Pace, ReplicaView, Snapshot, Status};
use crate::cluster::gateway::GatewaySpec;
use crate::cluster::pools::{PoolSpec, Role};
use crate::cluster::replica::{Books, Replica};
use crate::kernel::time::{SimDuration, SimTime};
use crate::kernel::tournament::Tournament;
use crate::kube::Cluster;
use crate::kube::spec::{ClusterSpec, HoldSpec};
use crate::metrics::Recorder;
use crate::observer::{FleetEvent, Observer};
use crate::request::{ReqId, RequestSpec};
use crate::simulation::{ReplicaSpec, Simulation};
use crate::workload::Workload;

/// A deployment under load, at some instant of its virtual clock.
pub struct Run<'w> {
    workload: Box<dyn Workload + 'w>,
    /// Which replicas a request may go to, and who chooses among them.
    services: Services,
    /// Requests that are prefilled on one replica and decoded on another, where there are such.
    handovers: Option<Box<Handovers>>,
    /// What the gateway does with tries that fail, where it does anything.
    gate: Option<Box<Gate>>,
    fleet: Fleet,
    pace: Pace,
    /// When each replica must be looked at next; not kept up while the pace is [`Pace::Ahead`].
    clocks: Tournament,
    plans: Plans,
    /// What stands around the replicas, and what those of each of its deployments are made like.
    cluster: Option<(Cluster, Vec<ReplicaSpec>)>,
    /// There is one, also while it acts.
    is_in_cluster: bool,
    gateway: Gateway,
    /// How long and how many requests wait while no replica is ready; `None`: they are refused.
    holds: Option<HoldSpec>,
    /// Requests that each ready replica may have unanswered, and how many all of them have.
    limit: Option<u32>,
    under_way: u64,
    scrape_period: Option<SimDuration>,
    next_scrape: SimTime,
    request_timeout: Option<SimDuration>,
    seed: u64,
    pools: Vec<PoolSpec>,
    judges: GatewaySpec,
    shared: bool,
    path: Path,
    check: bool,
    max_request_rows: usize,
    /// Nothing happens after this.
    until: SimTime,
    /// The last instant at which something happened outside of replicas.
    now: SimTime,
    /// The instant up to which all has happened.
    reached: SimTime,
    spec: RequestSpec,
    /// `spec` was drawn under this id and is not routed yet.
    drawn: Option<ReqId>,
    offered: u64,
    /// When requests were sent that the first group's books alone know of.
    sent: Vec<SimTime>,
    /// Requests that ended at the gateway.
    ended: u64,
    /// The cluster was called: it has something to do at this instant.
    called: bool,
    /// Replicas at which something happens at this instant.
    due: Vec<u32>,
}

impl<'w> Run<'w> {
    /// `sim` under `workload`, before anything has happened.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn new(
        sim: &Simulation,
        workload: Box<dyn Workload + 'w>,
        options: &RunOptions,
    ) -> Result<Run<'w>, RunError> {
        Run::start(sim, workload, options, None, None)
    }

    /// The same, with somebody who is told of all that happens.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn watched(
        sim: &Simulation,
        workload: Box<dyn Workload + 'w>,
        options: &RunOptions,
        observer: Box<dyn Observer>,
    ) -> Result<Run<'w>, RunError> {
        Run::start(sim, workload, options, Some(observer), None)
    }

    /// `sim` in a cluster: replicas like the first, with pools like the first of each, come and go as `cluster` says, none of them being there
    /// before.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn in_cluster(
        sim: &Simulation,
        workload: Box<dyn Workload + 'w>,
        options: &RunOptions,
        cluster: &ClusterSpec,
        observer: Option<Box<dyn Observer>>,
    ) -> Result<Run<'w>, RunError> {
        Run::start(sim, workload, options, observer, Some(cluster))
    }

    fn start(
        sim: &Simulation,
        workload: Box<dyn Workload + 'w>,
        options: &RunOptions,
        observer: Option<Box<dyn Observer>>,
        cluster: Option<&ClusterSpec>,
    ) -> Result<Run<'w>, RunError> {
        if sim.replicas.is_empty() {
            return Err(RunError::NoReplica);
        }
        let n = cluster.map_or(sim.replicas.len(), Cluster::most_replicas);
        let services = Services::new(sim);
        let limit = cluster.and_then(|c| c.max_outstanding);
        let splits = sim.serving.transfer;
        let gate = Gate::new(&sim.serving.gateway, sim.seed);
        let on_demand = cluster.is_some_and(|c| c.on_demand.is_some());
        let is_watched = observer.is_some()
            || limit.is_some()
            || splits.is_some()
            || gate.is_some()
            || on_demand;
        let scraped = sim.scrape_period.is_some();
        let pace = if workload.reacts() || is_watched {
            Pace::Instants
        } else if n > 1 && services.see_no_state(scraped) {
            Pace::Ahead
        } else {
            Pace::Arrivals
        };
        let groups = match pace {
            Pace::Ahead => n.min(MOST_GROUPS),
            Pace::Arrivals | Pace::Instants => 1,
        };
        let group = || empty_group(options, pace);
        let mut groups: Vec<Group> = (0..groups).map(|_| group()).collect();
        if cluster.is_some() {
            groups
                .iter_mut()
                .for_each(|g| g.books.recorder.keep_course());
        }
        if let Some(observer) = observer {
            groups[0].books.recorder.watch(observer);
        }
        let mut run = Run {
            services,
            gate,
            judges: sim.serving.gateway,
            handovers: splits.map(|spec| Box::new(Handovers::new(spec, &sim.serving.pools))),
            shared: workload.shares_content(),
            workload,
            fleet: Fleet::new(groups),
            pace,
            clocks: Tournament::new(n),
            plans: Plans::default(),
            cluster: match cluster {
                Some(spec) => {
                    let cluster =
                        Cluster::new(spec.clone(), sim.seed).map_err(RunError::Cluster)?;
                    Some((cluster, cluster::templates(sim)?))
                }
                None => None,
            },
            is_in_cluster: cluster.is_some(),
            gateway: Gateway::default(),
            holds: cluster.map_or(Some(HoldSpec::default()), |c| c.hold),
            limit,
            under_way: 0,
            scrape_period: sim.scrape_period,
            next_scrape: SimTime::ZERO,
            request_timeout: sim.request_timeout,
            seed: sim.seed,
            pools: sim.serving.pools.clone(),
            path: options.path,
            check: options.check,
            max_request_rows: options.record.max_request_rows,
            until: options.until.unwrap_or(SimTime::NEVER),
            now: SimTime::ZERO,
            reached: SimTime::ZERO,
            spec: RequestSpec::default(),
            drawn: None,
            offered: 0,
            sent: Vec::new(),
            ended: 0,
            called: false,
            due: Vec::new(),
        };
        if splits.is_some() {
            run.fleet.groups[0].books.recorder.transfers();
        }
        if cluster.is_none() {
            let pools = sim.serving.pool_of_replicas().chain(std::iter::repeat(0));
            for (spec, pool) in sim.replicas.iter().zip(pools) {
                let i = run.add_to(pool, spec)?;
                run.change(Change::Ready(i))?;
            }
        }
        Ok(run)
    }

    /// Adds a replica, which the router does not know of until [`Change::Ready`]. Returns its index.
    ///
    /// # Errors
    /// [`RunError::NotFast`].
    pub fn add(&mut self, spec: &ReplicaSpec) -> Result<u32, RunError> {
        self.add_to(0, spec)
    }

    /// The same, to the pool with index `pool`.
    ///
    /// # Errors
    /// [`RunError::NotFast`].
    pub fn add_to(&mut self, pool: usize, spec: &ReplicaSpec) -> Result<u32, RunError> {
        let i = self.fleet.len();
        let role = self.pools.get(pool).map_or(Role::Both, |p| p.role);
        let is_split = role != Role::Both;
        let engine = spec.engine(i, self.shared, self.path, self.seed, is_split)?;
        let block = spec.hash_block(self.shared);
        let mut replica = Replica::new(i, spec, engine, block, self.reached);
        replica.prefills = role == Role::Prefill;
        replica.is_judged = self.judges.retries.is_some() || self.judges.outliers.is_some();
        replica.per_try = self.judges.retries.and_then(|r| r.per_try_timeout);
        self.fleet.push(replica);
        self.services.add(pool);
        if let Some(h) = &mut self.handovers {
            h.add(pool);
        }
        if self.fleet.len() as usize > self.clocks.capacity() {
            self.reset_clocks();
        }
        self.tell_fleet(i, FleetEvent::Added);
        Ok(i)
    }

    /// Plans `change` for the instant `at`, which has not passed.
    ///
    /// At its instant it comes after clients have given up and before clients send (the table of [`crate::cluster`]).
    pub fn plan(&mut self, at: SimTime, change: Change) {
        self.plans.push(at.max(self.reached), change);
    }

    /// How the replicas are advanced.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// What can be seen of the run, all that is due by the instant it was advanced to having happened.
    pub fn snapshot(&self) -> Snapshot {
        let view = |r: &Replica| ReplicaView {
            lifecycle: r.lifecycle,
            load: r.load(),
            outstanding: r.outstanding(),
        };
        Snapshot {
            now: self.reached,
            offered: self.offered,
            ended: self.ended(),
            held: self.gateway.len() + self.gate.as_ref().map_or(0, |g| g.waiting()),
            replicas: self.fleet.iter().map(view).collect(),
        }
    }

    fn ended(&self) -> u64 {
        let of_replicas: u64 = self.fleet.groups.iter().map(|g| g.books.ended).sum();
        self.ended + of_replicas
    }

    /// Does all that happens until `t`, that instant included.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn step_until(&mut self, t: SimTime) -> Result<Status, RunError> {
        let horizon = SimTime(t.min(self.until).0.saturating_add(1));
        loop {
            let own = self.next_own();
            let to = horizon.min(own);
            // Nothing comes before the start.
            match self.pace {
                _ if to == SimTime::ZERO => {}
                Pace::Ahead => self.run_ahead(to)?,
                Pace::Arrivals => self.run_arrivals(to)?,
                Pace::Instants => self.run_instants(to)?,
            }
            if self.cancelled() {
                return Ok(Status::Cancelled);
            }
            // Something may have been planned, or be held now, for an earlier instant than before.
            if self.next_own() < to {
                continue;
            }
            if own >= horizon || self.ends_in_cluster(own) {
                break;
            }
            self.instant(own)?;
        }
        self.reached = self.reached.max(t.min(self.until));
        Ok(if self.is_over() {
            Status::Over
        } else {
            Status::Reached
        })
    }

    /// Does all there is.
    ///
    /// # Errors
    /// See [`RunError`]; [`RunError::Cancelled`] where somebody wanted that.
    pub fn run_to_end(&mut self) -> Result<(), RunError> {
        match self.step_until(SimTime::NEVER)? {
            Status::Cancelled => Err(RunError::Cancelled { at: self.now }),
            Status::Over | Status::Reached => Ok(()),
        }
    }

    /// Whether nothing more happens, or nothing before the end that the options set.
    fn is_over(&mut self) -> bool {
        let outside = self
            .announced()
            .unwrap_or(SimTime::NEVER)
            .min(self.plans.next())
            .min(self.gateway.next())
            .min(
                self.gate
                    .as_ref()
                    .map_or(SimTime::NEVER, |g| g.next_retry()),
            )
            .min(self.handovers.as_ref().map_or(SimTime::NEVER, |h| h.next()));
        let over = |at: SimTime, until: SimTime| at == SimTime::NEVER || at > until;
        let until = self.until;
        over(outside, until)
            && (0..self.fleet.len()).all(|i| over(self.fleet.get(i).0.next_at(), until))
    }

    #[inline]
    fn cancelled(&self) -> bool {
        self.fleet.groups[0].books.cancelled()
    }
}

/// A group of no replica yet, with the books that its replicas write to.
fn empty_group(options: &RunOptions, pace: Pace) -> Group {
    Group {
        replicas: Vec::new(),
        awake: Vec::new(),
        is_awake: Vec::new(),
        books: Books {
            recorder: Recorder::new(&options.record),
            ends: Vec::new(),
            listed: pace != Pace::Ahead,
            prefilled: Vec::new(),
            wanted: Vec::new(),
            undecided: Vec::new(),
            ended: 0,
            progress: options.progress.clone(),
            cancel: options.cancel.clone(),
            check: options.check,
        },
    }
}
