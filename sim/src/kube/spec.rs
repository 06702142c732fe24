//! What a cluster is made of: node groups, the pods of a replica, autoscalers, faults and what operators change.

use crate::control::actuation::DualPodsSpec;
use crate::control::cluster_autoscaler::spec::{Flags, Resources};
use crate::control::dynamo::config::PlannerConfig;
use crate::control::hpa::spec::{HpaSpec, Settings};
use crate::control::karpenter::spec::KarpenterSpec;
use crate::control::keda::ScaledObjectSpec;
use crate::control::on_demand::OnDemandSpec;
use crate::control::pipeline::PathSpec;
use crate::control::pipeline::rule::{Counter, Rule};
use crate::control::predictive::PredictiveSpec;
use crate::control::sagemaker::ScalableTarget;
use crate::control::sagemaker::step_scaling::StepScalingSpec;
use crate::control::sagemaker::target_tracking::{PredefinedMetricType, TargetTrackingSpec};
use crate::control::scheduled::ScheduledScalingSpec;
use crate::control::wva::WvaSpec;
use crate::kernel::time::{SimDuration, SimTime};

use super::delay::Delay;

/// A cluster, as it is configured.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// Node groups, at least one.
    pub groups: Vec<GroupSpec>,
    /// What serves, at least one; where the run has pools, one for each, in their order.
    pub deployments: Vec<DeploymentSpec>,
    /// Whether the replicas wanted at the start are ready then; else they begin as Pending pods.
    pub is_warm: bool,
    /// Autoscalers that are no HPA.
    pub scalers: Vec<ScalerUse>,
    /// The Cluster Autoscaler.
    pub cluster_autoscaler: Option<Flags>,
    /// Karpenter in its place; its offerings are the groups.
    pub karpenter: Option<KarpenterSpec>,
    /// Models that share accelerators and are loaded on demand.
    pub on_demand: Option<OnDemandUse>,
    /// Fast model actuation: instances that sleep and wake serve for pods.
    pub actuation: Option<ActuationSpec>,
    /// What breaks.
    pub faults: Vec<FaultSpec>,
    /// What operators change.
    pub changes: Vec<ChangeSpec>,
    /// Requests that each ready replica may have unanswered; those beyond wait at the gateway.
    pub max_outstanding: Option<u32>,
    /// How the gateway holds requests that come while no replica is ready; `None`: it refuses them.
    pub hold: Option<HoldSpec>,
    /// How kube-scheduler scores nodes.
    pub scheduler: SchedulerSpec,
    /// How often the state of the cluster is noted for reports.
    pub sample: SimDuration,
    /// How long the run goes on after the last event of a request while requests wait for a replica that does not come.
    pub patience: SimDuration,
}

impl ClusterSpec {
    /// Whether requests may come while a deployment is meant to have no ready replica, and are refused then: it starts without one, or goes to zero.
    pub fn refuses_at_zero(&self) -> bool {
        let to_zero = |d: &DeploymentSpec| {
            let keda = (d.keda.as_ref())
                .is_some_and(|(k, _)| k.idle_replica_count.unwrap_or(k.min_replica_count) == 0);
            let hpa = (d.hpa.as_ref()).is_some_and(|(h, _)| h.min_replicas == Some(0));
            let endpoint = |s: &ScalerUse| match &s.spec {
                ScalerSpec::SageMaker(e) => e.target.min_capacity == 0,
                _ => false,
            };
            keda || hpa || self.scalers.iter().any(endpoint) || d.replicas == 0
        };
        self.hold.is_none() && (!self.is_warm || self.deployments.iter().any(to_zero))
    }
}

/// A Deployment or LeaderWorkerSet, with the HPA or ScaledObject that scales it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeploymentSpec {
    /// Name of its pool.
    pub name: String,
    /// The pods of a replica.
    pub pod: PodSpec,
    /// How they start on the nodes of each group, by its index; `None`: they may not be placed there.
    pub starts: Vec<Option<StartSpec>>,
    /// Which image they run: a node pulls each once.
    pub image: usize,
    /// Replicas wanted at the start.
    pub replicas: i32,
    /// The HPA, with its controller's flags.
    pub hpa: Option<(HpaSpec, Settings)>,
    /// The ScaledObject, with the flags of the controller of its HPA.
    pub keda: Option<(ScaledObjectSpec, Settings)>,
    /// What the entries of `metrics`, or the triggers, ask for, in their order.
    pub metrics: Vec<MetricSource>,
    /// What is known of each engine.
    pub facts: EngineFacts,
}

