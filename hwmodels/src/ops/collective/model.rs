//! The model of one fabric with all its parameters resolved, and the rates that every algorithm shares.

use super::fabric::{Fabric, HostPath};
use super::line::{Kernels, Line, Protocols};
use super::tuning::NcclTuning;

/// Time of collectives on one fabric, all parameters resolved. O(1) per call.
#[derive(Clone, Debug)]
pub struct CollectiveModel {
    pub(super) fabric: Fabric,
    pub(super) tuning: NcclTuning,
    pub(super) ring: Protocols,
    /// Rate of a rank's copy of its own share, as a multiple of the link peak.
    pub(super) local_copy: f64,
    pub(super) all_to_all: Line,
    pub(super) send: Line,
    pub(super) nvls: Option<Line>,
    pub(super) multimem: Option<Line>,
    /// How staged traffic is held up in the host; `None`: devices reach each other without it.
    pub(super) staging: Option<Staging>,
    pub(super) vllm: Kernels,
    pub(super) trtllm: Kernels,
    pub(super) nccl_host: f64,
    pub(super) multimem_host: f64,
    /// Fraction of memory bandwidth that the copy into a registered buffer reaches.
    pub(super) eager_copy: f64,
    pub(super) neuron: Line,
    pub(super) network: Option<NetworkModel>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkModel {
    pub(super) ring: Protocols,
    pub(super) send: Line,
    pub(super) node_bandwidth: f64,
}

/// How a host holds up what ranks stage through its memory, as parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staging {
    /// Links' worth that all ranks of a node share, where they share one path.
    pub(super) shared_links: f64,
    /// Part of its rate that a shared path keeps for a ring which crosses sockets.
    pub(super) crossing: f64,
}

/// Part of a link's rate that a ring over two sockets keeps where each device has its own way into the host: eight devices keep 28
/// of the 35 GB/s that four on one socket have (sources 9.5).
const OWN_CROSSING: f64 = 0.8;

/// Part of its own link's rate that a rank keeps at most where it stages on a shared path: what each of four has. NCCL's kernels read host memory a cache line
/// at a time, so a rank alone is no faster: two RTX 5070 Ti all-reduce 20 MB at 1.9 GB/s over links that copy 26 (sources 9.5).
const STAGED_SHARE: f64 = 0.25;

impl Staging {
    /// Part of its own link's rate that each of `ranks` ranks on a node keeps.
    fn share(&self, fabric: &Fabric, ranks: f64) -> f64 {
        // Ranks are placed side by side: they need the second socket when they outnumber the first one's devices.
        let crosses = ranks > f64::from(fabric.devices_per_node.div_ceil(fabric.sockets.max(1)));
        let (part, crossing) = match fabric.host_path {
            HostPath::Shared => ((self.shared_links / ranks).min(STAGED_SHARE), self.crossing),
            HostPath::Own => (1.0, OWN_CROSSING),
        };
        part * if crosses { crossing } else { 1.0 }
    }
}

impl CollectiveModel {
    /// The fabric that it models.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Rate that one rank keeps when `ranks` of a node communicate at once [bytes/s].
    pub(super) fn bandwidth(&self, efficiency: f64, ranks: f64) -> f64 {
        let own = self.fabric.link_bandwidth;
        let kept = match &self.staging {
            Some(s) if self.fabric.is_staged(ranks) => own * s.share(&self.fabric, ranks),
            _ => own,
        };
        kept * efficiency
    }

    /// Copy of a rank's own share within its memory [s].
    pub(super) fn copy_seconds(&self, bytes: f64) -> f64 {
        bytes / (self.local_copy * self.fabric.link_bandwidth)
    }
}
