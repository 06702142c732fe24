//! Nodes: asked of the cloud, booted, usable once their accelerators are known, tainted, gone.

use super::cluster::Cluster;
use super::delay::Delay;
use super::event::Event;
use super::node::{Image, Node, RECLAIMED};
use super::record::Controller;
use super::spec::{FaultKind, When};
use crate::kernel::time::{SimDuration, SimTime};

impl Cluster {
    fn new_node(&mut self, now: SimTime, group: usize) -> usize {
        let n = self.nodes.len();
        let name = format!("{}-{n}", self.spec.groups[group].name);
        let images = (self.spec.deployments.iter())
            .map(|d| d.image + 1)
            .max()
            .unwrap_or(0);
        self.nodes.push(Node {
            group,
            name,
            requested: now,
            ready: SimTime::NEVER,
            usable: SimTime::NEVER,
            tainted: SimTime::NEVER,
            taint: "",
            gone: SimTime::NEVER,
            why_gone: String::new(),
            is_refused: false,
            images: vec![
                Image {
                    there: SimTime::NEVER,
                    has_started: false,
                };
                images
            ],
            pods: Vec::new(),
            slowed: Vec::new(),
            slowed_times: 0,
            serving_gpu_ns: 0,
            claim: None,
            last_pod_event: now,
        });
        self.present.push(n);
        let group = &mut self.groups[group];
        (group.all, group.there) = (group.all + 1, group.there + 1);
        n
    }

    /// A node that was there before the run.
    pub(super) fn add_node_at_start(&mut self, now: SimTime, group: usize) {
        let n = self.new_node(now, group);
        let node = &mut self.nodes[n];
        (node.ready, node.usable) = (now, now);
        if self.spec.is_warm {
            for d in self.spec.deployments.iter().filter(|d| d.may_use(group)) {
                node.images[d.image] = Image {
                    there: now,
                    has_started: true,
                };
            }
        }
        self.refile(n);
        self.populate(now, n, self.spec.is_warm);
        self.set_node_faults(now, n);
    }

    /// Asks the cloud for an instance.
    pub(super) fn launch(&mut self, now: SimTime, group: usize, has_quota: bool) -> usize {
        let n = self.new_node(now, group);
        let spec = &self.spec.groups[group];
        let has_capacity = has_quota && now >= self.groups[group].no_capacity_until;
        let draw = Delay::Uniform { min: 0.0, max: 1.0 };
        let lot = draw.draw(self.seed, &format!("cluster/capacity/{n}"));
        if !has_capacity || lot.as_secs() < spec.refused {
            let after = spec
                .refused_after
                .draw(self.seed, &format!("cluster/refuse/{n}"));
            self.nodes[n].is_refused = true;
            self.plan(now + after, Event::NodeRefused(n));
            return n;
        }
        let boot = spec.boot.draw(self.seed, &format!("cluster/boot/{n}"));
        self.plan(now + boot, Event::NodeReady(n));
        n
    }

    /// Asks for as many instances as the group has too few, after a node was lost or the target raised.
    pub(super) fn fill(&mut self, now: SimTime, group: usize) {
        let there = self.held(group);
        if self.karpenter.is_some() {
            self.groups[group].target = there;
        }
        for _ in there..self.groups[group].target {
            self.launch(now, group, true);
        }
    }

    /// Nodes that the cloud counts for a group: those there or coming, and lost ones until that is noticed.
    fn held(&self, group: usize) -> usize {
        self.groups[group].there + self.groups[group].unnoticed
    }

    /// The loss of an instance is noticed: another takes its place.
    pub(super) fn group_notices(&mut self, now: SimTime, group: usize) {
        self.groups[group].unnoticed -= 1;
        self.fill(now, group);
    }

    pub(super) fn count(&self, group: usize, which: impl Fn(&Node) -> bool) -> usize {
        (self.present.iter())
            .filter(|n| self.nodes[**n].group == group && which(&self.nodes[**n]))
            .count()
    }

