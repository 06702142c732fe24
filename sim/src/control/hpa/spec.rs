//! What a HorizontalPodAutoscaler object and its controller are configured with (4.1, 4.8), and what the API server refuses.
//!
//! Sources: kubernetes `pkg/apis/autoscaling/v2/defaults.go`, `pkg/apis/autoscaling/validation/validation.go`,
//! `pkg/controller/podautoscaler/config/v1alpha1/defaults.go`.

use crate::kernel::time::SimDuration;

const fn secs(n: u64) -> SimDuration {
    SimDuration(n * 1_000_000_000)
}

/// Flags of kube-controller-manager, `--horizontal-pod-autoscaler-...` (4.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// `sync-period`: time between two reconciles of one HPA.
    pub sync_period: SimDuration,
    /// `tolerance`: deviation of the ratio from 1 that changes nothing.
    pub tolerance: f64,
    /// `downscale-stabilization`: window of scale-down where the object sets none.
    pub downscale_stabilization: SimDuration,
    /// `cpu-initialization-period`: time after a pod's start in which its CPU samples are taken with care.
    pub cpu_initialization_period: SimDuration,
    /// `initial-readiness-delay`: a pod that became unready within this time of its start was never ready.
    pub initial_readiness_delay: SimDuration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sync_period: secs(15),
            tolerance: 0.1,
            downscale_stabilization: secs(300),
            cpu_initialization_period: secs(300),
            initial_readiness_delay: secs(30),
        }
    }
}

/// The range of ratios in which nothing changes: `1 - down <= ratio <= 1 + up`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Below 1.
    pub down: f64,
    /// Above 1.
    pub up: f64,
}

impl Tolerance {
    /// The same on both sides.
    pub fn both(tolerance: f64) -> Self {
        Tolerance {
            down: tolerance,
            up: tolerance,
        }
    }

    /// Whether a ratio changes nothing; both ends belong to the range, NaN does not.
    pub fn holds(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// Where a metric comes from (`spec.metrics[].type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricSource {
    /// Usage of all containers of the target's pods, from metrics-server.
    Resource,
    /// Usage of one container of each pod.
    ContainerResource {
        /// Its name.
        container: String,
    },
    /// A value of each pod, from the custom metrics API.
    Pods,
    /// A value of one Kubernetes object, from the custom metrics API.
    Object,
    /// A value that belongs to nothing in the cluster, from the external metrics API.
    External,
}

/// What a metric is held against (`spec.metrics[].*.target`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricTarget {
    /// `averageUtilization`: percent of the pods' requests.
    Utilization(i32),
    /// `averageValue`: milli-units a pod.
    AverageValue(i64),
    /// `value`: milli-units altogether.
    Value(i64),
}

/// One entry of `spec.metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricSpec {
    /// Resource or metric name; `cpu` has rules of its own (4.2).
    pub name: String,
    /// Where it comes from.
    pub source: MetricSource,
    /// What it is held against.
    pub target: MetricTarget,
}

/// `HPAScalingPolicy.type` with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAmount {
    /// Replicas that may come or go in a period.
    Pods(i32),
    /// The same, in percent of the replicas at the start of the period.
    Percent(i32),
}

/// One entry of `policies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingPolicy {
    /// How much.
    pub amount: PolicyAmount,
    /// `periodSeconds`: in what time.
    pub period: SimDuration,
}

impl ScalingPolicy {
    /// `Pods` policy: `value` replicas in `period_seconds`.
    pub fn pods(value: i32, period_seconds: u32) -> Self {
        ScalingPolicy {
            amount: PolicyAmount::Pods(value),
            period: secs(period_seconds.into()),
        }
    }

    /// `Percent` policy: `value` percent in `period_seconds`.
    pub fn percent(value: i32, period_seconds: u32) -> Self {
        ScalingPolicy {
            amount: PolicyAmount::Percent(value),
            period: secs(period_seconds.into()),
        }
    }
}

/// `selectPolicy`: which of several policies holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelectPolicy {
    /// The one that allows the largest change.
    #[default]
    Max,
    /// The one that allows the smallest change.
    Min,
    /// None: no scaling in this direction.
    Disabled,
}

/// `HPAScalingRules`: `behavior.scaleUp` or `behavior.scaleDown`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingRules {
    /// `stabilizationWindowSeconds`; unset takes [`Settings::downscale_stabilization`] for scale-down, none for scale-up.
    pub stabilization_window: Option<SimDuration>,
    /// `selectPolicy`.
    pub select_policy: SelectPolicy,
    /// `policies`.
    pub policies: Vec<ScalingPolicy>,
    /// `tolerance` (feature HPAConfigurableTolerance); unset takes [`Settings::tolerance`].
    pub tolerance: Option<f64>,
}

impl ScalingRules {
    /// Defaults of `scaleUp`: no window; 4 pods or 100 percent in 15 s, whichever is more.
    pub fn scale_up() -> Self {
        ScalingRules {
            stabilization_window: Some(SimDuration::ZERO),
            select_policy: SelectPolicy::Max,
            policies: vec![ScalingPolicy::pods(4, 15), ScalingPolicy::percent(100, 15)],
            tolerance: None,
        }
    }

