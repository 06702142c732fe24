//! The cluster around the replicas: nodes, pods, autoscalers, faults, as one agenda of events that a run plays.
//!
//! ```text
//!  exporters --scrape--> metric path --> HPA / KEDA --replicas wanted--> pods --no room--> Cluster Autoscaler --> nodes
//!      ^                                                                  |                                        |
//!      |                                                                  +-------------- placement <-------------+
//!   engines <------------------- start, drain, kill -----------------------+
//! ```
//!
//! A run asks [`Cluster::next`] when something happens here next, advances its replicas to there, and calls [`Cluster::act`] once for each
//! event of the instant; what becomes of engines comes back as an [`Order`]. Events of one instant come in the order of their class
//! (`Event::class`), then in that in which they were set up. Every draw has a name of its own (`boot/3`), so that two settings of an
//! autoscaler see the same boots and the same failures.

mod controllers;
pub mod delay;
mod endpoint;
mod faults;
mod karpenter;
mod loads;
mod nodes;
mod planner;
mod pods;
pub mod record;
mod rollout;
mod saturation;
mod scalers;
pub mod slow;
pub mod spec;

use std::collections::BTreeMap;

use hwmodels::StepModel;

use crate::control::cluster_autoscaler::ClusterAutoscaler;
use crate::control::cluster_autoscaler::spec::NodeGroup;
use crate::control::hpa::Hpa;
use crate::control::karpenter::Karpenter;
use crate::control::keda::Keda;
use crate::control::pipeline::MetricPath;
use crate::kernel::rng::{self, Stream};
use crate::kernel::time::{SimDuration, SimTime};
use crate::policy::Load;
pub use karpenter::FIRST_CLAIM;
use karpenter::Provisioner;
use nodes::Node;
use pods::{Pod, Unit};
use record::{ClusterRecord, Controller, DecisionRow, NodeRow, PodRow, ReplicaRow, SampleRow};
use scalers::Scaler;
use slow::Speed;
use spec::{ClusterSpec, MetricSource};

/// Most rows of samples; when there are more, every other one goes and they are taken half as often.
const MAX_SAMPLES: usize = 1 << 14;

/// What the run is to do.
#[derive(Clone, Debug)]
pub enum Order {
    /// A replica is ready: start an engine for it, and say with [`Cluster::started`] which.
    Start {
        /// The replica.
        unit: usize,
        /// How much longer its steps take than they should, where that may change; `None`: they take as long as they should.
        speed: Option<Speed>,
    },
    /// An engine is sent nothing more.
    Drain(u32),
    /// An engine is gone with what it holds.
    Kill(u32),
}

/// What an engine has done so far; counters grow when a request completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that completed.
    pub finished: u64,
    /// Their time in front of the engine [ns].
    pub queue_ns: u64,
    /// Their time in the engine, waiting in its queue included [ns].
    pub compute_ns: u64,
    /// Their prompts [tokens].
    pub prompt_tokens: u64,
    /// Their outputs [tokens].
    pub output_tokens: u64,
}

/// What can be seen of an engine from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vitals {
    /// What it holds.
    pub load: Load,
    /// What it has done.
    pub totals: Totals,
    /// When it ended, if it has.
    pub gone: Option<SimTime>,
}

/// What the cluster sees of the run, all that is due having happened.
pub trait Sight {
    /// Engine `index`.
    fn engine(&self, index: u32) -> Vitals;
    /// Requests held at the gateway.
    fn held(&self) -> u64;
    /// Requests offered so far.
    fn offered(&self) -> u64;
    /// Requests that have ended, however.
    fn ended(&self) -> u64;
    /// How long steps of a healthy engine take.
    fn steps(&self) -> &dyn StepModel;
}

/// What happens in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Begin,
    Change(usize),
    Fault(usize),
    NodeFault {
        node: usize,
        fault: usize,
    },
    UnitFault {
        unit: usize,
        epoch: u32,
        fault: usize,
    },
    NodeSlow {
        node: usize,
        fault: usize,
        begin: SimTime,
    },
    StorageFast {
        fault: usize,
        begin: SimTime,
    },
    NodeRefused(usize),
    NodeReady(usize),
    NodeUsable(usize),
    NodeEvict(usize),
    NodeLost(usize),
    NodeGone(usize),
    PodStarted {
        pod: usize,
        epoch: u32,
    },
    PodReads {
        pod: usize,
        epoch: u32,
    },
    LoadEnds(u64),
    PodLoaded {
        pod: usize,
        epoch: u32,
        version: u32,
    },
    UnitUp {
        unit: usize,
        epoch: u32,
    },
    UnitReady {
        unit: usize,
        epoch: u32,
    },
    UnitNoticed(usize),
    Deadline(usize),
    LookAtDraining,
    Sample,
    Scrape,
    Poll,
    Sync,
    Scale,
    Scan,
    Provision,
}

