//! `[cluster.actuation]` as written. Keys of the dual-pods controller, launchers and vLLM have their own names.

use hwmodels::units::{ByteSize, BytesPerSec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values_file::DelayFile;

/// llm-d's fast model actuation. Pods hold accelerators, and vLLM instances on their nodes serve for them: that of a pod that is gone sleeps, and the next
/// pod of the same pool on the same accelerators wakes it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActuationFile {
    /// `--sleeper-limit` of the dual-pods controller: sleepers on an accelerator beyond which the least recently used are deleted when a new instance is made
    /// there. Without `launcher`. Default: 1.
    #[serde(rename = "sleeper-limit")]
    pub sleeper_limit: Option<u32>,
    /// Launchers, which have loaded the Python modules and start instances. Default: none, each instance is a pod of its own.
    pub launcher: Option<LauncherFile>,
    /// `nodeInstanceBudget` of a LauncherPopulationPolicy. Default: no limit.
    #[serde(rename = "nodeInstanceBudget")]
    pub node_instance_budget: Option<InstanceBudgetFile>,
    /// vLLM's level of sleep (`POST /sleep?level=`): 1 keeps the model tensors in the host's memory, 2 drops them, so that they are loaded again. Default: 1.
    pub level: Option<u8>,
    /// From when a server-requesting pod is placed until its container runs and the controller knows its accelerators. Default: "2 s".
    pub requester: Option<DelayFile>,
    /// From when an instance is told to wake up until it serves; at level 2 what comes on top of loading the weights. Default: with hardware 0.3 s and, at level 1, its
    /// tensors over `wake_bandwidth`; without hardware "3 s".
    pub wake_up: Option<DelayFile>,
    /// From when an instance is told to sleep until its accelerators are free. Default: with hardware 0.05 s and its tensors at 22.4 GB/s for each accelerator, 40 GB/s
    /// for all of a replica, at level 2 0.3 s; without hardware "3 s".
    pub fall_asleep: Option<DelayFile>,
    /// What an accelerator takes from the host's memory when its instance wakes up at level 1. With hardware. Default: "24 GB/s".
    pub wake_bandwidth: Option<BytesPerSec>,
    /// What the host gives to all accelerators of a node that wake at once. With hardware. Default: "46 GB/s".
    pub host_bandwidth: Option<BytesPerSec>,
    /// Memory of a node's host that tensors of instances may take, at level 1: the least recently used sleeper is deleted where it is short. Default: all that the
    /// instance type has.
    pub host_memory: Option<ByteSize>,
    /// Model tensors of a pod in the host's memory, at level 1. Default: the bytes of its weights; without hardware 0.
    pub tensors: Option<ByteSize>,
    /// What a sleeper keeps on each of its accelerators: CUDA context and graphs. The engine's share of memory has to leave it free. Default: "1.27 GiB".
    pub sleeping_gpu_memory: Option<ByteSize>,
    /// Loading vLLM's Python modules, which a launcher has done before. Default: the framework's phase of `servetwin startup`; without hardware "8.3 s".
    pub imports: Option<DelayFile>,
}

/// Launchers of each node.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LauncherFile {
    /// `LauncherConfig.spec.maxInstances`: instances of a launcher, of which one is awake at most. Default: 2.
    pub max_instances: Option<u32>,
    /// `countForLauncher.launcherCount` of a LauncherPopulationPolicy: launchers that each node has from its start. Default: 0, one is made for each pod that finds none.
    pub launcher_count: Option<u32>,
}

/// A budget of instances.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct InstanceBudgetFile {
    /// Instances of a node, awake or asleep, 0 being any number: the least recently used sleepers are deleted when a new one would be one more. Default: 0.
    pub max_instances: Option<u32>,
}
