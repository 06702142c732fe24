//! The same load under other kinds of autoscalers, each with the bounds of the scenario's and one target: requests in hand for each replica.

use sim::control::dynamo::config::{Mode, PlannerConfig};
use sim::control::sagemaker::alarm::ComparisonOperator;
use sim::control::sagemaker::target_tracking::PredefinedMetricType;
use sim::kube::spec::Metered;
use sim::scenario::cluster_file::{AutoscalerFile, KedaFile, QuantityFile, TriggerFile};
use sim::scenario::hpa_file::{HpaFile, HpaMetricFile, HpaMetricType};
use sim::scenario::scalers_file::{
    AlarmFile, EppFile, KarpenterFile, SageMakerFile, StepFile, StepScalingFile,
    TargetTrackingFile, WvaFile,
};
use sim::scenario::{Scenario, runs_more_than};

/// Requests sent on and not answered.
const ACTIVE: &str = "envoy_cluster_upstream_rq_active";

/// Bounds and target of all kinds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Common {
    /// Fewest replicas.
    pub min: i32,
    /// Most replicas.
    pub max: i32,
    /// Requests in hand for each replica.
    pub target: f64,
    /// Most requests that a replica runs; `None`: no limit.
    pub most: Option<u32>,
}

/// Bounds of the scenario's own autoscaler; without one 1 and as many as its nodes hold.
pub fn bounds(scenario: &Scenario) -> (i32, i32) {
    let cluster = scenario.cluster.as_ref();
    let nodes: u32 = cluster
        .map(|c| c.cluster.node_group.iter().filter_map(|g| g.max).sum())
        .unwrap_or(1);
    let all = i32::try_from(nodes).unwrap_or(i32::MAX);
    let Some(a) = cluster.and_then(|c| c.autoscaler.as_ref()) else {
        return (1, all);
    };
    let whole = |n: Option<u32>| n.and_then(|n| i32::try_from(n).ok());
    let own = |min: Option<i32>, max: Option<i32>| (min.unwrap_or(1), max.unwrap_or(all));
    match a {
        AutoscalerFile { hpa: Some(h), .. } => own(h.min_replicas, h.max_replicas),
        AutoscalerFile { keda: Some(k), .. } => {
            let max = k.max_replica_count.map(|m| m.min(all));
            own(k.min_replica_count, max)
        }
        AutoscalerFile { epp: Some(e), .. } => own(e.min_replica_count, e.max_replica_count),
        AutoscalerFile { wva: Some(w), .. } => own(w.min_replicas, w.max_replicas),
        AutoscalerFile {
            sagemaker: Some(s), ..
        } => own(whole(s.min_capacity), whole(s.max_capacity)),
        AutoscalerFile {
            dynamo: Some(d), ..
        } => own(i32::try_from(d.min_endpoint).ok(), None),
        _ => (1, all),
    }
}

/// Each kind in words, with the scenario under it.
pub fn kinds(scenario: &Scenario, c: Common) -> Vec<(String, Scenario)> {
    let own = (scenario.cluster.as_ref()).and_then(|c| c.autoscaler.clone());
    let own = own.unwrap_or_default();
    let has_nodes = own.cluster_autoscaler.is_some() || own.karpenter.is_some();
    let on_nodes = AutoscalerFile {
        metrics: own.metrics.clone(),
        cluster_autoscaler: match has_nodes {
            true => own.cluster_autoscaler.clone(),
            false => Some(Default::default()),
        },
        karpenter: own.karpenter.clone(),
        ..AutoscalerFile::default()
    };
    // An endpoint has its instances to itself.
    let endpoint = AutoscalerFile {
        metrics: own.metrics,
        ..AutoscalerFile::default()
    };
    let t = c.target;
    // Of requests that run there are never more than the engine's limit; the others count those that wait too.
    let running = match c.most {
        Some(most) if !runs_more_than(t, most) => f64::from((most / 2).max(1)),
        _ => t,
    };
    let mut all = vec![
        (
            format!("hpa: {ACTIVE} {t}"),
            AutoscalerFile {
                hpa: Some(hpa(c)),
                ..on_nodes.clone()
            },
        ),
        (
            format!("keda: {ACTIVE} {t}"),
            AutoscalerFile {
                keda: Some(keda(c)),
                ..on_nodes.clone()
            },
        ),
        (
            format!("epp: saturation 0.7, running requests {running}"),
            AutoscalerFile {
                epp: Some(EppFile {
                    running_requests_threshold: Some(running),
                    min_replica_count: Some(c.min),
                    max_replica_count: Some(c.max),
                    ..EppFile::default()
                }),
                ..on_nodes.clone()
            },
        ),
        (
            "wva: tokens".to_owned(),
            AutoscalerFile {
                wva: Some(WvaFile {
                    min_replicas: Some(c.min.max(1)),
                    max_replicas: Some(c.max),
                    ..WvaFile::default()
                }),
                ..on_nodes.clone()
            },
        ),
        (
            "dynamo: load, throughput".to_owned(),
            AutoscalerFile {
                dynamo: Some(planner(scenario, c)),
                ..on_nodes.clone()
            },
        ),
    ];
    all.extend(endpoints(c, endpoint));
    if on_nodes.karpenter.is_none() {
        let with_karpenter = AutoscalerFile {
            hpa: Some(hpa(c)),
            cluster_autoscaler: None,
            karpenter: Some(KarpenterFile::default()),
            ..on_nodes
        };
        all.push((format!("hpa: {ACTIVE} {t}, on Karpenter"), with_karpenter));
    }
    all.into_iter()
        .map(|(name, file)| (name, scenario.with_autoscaler(file)))
        .collect()
}

