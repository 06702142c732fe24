//! `[autoscaler.hpa]` as written: the manifest of a HorizontalPodAutoscaler and the flags of its controller.

use hwmodels::units::Secs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values_file::{QuantityFile, RuleFile};

/// A HorizontalPodAutoscaler.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HpaFile {
    /// Fewest replicas. Default: 1.
    #[serde(rename = "minReplicas")]
    pub min_replicas: Option<i32>,
    /// Most replicas. Needed.
    #[serde(rename = "maxReplicas")]
    pub max_replicas: Option<i32>,
    /// What it looks at; at least one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<HpaMetricFile>,
    /// How fast it may scale. Default: highest recommendation of 5 minutes, at most twice the replicas or 4 in one reconcile.
    pub behavior: Option<BehaviorFile>,
    /// Flags of kube-controller-manager.
    pub flags: Option<HpaFlagsFile>,
}

/// Flags of kube-controller-manager, `--horizontal-pod-autoscaler-...`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HpaFlagsFile {
    /// Time between two reconciles. Default: "15 s".
    pub sync_period: Option<Secs>,
    /// Deviation of the ratio from 1 that changes nothing. Default: 0.1.
    pub tolerance: Option<f64>,
    /// Window of scale-down where `behavior` sets none. Default: "5 min".
    pub downscale_stabilization: Option<Secs>,
}

/// One entry of an HPA's `metrics`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HpaMetricFile {
    /// Where it comes from. Default: "Pods".
    #[serde(rename = "type")]
    pub kind: Option<HpaMetricType>,
    /// Its name as the exporter or a recording rule has it, e.g. "vllm:num_requests_waiting". Needed.
    pub metric: Option<String>,
    /// Target for the mean over the pods. This or `value` is needed.
    #[serde(rename = "averageValue")]
    pub average_value: Option<QuantityFile>,
    /// Target for the whole (Object, External).
    pub value: Option<QuantityFile>,
    /// Function of a recording rule over the series. Default: none for gauges, rate for counters.
    pub rule: Option<RuleFile>,
    /// Range of that function. Default: "1 min".
    pub window: Option<Secs>,
}

/// Where a metric of an HPA comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HpaMetricType {
    /// A value of each pod; takes averageValue.
    #[default]
    Pods,
    /// A value of one Kubernetes object.
    Object,
    /// A value from outside: the sum over all series.
    External,
}

/// `behavior`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BehaviorFile {
    /// Upwards. Default: no window; 4 pods or 100 percent in 15 s, whichever is more.
    #[serde(rename = "scaleUp")]
    pub scale_up: Option<ScalingRulesFile>,
    /// Downwards. Default: the flag's window; 100 percent in 15 s.
    #[serde(rename = "scaleDown")]
    pub scale_down: Option<ScalingRulesFile>,
}

/// `behavior.scaleUp` or `behavior.scaleDown`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScalingRulesFile {
    /// Window over which the most cautious recommendation holds [s]. Default: 0 upwards, the flag's downwards.
    #[serde(rename = "stabilizationWindowSeconds")]
    pub stabilization_window_seconds: Option<u32>,
    /// Which of several policies holds. Default: "Max".
    #[serde(rename = "selectPolicy")]
    pub select_policy: Option<SelectPolicyFile>,
    /// How much may change in what time. Default: those of the direction.
    pub policies: Option<Vec<ScalingPolicyFile>>,
    /// Deviation of the ratio from 1 that changes nothing in this direction. Default: the flag's.
    pub tolerance: Option<f64>,
}

/// `selectPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectPolicyFile {
    /// The largest change.
    Max,
    /// The smallest change.
    Min,
    /// No change in this direction.
    Disabled,
}

/// One of `policies`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScalingPolicyFile {
    /// What is counted.
    #[serde(rename = "type")]
    pub kind: PolicyTypeFile,
    /// How many pods or percent.
    pub value: i32,
    /// In what time [s].
    #[serde(rename = "periodSeconds")]
    pub period_seconds: u32,
}

/// What a policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyTypeFile {
    /// Pods.
    Pods,
    /// Percent of the replicas.
    Percent,
}
