//! The controllers' turns: what each is shown, and what becomes of its decision.

use std::collections::BTreeMap;

use rand::Rng;

use super::cluster::Cluster;
use super::event::Event;
use super::record::{Controller, DecisionRow};
use super::sight::Sight;
use super::spec::MetricSource;
use crate::control::cluster_autoscaler::Action;
use crate::control::cluster_autoscaler::spec::{GroupSet, NodeView, Observed, PodView, Resources};
use crate::control::epp::{Endpoint, pool_saturation};
use crate::control::hpa::spec::MetricSource as HpaSource;
use crate::control::hpa::{Decision, Reading, Scale};
use crate::control::keda::TriggerValue;
use crate::control::pipeline::rule::{Counter, Counters};
use crate::control::pipeline::{ExporterReading, Target};
use crate::control::quantity::milli_from_f64;
use crate::kernel::time::{SimDuration, SimTime};

/// The target that stands for the gateway.
const GATEWAY: Target = Target {
    pod: u64::MAX,
    model: 0,
};

/// How long a poll takes: the next begins so much more than a period later, so that the tenth poll of 30 s after an activity lies beyond a
/// cooldown of 300 s, as it was seen to.
const POLL_TAKES: SimDuration = SimDuration(1_000_000);

/// Taint of a node that the Cluster Autoscaler removes.
const REMOVED: &str = "ToBeDeletedByClusterAutoscaler";

/// What a query says while Prometheus is down.
const DOWN: &str = "prometheus: connection refused";

impl Cluster {
    /// Plans the next turn of exporters and scrapes.
    pub(super) fn plan_scrape(&mut self) {
        let paths = self.deployments.iter().flat_map(|d| &d.paths);
        let due = paths.flatten().map(|p| p.due()).min();
        if let Some(due) = due.filter(|d| *d != SimTime::NEVER) {
            self.plan(due, Event::Scrape);
        }
    }

    /// Lets exporters and scrapes act that are due.
    pub(super) fn scrape(&mut self, now: SimTime, sight: &dyn Sight) {
        for d in 0..self.deployments.len() {
            self.scrape_one(now, d, sight);
        }
        self.plan_scrape();
    }

    fn scrape_one(&mut self, now: SimTime, d: usize, sight: &dyn Sight) {
        let is_due = |p: &crate::control::pipeline::MetricPath| p.due() <= now;
        if !self.deployments[d].paths.iter().flatten().any(is_due) {
            return;
        }
        let is_down = now < self.outage_until;
        let replicas: Vec<ExporterReading> = match is_down {
            true => Vec::new(),
            false => self.exporters(d, sight),
        };
        let gateway = [ExporterReading {
            target: GATEWAY,
            counters: self.gateway_page(d, sight),
        }];
        let sources = &self.spec.deployments[d].metrics;
        for (path, source) in self.deployments[d].paths.iter_mut().zip(sources) {
            let Some(path) = path.as_mut().filter(|p| is_due(p)) else {
                continue;
            };
            match (is_down, source) {
                (true, _) => path.skip(now),
                (false, MetricSource::Gateway(_)) => path.tick(now, &gateway),
                (false, _) => path.tick(now, &replicas),
            }
        }
    }

    /// Pages of the exporters of all replicas of deployment `d` whose servers are up.
    fn exporters(&self, d: usize, sight: &dyn Sight) -> Vec<ExporterReading> {
        self.engines(d)
            .map(|(unit, engine)| {
                let vitals = sight.engine(engine);
                let (load, t) = (vitals.load, vitals.totals);
                let mut page: Counters = [0.0; Counter::COUNT];
                let mut set = |c: Counter, v: f64| page[c as usize] = v;
                set(Counter::QueueDurationUs, t.queue_ns as f64 / 1e3);
                set(Counter::ComputeInferDurationUs, t.compute_ns as f64 / 1e3);
                let whole = t.queue_ns + t.compute_ns;
                set(Counter::RequestDurationUs, whole as f64 / 1e3);
                set(Counter::RequestSuccess, t.finished as f64);
                set(Counter::PromptTokens, t.prompt_tokens as f64);
                set(Counter::GenerationTokens, t.output_tokens as f64);
                set(Counter::Running, f64::from(load.running));
                set(Counter::Waiting, f64::from(load.waiting));
                let blocks = load.kv_total_blocks.max(1) as f64;
                set(Counter::KvUsage, load.kv_used_blocks as f64 / blocks);
                ExporterReading {
                    target: Target {
                        pod: unit as u64,
                        model: 0,
                    },
                    counters: page,
                }
            })
            .collect()
    }

