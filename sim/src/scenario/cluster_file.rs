//! `[cluster]`, `[autoscaler]`, `[[fault]]` and `[[change]]` as written. Keys of controllers have the names that manifests and flags give
//! them. `scenario::cluster` makes a [`crate::kube::spec::ClusterSpec`] of them.

use hwmodels::units::{ByteSize, BytesPerSec, Ratio, Secs, UsdPerHour};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::actuation_file::ActuationFile;
use super::hpa_file::{BehaviorFile, HpaFile, HpaFlagsFile};
use super::on_demand_file::OnDemandFile;
use super::scalers_file::{EppFile, KarpenterFile, SageMakerFile, WvaFile};
pub use super::values_file::{DelayFile, DelayKind, DelayTable, QuantityFile, RuleFile};
use crate::control::dynamo::config::PlannerConfig;

/// Nodes and pods around the replicas. With this section replicas come and go in the run; without it they are there from start to end.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// Replicas wanted at the start, 0 or more; with pools each has its own. Default: `layout.replicas`.
    pub replicas: Option<u32>,
    /// Whether those are ready at the start (warm) or begin as Pending pods (cold). Default: "warm".
    pub start: Option<StartFile>,
    /// Groups of like nodes; at least one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_group: Vec<NodeGroupFile>,
    /// The pods of a replica, and how long each phase of their start takes; with pools what they have in common.
    pub pod: Option<PodFile>,
    /// llm-d's fast model actuation: vLLM instances of replicas that go sleep on their nodes, and are woken for the next.
    pub actuation: Option<ActuationFile>,
    /// Requests that each ready replica may have unanswered; those beyond wait at the gateway, as in a list that workers take them from.
    /// Default: no limit.
    pub max_outstanding: Option<u32>,
    /// Who stands in front of the replicas, and so what becomes of requests that come while none is ready: "service" refuses them (a Service, Envoy or nginx: 502, 503);
    /// "knative" (the activator), "keda_http" (KEDA's HTTP add-on), "flow_control" (an endpoint picker's queue) and "queue" (a list that workers take from) hold them.
    /// Default: "service"; with max_outstanding, a redis trigger or models on demand "queue"; with `[autoscaler.epp]` or a trigger on a flow control's series "flow_control".
    pub gateway: Option<GatewayKind>,
    /// How long it holds a request, which then fails (503). Default: of knative "5 min", else as long as the client waits (KEDA's HTTP add-on before 0.14: "20 s").
    pub hold_timeout: Option<Secs>,
    /// Requests that it holds at most; one more is refused (503). Default: of knative 10000, else no limit.
    pub hold_limit: Option<u32>,
    /// How kube-scheduler scores the nodes that have room for a pod (`KubeSchedulerConfiguration`).
    pub scheduler: Option<SchedulerFile>,
    /// How often the state of the cluster is noted for reports. Default: "15 s".
    pub sample: Option<Secs>,
    /// How long the run goes on while requests wait for a replica and nothing else is under way. Default: "1 h".
    pub patience: Option<Secs>,
}

/// Who stands in front of the replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GatewayKind {
    /// A Service, Envoy or nginx: without a ready endpoint a request is refused.
    #[default]
    Service,
    /// Knative's activator.
    Knative,
    /// The interceptor of KEDA's HTTP add-on.
    KedaHttp,
    /// An endpoint picker with flow control.
    FlowControl,
    /// A list that workers take requests from.
    Queue,
}

/// How kube-scheduler scores nodes, by the keys of its configuration.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SchedulerFile {
    /// `scoringStrategy.type` of NodeResourcesFit: "LeastAllocated" prefers nodes with much left, "MostAllocated" those with little. Default: "LeastAllocated".
    pub scoring_strategy: Option<ScoringStrategyFile>,
    /// Resources that it looks at, with their weights. Default: { cpu = 1, memory = 1 }, without accelerators. Pods request no CPU or memory here and count 100m and 200 MiB
    /// each.
    pub resources: Option<ResourceWeightsFile>,
    /// Weight of NodeResourcesFit; topology spread has 2. Default: 1.
    pub weight: Option<u32>,
    /// `defaultingType` of PodTopologySpread: "System" spreads the pods of a Deployment over nodes and zones as far as there is room, "List" (an empty one) does not. Default:
    /// "System".
    pub defaulting_type: Option<DefaultingTypeFile>,
}

