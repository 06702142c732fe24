//! What breaks, and what operators change.

use rand::RngExt;

use super::cluster::Cluster;
use super::delay::Delay;
use super::event::Event;
use super::node::RECLAIMED;
use super::pods::KUBELET_LOOKS;
use super::record::Controller;
use super::scalers::Scaler;
use super::sight::Order;
use super::slow::Slow;
use super::spec::{ChangeKind, FaultKind, SpotHandler, Target, When};
use super::unit::{Curse, Unit};
use crate::kernel::rng;
use crate::kernel::time::{SimDuration, SimTime};

impl Cluster {
    /// Plans a fault of the cluster as a whole anew, `now` being when the last one ended.
    pub(super) fn plan_again(&mut self, now: SimTime, i: usize) {
        let When::After(delay) = self.spec.faults[i].when else {
            return;
        };
        let k = self.fault_times[i];
        self.fault_times[i] += 1;
        let life = self.life(delay, &format!("cluster/fault/{i}/{k}"));
        self.plan(now + life, Event::Fault(i));
    }

    /// Time until something breaks: at least a second, so that a run with a mean of nothing ends.
    pub(super) fn life(&self, delay: Delay, of: &str) -> SimDuration {
        delay.draw(self.seed, of).max(SimDuration(1_000_000_000))
    }

    /// Whether engines may change their speed in the run.
    pub(super) fn may_slow(&self) -> bool {
        (self.spec.faults.iter()).any(|f| matches!(f.kind, FaultKind::Straggler { .. }))
    }

    /// Share of the bandwidth of the storage that there is.
    pub(super) fn storage_share(&self) -> f64 {
        self.storage.iter().map(|s| s.2).product()
    }

    /// A fault with an instant of its own.
    pub(super) fn fault(&mut self, now: SimTime, i: usize) {
        let kind = self.spec.faults[i].kind.clone();
        if let Some(duration) = kind.lasts() {
            self.plan_again(now + duration, i);
        }
        match kind {
            FaultKind::MetricsOutage { duration } => {
                self.outage_until = self.outage_until.max(now + duration);
                let why = format!("no metrics for {:.0} s", duration.as_secs());
                self.decided(now, Controller::Fault, "metrics", (0, 0), why);
            }
            FaultKind::NoCapacity { duration } => {
                for group in 0..self.groups.len() {
                    if !self.spec.faults[i].may_hit(group) {
                        continue;
                    }
                    let until = &mut self.groups[group].no_capacity_until;
                    *until = (*until).max(now + duration);
                    let name = self.spec.groups[group].name.clone();
                    let size = self.groups[group].target as i64;
                    let why = format!("the cloud has no capacity for {:.0} s", duration.as_secs());
                    self.decided(now, Controller::Fault, &name, (size, size), why);
                }
            }
            FaultKind::SlowStorage { share, duration } => {
                let before = self.storage_share();
                self.storage.push((i, now, share));
                self.storage_changed(now, before);
                self.set_storage(now);
                let event = Event::StorageFast {
                    fault: i,
                    begin: now,
                };
                self.plan(now + duration, event);
                let why = format!(
                    "weights load at {:.0} % of the bandwidth for {:.0} s",
                    100.0 * share,
                    duration.as_secs()
                );
                self.decided(now, Controller::Fault, "storage", (0, 0), why);
            }
            FaultKind::KvLink { share, duration } => self.slow_links(now, i, share, duration),
            FaultKind::CrashLoop { .. } => self.hit_replicas(now, i, Unit::counts, Self::curse),
            FaultKind::Partition { .. } => {
                self.hit_replicas(now, i, Unit::is_serving, Self::cut_off);
            }
            FaultKind::Replica => {
                self.hit_replicas(now, i, Unit::is_serving, |c, now, unit, _| {
                    c.crash(now, unit);
                });
            }
            FaultKind::Node { .. } | FaultKind::Spot { .. } | FaultKind::Straggler { .. } => {
                let is_spot = matches!(kind, FaultKind::Spot { .. });
                let of = self.spec.faults[i].deployment;
                let holds = |n: usize, d: usize| {
                    (self.nodes[n].pods.iter()).any(|p| self.deployment_of(*p) == d)
                };
                let there: Vec<usize> = (self.present.iter().copied())
                    .filter(|n| {
                        let node = &self.nodes[*n];
                        node.is_registered()
                            && !node.is_tainted()
                            && (!is_spot || self.spec.groups[node.group].is_spot)
                            && self.spec.faults[i].may_hit(node.group)
                            && of.is_none_or(|d| holds(*n, d))
                    })
                    .collect();
                let chosen = self.chosen(i, &there);
                if chosen.is_empty() {
                    self.nothing_broke(now, "node");
                }
                for node in chosen {
                    self.node_fault(now, node, i);
                }
            }
        }
    }

