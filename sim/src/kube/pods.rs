//! Pods and replicas: created by their Deployment or LeaderWorkerSet, placed, started phase by phase, drained, ended.

mod crash;
mod ranks;
mod views;

use super::cluster::Cluster;
use super::delay::Delay;
use super::deployment::{Deployment, HeldUp};
use super::event::Event;
use super::flows::Load;
use super::pod::Pod;
use super::sight::{Order, Sight};
use super::slow::Speed;
use super::spec::{FaultKind, ScalerSpec, Weights, When};
use super::unit::{State, Unit};
use crate::control::actuation::Path;
use crate::kernel::time::{SimDuration, SimTime};

/// How often the kubelet looks at its containers: whether one that was told to end has, whether one has crashed.
pub(super) const KUBELET_LOOKS: SimDuration = SimDuration(1_000_000_000);
/// Longest pause before a container that crashed is started again.
const LONGEST_BACKOFF: SimDuration = SimDuration(300_000_000_000);

impl Cluster {
    pub(super) fn is_set_of_groups(&self, d: usize) -> bool {
        self.spec.deployments[d].pod.size > 1
    }

    /// Lets each Deployment or LeaderWorkerSet have as many replicas as are wanted.
    pub(super) fn reconcile(&mut self, now: SimTime) {
        for d in 0..self.deployments.len() {
            self.reconcile_one(now, d);
        }
    }

    fn reconcile_one(&mut self, now: SimTime, d: usize) {
        if self.roll(now, d) {
            return;
        }
        let wanted = self.deployments[d].wanted();
        let there = self.deployments[d].counted;
        for _ in there..wanted {
            self.create(now, d);
        }
        if there > wanted {
            let mut victims = self.ranked(now, d, self.counted(d));
            victims.truncate(there - wanted);
            for victim in victims {
                self.remove(now, victim, "not wanted any more");
            }
        }
    }

    pub(super) fn create(&mut self, now: SimTime, d: usize) {
        self.create_of(now, d, self.deployments[d].generation);
    }

    /// Creates a replica of deployment `d` of this generation.
    pub(super) fn create_of(&mut self, now: SimTime, d: usize, generation: u32) {
        let unit = self.units.len();
        let spec = &self.spec.deployments[d].pod;
        let ordinal = if self.is_set_of_groups(d) {
            let taken: std::collections::BTreeSet<u32> = (self.counted(d).into_iter())
                .map(|u| self.units[u].ordinal)
                .collect();
            (0..).find(|o| !taken.contains(o)).unwrap_or(0)
        } else {
            unit as u32
        };
        let name = format!("{}-{ordinal}", spec.name);
        let mut pods = Vec::new();
        for k in 0..spec.size {
            let pod = self.pods.len();
            self.pods.push(Pod {
                unit,
                name: if k == 0 {
                    name.clone()
                } else {
                    format!("{name}-{k}")
                },
                node: None,
                created: now,
                scheduled: SimTime::NEVER,
                started: SimTime::NEVER,
                loaded: SimTime::NEVER,
                gang_loaded: SimTime::NEVER,
                up: SimTime::NEVER,
                ready: SimTime::NEVER,
                gone: SimTime::NEVER,
                restarts: 0,
                earlier: Vec::new(),
                is_first: false,
                is_backing_off: false,
                backoffs: 0,
                gpus: Vec::new(),
                instance: None,
                path: None,
                is_bound: false,
                load: None,
                unschedulable: String::new(),
                limit: String::new(),
            });
            self.deployments[d].pending.insert(pod);
            pods.push(pod);
        }
        self.live.push(unit);
        self.deployments[d].counted += 1;
        self.units.push(Unit {
            deployment: d,
            generation,
            ordinal,
            name,
            pods,
            state: State::Starting,
            epoch: 0,
            created: now,
            ready: SimTime::NEVER,
            draining: SimTime::NEVER,
            gone: SimTime::NEVER,
            why_gone: String::new(),
            engine: None,
            is_shut_down: false,
            falls_asleep: false,
            partitions: 0,
            speed: None,
            served: Vec::new(),
        });
    }