/// Weights of resources, 0 to 100.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceWeightsFile {
    /// Of CPU. Default: 0.
    #[serde(default)]
    pub cpu: u32,
    /// Of memory. Default: 0.
    #[serde(default)]
    pub memory: u32,
    /// Of accelerators. Default: 0.
    #[serde(default)]
    pub accelerators: u32,
}

/// `scoringStrategy.type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScoringStrategyFile {
    /// Nodes with much left come first.
    #[default]
    LeastAllocated,
    /// Nodes with little left come first.
    MostAllocated,
}

/// `defaultingType`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DefaultingTypeFile {
    /// The system's constraints: `maxSkew` 3 over nodes, 5 over zones, `ScheduleAnyway`.
    #[default]
    System,
    /// An empty list.
    List,
}

/// How a run begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartFile {
    /// The replicas are ready.
    #[default]
    Warm,
    /// The replicas are Pending pods, and no node has the image.
    Cold,
}

/// A group of like nodes (an Auto Scaling Group, a managed instance group).
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeGroupFile {
    /// Its name; unique. Default: "nodes-0", "nodes-1", ...
    pub name: Option<String>,
    /// Instance type in the catalog, with the accelerator of `hardware`. Default: `hardware.instance`.
    pub instance: Option<String>,
    /// Its availability zone, which the scheduler spreads over and faults may hit. Default: groups without one are in one zone together.
    pub zone: Option<String>,
    /// Accelerators of a node, where there is no instance type. Default: as many as a pod needs.
    pub accelerators: Option<u32>,
    /// Fewest nodes. Default: 0.
    pub min: Option<u32>,
    /// Most nodes. Needed.
    pub max: Option<u32>,
    /// Nodes at the start. Default: `min`, or as many as the replicas of a warm start need.
    pub nodes: Option<u32>,
    /// Platform whose figures hold where `boot` or `device_plugin` are not given: "aws-gpu", "aws-large", "gcp", "other". Default: by the beginning of the
    /// instance type's name.
    pub platform: Option<String>,
    /// Kind of host whose figures of imports, compilation and graph capture hold: "a100", "hopper", "h100-epyc", "h100-xeon", "t4". Default: by the accelerator.
    pub host: Option<String>,
    /// From the request of an instance until its node is Ready. Default: that of `servetwin startup` for its platform; without hardware "137 s".
    pub boot: Option<DelayFile>,
    /// From there until the device plugin has told of the accelerators. Default: that of `servetwin startup`; without hardware "30 s".
    pub device_plugin: Option<DelayFile>,
    /// From the end of its last pod until a node that is to go is not paid for any more: who removes it sees that the pods are gone, and the cloud stops it. Default:
    /// "30 s".
    pub shutdown: Option<DelayFile>,
    /// Price of a node. Default: the catalog's for its instance type, or `hardware.price`.
    pub price: Option<UsdPerHour>,
    /// Power of a node's accelerators with nothing under way [W]. Default: 15 % of their rated power, where that is known.
    pub idle_watts: Option<f64>,
    /// Power of a node's accelerators with a step under way [W]. Default: their rated power, where that is known.
    pub busy_watts: Option<f64>,
    /// Whether instances are spot ones, which faults of kind spot take away. Default: false.
    pub spot: Option<bool>,
    /// For the priority expander; higher comes first. Default: 0.
    pub priority: Option<i32>,
    /// Whether nodes come with the image: image streaming, a secondary boot disk, an image in the AMI. Default: false.
    pub has_image: Option<bool>,
    /// Share of requests for an instance that the cloud refuses, 0 to 1. Default: 0.
    pub refused: Option<Ratio>,
    /// How long the cloud takes to refuse. Default: "30 s".
    pub refused_after: Option<DelayFile>,
    /// From the loss of an instance until whoever keeps the group at its size (an Auto Scaling Group, a managed instance group) asks for another. Without effect under
    /// Karpenter, where pods that wait bring nodes. Default: "40 s".
    pub replaced_after: Option<DelayFile>,
}