/// Scaling policies of a SageMaker endpoint, in `file`.
fn endpoints(c: Common, file: AutoscalerFile) -> [(String, AutoscalerFile); 2] {
    let t = c.target;
    [
        (
            format!("sagemaker: target tracking, ConcurrentRequestsPerModel {t}"),
            AutoscalerFile {
                sagemaker: Some(SageMakerFile {
                    target_tracking_scaling: Some(TargetTrackingFile {
                        predefined_metric_type: Some(
                            PredefinedMetricType::SageMakerVariantConcurrentRequestsPerModelHighResolution,
                        ),
                        target_value: Some(t),
                        ..TargetTrackingFile::default()
                    }),
                    ..capacity(c)
                }),
                ..file.clone()
            },
        ),
        (
            format!("sagemaker: step scaling, ConcurrentRequestsPerModel {t} and {}", 0.5 * t),
            AutoscalerFile {
                sagemaker: Some(SageMakerFile {
                    step_scaling: vec![steps(t, true), steps(0.5 * t, false)],
                    ..capacity(c)
                }),
                ..file
            },
        ),
    ]
}

fn quantity(value: f64) -> QuantityFile {
    QuantityFile {
        text: value.to_string(),
        milli: (value * 1000.0).ceil() as i64,
    }
}

fn hpa(c: Common) -> HpaFile {
    HpaFile {
        min_replicas: Some(c.min.max(1)),
        max_replicas: Some(c.max),
        metrics: vec![HpaMetricFile {
            kind: Some(HpaMetricType::External),
            metric: Some(ACTIVE.to_owned()),
            average_value: Some(quantity(c.target)),
            ..HpaMetricFile::default()
        }],
        ..HpaFile::default()
    }
}

fn keda(c: Common) -> KedaFile {
    KedaFile {
        min_replica_count: Some(c.min),
        max_replica_count: Some(c.max),
        triggers: vec![TriggerFile {
            metric: Some(ACTIVE.to_owned()),
            threshold: Some(c.target),
            ..TriggerFile::default()
        }],
        ..KedaFile::default()
    }
}

fn capacity(c: Common) -> SageMakerFile {
    SageMakerFile {
        min_capacity: u32::try_from(c.min.max(1)).ok(),
        max_capacity: u32::try_from(c.max).ok(),
        ..SageMakerFile::default()
    }
}

/// One instance more from `threshold` on, or one less up to it.
fn steps(threshold: f64, is_up: bool) -> StepScalingFile {
    let step = match is_up {
        true => StepFile {
            metric_interval_lower_bound: Some(0.0),
            scaling_adjustment: Some(1),
            ..StepFile::default()
        },
        false => StepFile {
            metric_interval_upper_bound: Some(0.0),
            scaling_adjustment: Some(-1),
            ..StepFile::default()
        },
    };
    StepScalingFile {
        alarm: Some(AlarmFile {
            metric_name: Some(Metered::ConcurrentRequestsPerModel),
            threshold: Some(threshold),
            evaluation_periods: Some(if is_up { 1 } else { 15 }),
            comparison_operator: Some(match is_up {
                true => ComparisonOperator::GreaterThanOrEqualToThreshold,
                false => ComparisonOperator::LessThanOrEqualToThreshold,
            }),
            ..AlarmFile::default()
        }),
        step_adjustments: vec![step],
        ..StepScalingFile::default()
    }
}

fn planner(scenario: &Scenario, c: Common) -> PlannerConfig {
    let gpus = i32::try_from(scenario.layout.devices()).unwrap_or(1);
    PlannerConfig {
        mode: Mode::Agg,
        min_endpoint: u32::try_from(c.min.max(1)).unwrap_or(1),
        max_gpu_budget: c.max.saturating_mul(gpus),
        ..PlannerConfig::default()
    }
}