    /// Fault `i` hits replicas for which `may` holds.
    fn hit_replicas(
        &mut self,
        now: SimTime,
        i: usize,
        may: fn(&Unit) -> bool,
        hit: fn(&mut Cluster, SimTime, usize, usize),
    ) {
        let there = self.those(self.spec.faults[i].deployment, may);
        let chosen = self.chosen(i, &there);
        if chosen.is_empty() {
            self.nothing_broke(now, "replica");
        }
        for unit in chosen {
            hit(self, now, unit, i);
        }
    }

    /// Which of those there are.
    fn chosen(&self, fault: usize, there: &[usize]) -> Vec<usize> {
        let When::At { target, .. } = self.spec.faults[fault].when else {
            return Vec::new();
        };
        match target {
            Target::All => there.to_vec(),
            Target::Nth(k) => there.get(k).copied().into_iter().collect(),
            Target::Any if there.is_empty() => Vec::new(),
            Target::Any => {
                let mut draws = rng::stream(self.seed, &format!("cluster/fault/{fault}"));
                vec![there[draws.random_range(0..there.len())]]
            }
        }
    }

    fn nothing_broke(&mut self, now: SimTime, what: &str) {
        let why = format!("a fault found no {what} that it could break");
        self.decided(now, Controller::Fault, what, (0, 0), why);
    }

    /// A fault of one node.
    pub(super) fn node_fault(&mut self, now: SimTime, n: usize, fault: usize) {
        if self.nodes[n].gone != SimTime::NEVER {
            return;
        }
        let name = self.nodes[n].name.clone();
        let why = match self.spec.faults[fault].kind {
            FaultKind::Node { noticed_after } => {
                self.node_lost(now, n, noticed_after, "it failed");
                format!("{name} is lost")
            }
            FaultKind::Spot { notice, handler } => {
                self.reclaim(now, n, notice, handler);
                format!("{name} is reclaimed in {:.0} s", notice.as_secs())
            }
            FaultKind::Straggler {
                factor,
                duration,
                cause,
                slows,
            } => {
                let slow = Slow::of(slows, factor);
                self.nodes[n].slowed.push((fault, now, slow));
                self.set_speeds(n);
                let mut why = format!("{cause} of {name}: {slow}");
                if let Some(duration) = duration {
                    let event = Event::NodeSlow {
                        node: n,
                        fault,
                        begin: now,
                    };
                    self.plan(now + duration, event);
                    why += &format!(" for {:.0} s", duration.as_secs());
                }
                why
            }
            _ => return,
        };
        let group = self.nodes[n].group;
        let about = self.spec.groups[group].name.clone();
        let size = self.groups[group].target as i64;
        self.decided(now, Controller::Fault, &about, (size, size), why);
    }

    /// What slowed a node since `begin` has ended.
    pub(super) fn node_recovers(&mut self, now: SimTime, n: usize, fault: usize, begin: SimTime) {
        if self.nodes[n].gone != SimTime::NEVER {
            return;
        }
        self.nodes[n]
            .slowed
            .retain(|s| (s.0, s.1) != (fault, begin));
        self.set_speeds(n);
        let node = &self.nodes[n];
        let why = format!("{}: {}", node.name, node.slowdown());
        let about = self.spec.groups[node.group].name.clone();
        let size = self.groups[node.group].target as i64;
        self.decided(now, Controller::Fault, &about, (size, size), why);
        if let When::After(delay) = self.spec.faults[fault].when {
            self.nodes[n].slowed_times += 1;
            let k = self.nodes[n].slowed_times;
            let name = format!("cluster/fault/{fault}/node/{n}/{k}");
            let life = self.life(delay, &name);
            self.plan(now + life, Event::NodeFault { node: n, fault });
        }
    }

    /// The storage is as fast as it was before `begin`.
    pub(super) fn storage_recovers(&mut self, now: SimTime, fault: usize, begin: SimTime) {
        let before = self.storage_share();
        self.storage.retain(|s| (s.0, s.1) != (fault, begin));
        self.storage_changed(now, before);
        self.set_storage(now);
        let why = format!(
            "weights load at {:.0} % of the bandwidth",
            100.0 * self.storage_share()
        );
        self.decided(now, Controller::Fault, "storage", (0, 0), why);
    }