impl DeploymentSpec {
    /// Whether its pods may be placed on nodes of `group`.
    pub fn may_use(&self, group: usize) -> bool {
        self.start_on(group).is_some()
    }

    /// How its pods start on nodes of `group`.
    pub fn start_on(&self, group: usize) -> Option<&StartSpec> {
        self.starts.get(group).and_then(Option::as_ref)
    }

    /// Accelerators of a replica.
    pub fn gpus(&self) -> u32 {
        let of_pod = u32::try_from(self.pod.requests.gpus).unwrap_or(0);
        of_pod.saturating_mul(self.pod.size as u32)
    }
}

/// An autoscaler that is no HPA, and the deployments that it scales, by their index: one, or of Dynamo's planner with `mode = "disagg"` the one that
/// prefills and the one that decodes.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalerUse {
    /// It.
    pub spec: ScalerSpec,
    /// What it scales.
    pub deployments: Vec<usize>,
}

/// Loading on demand, and the deployment of each of its models.
#[derive(Clone, Debug, PartialEq)]
pub struct OnDemandUse {
    /// It.
    pub spec: OnDemandSpec,
    /// What it loads, by index.
    pub deployments: Vec<usize>,
}

/// What controllers know of an engine from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineFacts {
    /// Tokens of a KV block [tokens].
    pub block_tokens: u32,
    /// KV blocks of a replica.
    pub kv_blocks: u64,
    /// Longest prompt and output together [tokens].
    pub sequence_tokens: u32,
    /// Most tokens in one step [tokens].
    pub step_tokens: u32,
    /// Most sequences in one step.
    pub max_seqs: u32,
}

impl EngineFacts {
    /// Tokens that the KV cache of a replica holds [tokens].
    pub fn kv_tokens(self) -> u64 {
        self.kv_blocks.saturating_mul(u64::from(self.block_tokens))
    }
}

/// An autoscaler that is no HPA.
#[derive(Clone, Debug, PartialEq)]
pub enum ScalerSpec {
    /// Application Auto Scaling of a SageMaker endpoint's variant.
    SageMaker(Box<EndpointSpec>),
    /// Dynamo's planner.
    Dynamo(Box<PlannerConfig>),
    /// llm-d's workload-variant autoscaler, whose wish an HPA acts on.
    Wva(WvaVariant),
}

/// A metric of an endpoint in CloudWatch.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub enum Metered {
    /// Requests of the period for each instance in service.
    InvocationsPerInstance,
    /// Requests that have not ended, at the period's end, for each instance in service.
    ConcurrentRequestsPerModel,
    /// Requests held at the gateway for each instance (asynchronous endpoints).
    ApproximateBacklogSizePerInstance,
    /// 1 where requests are held and no instance is in service.
    HasBacklogWithoutCapacity,
    /// Requests of the period that found no instance in service.
    NoCapacityInvocationFailures,
}

impl Metered {
    /// What a predefined metric measures; a copy has an instance of its own here.
    pub fn of(metric: PredefinedMetricType) -> Metered {
        use PredefinedMetricType::*;
        match metric {
            SageMakerVariantInvocationsPerInstance
            | SageMakerInferenceComponentInvocationsPerCopy => Metered::InvocationsPerInstance,
            SageMakerVariantConcurrentRequestsPerModelHighResolution
            | SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution => {
                Metered::ConcurrentRequestsPerModel
            }
        }
    }
}

/// A variant as a scalable target, with its policies.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointSpec {
    /// `MinCapacity` and `MaxCapacity`.
    pub target: ScalableTarget,
    /// The target tracking policy.
    pub target_tracking: Option<TargetTrackingSpec>,
    /// Step scaling policies, with the metrics of their alarms.
    pub step_scaling: Vec<(Metered, StepScalingSpec)>,
    /// Scheduled actions.
    pub scheduled: Option<ScheduledScalingSpec>,
    /// The predictive scaling policy.
    pub predictive: Option<PredictiveSpec>,
    /// From the end of a period of a minute or more until CloudWatch shows its datapoint.
    pub metric_delay: SimDuration,
}

