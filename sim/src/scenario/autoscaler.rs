//! `[autoscaler]`: the metric path, the HPA, KEDA and the Cluster Autoscaler, from the words of manifests and flags.

use hwmodels::EngineKind;
use hwmodels::units::Secs;

use super::Scenario;
use super::behavior::{behavior, fill_flags};
use super::cluster_file::{
    AutoscalerFile, ClusterAutoscalerFile, ExpanderFile, KedaFile, MetricPathFile, MetricTypeFile,
    RuleFile, TriggerFile, TriggerType,
};
use super::error::ScenarioError;
use super::hpa_file::{HpaFile, HpaFlagsFile, HpaMetricType};
use super::numbers::secs;
use crate::cluster::pools::Role;
use crate::control::cluster_autoscaler::spec::{Expander, Flags};
use crate::control::hpa::spec::{
    HpaSpec, MetricSource as HpaSource, MetricSpec, MetricTarget, Settings,
};
use crate::control::keda::{Fallback, MetricType, ScaledObjectSpec, Trigger};
use crate::control::pipeline::rule::{Counter, OverTime, RatioRule, Rule};
use crate::control::pipeline::{PathSpec, Stage};
use crate::kernel::time::{SimDuration, SimTime};
use crate::kube::delay::Delay;
use crate::kube::spec::{ClusterSpec, DeploymentSpec, MetricSource, ScalerSpec};

type Result<T> = std::result::Result<T, ScenarioError>;

/// Prometheus operator's scrape interval.
const SCRAPE: f64 = 30.0;
/// Prometheus operator's evaluation interval.
const EVALUATION: f64 = 30.0;
/// `metricsRelistInterval` of the Helm chart of prometheus-adapter.
const RELIST: f64 = 60.0;
/// `--metrics-interval-ms` of Triton.
const TRITON_PAGE: f64 = 2.0;
/// Range of functions over series.
const WINDOW: f64 = 60.0;

fn nanos(value: Option<Secs>, default: f64) -> SimDuration {
    SimDuration::from_secs(value.map_or(default, Secs::secs))
}

fn whole(value: u32) -> SimDuration {
    SimDuration(u64::from(value) * 1_000_000_000)
}

/// Series of the gateway: Envoy's of the requests sent on, and the flow control's queue of the Gateway API's inference extension.
///
/// After them those of llm-d's endpoint picker, and the wish of its variant autoscaler.
const GATEWAY: [(&str, Counter); 8] = [
    (
        "inference_extension_flow_control_queue_size",
        Counter::Waiting,
    ),
    ("envoy_cluster_upstream_rq_active", Counter::Running),
    ("envoy_cluster_upstream_rq_total", Counter::RequestSuccess),
    (
        "llm_d_epp_flow_control_pool_saturation",
        Counter::PoolSaturation,
    ),
    ("llm_d_epp_request_running", Counter::Running),
    ("llm_d_epp_flow_control_queue_size", Counter::Waiting),
    ("llm_d_epp_inflight", Counter::Inflight),
    ("wva_desired_replicas", Counter::DesiredReplicas),
];

const TRITON: [(&str, Counter); 4] = [
    ("nv_inference_queue_duration_us", Counter::QueueDurationUs),
    (
        "nv_inference_compute_infer_duration_us",
        Counter::ComputeInferDurationUs,
    ),
    (
        "nv_inference_request_duration_us",
        Counter::RequestDurationUs,
    ),
    ("nv_inference_request_success", Counter::RequestSuccess),
];

/// Recording rules of the EKS multi-node Triton deployment.
const RECORDED: [RatioRule; 4] = [
    RatioRule::QUEUE_COMPUTE_RATIO,
    RatioRule::REQUEST_DURATION_AVERAGE,
    RatioRule::QUEUE_DURATION_AVERAGE,
    RatioRule::COMPUTE_DURATION_AVERAGE,
];

