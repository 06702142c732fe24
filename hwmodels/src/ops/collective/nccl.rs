//! NCCL's collectives: how long they last by the protocol and algorithm that it takes.

use super::fabric::Group;
use super::line::{Line, P2P_SPREAD_BYTES, Protocols, RING_SPREAD_BYTES, overlapped};
use super::model::CollectiveModel;

impl CollectiveModel {
    /// All-gather with `bytes` of total output on each rank, by NCCL [s].
    pub fn all_gather(&self, bytes: f64, group: Group) -> f64 {
        self.half_ring(bytes, group)
    }

    /// Reduce-scatter of `bytes` of input on each rank, by NCCL [s].
    pub fn reduce_scatter(&self, bytes: f64, group: Group) -> f64 {
        self.half_ring(bytes, group)
    }

    /// All-to-all of `bytes` held by each rank (each peer gets `bytes / ranks`), by NCCL [s].
    pub fn all_to_all(&self, bytes: f64, group: Group) -> f64 {
        if group.ranks < 2 || bytes <= 0.0 {
            return 0.0;
        }
        let n = f64::from(group.ranks);
        let local = n / f64::from(group.nodes);
        let line = &self.all_to_all;
        let wire = (local - 1.0) / n * bytes / self.bandwidth(line.efficiency, local)
            + self.copy_seconds(bytes / n);
        let latency = line.latency(local - 1.0, bytes, P2P_SPREAD_BYTES);
        let intra = overlapped(latency, wire);
        match (&self.network, group.nodes > 1) {
            (Some(net), true) => {
                // Every rank of a node sends its remote share through the node's adapters.
                let remote = local * bytes * (n - local) / n;
                let wire = remote / (net.node_bandwidth * net.send.efficiency);
                intra + net.send.latency(1.0, bytes, P2P_SPREAD_BYTES) + wire
            }
            _ => intra,
        }
    }

    /// Broadcast of `bytes` from one rank to the others of `group`, pipelined, by NCCL [s].
    pub fn broadcast(&self, bytes: f64, group: Group) -> f64 {
        if group.ranks < 2 || bytes <= 0.0 {
            return 0.0;
        }
        let steps = f64::from(group.ranks - 1);
        self.ring_time(bytes, group, steps, (bytes, 0.0), bytes)
    }

    /// Point-to-point send of `bytes` to one other device, of the same node or of another [s].
    /// Between nodes a device has its share of the node's adapters.
    pub fn send(&self, bytes: f64, inter_node: bool) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        match (&self.network, inter_node) {
            (Some(net), true) => {
                let share = net.node_bandwidth / f64::from(self.fabric.devices_per_node);
                net.send.latency(1.0, bytes, P2P_SPREAD_BYTES)
                    + bytes / (share * net.send.efficiency)
            }
            _ => {
                self.send.latency(1.0, bytes, P2P_SPREAD_BYTES)
                    + bytes / self.bandwidth(self.send.efficiency, 2.0)
            }
        }
    }

    fn half_ring(&self, bytes: f64, group: Group) -> f64 {
        if group.ranks < 2 || bytes <= 0.0 {
            return 0.0;
        }
        let n = f64::from(group.ranks);
        let nodes = f64::from(group.nodes);
        let traffic = ((n - 1.0) / n * bytes, bytes / n);
        self.ring_time(
            bytes,
            group,
            n - 1.0,
            traffic,
            (nodes - 1.0) / nodes * bytes,
        )
    }

    pub(super) fn nccl_all_reduce(&self, bytes: f64, group: Group) -> f64 {
        let n = f64::from(group.ranks);
        let nodes = f64::from(group.nodes);
        let steps = 2.0 * (n - 1.0);
        let traffic = steps / n * bytes;
        // Up to 4 ranks NCCL was only seen to use rings.
        if let Some(nvls) = &self.nvls
            && group.nodes == 1
            && group.ranks > 4
        {
            let ring = self.tuning.ring(steps, traffic);
            if ring.into_iter().all(|t| self.tuning.nvls(bytes) < t) {
                let wire = bytes * (1.0 + 1.0 / n) / self.bandwidth(nvls.efficiency, n);
                return nvls.latency(n, bytes, RING_SPREAD_BYTES) + wire;
            }
        }
        let between_nodes = 2.0 * (nodes - 1.0) / nodes * bytes;
        self.ring_time(bytes, group, steps, (traffic, bytes / n), between_nodes)
    }

    /// Time of a ring in `steps` sequential steps that moves `traffic.0` bytes over every link in
    /// the node and copies `traffic.1` bytes within each rank, by the protocol that NCCL takes for
    /// it (9.1); over several nodes each node exchanges `between_nodes` bytes with the network, and
    /// the fastest protocol is taken, as the network plugin's own tuner aims to [s].
    fn ring_time(
        &self,
        bytes: f64,
        group: Group,
        steps: f64,
        traffic: (f64, f64),
        between_nodes: f64,
    ) -> f64 {
        let n = f64::from(group.ranks);
        let wire = |line: &Line| traffic.0 / self.bandwidth(line.efficiency, n);
        let copy = self.copy_seconds(traffic.1);
        let Protocols { ll, ll128, simple } = &self.ring;
        if let (Some(net), true) = (&self.network, group.nodes > 1) {
            let nodes = f64::from(group.nodes);
            let inter_steps = steps * (nodes - 1.0) / (n - 1.0);
            let over = |line: &Line, intra: &Line| {
                let network_wire = between_nodes / (net.node_bandwidth * line.efficiency);
                intra.latency(steps - inter_steps, bytes, RING_SPREAD_BYTES)
                    + line.latency(inter_steps, bytes, RING_SPREAD_BYTES)
                    + network_wire.max(wire(intra) + copy)
            };
            let middle = net.ring.ll128.as_ref().zip(ll128.as_ref());
            return over(&net.ring.ll, ll)
                .min(middle.map_or(f64::INFINITY, |(line, intra)| over(line, intra)))
                .min(over(&net.ring.simple, simple));
        }
        let [by_ll, by_ll128, by_simple] = self.tuning.ring(steps, traffic.0);
        match ll128 {
            _ if by_ll <= by_ll128 && by_ll <= by_simple => {
                overlapped(ll.latency(steps, bytes, RING_SPREAD_BYTES), wire(ll))
            }
            Some(line) if by_ll128 <= by_simple => overlapped(
                line.latency(steps, bytes, RING_SPREAD_BYTES),
                wire(line) + copy,
            ),
            _ => simple.latency(steps, bytes, RING_SPREAD_BYTES) + wire(simple) + copy,
        }
    }
}