/// The pods of a replica. The start of a pod is the sum of its phases: pending, node boot, device plugin, image pull, weights load, gang
/// wait, engine init or waking, readiness.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PodFile {
    /// Name of the Deployment or LeaderWorkerSet. Default: "server".
    pub name: Option<String>,
    /// Pods of a replica (`leaderWorkerTemplate.size`): 1 is a Deployment, more are a LeaderWorkerSet. Default: as many nodes as the layout needs.
    pub size: Option<u32>,
    /// Accelerators that each pod requests. Default: those of the layout, spread over its pods.
    pub accelerators: Option<u32>,
    /// From being scheduled until the volume with the weights is attached. Default: "0 s".
    pub volume_attach: Option<DelayFile>,
    /// Image pull on a node that does not have the image, and the start of its container; once for each node. Default: that of `servetwin startup` for the size of
    /// the image; without hardware "280 s".
    pub image_pull: Option<DelayFile>,
    /// Image pull on a node that comes with it (`node_group.has_image`). Default: "4 s".
    pub image_cached: Option<DelayFile>,
    /// Compressed size of the image. Default: that of the engine.
    pub image: Option<ByteSize>,
    /// Where its registry is: "region", the nodes' own, or "public", anywhere else (Docker Hub, ghcr.io, another region). Default: "region". With hardware only.
    pub registry: Option<RegistryFile>,
    /// Where the weights lie: "s3", "efs", "fsx_lustre", "ebs_gp3", "ebs_io2", "nvme", "page_cache", "hub". Default: "ebs_gp3". With hardware only.
    pub storage: Option<String>,
    /// Who loads them: "safetensors", "runai-streamer", "tensorizer". Default: "safetensors".
    pub loader: Option<String>,
    /// What the volume or file system gives, e.g. "1 GB/s". Default: that of the storage.
    pub bandwidth: Option<BytesPerSec>,
    /// Whether the results of torch.compile are on a volume or in the image (vLLM V1). Default: false.
    pub compile_cached: Option<bool>,
    /// From the container's start until the weights are loaded. Default: their bytes over what the storage, the loader and the node give, shared by those who
    /// load at once; without hardware "77 s".
    pub weights_load: Option<DelayFile>,
    /// Compilation, warm-up and graph capture, until the server answers; begins when all pods of the replica have their weights. Default:
    /// that of `servetwin startup` for engine, model and accelerator; without hardware "37 s".
    pub engine_init: Option<DelayFile>,
    /// `rollingUpdate.maxSurge`: a number such as "1", or a share such as "25%", rounded up. Default: "25%"; of a LeaderWorkerSet "0".
    #[serde(rename = "maxSurge")]
    pub max_surge: Option<String>,
    /// `rollingUpdate.maxUnavailable`: the same, rounded down. Default: "25%"; of a LeaderWorkerSet "1".
    #[serde(rename = "maxUnavailable")]
    pub max_unavailable: Option<String>,
    /// `readinessProbe.initialDelaySeconds`. Default: 0.
    #[serde(rename = "initialDelaySeconds")]
    pub initial_delay_seconds: Option<u32>,
    /// `readinessProbe.periodSeconds`. Default: 10.
    #[serde(rename = "periodSeconds")]
    pub period_seconds: Option<u32>,
    /// Time that a pod has for its last requests once it is to end. Default: 30.
    #[serde(rename = "terminationGracePeriodSeconds")]
    pub termination_grace_period_seconds: Option<u32>,
    /// Pause before a container that crashed starts again; doubles with each crash, up to 5 minutes, and is the shortest again after one that ran for 10 minutes. Default:
    /// "10 s".
    pub restart_backoff: Option<Secs>,
}

/// Where the registry of an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RegistryFile {
    /// In the nodes' own region.
    Region,
    /// Anywhere else.
    Public,
}

