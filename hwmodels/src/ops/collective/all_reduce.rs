//! All-reduce: which code does it, how it is launched, and what it takes.

use super::fabric::{Fabric, Group};
use super::model::CollectiveModel;
use super::params::{Source, shipped_profile};
use crate::profile::Profile;

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
}