/// High-resolution metrics are published as often as they are taken.
const HIGH_RESOLUTION: SimDuration = SimDuration(10_000_000_000);

impl EndpointSpec {
    /// Delay of a metric of this period.
    pub fn delay_of(&self, period: SimDuration) -> SimDuration {
        match period < SimDuration(60_000_000_000) {
            true => self.metric_delay.min(HIGH_RESOLUTION),
            false => self.metric_delay,
        }
    }
}

/// The one variant of a run for the workload-variant autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub struct WvaVariant {
    /// Its name.
    pub name: String,
    /// Cost of a replica.
    pub cost: f64,
    /// The saturation-scaling ConfigMap.
    pub config: WvaSpec,
    /// How often replicas are scraped.
    pub scrape_interval: SimDuration,
}

/// How a gateway holds requests while no replica is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldSpec {
    /// How long at most, from when a request was sent; then it fails. `None`: as long as its client waits.
    pub timeout: Option<SimDuration>,
    /// How many at most of each service; one more is refused. `None`: any number.
    pub limit: Option<u64>,
}

/// How kube-scheduler scores nodes with room (`KubeSchedulerConfiguration`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerSpec {
    /// `scoringStrategy.type` of NodeResourcesFit.
    pub strategy: ScoringStrategy,
    /// Weight of CPU among its resources.
    pub cpu: i64,
    /// Weight of memory.
    pub memory: i64,
    /// Weight of accelerators.
    pub accelerators: i64,
    /// Weight of the plugin.
    pub weight: i64,
    /// Whether the system's default topology spread constraints hold (`defaultingType: System`).
    pub spreads: bool,
}

impl Default for SchedulerSpec {
    /// Kubernetes' own: `pkg/scheduler/apis/config/v1/{defaults,default_plugins}.go`.
    fn default() -> SchedulerSpec {
        SchedulerSpec {
            strategy: ScoringStrategy::LeastAllocated,
            cpu: 1,
            memory: 1,
            accelerators: 0,
            weight: 1,
            spreads: true,
        }
    }
}

/// Which nodes NodeResourcesFit prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoringStrategy {
    /// Those with the most left.
    LeastAllocated,
    /// Those with the least left.
    MostAllocated,
}

/// A group of like nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSpec {
    /// Its name.
    pub name: String,
    /// Instance type, for reports.
    pub instance: String,
    /// Its availability zone; groups without one are in one zone together.
    pub zone: String,
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
    /// Power of a node's accelerators, all together [W], where known.
    pub watts: Option<Watts>,
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
    /// From the loss of an instance until whoever keeps the group at its size asks for another.
    pub replaced_after: Delay,
}

/// A number, or a share of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// So many.
    Count(usize),
    /// So many percent.
    Percent(usize),
}

impl Portion {
    /// Of `all`, rounded up or down.
    pub fn of(self, all: usize, is_up: bool) -> usize {
        match (self, is_up) {
            (Portion::Count(n), _) => n,
            (Portion::Percent(p), true) => (all * p).div_ceil(100),
            (Portion::Percent(p), false) => all * p / 100,
        }
    }
}

/// How a pod starts on a node of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct StartSpec {
    /// Image pull on a node that does not have the image.
    pub image_pull: Delay,
    /// Image pull on a node that comes with it.
    pub image_cached: Delay,
    /// From the container's start until the weights are in the accelerators.
    pub weights: Weights,
    /// What the first start on a node adds to the next.
    pub first_start: Delay,
    /// Compilation, warm-up, graph capture, engine load: until the server answers.
    pub engine_init: Delay,
    /// How its instances sleep and wake, with fast model actuation.
    pub wake: Option<WakeSpec>,
}

/// llm-d's fast model actuation.
#[derive(Clone, Debug, PartialEq)]
pub struct ActuationSpec {
    /// Limits of the dual-pods controller.
    pub dual_pods: DualPodsSpec,
    /// vLLM's level of sleep: 1 keeps the tensors in the host's memory, 2 drops them.
    pub level: u8,
    /// From when a server-requesting pod is placed until its container runs and the controller knows its accelerators.
    pub requester: Delay,
    /// Memory of a node's host for the tensors of sleepers [bytes]; `None`: all that the node has, where that is known.
    pub host_memory: Option<u64>,
    /// What a sleeper keeps on each of its accelerators [bytes].
    pub sleeping_gpu_bytes: u64,
}

