//! Instances that sleep on nodes, their launchers, and the links by which they wake.

use std::collections::BTreeMap;

use super::record::ActuationRecord;
use super::spec::ActuationSpec;
use crate::control::actuation::{InstanceId, NodeInstances};
use crate::kernel::time::SimTime;

/// Fast model actuation at work.
pub(super) struct Actuation {
    pub spec: ActuationSpec,
    /// What the dual-pods controller keeps of each node that has instances or launchers.
    pub nodes: BTreeMap<usize, NodeInstances>,
    pub record: ActuationRecord,
    /// The link between the host's memory and the accelerators of each node, once somebody wakes there.
    pub links: BTreeMap<usize, usize>,
}

impl Actuation {
    pub fn new(spec: ActuationSpec) -> Actuation {
        let record = ActuationRecord {
            level: spec.level,
            sleeping_gpu_bytes: spec.sleeping_gpu_bytes,
            ..ActuationRecord::default()
        };
        Actuation {
            spec,
            nodes: BTreeMap::new(),
            record,
            links: BTreeMap::new(),
        }
    }

    pub fn into_record(self) -> ActuationRecord {
        self.record
    }

    pub fn deleted(&mut self, now: SimTime, ids: &[InstanceId], why: &str) {
        for id in ids {
            self.record.instances[*id].end(now, why);
        }
    }

    /// Notes the most that slept on an accelerator of node `n`, and the most that its host held.
    pub fn note_peaks(&mut self, n: usize, gpus: &[u32]) {
        let Some(node) = self.nodes.get(&n) else {
            return;
        };
        let on = gpus.iter().map(|gpu| node.asleep_on(*gpu) as u64);
        self.record.most_asleep = self.record.most_asleep.max(on.max().unwrap_or(0));
        self.record.most_host_bytes = self.record.most_host_bytes.max(node.host_bytes());
    }
}
