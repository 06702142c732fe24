//! Autoscalers beside the HPA, KEDA and the Cluster Autoscaler as written: SageMaker's, Dynamo's planner, llm-d's, Karpenter. Keys have the names that their
//! own configurations give them.

use hwmodels::units::Secs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hpa_file::{BehaviorFile, HpaFlagsFile};
use crate::control::epp::Signal;
use crate::control::karpenter::spec::ConsolidationPolicy;
use crate::control::karpenter::spec::Reason;
use crate::control::predictive::{BreachBehavior, Mode};
use crate::control::sagemaker::alarm::{ComparisonOperator, TreatMissingData};
use crate::control::sagemaker::step_scaling::AdjustmentType;
use crate::control::sagemaker::target_tracking::PredefinedMetricType;
use crate::control::wva::WvaSpec;
use crate::kube::spec::Metered;

/// A variant of a SageMaker endpoint as a scalable target of Application Auto Scaling. Instances come and go with the capacity, where no node autoscaler
/// does that.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct SageMakerFile {
    /// Fewest instances. Default: 1.
    pub min_capacity: Option<u32>,
    /// Most instances. Needed.
    pub max_capacity: Option<u32>,
    /// From the end of a period until CloudWatch shows its datapoint; of periods below a minute at most 10 s. Default: "1 min".
    pub metric_delay: Option<Secs>,
    /// The target tracking policy.
    pub target_tracking_scaling: Option<TargetTrackingFile>,
    /// Step scaling policies, each with its alarm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_scaling: Vec<StepScalingFile>,
    /// Day and time (UTC) at which the run begins, for scheduled actions. Default: "2026-01-05T00:00:00", a Monday.
    pub starts_at: Option<String>,
    /// Scheduled actions; of several at one instant the last holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scheduled_actions: Vec<ScheduledActionFile>,
    /// The predictive scaling policy (AWS has it for EC2 and ECS).
    pub predictive_scaling: Option<PredictiveFile>,
}

/// `TargetTrackingScalingPolicyConfiguration`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct TargetTrackingFile {
    /// The metric. Needed.
    pub predefined_metric_type: Option<PredefinedMetricType>,
    /// What it is to be. Needed.
    pub target_value: Option<f64>,
    /// [s]. Default: 300.
    pub scale_out_cooldown: Option<u32>,
    /// [s]. Default: 300.
    pub scale_in_cooldown: Option<u32>,
    /// Whether it only scales out. Default: false.
    pub disable_scale_in: Option<bool>,
}

/// `StepScalingPolicyConfiguration` with its alarm.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct StepScalingFile {
    /// The alarm that triggers it. Needed.
    pub alarm: Option<AlarmFile>,
    /// What a step changes. Default: "ChangeInCapacity".
    pub adjustment_type: Option<AdjustmentType>,
    /// Steps by how far the metric is from the threshold; at least one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_adjustments: Vec<StepFile>,
    /// Least change by percent. Default: 0.
    pub min_adjustment_magnitude: Option<u32>,
    /// [s]. Default: 300.
    pub cooldown: Option<u32>,
}

/// A CloudWatch alarm.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct AlarmFile {
    /// What it looks at. Needed.
    pub metric_name: Option<Metered>,
    /// 10, 30 or a multiple of 60 [s]. Default: 60.
    pub period: Option<u32>,
    /// Periods that are looked at. Default: 1.
    pub evaluation_periods: Option<u32>,
    /// Of those, breaching ones that make an alarm. Default: all.
    pub datapoints_to_alarm: Option<u32>,
    /// Needed.
    pub threshold: Option<f64>,
    /// On which side of the threshold it breaches. Default: "GreaterThanOrEqualToThreshold".
    pub comparison_operator: Option<ComparisonOperator>,
    /// What a period without a datapoint counts as. Default: "missing".
    pub treat_missing_data: Option<TreatMissingData>,
}

/// `StepAdjustment`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct StepFile {
    /// Lower end, relative to the threshold. Default: minus infinity.
    pub metric_interval_lower_bound: Option<f64>,
    /// Upper end. Default: infinity.
    pub metric_interval_upper_bound: Option<f64>,
    /// By how much. Needed.
    pub scaling_adjustment: Option<i32>,
}

/// `PutScheduledAction`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct ScheduledActionFile {
    /// Its name. Default: "action-0", "action-1", ...
    pub scheduled_action_name: Option<String>,
    /// `cron(0 8 * * ? *)`, `rate(5 minutes)`, `at(2026-01-05T08:00:00)`, or five fields of cron; UTC. Needed.
    pub schedule: Option<String>,
    /// Fewest instances from then on.
    pub min_capacity: Option<u32>,
    /// Most instances from then on.
    pub max_capacity: Option<u32>,
}