    /// Pods without a node, in the order of their creation.
    pub(super) fn pending(&self) -> Vec<usize> {
        let all = self.deployments.iter().flat_map(|d| &d.pending);
        let mut pods: Vec<usize> = all.copied().collect();
        pods.sort_unstable();
        pods
    }

    /// Places pods, in the order of their creation, on nodes with room.
    pub(super) fn schedule(&mut self, now: SimTime) {
        // All pods of a deployment ask for the same: where one found no room, none of those after it does until something has changed.
        let version = self.rooms.version;
        let may_fit = |d: &Deployment| {
            let newest = d.pending.last().copied();
            newest.is_some() && (d.held_up.newest < newest || d.held_up.version != version)
        };
        let mut open: Vec<usize> = (0..self.deployments.len())
            .filter(|d| may_fit(&self.deployments[*d]))
            .collect();
        loop {
            let first = |d: &usize| Some((*self.deployments[*d].pending.first()?, *d));
            let Some((pod, d)) = open.iter().filter_map(first).min() else {
                return;
            };
            match self.node_with_room(d) {
                Some(node) => {
                    self.tell_held_up(pod);
                    self.deployments[d].pending.remove(&pod);
                    self.place(now, pod, node);
                }
                None => {
                    let why = self.why_no_room(d);
                    let its = &mut self.deployments[d];
                    its.held_up = HeldUp {
                        newest: its.pending.last().copied(),
                        version: self.rooms.version,
                        why,
                    };
                    open.retain(|other| *other != d);
                }
            }
        }
    }

    /// What keeps nodes from being added for the pods of deployment `d`.
    pub(super) fn limit_of(&self, now: SimTime, d: usize) -> String {
        let grows = self.autoscaler.is_some()
            || self.karpenter.is_some()
            || (self.spec.scalers.iter()).any(|s| matches!(s.spec, ScalerSpec::SageMaker(_)));
        if !grows {
            return "nobody adds nodes (no node autoscaler)".into();
        }
        let may_use = |g: &usize| self.spec.deployments[d].may_use(*g);
        let one = |g: usize| {
            let (group, name) = (&self.groups[g], &self.spec.groups[g].name);
            if now < group.no_capacity_until {
                format!("{name}: the cloud has no capacity")
            } else if group.target >= group.max {
                format!("{name}: max {} reached", group.max)
            } else {
                format!("{name}: {} of {} nodes", group.target, group.max)
            }
        };
        let all: Vec<String> = (0..self.groups.len()).filter(may_use).map(one).collect();
        all.join("; ")
    }

    /// Notes what the scheduler said of pod `p`, which is Pending no longer or to the end of the run.
    pub(super) fn tell_held_up(&mut self, p: usize) {
        let held_up = &self.deployments[self.deployment_of(p)].held_up;
        if held_up.newest.is_some_and(|newest| p <= newest) {
            self.pods[p].unschedulable = held_up.why.clone();
        }
    }

    /// Places pods at the start of a warm run and lets them be ready.
    pub(super) fn schedule_warm(&mut self, now: SimTime) {
        self.schedule(now);
        for unit in self.live.clone() {
            let pods = self.units[unit].pods.clone();
            if pods.iter().any(|p| self.pods[*p].node.is_none()) {
                continue;
            }
            for p in pods {
                let pod = &mut self.pods[p];
                (pod.started, pod.loaded) = (now, now);
                (pod.gang_loaded, pod.up, pod.ready) = (now, now, now);
            }
            self.units[unit].epoch += 1;
            let epoch = self.units[unit].epoch;
            for p in self.units[unit].pods.clone() {
                self.bind(now, p, epoch);
            }
            self.unit_ready(now, unit, epoch);
        }
    }

    fn place(&mut self, now: SimTime, p: usize, n: usize) {
        let epoch = self.units[self.pods[p].unit].epoch;
        let (at, event) = match &self.actuation {
            Some(own) => {
                let takes = (own.spec.requester).draw(self.seed, &format!("cluster/requester/{p}"));
                self.give_accelerators(p, n);
                (now + takes, Event::PodBound { pod: p, epoch })
            }
            None => {
                let started = self.image_on(now, p, n);
                (started, Event::PodStarted { pod: p, epoch })
            }
        };
        let node = &mut self.nodes[n];
        node.pods.push(p);
        node.last_pod_event = now;
        let pod = &mut self.pods[p];
        pod.node = Some(n);
        pod.scheduled = now;
        self.refile(n);
        self.plan(at, event);
    }