    /// A fault of one replica.
    pub(super) fn unit_fault(&mut self, now: SimTime, unit: usize, epoch: u32, fault: usize) {
        if !self.is_current(unit, epoch) {
            return;
        }
        let is_loop = matches!(self.spec.faults[fault].kind, FaultKind::CrashLoop { .. });
        let is_cursed =
            (self.curses.iter()).any(|c| c.fault == fault && c.name == self.name_of(unit));
        match (&self.spec.faults[fault].kind, is_loop && !is_cursed) {
            (FaultKind::Partition { .. }, _) => self.cut_off(now, unit, fault),
            (_, true) => self.curse(now, unit, fault),
            (_, false) => self.crash(now, unit),
        }
    }

    /// The gateway does not reach a replica for a while. Its pod stays ready: the kubelet, which probes it, is on the same node.
    fn cut_off(&mut self, now: SimTime, unit: usize, fault: usize) {
        let FaultKind::Partition {
            duration,
            connect_timeout,
        } = self.spec.faults[fault].kind
        else {
            return;
        };
        let u = &mut self.units[unit];
        let Some(engine) = u.engine.filter(|_| u.is_serving()) else {
            return;
        };
        u.partitions += 1;
        self.orders.push(Order::CutOff(engine, connect_timeout));
        let epoch = u.epoch;
        self.plan(now + duration, Event::UnitReached { unit, epoch, fault });
        let why = format!(
            "the gateway does not reach {} for {:.0} s",
            self.name_of(unit),
            duration.as_secs()
        );
        self.decided(now, Controller::Fault, "replica", (0, 0), why);
    }

    /// A partition ends.
    pub(super) fn unit_reached(&mut self, now: SimTime, unit: usize, epoch: u32, fault: usize) {
        if !self.is_current(unit, epoch) {
            return;
        }
        let u = &mut self.units[unit];
        u.partitions = u.partitions.saturating_sub(1);
        if let (0, Some(engine)) = (u.partitions, u.engine) {
            self.orders.push(Order::Reach(engine));
            let why = format!("the gateway reaches {} again", self.name_of(unit));
            self.decided(now, Controller::Fault, "replica", (0, 0), why);
        }
        if let When::After(delay) = self.spec.faults[fault].when {
            let name = format!("cluster/fault/{fault}/replica/{unit}/{epoch}/{}", now.0);
            let life = self.life(delay, &name);
            self.plan(now + life, Event::UnitFault { unit, epoch, fault });
        }
    }

    /// The container of a replica crashes now, and again after each start.
    fn curse(&mut self, now: SimTime, unit: usize, fault: usize) {
        let FaultKind::CrashLoop { after, duration } = self.spec.faults[fault].kind else {
            return;
        };
        let name = self.name_of(unit).to_owned();
        let why = format!(
            "{name} crashes {:.0} s after each start, for {:.0} s",
            after.as_secs(),
            duration.as_secs()
        );
        self.curses.retain(|c| c.until > now);
        self.curses.push(Curse {
            name,
            until: now + duration,
            after,
            fault,
        });
        self.decided(now, Controller::Fault, "replica", (0, 0), why);
        self.crash(now, unit);
    }

    /// The container of pod `p` has started: it crashes again where that is its lot.
    pub(super) fn crash_again(&mut self, now: SimTime, p: usize, epoch: u32) {
        let unit = self.pods[p].unit;
        let name = self.name_of(unit);
        let its = |c: &&Curse| c.until > now && c.name == name;
        let Some(curse) = self.curses.iter().find(its) else {
            return;
        };
        // A group that crashes at once is made anew at once, at the same instant: only the kubelet's pace lets time pass.
        let (at, fault) = (now + curse.after.max(KUBELET_LOOKS), curse.fault);
        self.plan(at, Event::UnitFault { unit, epoch, fault });
    }

    /// Spot node `n` will be taken away after `notice`. It stays until then, as its instance does.
    fn reclaim(&mut self, now: SimTime, n: usize, notice: SimDuration, handler: SpotHandler) {
        let noticed = match handler {
            SpotHandler::None { noticed_after } => noticed_after,
            SpotHandler::GracefulShutdown { .. } | SpotHandler::Drain => SimDuration::ZERO,
        };
        self.plan(now + notice, Event::NodeLost(n, noticed));
        if matches!(handler, SpotHandler::None { .. }) {
            return;
        }
        self.taint(now, n, RECLAIMED);
        self.nodes[n].why_gone = "reclaimed".into();
        if notice == SimDuration::ZERO {
            return;
        }
        let mut units: Vec<usize> = (self.nodes[n].pods.iter())
            .map(|p| self.pods[*p].unit)
            .collect();
        units.dedup();
        for unit in units {
            match handler {
                SpotHandler::GracefulShutdown { grace } => self.shut_down(now, unit, grace),
                _ => self.remove(now, unit, "evicted: its node is reclaimed"),
            }
        }
    }