/// `PredictiveScalingPolicyConfiguration`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct PredictiveFile {
    /// Whether forecasts scale. Default: "ForecastOnly".
    pub mode: Option<Mode>,
    /// How long before an hour its capacity is asked for [s]. Default: 300.
    pub scheduling_buffer_time: Option<u32>,
    /// What a forecast above MaxCapacity does. Default: "HonorMaxCapacity".
    pub max_capacity_breach_behavior: Option<BreachBehavior>,
    /// Percent of the forecast that is added beyond MaxCapacity. Default: 0.
    pub max_capacity_buffer: Option<u32>,
    /// Requests a minute that each instance is to have. Needed.
    pub target_value: Option<f64>,
    /// Requests a minute in each hour before the run, oldest first; at least 24. Needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<f64>,
}

/// llm-d's workload-variant autoscaler: it says how many replicas there should be (`wva_desired_replicas`), and an HPA acts on that.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WvaFile {
    /// The saturation-scaling ConfigMap. Default: that of the project.
    pub config: Option<WvaSpec>,
    /// `variantCost`: cost of a replica. Default: 10.
    pub variant_cost: Option<f64>,
    /// `minReplicas` of its HPA. Default: 1.
    pub min_replicas: Option<i32>,
    /// `maxReplicas` of its HPA. Needed.
    pub max_replicas: Option<i32>,
    /// `behavior` of its HPA. Default: as of an HPA.
    pub behavior: Option<BehaviorFile>,
    /// Flags of the controller of its HPA.
    pub flags: Option<HpaFlagsFile>,
}

/// KEDA on the signals of llm-d's endpoint picker: a ScaledObject with the values of its guides.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct EppFile {
    /// Which signals: saturation and running requests, queued and running requests, or their sum. Default: "saturation".
    pub signal: Option<Signal>,
    /// Target of the pool's saturation, for each replica. Default: 0.7.
    pub saturation_threshold: Option<f64>,
    /// Target of running requests, for each replica. Default: 16.
    pub running_requests_threshold: Option<f64>,
    /// Target of queued requests, for each replica. Default: 1.
    pub queue_threshold: Option<f64>,
    /// Fewest replicas. Default: 1.
    pub min_replica_count: Option<i32>,
    /// Most replicas. Default: 10.
    pub max_replica_count: Option<i32>,
    /// Time between two polls [s]. Default: 15.
    pub polling_interval: Option<u32>,
    /// Time after the last activity before the way to 0 [s]. Default: 300.
    pub cooldown_period: Option<u32>,
    /// Window of both directions: as long as a replica takes to start [s]. Default: 300.
    pub stabilization_window_seconds: Option<u32>,
    /// Flags of the controller of its HPA.
    pub flags: Option<HpaFlagsFile>,
}

/// Karpenter, in place of the Cluster Autoscaler: a NodePool whose instance types are the node groups. `max` of a group is what the account may have of it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KarpenterFile {
    /// `spec.limits`.
    pub limits: Option<LimitsFile>,
    /// `spec.disruption`.
    pub disruption: Option<DisruptionFile>,
    /// `BATCH_IDLE_DURATION`: a batch of pending pods ends so long after its last. Default: "1 s".
    #[serde(rename = "BATCH_IDLE_DURATION")]
    pub batch_idle_duration: Option<Secs>,
    /// `BATCH_MAX_DURATION`: and so long after its first at the latest. Default: "10 s".
    #[serde(rename = "BATCH_MAX_DURATION")]
    pub batch_max_duration: Option<Secs>,
}

/// `spec.limits`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsFile {
    /// Most nodes. Default: none.
    pub nodes: Option<u32>,
}

/// `spec.disruption`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DisruptionFile {
    /// Which nodes may be taken away. Default: "WhenEmptyOrUnderutilized".
    pub consolidation_policy: Option<ConsolidationPolicy>,
    /// Time without a pod that came or went, or "Never". Default: "0 s".
    pub consolidate_after: Option<String>,
    /// How many nodes may go at once; the tightest holds. Default: 10 %.
    pub budgets: Option<Vec<BudgetFile>>,
}

/// One of `budgets`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetFile {
    /// A number such as "5", or a share such as "10%".
    pub nodes: String,
    /// Reasons that it is for. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
}
