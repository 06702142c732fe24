//! A cluster at work: its agenda, and everything that stands in it.

use std::collections::BTreeMap;

use super::delay::Delay;
use super::deployment::Deployment;
use super::event::Event;
use super::flows::Loads;
use super::node::Node;
use super::placing::Rooms;
use super::pod::Pod;
use super::provisioner::Provisioner;
use super::record::{
    ClusterRecord, Controller, DecisionRow, DeploymentRow, DeploymentSample, NodeRow, PodRow,
    ReplicaRow, SampleRow,
};
use super::scalers::Scaler;
use super::shared_models::Shared;
use super::sight::{Order, Sight};
use super::sleepers::Actuation;
use super::slow::SlowLink;
use super::spec::{ClusterSpec, DeploymentSpec, GroupSpec, When};
use super::unit::{Curse, Unit};
use crate::control::cluster_autoscaler::ClusterAutoscaler;
use crate::control::cluster_autoscaler::spec::NodeGroup;
use crate::control::karpenter::Karpenter;
use crate::control::on_demand::OnDemand;
use crate::kernel::rng::{self, Stream};
use crate::kernel::time::{SimDuration, SimTime};

/// Most rows of samples; when there are more, every other one goes and they are taken half as often.
const MAX_SAMPLES: usize = 1 << 14;

/// A group at work.
pub(super) struct Group {
    pub min: usize,
    pub max: usize,
    /// Nodes asked of the cloud.
    pub target: usize,
    /// Nodes that have not gone.
    pub all: usize,
    /// Of those, nodes that count for whoever keeps the group at its size ([`Node::is_held`](super::node::Node::is_held)).
    pub there: usize,
    /// Instances that are lost, which nobody has noticed who keeps the group at its size.
    pub unnoticed: usize,
    /// The cloud has no capacity until then.
    pub no_capacity_until: SimTime,
}

/// A cluster at work.
pub struct Cluster {
    pub(super) spec: ClusterSpec,
    pub(super) seed: u64,
    pub(super) agenda: BTreeMap<(SimTime, u8, u64), Event>,
    pub(super) sequence: u64,
    pub(super) groups: Vec<Group>,
    pub(super) nodes: Vec<Node>,
    pub(super) pods: Vec<Pod>,
    pub(super) units: Vec<Unit>,
    /// Units that have not ended, ascending.
    pub(super) live: Vec<usize>,
    /// Nodes that have not gone, ascending.
    pub(super) present: Vec<usize>,
    pub(super) rooms: Rooms,
    pub(super) deployments: Vec<Deployment>,
    pub(super) autoscaler: Option<ClusterAutoscaler>,
    /// When its next loop is planned.
    pub(super) scan_planned: SimTime,
    /// The youngest pending pod that it was told of.
    pub(super) scan_told: Option<usize>,
    /// Autoscalers that are no HPA; none while one has its turn.
    pub(super) scalers: Vec<Option<Scaler>>,
    pub(super) karpenter: Option<Provisioner>,
    /// Instances that sleep and wake, where pods are served by such.
    pub(super) actuation: Option<Actuation>,
    /// Models that are loaded on demand; none while that has its turn.
    pub(super) shared: Option<Shared>,
    pub(super) expander: Stream,
    /// Prometheus is down until then.
    pub(super) outage_until: SimTime,
    /// Containers that crash again and again.
    pub(super) curses: Vec<Curse>,
    /// Slow storage: which fault, since when, and the share of its bandwidth that is left.
    pub(super) storage: Vec<(usize, SimTime, f64)>,
    /// Links between pools that carry less than they should.
    pub(super) links: Vec<SlowLink>,
    /// Loads of weights that share something.
    pub(super) loads: Loads,
    /// How often each fault has come about.
    pub(super) fault_times: Vec<u32>,
    pub(super) looks: bool,
    pub(super) orders: Vec<Order>,
    pub(super) decisions: Vec<DecisionRow>,
    pub(super) samples: Vec<SampleRow>,
    /// The same instants of each deployment; empty where there is one.
    pub(super) samples_of: Vec<Vec<DeploymentSample>>,
    pub(super) sample_period: SimDuration,
    pub(super) last_end: (u64, SimTime),
}

