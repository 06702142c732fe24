//! `[autoscaler]` beyond the HPA: SageMaker's policies, Dynamo's planner, llm-d's autoscalers, Karpenter, from their own words to what a run drives.

use hwmodels::units::{Ratio, Secs};

use super::Scenario;
use super::behavior::{behavior, fill_flags};
use super::cluster_file::{AutoscalerFile, MetricPathFile};
use super::error::ScenarioError;
use super::numbers::secs;
use super::scalers_file::{
    AlarmFile, EppFile, KarpenterFile, PredictiveFile, SageMakerFile, StepScalingFile,
    TargetTrackingFile, WvaFile,
};
use crate::cluster::pools::Role;
use crate::control::dynamo::config::{Mode, PlannerConfig};
use crate::control::epp::{EppScalerSpec, Signal};
use crate::control::hpa::spec::{HpaSpec, MetricSource as HpaSource, MetricSpec, MetricTarget};
use crate::control::karpenter::spec::{Budget, BudgetNodes, CapacityType, KarpenterSpec, Offering};
use crate::control::predictive::{PredictiveScaling, PredictiveSpec};
use crate::control::sagemaker::ScalableTarget;
use crate::control::sagemaker::alarm::{AlarmSpec, ComparisonOperator};
use crate::control::sagemaker::step_scaling::{
    AdjustmentType, StepAdjustment, StepScaling, StepScalingSpec,
};
use crate::control::sagemaker::target_tracking::{TargetTracking, TargetTrackingSpec};
use crate::control::scheduled::{ScheduledAction, ScheduledScaling, ScheduledScalingSpec};
use crate::control::wva::Wva;
use crate::kernel::time::{SimDuration, SimTime};
use crate::kube::spec::{
    ClusterSpec, DeploymentSpec, EndpointSpec, Metered, ScalerSpec, WvaVariant,
};

type Result<T> = std::result::Result<T, ScenarioError>;

/// Series of the endpoint picker and of the variant autoscaler.
const SATURATION: &str = "llm_d_epp_flow_control_pool_saturation";
const RUNNING: &str = "llm_d_epp_request_running";
const QUEUED: &str = "llm_d_epp_flow_control_queue_size";
const INFLIGHT: &str = "llm_d_epp_inflight";
const WISHED: &str = "wva_desired_replicas";

/// First instant of a run where none is given: a Monday.
const MONDAY: &str = "2026-01-05T00:00:00";
/// Default cool-downs of Application Auto Scaling [s].
const COOLDOWN: u32 = 300;
/// `SchedulingBufferTime` [s].
const BUFFER: u32 = 300;
/// `variantCost`.
const VARIANT_COST: f64 = 10.0;
/// How often llm-d's Prometheus scrapes replicas [s].
const WVA_SCRAPE: SimDuration = SimDuration(15_000_000_000);

fn whole(value: u32) -> Secs {
    secs(f64::from(value))
}

/// Fills in defaults.
pub(super) fn fill(file: &mut AutoscalerFile) {
    if let Some(s) = &mut file.sagemaker {
        fill_sagemaker(s);
    }
    if let Some(w) = &mut file.wva {
        w.config.get_or_insert_default();
        w.variant_cost.get_or_insert(VARIANT_COST);
        w.min_replicas.get_or_insert(1);
        fill_flags(w.flags.get_or_insert_default());
    }
    if let Some(e) = &mut file.epp {
        let d = EppScalerSpec::default();
        let of = |s: Secs| s.secs() as u32;
        e.signal.get_or_insert(d.signal);
        e.saturation_threshold.get_or_insert(d.saturation_threshold);
        e.running_requests_threshold
            .get_or_insert(d.running_requests_threshold);
        e.queue_threshold.get_or_insert(d.queue_threshold);
        e.min_replica_count.get_or_insert(d.min_replica_count);
        e.max_replica_count.get_or_insert(d.max_replica_count);
        e.polling_interval.get_or_insert(of(d.polling_interval));
        e.cooldown_period.get_or_insert(of(d.cooldown_period));
        e.stabilization_window_seconds
            .get_or_insert(of(d.stabilization_window));
        fill_flags(e.flags.get_or_insert_default());
    }
    if let Some(k) = &mut file.karpenter {
        k.batch_idle_duration.get_or_insert(secs(1.0));
        k.batch_max_duration.get_or_insert(secs(10.0));
        let d = k.disruption.get_or_insert_default();
        d.consolidation_policy.get_or_insert_default();
        d.consolidate_after.get_or_insert_with(|| "0 s".into());
    }
}

