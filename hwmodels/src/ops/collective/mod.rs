//! Time of collective communication: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast
//! and point-to-point sends, over NVLink, PCIe, NeuronLink and between nodes.
//!
//! Every algorithm is `latency(ranks) + traffic(bytes, ranks) / (efficiency x link peak)`, and a
//! library picks among its algorithms as it does in reality: NCCL by the smallest estimate
//! (sources 9.1), the engines' own all-reduce by message size (9.3). Latencies and
//! efficiencies are parameters named `collective.<link>.<library>.<algorithm>.<what>`; a
//! [`Profile`] overrides the fitted values that ship with the crate, and those override the
//! analytic priors. Efficiencies are fractions of the link's peak, so no parameter can make a
//! link faster than its datasheet. See `docs/collectives.md`.

mod engines;
mod fabric;
mod nccl;
mod params;
#[cfg(test)]
mod tests;

pub use fabric::{Fabric, Group, HostPath, LinkClass, Network, NetworkClass};
pub use params::{Prior, all_parameters, fitted_param, parameters, shipped_profile};

use crate::profile::Profile;
use engines::Kernels;
use nccl::{NcclTuning, Protocols};
use params::{Line, Source};

/// Which code does the all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduceImpl {
    /// NCCL (also RCCL), as TGI and any engine falls back to.
    Nccl,
    /// vLLM: its own kernel for small messages, then NCCL. `symmetric_memory` adds the multimem
    /// kernels of newer versions (measured from 0.18 on), where the switch can reduce.
    Vllm {
        /// Symmetric-memory all-reduce available.
        symmetric_memory: bool,
    },
    /// SGLang up to 0.5.10: vLLM's kernel with a cap of 8 MiB at any number of ranks, then NCCL.
    Sglang,
    /// TensorRT-LLM `AUTO`: one-shot, two-shot, then NCCL (0.x, 1.2).
    TrtLlm,
    /// TensorRT-LLM versions that go from one-shot straight to NCCL at 1 MiB (seen of 1.0, 1.3).
    TrtLlmOneShot,
    /// The Neuron runtime's ring.
    Neuron,
}

/// How kernels are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Replayed in a captured CUDA graph (or compiled ahead, on Neuron): no host time per call.
    Graph,
    /// One by one from the host: the call takes at least its host time, and engine kernels copy
    /// their input into a registered buffer first.
    Eager,
}

/// Time of collectives on one fabric, all parameters resolved. O(1) per call.
#[derive(Clone, Debug)]
pub struct CollectiveModel {
    fabric: Fabric,
    tuning: NcclTuning,
    ring: Protocols,
    /// Rate of a rank's copy of its own share, as a multiple of the link peak.
    local_copy: f64,
    all_to_all: Line,
    send: Line,
    nvls: Option<Line>,
    multimem: Option<Line>,
    /// How staged traffic is held up in the host; `None`: devices reach each other without it.
    staging: Option<Staging>,
    vllm: Kernels,
    trtllm: Kernels,
    nccl_host: f64,
    multimem_host: f64,
    /// Fraction of memory bandwidth that the copy into a registered buffer reaches.
    eager_copy: f64,
    neuron: Line,
    network: Option<NetworkModel>,
}

#[derive(Clone, Copy, Debug)]
struct NetworkModel {
    ring: Protocols,
    send: Line,
    node_bandwidth: f64,
}

/// How a host holds up what ranks stage through its memory, as parameters.
#[derive(Clone, Copy, Debug)]
struct Staging {
    /// Links' worth that all ranks of a node share, where they share one path.
    shared_links: f64,
    /// Part of its rate that a shared path keeps for a ring which crosses sockets.
    crossing: f64,
}

/// Part of a link's rate that a ring over two sockets keeps where each device has its own way into the host: eight devices keep 28
/// of the 35 GB/s that four on one socket have (sources 9.5).
const OWN_CROSSING: f64 = 0.8;