impl Cluster {
    /// The cluster of a run with `seed`, before anything has happened.
    ///
    /// # Errors
    /// What a controller refuses of its settings, with the name of the field.
    pub fn new(spec: ClusterSpec, seed: u64) -> Result<Cluster, String> {
        let deployments = spec.deployments.iter().map(Deployment::new);
        let deployments: Vec<Deployment> = deployments.collect::<Result<_, _>>()?;
        let sizes: Vec<usize> = spec.groups.iter().map(|g| g.nodes).collect();
        let autoscaler = match spec.cluster_autoscaler {
            Some(flags) => {
                let groups = spec.groups.iter().map(|g| NodeGroup {
                    name: g.name.clone(),
                    min: g.min,
                    max: g.max,
                    template: g.template,
                    price_per_hour: g.usd_per_hour.unwrap_or(0.0),
                    priority: g.priority,
                });
                Some(ClusterAutoscaler::new(flags, groups.collect(), &sizes)?)
            }
            None => None,
        };
        let scaler = |s| Scaler::new(s, &spec.deployments).map(Some);
        let scalers = spec.scalers.iter().map(scaler);
        let scalers = scalers.collect::<Result<Vec<_>, String>>()?;
        let karpenter = match &spec.karpenter {
            Some(s) => Some(Provisioner::new(Karpenter::new(SimTime::ZERO, s.clone())?)),
            None => None,
        };
        let group = |g: &GroupSpec| Group {
            min: g.min,
            max: g.max,
            target: g.nodes,
            all: 0,
            there: 0,
            unnoticed: 0,
            no_capacity_until: SimTime::ZERO,
        };
        let mut cluster = Cluster {
            groups: spec.groups.iter().map(group).collect(),
            seed,
            agenda: BTreeMap::new(),
            sequence: 0,
            nodes: Vec::new(),
            pods: Vec::new(),
            units: Vec::new(),
            live: Vec::new(),
            present: Vec::new(),
            rooms: Rooms::default(),
            samples_of: match deployments.len() {
                0 | 1 => Vec::new(),
                n => vec![Vec::new(); n],
            },
            deployments,
            autoscaler,
            scan_planned: SimTime::NEVER,
            scan_told: None,
            scalers,
            karpenter,
            actuation: spec.actuation.clone().map(Actuation::new),
            shared: (spec.on_demand.clone())
                .map(|s| Shared::new(OnDemand::new(s.spec), s.deployments)),
            expander: rng::stream(seed, "cluster/expander"),
            outage_until: SimTime::ZERO,
            curses: Vec::new(),
            storage: Vec::new(),
            links: Vec::new(),
            loads: Loads::default(),
            fault_times: vec![0; spec.faults.len()],
            looks: false,
            orders: Vec::new(),
            decisions: Vec::new(),
            samples: Vec::new(),
            sample_period: spec.sample,
            last_end: (0, SimTime::ZERO),
            spec,
        };
        cluster.set_up();
        Ok(cluster)
    }

    /// Sets the first turn of everything that comes again and again, and of what the scenario gives an instant.
    fn set_up(&mut self) {
        self.plan(SimTime::ZERO, Event::Begin);
        self.plan(SimTime::ZERO, Event::Sample);
        for i in 0..self.spec.changes.len() {
            self.plan(self.spec.changes[i].at, Event::Change(i));
        }
        for i in 0..self.spec.faults.len() {
            match self.spec.faults[i].when {
                When::At { at, .. } => self.plan(at, Event::Fault(i)),
                When::After(_) if self.spec.faults[i].kind.is_of_all() => {
                    self.plan_again(SimTime::ZERO, i);
                }
                When::After(_) => {}
            }
        }
        self.plan_scrape();
        for d in 0..self.deployments.len() {
            // Each loop was started at an instant of its own.
            let name = |what: &str| match d {
                0 => what.to_owned(),
                d => format!("{what}/{d}"),
            };
            if let Some(keda) = &self.deployments[d].keda {
                let period = keda.spec().polling_interval;
                self.plan(self.phase(&name("keda"), period), Event::Poll(d));
            }
            if let Some(period) = self.deployments[d].sync_period {
                self.plan(self.phase(&name("hpa"), period), Event::Sync(d));
            }
        }
        if let Some(flags) = self.spec.cluster_autoscaler {
            let first = self.phase("cluster-autoscaler", flags.scan_interval);
            self.plan_scan(first);
        }
        for scaler in 0..self.scalers.len() {
            self.plan_scaler(scaler, None);
        }
        // Those that are there at the start may be idle.
        self.plan_look(SimTime::ZERO);
    }