/// What the exporter of an engine shows, by its own names.
fn exported(engine: EngineKind) -> Vec<(&'static str, Counter)> {
    use Counter::*;
    match engine {
        EngineKind::VllmV1 => vec![
            ("vllm:num_requests_running", Running),
            ("vllm:num_requests_waiting", Waiting),
            ("vllm:kv_cache_usage_perc", KvUsage),
            ("vllm:request_success_total", RequestSuccess),
            ("vllm:prompt_tokens_total", PromptTokens),
            ("vllm:generation_tokens_total", GenerationTokens),
        ],
        EngineKind::Tgi | EngineKind::TgiNeuron => vec![
            ("tgi_queue_size", Waiting),
            ("tgi_batch_current_size", Running),
            ("tgi_request_success", RequestSuccess),
        ],
        EngineKind::TrtLlm => {
            let mut all = TRITON.to_vec();
            all.push((
                "nv_trt_llm_request_metrics{request_type=\"active\"}",
                Running,
            ));
            all.push((
                "nv_trt_llm_request_metrics{request_type=\"waiting\"}",
                Waiting,
            ));
            all.push((
                "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"}",
                KvUsage,
            ));
            all
        }
        EngineKind::Static => TRITON.to_vec(),
        EngineKind::Sglang => vec![
            ("sglang:num_running_reqs", Running),
            ("sglang:num_queue_reqs", Waiting),
            ("sglang:token_usage", KvUsage),
            ("sglang:num_requests_total", RequestSuccess),
            ("sglang:prompt_tokens_total", PromptTokens),
            ("sglang:generation_tokens_total", GenerationTokens),
        ],
        EngineKind::LlamaCpp => vec![
            ("llamacpp:requests_processing", Running),
            ("llamacpp:requests_deferred", Waiting),
            ("llamacpp:kv_cache_usage_ratio", KvUsage),
            ("llamacpp:tokens_predicted_total", GenerationTokens),
        ],
    }
}

/// The metric by which an engine's exporter shows the requests that it runs.
pub fn running_metric(engine: EngineKind) -> Option<&'static str> {
    let mut all = exported(engine).into_iter();
    all.find(|(_, c)| matches!(c, Counter::Running))
        .map(|(name, _)| name)
}

/// Whether replicas that run at most `most` requests each can ever lie so far above a target of `target` running requests that an HPA with its default
/// tolerance takes more of them.
pub fn runs_more_than(target: f64, most: u32) -> bool {
    f64::from(most) > target * (1.0 + Settings::default().tolerance)
}

fn is_triton(engine: EngineKind) -> bool {
    matches!(engine, EngineKind::TrtLlm | EngineKind::Static)
}

/// Fills in defaults.
pub(super) fn fill(file: &mut AutoscalerFile, engine: EngineKind) {
    let path = file.metrics.get_or_insert_default();
    let page = if is_triton(engine) { TRITON_PAGE } else { 0.0 };
    path.exporter_interval.get_or_insert(secs(page));
    path.scrape_interval.get_or_insert(secs(SCRAPE));
    path.evaluation_interval.get_or_insert(secs(EVALUATION));
    path.metrics_relist_interval.get_or_insert(secs(RELIST));
    if let Some(hpa) = &mut file.hpa {
        hpa.min_replicas.get_or_insert(1);
        fill_flags(hpa.flags.get_or_insert_default());
        for metric in &mut hpa.metrics {
            metric.kind.get_or_insert_default();
        }
    }
    if let Some(keda) = &mut file.keda {
        fill_keda(keda);
    }
    if let Some(autoscaler) = &mut file.cluster_autoscaler {
        fill_autoscaler(autoscaler);
    }
    if let Some(own) = &mut file.on_demand {
        super::on_demand::fill(own);
    }
    super::scalers::fill(file);
}