    /// Defaults of `scaleDown`: the controller's window; 100 percent in 15 s.
    pub fn scale_down() -> Self {
        ScalingRules {
            stabilization_window: None,
            select_policy: SelectPolicy::Max,
            policies: vec![ScalingPolicy::percent(100, 15)],
            tolerance: None,
        }
    }

    /// The longest `periodSeconds` of its policies.
    pub(crate) fn longest_period(&self) -> SimDuration {
        self.policies
            .iter()
            .map(|p| p.period)
            .max()
            .unwrap_or_default()
    }

    fn check(&self, at: &str) -> Result<(), SpecError> {
        if self.stabilization_window.is_some_and(|w| w > secs(3600)) {
            return Err(SpecError(format!(
                "{at}.stabilizationWindowSeconds: must be at most 3600"
            )));
        }
        if self.policies.is_empty() {
            return Err(SpecError(format!(
                "{at}.policies: must hold at least one policy"
            )));
        }
        for (i, policy) in self.policies.iter().enumerate() {
            let (PolicyAmount::Pods(value) | PolicyAmount::Percent(value)) = policy.amount;
            if value <= 0 {
                return Err(SpecError(format!(
                    "{at}.policies[{i}].value: must be greater than 0, got {value}"
                )));
            }
            if policy.period < secs(1) || policy.period > secs(1800) {
                return Err(SpecError(format!(
                    "{at}.policies[{i}].periodSeconds: must be from 1 to 1800, got {}",
                    policy.period.0 as f64 / 1e9
                )));
            }
        }
        match self.tolerance {
            Some(t) if !(t >= 0.0 && t.is_finite()) => Err(SpecError(format!(
                "{at}.tolerance: must be at least 0, got {t}"
            ))),
            _ => Ok(()),
        }
    }
}

/// `spec.behavior` with the defaults of its unset parts (4.8).
#[derive(Clone, Debug, PartialEq)]
pub struct Behavior {
    /// `scaleUp`.
    pub scale_up: ScalingRules,
    /// `scaleDown`.
    pub scale_down: ScalingRules,
}

impl Default for Behavior {
    fn default() -> Self {
        Behavior {
            scale_up: ScalingRules::scale_up(),
            scale_down: ScalingRules::scale_down(),
        }
    }
}

/// `HorizontalPodAutoscalerSpec`, without the reference to its target.
#[derive(Clone, Debug, PartialEq)]
pub struct HpaSpec {
    /// `minReplicas`; unset is 1. 0 is allowed beside an Object or External metric (feature HPAScaleToZero).
    pub min_replicas: Option<i32>,
    /// `maxReplicas`.
    pub max_replicas: i32,
    /// `metrics`.
    pub metrics: Vec<MetricSpec>,
    /// `behavior`; without it the rules of 4.7 hold.
    pub behavior: Option<Behavior>,
}

/// What the API server would refuse: the field and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl HpaSpec {
    /// `minReplicas`, or its default.
    pub fn min(&self) -> i32 {
        self.min_replicas.unwrap_or(1)
    }

    /// The tolerance of this object: its own in a direction where it sets one.
    pub fn tolerance(&self, settings: &Settings) -> Tolerance {
        let own = |rules: fn(&Behavior) -> &ScalingRules| {
            self.behavior.as_ref().and_then(|b| rules(b).tolerance)
        };
        Tolerance {
            down: own(|b| &b.scale_down).unwrap_or(settings.tolerance),
            up: own(|b| &b.scale_up).unwrap_or(settings.tolerance),
        }
    }

    /// Checks what the API server checks.
    ///
    /// # Errors
    /// The first field that is wrong, by its real name, and what would be right.
    pub fn check(&self) -> Result<(), SpecError> {
        let min = self.min();
        let scales_to_zero =
            |m: &MetricSpec| matches!(m.source, MetricSource::Object | MetricSource::External);
        if min < 0 || (min == 0 && !self.metrics.iter().any(scales_to_zero)) {
            return Err(SpecError(format!(
                "minReplicas: must be at least 1, or 0 beside a metric of type Object or External; got {min}"
            )));
        }
        if self.max_replicas < 1 || self.max_replicas < min {
            return Err(SpecError(format!(
                "maxReplicas: must be at least 1 and at least minReplicas ({min}), got {}",
                self.max_replicas
            )));
        }
        if self.metrics.is_empty() {
            return Err(SpecError(
                "metrics: must hold at least one metric".to_owned(),
            ));
        }
        for (i, metric) in self.metrics.iter().enumerate() {
            metric.check(&format!("metrics[{i}]"))?;
        }
        match &self.behavior {
            Some(behavior) => {
                behavior.scale_up.check("behavior.scaleUp")?;
                behavior.scale_down.check("behavior.scaleDown")
            }
            None => Ok(()),
        }
    }
}