    /// When the container of pod `p` starts on node `n`: its volume is attached, then its image is there.
    pub(super) fn image_on(&mut self, now: SimTime, p: usize, n: usize) -> SimTime {
        let spec = &self.spec.deployments[self.deployment_of(p)];
        let draw =
            |delay: &Delay, what: &str| delay.draw(self.seed, &format!("cluster/{what}/{p}"));
        let attached = now + draw(&spec.pod.volume_attach, "attach");
        let node = &mut self.nodes[n];
        let image = &mut node.images[spec.image];
        if let (SimTime::NEVER, Some(start)) = (image.there, spec.start_on(node.group)) {
            let pull = if self.spec.groups[node.group].has_image {
                draw(&start.image_cached, "pull")
            } else {
                draw(&start.image_pull, "pull")
            };
            // Others that come to the node meanwhile wait for the same pull.
            image.there = attached + pull;
        }
        attached.max(image.there)
    }

    pub(super) fn pod_started(&mut self, now: SimTime, p: usize, epoch: u32) {
        if !self.is_current(self.pods[p].unit, epoch) {
            return;
        }
        self.pods[p].started = now;
        self.pods[p].is_backing_off = false;
        if let Some(n) = self.pods[p].node {
            let image = self.spec.deployments[self.deployment_of(p)].image;
            let image = &mut self.nodes[n].images[image];
            self.pods[p].is_first = !std::mem::replace(&mut image.has_started, true);
        }
        self.crash_again(now, p, epoch);
        self.load_weights(now, p, epoch);
    }

    /// The weights of pod `p` begin to load.
    pub(super) fn load_weights(&mut self, now: SimTime, p: usize, epoch: u32) {
        if self.begin_load(now, p, epoch) {
            return;
        }
        let restarts = self.pods[p].restarts;
        let Some(Weights::Time(load)) = self.start_of(p).map(|s| &s.weights) else {
            return;
        };
        let load = load.draw(self.seed, &format!("cluster/weights/{p}/{restarts}"));
        let version = self.pods[p].load.map_or(0, |l| l.version + 1);
        self.pods[p].load = Some(Load {
            left: load.0,
            since: now,
            version,
        });
        self.plan_load(now, p, epoch);
    }

    pub(super) fn pod_loaded(&mut self, now: SimTime, p: usize, epoch: u32, version: u32) {
        let unit = self.pods[p].unit;
        let is_planned = self.pods[p].load.is_some_and(|l| l.version == version);
        if !is_planned || !self.is_current(unit, epoch) {
            return;
        }
        self.pods[p].loaded = now;
        let pods = self.units[unit].pods.clone();
        if pods.iter().any(|p| self.pods[*p].loaded == SimTime::NEVER) {
            return;
        }
        for p in pods {
            self.pods[p].gang_loaded = now;
        }
        let leader = self.units[unit].pods[0];
        if self.wakes(leader) {
            self.finish_wake(now, leader, epoch);
            return;
        }
        let is_first = self.units[unit].pods.iter().any(|p| self.pods[*p].is_first);
        let Some(start) = self.start_of(leader) else {
            return;
        };
        let mut init = (start.engine_init).draw(self.seed, &format!("cluster/init/{unit}/{epoch}"));
        if is_first {
            let name = format!("cluster/first-start/{unit}/{epoch}");
            init = init + start.first_start.draw(self.seed, &name);
        }
        // A launcher has loaded the Python modules before.
        if let (Some(Path::Warm), Some(wake)) = (self.pods[leader].path, &start.wake) {
            let imports =
                (wake.imports).draw(self.seed, &format!("cluster/imports/{unit}/{epoch}"));
            init = SimDuration(init.0.saturating_sub(imports.0));
        }
        self.plan(now + init, Event::UnitUp { unit, epoch });
    }

    pub(super) fn unit_up(&mut self, now: SimTime, unit: usize, epoch: u32) {
        if !self.is_current(unit, epoch) {
            return;
        }
        let mut ready = now;
        for p in self.units[unit].pods.clone() {
            self.pods[p].up = now;
            ready = ready.max(self.probe_after(p, now));
        }
        self.plan(ready, Event::UnitReady { unit, epoch });
    }