/// Who changes the number of replicas and nodes. Without it operators alone do.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AutoscalerFile {
    /// The way of a metric: how often each stage looks at the one before.
    pub metrics: Option<MetricPathFile>,
    /// A HorizontalPodAutoscaler (autoscaling/v2).
    pub hpa: Option<HpaFile>,
    /// A ScaledObject of KEDA, which makes an HPA of its own; in place of `hpa`.
    pub keda: Option<KedaFile>,
    /// KEDA on the signals of llm-d's endpoint picker; in place of `keda`.
    pub epp: Option<EppFile>,
    /// llm-d's workload-variant autoscaler; in place of `hpa`.
    pub wva: Option<WvaFile>,
    /// Application Auto Scaling of a SageMaker endpoint; in place of `hpa`.
    pub sagemaker: Option<SageMakerFile>,
    /// Dynamo's planner, by the keys of its `PlannerConfig`; in place of `hpa`. `mode` must be "agg"; at the top, with pools, "disagg"; in a pool what its `role` is.
    pub dynamo: Option<PlannerConfig>,
    /// Models that share accelerators and are loaded on demand; at the top, with pools.
    pub on_demand: Option<OnDemandFile>,
    /// The Cluster Autoscaler.
    pub cluster_autoscaler: Option<ClusterAutoscalerFile>,
    /// Karpenter; in place of `cluster_autoscaler`.
    pub karpenter: Option<KarpenterFile>,
}

/// The way of a metric: exporter, scrape, recording rule, adapter. The phases of the stages are drawn from the seed.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricPathFile {
    /// How often the exporter's page is written anew (Triton: `--metrics-interval-ms`). "0 s": it shows the present. Default: "0 s", of trt_llm
    /// and static "2 s".
    pub exporter_interval: Option<Secs>,
    /// `scrape_interval` of Prometheus. Default: "30 s".
    pub scrape_interval: Option<Secs>,
    /// `evaluation_interval` of recording rules. Default: "30 s".
    pub evaluation_interval: Option<Secs>,
    /// `--metrics-relist-interval` of prometheus-adapter. Default: "1 min".
    pub metrics_relist_interval: Option<Secs>,
}

/// A ScaledObject of KEDA.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KedaFile {
    /// Time between two polls [s]. Default: 30.
    pub polling_interval: Option<u32>,
    /// Time after the last activity before the way to 0 or idle [s]. Default: 300.
    pub cooldown_period: Option<u32>,
    /// The same after the start of the run where no trigger was active yet [s]. Default: 0.
    pub initial_cooldown_period: Option<u32>,
    /// Size without activity, less than minReplicaCount. Default: none.
    pub idle_replica_count: Option<i32>,
    /// Fewest replicas. Default: 0.
    pub min_replica_count: Option<i32>,
    /// Most replicas. Default: 100.
    pub max_replica_count: Option<i32>,
    /// What holds while triggers fail. Default: nothing.
    pub fallback: Option<FallbackFile>,
    /// What it looks at; at least one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<TriggerFile>,
    /// `advanced.horizontalPodAutoscalerConfig.behavior`. Default: as of an HPA.
    pub behavior: Option<BehaviorFile>,
    /// Flags of the controller of its HPA.
    pub flags: Option<HpaFlagsFile>,
}

/// `fallback`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FallbackFile {
    /// Consecutive failures that are borne.
    pub failure_threshold: u32,
    /// Replicas from then on.
    pub replicas: i32,
}

/// One of `triggers`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TriggerFile {
    /// Where the value comes from. Default: "prometheus".
    #[serde(rename = "type")]
    pub kind: Option<TriggerType>,
    /// The series, summed over all pods (prometheus), e.g. "vllm:num_requests_waiting". Needed there.
    pub metric: Option<String>,
    /// Target: `threshold`, or `listLength` of redis. Needed.
    pub threshold: Option<f64>,
    /// The trigger is active above this. Default: 0.
    pub activation_threshold: Option<f64>,
    /// Whether the target is for each replica or the whole. Default: "AverageValue".
    pub metric_type: Option<MetricTypeFile>,
    /// The HPA is told the last poll's value. Default: false.
    pub use_cached_metrics: Option<bool>,
    /// Function of a recording rule over the series. Default: none for gauges, rate for counters.
    pub rule: Option<RuleFile>,
    /// Range of that function. Default: "1 min".
    pub window: Option<Secs>,
}