fn fill_sagemaker(s: &mut SageMakerFile) {
    s.min_capacity.get_or_insert(1);
    s.metric_delay.get_or_insert(secs(60.0));
    if !s.scheduled_actions.is_empty() {
        s.starts_at.get_or_insert_with(|| MONDAY.into());
    }
    if let Some(t) = &mut s.target_tracking_scaling {
        t.scale_out_cooldown.get_or_insert(COOLDOWN);
        t.scale_in_cooldown.get_or_insert(COOLDOWN);
        t.disable_scale_in.get_or_insert(false);
    }
    for step in &mut s.step_scaling {
        step.adjustment_type
            .get_or_insert(AdjustmentType::ChangeInCapacity);
        step.cooldown.get_or_insert(COOLDOWN);
        step.min_adjustment_magnitude.get_or_insert(0);
        if let Some(a) = &mut step.alarm {
            a.period.get_or_insert(60);
            let periods = *a.evaluation_periods.get_or_insert(1);
            a.datapoints_to_alarm.get_or_insert(periods);
            a.comparison_operator
                .get_or_insert(ComparisonOperator::GreaterThanOrEqualToThreshold);
            a.treat_missing_data.get_or_insert_default();
        }
    }
    if let Some(p) = &mut s.predictive_scaling {
        p.mode.get_or_insert_default();
        p.scheduling_buffer_time.get_or_insert(BUFFER);
        p.max_capacity_breach_behavior.get_or_insert_default();
        p.max_capacity_buffer.get_or_insert(0);
    }
}

impl Scenario {
    /// The scaler that is no HPA; what it has of an HPA's goes into `spec`.
    pub(super) fn scalers(
        &self,
        file: &AutoscalerFile,
        role: Role,
        spec: &mut DeploymentSpec,
    ) -> Result<Option<ScalerSpec>> {
        let path = file.metrics.clone().unwrap_or_default();
        self.one_scaler(file)?;
        if let Some(e) = &file.epp {
            self.epp(e, &path, spec)?;
        }
        if let Some(s) = &file.sagemaker {
            return Ok(Some(ScalerSpec::SageMaker(Box::new(self.sagemaker(s)?))));
        }
        if let Some(d) = &file.dynamo {
            return Ok(Some(ScalerSpec::Dynamo(Box::new(
                self.dynamo_of_one(d, role)?,
            ))));
        }
        match &file.wva {
            Some(w) => self.wva(w, &path, spec).map(Some),
            None => Ok(None),
        }
    }

    /// Two scalers of the same replicas would fight.
    fn one_scaler(&self, file: &AutoscalerFile) -> Result<()> {
        let given: Vec<&str> = [
            ("hpa", file.hpa.is_some()),
            ("keda", file.keda.is_some()),
            ("epp", file.epp.is_some()),
            ("wva", file.wva.is_some()),
            ("sagemaker", file.sagemaker.is_some()),
            ("dynamo", file.dynamo.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, is)| is.then_some(name))
        .collect();
        match given[..] {
            [first, second, ..] => self.wrong(
                &format!("autoscaler.{second}"),
                format!(
                    "would fight with [autoscaler.{first}] over the same replicas; give one of them"
                ),
            ),
            _ => Ok(()),
        }
    }

