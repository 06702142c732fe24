//! How NCCL chooses a protocol: its own estimates, which are not what the protocols take.

use super::fabric::LinkClass;

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