/// Scalers of KEDA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TriggerType {
    /// A query of Prometheus.
    #[default]
    Prometheus,
    /// The length of the list that the gateway holds requests in, as it is.
    Redis,
}

/// `metricType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MetricTypeFile {
    /// For each replica.
    AverageValue,
    /// For the whole.
    Value,
}

/// The Cluster Autoscaler: its flags.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClusterAutoscalerFile {
    /// Longest time between two loops. Default: "10 s".
    pub scan_interval: Option<Secs>,
    /// Whether a loop follows at once on a new unschedulable pod and on a loop that changed something, as since 2026 without being told to; releases before look every
    /// `scan-interval`. Default: true.
    pub frequent_loops_enabled: Option<bool>,
    /// Whether one loop grows as many groups, one after the other, as the pending pods need. Default: false.
    pub salvo_scale_up: Option<bool>,
    /// Pods younger than this are not looked at. Default: "0 s".
    pub new_pod_scale_up_delay: Option<Secs>,
    /// How long pods with accelerators wait before a node is asked for: a constant of the original, 2 s on GKE. Default: "30 s".
    pub gpu_pod_buffer: Option<Secs>,
    /// An instance that has not registered by then is given up. Default: "15 min".
    pub max_node_provision_time: Option<Secs>,
    /// Which of several groups grows. Default: "random".
    pub expander: Option<ExpanderFile>,
    /// How long a node must not be needed. Default: "10 min".
    pub scale_down_unneeded_time: Option<Secs>,
    /// No node is removed for so long after one was added. Default: "10 min".
    pub scale_down_delay_after_add: Option<Secs>,
    /// No node is removed for so long after one was removed. Default: "0 s".
    pub scale_down_delay_after_delete: Option<Secs>,
    /// Share of its accelerators in use below which a node is not needed. Default: 0.5.
    pub scale_down_gpu_utilization_threshold: Option<f64>,
    /// Most nodes that are being removed at a time. Default: 10.
    pub max_scale_down_parallelism: Option<u32>,
    /// First pause after a group could not grow. Default: "5 min".
    pub initial_node_group_backoff_duration: Option<Secs>,
    /// Longest such pause. Default: "30 min".
    pub max_node_group_backoff_duration: Option<Secs>,
}

/// `--expander`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExpanderFile {
    /// Any.
    #[default]
    Random,
    /// The one that leaves the least CPU idle.
    LeastWaste,
    /// The one that helps the most pods.
    MostPods,
    /// The cheapest.
    Price,
    /// The one of the highest priority.
    Priority,
}

/// Something that breaks.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultFile {
    /// What.
    pub kind: FaultKindFile,
    /// When. This or `mtbf` is needed.
    pub at: Option<Secs>,
    /// Time that each replica or node lives, from when it came; of what hits the cluster as a whole (metrics_outage, no_capacity, slow_storage, KV links) the time from
    /// the end of one to the next. A duration is the mean of an exponential one.
    pub mtbf: Option<DelayFile>,
    /// Which replica or node, counted from 0 in the order in which they came, of those there are then. Default: any.
    pub target: Option<u32>,
    /// Whether all replicas or nodes that it may hit are hit, in place of `target`; with `at`. Default: false.
    pub all: Option<bool>,
    /// The pool that is hit: its replicas, nodes that hold pods of it (with `at`), or the links of its replicas. Default: any.
    pub pool: Option<String>,
    /// Which link (degraded_link): that of a node, over which the accelerators of a step communicate and the KV of its replicas comes and goes, or those that KV goes over between pools. Default: "node".
    pub link: Option<LinkFile>,
    /// Time from the notice to the end (spot). Default: "2 min".
    pub notice: Option<Secs>,
    /// What is done at the notice with the pods of a spot node (spot): "drain" evicts them, and they are replaced at once (aws-node-termination-handler, Karpenter);
    /// "graceful_shutdown" is the kubelet's, as on GKE: they are told to end, and each is replaced when it has; "none": they serve until the node is gone. Default:
    /// "drain".
    pub handler: Option<SpotHandlerFile>,
    /// Most time that pods have in a graceful shutdown, their own grace period aside (spot): the kubelet's `shutdownGracePeriod` less that of critical pods. Default: "15 s",
    /// as on GKE.
    pub shutdown_grace: Option<Secs>,
    /// Time until the pods of a lost node are replaced (node; spot with handler = "none", there "100 s": 40 s until the node is not Ready, and then the cloud says that it is
    /// gone, and orphans wait for another 40 s): the monitor's 40 s and the pods' toleration of 5 min, unless the cloud says
    /// earlier that the instance is gone. Default: "340 s".
    pub noticed_after: Option<Secs>,
    /// Factor on the time of each step (straggler, thermal_throttling). Default: 1.5.
    pub factor: Option<f64>,
    /// Share of the bandwidth that is left, 0.001 to 1 (slow_storage, degraded_link). Default: 0.25.
    pub share: Option<f64>,
    /// From each start of the container to its crash (crash_loop). Default: "20 s".
    pub crashes_after: Option<Secs>,
    /// How long the gateway tries to connect (router_partition); Envoy's `connect_timeout`. Default: "5 s".
    pub connect_timeout: Option<Secs>,
    /// For how long (metrics_outage, no_capacity, thermal_throttling, slow_storage, crash_loop, straggler, degraded_link, router_partition). Default:
    /// "10 min"; of a straggler and a node's degraded link as long as the node lives; of a partition "1 min".
    pub duration: Option<Secs>,
    /// Whose nodes (node, spot, straggler, thermal_throttling, degraded_link of nodes, no_capacity). Default: any; of no_capacity the first.
    pub node_group: Option<String>,
    /// The availability zone whose nodes are hit, in place of `node_group`. Default: any.
    pub zone: Option<String>,
}