/// How the instances of a deployment sleep and wake on the nodes of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct WakeSpec {
    /// The wake-up.
    pub how: Wake,
    /// From when an instance is told to sleep until its accelerators are free.
    pub sleep: Delay,
    /// Its model tensors [bytes].
    pub tensor_bytes: u64,
    /// Loading the Python modules, which a launcher has done before.
    pub imports: Delay,
}

/// How an instance wakes up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wake {
    /// In a time of its own.
    Time(Delay),
    /// Its tensors are copied; those that wake at once on a node share what that has.
    Copy {
        /// What it takes beside the copy.
        fixed: Delay,
        /// What its accelerators take [bytes/s].
        rate: f64,
        /// What the host gives to all accelerators of a node [bytes/s].
        node: f64,
    },
}

/// How the weights come.
#[derive(Clone, Debug, PartialEq)]
pub enum Weights {
    /// In a time of their own.
    Time(Delay),
    /// Over a way that others share.
    Load(SharedLoad),
}

/// A load of weights ([`hwmodels::startup::weights::LoadPath`]); rates are infinite where nothing limits them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedLoad {
    /// Which storage: loads from one share it.
    pub storage: usize,
    /// Bytes to read.
    pub bytes: f64,
    /// Before the first byte [s].
    pub open_s: f64,
    /// What one load takes at most [bytes/s].
    pub ceiling: f64,
    /// What the pods of a node have together [bytes/s].
    pub node: f64,
    /// What all nodes have together [bytes/s].
    pub shared: f64,
    /// Reading from the page cache what was downloaded before [s].
    pub copy_s: f64,
    /// Standard deviation of the logarithm of the time.
    pub sigma: f64,
}

impl SharedLoad {
    /// Time of a load that is alone [s].
    pub fn alone_s(&self) -> f64 {
        let rate = self.ceiling.min(self.node).min(self.shared);
        self.open_s + self.bytes / rate + self.copy_s
    }
}

/// Power [W].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watts {
    /// With nothing under way.
    pub idle: f64,
    /// With a step under way.
    pub busy: f64,
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
    /// `rollingUpdate.maxSurge`: replicas more than are wanted during a rolling update.
    pub max_surge: Portion,
    /// `rollingUpdate.maxUnavailable`: replicas fewer than are wanted that are ready meanwhile.
    pub max_unavailable: Portion,
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

impl MetricSource {
    /// Whether it is the saturation of the pool, which takes a look at every engine.
    pub fn is_saturation(&self) -> bool {
        let of = |rule: &Rule| match rule {
            Rule::Instant(series) | Rule::Over { series, .. } => *series == Counter::PoolSaturation,
            Rule::Ratio(_) => false,
        };
        matches!(self, MetricSource::Gateway(path) if of(&path.rule))
    }
}

/// What breaks, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultSpec {
    /// What.
    pub kind: FaultKind,
    /// When.
    pub when: When,
    /// The deployment that is hit, by its index: its replicas, or nodes that hold pods of it. `None`: any.
    pub deployment: Option<usize>,
    /// The node groups whose nodes are hit, by their index. `None`: all.
    pub groups: Option<Vec<usize>>,
}

impl FaultSpec {
    /// Whether nodes of this group may be hit.
    pub fn may_hit(&self, group: usize) -> bool {
        (self.groups.as_ref()).is_none_or(|groups| groups.contains(&group))
    }
}

/// When something breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// At this instant.
    At {
        /// The instant.
        at: SimTime,
        /// Which of the replicas or nodes there are then.
        target: Target,
    },
    /// Each replica or node after a time of its own since it came; the cluster as a whole after a time since the last ended.
    After(Delay),
}

/// Which of the replicas or nodes that a fault may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One, drawn.
    Any,
    /// This one, counted in the order in which they came.
    Nth(usize),
    /// All of them.
    All,
}

