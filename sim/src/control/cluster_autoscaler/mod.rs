//! The Cluster Autoscaler (5.1).
//!
//! [`ClusterAutoscaler::scan`] is one loop; whoever drives it calls it when [`ClusterAutoscaler::next_loop`] says, and at once for a new unschedulable
//! pod ([`Flags::frequent_loops_enabled`]), resizes the groups, and tells of refused launches and failed removals. Source: kubernetes/autoscaler
//! `core/static_autoscaler.go`, `loop/trigger.go`, `clusterstate/clusterstate.go`.

mod scale_down;
mod scale_up;
pub mod spec;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::kernel::time::{SimDuration, SimTime};
use scale_up::Free;
use spec::{Flags, NodeGroup, NodeView, Observed, POD_BUFFER, PodView};

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Set a group's size; more launches instances, less withdraws a request for instances that never came.
    SetGroupSize {
        /// Index of the group.
        group: usize,
        /// Its new size [nodes].
        size: usize,
    },
    /// Taint a node, evict its pods from `evict_at` on, then delete its instance.
    RemoveNode {
        /// Which.
        node: u64,
        /// When eviction may begin.
        evict_at: SimTime,
    },
}

/// What a scan decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// What is to be done, in order.
    pub actions: Vec<Action>,
    /// When the youth of pending pods ends that kept it from looking at them; [`SimTime::NEVER`]: nothing did.
    pub ripe: SimTime,
    /// Why, in words.
    pub why: String,
}

/// How long a loop takes before the next can follow at once.
const LOOP_TAKES: SimDuration = SimDuration(1_000_000);

/// A group's state.
#[derive(Clone, Debug, Default)]
struct GroupState {
    /// Nodes asked for.
    target: usize,
    /// When instances that are not registered yet were asked for last.
    requested: Option<SimTime>,
    backoff: Option<Backoff>,
}

#[derive(Clone, Copy, Debug)]
struct Backoff {
    until: SimTime,
    length: SimDuration,
    failed: SimTime,
}

/// The autoscaler, and what it remembers.
#[derive(Clone, Debug)]
pub struct ClusterAutoscaler {
    flags: Flags,
    groups: Vec<NodeGroup>,
    state: Vec<GroupState>,
    last_add: Option<SimTime>,
    last_delete: Option<SimTime>,
    last_failure: Option<SimTime>,
    unneeded_since: BTreeMap<u64, SimTime>,
}

impl ClusterAutoscaler {
    /// An autoscaler of groups that have `sizes` nodes now.
    ///
    /// # Errors
    /// A group whose bounds contradict each other.
    pub fn new(flags: Flags, groups: Vec<NodeGroup>, sizes: &[usize]) -> Result<Self, String> {
        if let Some(group) = groups.iter().find(|g| g.min > g.max) {
            return Err(format!(
                "node group {}: min ({}) must be at most max ({})",
                group.name, group.min, group.max
            ));
        }
        let state = |i| GroupState {
            target: sizes.get(i).copied().unwrap_or(0),
            ..GroupState::default()
        };
        Ok(ClusterAutoscaler {
            flags,
            state: (0..groups.len()).map(state).collect(),
            groups,
            last_add: None,
            last_delete: None,
            last_failure: None,
            unneeded_since: BTreeMap::new(),
        })
    }

    /// The groups.
    pub fn groups(&self) -> &[NodeGroup] {
        &self.groups
    }

    /// Nodes asked of a group.
    pub fn target(&self, group: usize) -> usize {
        self.state[group].target
    }

    /// Somebody gave a group other bounds (`eksctl scale nodegroup`).
    pub fn set_bounds(&mut self, group: usize, min: usize, max: usize) {
        self.groups[group].min = min;
        self.groups[group].max = max;
    }

    /// The group's size was changed by others: it has `size` nodes, or will have.
    pub fn set_target(&mut self, group: usize, size: usize) {
        self.state[group].target = size;
    }