    /// Sets the size of a group: more are asked for; of those that are too many, requests are withdrawn, the youngest first.
    pub(super) fn set_group_size(&mut self, now: SimTime, group: usize, size: usize) {
        self.groups[group].target = size;
        if size >= self.held(group) {
            return self.fill(now, group);
        }
        let booting: Vec<usize> = (self.present.iter().rev())
            .filter(|n| self.nodes[**n].group == group && self.nodes[**n].is_booting())
            .copied()
            .collect();
        let there = self.held(group);
        for n in booting.into_iter().take(there.saturating_sub(size)) {
            self.forget_node(now, n, "its request was withdrawn");
        }
        self.fill(now, group);
    }

    /// Nodes that are too many are drained, empty and young ones first: the group was made smaller by hand.
    pub(super) fn shrink(&mut self, now: SimTime, group: usize, size: usize) {
        self.set_group_size(now, group, size);
        let mut there: Vec<usize> = (self.present.iter())
            .filter(|n| self.nodes[**n].group == group && !self.nodes[**n].is_tainted())
            .copied()
            .collect();
        there.sort_by_key(|n| (!self.nodes[*n].pods.is_empty(), std::cmp::Reverse(*n)));
        let many = there.len().saturating_sub(size);
        for n in there.into_iter().take(many) {
            self.taint(now, n, "node.kubernetes.io/unschedulable");
            self.nodes[n].why_gone = "its group was made smaller".into();
            self.evict(now, n);
        }
    }

    pub(super) fn forget_node(&mut self, now: SimTime, n: usize, why: &str) {
        let node = &mut self.nodes[n];
        if node.gone != SimTime::NEVER {
            return;
        }
        node.gone = now;
        if node.why_gone.is_empty() {
            why.clone_into(&mut node.why_gone);
        }
        let group = &mut self.groups[node.group];
        group.all -= 1;
        group.there -= usize::from(node.is_held());
        if let Ok(place) = self.present.binary_search(&n) {
            self.present.remove(place);
        }
        self.refile(n);
        self.forget_instances(now, n);
    }

    pub(super) fn node_refused(&mut self, now: SimTime, n: usize) {
        let group = self.nodes[n].group;
        if self.nodes[n].gone != SimTime::NEVER {
            return;
        }
        self.forget_node(now, n, "refused: the cloud has no capacity");
        let from = self.groups[group].target;
        let registered = self.count(group, |n| n.is_registered() && n.is_held());
        if let Some(autoscaler) = &mut self.autoscaler {
            autoscaler.refused(now, group, registered);
            self.set_group_size(now, group, registered);
        } else if self.karpenter.is_some() {
            self.claim_refused(now, n);
            self.fill(now, group);
        } else {
            // An Auto Scaling Group tries again for as long as it has too few.
            self.fill(now, group);
        }
        let name = self.spec.groups[group].name.clone();
        let why = format!("{name}: the cloud has no capacity for another instance");
        let to = self.groups[group].target;
        self.decided(now, Controller::Fault, &name, (from as i64, to as i64), why);
    }

    pub(super) fn node_ready(&mut self, now: SimTime, n: usize) {
        if self.nodes[n].gone != SimTime::NEVER {
            return;
        }
        self.nodes[n].ready = now;
        self.refile(n);
        let group = &self.spec.groups[self.nodes[n].group];
        let plugin = group
            .device_plugin
            .draw(self.seed, &format!("cluster/plugin/{n}"));
        self.plan(now + plugin, Event::NodeUsable(n));
        self.populate(now, n, false);
        self.set_node_faults(now, n);
    }

    pub(super) fn node_usable(&mut self, now: SimTime, n: usize) {
        if self.nodes[n].gone == SimTime::NEVER {
            self.nodes[n].usable = now;
            self.nodes[n].last_pod_event = now;
            self.refile(n);
            self.finish_disruptions(now);
        }
    }

