//! Fast model actuation in a cluster: pods hold accelerators, instances on their nodes serve for them, fall asleep and are woken.
//!
//! ```text
//!  placed --requester--> bound --hot---> waking ----------------------------+
//!                          |---warm--> weights load, start without imports -+--> readiness --> serves --> drains --> falls asleep
//!                          +---cold--> image pull, weights load, start -----+                                          |
//!                                                                         the pod is gone, its accelerators are free <-+
//! ```
//!
//! Who gets which instance is decided by [`crate::control::actuation`]. An engine of the run ends when its instance falls asleep, and a new one begins when
//! that is awake: sleep discards the KV cache.

use super::cluster::Cluster;
use super::event::Event;
use super::record::{Controller, InstanceRow};
use super::spec::{Wake, WakeSpec};
use super::unit::State;
use crate::control::actuation::{Answer, DualPodsSpec, InstanceId, Path};
use crate::kernel::time::SimTime;

impl Cluster {
    /// The launcher populator brings a node to its number of launchers: their image is pulled, and they load the Python modules.
    pub(super) fn populate(&mut self, now: SimTime, n: usize, is_there: bool) {
        let Some(actuation) = &mut self.actuation else {
            return;
        };
        let group = self.nodes[n].group;
        let first = self.spec.deployments.iter().find(|d| d.may_use(group));
        let Some((d, start)) = first.and_then(|d| Some((d, d.start_on(group)?))) else {
            return;
        };
        let Some(launcher) = actuation.spec.dual_pods.launcher else {
            return;
        };
        if launcher.launcher_count == 0 {
            return;
        }
        let ready = if is_there {
            now
        } else {
            let image = &mut self.nodes[n].images[d.image];
            if image.there == SimTime::NEVER {
                let pull = match self.spec.groups[group].has_image {
                    true => &start.image_cached,
                    false => &start.image_pull,
                };
                image.there = now + pull.draw(self.seed, &format!("cluster/launchers/{n}"));
            }
            let imports = start.wake.as_ref().map(|w| w.imports);
            let imports = imports.map(|d| d.draw(self.seed, &format!("cluster/imports/{n}")));
            image.there.max(now) + imports.unwrap_or_default()
        };
        let spec = actuation.spec.dual_pods;
        let node = actuation.nodes.entry(n).or_default();
        node.populate(&spec, ready);
    }

    /// The kubelet gives pod `p` accelerators of node `n`: the lowest that no pod holds.
    pub(super) fn give_accelerators(&mut self, p: usize, n: usize) {
        let held: Vec<u32> = (self.nodes[n].pods.iter())
            .flat_map(|other| self.pods[*other].gpus.iter().copied())
            .collect();
        let many = usize::try_from(self.requests_of(p).gpus).unwrap_or(0);
        self.pods[p].gpus = (0..).filter(|g| !held.contains(g)).take(many).collect();
    }

    /// The requester of pod `p` runs: the dual-pods controller binds it to an instance.
    pub(super) fn pod_bound(&mut self, now: SimTime, p: usize, epoch: u32) {
        if !self.is_current(self.pods[p].unit, epoch) {
            return;
        }
        let Some(path) = self.bind(now, p, epoch) else {
            return;
        };
        match path {
            Path::Hot => self.begin_wake(now, p, epoch),
            Path::Warm => self.pod_started(now, p, epoch),
            Path::Cold => {
                let Some(n) = self.pods[p].node else { return };
                let started = self.image_on(now, p, n);
                self.plan(started, Event::PodStarted { pod: p, epoch });
            }
        }
    }