fn fill_keda(keda: &mut KedaFile) {
    keda.polling_interval.get_or_insert(30);
    keda.cooldown_period.get_or_insert(300);
    keda.initial_cooldown_period.get_or_insert(0);
    keda.min_replica_count.get_or_insert(0);
    keda.max_replica_count.get_or_insert(100);
    fill_flags(keda.flags.get_or_insert_default());
    for trigger in &mut keda.triggers {
        trigger.kind.get_or_insert_default();
        trigger.activation_threshold.get_or_insert(0.0);
        trigger
            .metric_type
            .get_or_insert(MetricTypeFile::AverageValue);
        trigger.use_cached_metrics.get_or_insert(false);
    }
}

fn fill_autoscaler(file: &mut ClusterAutoscalerFile) {
    let f = Flags::default();
    let of = super::numbers::told;
    file.scan_interval.get_or_insert(of(f.scan_interval));
    file.frequent_loops_enabled
        .get_or_insert(f.frequent_loops_enabled);
    file.salvo_scale_up.get_or_insert(f.salvo_scale_up);
    file.new_pod_scale_up_delay
        .get_or_insert(of(f.new_pod_scale_up_delay));
    file.gpu_pod_buffer.get_or_insert(of(f.gpu_pod_buffer));
    file.max_node_provision_time
        .get_or_insert(of(f.max_node_provision_time));
    file.expander.get_or_insert_default();
    file.scale_down_unneeded_time
        .get_or_insert(of(f.scale_down_unneeded_time));
    file.scale_down_delay_after_add
        .get_or_insert(of(f.scale_down_delay_after_add));
    file.scale_down_delay_after_delete
        .get_or_insert(of(f.scale_down_delay_after_delete));
    file.scale_down_gpu_utilization_threshold
        .get_or_insert(f.scale_down_gpu_utilization_threshold);
    file.max_scale_down_parallelism
        .get_or_insert(f.max_scale_down_parallelism as u32);
    file.initial_node_group_backoff_duration
        .get_or_insert(of(f.initial_node_group_backoff));
    file.max_node_group_backoff_duration
        .get_or_insert(of(f.max_node_group_backoff));
}

impl Scenario {
    /// Puts the HPA or ScaledObject into `spec`; an autoscaler that is neither is the answer.
    pub(super) fn autoscaler(
        &self,
        file: &AutoscalerFile,
        role: Role,
        spec: &mut DeploymentSpec,
    ) -> Result<Option<ScalerSpec>> {
        let path = file.metrics.clone().unwrap_or_default();
        if let Some(hpa) = &file.hpa {
            self.hpa(hpa, &path, spec)?;
        }
        if let Some(keda) = &file.keda {
            self.keda(keda, &path, spec)?;
        }
        self.scalers(file, role, spec)
    }

    /// Puts those who scale nodes into `spec`.
    pub(super) fn node_scalers(&self, file: &AutoscalerFile, spec: &mut ClusterSpec) -> Result<()> {
        if let Some(autoscaler) = &file.cluster_autoscaler {
            spec.cluster_autoscaler = Some(self.flags_of_autoscaler(autoscaler)?);
        }
        if let Some(k) = &file.karpenter {
            if file.cluster_autoscaler.is_some() {
                return self.wrong(
                    "autoscaler.karpenter",
                    "takes the place of [autoscaler.cluster_autoscaler]; give one of them",
                );
            }
            spec.karpenter = Some(self.karpenter(k, spec)?);
        }
        Ok(())
    }