    /// The page of the gateway and its endpoint picker on what deployment `d` may serve, and of controllers that others read.
    fn gateway_page(&self, d: usize, sight: &dyn Sight) -> Counters {
        let mut page: Counters = [0.0; Counter::COUNT];
        let mut set = |c: Counter, v: f64| page[c as usize] = v;
        let t = sight.traffic(d);
        let unanswered = t.offered.saturating_sub(t.ended);
        set(Counter::Waiting, t.held as f64);
        set(Counter::Running, unanswered.saturating_sub(t.held) as f64);
        set(Counter::RequestSuccess, t.offered as f64);
        set(Counter::Inflight, unanswered as f64);
        if self.deployments[d].reads_saturation {
            let endpoints: Vec<Endpoint> = (self.engines(d))
                .map(|(_, engine)| sight.engine(engine).load)
                .map(|load| Endpoint {
                    waiting: f64::from(load.waiting),
                    kv_cache_usage: load.kv_use(),
                })
                .collect();
            set(Counter::PoolSaturation, pool_saturation(&endpoints));
        }
        set(
            Counter::DesiredReplicas,
            f64::from(self.deployments[d].wish()),
        );
        page
    }

    /// What the triggers of KEDA answer.
    fn trigger_values(&mut self, now: SimTime, d: usize, sight: &dyn Sight) -> Vec<TriggerValue> {
        let is_down = now < self.outage_until;
        let value = |(path, source): (&mut Option<_>, &MetricSource)| match (path, source) {
            (_, MetricSource::QueueLength) => Ok(sight.traffic(d).held as f64),
            _ if is_down => Err(DOWN.to_owned()),
            (Some(path), _) => {
                let path: &mut crate::control::pipeline::MetricPath = path;
                // KEDA takes an empty answer of Prometheus as 0 (`ignoreNullValues`).
                Ok(path.total(now).unwrap_or(0.0))
            }
            (None, _) => Err("no such series".to_owned()),
        };
        let sources = &self.spec.deployments[d].metrics;
        (self.deployments[d].paths.iter_mut().zip(sources))
            .map(value)
            .collect()
    }

    /// KEDA's poll.
    pub(super) fn poll(&mut self, now: SimTime, d: usize, sight: &dyn Sight) {
        let values = self.trigger_values(now, d, sight);
        let (ready, about) = (self.ready_of(d) as u32, self.about(d));
        let its = &mut self.deployments[d];
        let Some(keda) = &mut its.keda else { return };
        let period = keda.spec().polling_interval;
        let names: Vec<String> = keda
            .spec()
            .triggers
            .iter()
            .map(|t| t.name.clone())
            .collect();
        let from = its.desired;
        let decision = keda.poll(now, from, &values);
        its.desired = decision.scale_to.unwrap_or(from);
        let to = its.desired.into();
        self.note(DecisionRow {
            at: now,
            controller: Controller::Keda,
            about,
            from: from.into(),
            to,
            ready,
            inputs: inputs_of_triggers(&names, &values),
            why: decision.why,
        });
        self.plan(now + period + POLL_TAKES, Event::Poll(d));
    }

    /// A reconcile of the HPA.
    pub(super) fn sync(&mut self, now: SimTime, d: usize, sight: &dyn Sight) {
        let (ids, pods) = self.pods_for_hpa(d);
        let scale = Scale {
            spec_replicas: self.deployments[d].desired,
            status_replicas: self.counted_units(d) as i32,
            pods: &pods,
        };
        let (decision, inputs) = if self.deployments[d].keda.is_some() {
            let values = self.trigger_values(now, d, sight);
            let Some(keda) = &mut self.deployments[d].keda else {
                return;
            };
            let names: Vec<String> = keda
                .spec()
                .triggers
                .iter()
                .map(|t| t.name.clone())
                .collect();
            let inputs = inputs_of_triggers(&names, &values);
            (keda.sync(now, scale, &values), inputs)
        } else {
            let readings = self.readings(now, d, &ids);
            let Some(hpa) = &mut self.deployments[d].hpa else {
                return;
            };
            let names: Vec<String> = hpa.spec().metrics.iter().map(|m| m.name.clone()).collect();
            let inputs = inputs_of_readings(&names, &readings);
            (hpa.sync(now, scale, &readings), inputs)
        };
        self.apply(now, d, decision, inputs);
        if let Some(period) = self.deployments[d].sync_period {
            self.plan(now + period, Event::Sync(d));
        }
    }