impl Staging {
    /// Part of its own link's rate that each of `ranks` ranks on a node keeps.
    fn share(&self, fabric: &Fabric, ranks: f64) -> f64 {
        // Ranks are placed side by side: they need the second socket when they outnumber the first one's devices.
        let crosses = ranks > f64::from(fabric.devices_per_node.div_ceil(fabric.sockets.max(1)));
        let (part, crossing) = match fabric.host_path {
            HostPath::Shared => ((self.shared_links / ranks).min(1.0), self.crossing),
            HostPath::Own => (1.0, OWN_CROSSING),
        };
        part * if crosses { crossing } else { 1.0 }
    }
}

impl CollectiveModel {
    /// A model of `fabric` with `profile`'s parameters, the shipped fit where it is silent, and
    /// the analytic priors where both are.
    pub fn new(fabric: &Fabric, profile: &Profile) -> Self {
        Self::resolve(
            fabric,
            Source {
                profile,
                shipped: Some(shipped_profile()),
                asked: None,
            },
        )
    }

    /// As [`CollectiveModel::new`] without the shipped fit: `profile` and analytic priors only.
    pub fn unfitted(fabric: &Fabric, profile: &Profile) -> Self {
        Self::resolve(
            fabric,
            Source {
                profile,
                shipped: None,
                asked: None,
            },
        )
    }

    /// The fabric that it models.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Host time that one call takes outside a graph [s]. A step model that adds up host work by
    /// itself charges this and asks for [`Launch::Graph`] device times.
    pub fn host_seconds(&self, bytes: f64, group: Group, implementation: AllReduceImpl) -> f64 {
        self.choose(bytes, group, implementation).1
    }

    /// All-reduce of `bytes` on each rank of `group` [s].
    pub fn all_reduce(
        &self,
        bytes: f64,
        group: Group,
        implementation: AllReduceImpl,
        launch: Launch,
    ) -> f64 {
        if group.ranks < 2 || bytes <= 0.0 {
            return 0.0;
        }
        let (device, host) = self.choose(bytes, group, implementation);
        match launch {
            Launch::Graph => device,
            Launch::Eager => {
                // vLLM and SGLang copy the input (read and write) when it is not a graph's buffer.
                let copies = matches!(
                    implementation,
                    AllReduceImpl::Vllm { .. } | AllReduceImpl::Sglang
                );
                let copy = if copies {
                    2.0 * bytes / (self.fabric.memory_bandwidth * self.eager_copy)
                } else {
                    0.0
                };
                (device + copy).max(host)
            }
        }
    }

    /// Device and host time of the kernel that `implementation` picks for this message [s].
    fn choose(&self, bytes: f64, group: Group, implementation: AllReduceImpl) -> (f64, f64) {
        let own = match implementation {
            AllReduceImpl::Nccl => None,
            AllReduceImpl::Neuron => return (self.neuron_all_reduce(bytes, group), 0.0),
            AllReduceImpl::Vllm { symmetric_memory } => {
                self.vllm_all_reduce(bytes, group, symmetric_memory)
            }
            AllReduceImpl::Sglang => self.sglang_all_reduce(bytes, group),
            AllReduceImpl::TrtLlm => self.trtllm_all_reduce(bytes, group, true),
            AllReduceImpl::TrtLlmOneShot => self.trtllm_all_reduce(bytes, group, false),
        };
        own.unwrap_or_else(|| {
            // Python engines call NCCL through the same wrapper as their own kernel.
            let host = match implementation {
                AllReduceImpl::Vllm { .. } | AllReduceImpl::Sglang => self.vllm.host,
                _ => self.nccl_host,
            };
            (self.nccl_all_reduce(bytes, group), host)
        })
    }

    /// Rate that one rank keeps when `ranks` of a node communicate at once [bytes/s]. Two devices below one switch
    /// reach each other without the host also where the rest does not (measured on L40S).
    fn bandwidth(&self, efficiency: f64, ranks: f64) -> f64 {
        let own = self.fabric.link_bandwidth;
        let kept = match &self.staging {
            Some(s) if ranks > 2.0 => own * s.share(&self.fabric, ranks),
            _ => own,
        };
        kept * efficiency
    }

    /// Copy of a rank's own share within its memory [s].
    fn copy_seconds(&self, bytes: f64) -> f64 {
        bytes / (self.local_copy * self.fabric.link_bandwidth)
    }
}