    /// Binds pod `p`; none: launchers that could serve it have not started, and it is bound when they have.
    pub(super) fn bind(&mut self, now: SimTime, p: usize, epoch: u32) -> Option<Path> {
        let (n, d) = (self.pods[p].node?, self.deployment_of(p));
        let gpus = self.pods[p].gpus.clone();
        let own = self.actuation.as_mut()?;
        let new = own.record.instances.len();
        let spec: DualPodsSpec = own.spec.dual_pods;
        let node = own.nodes.entry(n).or_default();
        let before = node.count_asleep();
        let (instance, path, deleted, why) = match node.request(now, &spec, d, &gpus, new) {
            Answer::Later(at) => {
                self.plan(at, Event::PodBound { pod: p, epoch });
                return None;
            }
            Answer::Bound {
                instance,
                path,
                deleted,
                why,
            } => (instance, path, deleted, why),
        };
        let after = node.count_asleep();
        own.deleted(now, &deleted, "deleted to make room for another");
        if instance == new {
            own.record.instances.push(InstanceRow {
                deployment: d,
                node: n,
                gpus,
                created: now,
                ..InstanceRow::default()
            });
        } else {
            own.record.instances[instance].wake(now);
        }
        own.record.instances[instance].pods.push(p);
        let pod = &mut self.pods[p];
        (pod.instance, pod.path, pod.is_bound) = (Some(instance), Some(path), true);
        let why = format!("{}: {why} ({})", pod.name, path.name());
        self.asleep_now(now, n, (before, after), why);
        Some(path)
    }

    fn asleep_now(&mut self, now: SimTime, n: usize, sizes: (usize, usize), why: String) {
        let about = format!("asleep on {}", self.nodes[n].name);
        let sizes = (sizes.0 as i64, sizes.1 as i64);
        self.decided(now, Controller::DualPods, &about, sizes, why);
    }

    fn wake_of(&self, p: usize) -> Option<&WakeSpec> {
        self.start_of(p)?.wake.as_ref()
    }

    /// The instance of pod `p` is told to wake up: at level 1 its tensors come from the host's memory, at level 2 from where weights lie.
    fn begin_wake(&mut self, now: SimTime, p: usize, epoch: u32) {
        self.pods[p].started = now;
        let (Some(own), Some(wake)) = (&self.actuation, self.wake_of(p).cloned()) else {
            return;
        };
        if own.spec.level == 2 {
            self.load_weights(now, p, epoch);
            return;
        }
        let pod = &mut self.pods[p];
        (pod.loaded, pod.gang_loaded) = (now, now);
        match wake.how {
            Wake::Time(_) => self.finish_wake(now, p, epoch),
            Wake::Copy { rate, node, .. } => {
                let Some(n) = self.pods[p].node else { return };
                let links = &mut self.loads.links;
                let own = self.actuation.as_mut().map(|a| &mut a.links);
                let link = own.map(|all| *all.entry(n).or_insert_with(|| links.add_link(node)));
                self.join_wake(now, (p, epoch), wake.tensor_bytes as f64, rate, link);
            }
        }
    }

    /// The tensors of pod `p` are on its accelerators: what is left of the wake-up.
    pub(super) fn finish_wake(&mut self, now: SimTime, p: usize, epoch: u32) {
        let Some(wake) = self.wake_of(p) else { return };
        let delay = match &wake.how {
            Wake::Time(delay) => delay,
            Wake::Copy { fixed, .. } => fixed,
        };
        let takes = delay.draw(self.seed, &format!("cluster/wake/{p}"));
        let unit = self.pods[p].unit;
        self.plan(now + takes, Event::UnitUp { unit, epoch });
    }

    /// Whether pod `p` wakes an instance.
    pub(super) fn wakes(&self, p: usize) -> bool {
        self.pods[p].path == Some(Path::Hot)
    }

