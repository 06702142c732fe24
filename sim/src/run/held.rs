//! The run itself: who is advanced when.

mod cluster;

use rayon::prelude::*;

use super::gateway::Gateway;
use super::group::{Fleet, Group, MOST_GROUPS};
use super::options::{Path, RunError, RunOptions};
use super::plans::{Change, Plans};
use super::view::{Pace, ReplicaView, Snapshot, Status};
use crate::cluster::events::Class;
use crate::cluster::replica::{Books, Lifecycle, Replica};
use crate::cluster::requests::never_served;
use crate::cluster::router::Router;
use crate::kernel::time::{SimDuration, SimTime};
use crate::kernel::tournament::Tournament;
use crate::kube::Cluster;
use crate::kube::spec::ClusterSpec;
use crate::metrics::Recorder;
use crate::observer::{FleetEvent, Observer};
use crate::record::{RunInfo, RunRecord};
use crate::request::{Outcome, ReqId, RequestSpec};
use crate::simulation::{ReplicaSpec, Simulation};
use crate::workload::Workload;

/// Requests drawn ahead at a time, per replica: enough for a replica's state to stay in the caches while it works them off ...
const AHEAD_PER_REPLICA: usize = 128;
/// ... but in all at least and at most so many, for a batch to be worth its start, and for what was drawn not to fill the memory.
const AHEAD: (usize, usize) = (1 << 12, 1 << 18);
/// Large fleets draw at least so many per replica all the same.
const LEAST_AHEAD_PER_REPLICA: usize = 16;
/// Share of its time from which on a front end at work is worth a warning.
const BUSY_FRONT_END: f64 = 0.8;