    /// The first turn of a loop: controllers were started at some instant before the run.
    pub(super) fn phase(&self, name: &str, period: SimDuration) -> SimTime {
        let delay = Delay::Uniform {
            min: 0.0,
            max: period.as_secs(),
        };
        SimTime::ZERO + delay.draw(self.seed, &format!("cluster/phase/{name}"))
    }

    pub(super) fn plan(&mut self, at: SimTime, event: Event) {
        self.sequence += 1;
        let class = match event {
            Event::Fault(i) => self.spec.faults[i].kind.class(),
            event => event.class(),
        };
        self.agenda.insert((at, class, self.sequence), event);
    }

    /// When something happens here next.
    pub fn next(&self) -> SimTime {
        self.agenda
            .first_key_value()
            .map_or(SimTime::NEVER, |e| e.0.0)
    }

    /// Does the first thing that is due at `now`; what becomes of engines is told in the order in which it is to be done.
    pub fn act(&mut self, now: SimTime, sight: &dyn Sight) -> Vec<Order> {
        let Some((&key, &event)) = self.agenda.first_key_value() else {
            return Vec::new();
        };
        if key.0 > now {
            return Vec::new();
        }
        self.agenda.remove(&key);
        self.happen(now, event, sight);
        self.reconcile(now);
        self.schedule(now);
        self.plan_provisioner(now);
        self.look_at_new_pods(now);
        std::mem::take(&mut self.orders)
    }

    fn happen(&mut self, now: SimTime, event: Event, sight: &dyn Sight) {
        match event {
            Event::Begin => self.begin(now),
            Event::Change(i) => self.change(now, i),
            Event::Fault(i) => self.fault(now, i),
            Event::NodeFault { node, fault } => self.node_fault(now, node, fault),
            Event::UnitFault { unit, epoch, fault } => self.unit_fault(now, unit, epoch, fault),
            Event::UnitReached { unit, epoch, fault } => {
                self.unit_reached(now, unit, epoch, fault);
            }
            Event::NodeSlow { node, fault, begin } => self.node_recovers(now, node, fault, begin),
            Event::StorageFast { fault, begin } => self.storage_recovers(now, fault, begin),
            Event::LinkWell { fault, begin } => self.links_recover(now, fault, begin),
            Event::NodeRefused(n) => self.node_refused(now, n),
            Event::NodeReady(n) => self.node_ready(now, n),
            Event::NodeUsable(n) => self.node_usable(now, n),
            Event::NodeEvict(n) => self.evict(now, n),
            Event::NodeLost(n, noticed) => self.node_lost(now, n, noticed, "reclaimed"),
            Event::GroupNotices(group) => self.group_notices(now, group),
            Event::NodeGone(n) => self.node_gone(now, n),
            Event::PodBound { pod, epoch } => self.pod_bound(now, pod, epoch),
            Event::PodStarted { pod, epoch } => self.pod_started(now, pod, epoch),
            Event::PodReads { pod, epoch } => self.pod_reads(now, pod, epoch),
            Event::LoadEnds(version) => self.load_ends(now, version),
            Event::PodLoaded {
                pod,
                epoch,
                version,
            } => self.pod_loaded(now, pod, epoch, version),
            Event::UnitUp { unit, epoch } => self.unit_up(now, unit, epoch),
            Event::UnitReady { unit, epoch } => self.unit_ready(now, unit, epoch),
            Event::UnitAsleep { unit, epoch } => self.unit_asleep(now, unit, epoch),
            Event::UnitNoticed(unit) => self.unit_noticed(now, unit),
            Event::Deadline(unit) => self.deadline(now, unit),
            Event::LookAtDraining => self.look_at_draining(now, sight),
            Event::Sample => self.sample(now, sight),
            Event::Scrape => self.scrape(now, sight),
            Event::Poll(d) => self.poll(now, d, sight),
            Event::Sync(d) => self.sync(now, d, sight),
            Event::Scale(scaler) => self.scale(now, scaler, sight),
            Event::Look => self.look(now, sight),
            Event::Scan => self.scan(now),
            Event::Provision => self.provision(now),
        }
    }

