//! NCCL: which protocol and algorithm it takes, and how long that lasts.

use super::CollectiveModel;
use super::fabric::{Group, LinkClass};
use super::params::{Line, P2P_SPREAD_BYTES, RING_SPREAD_BYTES, overlapped};

/// NCCL's protocols on one kind of link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Protocols {
    pub(super) ll: Line,
    pub(super) ll128: Option<Line>,
    pub(super) simple: Line,
}

/// What NCCL believes about a link when it chooses a protocol (9.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct NcclTuning {
    /// Bus bandwidth that its topology search finds [bytes/s].
    pub(super) bus: f64,
    /// Cap of LL [bytes/s].
    pub(super) ll: f64,
    /// Hop latencies of LL, LL128, Simple [s].
    pub(super) hops: [f64; 3],
    /// LL128 allowed (needs NVLink's 128-byte stores).
    pub(super) ll128: bool,
}

/// NCCL's base latencies of a ring: LL, LL128, Simple [s] (9.1).
const NCCL_RING_BASE: [f64; 3] = [6.6e-6, 14.0e-6, 8.4e-6];
/// NCCL's latency of NVLS in a node [s] and its efficiency on Hopper (9.1).
const NCCL_NVLS: (f64, f64) = (25e-6, 0.85);

impl NcclTuning {
    pub(super) fn new(link: LinkClass, peak: f64) -> Self {
        // NVLink: 20 of 25, 20.6 of 25 and 40.1 of 50 GB/s a link; PCIe Gen4 x16: 24 of 32.
        let (share, ll) = match link {
            LinkClass::NvLink3 => (0.8, 87.7e9),
            LinkClass::NvLink4 => (0.824, 141e9),
            LinkClass::NvLink5 => (0.802, 282e9),
            LinkClass::InfinityFabric => (0.8, 87.7e9),
            LinkClass::PciePeer | LinkClass::PcieHost | LinkClass::NeuronLink => (0.75, 87.7e9),
        };
        let nvlink = link.is_nvlink_like();
        Self {
            bus: share * peak,
            ll,
            hops: if nvlink {
                [0.6e-6, 1.9e-6, 3.4e-6]
            } else {
                [1.0e-6, 2.5e-6, 5.7e-6]
            },
            ll128: nvlink,
        }
    }

    /// NCCL's estimates for a ring by LL, LL128 and Simple [s].
    pub(super) fn ring(&self, steps: f64, traffic: f64) -> [f64; 3] {
        let estimate = |p: usize, bandwidth: f64| {
            NCCL_RING_BASE[p] + self.hops[p] * steps + traffic / bandwidth
        };
        let ll128 = if self.ll128 {
            estimate(1, 0.92 * self.bus)
        } else {
            f64::INFINITY
        };
        [
            estimate(0, self.ll.min(0.5 * self.bus)),
            ll128,
            estimate(2, self.bus),
        ]
    }

    /// NCCL's estimate for an all-reduce by NVLS [s].
    pub(super) fn nvls(&self, bytes: f64) -> f64 {
        NCCL_NVLS.0 + bytes / (NCCL_NVLS.1 * self.bus)
    }
}

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
                intra.latency(steps - inter_steps, 0.0, RING_SPREAD_BYTES)
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