    /// Each node has lives of its own, as long as the faults with a mean time between failures give.
    fn set_node_faults(&mut self, now: SimTime, n: usize) {
        for fault in 0..self.spec.faults.len() {
            let spec = &self.spec.faults[fault];
            let of_nodes = matches!(
                spec.kind,
                FaultKind::Node { .. } | FaultKind::Spot { .. } | FaultKind::Straggler { .. }
            );
            let spared = matches!(spec.kind, FaultKind::Spot { .. })
                && !self.spec.groups[self.nodes[n].group].is_spot;
            if let When::After(delay) = spec.when
                && of_nodes
                && !spared
                && spec.may_hit(self.nodes[n].group)
            {
                let life = self.life(delay, &format!("cluster/fault/{fault}/node/{n}"));
                self.plan(now + life, Event::NodeFault { node: n, fault });
            }
        }
    }

    pub(super) fn taint(&mut self, now: SimTime, n: usize, taint: &'static str) {
        if !self.nodes[n].is_tainted() {
            self.nodes[n].tainted = now;
            self.nodes[n].taint = taint;
            self.groups[self.nodes[n].group].there -= usize::from(!self.nodes[n].is_held());
            self.refile(n);
        }
    }

    /// Takes the taint from a node that is there.
    pub(super) fn untaint(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.is_tainted() && node.gone == SimTime::NEVER {
            self.groups[node.group].there += usize::from(!node.is_held());
            node.tainted = SimTime::NEVER;
            self.refile(n);
        }
    }

    /// Evicts the pods of a node that is to go; without pods it goes at once.
    pub(super) fn evict(&mut self, now: SimTime, n: usize) {
        if self.nodes[n].gone != SimTime::NEVER {
            return;
        }
        let mut units: Vec<usize> = self.nodes[n]
            .pods
            .iter()
            .map(|p| self.pods[*p].unit)
            .collect();
        units.dedup();
        for unit in units {
            self.remove(now, unit, "evicted: its node is to go");
        }
        self.release_node(now, n);
    }

    /// A node that is to go and has no pod any more is shut down.
    pub(super) fn release_node(&mut self, now: SimTime, n: usize) {
        let node = &self.nodes[n];
        // A node that is reclaimed is paid for until it is.
        let is_reclaimed = node.taint == RECLAIMED;
        if node.is_tainted() && !is_reclaimed && node.pods.is_empty() && node.gone == SimTime::NEVER
        {
            let group = &self.spec.groups[node.group];
            let shutdown = group
                .shutdown
                .draw(self.seed, &format!("cluster/shutdown/{n}"));
            self.plan(now + shutdown, Event::NodeGone(n));
        }
    }

    pub(super) fn node_gone(&mut self, now: SimTime, n: usize) {
        self.forget_node(now, n, "not needed");
        let group = self.nodes[n].group;
        self.fill(now, group);
    }

    /// A node is lost at once with all that runs on it.
    pub(super) fn node_lost(&mut self, now: SimTime, n: usize, noticed: SimDuration, why: &str) {
        if self.nodes[n].gone != SimTime::NEVER {
            return;
        }
        let was_held = self.nodes[n].is_held();
        let mut units: Vec<usize> = self.nodes[n]
            .pods
            .iter()
            .map(|p| self.pods[*p].unit)
            .collect();
        units.dedup();
        for unit in units {
            self.lose(now, unit, noticed);
        }
        self.taint(now, n, "node.kubernetes.io/unreachable");
        self.nodes[n].pods.clear();
        self.nodes[n].why_gone = why.to_owned();
        self.forget_node(now, n, why);
        let group = self.nodes[n].group;
        if self.karpenter.is_some() || !was_held {
            self.fill(now, group);
            return;
        }
        // Whoever keeps the group at its size replaces the instance when that is noticed.
        let after = (self.spec.groups[group].replaced_after)
            .draw(self.seed, &format!("cluster/replace/{n}"));
        self.groups[group].unnoticed += 1;
        self.plan(now + after, Event::GroupNotices(group));
    }
}