    fn sagemaker(&self, f: &SageMakerFile) -> Result<EndpointSpec> {
        const AT: &str = "autoscaler.sagemaker";
        let Some(max_capacity) = f.max_capacity else {
            return self.wrong(AT, "`MaxCapacity` is missing; write e.g. MaxCapacity = 4");
        };
        let target = ScalableTarget {
            min_capacity: f.min_capacity.unwrap_or(1),
            max_capacity,
        };
        target
            .check()
            .map_err(|e| self.places.error(&format!("{AT}.MinCapacity"), e))?;
        let tracking = match &f.target_tracking_scaling {
            Some(t) => Some(self.tracking(t, target)?),
            None => None,
        };
        let mut steps = Vec::new();
        for (i, s) in f.step_scaling.iter().enumerate() {
            steps.push(self.steps(s, target, &format!("{AT}.StepScaling[{i}]"))?);
        }
        let scheduled = self.scheduled(f, target)?;
        let predictive = match &f.predictive_scaling {
            Some(p) => Some(self.predictive(p)?),
            None => None,
        };
        if tracking.is_none() && steps.is_empty() && scheduled.is_none() && predictive.is_none() {
            return self.wrong(
                AT,
                "has no policy: write TargetTrackingScaling, StepScaling, ScheduledActions or PredictiveScaling",
            );
        }
        Ok(EndpointSpec {
            target,
            target_tracking: tracking,
            step_scaling: steps,
            scheduled,
            predictive,
            metric_delay: SimDuration::from_secs(f.metric_delay.unwrap_or_default().secs()),
        })
    }

    fn tracking(
        &self,
        f: &TargetTrackingFile,
        target: ScalableTarget,
    ) -> Result<TargetTrackingSpec> {
        const AT: &str = "autoscaler.sagemaker.TargetTrackingScaling";
        let Some(metric) = f.predefined_metric_type else {
            let message = "`PredefinedMetricType` is missing; write e.g. \
                           PredefinedMetricType = \"SageMakerVariantInvocationsPerInstance\"";
            return self.wrong(AT, message);
        };
        let Some(target_value) = f.target_value else {
            return self.wrong(AT, "`TargetValue` is missing; write e.g. TargetValue = 60");
        };
        let spec = TargetTrackingSpec {
            target,
            metric,
            target_value,
            scale_out_cooldown: whole(f.scale_out_cooldown.unwrap_or(COOLDOWN)),
            scale_in_cooldown: whole(f.scale_in_cooldown.unwrap_or(COOLDOWN)),
            disable_scale_in: f.disable_scale_in.unwrap_or(false),
        };
        TargetTracking::new(spec).map_err(|e| self.refused(AT, &e))?;
        Ok(spec)
    }

    fn steps(
        &self,
        f: &StepScalingFile,
        target: ScalableTarget,
        at: &str,
    ) -> Result<(Metered, StepScalingSpec)> {
        let Some(alarm) = &f.alarm else {
            return self.wrong(
                at,
                "`Alarm` is missing; write e.g. Alarm = { MetricName = \"ConcurrentRequestsPerModel\", Threshold = 8 }",
            );
        };
        let (metric, alarm) = self.alarm(alarm, &format!("{at}.Alarm"))?;
        let mut step_adjustments = Vec::new();
        for (i, s) in f.step_adjustments.iter().enumerate() {
            let Some(scaling_adjustment) = s.scaling_adjustment else {
                let message = "`ScalingAdjustment` is missing; write e.g. ScalingAdjustment = 1";
                return self.wrong(&format!("{at}.StepAdjustments[{i}]"), message);
            };
            step_adjustments.push(StepAdjustment {
                lower_bound: s.metric_interval_lower_bound,
                upper_bound: s.metric_interval_upper_bound,
                scaling_adjustment,
            });
        }
        let spec = StepScalingSpec {
            target,
            alarm,
            adjustment_type: f
                .adjustment_type
                .unwrap_or(AdjustmentType::ChangeInCapacity),
            step_adjustments,
            min_adjustment_magnitude: f.min_adjustment_magnitude.unwrap_or(0),
            cooldown: whole(f.cooldown.unwrap_or(COOLDOWN)),
        };
        alarm
            .check()
            .map_err(|e| self.refused(&format!("{at}.Alarm"), &e))?;
        StepScaling::new(spec.clone()).map_err(|e| self.refused(at, &e))?;
        Ok((metric, spec))
    }