impl Event {
    /// Its place within an instant (the table of [`crate::cluster`]).
    fn class(self) -> u8 {
        use Event::*;
        match self {
            Begin => 0,
            Change(_) => 1,
            Fault(_)
            | NodeFault { .. }
            | UnitFault { .. }
            | NodeSlow { .. }
            | StorageFast { .. }
            | NodeLost(_) => 2,
            NodeRefused(_) | NodeReady(_) | NodeUsable(_) | NodeEvict(_) | NodeGone(_) => 3,
            PodStarted { .. }
            | PodReads { .. }
            | LoadEnds(_)
            | PodLoaded { .. }
            | UnitUp { .. }
            | UnitReady { .. }
            | UnitNoticed(_) => 4,
            Deadline(_) => 5,
            LookAtDraining => 6,
            Sample | Scrape => 7,
            Poll => 8,
            Sync | Scale => 9,
            Scan | Provision => 10,
        }
    }
}

/// A group at work.
struct Group {
    min: usize,
    max: usize,
    /// Nodes asked of the cloud.
    target: usize,
    /// The cloud has no capacity until then.
    no_capacity_until: SimTime,
}

/// A cluster at work.
pub struct Cluster {
    spec: ClusterSpec,
    seed: u64,
    agenda: BTreeMap<(SimTime, u8, u64), Event>,
    sequence: u64,
    groups: Vec<Group>,
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    units: Vec<Unit>,
    /// Units that have not ended, ascending.
    live: Vec<usize>,
    /// Pods without a node, ascending.
    pending: Vec<usize>,
    /// Nodes that have not gone, ascending.
    present: Vec<usize>,
    desired: i32,
    paths: Vec<Option<MetricPath>>,
    hpa: Option<Hpa>,
    keda: Option<Keda>,
    autoscaler: Option<ClusterAutoscaler>,
    scaler: Option<Scaler>,
    karpenter: Option<Provisioner>,
    /// What the variant autoscaler wishes.
    wished: Option<i32>,
    /// Somebody asks for the saturation of the pool.
    reads_saturation: bool,
    expander: Stream,
    /// Prometheus is down until then.
    outage_until: SimTime,
    /// Containers that crash again and again.
    curses: Vec<faults::Curse>,
    /// Raised with each rolling update.
    generation: u32,
    /// Slow storage: which fault, since when, and the share of its bandwidth that is left.
    storage: Vec<(usize, SimTime, f64)>,
    /// Loads of weights that share something.
    loads: loads::Loads,
    /// How often each fault has come about.
    fault_times: Vec<u32>,
    looks: bool,
    orders: Vec<Order>,
    decisions: Vec<DecisionRow>,
    samples: Vec<SampleRow>,
    sample_period: SimDuration,
    last_end: (u64, SimTime),
}