    fn hpa(&self, file: &HpaFile, path: &MetricPathFile, spec: &mut DeploymentSpec) -> Result<()> {
        const AT: &str = "autoscaler.hpa";
        let Some(max) = file.max_replicas else {
            return self.wrong(AT, "`maxReplicas` is missing; write e.g. maxReplicas = 4");
        };
        let mut metrics = Vec::new();
        for (i, m) in file.metrics.iter().enumerate() {
            let at = format!("{AT}.metrics[{i}]");
            let Some(name) = &m.metric else {
                let message =
                    "`metric` is missing; write e.g. metric = \"vllm:num_requests_waiting\"";
                return self.wrong(&at, message);
            };
            let kind = m.kind.unwrap_or_default();
            let source = self.source(name, (m.rule, m.window), path, &at)?;
            if kind == HpaMetricType::Pods && matches!(source, MetricSource::Gateway(_)) {
                let message =
                    format!("{name} is the gateway's and no pod's; write type = \"External\"");
                return self.wrong(&format!("{at}.metric"), message);
            }
            let target = match (&m.average_value, &m.value) {
                (Some(q), None) => MetricTarget::AverageValue(q.milli),
                (None, Some(q)) => MetricTarget::Value(q.milli),
                _ => {
                    return self.wrong(
                        &at,
                        "needs averageValue or value; write e.g. averageValue = 5",
                    );
                }
            };
            metrics.push(MetricSpec {
                name: name.clone(),
                source: match kind {
                    HpaMetricType::Pods => HpaSource::Pods,
                    HpaMetricType::Object => HpaSource::Object,
                    HpaMetricType::External => HpaSource::External,
                },
                target,
            });
            spec.metrics.push(source);
        }
        let hpa = HpaSpec {
            min_replicas: file.min_replicas,
            max_replicas: max,
            metrics,
            behavior: file.behavior.as_ref().map(behavior),
        };
        hpa.check().map_err(|e| self.refused(AT, &e.to_string()))?;
        let settings = self.settings(&file.flags, AT)?;
        spec.hpa = Some((hpa, settings));
        Ok(())
    }

    /// What an API server says (`metrics[0].target: must be ...`) as an error at the key.
    pub(super) fn refused(&self, at: &str, message: &str) -> ScenarioError {
        match message.split_once(": ") {
            Some((field, why)) if !field.contains(' ') => {
                self.places.error(&format!("{at}.{field}"), why)
            }
            _ => self.places.error(at, message),
        }
    }

    pub(super) fn settings(&self, flags: &Option<HpaFlagsFile>, at: &str) -> Result<Settings> {
        let flags = flags.clone().unwrap_or_default();
        let default = Settings::default();
        let tolerance = flags.tolerance.unwrap_or(default.tolerance);
        if !(0.0..=10.0).contains(&tolerance) {
            let message = format!("must be from 0 to 10, got {tolerance}");
            return self.wrong(&format!("{at}.flags.tolerance"), message);
        }
        Ok(Settings {
            sync_period: self.period(flags.sync_period, &format!("{at}.flags.sync-period"))?,
            tolerance,
            downscale_stabilization: nanos(flags.downscale_stabilization, 300.0),
            ..default
        })
    }

    fn keda(
        &self,
        file: &KedaFile,
        path: &MetricPathFile,
        spec: &mut DeploymentSpec,
    ) -> Result<()> {
        const AT: &str = "autoscaler.keda";
        let mut triggers = Vec::new();
        for (i, t) in file.triggers.iter().enumerate() {
            let at = format!("{AT}.triggers[{i}]");
            let (trigger, source) = self.trigger(t, path, &at)?;
            triggers.push(trigger);
            spec.metrics.push(source);
        }
        if triggers.is_empty() {
            return self.wrong(
                AT,
                "has no trigger; write e.g. triggers = [{ type = \"redis\", threshold = 5 }]",
            );
        }
        if file.polling_interval == Some(0) {
            return self.wrong(&format!("{AT}.pollingInterval"), "must be at least 1");
        }
        let object = ScaledObjectSpec {
            polling_interval: whole(file.polling_interval.unwrap_or(30)),
            cooldown_period: whole(file.cooldown_period.unwrap_or(300)),
            initial_cooldown_period: whole(file.initial_cooldown_period.unwrap_or(0)),
            idle_replica_count: file.idle_replica_count,
            min_replica_count: file.min_replica_count.unwrap_or(0),
            max_replica_count: file.max_replica_count.unwrap_or(100),
            fallback: file.fallback.as_ref().map(|f| Fallback {
                failure_threshold: f.failure_threshold,
                replicas: f.replicas,
            }),
            triggers,
            behavior: file.behavior.as_ref().map(behavior),
        };
        let settings = self.settings(&file.flags, AT)?;
        crate::control::keda::Keda::new(SimTime::ZERO, object.clone(), settings)
            .map_err(|e| self.refused(AT, &e))?;
        spec.keda = Some((object, settings));
        Ok(())
    }