/// Who acts on the notice of a spot node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpotHandlerFile {
    /// Nobody.
    None,
    /// The kubelet.
    GracefulShutdown,
    /// A controller that evicts its pods.
    #[default]
    Drain,
}

/// A link that can lose bandwidth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LinkFile {
    /// Between the accelerators of a node, or of the node to others: communication in steps takes longer.
    #[default]
    Node,
    /// What KV goes over from prefill pools to decode pools.
    Kv,
}

/// What breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultKindFile {
    /// The engine of a replica crashes; its container, or its whole group, starts again.
    #[default]
    Replica,
    /// A node is lost with all that runs on it.
    Node,
    /// A spot node is taken away after a notice, at which its pods are evicted.
    Spot,
    /// The engines on a node are slow, for `duration` or as long as it lives.
    Straggler,
    /// The accelerators of a node are too hot and run slower for a while.
    ThermalThrottling,
    /// A link has lost bandwidth: that of a node, so that communication in steps takes longer, or those that KV goes over between pools (`link`).
    DegradedLink,
    /// The gateway does not reach a replica, which is well and stays ready: what it serves fails, and so does what is sent to it meanwhile.
    RouterPartition,
    /// The container of a replica crashes, and again after each start, with Kubernetes' growing pauses.
    CrashLoop,
    /// Weights load at a fraction of the bandwidth.
    SlowStorage,
    /// Prometheus is down.
    MetricsOutage,
    /// The cloud has no instance for a node group.
    NoCapacity,
}

/// What an operator does during the run.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeFile {
    /// When. Needed.
    pub at: Option<Secs>,
    /// The pool whose replicas, bounds or restart it is. Needed where there are several.
    pub pool: Option<String>,
    /// `kubectl scale --replicas`.
    pub replicas: Option<u32>,
    /// `kubectl rollout restart`: true replaces all replicas, a few at a time.
    pub restart: Option<bool>,
    /// `kubectl patch` of minReplicas (KEDA: minReplicaCount; SageMaker: MinCapacity).
    #[serde(rename = "minReplicas")]
    pub min_replicas: Option<i32>,
    /// `kubectl patch` of maxReplicas (KEDA: maxReplicaCount).
    #[serde(rename = "maxReplicas")]
    pub max_replicas: Option<i32>,
    /// The node group whose size is changed. Default: the first.
    pub node_group: Option<String>,
    /// Its fewest nodes from then on.
    pub min: Option<u32>,
    /// Its most nodes from then on.
    pub max: Option<u32>,
    /// Nodes that it is to have.
    pub nodes: Option<u32>,
}