    /// The cloud refused instances of a group (no capacity, quota): it has `registered` nodes, and is left alone for a while.
    pub fn refused(&mut self, now: SimTime, group: usize, registered: usize) {
        let state = &mut self.state[group];
        state.target = registered;
        state.requested = None;
        let flags = &self.flags;
        let length = match state.backoff {
            Some(b) if now.since(b.failed) < flags.node_group_backoff_reset => {
                SimDuration(b.length.0.saturating_mul(2)).min(flags.max_node_group_backoff)
            }
            _ => flags.initial_node_group_backoff,
        };
        state.backoff = Some(Backoff {
            until: now + length,
            length,
            failed: now,
        });
    }

    /// A node could not be removed.
    pub fn removal_failed(&mut self, now: SimTime, node: &NodeView) {
        self.last_failure = Some(now);
        self.unneeded_since.remove(&node.id);
        self.state[node.group].target += 1;
    }

    /// When the loop after `scan`, taken at `now`, is.
    ///
    /// With frequent loops one that changed something is followed at once, and one that found pods too young by one when they are old enough: the original
    /// waits for its timer or another pod then, which at its 30 s for GPUs is the same instant; GKE's autoscaler was seen to act after 2 s.
    pub fn next_loop(&self, now: SimTime, scan: &Scan) -> SimTime {
        let timer = now + self.flags.scan_interval;
        match (self.flags.frequent_loops_enabled, scan.actions.is_empty()) {
            (false, _) => timer,
            (true, false) => timer.min(now + LOOP_TAKES),
            (true, true) => timer.min(scan.ripe.max(now + LOOP_TAKES)),
        }
    }

    /// One loop.
    pub fn scan(&mut self, now: SimTime, seen: Observed) -> Scan {
        let unready = seen
            .nodes
            .iter()
            .filter(|n| !n.is_ready && !self.is_upcoming(n))
            .count();
        let share = unready as f64 * 100.0 / seen.nodes.len().max(1) as f64;
        if unready > self.flags.ok_total_unready_count
            && share > self.flags.max_total_unready_percentage
        {
            return nothing(format!(
                "nothing: {unready} of {} nodes are unready",
                seen.nodes.len()
            ));
        }
        let mut actions = self.withdraw_overdue(now, &seen);
        let withdrawn = actions.len();
        let (pending, ripe) = self.pending(now, &seen);
        if !pending.is_empty() {
            let mut scan = self.scale_up(now, &seen, &pending);
            let grows = !scan.actions.is_empty();
            actions.append(&mut scan.actions);
            if grows {
                return Scan { actions, ..scan };
            }
            // Pods that no group can help do not keep nodes that they do not need.
            let mut down = self.scale_down(now, &seen);
            actions.append(&mut down.actions);
            let why = if actions.len() > withdrawn {
                down.why
            } else {
                scan.why
            };
            return Scan { actions, ripe, why };
        }
        if ripe != SimTime::NEVER {
            let young = seen.unschedulable.len();
            let why = format!("waits: {young} pending pods are too young");
            return Scan { actions, ripe, why };
        }
        let mut scan = self.scale_down(now, &seen);
        actions.append(&mut scan.actions);
        Scan { actions, ..scan }
    }

    /// Whether a registered node has yet to become useful: a GPU node whose device plugin has not come up.
    fn is_upcoming(&self, node: &NodeView) -> bool {
        self.groups[node.group].template.gpus > 0 && node.allocatable.gpus == 0
    }

    fn registered(seen: &Observed, group: usize) -> usize {
        seen.nodes.iter().filter(|n| n.group == group).count()
    }

    /// Withdraws requests for instances that did not register in `max-node-provision-time`, and backs their groups off.
    fn withdraw_overdue(&mut self, now: SimTime, seen: &Observed) -> Vec<Action> {
        let mut actions = Vec::new();
        for group in 0..self.groups.len() {
            let registered = Self::registered(seen, group);
            let state = &mut self.state[group];
            if state.target <= registered {
                state.requested = None;
            }
            let overdue = |at: SimTime| now.since(at) > self.flags.max_node_provision_time;
            if state.requested.is_some_and(overdue) {
                self.refused(now, group, registered);
                actions.push(Action::SetGroupSize {
                    group,
                    size: registered,
                });
            }
        }
        actions
    }