    fn alarm(&self, f: &AlarmFile, at: &str) -> Result<(Metered, AlarmSpec)> {
        let Some(metric) = f.metric_name else {
            let message =
                "`MetricName` is missing; write e.g. MetricName = \"ConcurrentRequestsPerModel\"";
            return self.wrong(at, message);
        };
        let Some(threshold) = f.threshold else {
            return self.wrong(at, "`Threshold` is missing; write e.g. Threshold = 8");
        };
        let periods = f.evaluation_periods.unwrap_or(1);
        let alarm = AlarmSpec {
            period: whole(f.period.unwrap_or(60)),
            evaluation_periods: periods,
            datapoints_to_alarm: f.datapoints_to_alarm.unwrap_or(periods),
            threshold,
            comparison_operator: f
                .comparison_operator
                .unwrap_or(ComparisonOperator::GreaterThanOrEqualToThreshold),
            treat_missing_data: f.treat_missing_data.unwrap_or_default(),
        };
        Ok((metric, alarm))
    }

    fn scheduled(
        &self,
        f: &SageMakerFile,
        target: ScalableTarget,
    ) -> Result<Option<ScheduledScalingSpec>> {
        const AT: &str = "autoscaler.sagemaker";
        if f.scheduled_actions.is_empty() {
            return Ok(None);
        }
        let mut spec = ScheduledScalingSpec {
            starts_at: f.starts_at.clone().unwrap_or_else(|| MONDAY.into()),
            min_capacity: target.min_capacity,
            max_capacity: target.max_capacity,
            actions: Vec::new(),
        };
        ScheduledScaling::new(spec.clone())
            .map_err(|e| self.places.error(&format!("{AT}.StartsAt"), e))?;
        for (i, a) in f.scheduled_actions.iter().enumerate() {
            let at = format!("{AT}.ScheduledActions[{i}]");
            let Some(schedule) = &a.schedule else {
                let message = "`Schedule` is missing; write e.g. Schedule = \"cron(0 8 * * ? *)\"";
                return self.wrong(&at, message);
            };
            let name = a.scheduled_action_name.clone();
            spec.actions.push(ScheduledAction {
                name: name.unwrap_or_else(|| format!("action-{i}")),
                schedule: schedule.clone(),
                min_capacity: a.min_capacity,
                max_capacity: a.max_capacity,
            });
            ScheduledScaling::new(spec.clone()).map_err(|e| self.places.error(&at, e))?;
        }
        Ok(Some(spec))
    }

    fn predictive(&self, f: &PredictiveFile) -> Result<PredictiveSpec> {
        const AT: &str = "autoscaler.sagemaker.PredictiveScaling";
        let Some(target_value) = f.target_value else {
            return self.wrong(AT, "`TargetValue` is missing; write e.g. TargetValue = 60");
        };
        let buffer = f.scheduling_buffer_time.unwrap_or(BUFFER);
        let spec = PredictiveSpec {
            mode: f.mode.unwrap_or_default(),
            scheduling_buffer: SimDuration::from_secs(f64::from(buffer)),
            breach: f.max_capacity_breach_behavior.unwrap_or_default(),
            max_capacity_buffer: f.max_capacity_buffer.unwrap_or(0),
            target_value,
            history: f.history.clone(),
        };
        if let Some(i) = f.history.iter().position(|r| !(r.is_finite() && *r >= 0.0)) {
            let message = format!("must be at least 0, got {}", f.history[i]);
            return self.wrong(&format!("{AT}.History[{i}]"), message);
        }
        PredictiveScaling::new(spec.clone()).map_err(|e| self.refused(AT, &e))?;
        Ok(spec)
    }