/// What of a step takes longer on a machine that is not well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slows {
    /// All of it.
    Steps,
    /// What its accelerators send each other.
    Communication,
}

/// Who acts on the notice of a spot node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpotHandler {
    /// Nobody: its pods serve until it is gone, and are replaced once that was noticed.
    None {
        /// Time until its pods are replaced.
        noticed_after: SimDuration,
    },
    /// The kubelet (graceful node shutdown): its containers are told to end, and each pod is replaced when it has ended.
    GracefulShutdown {
        /// Most time that a pod has, its own grace period aside.
        grace: SimDuration,
    },
    /// A controller that evicts its pods, which are replaced at once (aws-node-termination-handler, Karpenter's interruption queue).
    Drain,
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
    /// A spot node is taken away at the end of a notice.
    Spot {
        /// From the notice to the end.
        notice: SimDuration,
        /// What is done with its pods meanwhile.
        handler: SpotHandler,
    },
    /// The engines on a node take longer for each step, those that run and those that start.
    Straggler {
        /// How much longer.
        factor: f64,
        /// For how long; `None`: for as long as the node lives.
        duration: Option<SimDuration>,
        /// What slows it, in words.
        cause: &'static str,
        /// What of a step takes longer.
        slows: Slows,
    },
    /// The gateway does not reach a replica, which is well and stays ready. What it serves fails, and so does what is sent to it meanwhile.
    Partition {
        /// For how long.
        duration: SimDuration,
        /// How long the gateway tries to connect.
        connect_timeout: SimDuration,
    },
    /// The container of a replica crashes, and again so long after each start.
    CrashLoop {
        /// From the start of the container to the crash; seen a second after the start at the earliest.
        after: SimDuration,
        /// For how long.
        duration: SimDuration,
    },
    /// The links that KV goes over between pools carry a fraction of their bandwidth: those of the deployment that is hit, or all of them and what joins
    /// them.
    KvLink {
        /// Share of the bandwidth that is left.
        share: f64,
        /// For how long.
        duration: SimDuration,
    },
    /// Weights are loaded at a fraction of the bandwidth, by everybody.
    SlowStorage {
        /// Share of the bandwidth that is left.
        share: f64,
        /// For how long.
        duration: SimDuration,
    },
    /// Prometheus is down: nothing is scraped, and queries fail.
    MetricsOutage {
        /// For how long.
        duration: SimDuration,
    },
    /// The cloud has no capacity for a group.
    NoCapacity {
        /// For how long.
        duration: SimDuration,
    },
}

impl FaultKind {
    /// Its place among the events of an instant: what hits the cluster as a whole comes first, then nodes, then replicas; of each as written.
    pub(super) fn class(&self) -> u8 {
        match self {
            _ if self.is_of_all() => 2,
            FaultKind::Node { .. } | FaultKind::Spot { .. } | FaultKind::Straggler { .. } => 3,
            _ => 4,
        }
    }

    /// Whether it is of the cluster as a whole, and of no replica or node.
    pub fn is_of_all(&self) -> bool {
        self.lasts().is_some()
    }

    /// How long it lasts, where it is of the cluster as a whole.
    pub fn lasts(&self) -> Option<SimDuration> {
        match self {
            FaultKind::SlowStorage { duration, .. }
            | FaultKind::KvLink { duration, .. }
            | FaultKind::MetricsOutage { duration }
            | FaultKind::NoCapacity { duration, .. } => Some(*duration),
            FaultKind::Replica
            | FaultKind::Node { .. }
            | FaultKind::Spot { .. }
            | FaultKind::Straggler { .. }
            | FaultKind::Partition { .. }
            | FaultKind::CrashLoop { .. } => None,
        }
    }
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
    Replicas {
        /// Which deployment.
        deployment: usize,
        /// Its replicas from then on.
        replicas: i32,
    },
    /// `kubectl patch` of the autoscaler's bounds; `None` leaves one as it is.
    Bounds {
        /// Whose autoscaler.
        deployment: usize,
        /// `minReplicas` or `minReplicaCount`.
        min: Option<i32>,
        /// `maxReplicas` or `maxReplicaCount`.
        max: Option<i32>,
    },
    /// `kubectl rollout restart`: all replicas of this deployment are replaced, a few at a time.
    Restart(usize),
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