impl Cluster {
    /// The cluster of a run with `seed`, before anything has happened.
    ///
    /// # Errors
    /// What a controller refuses of its settings, with the name of the field.
    pub fn new(spec: ClusterSpec, seed: u64) -> Result<Cluster, String> {
        let hpa = match &spec.hpa {
            Some((hpa, flags)) => Some(Hpa::new(hpa.clone(), *flags).map_err(|e| e.to_string())?),
            None => None,
        };
        let keda = match &spec.keda {
            Some((keda, flags)) => Some(Keda::new(SimTime::ZERO, keda.clone(), *flags)?),
            None => None,
        };
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
        let gpus = u32::try_from(spec.pod.requests.gpus).unwrap_or(0);
        let scaler = match &spec.scaler {
            Some(s) => Some(Scaler::new(s, spec.facts, gpus * spec.pod.size as u32)?),
            None => None,
        };
        let karpenter = match &spec.karpenter {
            Some(s) => Some(Provisioner::new(Karpenter::new(SimTime::ZERO, s.clone())?)),
            None => None,
        };
        let path = |source: &MetricSource| match source {
            MetricSource::Replicas(path) | MetricSource::Gateway(path) => {
                MetricPath::new(*path).map(Some)
            }
            MetricSource::QueueLength => Ok(None),
        };
        let paths = spec.metrics.iter().map(path).collect::<Result<_, _>>()?;
        let group = |g: &spec::GroupSpec| Group {
            min: g.min,
            max: g.max,
            target: g.nodes,
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
            pending: Vec::new(),
            present: Vec::new(),
            desired: spec.replicas,
            paths,
            hpa,
            keda,
            autoscaler,
            scaler,
            karpenter,
            wished: None,
            reads_saturation: spec.metrics.iter().any(MetricSource::is_saturation),
            expander: rng::stream(seed, "cluster/expander"),
            outage_until: SimTime::ZERO,
            curses: Vec::new(),
            generation: 0,
            storage: Vec::new(),
            loads: loads::Loads::default(),
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
                spec::When::At { at, .. } => self.plan(at, Event::Fault(i)),
                spec::When::After(_) if self.spec.faults[i].kind.is_of_all() => {
                    self.plan_again(SimTime::ZERO, i);
                }
                spec::When::After(_) => {}
            }
        }
        self.plan_scrape();
        if let Some(keda) = &self.keda {
            let period = keda.spec().polling_interval;
            self.plan(self.phase("keda", period), Event::Poll);
        }
        if let Some(period) = self.sync_period() {
            self.plan(self.phase("hpa", period), Event::Sync);
        }
        if let Some(flags) = self.spec.cluster_autoscaler {
            let first = self.phase("cluster-autoscaler", flags.scan_interval);
            self.plan(first, Event::Scan);
        }
        self.plan_scaler(None);
    }

    /// The first turn of a loop: controllers were started at some instant before the run.
    fn phase(&self, name: &str, period: SimDuration) -> SimTime {
        let delay = delay::Delay::Uniform {
            min: 0.0,
            max: period.as_secs(),
        };
        SimTime::ZERO + delay.draw(self.seed, &format!("cluster/phase/{name}"))
    }

    fn plan(&mut self, at: SimTime, event: Event) {
        self.sequence += 1;
        self.agenda
            .insert((at, event.class(), self.sequence), event);
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
        std::mem::take(&mut self.orders)
    }

    fn happen(&mut self, now: SimTime, event: Event, sight: &dyn Sight) {
        match event {
            Event::Begin => self.begin(now),
            Event::Change(i) => self.change(now, i),
            Event::Fault(i) => self.fault(now, i),
            Event::NodeFault { node, fault } => self.node_fault(now, node, fault),
            Event::UnitFault { unit, epoch, fault } => self.unit_fault(now, unit, epoch, fault),
            Event::NodeSlow { node, fault, begin } => self.node_recovers(now, node, fault, begin),
            Event::StorageFast { fault, begin } => self.storage_recovers(now, fault, begin),
            Event::NodeRefused(n) => self.node_refused(now, n),
            Event::NodeReady(n) => self.node_ready(now, n),
            Event::NodeUsable(n) => self.node_usable(now, n),
            Event::NodeEvict(n) => self.evict(now, n),
            Event::NodeLost(n) => self.node_lost(now, n, SimDuration::ZERO, "reclaimed"),
            Event::NodeGone(n) => self.node_gone(now, n),
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
            Event::UnitNoticed(unit) => self.unit_noticed(now, unit),
            Event::Deadline(unit) => self.deadline(now, unit),
            Event::LookAtDraining => self.look_at_draining(now, sight),
            Event::Sample => self.sample(now, sight),
            Event::Scrape => self.scrape(now, sight),
            Event::Poll => self.poll(now, sight),
            Event::Sync => self.sync(now, sight),
            Event::Scale => self.scale(now, sight),
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
    fn note(&mut self, row: DecisionRow) {
        let is_told = matches!(row.controller, Controller::Operator | Controller::Fault);
        if row.from == row.to && !is_told {
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

    fn decided(
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

    fn sample(&mut self, now: SimTime, sight: &dyn Sight) {
        let mut row = SampleRow {
            at: now,
            offered: sight.offered(),
            held: sight.held(),
            desired: self.desired.max(0) as u32,
            pending_pods: self.pending.len() as u32,
            ..SampleRow::default()
        };
        for &u in &self.live {
            let unit = &self.units[u];
            row.replicas += u32::from(unit.counts());
            row.ready += u32::from(unit.is_serving());
            if let Some(engine) = unit.engine {
                let load = sight.engine(engine).load;
                row.running += u64::from(load.running);
                row.waiting += u64::from(load.waiting);
            }
        }
        for &n in &self.present {
            row.booting_nodes += u32::from(self.nodes[n].is_booting());
            row.nodes += u32::from(self.nodes[n].is_registered());
        }
        self.samples.push(row);
        if self.samples.len() == MAX_SAMPLES {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.sample_period = SimDuration(self.sample_period.0.saturating_mul(2));
        }
        self.plan(now + self.sample_period, Event::Sample);
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
        let per_node = |g: &spec::GroupSpec| match spec.pod.requests.gpus {
            0 => 1,
            gpus => (g.template.gpus / gpus).max(0) as usize,
        };
        let most: usize = spec
            .groups
            .iter()
            .map(|g| g.max.max(g.nodes) * per_node(g))
            .sum();
        (most / spec.pod.size.max(1)).max(1)
    }

    /// Closes the books at `end`.
    pub fn finish(mut self, end: SimTime) -> ClusterRecord {
        for &u in &self.live.clone() {
            self.stop_serving(end, u);
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
        ClusterRecord {
            nodes: self.nodes.iter().map(|n| node(n, &self.spec)).collect(),
            pods: self.pods.into_iter().map(PodRow::from).collect(),
            replicas: self.units.into_iter().map(ReplicaRow::from).collect(),
            decisions: self.decisions,
            samples: self.samples,
            gpus_per_pod: self.spec.pod.requests.gpus,
            end,
        }
    }
}