impl MetricSpec {
    fn check(&self, at: &str) -> Result<(), SpecError> {
        use MetricSource::{ContainerResource, External, Object, Pods, Resource};
        let allowed = match (&self.source, self.target) {
            (Resource | ContainerResource { .. }, MetricTarget::Value(_)) => {
                "averageUtilization or averageValue"
            }
            (Pods, MetricTarget::Value(_) | MetricTarget::Utilization(_)) => "averageValue",
            (Object | External, MetricTarget::Utilization(_)) => "value or averageValue",
            _ => "",
        };
        if !allowed.is_empty() {
            return Err(SpecError(format!(
                "{at}.target: a metric of this type takes {allowed}"
            )));
        }
        let target = match self.target {
            MetricTarget::Utilization(percent) => percent.into(),
            MetricTarget::AverageValue(milli) | MetricTarget::Value(milli) => milli,
        };
        if target <= 0 {
            return Err(SpecError(format!(
                "{at}.target: must be greater than 0, got {target}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(target: MetricTarget, source: MetricSource) -> HpaSpec {
        HpaSpec {
            min_replicas: None,
            max_replicas: 4,
            metrics: vec![MetricSpec {
                name: "queue".to_owned(),
                source,
                target,
            }],
            behavior: None,
        }
    }

    #[test]
    fn defaults_are_those_of_the_flags() {
        let s = Settings::default();
        assert_eq!((s.sync_period, s.tolerance), (secs(15), 0.1));
        assert_eq!(s.downscale_stabilization, secs(300));
        assert_eq!(
            (s.cpu_initialization_period, s.initial_readiness_delay),
            (secs(300), secs(30))
        );
        let b = Behavior::default();
        assert_eq!(b.scale_up.stabilization_window, Some(SimDuration::ZERO));
        assert_eq!(b.scale_down.stabilization_window, None);
    }

    #[test]
    fn both_ends_of_the_tolerance_belong_to_it() {
        let t = Tolerance {
            down: 0.25,
            up: 0.5,
        };
        for (ratio, holds) in [
            (0.75, true),
            (0.7499, false),
            (1.5, true),
            (1.5001, false),
            (f64::NAN, false),
        ] {
            assert_eq!(t.holds(ratio), holds, "{ratio}");
        }
    }

    #[test]
    fn a_direction_can_have_its_own_tolerance() {
        let mut spec = queue(MetricTarget::AverageValue(1000), MetricSource::Pods);
        assert_eq!(spec.tolerance(&Settings::default()), Tolerance::both(0.1));
        let mut behavior = Behavior::default();
        behavior.scale_up.tolerance = Some(0.0);
        spec.behavior = Some(behavior);
        assert_eq!(
            spec.tolerance(&Settings::default()),
            Tolerance { down: 0.1, up: 0.0 }
        );
    }

    #[test]
    fn what_the_api_server_refuses_is_refused() {
        let pods = queue(MetricTarget::AverageValue(1000), MetricSource::Pods);
        assert_eq!(pods.check(), Ok(()));
        let refused = |change: &dyn Fn(&mut HpaSpec), field: &str| {
            let mut spec = pods.clone();
            change(&mut spec);
            let message = spec.check().expect_err(field).to_string();
            assert!(message.starts_with(field), "{message}");
        };
        refused(&|s| s.min_replicas = Some(0), "minReplicas");
        refused(&|s| s.min_replicas = Some(5), "maxReplicas");
        refused(&|s| s.max_replicas = 0, "maxReplicas");
        refused(&|s| s.metrics.clear(), "metrics");
        refused(
            &|s| s.metrics[0].target = MetricTarget::Value(1),
            "metrics[0].target",
        );
        refused(
            &|s| s.metrics[0].target = MetricTarget::AverageValue(0),
            "metrics[0].target",
        );
        let behaved = |change: fn(&mut Behavior)| {
            move |s: &mut HpaSpec| {
                let mut behavior = Behavior::default();
                change(&mut behavior);
                s.behavior = Some(behavior);
            }
        };
        refused(
            &behaved(|b| b.scale_up.policies.clear()),
            "behavior.scaleUp.policies",
        );
        refused(
            &behaved(|b| b.scale_down.policies[0].period = secs(1801)),
            "behavior.scaleDown.policies[0].periodSeconds",
        );
        refused(
            &behaved(|b| b.scale_up.policies[0].amount = PolicyAmount::Pods(0)),
            "behavior.scaleUp.policies[0].value",
        );
        refused(
            &behaved(|b| b.scale_up.stabilization_window = Some(secs(3601))),
            "behavior.scaleUp.stabilizationWindowSeconds",
        );
        refused(
            &behaved(|b| b.scale_down.tolerance = Some(-0.1)),
            "behavior.scaleDown.tolerance",
        );
        let mut to_zero = queue(MetricTarget::Value(1000), MetricSource::External);
        to_zero.min_replicas = Some(0);
        assert_eq!(to_zero.check(), Ok(()));
    }
}
