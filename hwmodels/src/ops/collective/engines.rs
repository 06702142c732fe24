//! The engines' own all-reduce kernels, and the sizes up to which each engine takes them.

use super::fabric::{Group, LinkClass};
use super::line::{KIB, Kernels, MIB, RING_SPREAD_BYTES};
use super::model::CollectiveModel;

impl CollectiveModel {
    /// Every rank reads all peers' whole messages (9.3) [s].
    pub(super) fn one_shot(&self, kernels: &Kernels, bytes: f64, n: f64) -> f64 {
        let line = &kernels.one_shot;
        let wire = (n - 1.0) * bytes / self.bandwidth(line.efficiency, n);
        line.latency(n - 1.0, 0.0, RING_SPREAD_BYTES) + wire
    }

    /// Reduce-scatter and all-gather through peer memory (9.3) [s].
    pub(super) fn two_shot(&self, kernels: &Kernels, bytes: f64, n: f64) -> f64 {
        let line = &kernels.two_shot;
        let wire = 2.0 * (n - 1.0) / n * bytes / self.bandwidth(line.efficiency, n);
        line.latency(n - 1.0, 0.0, RING_SPREAD_BYTES) + wire
    }

    /// In-switch reduction: each device sends its message once and multicasts its share. For two
    /// ranks the same library reads peers' memory in two shots instead [s].
    pub(super) fn multimem(&self, bytes: f64, n: f64) -> Option<f64> {
        let line = self.multimem.as_ref()?;
        let traffic = if n > 2.0 { 1.0 + 1.0 / n } else { 1.0 };
        let wire = bytes * traffic / self.bandwidth(line.efficiency, n);
        Some(line.latency(n - 1.0, 0.0, RING_SPREAD_BYTES) + wire)
    }

    /// True where engines use kernels that read peers' memory: one node, and peer access between
    /// all pairs (PCIe only for two).
    pub(super) fn own_kernels_work(&self, group: Group) -> bool {
        group.nodes == 1
            && match self.fabric.link {
                LinkClass::PciePeer => group.ranks == 2,
                LinkClass::PcieHost | LinkClass::NeuronLink => false,
                _ => matches!(group.ranks, 2 | 4 | 6 | 8),
            }
    }

    /// vLLM's choice (9.3), or `None` for NCCL: device and host time [s].
    pub(super) fn vllm_all_reduce(
        &self,
        bytes: f64,
        group: Group,
        symmetric: bool,
    ) -> Option<(f64, f64)> {
        if !self.own_kernels_work(group) {
            return None;
        }
        let n = f64::from(group.ranks);
        // Caps of the own kernel (with symmetric memory it hands over earlier, and never beyond
        // its 8 MiB default) and of symmetric memory.
        let (custom_cap, symmetric_cap) = match (self.fabric.link, group.ranks) {
            _ if !symmetric => (8.0 * MIB, 0.0),
            (LinkClass::NvLink4, 2) => (8.0 * MIB, 64.0 * MIB),
            (LinkClass::NvLink4, 4) => (8.0 * MIB, 32.0 * MIB),
            (LinkClass::NvLink4, 6) => (512.0 * KIB, 64.0 * MIB),
            (LinkClass::NvLink4, _) => (256.0 * KIB, 64.0 * MIB),
            (LinkClass::NvLink5, 2) => (2.0 * MIB, 8.0 * MIB),
            (LinkClass::NvLink5, 4) => (2.0 * MIB, 32.0 * MIB),
            (LinkClass::NvLink5, _) => (MIB, 128.0 * MIB),
            _ => (8.0 * MIB, 0.0),
        };
        if bytes < custom_cap {
            return Some((self.vllm_kernel(bytes, n), self.vllm.host));
        }
        if bytes <= symmetric_cap {
            return self.multimem(bytes, n).map(|t| (t, self.multimem_host));
        }
        None
    }

    /// One-shot below the size where two-shot wins in vLLM's kernel (9.3) [s].
    pub(super) fn vllm_kernel(&self, bytes: f64, n: f64) -> f64 {
        let one_shot =
            n <= 2.0 || (n <= 4.0 && bytes < 512.0 * KIB) || (n <= 8.0 && bytes < 256.0 * KIB);
        if one_shot {
            self.one_shot(&self.vllm, bytes, n)
        } else {
            self.two_shot(&self.vllm, bytes, n)
        }
    }

    /// SGLang's choice: the same kernel up to 8 MiB.
    pub(super) fn sglang_all_reduce(&self, bytes: f64, group: Group) -> Option<(f64, f64)> {
        (self.own_kernels_work(group) && bytes <= 8.0 * MIB).then(|| {
            let device = self.vllm_kernel(bytes, f64::from(group.ranks));
            (device, self.vllm.host)
        })
    }

    /// TensorRT-LLM's `AUTO` (9.3), or `None` for NCCL: device and host time [s].
    pub(super) fn trtllm_all_reduce(
        &self,
        bytes: f64,
        group: Group,
        two_shot: bool,
    ) -> Option<(f64, f64)> {
        if !self.own_kernels_work(group) {
            return None;
        }
        let n = f64::from(group.ranks);
        let (one_shot_cap, two_shot_cap) = match (group.ranks, two_shot) {
            (0..=2, true) => (16e6, 16e6),
            (0..=2, false) => (8e6, 8e6),
            (3..=4, true) => (1e6, 8e6),
            (_, true) => (5e5, 8e6),
            // Inclusive of 1 MiB, as measured.
            (_, false) => (MIB + 1.0, MIB + 1.0),
        };
        let device = if bytes < one_shot_cap {
            self.one_shot(&self.trtllm, bytes, n)
        } else if bytes < two_shot_cap {
            self.two_shot(&self.trtllm, bytes, n)
        } else {
            return None;
        };
        Some((device, self.trtllm.host))
    }

    /// Ring over the cores of neighbouring chips (9.4) [s]. Both directions of a link are used,
    /// so a rank has half of the chip's total rate each way.
    pub(super) fn neuron_all_reduce(&self, bytes: f64, group: Group) -> f64 {
        let n = f64::from(group.ranks);
        let steps = 2.0 * (n - 1.0);
        let wire = steps / n * bytes / self.bandwidth(self.neuron.efficiency * 0.5, n);
        self.neuron.latency(steps, 0.0, RING_SPREAD_BYTES) + wire
    }
}