    /// The planner of replicas that are alike.
    fn dynamo_of_one(&self, config: &PlannerConfig, role: Role) -> Result<PlannerConfig> {
        let (mode, what) = match role {
            Role::Both => (
                Mode::Agg,
                "do both prefill and decode; write mode = \"agg\"",
            ),
            Role::Prefill => (Mode::Prefill, "prefill; write mode = \"prefill\""),
            Role::Decode => (Mode::Decode, "decode; write mode = \"decode\""),
        };
        if config.mode != mode {
            let message = format!("the replicas {what}");
            return self.wrong("autoscaler.dynamo.mode", message);
        }
        self.dynamo(config)
    }

    pub(super) fn dynamo(&self, config: &PlannerConfig) -> Result<PlannerConfig> {
        const AT: &str = "autoscaler.dynamo";
        let own = config.clone();
        own.resolved().map_err(|e| self.refused(AT, &e))?;
        Ok(config.clone())
    }

    fn wva(
        &self,
        f: &WvaFile,
        path: &MetricPathFile,
        spec: &mut DeploymentSpec,
    ) -> Result<ScalerSpec> {
        const AT: &str = "autoscaler.wva";
        let Some(max_replicas) = f.max_replicas else {
            return self.wrong(AT, "`maxReplicas` is missing; write e.g. maxReplicas = 4");
        };
        let config = f.config.unwrap_or_default();
        Wva::new(SimTime::ZERO, config).map_err(|e| self.refused(&format!("{AT}.config"), &e))?;
        let cost = f.variant_cost.unwrap_or(VARIANT_COST);
        if !(cost.is_finite() && cost > 0.0) {
            let message = format!("must be above 0, got {cost}");
            return self.wrong(&format!("{AT}.variantCost"), message);
        }
        let hpa = HpaSpec {
            min_replicas: f.min_replicas,
            max_replicas,
            metrics: vec![MetricSpec {
                name: WISHED.to_owned(),
                source: HpaSource::External,
                target: MetricTarget::AverageValue(1000),
            }],
            behavior: f.behavior.as_ref().map(behavior),
        };
        hpa.check().map_err(|e| self.refused(AT, &e.to_string()))?;
        spec.metrics
            .push(self.source(WISHED, (None, None), path, AT)?);
        spec.hpa = Some((hpa, self.settings(&f.flags, AT)?));
        Ok(ScalerSpec::Wva(WvaVariant {
            name: spec.pod.name.clone(),
            cost,
            config,
            scrape_interval: WVA_SCRAPE,
        }))
    }

