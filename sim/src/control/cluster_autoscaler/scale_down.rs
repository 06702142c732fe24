//! Scale-down: which nodes are not needed (5.1).
//!
//! Source: kubernetes/autoscaler `core/scaledown/*`, `simulator/utilization/info.go`.

use super::scale_up::{Free, place};
use super::spec::{Flags, NodeView, Resources};

/// Utilization of a node, and the threshold below which it is a candidate. On GPU nodes the GPUs alone count.
pub(super) fn is_idle(node: &NodeView, template: Resources, flags: &Flags) -> bool {
    let used = node
        .pods
        .iter()
        .fold(Resources::default(), |sum, pod| sum.plus(pod.requests));
    if template.gpus > 0 {
        let share = match node.allocatable.gpus {
            0 => 0.0,
            gpus => used.gpus as f64 / gpus as f64,
        };
        return share < flags.scale_down_gpu_utilization_threshold;
    }
    let (cpu, memory) = used.shares_of(node.allocatable);
    cpu.max(memory) < flags.scale_down_utilization_threshold
}

/// Whether all pods of a node can move to `others` (what is free there); takes the room where they can.
pub(super) fn can_move(node: &NodeView, others: &mut [Free]) -> bool {
    if node.pods.iter().any(|pod| !pod.is_movable) {
        return false;
    }
    let mut trial = others.to_vec();
    let fits = place(&node.pods, &mut trial).is_empty();
    if fits {
        others.copy_from_slice(&trial);
    }
    fits
}