    fn apply(&mut self, now: SimTime, d: usize, decision: Decision, inputs: String) {
        let from = self.deployments[d].desired;
        let to = decision.scale_to.unwrap_or(from);
        self.deployments[d].desired = to;
        self.note(DecisionRow {
            at: now,
            controller: Controller::Hpa,
            about: self.about(d),
            from: from.into(),
            to: to.into(),
            ready: self.ready_of(d) as u32,
            inputs,
            why: decision.why,
        });
    }

    /// What the metrics APIs answer to the HPA, in the order of its metrics.
    fn readings(&mut self, now: SimTime, d: usize, ids: &[u64]) -> Vec<Reading> {
        let is_down = now < self.outage_until;
        let its = &mut self.deployments[d];
        let Some(hpa) = &its.hpa else {
            return Vec::new();
        };
        let reading = |(path, metric): (&mut Option<_>, &crate::control::hpa::spec::MetricSpec)| {
            let path: &mut Option<crate::control::pipeline::MetricPath> = path;
            let Some(path) = path.as_mut().filter(|_| !is_down) else {
                return Reading::Unavailable(DOWN.to_owned());
            };
            if metric.source == HpaSource::Pods {
                return Reading::Pods(path.query(now, ids));
            }
            match path.total(now) {
                Some(total) => Reading::Series(vec![milli_from_f64(total)]),
                None => Reading::Unavailable("no matching metrics found".to_owned()),
            }
        };
        (its.paths.iter_mut().zip(&hpa.spec().metrics))
            .map(reading)
            .collect()
    }

    /// Plans a loop of the Cluster Autoscaler at `due`, where none is planned before.
    pub(super) fn plan_scan(&mut self, due: SimTime) {
        if due < self.scan_planned {
            self.scan_planned = due;
            self.plan(due, Event::Scan);
        }
    }

    /// With frequent loops a pod that has become unschedulable is looked at at once.
    pub(super) fn look_at_new_pods(&mut self, now: SimTime) {
        let is_frequent = (self.spec.cluster_autoscaler).is_some_and(|f| f.frequent_loops_enabled);
        let youngest = (self.deployments.iter())
            .filter_map(|d| d.pending.last())
            .max()
            .copied();
        if is_frequent && youngest > self.scan_told {
            self.scan_told = youngest;
            self.plan_scan(now);
        }
    }

    /// A loop of the Cluster Autoscaler.
    pub(super) fn scan(&mut self, now: SimTime) {
        if self.scan_planned > now {
            // An earlier loop took its place.
            return;
        }
        self.scan_planned = SimTime::NEVER;
        let nodes = self.nodes_for_autoscaler();
        let removing = self.nodes_that_go();
        let ready = self.ready_units() as u32;
        let pending = self.pending();
        let unschedulable: Vec<PodView> = pending.iter().map(|p| self.pod_view(*p)).collect();
        let draw = self.expander.next_u64();
        let Some(autoscaler) = &mut self.autoscaler else {
            return;
        };
        let scan = autoscaler.scan(
            now,
            Observed {
                nodes: &nodes,
                removing,
                unschedulable: &unschedulable,
                draw,
            },
        );
        let inputs = format!(
            "{} unschedulable pods, {} nodes",
            unschedulable.len(),
            nodes.len()
        );
        let mut row = DecisionRow {
            at: now,
            controller: Controller::ClusterAutoscaler,
            about: "nodes".into(),
            from: 0,
            to: 0,
            ready,
            inputs,
            why: scan.why.clone(),
        };
        let next = autoscaler.next_loop(now, &scan);
        if scan.actions.is_empty() {
            self.note(row.clone());
        }
        self.tell_removals(&row, &scan.actions);
        for action in scan.actions {
            match action {
                Action::SetGroupSize { group, size } => {
                    row.about.clone_from(&self.spec.groups[group].name);
                    row.from = self.groups[group].target as i64;
                    row.to = size as i64;
                    self.note(row.clone());
                    self.set_group_size(now, group, size);
                }
                Action::RemoveNode { node, evict_at } => {
                    let n = node as usize;
                    let group = self.nodes[n].group;
                    self.groups[group].target = self.groups[group].target.saturating_sub(1);
                    self.taint(now, n, REMOVED);
                    self.nodes[n].why_gone = "removed by the Cluster Autoscaler".into();
                    self.plan(evict_at, Event::NodeEvict(n));
                }
            }
        }
        self.plan_scan(next);
    }

