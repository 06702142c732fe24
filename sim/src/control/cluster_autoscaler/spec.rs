//! Flags of the Cluster Autoscaler, its node groups, and what it sees (5.1).
//!
//! Source: kubernetes/autoscaler `cluster-autoscaler/FAQ.md` and `config/flags`, 1.30; frequent loops and salvos as of 2026.

use crate::kernel::time::{SimDuration, SimTime};

const fn secs(n: u64) -> SimDuration {
    SimDuration(n * 1_000_000_000)
}

/// What a pod requests, or a node can give to pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU [thousandths of a core].
    pub cpu_milli: i64,
    /// Memory [bytes].
    pub memory_bytes: i64,
    /// GPUs.
    pub gpus: i64,
}

impl Resources {
    pub(crate) fn holds(self, other: Resources) -> bool {
        other.cpu_milli <= self.cpu_milli
            && other.memory_bytes <= self.memory_bytes
            && other.gpus <= self.gpus
    }

    pub(crate) fn less(self, other: Resources) -> Resources {
        Resources {
            cpu_milli: self.cpu_milli - other.cpu_milli,
            memory_bytes: self.memory_bytes - other.memory_bytes,
            gpus: self.gpus - other.gpus,
        }
    }

    pub(crate) fn plus(self, other: Resources) -> Resources {
        Resources {
            cpu_milli: self.cpu_milli + other.cpu_milli,
            memory_bytes: self.memory_bytes + other.memory_bytes,
            gpus: self.gpus + other.gpus,
        }
    }

    /// So many of them.
    pub(crate) fn times(self, n: i64) -> Resources {
        Resources {
            cpu_milli: self.cpu_milli * n,
            memory_bytes: self.memory_bytes * n,
            gpus: self.gpus * n,
        }
    }

    /// Share of a node that this takes in CPU and memory, one after the other.
    pub(super) fn shares_of(self, node: Resources) -> (f64, f64) {
        let share = |a: i64, b: i64| if b > 0 { a as f64 / b as f64 } else { 0.0 };
        (
            share(self.cpu_milli, node.cpu_milli),
            share(self.memory_bytes, node.memory_bytes),
        )
    }
}

/// `--expander`: which of several node groups grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expander {
    /// Any; the caller gives the draw.
    #[default]
    Random,
    /// The one that leaves the least CPU idle, then memory.
    LeastWaste,
    /// The one that helps the most pods.
    MostPods,
    /// The cheapest.
    Price,
    /// The one of the highest `priority`.
    Priority,
}

/// Command-line flags.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flags {
    /// `scan-interval`.
    pub scan_interval: SimDuration,
    /// `frequent-loops-enabled`: a loop follows at once on an unschedulable pod and on a loop that changed something (`loop/trigger.go`).
    pub frequent_loops_enabled: bool,
    /// `salvo-scale-up`: one loop grows as many groups, one after the other, as the pending pods need (`proposals/scale_up_salvo.md`).
    pub salvo_scale_up: bool,
    /// `new-pod-scale-up-delay`.
    pub new_pod_scale_up_delay: SimDuration,
    /// While the oldest pending pod with a GPU is younger than this, all pods wait: GPUs of a new node appear late. A constant of the
    /// original (`core/utils/utils.go`); GKE's autoscaler was seen to wait 2 s.
    pub gpu_pod_buffer: SimDuration,
    /// `max-node-provision-time`.
    pub max_node_provision_time: SimDuration,
    /// `expander`.
    pub expander: Expander,
    /// `scale-down-unneeded-time`.
    pub scale_down_unneeded_time: SimDuration,
    /// `scale-down-unready-time`.
    pub scale_down_unready_time: SimDuration,
    /// `scale-down-delay-after-add`.
    pub scale_down_delay_after_add: SimDuration,
    /// `scale-down-delay-after-delete`.
    pub scale_down_delay_after_delete: SimDuration,
    /// `scale-down-delay-after-failure`.
    pub scale_down_delay_after_failure: SimDuration,
    /// `scale-down-utilization-threshold`.
    pub scale_down_utilization_threshold: f64,
    /// `scale-down-gpu-utilization-threshold`.
    pub scale_down_gpu_utilization_threshold: f64,
    /// `max-scale-down-parallelism`: nodes that are being removed at a time.
    pub max_scale_down_parallelism: usize,
    /// `max-drain-parallelism`: of these, nodes with pods.
    pub max_drain_parallelism: usize,
    /// `node-delete-delay-after-taint`.
    pub node_delete_delay_after_taint: SimDuration,
    /// `ok-total-unready-count`.
    pub ok_total_unready_count: usize,
    /// `max-total-unready-percentage`.
    pub max_total_unready_percentage: f64,
    /// `initial-node-group-backoff-duration`.
    pub initial_node_group_backoff: SimDuration,
    /// `max-node-group-backoff-duration`.
    pub max_node_group_backoff: SimDuration,
    /// `node-group-backoff-reset-timeout`.
    pub node_group_backoff_reset: SimDuration,
}