    fn trigger(
        &self,
        t: &TriggerFile,
        path: &MetricPathFile,
        at: &str,
    ) -> Result<(Trigger, MetricSource)> {
        let Some(threshold) = t.threshold.filter(|t| *t > 0.0 && t.is_finite()) else {
            return self.wrong(
                at,
                "`threshold` must be given and above zero; write e.g. threshold = 5",
            );
        };
        let (name, source) = match (t.kind.unwrap_or_default(), &t.metric) {
            (TriggerType::Redis, None) => ("listLength".to_owned(), MetricSource::QueueLength),
            (TriggerType::Redis, Some(_)) => {
                return self.wrong(
                    &format!("{at}.metric"),
                    "a redis trigger looks at the gateway's list; leave this out",
                );
            }
            (TriggerType::Prometheus, Some(name)) => (
                name.clone(),
                self.source(name, (t.rule, t.window), path, at)?,
            ),
            (TriggerType::Prometheus, None) => {
                return self.wrong(
                    at,
                    "`metric` is missing; write e.g. metric = \"vllm:num_requests_waiting\"",
                );
            }
        };
        let trigger = Trigger {
            name,
            threshold,
            activation_threshold: t.activation_threshold.unwrap_or(0.0),
            metric_type: match t.metric_type {
                Some(MetricTypeFile::Value) => MetricType::Value,
                _ => MetricType::AverageValue,
            },
            use_cached_metrics: t.use_cached_metrics.unwrap_or(false),
        };
        Ok((trigger, source))
    }

    /// Where the metric called `name` comes from.
    pub(super) fn source(
        &self,
        name: &str,
        (rule, window): (Option<RuleFile>, Option<Secs>),
        path: &MetricPathFile,
        at: &str,
    ) -> Result<MetricSource> {
        let engine = self.engine.params.kind();
        let own = exported(engine);
        let recorded = RECORDED
            .iter()
            .filter(|_| is_triton(engine))
            .find(|r| r.record == name);
        let of_engine = own.iter().find(|(n, _)| *n == name);
        let of_gateway = GATEWAY.iter().find(|(n, _)| *n == name);
        if recorded.is_some() && (rule.is_some() || window.is_some()) {
            let message = format!("{name} is a recording rule; leave out `rule` and `window`");
            return self.wrong(&format!("{at}.metric"), message);
        }
        let of = |series: Counter| {
            let window = nanos(window, WINDOW);
            let function = match rule {
                Some(RuleFile::Rate) => Some(OverTime::Rate),
                Some(RuleFile::AvgOverTime) => Some(OverTime::Avg),
                Some(RuleFile::MaxOverTime) => Some(OverTime::Max),
                None => series.is_counter().then_some(OverTime::Rate),
            };
            match function {
                Some(function) => Rule::Over {
                    series,
                    function,
                    window,
                },
                None => Rule::Instant(series),
            }
        };
        Ok(match (recorded, of_engine, of_gateway) {
            (Some(ratio), _, _) => MetricSource::Replicas(self.path(path, Rule::Ratio(*ratio))?),
            (_, Some((_, series)), _) => MetricSource::Replicas(self.path(path, of(*series))?),
            (_, _, Some((_, series))) => MetricSource::Gateway(self.path(path, of(*series))?),
            _ => {
                let mut known: Vec<&str> = own.iter().map(|(n, _)| *n).collect();
                if is_triton(engine) {
                    known.extend(RECORDED.iter().map(|r| r.record));
                }
                known.extend(GATEWAY.iter().map(|(n, _)| *n));
                let message = format!(
                    "nobody exports `{name}`: {engine} and the gateway have {}",
                    known.join(", ")
                );
                return self.wrong(&format!("{at}.metric"), message);
            }
        })
    }