    /// The nodes there are at the start, and replicas on them where it is a warm one.
    fn begin(&mut self, now: SimTime) {
        for group in 0..self.groups.len() {
            for _ in 0..self.groups[group].target {
                self.add_node_at_start(now, group);
            }
        }
        if self.spec.is_warm {
            self.reconcile(now);
            self.schedule_warm(now);
        }
    }

    /// Notes what was decided; of what a controller left as it was, only where the reason is another than last time.
    pub(super) fn note(&mut self, row: DecisionRow) {
        if row.from == row.to && !row.controller.tells() {
            let last = self
                .decisions
                .iter()
                .rev()
                .take(64)
                .find(|d| d.controller == row.controller && d.about == row.about);
            if last.is_some_and(|d| d.why == row.why) {
                return;
            }
        }
        self.decisions.push(row);
    }

    pub(super) fn decided(
        &mut self,
        now: SimTime,
        controller: Controller,
        about: &str,
        (from, to): (i64, i64),
        why: String,
    ) {
        let ready = self.ready_units() as u32;
        self.note(DecisionRow {
            at: now,
            controller,
            about: about.to_owned(),
            from,
            to,
            ready,
            inputs: String::new(),
            why,
        });
    }

    /// The same of the size of deployment `d`.
    pub(super) fn resized(
        &mut self,
        now: SimTime,
        controller: Controller,
        d: usize,
        (from, to): (i32, i32),
        why: String,
    ) {
        self.note(DecisionRow {
            at: now,
            controller,
            about: self.about(d),
            from: from.into(),
            to: to.into(),
            ready: self.ready_of(d) as u32,
            inputs: String::new(),
            why,
        });
    }

    fn sample(&mut self, now: SimTime, sight: &dyn Sight) {
        let mut row = SampleRow {
            at: now,
            offered: sight.offered(),
            held: sight.held(),
            desired: self.deployments.iter().map(|d| d.wanted() as u32).sum(),
            pending_pods: self
                .deployments
                .iter()
                .map(|d| d.pending.len() as u32)
                .sum(),
            ..SampleRow::default()
        };
        for &u in &self.live {
            let unit = &self.units[u];
            row.replicas += u32::from(unit.counts());
            row.ready += u32::from(unit.is_serving());
            if let Some(engine) = unit.engine {
                let v = sight.engine(engine);
                let (running, waiting) = (u64::from(v.load.running), u64::from(v.load.waiting));
                row.running += running;
                row.waiting += waiting;
                row.in_server += u64::from(v.outstanding).saturating_sub(running + waiting);
            }
        }
        for &n in &self.present {
            row.booting_nodes += u32::from(self.nodes[n].is_booting());
            row.nodes += u32::from(self.nodes[n].is_registered());
        }
        self.samples.push(row);
        for d in 0..self.samples_of.len() {
            let row = self.sample_of(d, now, sight);
            self.samples_of[d].push(row);
        }
        if self.samples.len() == MAX_SAMPLES {
            every_other(&mut self.samples);
            self.samples_of.iter_mut().for_each(every_other);
            self.sample_period = SimDuration(self.sample_period.0.saturating_mul(2));
        }
        self.plan(now + self.sample_period, Event::Sample);
    }