    /// Pods that fit neither on ready nor on upcoming nodes; none while the oldest of them is too young, and then until when.
    fn pending(&self, now: SimTime, seen: &Observed) -> (Vec<PodView>, SimTime) {
        let looked_at = |p: &PodView| p.created + self.flags.new_pod_scale_up_delay;
        let (ready, young): (Vec<PodView>, Vec<PodView>) =
            (seen.unschedulable.iter()).partition(|p| looked_at(p) <= now);
        let next = young.iter().map(looked_at).min().unwrap_or(SimTime::NEVER);
        let mut free = self.free_on_nodes(seen, |_| true);
        let left = scale_up::place(&ready, &mut free);
        let oldest = |is: fn(&PodView) -> bool| {
            let own = left.iter().filter(|p| is(p));
            own.map(|p| p.created).min()
        };
        let ripe = [
            oldest(|_| true).map(|at| at + POD_BUFFER),
            oldest(|p| p.requests.gpus > 0).map(|at| at + self.flags.gpu_pod_buffer),
        ];
        match ripe.into_iter().flatten().max() {
            Some(ripe) if ripe > now => (Vec::new(), ripe.min(next)),
            Some(_) => (left, SimTime::NEVER),
            None => (left, next),
        }
    }

    /// What is free on the nodes chosen, and on upcoming ones.
    fn free_on_nodes(&self, seen: &Observed, chosen: impl Fn(&NodeView) -> bool) -> Vec<Free> {
        let mut free: Vec<Free> = Vec::new();
        for node in (seen.nodes.iter()).filter(|n| !n.is_cordoned && chosen(n)) {
            let has = match (self.is_upcoming(node), node.is_ready) {
                (true, _) => self.groups[node.group].template,
                (false, true) => node.allocatable,
                (false, false) => continue,
            };
            let left = (node.pods.iter()).fold(has, |left, pod| left.less(pod.requests));
            free.push((node.group, left));
        }
        for (index, (group, state)) in self.groups.iter().zip(&self.state).enumerate() {
            let unregistered = state.target.saturating_sub(Self::registered(seen, index));
            free.extend(std::iter::repeat_n((index, group.template), unregistered));
        }
        free
    }

    /// Grows one group, or with a salvo one after the other until no pod is left that one helps.
    fn scale_up(&mut self, now: SimTime, seen: &Observed, pending: &[PodView]) -> Scan {
        let mut scan = self.grow(now, seen.draw, pending);
        while self.flags.salvo_scale_up && !scan.actions.is_empty() {
            // What was asked for just now is upcoming: the pods that it is for have room.
            let (left, _) = self.pending(now, seen);
            let draw = seen.draw.rotate_left(scan.actions.len() as u32);
            let mut more = self.grow(now, draw, &left);
            if more.actions.is_empty() {
                break;
            }
            scan.actions.append(&mut more.actions);
            scan.why = format!("{}; {}", scan.why, more.why);
        }
        scan
    }

    /// Grows the group that the expander picks of those that help.
    fn grow(&mut self, now: SimTime, draw: u64, pending: &[PodView]) -> Scan {
        let mut growths = Vec::new();
        let mut backed_off = 0;
        for (i, (group, state)) in self.groups.iter().zip(&self.state).enumerate() {
            if state.backoff.is_some_and(|b| now < b.until) {
                backed_off += 1;
                continue;
            }
            let room = group.max.saturating_sub(state.target);
            growths.extend(scale_up::estimate(pending, i, group, room));
        }
        let Some(growth) = scale_up::pick(self.flags.expander, &growths, draw) else {
            let why = format!(
                "nothing: no node group helps {} pending pods, {backed_off} groups are backed off",
                pending.len()
            );
            return nothing(why);
        };
        let state = &mut self.state[growth.group];
        let from = state.target;
        state.target += growth.nodes;
        state.requested = Some(now);
        self.last_add = Some(now);
        let size = state.target;
        Scan {
            actions: vec![Action::SetGroupSize {
                group: growth.group,
                size,
            }],
            ripe: SimTime::NEVER,
            why: format!(
                "{} from {from} to {size} nodes for {} pending pods",
                self.groups[growth.group].name, growth.pods
            ),
        }
    }