    fn epp(&self, f: &EppFile, path: &MetricPathFile, spec: &mut DeploymentSpec) -> Result<()> {
        const AT: &str = "autoscaler.epp";
        let d = EppScalerSpec::default();
        let scaler = EppScalerSpec {
            signal: f.signal.unwrap_or(d.signal),
            saturation_threshold: f.saturation_threshold.unwrap_or(d.saturation_threshold),
            running_requests_threshold: f
                .running_requests_threshold
                .unwrap_or(d.running_requests_threshold),
            queue_threshold: f.queue_threshold.unwrap_or(d.queue_threshold),
            min_replica_count: f.min_replica_count.unwrap_or(d.min_replica_count),
            max_replica_count: f.max_replica_count.unwrap_or(d.max_replica_count),
            polling_interval: f.polling_interval.map_or(d.polling_interval, whole),
            cooldown_period: f.cooldown_period.map_or(d.cooldown_period, whole),
            stabilization_window: f
                .stabilization_window_seconds
                .map_or(d.stabilization_window, whole),
        };
        for (key, value) in [
            ("saturationThreshold", scaler.saturation_threshold),
            (
                "runningRequestsThreshold",
                scaler.running_requests_threshold,
            ),
            ("queueThreshold", scaler.queue_threshold),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return self.wrong(
                    &format!("{AT}.{key}"),
                    format!("must be above 0, got {value}"),
                );
            }
        }
        if f.polling_interval == Some(0) {
            return self.wrong(&format!("{AT}.pollingInterval"), "must be at least 1");
        }
        let names: &[&str] = match scaler.signal {
            Signal::Saturation => &[SATURATION, RUNNING],
            Signal::Queue => &[QUEUED, RUNNING],
            Signal::Inflight => &[INFLIGHT],
        };
        for name in names {
            spec.metrics
                .push(self.source(name, (None, None), path, AT)?);
        }
        let object = scaler.scaled_object();
        let settings = self.settings(&f.flags, AT)?;
        crate::control::keda::Keda::new(SimTime::ZERO, object.clone(), settings)
            .map_err(|e| self.refused(AT, &e))?;
        spec.keda = Some((object, settings));
        Ok(())
    }

    pub(super) fn karpenter(&self, f: &KarpenterFile, spec: &ClusterSpec) -> Result<KarpenterSpec> {
        const AT: &str = "autoscaler.karpenter";
        let mut offerings = Vec::new();
        for (i, g) in spec.groups.iter().enumerate() {
            let Some(price_per_hour) = g.usd_per_hour else {
                let message = "Karpenter chooses by price, and that of this group is not known; write e.g. price = \"1.2 USD/h\"";
                return self.wrong(&format!("cluster.node_group[{i}].price"), message);
            };
            offerings.push(Offering {
                instance_type: g.instance.clone(),
                capacity_type: match g.is_spot {
                    true => CapacityType::Spot,
                    false => CapacityType::OnDemand,
                },
                allocatable: g.template,
                price_per_hour,
            });
        }
        let mut out = KarpenterSpec::new(offerings);
        out.first_claim = crate::kube::FIRST_CLAIM;
        out.nodes_limit = (f.limits.as_ref().and_then(|l| l.nodes)).map(|n| n as usize);
        out.batch_idle_duration = f.batch_idle_duration.unwrap_or(out.batch_idle_duration);
        out.batch_max_duration = f.batch_max_duration.unwrap_or(out.batch_max_duration);
        let d = f.disruption.clone().unwrap_or_default();
        out.consolidation_policy = d.consolidation_policy.unwrap_or_default();
        out.consolidate_after = match d.consolidate_after.as_deref() {
            None => Some(Secs::default()),
            Some("Never") => None,
            Some(text) => Some(text.parse::<Secs>().map_err(|e| {
                let message = format!("{e}; write e.g. \"30 s\" or \"Never\"");
                self.places
                    .error(&format!("{AT}.disruption.consolidateAfter"), message)
            })?),
        };
        if let Some(budgets) = &d.budgets {
            out.budgets.clear();
            for (i, b) in budgets.iter().enumerate() {
                let Some(nodes) = budget(&b.nodes) else {
                    let message = format!(
                        "must be a number such as \"5\" or a share such as \"10%\", got `{}`",
                        b.nodes
                    );
                    return self.wrong(&format!("{AT}.disruption.budgets[{i}].nodes"), message);
                };
                out.budgets.push(Budget {
                    nodes,
                    reasons: b.reasons.clone(),
                });
            }
        }
        crate::control::karpenter::Karpenter::new(SimTime::ZERO, out.clone())
            .map_err(|e| self.refused(AT, &e))?;
        Ok(out)
    }
}

/// `nodes` of a budget.
fn budget(text: &str) -> Option<BudgetNodes> {
    match text.trim().strip_suffix('%') {
        Some(share) => {
            let share = share.trim().parse::<f64>().ok()?;
            Some(BudgetNodes::Share(Ratio::new(share / 100.0).ok()?))
        }
        None => text.trim().parse().ok().map(BudgetNodes::Count),
    }
}