    /// The state of one of several deployments.
    fn sample_of(&self, d: usize, now: SimTime, sight: &dyn Sight) -> DeploymentSample {
        let mut row = DeploymentSample {
            at: now,
            held: sight.traffic(d).held,
            desired: self.deployments[d].wanted() as u32,
            pending_pods: self.deployments[d].pending.len() as u32,
            ..DeploymentSample::default()
        };
        for &u in &self.live {
            let unit = &self.units[u];
            if unit.deployment != d {
                continue;
            }
            row.replicas += u32::from(unit.counts());
            row.ready += u32::from(unit.is_serving());
            if let Some(engine) = unit.engine {
                let v = sight.engine(engine);
                let (running, waiting) = (u64::from(v.load.running), u64::from(v.load.waiting));
                row.running += running;
                row.waiting += waiting;
                row.in_server += u64::from(v.outstanding).saturating_sub(running + waiting);
            }
        }
        row
    }

    /// What a decision on the size of deployment `d` is about.
    pub(super) fn about(&self, d: usize) -> String {
        match self.deployments.len() {
            1 => "replicas".to_owned(),
            _ => format!("{} replicas", self.spec.deployments[d].name),
        }
    }

    /// Whether it makes sense to go on at `now` though `held` requests wait for a replica and nothing else is under way.
    pub fn may_still_serve(&mut self, now: SimTime, ended: u64) -> bool {
        if self.last_end.0 != ended || self.last_end.1 == SimTime::ZERO {
            self.last_end = (ended, now);
        }
        now.since(self.last_end.1) < self.spec.patience
    }

    /// Most replicas that there can be: `None` where nothing says.
    pub fn most_replicas(spec: &ClusterSpec) -> usize {
        let of = |d: &DeploymentSpec| {
            let per_node = |g: &GroupSpec| match d.pod.requests.gpus {
                0 => 1,
                gpus => (g.template.gpus / gpus).max(0) as usize,
            };
            let groups = spec.groups.iter().enumerate();
            let most: usize = (groups.filter(|(i, _)| d.may_use(*i)))
                .map(|(_, g)| g.max.max(g.nodes) * per_node(g))
                .sum();
            (most / d.pod.size.max(1)).max(1)
        };
        spec.deployments.iter().map(of).sum::<usize>().max(1)
    }

    /// Closes the books at `end`.
    pub fn finish(mut self, end: SimTime) -> ClusterRecord {
        for &u in &self.live.clone() {
            self.stop_serving(end, u);
        }
        for p in self.pending() {
            self.tell_held_up(p);
            self.pods[p].limit = self.limit_of(end, self.deployment_of(p));
        }
        let node = |n: &Node, spec: &ClusterSpec| {
            let group = &spec.groups[n.group];
            NodeRow {
                name: n.name.clone(),
                group: group.name.clone(),
                instance: group.instance.clone(),
                is_spot: group.is_spot,
                gpus: group.template.gpus,
                usd_per_hour: group.usd_per_hour,
                watts: group.watts,
                requested: n.requested,
                ready: n.ready,
                usable: n.usable,
                tainted: n.tainted,
                gone: n.gone,
                why_gone: n.why_gone.clone(),
                is_refused: n.is_refused,
                serving_gpu_ns: n.serving_gpu_ns,
            }
        };
        let mut samples_of = self.samples_of.into_iter();
        let deployment = |d: &DeploymentSpec| DeploymentRow {
            name: d.name.clone(),
            gpus_per_pod: d.pod.requests.gpus,
            samples: samples_of.next().unwrap_or_default(),
        };
        ClusterRecord {
            deployments: self.spec.deployments.iter().map(deployment).collect(),
            nodes: self.nodes.iter().map(|n| node(n, &self.spec)).collect(),
            pods: self.pods.into_iter().map(PodRow::from).collect(),
            replicas: self.units.into_iter().map(ReplicaRow::from).collect(),
            decisions: self.decisions,
            samples: self.samples,
            swaps: self.shared.map(|s| s.swaps),
            actuation: self.actuation.map(Actuation::into_record),
            end,
        }
    }
}

/// Drops every other row.
fn every_other<T>(rows: &mut Vec<T>) {
    let mut keep = false;
    rows.retain(|_| {
        keep = !keep;
        keep
    });
}