impl Default for Flags {
    fn default() -> Self {
        Flags {
            scan_interval: secs(10),
            frequent_loops_enabled: true,
            salvo_scale_up: false,
            new_pod_scale_up_delay: SimDuration::ZERO,
            gpu_pod_buffer: GPU_POD_BUFFER,
            max_node_provision_time: secs(900),
            expander: Expander::Random,
            scale_down_unneeded_time: secs(600),
            scale_down_unready_time: secs(1200),
            scale_down_delay_after_add: secs(600),
            scale_down_delay_after_delete: SimDuration::ZERO,
            scale_down_delay_after_failure: secs(180),
            scale_down_utilization_threshold: 0.5,
            scale_down_gpu_utilization_threshold: 0.5,
            max_scale_down_parallelism: 10,
            max_drain_parallelism: 1,
            node_delete_delay_after_taint: secs(5),
            ok_total_unready_count: 3,
            max_total_unready_percentage: 45.0,
            initial_node_group_backoff: secs(300),
            max_node_group_backoff: secs(1800),
            node_group_backoff_reset: secs(10_800),
        }
    }
}

/// Pods younger than this are postponed.
pub const POD_BUFFER: SimDuration = secs(2);
/// Default of [`Flags::gpu_pod_buffer`].
pub const GPU_POD_BUFFER: SimDuration = secs(30);

/// A group of like nodes (an Auto Scaling Group).
#[derive(Clone, Debug, PartialEq)]
pub struct NodeGroup {
    /// Its name.
    pub name: String,
    /// Fewest nodes.
    pub min: usize,
    /// Most nodes.
    pub max: usize,
    /// What a node of it can give to pods.
    pub template: Resources,
    /// Price of a node [$/h].
    pub price_per_hour: f64,
    /// For the priority expander; higher comes first.
    pub priority: i32,
}

/// Node groups that a pod may be placed on (`nodeSelector`, node affinity), by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSet(u128);

impl GroupSet {
    /// Any group.
    pub const ALL: GroupSet = GroupSet(u128::MAX);
    /// Groups that a set other than [`GroupSet::ALL`] can tell apart.
    pub const MOST: usize = 128;

    /// The groups whose `may` is true; all of them is [`GroupSet::ALL`].
    pub fn of(may: impl IntoIterator<Item = bool>) -> GroupSet {
        let (mut bits, mut all) = (0, true);
        for (i, may) in may.into_iter().enumerate() {
            all &= may;
            bits |= u128::from(may && i < GroupSet::MOST) << (i % GroupSet::MOST);
        }
        match all {
            true => GroupSet::ALL,
            false => GroupSet(bits),
        }
    }

    /// Whether `group` is among them.
    pub fn has(self, group: usize) -> bool {
        self == GroupSet::ALL || group < GroupSet::MOST && self.0 >> group & 1 == 1
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, other: GroupSet) -> GroupSet {
        GroupSet(self.0 & other.0)
    }
}

/// A pod, pending or on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Which.
    pub id: u64,
    /// What it requests.
    pub requests: Resources,
    /// Where it may be.
    pub groups: GroupSet,
    /// When it was created.
    pub created: SimTime,
    /// Whether it may be evicted: no blocking PDB, bare pod, local storage, system pod, `safe-to-evict=false`.
    pub is_movable: bool,
}

/// A registered node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// Which.
    pub id: u64,
    /// Index of its group.
    pub group: usize,
    /// Whether its condition Ready is true.
    pub is_ready: bool,
    /// Whether no pod may be placed on it any more, though its group has it still: a spot node that will be taken away.
    pub is_cordoned: bool,
    /// What it can give to pods; a GPU node without GPUs yet counts as upcoming.
    pub allocatable: Resources,
    /// Pods on it, DaemonSets left out.
    pub pods: Vec<PodView>,
}

/// What the autoscaler sees in one scan.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Nodes, without those that it removes already.
    pub nodes: &'a [NodeView],
    /// Nodes that it removes already: those without pods, and those that drain.
    pub removing: (usize, usize),
    /// Pods that the scheduler marked Unschedulable.
    pub unschedulable: &'a [PodView],
    /// A number drawn by the caller, for the random expander.
    pub draw: u64,
}