    /// The first readiness probe of pod `p` that finds the server, which is up at `up`.
    fn probe_after(&self, p: usize, up: SimTime) -> SimTime {
        let spec = &self.spec.deployments[self.deployment_of(p)].pod;
        let first = self.pods[p].started + spec.probe_delay;
        let period = spec.probe_period.0.max(1);
        first + SimDuration(up.since(first).0.div_ceil(period).saturating_mul(period))
    }

    pub(super) fn unit_ready(&mut self, now: SimTime, unit: usize, epoch: u32) {
        if !self.is_current(unit, epoch) {
            return;
        }
        for p in self.units[unit].pods.clone() {
            self.pods[p].ready = now;
        }
        let speed = self.may_slow().then(|| Speed::new(self.slowdown_of(unit)));
        self.set_state(unit, State::Serving);
        let u = &mut self.units[unit];
        u.ready = now;
        u.engine = None;
        u.partitions = 0;
        u.speed.clone_from(&speed);
        let deployment = u.deployment;
        self.orders.push(Order::Start {
            unit,
            deployment,
            speed,
        });
        for fault in 0..self.spec.faults.len() {
            let spec = &self.spec.faults[fault];
            let of_replicas = matches!(
                spec.kind,
                FaultKind::Replica | FaultKind::CrashLoop { .. } | FaultKind::Partition { .. }
            );
            let hits = spec.deployment.is_none_or(|d| d == deployment);
            if let (true, When::After(delay)) = (of_replicas && hits, spec.when) {
                let name = format!("cluster/fault/{fault}/replica/{unit}/{epoch}");
                let at = now + self.life(delay, &name);
                self.plan(at, Event::UnitFault { unit, epoch, fault });
            }
        }
    }

    /// Replica `unit` stands elsewhere: its controller and the scheduler see it.
    pub(super) fn set_state(&mut self, unit: usize, state: State) {
        self.update(unit, |u| u.state = state);
        if state == State::Draining {
            for p in self.units[unit].pods.clone() {
                if let Some(n) = self.pods[p].node {
                    self.refile(n);
                }
            }
        }
    }

    /// Changes a replica, and with it what its deployment counts.
    fn update(&mut self, unit: usize, change: impl FnOnce(&mut Unit)) {
        let u = &mut self.units[unit];
        let before = (u.counts(), u.is_serving());
        change(u);
        let after = (u.counts(), u.is_serving());
        let its = &mut self.deployments[u.deployment];
        its.counted = its.counted + usize::from(after.0) - usize::from(before.0);
        its.ready = its.ready + usize::from(after.1) - usize::from(before.1);
    }

    /// The engine `index` was started for replica `unit` at `now`.
    pub fn started(&mut self, now: SimTime, unit: usize, index: u32) {
        self.units[unit].engine = Some(index);
        self.units[unit].served.push((index, now, SimTime::NEVER));
    }

    /// Ends the time for which a replica has been ready.
    pub(super) fn stop_serving(&mut self, now: SimTime, unit: usize) {
        let u = &mut self.units[unit];
        let Some(last) = u.served.last_mut().filter(|s| s.2 == SimTime::NEVER) else {
            return;
        };
        last.2 = now;
        let gpus = self.spec.deployments[u.deployment].pod.requests.gpus;
        let ns = u128::from(now.since(last.1).0) * gpus.max(0) as u128;
        for p in &u.pods {
            if let Some(n) = self.pods[*p].node {
                self.nodes[n].serving_gpu_ns += ns;
            }
        }
    }

    /// Tells a replica to end: one that serves answers what it has, for as long as its grace period allows.
    pub(super) fn remove(&mut self, now: SimTime, unit: usize, why: &str) {
        let grace = self.spec.deployments[self.units[unit].deployment].pod.grace;
        self.tell_to_end(now, unit, grace, why);
    }

    /// The node of a replica shuts down: the kubelet tells it to end, within its grace period and `most`. It counts until it has ended.
    pub(super) fn shut_down(&mut self, now: SimTime, unit: usize, most: SimDuration) {
        let grace = self.spec.deployments[self.units[unit].deployment].pod.grace;
        self.tell_to_end(now, unit, grace.min(most), "its node shuts down");
        self.update(unit, |u| u.is_shut_down = u.state == State::Draining);
    }