    /// What an operator does.
    pub(super) fn change(&mut self, now: SimTime, i: usize) {
        match self.spec.changes[i].what {
            ChangeKind::Replicas {
                deployment: d,
                replicas,
            } => {
                let from = std::mem::replace(&mut self.deployments[d].desired, replicas);
                let sizes = (from, replicas);
                self.resized(now, Controller::Operator, d, sizes, "kubectl scale".into());
            }
            ChangeKind::Restart(d) => {
                self.deployments[d].generation += 1;
                let size = self.deployments[d].desired;
                let why = "kubectl rollout restart".into();
                self.resized(now, Controller::Operator, d, (size, size), why);
            }
            ChangeKind::Bounds {
                deployment: d,
                min,
                max,
            } => {
                let from = self.deployments[d].desired;
                let why = self.patch(d, min, max);
                let to = self.deployments[d].desired;
                self.resized(now, Controller::Operator, d, (from, to), why);
            }
            ChangeKind::Group {
                group,
                min,
                max,
                nodes,
            } => self.resize(now, group, (min, max), nodes),
        }
    }

    fn patch(&mut self, d: usize, min: Option<i32>, max: Option<i32>) -> String {
        let its = &mut self.deployments[d];
        let uses = self.spec.scalers.iter().zip(&mut self.scalers);
        let mut own = uses.filter(|(u, _)| u.deployments == [d]);
        let (done, now_min, now_max) = if let Some(keda) = &mut its.keda {
            let spec = keda.spec();
            let (a, b) = (
                min.unwrap_or(spec.min_replica_count),
                max.unwrap_or(spec.max_replica_count),
            );
            (keda.set_bounds(a, b), a, b)
        } else if let Some(hpa) = &mut its.hpa {
            let spec = hpa.spec();
            let (a, b) = (min.or(spec.min_replicas), max.unwrap_or(spec.max_replicas));
            let done = hpa.set_bounds(a, b).map_err(|e| e.to_string());
            (done, a.unwrap_or(1), b)
        } else if let Some((_, Some(Scaler::SageMaker(endpoint)))) = own.next() {
            let of = |n: Option<i32>| n.and_then(|n| u32::try_from(n).ok());
            let done = endpoint.set_bounds(of(min), of(max));
            let (a, b) = endpoint.bounds();
            let current = u32::try_from(its.desired).unwrap_or(0);
            its.desired = i32::try_from(current.clamp(a, b)).unwrap_or(i32::MAX);
            return match done {
                Ok(()) => format!("RegisterScalableTarget: MinCapacity {a}, MaxCapacity {b}"),
                Err(why) => format!("RegisterScalableTarget was refused: {why}"),
            };
        } else {
            return "there is no autoscaler to patch".into();
        };
        match done {
            Ok(()) => format!("kubectl patch: minimum {now_min}, maximum {now_max}"),
            Err(why) => format!("kubectl patch was refused: {why}"),
        }
    }

    fn resize(
        &mut self,
        now: SimTime,
        group: usize,
        (min, max): (Option<usize>, Option<usize>),
        nodes: Option<usize>,
    ) {
        let from = self.groups[group].target;
        let g = &mut self.groups[group];
        g.min = min.unwrap_or(g.min);
        g.max = max.unwrap_or(g.max);
        let size = nodes.unwrap_or(from).clamp(g.min, g.max.max(g.min));
        let why = format!(
            "node group set to min {}, max {}, {size} nodes",
            g.min, g.max
        );
        let (min, max) = (g.min, g.max);
        if let Some(autoscaler) = &mut self.autoscaler {
            autoscaler.set_bounds(group, min, max);
            if size != from {
                autoscaler.set_target(group, size);
            }
        }
        if size < from {
            self.shrink(now, group, size);
        } else {
            self.set_group_size(now, group, size);
        }
        let name = self.spec.groups[group].name.clone();
        let sizes = (from as i64, size as i64);
        self.decided(now, Controller::Operator, &name, sizes, why);
    }
}
