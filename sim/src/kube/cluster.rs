//! A cluster at work: its agenda, and everything that stands in it.

use std::collections::BTreeMap;

use super::delay::Delay;
use super::event::Event;
use super::flows::Loads;
use super::node::Node;
use super::pod::Pod;
use super::provisioner::Provisioner;
use super::record::{
    ClusterRecord, Controller, DecisionRow, NodeRow, PodRow, ReplicaRow, SampleRow,
};
use super::scalers::Scaler;
use super::sight::{Order, Sight};
use super::spec::{ClusterSpec, GroupSpec, MetricSource, When};
use super::unit::{Curse, Unit};
use crate::control::cluster_autoscaler::ClusterAutoscaler;
use crate::control::cluster_autoscaler::spec::NodeGroup;
use crate::control::hpa::Hpa;
use crate::control::karpenter::Karpenter;
use crate::control::keda::Keda;
use crate::control::pipeline::MetricPath;
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
    /// Pods without a node, ascending.
    pub(super) pending: Vec<usize>,
    /// Nodes that have not gone, ascending.
    pub(super) present: Vec<usize>,
    pub(super) desired: i32,
    pub(super) paths: Vec<Option<MetricPath>>,
    pub(super) hpa: Option<Hpa>,
    pub(super) keda: Option<Keda>,
    pub(super) autoscaler: Option<ClusterAutoscaler>,
    pub(super) scaler: Option<Scaler>,
    pub(super) karpenter: Option<Provisioner>,
    /// What the variant autoscaler wishes.
    pub(super) wished: Option<i32>,
    /// Somebody asks for the saturation of the pool.
    pub(super) reads_saturation: bool,
    pub(super) expander: Stream,
    /// Prometheus is down until then.
    pub(super) outage_until: SimTime,
    /// Containers that crash again and again.
    pub(super) curses: Vec<Curse>,
    /// Raised with each rolling update.
    pub(super) generation: u32,
    /// Slow storage: which fault, since when, and the share of its bandwidth that is left.
    pub(super) storage: Vec<(usize, SimTime, f64)>,
    /// Loads of weights that share something.
    pub(super) loads: Loads,
    /// How often each fault has come about.
    pub(super) fault_times: Vec<u32>,
    pub(super) looks: bool,
    pub(super) orders: Vec<Order>,
    pub(super) decisions: Vec<DecisionRow>,
    pub(super) samples: Vec<SampleRow>,
    pub(super) sample_period: SimDuration,
    pub(super) last_end: (u64, SimTime),
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
        let group = |g: &GroupSpec| Group {
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
    pub(super) fn phase(&self, name: &str, period: SimDuration) -> SimTime {
        let delay = Delay::Uniform {
            min: 0.0,
            max: period.as_secs(),
        };
        SimTime::ZERO + delay.draw(self.seed, &format!("cluster/phase/{name}"))
    }

    pub(super) fn plan(&mut self, at: SimTime, event: Event) {
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
            Event::UnitReached { unit, epoch, fault } => {
                self.unit_reached(now, unit, epoch, fault);
            }
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
    pub(super) fn note(&mut self, row: DecisionRow) {
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
        let per_node = |g: &GroupSpec| match spec.pod.requests.gpus {
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