    /// Lets the instance of replica `unit`, which has drained, fall asleep; false: it ends.
    pub(super) fn falls_asleep(&mut self, now: SimTime, unit: usize) -> bool {
        let p = self.units[unit].pods[0];
        let (Some(id), Some(n), true) = (
            self.pods[p].instance,
            self.pods[p].node,
            self.pods[p].is_bound,
        ) else {
            return false;
        };
        let Some(wake) = self.wake_of(p).cloned() else {
            return false;
        };
        // A node that is to go takes its sleepers with it.
        if self.nodes[n].is_tainted() || self.nodes[n].gone != SimTime::NEVER {
            return false;
        }
        let template = self.spec.groups[self.nodes[n].group].template;
        let of_node = u64::try_from(template.memory_bytes).ok().filter(|b| *b > 0);
        let Some(own) = &mut self.actuation else {
            return false;
        };
        let bytes = match own.spec.level {
            1 => wake.tensor_bytes,
            _ => 0,
        };
        let capacity = own.spec.host_memory.or(of_node);
        let Some(node) = own.nodes.get_mut(&n) else {
            return false;
        };
        let before = node.count_asleep();
        let Some(deleted) = node.make_host_room(id, bytes, capacity) else {
            let why = "ends: the host's memory has no room for its tensors";
            own.record.no_host_room += 1;
            let why = format!("{} {why}", self.pods[p].name);
            self.asleep_now(now, n, (before, before), why);
            return false;
        };
        let after = node.count_asleep();
        own.deleted(now, &deleted, "deleted to make room in the host's memory");
        own.record.instances[id].host_bytes = bytes;
        if !deleted.is_empty() {
            let why = "the host's memory has room for no more".to_owned();
            self.asleep_now(now, n, (before, after), why);
        }
        let u = &mut self.units[unit];
        u.falls_asleep = true;
        let epoch = u.epoch;
        let takes = (wake.sleep).draw(self.seed, &format!("cluster/sleep/{unit}"));
        self.plan(now + takes, Event::UnitAsleep { unit, epoch });
        true
    }

    /// The instance of replica `unit` sleeps: its pod is gone, and its accelerators are free.
    pub(super) fn unit_asleep(&mut self, now: SimTime, unit: usize, epoch: u32) {
        if !self.is_current(unit, epoch) || self.units[unit].state != State::Draining {
            return;
        }
        let p = self.units[unit].pods[0];
        if let Some(n) = self.pods[p].node
            && !self.nodes[n].is_tainted()
        {
            self.lull(now, p, n);
        }
        self.end(now, unit);
    }

    /// The instance of pod `p` on node `n` sleeps from now on.
    fn lull(&mut self, now: SimTime, p: usize, n: usize) {
        let Some(id) = self.pods[p].instance.filter(|_| self.pods[p].is_bound) else {
            return;
        };
        self.pods[p].is_bound = false;
        let gpus = self.pods[p].gpus.clone();
        let Some(own) = &mut self.actuation else {
            return;
        };
        let Some(node) = own.nodes.get_mut(&n) else {
            return;
        };
        let before = node.count_asleep();
        node.asleep(now, id);
        let after = node.count_asleep();
        own.record.instances[id].naps.push((now, SimTime::NEVER));
        own.note_peaks(n, &gpus);
        let level = own.spec.level;
        let why = format!(
            "the instance of {} sleeps at level {level}",
            self.pods[p].name
        );
        self.asleep_now(now, n, (before, after), why);
    }

    /// Pod `p` ends: an instance that it was waking stays asleep, any other that it has ends too.
    pub(super) fn leave_instance(&mut self, now: SimTime, p: usize) {
        let (Some(id), Some(n), true) = (
            self.pods[p].instance,
            self.pods[p].node,
            self.pods[p].is_bound,
        ) else {
            return;
        };
        let is_waking = self.wakes(p) && self.pods[p].ready == SimTime::NEVER;
        if is_waking && !self.nodes[n].is_tainted() {
            self.lull(now, p, n);
            return;
        }
        self.delete_instance(now, p, id, n, "its pod ended");
    }

    /// The instance of pod `p` crashed.
    pub(super) fn crash_instance(&mut self, now: SimTime, p: usize) {
        if let (Some(id), Some(n), true) = (
            self.pods[p].instance,
            self.pods[p].node,
            self.pods[p].is_bound,
        ) {
            self.delete_instance(now, p, id, n, "it crashed");
        }
    }

    fn delete_instance(&mut self, now: SimTime, p: usize, id: InstanceId, n: usize, why: &str) {
        self.pods[p].is_bound = false;
        if let Some(own) = &mut self.actuation {
            if let Some(node) = own.nodes.get_mut(&n) {
                node.delete(id);
            }
            own.deleted(now, &[id], why);
        }
    }

    /// Node `n` is gone with its instances and launchers.
    pub(super) fn forget_instances(&mut self, now: SimTime, n: usize) {
        let Some(own) = &mut self.actuation else {
            return;
        };
        if own.nodes.remove(&n).is_none() {
            return;
        }
        for row in own.record.instances.iter_mut().filter(|i| i.node == n) {
            row.end(now, "its node is gone");
        }
    }
}