    /// The path of one metric. Its stages run since some instant before the run, so their phases are draws.
    fn path(&self, file: &MetricPathFile, rule: Rule) -> Result<PathSpec> {
        const AT: &str = "autoscaler.metrics";
        let stage = |value: Option<Secs>, key: &str| -> Result<Stage> {
            let period = self.period(value, &format!("{AT}.{key}"))?;
            let draw = Delay::Uniform {
                min: 0.0,
                max: period.as_secs(),
            };
            let phase = draw.draw(self.seed, &format!("cluster/phase/{key}"));
            Ok(Stage {
                period,
                first: SimTime::ZERO + phase,
            })
        };
        let has_page = file.exporter_interval.is_some_and(|s| s.secs() > 0.0);
        Ok(PathSpec {
            exporter_refresh: match has_page {
                true => Some(stage(file.exporter_interval, "exporter_interval")?),
                false => None,
            },
            scrape: stage(file.scrape_interval, "scrape_interval")?,
            rule_group: stage(file.evaluation_interval, "evaluation_interval")?,
            adapter_relist: stage(file.metrics_relist_interval, "metrics_relist_interval")?,
            rule,
        })
    }

    fn flags_of_autoscaler(&self, f: &ClusterAutoscalerFile) -> Result<Flags> {
        let d = Flags::default();
        let or = |value: Option<Secs>, default: SimDuration| nanos(value, default.as_secs());
        let share = f
            .scale_down_gpu_utilization_threshold
            .unwrap_or(d.scale_down_gpu_utilization_threshold);
        if !(0.0..=1.0).contains(&share) {
            let message = format!("must be from 0 to 1, got {share}");
            let key = "autoscaler.cluster_autoscaler.scale-down-gpu-utilization-threshold";
            return self.wrong(key, message);
        }
        Ok(Flags {
            scan_interval: self.period(
                f.scan_interval,
                "autoscaler.cluster_autoscaler.scan-interval",
            )?,
            frequent_loops_enabled: f.frequent_loops_enabled.unwrap_or(d.frequent_loops_enabled),
            salvo_scale_up: f.salvo_scale_up.unwrap_or(d.salvo_scale_up),
            new_pod_scale_up_delay: or(f.new_pod_scale_up_delay, d.new_pod_scale_up_delay),
            gpu_pod_buffer: or(f.gpu_pod_buffer, d.gpu_pod_buffer),
            max_node_provision_time: or(f.max_node_provision_time, d.max_node_provision_time),
            expander: match f.expander.unwrap_or_default() {
                ExpanderFile::Random => Expander::Random,
                ExpanderFile::LeastWaste => Expander::LeastWaste,
                ExpanderFile::MostPods => Expander::MostPods,
                ExpanderFile::Price => Expander::Price,
                ExpanderFile::Priority => Expander::Priority,
            },
            scale_down_unneeded_time: or(f.scale_down_unneeded_time, d.scale_down_unneeded_time),
            scale_down_delay_after_add: or(
                f.scale_down_delay_after_add,
                d.scale_down_delay_after_add,
            ),
            scale_down_delay_after_delete: or(
                f.scale_down_delay_after_delete,
                d.scale_down_delay_after_delete,
            ),
            scale_down_gpu_utilization_threshold: share,
            max_scale_down_parallelism: f.max_scale_down_parallelism.unwrap_or(10) as usize,
            initial_node_group_backoff: or(
                f.initial_node_group_backoff_duration,
                d.initial_node_group_backoff,
            ),
            max_node_group_backoff: or(f.max_node_group_backoff_duration, d.max_node_group_backoff),
            ..d
        })
    }
}