    /// Keeps the time for which each node was not needed, also in a cool-down, and removes those that were long enough.
    fn scale_down(&mut self, now: SimTime, seen: &Observed) -> Scan {
        self.update_unneeded(now, seen);
        let waits = [
            (self.last_add, self.flags.scale_down_delay_after_add, "add"),
            (
                self.last_delete,
                self.flags.scale_down_delay_after_delete,
                "delete",
            ),
            (
                self.last_failure,
                self.flags.scale_down_delay_after_failure,
                "failure",
            ),
        ];
        let waiting = waits
            .iter()
            .find(|(at, delay, _)| at.is_some_and(|at| now.since(at) < *delay));
        if let Some((_, delay, after)) = waiting {
            let why = format!(
                "nothing: scale-down waits {:.0} s after the last {after}",
                delay.as_secs()
            );
            return nothing(why);
        }
        let removed = self.removable(now, seen);
        if removed.is_empty() {
            return nothing(format!(
                "nothing: no pod is pending, {} nodes are not needed",
                self.unneeded_since.len()
            ));
        }
        for node in &removed {
            self.unneeded_since.remove(&node.id);
            self.state[node.group].target = self.state[node.group].target.saturating_sub(1);
        }
        self.last_delete = Some(now);
        let evict_at = now + self.flags.node_delete_delay_after_taint;
        let remove = |n: &&NodeView| Action::RemoveNode {
            node: n.id,
            evict_at,
        };
        Scan {
            actions: removed.iter().map(remove).collect(),
            ripe: SimTime::NEVER,
            why: format!("removes {} nodes that were not needed", removed.len()),
        }
    }

    fn update_unneeded(&mut self, now: SimTime, seen: &Observed) {
        let mut unneeded = BTreeMap::new();
        let stays = |n: &&NodeView| !n.is_cordoned && !self.is_upcoming(n);
        for node in seen.nodes.iter().filter(stays) {
            if !scale_down::is_idle(node, self.groups[node.group].template, &self.flags) {
                continue;
            }
            let mut others = match node.pods.is_empty() {
                true => Vec::new(),
                false => self.free_on_nodes(seen, |n| n.id != node.id),
            };
            if scale_down::can_move(node, &mut others) {
                let since = self.unneeded_since.get(&node.id).copied().unwrap_or(now);
                unneeded.insert(node.id, since);
            }
        }
        self.unneeded_since = unneeded;
    }

    /// Nodes to remove now: empty ones first, within the limits of what is removed at a time, none below its group's minimum, and such that the pods of
    /// all of them find room together.
    fn removable<'a>(&self, now: SimTime, seen: &Observed<'a>) -> Vec<&'a NodeView> {
        let long_enough = |n: &&NodeView| {
            let needed = match n.is_ready {
                true => self.flags.scale_down_unneeded_time,
                false => self.flags.scale_down_unready_time,
            };
            self.unneeded_since
                .get(&n.id)
                .is_some_and(|since| now.since(*since) >= needed)
        };
        let mut candidates: Vec<&NodeView> = seen.nodes.iter().filter(long_enough).collect();
        candidates.sort_by_key(|n| (!n.pods.is_empty(), n.id));
        let mut left: Vec<usize> = self.state.iter().map(|s| s.target).collect();
        let mut removed: Vec<&NodeView> = Vec::new();
        let mut drained = Vec::new();
        for node in candidates {
            let (empty, draining) = seen.removing;
            let is_full = removed.len() + empty + draining >= self.flags.max_scale_down_parallelism;
            let drains = !node.pods.is_empty();
            if is_full
                || left[node.group] <= self.groups[node.group].min
                || (drains && drained.len() + draining >= self.flags.max_drain_parallelism)
            {
                continue;
            }
            if drains {
                let gone = |n: &NodeView| n.id == node.id || removed.iter().any(|r| r.id == n.id);
                let mut others = self.free_on_nodes(seen, |n| !gone(n));
                let moved: Vec<PodView> = drained
                    .iter()
                    .flat_map(|n: &&NodeView| n.pods.iter().copied())
                    .collect();
                scale_up::place(&moved, &mut others);
                if !scale_down::can_move(node, &mut others) {
                    continue;
                }
                drained.push(node);
            }
            left[node.group] -= 1;
            removed.push(node);
        }
        removed
    }
}

fn nothing(why: String) -> Scan {
    Scan {
        actions: Vec::new(),
        ripe: SimTime::NEVER,
        why,
    }
}