    fn tell_to_end(&mut self, now: SimTime, unit: usize, grace: SimDuration, why: &str) {
        if !self.units[unit].counts() {
            return;
        }
        if self.units[unit].is_shut_down {
            // It ends already, and is deleted now.
            return self.update(unit, |u| u.is_shut_down = false);
        }
        let u = &mut self.units[unit];
        why.clone_into(&mut u.why_gone);
        u.draining = now;
        let (state, engine) = (u.state, u.engine);
        match (state, engine) {
            (State::Serving, Some(engine)) => {
                self.set_state(unit, State::Draining);
                self.stop_serving(now, unit);
                self.orders.push(Order::Drain(engine));
                self.plan(now + grace, Event::Deadline(unit));
                if !self.looks {
                    self.looks = true;
                    self.plan(now, Event::LookAtDraining);
                }
            }
            _ => self.end(now, unit),
        }
    }

    /// A replica has drained: its instance falls asleep where it can, and it ends.
    fn retire(&mut self, now: SimTime, unit: usize) {
        if !self.falls_asleep(now, unit) {
            self.end(now, unit);
        }
    }

    /// A replica and its pods have ended.
    pub(super) fn end(&mut self, now: SimTime, unit: usize) {
        self.stop_serving(now, unit);
        self.set_state(unit, State::Gone);
        let u = &mut self.units[unit];
        u.gone = now;
        u.epoch += 1;
        let pods = u.pods.clone();
        if let Ok(place) = self.live.binary_search(&unit) {
            self.live.remove(place);
        }
        for p in pods {
            self.drop_load(now, p);
            self.leave_instance(now, p);
            self.pods[p].gone = now;
            if let Some(n) = self.pods[p].node {
                self.nodes[n].pods.retain(|other| *other != p);
                self.nodes[n].last_pod_event = now;
                self.refile(n);
                self.release_node(now, n);
            } else {
                let d = self.deployment_of(p);
                if self.deployments[d].pending.remove(&p) {
                    self.tell_held_up(p);
                    self.pods[p].limit = self.limit_of(now, d);
                }
            }
        }
    }

    pub(super) fn look_at_draining(&mut self, now: SimTime, sight: &dyn Sight) {
        let mut left = false;
        for unit in self.live.clone() {
            let u = &self.units[unit];
            if u.state != State::Draining || u.falls_asleep {
                continue;
            }
            match u.engine.map(|e| sight.engine(e).gone) {
                Some(None) => left = true,
                _ => self.retire(now, unit),
            }
        }
        self.looks = left;
        if left {
            self.plan(now + KUBELET_LOOKS, Event::LookAtDraining);
        }
    }

    /// The grace period of a replica is over.
    pub(super) fn deadline(&mut self, now: SimTime, unit: usize) {
        if self.units[unit].state == State::Draining && !self.units[unit].falls_asleep {
            if let Some(engine) = self.units[unit].engine {
                self.orders.push(Order::Kill(engine));
            }
            self.units[unit].why_gone += "; killed at the end of its grace period";
            self.retire(now, unit);
        }
    }

    /// A replica is lost with its node; its controller counts it until that is noticed.
    pub(super) fn lose(&mut self, now: SimTime, unit: usize, noticed: SimDuration) {
        let u = &self.units[unit];
        if matches!(u.state, State::Gone | State::Lost) {
            return;
        }
        if let Some(engine) = u.engine {
            self.orders.push(Order::Kill(engine));
        }
        let was_draining = u.state == State::Draining;
        for p in self.units[unit].pods.clone() {
            self.drop_load(now, p);
        }
        self.stop_serving(now, unit);
        self.set_state(unit, State::Lost);
        let u = &mut self.units[unit];
        u.epoch += 1;
        u.why_gone = "lost with its node".into();
        if was_draining {
            self.end(now, unit);
        } else {
            self.plan(now + noticed, Event::UnitNoticed(unit));
        }
    }

    pub(super) fn unit_noticed(&mut self, now: SimTime, unit: usize) {
        if self.units[unit].state == State::Lost {
            self.end(now, unit);
        }
    }
}
