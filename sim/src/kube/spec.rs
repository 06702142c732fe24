//! What a cluster is made of: node groups, the pods of a replica, autoscalers, faults and what operators change.

use crate::control::cluster_autoscaler::spec::{Flags, Resources};
use crate::control::hpa::spec::{HpaSpec, Settings};
use crate::control::keda::ScaledObjectSpec;
use crate::control::pipeline::PathSpec;
use crate::kernel::time::{SimDuration, SimTime};

use super::delay::Delay;

/// A cluster, as it is configured.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// Node groups, at least one.
    pub groups: Vec<GroupSpec>,
    /// The pods of a replica.
    pub pod: PodSpec,
    /// Replicas wanted at the start.
    pub replicas: i32,
    /// Whether those are ready at the start; else they begin as Pending pods.
    pub is_warm: bool,
    /// The HPA, with its controller's flags.
    pub hpa: Option<(HpaSpec, Settings)>,
    /// The ScaledObject, with the flags of the controller of its HPA.
    pub keda: Option<(ScaledObjectSpec, Settings)>,
    /// What the entries of `metrics`, or the triggers, ask for, in their order.
    pub metrics: Vec<MetricSource>,
    /// The Cluster Autoscaler.
    pub cluster_autoscaler: Option<Flags>,
    /// What breaks.
    pub faults: Vec<FaultSpec>,
    /// What operators change.
    pub changes: Vec<ChangeSpec>,
    /// Requests that each ready replica may have unanswered; those beyond wait at the gateway.
    pub max_outstanding: Option<u32>,
    /// How often the state of the cluster is noted for reports.
    pub sample: SimDuration,
    /// How long the run goes on after the last event of a request while requests wait for a replica that does not come.
    pub patience: SimDuration,
}

/// A group of like nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSpec {
    /// Its name.
    pub name: String,
    /// Instance type, for reports.
    pub instance: String,
    /// Fewest nodes.
    pub min: usize,
    /// Most nodes.
    pub max: usize,
    /// Nodes at the start.
    pub nodes: usize,
    /// What a node can give to pods.
    pub template: Resources,
    /// From the request of an instance until its node is Ready.
    pub boot: Delay,
    /// From there until its accelerators can be allocated.
    pub device_plugin: Delay,
    /// From the end of its last pod until the instance is not paid for any more.
    pub shutdown: Delay,
    /// Price of a node [USD/h], where known.
    pub usd_per_hour: Option<f64>,
    /// Whether instances can be reclaimed.
    pub is_spot: bool,
    /// For the priority expander; higher comes first.
    pub priority: i32,
    /// Whether nodes come with the image (image streaming, a secondary boot disk, an image in the AMI).
    pub has_image: bool,
    /// Share of requests for an instance that the cloud refuses [0, 1].
    pub refused: f64,
    /// How long the cloud takes to refuse.
    pub refused_after: Delay,
}

/// The pods of a replica, and how they start.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSpec {
    /// Name of the Deployment or LeaderWorkerSet.
    pub name: String,
    /// Pods of a replica; several are a LeaderWorkerSet.
    pub size: usize,
    /// What each requests.
    pub requests: Resources,
    /// Name of the accelerator's resource.
    pub resource: String,
    /// From being scheduled until the volume with the weights is attached.
    pub volume_attach: Delay,
    /// Image pull on a node that does not have the image.
    pub image_pull: Delay,
    /// Image pull on a node that comes with it.
    pub image_cached: Delay,
    /// From the container's start until the weights are in the accelerators.
    pub weights_load: Delay,
    /// Compilation, warm-up, graph capture, engine load: until the server answers.
    pub engine_init: Delay,
    /// `readinessProbe.initialDelaySeconds`.
    pub probe_delay: SimDuration,
    /// `readinessProbe.periodSeconds`.
    pub probe_period: SimDuration,
    /// `terminationGracePeriodSeconds`.
    pub grace: SimDuration,
    /// Pause before a container that crashed is started again; doubles up to five minutes (CrashLoopBackOff).
    pub restart_backoff: SimDuration,
}

/// Where a metric comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricSource {
    /// Exporters of the replicas, over Prometheus.
    Replicas(PathSpec),
    /// The gateway's exporter, over Prometheus: held requests are `Waiting`, requests sent on and not answered `Running`, requests
    /// offered so far `RequestSuccess`.
    Gateway(PathSpec),
    /// The gateway's queue, asked when it is wanted (KEDA's `redis` trigger on a list).
    QueueLength,
}

/// What breaks, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultSpec {
    /// What.
    pub kind: FaultKind,
    /// When.
    pub when: When,
}

/// When something breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// At this instant; `target`: which of the replicas or nodes there are then, in the order in which they came; `None`: any.
    At {
        /// The instant.
        at: SimTime,
        /// Which.
        target: Option<usize>,
    },
    /// Each replica or node after a time of its own since it came.
    After(Delay),
}

/// What breaks.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// The engine of a replica crashes; its container starts again, or its whole group where it spans several pods.
    Replica,
    /// A node is lost with all that runs on it; its pods are replaced once that was noticed.
    Node {
        /// Time until its pods are replaced.
        noticed_after: SimDuration,
    },
    /// A spot node is taken away: its pods are evicted at the notice, and it is gone at its end.
    Spot {
        /// From the notice to the end.
        notice: SimDuration,
    },
    /// From then on, engines that start on a node take longer for each step.
    Straggler {
        /// How much longer.
        factor: f64,
    },
    /// Prometheus is down: nothing is scraped, and queries fail.
    MetricsOutage {
        /// For how long.
        duration: SimDuration,
    },
    /// The cloud has no capacity for a group.
    NoCapacity {
        /// Which group.
        group: usize,
        /// For how long.
        duration: SimDuration,
    },
}

/// What an operator changes at an instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChangeSpec {
    /// When.
    pub at: SimTime,
    /// What.
    pub what: ChangeKind,
}

/// What an operator changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChangeKind {
    /// `kubectl scale`.
    Replicas(i32),
    /// `kubectl patch` of the autoscaler's bounds; `None` leaves one as it is.
    Bounds {
        /// `minReplicas` or `minReplicaCount`.
        min: Option<i32>,
        /// `maxReplicas` or `maxReplicaCount`.
        max: Option<i32>,
    },
    /// Another size of a node group; `None` leaves one as it is.
    Group {
        /// Which group.
        group: usize,
        /// Fewest nodes.
        min: Option<usize>,
        /// Most nodes.
        max: Option<usize>,
        /// Nodes wanted now.
        nodes: Option<usize>,
    },
}
