//! Loads of weights: in a time of their own, which slow storage stretches, and those that share a file system, a network card or a disk: each takes what is left to it, and that changes when another begins or ends.

use super::cluster::Cluster;
use super::delay::Delay;
use super::event::Event;
use super::flows::{Flow, Load};
use super::spec::{StartSpec, Weights};
use crate::kernel::time::{SimDuration, SimTime};

impl Cluster {
    /// The container of pod `p` has begun to load its weights: bytes come after `open_s`.
    pub(super) fn begin_load(&mut self, now: SimTime, p: usize, epoch: u32) -> bool {
        let Some(Weights::Load(load)) = self.start_of(p).map(|s| &s.weights) else {
            return false;
        };
        let open = SimDuration::from_secs(load.open_s);
        self.plan(now + open, Event::PodReads { pod: p, epoch });
        true
    }

    /// The first byte of the weights of pod `p` comes.
    pub(super) fn pod_reads(&mut self, now: SimTime, p: usize, epoch: u32) {
        if !self.is_current(self.pods[p].unit, epoch) {
            return;
        }
        let (Some(node), Some(Weights::Load(load))) = (
            self.pods[p].node,
            self.start_of(p).map(|s| s.weights.clone()),
        ) else {
            return;
        };
        let restarts = self.pods[p].restarts;
        let noise = Delay::Lognormal {
            median: 1.0,
            sigma: load.sigma,
        };
        let noise = noise.draw(self.seed, &format!("cluster/weights/{p}/{restarts}"));
        let share = self.storage_share();
        let l = &mut self.loads;
        let shared = *l
            .shared
            .entry(load.storage)
            .or_insert_with(|| (l.links.add_link(load.shared * share), load.shared));
        let own = *l
            .nodes
            .entry((node, load.storage))
            .or_insert_with(|| (l.links.add_link(load.node * share), load.node));
        // The rate of a load that is alone, so that slow storage slows it whatever limits it.
        let ceiling = load.ceiling.min(load.node).min(load.shared);
        let bytes = load.bytes * noise.as_secs();
        let links = [shared.0, own.0];
        let id = l.links.join(now.as_secs(), bytes, ceiling * share, links);
        l.flows.push(Flow {
            id,
            pod: p,
            epoch,
            ceiling,
            is_wake: false,
        });
        self.plan_loads(now);
    }

    /// The tensors of the instance of `pod` begin to come from the host's memory, at `rate` at most, over what the node has.
    pub(super) fn join_wake(
        &mut self,
        now: SimTime,
        (pod, epoch): (usize, u32),
        bytes: f64,
        rate: f64,
        link: Option<usize>,
    ) {
        let l = &mut self.loads;
        let id = l.links.join(now.as_secs(), bytes, rate, link);
        l.flows.push(Flow {
            id,
            pod,
            epoch,
            ceiling: rate,
            is_wake: true,
        });
        self.plan_loads(now);
    }

    /// Plans the end of the first load that ends.
    fn plan_loads(&mut self, now: SimTime) {
        self.loads.version += 1;
        if let Some((end, _)) = self.loads.links.next_end() {
            let at = SimTime::from_secs(end).max(now);
            let version = self.loads.version;
            self.plan(at, Event::LoadEnds(version));
        }
    }

    /// Loads that end now.
    pub(super) fn load_ends(&mut self, now: SimTime, version: u64) {
        if version != self.loads.version {
            return;
        }
        // What is left is less than a nanosecond's worth.
        const CLOSE: f64 = 2e-9;
        let mut ended = Vec::new();
        while let Some((end, id)) = self.loads.links.next_end() {
            if end > now.as_secs() + CLOSE {
                break;
            }
            self.loads.links.leave(now.as_secs(), id);
            if let Some(i) = self.loads.flows.iter().position(|f| f.id == id) {
                ended.push(self.loads.flows.remove(i));
            }
        }
        for flow in ended {
            if flow.is_wake {
                if self.is_current(self.pods[flow.pod].unit, flow.epoch) {
                    self.finish_wake(now, flow.pod, flow.epoch);
                }
                continue;
            }
            let copy = match self.start_of(flow.pod).map(|s| &s.weights) {
                Some(Weights::Load(load)) => SimDuration::from_secs(load.copy_s),
                _ => SimDuration::ZERO,
            };
            self.plan_loaded(now + copy, flow.pod, flow.epoch);
        }
        self.plan_loads(now);
    }

    /// Pod `p` loads no more: its container crashed or it is gone.
    pub(super) fn drop_load(&mut self, now: SimTime, p: usize) {
        // Its container may start again: what the last one had left is not what the next one has.
        if let Some(load) = &mut self.pods[p].load {
            load.left = 0;
            load.version += 1;
        }
        let Some(i) = self.loads.flows.iter().position(|f| f.pod == p) else {
            return;
        };
        let flow = self.loads.flows.remove(i);
        self.loads.links.leave(now.as_secs(), flow.id);
        self.plan_loads(now);
    }

    /// The storage has another speed from now on.
    pub(super) fn set_storage(&mut self, now: SimTime) {
        let share = self.storage_share();
        let l = &mut self.loads;
        let t = now.as_secs();
        for (link, capacity) in l.shared.values().chain(l.nodes.values()) {
            l.links.set_capacity(t, *link, capacity * share);
        }
        for flow in l.flows.iter().filter(|f| !f.is_wake) {
            l.links.set_ceiling(t, flow.id, flow.ceiling * share);
        }
        self.plan_loads(now);
    }

    /// Plans the end of a load, at the speed of the storage.
    pub(super) fn plan_load(&mut self, now: SimTime, pod: usize, epoch: u32) {
        let Some(load) = self.pods[pod].load else {
            return;
        };
        let share = self.storage_share();
        let takes = match share == 1.0 {
            true => SimDuration(load.left),
            false => SimDuration((load.left as f64 / share) as u64),
        };
        let version = load.version;
        let event = Event::PodLoaded {
            pod,
            epoch,
            version,
        };
        self.plan(now + takes, event);
    }

    /// The storage has another speed from now on; until now it was `share`.
    pub(super) fn storage_changed(&mut self, now: SimTime, share: f64) {
        for p in 0..self.pods.len() {
            let unit = self.pods[p].unit;
            let epoch = self.units[unit].epoch;
            let is_loading = self.pods[p].loaded == SimTime::NEVER && self.is_current(unit, epoch);
            // What is read from the page cache after a download ends as it was planned.
            let is_under_way = |l: &&mut Load| is_loading && l.since <= now && l.left > 0;
            let Some(load) = self.pods[p].load.as_mut().filter(is_under_way) else {
                continue;
            };
            let done = match share == 1.0 {
                true => now.since(load.since).0,
                false => (now.since(load.since).0 as f64 * share) as u64,
            };
            load.left = load.left.saturating_sub(done);
            load.since = now;
            load.version += 1;
            self.plan_load(now, p, epoch);
        }
    }

    /// Plans that the weights of pod `p` are there at `at`.
    pub(super) fn plan_loaded(&mut self, at: SimTime, pod: usize, epoch: u32) {
        let version = self.pods[pod].load.map_or(0, |l| l.version + 1);
        self.pods[pod].load = Some(Load {
            left: 0,
            since: at,
            version,
        });
        let event = Event::PodLoaded {
            pod,
            epoch,
            version,
        };
        self.plan(at, event);
    }

    /// How pods start on the node of pod `p`.
    pub(super) fn start_of(&self, p: usize) -> Option<&StartSpec> {
        let group = self.nodes[self.pods[p].node?].group;
        self.spec.deployments[self.deployment_of(p)].start_on(group)
    }
}