/// A deployment under load, at some instant of its virtual clock.
pub struct Run<'w> {
    workload: Box<dyn Workload + 'w>,
    router: Router,
    fleet: Fleet,
    pace: Pace,
    /// When each replica must be looked at next; not kept up while the pace is [`Pace::Ahead`].
    clocks: Tournament,
    plans: Plans,
    /// What stands around the replicas, and what its replicas are made like.
    cluster: Option<(Cluster, Box<ReplicaSpec>)>,
    gateway: Gateway,
    /// Requests that each ready replica may have unanswered, and how many all of them have.
    limit: Option<u32>,
    under_way: u64,
    scrape_period: Option<SimDuration>,
    next_scrape: SimTime,
    request_timeout: Option<SimDuration>,
    seed: u64,
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

    /// `sim` in a cluster: replicas like its first come and go as `cluster` says, none of them being there before.
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
        let Some(first) = sim.replicas.first() else {
            return Err(RunError::NoReplica);
        };
        let n = cluster.map_or(sim.replicas.len(), Cluster::most_replicas);
        let sees_scrapes = sim.router.sees_loads() && sim.scrape_period.is_some();
        let limit = cluster.and_then(|c| c.max_outstanding);
        let pace = if workload.reacts() || observer.is_some() || limit.is_some() {
            Pace::Instants
        } else if n > 1 && (sim.router.is_blind() || sees_scrapes) {
            Pace::Ahead
        } else {
            Pace::Arrivals
        };
        let groups = match pace {
            Pace::Ahead => n.min(MOST_GROUPS),
            Pace::Arrivals | Pace::Instants => 1,
        };
        let group = || Group {
            replicas: Vec::new(),
            books: Books {
                recorder: Recorder::new(&options.record),
                ends: Vec::new(),
                listed: pace != Pace::Ahead,
                ended: 0,
                progress: options.progress.clone(),
                cancel: options.cancel.clone(),
                check: options.check,
            },
        };
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
            router: Router::new(sim.router, sim.seed),
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
                    Some((cluster, Box::new(first.clone())))
                }
                None => None,
            },
            gateway: Gateway::default(),
            limit,
            under_way: 0,
            scrape_period: sim.scrape_period,
            next_scrape: SimTime::ZERO,
            request_timeout: sim.request_timeout,
            seed: sim.seed,
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
            due: Vec::new(),
        };
        if cluster.is_none() {
            for spec in &sim.replicas {
                let i = run.add(spec)?;
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
        let i = self.fleet.len();
        let engine = spec.engine(i, self.shared, self.path, self.seed)?;
        let block = spec.hash_block(self.shared);
        self.fleet
            .push(Replica::new(i, spec, engine, block, self.reached));
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
            held: self.gateway.len(),
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
            .min(self.gateway.next());
        let over = |at: SimTime, until: SimTime| at == SimTime::NEVER || at > until;
        let until = self.until;
        over(outside, until)
            && (0..self.fleet.len()).all(|i| over(self.fleet.get(i).0.next_at(), until))
    }

    #[inline]
    fn cancelled(&self) -> bool {
        self.fleet.groups[0].books.cancelled()
    }

    /// When the next request is sent, the drawn one included.
    #[inline]
    fn announced(&self) -> Option<SimTime> {
        match self.drawn {
            Some(_) => Some(self.spec.arrival),
            None => self.workload.peek(),
        }
    }

    /// Draws the next request into `spec`.
    fn draw(&mut self, at: SimTime) -> Result<ReqId, RunError> {
        if at < self.now {
            return Err(RunError::WorkloadWentBack {
                announced: at,
                now: self.now,
            });
        }
        if let Some(id) = self.drawn.take() {
            return Ok(id);
        }
        let id = ReqId::try_from(self.offered).map_err(|_| RunError::TooManyRequests)?;
        self.workload.pop(id, &mut self.spec);
        self.spec.arrival = at;
        self.offered += 1;
        self.fleet.groups[0].books.recorder.offered(at);
        if self.fleet.groups.len() > 1 {
            self.sent.push(at);
        }
        Ok(id)
    }

    /// The instant at which the drawn request's client gives up, from when it was sent.
    fn patience(&self) -> Option<SimDuration> {
        match (self.spec.timeout, self.request_timeout) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The replica for the drawn request; `None`: none is ready.
    #[inline]
    fn route(&mut self) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        self.router.route(&self.spec)
    }

    /// Whether every ready replica has as many requests as it may have.
    #[inline]
    fn is_full(&self) -> bool {
        let most = |limit: u32| u64::from(limit).saturating_mul(self.router.ready() as u64);
        self.limit
            .is_some_and(|limit| self.under_way >= most(limit))
    }

    /// Draws requests ahead, hands them to their replicas, and lets groups of replicas work them off on all cores: all before `to`.
    fn run_ahead(&mut self, to: SimTime) -> Result<(), RunError> {
        let n = self.fleet.len() as usize;
        let batch = (AHEAD_PER_REPLICA * n)
            .clamp(AHEAD.0, AHEAD.1)
            .max(LEAST_AHEAD_PER_REPLICA * n);
        loop {
            if self.cancelled() {
                return Ok(());
            }
            let mut drawn = 0;
            let reached = loop {
                let Some(at) = self.announced().filter(|at| *at < to) else {
                    if to != SimTime::NEVER {
                        // The router may look later at what a scrape before `to` has seen.
                        self.scrape_ahead(SimTime(to.0 - 1));
                    }
                    break to;
                };
                if drawn == batch {
                    break at;
                }
                self.scrape_ahead(at);
                let id = self.draw(at)?;
                self.now = at;
                if self.router.needs_state(&self.spec) {
                    self.drawn = Some(id);
                    self.advance_groups(at);
                    self.look_at_replicas();
                    return self.run_arrivals(to);
                }
                drawn += 1;
                self.send_ahead(id);
            };
            self.advance_groups(reached);
            if reached == to {
                return Ok(());
            }
        }
    }

    /// Hands the drawn request to its replica, whose clock is behind.
    fn send_ahead(&mut self, id: ReqId) {
        let patience = self.patience();
        match self.route() {
            Some(i) => {
                let spec = std::mem::take(&mut self.spec);
                self.fleet.get(i).0.send(id, spec, patience);
            }
            None => self.hold(id, patience),
        }
    }

    /// Keeps the drawn request until a replica is ready.
    fn hold(&mut self, id: ReqId, patience: Option<SimDuration>) {
        let spec = std::mem::take(&mut self.spec);
        self.gateway.hold(id, spec, patience);
    }

    /// Lets every group do all that happens before `to`.
    fn advance_groups(&mut self, to: SimTime) {
        let sent = &self.sent;
        self.fleet
            .groups
            .par_iter_mut()
            .enumerate()
            .for_each(|(g, group)| group.advance(to, if g == 0 { &[] } else { sent }));
        self.sent.clear();
        self.limit_rows();
    }

    /// Tells the books of every group of what was sent, outside of [`Run::advance_groups`].
    fn tell_sent(&mut self) {
        let (first, others) = self.fleet.groups.split_at_mut(1);
        debug_assert_eq!(first.len(), 1);
        for group in others {
            for &at in &self.sent {
                group.books.recorder.sent(at);
            }
        }
        self.sent.clear();
    }

    /// Drops the rows of requests once there are too many of them in all.
    fn limit_rows(&mut self) {
        let groups = &mut self.fleet.groups;
        let kept: Option<usize> = groups.iter().map(|g| g.books.recorder.rows_kept()).sum();
        if kept.is_none_or(|n| n > self.max_request_rows) {
            for group in groups {
                group.books.recorder.drop_rows();
            }
        }
    }

    /// From here on the router has to look at replicas as they are.
    fn look_at_replicas(&mut self) {
        self.pace = Pace::Arrivals;
        for group in &mut self.fleet.groups {
            group.books.listed = true;
        }
        let fleet = &self.fleet;
        self.router
            .recount(fleet.len(), |i| fleet.peek(i).outstanding() as u32);
        self.reset_clocks();
    }

    fn reset_clocks(&mut self) {
        let n = self.fleet.len();
        self.clocks = Tournament::new(n as usize);
        for i in 0..n {
            let next = self.fleet.get(i).0.next_at();
            self.clocks.set(i, next);
        }
    }

    /// All that happens before `to`: replicas that have something to do are advanced to each arrival in turn.
    fn run_arrivals(&mut self, to: SimTime) -> Result<(), RunError> {
        while let Some(at) = self.announced().filter(|at| *at < to) {
            if self.cancelled() {
                return Ok(());
            }
            self.tell_sent();
            self.scrape_lagging(at);
            self.advance_due(at);
            self.instant(at)?;
        }
        if to != SimTime::NEVER {
            // The router may look later at what a scrape before `to` has seen.
            self.scrape_lagging(SimTime(to.0 - 1));
        }
        self.tell_sent();
        self.advance_due(to);
        Ok(())
    }

    /// Advances the replicas at which something happens before `to`, each to there.
    fn advance_due(&mut self, to: SimTime) {
        loop {
            let (at, i) = self.clocks.first();
            if at >= to || self.cancelled() {
                return;
            }
            let (replica, books) = self.fleet.get(i);
            replica.advance(to, books);
            let next = replica.next_at();
            self.clocks.set(i, next);
            self.tell(i);
        }
    }

    /// All that happens before `to`, instant by instant.
    fn run_instants(&mut self, to: SimTime) -> Result<(), RunError> {
        loop {
            let next = self
                .clocks
                .first()
                .0
                .min(self.announced().unwrap_or(SimTime::NEVER));
            if next >= to || self.cancelled() {
                return Ok(());
            }
            self.instant(next)?;
        }
    }

    /// All that happens at `now`, class by class (the table of [`crate::cluster`]).
    fn instant(&mut self, now: SimTime) -> Result<(), RunError> {
        self.now = now;
        self.scrape_now(now);
        self.find_due(now);
        for k in 0..self.due.len() {
            let i = self.due[k];
            let (replica, books) = self.fleet.get(i);
            replica.complete(now, books);
            self.tell(i);
        }
        for class in [Class::Deliver, Class::TimeOut] {
            for k in 0..self.due.len() {
                let i = self.due[k];
                let (replica, books) = self.fleet.get(i);
                replica.happen(now, class, books);
                self.tell(i);
            }
        }
        self.time_out_held(now);
        for change in self.plans.take(now) {
            self.change(change)?;
        }
        self.act_in_cluster(now)?;
        if self.limit.is_some() && !self.is_full() {
            self.release();
        }
        self.arrivals(now)?;
        let mut k = 0;
        while let Some(&i) = self.due.get(k) {
            let (replica, books) = self.fleet.get(i);
            if replica.happen_once(now, Class::Enter, books) {
                // A refusal may make its client send again at once.
                self.tell(i);
                self.arrivals(now)?;
            } else {
                k += 1;
            }
        }
        self.due.sort_unstable();
        self.due.dedup();
        for k in 0..self.due.len() {
            let i = self.due[k];
            let (replica, books) = self.fleet.get(i);
            replica.start(now, books);
            if self.pace != Pace::Ahead {
                let next = replica.next_at();
                self.clocks.set(i, next);
            }
            self.tell(i);
        }
        if self.check {
            self.check(now);
        }
        Ok(())
    }

    /// Lists the replicas at which something happens at `now`, lowest first.
    fn find_due(&mut self, now: SimTime) {
        self.due.clear();
        if self.pace == Pace::Ahead {
            for i in 0..self.fleet.len() {
                if self.fleet.get(i).0.next_at() <= now {
                    self.due.push(i);
                }
            }
            return;
        }
        while let (at, i) = self.clocks.first()
            && at <= now
        {
            // Its clock is set again when it has started.
            self.clocks.set(i, SimTime::NEVER);
            self.due.push(i);
        }
    }

    /// Requests that clients send at `now`.
    fn arrivals(&mut self, now: SimTime) -> Result<(), RunError> {
        while let Some(at) = self.announced().filter(|at| *at <= now) {
            let id = self.draw(at)?;
            let patience = self.patience();
            if self.pace == Pace::Ahead && self.router.needs_state(&self.spec) {
                self.look_at_replicas();
            }
            match self.route() {
                Some(i) => self.accept(i, now, id, patience),
                None => self.hold(id, patience),
            }
        }
        Ok(())
    }

    /// The drawn request reaches replica `i`.
    fn accept(&mut self, i: u32, now: SimTime, id: ReqId, patience: Option<SimDuration>) {
        self.under_way += 1;
        let (replica, books) = self.fleet.get(i);
        replica.accept(now, id, &self.spec, patience, books);
        replica.happen(now, Class::TimeOut, books);
        self.due.push(i);
        self.tell(i);
    }

    /// Something has happened at replica `i`: the router sees its state, where it looks, and router and workload are told which of its
    /// requests have ended.
    #[inline]
    fn tell(&mut self, i: u32) {
        let (replica, books) = self.fleet.get(i);
        if self.router.sees_loads() && self.scrape_period.is_none() {
            self.router.seen(i, replica.load());
        }
        let drained = replica.has_drained();
        if !books.ends.is_empty() {
            let mut ends = std::mem::take(&mut books.ends);
            for (i, end) in ends.drain(..) {
                self.router.ended(i);
                self.under_way = self.under_way.saturating_sub(1);
                if self.pace == Pace::Instants {
                    self.workload.on_end(&end);
                }
            }
            self.fleet.get(i).1.ends = ends;
        }
        if drained {
            self.tell_fleet(i, FleetEvent::Drained);
        }
    }

    fn tell_fleet(&mut self, i: u32, event: FleetEvent) {
        let at = self.now.max(self.reached);
        if let Some(observer) = self.fleet.get(i).1.recorder.observer() {
            observer.fleet(at, i, event);
        }
    }

    /// A change that was planned for now.
    fn change(&mut self, change: Change) -> Result<(), RunError> {
        match change {
            Change::Add(spec) => {
                let i = self.add(&spec)?;
                self.change(Change::Ready(i))?;
            }
            Change::Ready(i) => {
                let replica = self.fleet.get(i).0;
                if replica.lifecycle != Lifecycle::Starting {
                    return Ok(());
                }
                replica.lifecycle = Lifecycle::Ready;
                let load = replica.load();
                self.router.join(i, load);
                self.tell_fleet(i, FleetEvent::Ready);
                self.release();
            }
            Change::Drain(i) => {
                self.router.leave(i);
                self.tell_fleet(i, FleetEvent::Draining);
                let now = self.now;
                self.fleet.get(i).0.drain(now);
                self.tell(i);
            }
            Change::Kill(i) => {
                self.router.leave(i);
                let now = self.now;
                let (replica, books) = self.fleet.get(i);
                if replica.lifecycle == Lifecycle::Gone {
                    return Ok(());
                }
                replica.kill(now, books);
                self.clocks.set(i, SimTime::NEVER);
                self.tell_fleet(i, FleetEvent::Killed);
                self.tell(i);
            }
        }
        Ok(())
    }

    /// A replica is ready: what was held goes on its way, in the order in which it was sent.
    fn release(&mut self) {
        let drawn = std::mem::take(&mut self.spec);
        for id in self.gateway.ids() {
            if self.is_full() {
                break;
            }
            let Some(spec) = self.gateway.remove(id) else {
                continue;
            };
            self.spec = spec;
            let patience = self.patience();
            match self.route() {
                Some(i) => self.accept(i, self.now, id, patience),
                None => self.hold(id, patience),
            }
        }
        self.spec = drawn;
    }

    /// Clients of held requests give up.
    fn time_out_held(&mut self, now: SimTime) {
        while let Some((id, spec)) = self.gateway.timed_out(now) {
            let (row, end) = never_served(id, &spec, Outcome::TimedOut, now);
            self.fleet.groups[0].books.recorder.request(&row);
            self.ended += 1;
            if self.pace == Pace::Instants {
                self.workload.on_end(&end);
            }
        }
    }

    /// Before anything happens at this instant: what was true until now is what a scrape since the last instant has seen.
    fn scrape_now(&mut self, now: SimTime) {
        if self.pace == Pace::Instants && self.scrape_is_due(now) {
            self.scrape(now);
        }
    }

    /// The same before an arrival at `at`, for replicas whose clocks lag behind.
    fn scrape_lagging(&mut self, at: SimTime) {
        if let Some(instant) = self.scrape_before(at) {
            self.advance_due(instant);
            self.scrape(at);
        }
    }

    /// The same while requests are drawn ahead.
    fn scrape_ahead(&mut self, at: SimTime) {
        if let Some(instant) = self.scrape_before(at) {
            self.advance_groups(instant);
            self.scrape(at);
        }
    }

    fn scrape_is_due(&self, at: SimTime) -> bool {
        self.scrape_period.is_some() && self.router.sees_loads() && at >= self.next_scrape
    }

    /// The last scrape at or before `at`, if the router has not seen it.
    fn scrape_before(&self, at: SimTime) -> Option<SimTime> {
        let period = self.scrape_period?.0.max(1);
        self.scrape_is_due(at)
            .then(|| SimTime(at.0 / period * period))
    }

    fn scrape(&mut self, at: SimTime) {
        for i in 0..self.fleet.len() {
            self.router.seen(i, self.fleet.peek(i).load());
        }
        let period = self.scrape_period.map_or(1, |p| p.0.max(1));
        self.next_scrape = SimTime((at.0 / period + 1).saturating_mul(period));
    }

    /// Closes the books where the run stands.
    ///
    /// # Errors
    /// [`RunError::Record`].
    pub fn finish(mut self, mut info: RunInfo) -> Result<RunRecord, RunError> {
        let last = self.fleet.iter().map(Replica::last).max();
        let happened = self.now.max(last.unwrap_or_default());
        let end = if self.until == SimTime::NEVER {
            happened
        } else {
            self.until
        };
        for i in 0..self.fleet.len() {
            let (replica, books) = self.fleet.get(i);
            replica.close(end, books);
        }
        for (id, spec) in self.gateway.drain() {
            let (row, _) = never_served(id, &spec, Outcome::InFlight, end);
            self.fleet.groups[0].books.recorder.request(&row);
        }
        info.warnings.extend(self.busy_front_end(end));
        self.tell_sent();
        let engines = self.fleet.len();
        let mut recorders = self.fleet.groups.into_iter().map(|g| g.books.recorder);
        let Some(mut all) = recorders.next() else {
            return Err(RunError::NoReplica);
        };
        for recorder in recorders {
            all.merge(recorder);
        }
        let around = self.cluster.map(|(cluster, _)| cluster.finish(end));
        if let Some(around) = &around {
            cluster::describe(&mut info, around, engines);
        }
        let mut record = all.finish(end, info)?;
        record.cluster = around;
        Ok(record)
    }

    /// Says that requests waited where the engine does not see them, of the busiest front end.
    fn busy_front_end(&self, end: SimTime) -> Option<String> {
        let shares = self.fleet.iter().map(|r| r.front_end_share(end));
        let (replica, busiest) = (shares.enumerate())
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|b| b.1 >= BUSY_FRONT_END)?;
        Some(format!(
            "the front end of replica {replica} had work for {:.0} % of the run: requests wait there before the engine sees them \
             (vLLM: `engine.api_server_count`)",
            100.0 * busiest
        ))
    }

    /// Checks what must always hold after an instant.
    fn check(&self, now: SimTime) {
        let outstanding: usize = self.fleet.iter().map(Replica::outstanding).sum();
        let drawn = usize::from(self.drawn.is_some());
        assert_eq!(
            self.offered,
            self.ended() + (outstanding + self.gateway.len() + drawn) as u64,
            "requests are conserved"
        );
        for replica in self.fleet.iter() {
            replica.check(now);
        }
    }
}