    /// Nodes that the Cluster Autoscaler removes: those without pods, and those that drain.
    fn nodes_that_go(&self) -> (usize, usize) {
        let own = |n: &&usize| self.nodes[**n].taint == REMOVED;
        let (empty, draining): (Vec<usize>, Vec<usize>) =
            (self.present.iter().filter(own)).partition(|n| self.nodes[**n].pods.is_empty());
        (empty.len(), draining.len())
    }

    /// Notes which nodes of each group are removed by `actions`, in a row for each group.
    fn tell_removals(&mut self, row: &DecisionRow, actions: &[Action]) {
        let mut of_group: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for action in actions {
            if let Action::RemoveNode { node, .. } = action {
                let node = &self.nodes[*node as usize];
                let names = of_group.entry(node.group).or_default();
                names.push(node.name.clone());
            }
        }
        for (group, names) in of_group {
            let from = self.groups[group].target as i64;
            self.note(DecisionRow {
                about: self.spec.groups[group].name.clone(),
                from,
                to: from - names.len() as i64,
                why: format!("removes {}: not needed", shortened(&names)),
                ..row.clone()
            });
        }
    }

    /// What pod `p` requests.
    pub(super) fn requests_of(&self, p: usize) -> Resources {
        self.spec.deployments[self.deployment_of(p)].pod.requests
    }

    pub(super) fn pod_view(&self, p: usize) -> PodView {
        let spec = &self.spec.deployments[self.deployment_of(p)];
        PodView {
            id: p as u64,
            requests: spec.pod.requests,
            groups: GroupSet::of(spec.starts.iter().map(Option::is_some)),
            created: self.pods[p].created,
            is_movable: true,
        }
    }

    fn nodes_for_autoscaler(&self) -> Vec<NodeView> {
        let view = |n: usize| {
            let node = &self.nodes[n];
            let template = self.spec.groups[node.group].template;
            let is_usable = node.usable != SimTime::NEVER;
            NodeView {
                id: n as u64,
                group: node.group,
                is_ready: true,
                is_cordoned: node.is_tainted(),
                allocatable: if is_usable {
                    template
                } else {
                    Resources {
                        gpus: 0,
                        ..template
                    }
                },
                pods: node.pods.iter().map(|p| self.pod_view(*p)).collect(),
            }
        };
        (self.present.iter().copied())
            .filter(|n| self.nodes[*n].is_registered() && self.nodes[*n].is_held())
            .map(view)
            .collect()
    }
}

fn inputs_of_triggers(names: &[String], values: &[TriggerValue]) -> String {
    let one = |(name, value): (&String, &TriggerValue)| match value {
        Ok(value) => format!("{name} {value}"),
        Err(why) => format!("{name}: {why}"),
    };
    let all: Vec<String> = names.iter().zip(values).map(one).collect();
    all.join("; ")
}

fn inputs_of_readings(names: &[String], readings: &[Reading]) -> String {
    let figure = |milli: i64| format!("{}", milli as f64 / 1e3);
    let one = |(name, reading): (&String, &Reading)| match reading {
        Reading::Pods(samples) => {
            let values: Vec<String> = (samples.of_pods.iter())
                .map(|s| s.map_or("-".to_owned(), |s| figure(s.value_milli)))
                .collect();
            format!("{name} [{}]", shortened(&values))
        }
        Reading::Series(series) => {
            let values: Vec<String> = series.iter().map(|v| figure(*v)).collect();
            format!("{name} {}", values.join(", "))
        }
        Reading::Resource { .. } => name.clone(),
        Reading::Unavailable(why) => format!("{name}: {why}"),
    };
    let all: Vec<String> = names.iter().zip(readings).map(one).collect();
    all.join("; ")
}

/// Values of the first pods, and how many more there are.
fn shortened(values: &[String]) -> String {
    const SHOWN: usize = 8;
    if values.len() <= SHOWN {
        return values.join(" ");
    }
    format!(
        "{} and {} more",
        values[..SHOWN].join(" "),
        values.len() - SHOWN
    )
}
