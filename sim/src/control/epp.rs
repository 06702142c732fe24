//! KEDA triggers on the signals of llm-d's endpoint picker (EPP): pool saturation, running requests, queued requests.
//!
//! The picker measures demand where it arrives, before any replica. KEDA's Prometheus triggers read three gauges of it; [`ScaledObjectSpec`]s with the thresholds
//! and windows of the guides are made here, and [`Signals`] gives the values in the order of their triggers. Sources: llm-d/llm-d
//! `guides/workload-autoscaling/keda-epp*` (thresholds, windows, metrics); gateway-api-inference-extension, saturation detector.

use hwmodels::units::Secs;
use serde::{Deserialize, Serialize};

use super::hpa::spec::{Behavior, ScalingPolicy, ScalingRules};
use super::keda::{MetricType, ScaledObjectSpec, Trigger, TriggerValue};
use crate::kernel::time::SimDuration;

/// Which signals the triggers read.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// `llm_d_epp_flow_control_pool_saturation` and running requests.
    #[default]
    Saturation,
    /// Requests in the picker's queue and running requests.
    Queue,
    /// Running and queued requests together.
    Inflight,
}

/// A guide's ScaledObject.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EppScalerSpec {
    /// Which signals.
    pub signal: Signal,
    /// `threshold` of the pool's saturation, for each replica.
    pub saturation_threshold: f64,
    /// `threshold` of running requests, for each replica.
    pub running_requests_threshold: f64,
    /// `threshold` of queued requests, for each replica.
    pub queue_threshold: f64,
    /// `minReplicaCount`.
    pub min_replica_count: i32,
    /// `maxReplicaCount`.
    pub max_replica_count: i32,
    /// `pollingInterval`.
    pub polling_interval: Secs,
    /// `cooldownPeriod`.
    pub cooldown_period: Secs,
    /// `stabilizationWindowSeconds` of both directions: as long as a replica takes to start, so that what is starting is not asked for again.
    pub stabilization_window: Secs,
}

impl Default for EppScalerSpec {
    fn default() -> Self {
        let secs = |s| Secs::new(s).unwrap_or_default();
        EppScalerSpec {
            signal: Signal::Saturation,
            saturation_threshold: 0.7,
            running_requests_threshold: 16.0,
            queue_threshold: 1.0,
            min_replica_count: 1,
            max_replica_count: 10,
            polling_interval: secs(15.0),
            cooldown_period: secs(300.0),
            stabilization_window: secs(300.0),
        }
    }
}

/// Load of one endpoint, as the picker scraped it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Endpoint {
    /// Waiting requests.
    pub waiting: f64,
    /// Share of its KV cache in use, 0 to 1.
    pub kv_cache_usage: f64,
}

/// The picker's gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// `llm_d_epp_flow_control_pool_saturation`.
    pub pool_saturation: f64,
    /// `llm_d_epp_request_running`.
    pub request_running: f64,
    /// `llm_d_epp_flow_control_queue_size`.
    pub queue_size: f64,
}

/// `queueDepthThreshold` of the saturation detector.
pub const QUEUE_DEPTH_THRESHOLD: f64 = 5.0;
/// `kvCacheUtilThreshold` of the saturation detector.
pub const KV_CACHE_UTIL_THRESHOLD: f64 = 0.8;

/// Saturation of a pool: the mean over its endpoints of the worse of queue over [`QUEUE_DEPTH_THRESHOLD`] and KV cache over [`KV_CACHE_UTIL_THRESHOLD`]; 1 for a
/// pool without endpoints, which can take nothing.
pub fn pool_saturation(endpoints: &[Endpoint]) -> f64 {
    if endpoints.is_empty() {
        return 1.0;
    }
    let worse = |e: &Endpoint| {
        (e.waiting / QUEUE_DEPTH_THRESHOLD).max(e.kv_cache_usage / KV_CACHE_UTIL_THRESHOLD)
    };
    endpoints.iter().map(worse).sum::<f64>() / endpoints.len() as f64
}

impl EppScalerSpec {
    /// The ScaledObject; [`Signals::values`] are in the order of its triggers.
    pub fn scaled_object(&self) -> ScaledObjectSpec {
        let trigger = |name: &str, threshold| Trigger {
            name: name.to_owned(),
            threshold,
            activation_threshold: 0.0,
            metric_type: MetricType::AverageValue,
            use_cached_metrics: false,
        };
        let window = SimDuration::from_secs(self.stabilization_window.secs());
        let doubling = |rules: ScalingRules| ScalingRules {
            stabilization_window: Some(window),
            policies: vec![ScalingPolicy::percent(100, 15)],
            ..rules
        };
        let running = trigger("epp-running-requests", self.running_requests_threshold);
        ScaledObjectSpec {
            polling_interval: SimDuration::from_secs(self.polling_interval.secs()),
            cooldown_period: SimDuration::from_secs(self.cooldown_period.secs()),
            min_replica_count: self.min_replica_count,
            max_replica_count: self.max_replica_count,
            triggers: match self.signal {
                Signal::Saturation => vec![
                    trigger("pool-saturation", self.saturation_threshold),
                    running,
                ],
                Signal::Queue => vec![trigger("epp-queue-size", self.queue_threshold), running],
                Signal::Inflight => vec![trigger("epp-inflight", self.running_requests_threshold)],
            },
            behavior: Some(Behavior {
                scale_up: doubling(ScalingRules::scale_up()),
                scale_down: doubling(ScalingRules::scale_down()),
            }),
            ..ScaledObjectSpec::default()
        }
    }
}

impl Signals {
    /// What the triggers of a ScaledObject with this signal answer.
    pub fn values(&self, signal: Signal) -> Vec<TriggerValue> {
        match signal {
            Signal::Saturation => vec![Ok(self.pool_saturation), Ok(self.request_running)],
            Signal::Queue => vec![Ok(self.queue_size), Ok(self.request_running)],
            Signal::Inflight => vec![Ok(self.request_running + self.queue_size)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hpa::Scale;
    use super::super::hpa::spec::Settings;
    use super::super::keda::Keda;
    use super::*;
    use crate::kernel::time::SimTime;

    fn at(secs: u64) -> SimTime {
        SimTime(secs * 1_000_000_000)
    }

    fn scale(replicas: i32) -> Scale<'static> {
        Scale {
            spec_replicas: replicas,
            status_replicas: replicas,
            pods: &[],
        }
    }

    #[test]
    fn saturation_is_the_mean_of_the_worse_of_queue_and_cache() {
        let e = |waiting, kv_cache_usage| Endpoint {
            waiting,
            kv_cache_usage,
        };
        assert_eq!(pool_saturation(&[e(5.0, 0.0), e(0.0, 0.4)]), 0.75);
        assert_eq!(pool_saturation(&[e(10.0, 0.8)]), 2.0);
        assert_eq!(pool_saturation(&[]), 1.0);
    }

    #[test]
    fn the_guide_s_object_is_accepted_and_grows_by_the_larger_signal() {
        let spec = EppScalerSpec::default();
        let mut keda = Keda::new(at(0), spec.scaled_object(), Settings::default()).expect("right");
        assert_eq!(keda.spec().polling_interval, SimDuration(15_000_000_000));
        let busy = Signals {
            pool_saturation: 1.0,
            request_running: 40.0,
            queue_size: 0.0,
        };
        let values = busy.values(spec.signal);
        // 40 running over 16 are three replicas; the saturation alone asks for two.
        let mut first = None;
        for t in (0..=600).step_by(15) {
            if let Some(to) = keda.sync(at(t), scale(1), &values).scale_to {
                first = Some((t, to));
                break;
            }
        }
        let (t, to) = first.expect("it grows");
        assert!(to > 1 && t < 330, "{t} s: {to}");
    }

    #[test]
    fn an_average_of_a_pool_s_ratio_shrinks_with_the_replicas() {
        // KEDA divides the pool's ratio by the replicas: 1.0 over two is 0.5, under the threshold of 0.7.
        let spec = EppScalerSpec {
            stabilization_window: Secs::default(),
            ..EppScalerSpec::default()
        };
        let mut keda = Keda::new(at(0), spec.scaled_object(), Settings::default()).expect("right");
        let full = Signals {
            pool_saturation: 1.0,
            request_running: 1.0,
            queue_size: 0.0,
        };
        assert_eq!(
            keda.sync(at(0), scale(1), &full.values(spec.signal))
                .scale_to,
            Some(2)
        );
        assert_eq!(
            keda.sync(at(15), scale(2), &full.values(spec.signal))
                .scale_to,
            None
        );
    }

    #[test]
    fn every_signal_has_as_many_values_as_triggers() {
        let signals = Signals {
            pool_saturation: 0.5,
            request_running: 3.0,
            queue_size: 4.0,
        };
        for signal in [Signal::Saturation, Signal::Queue, Signal::Inflight] {
            let spec = EppScalerSpec {
                signal,
                ..EppScalerSpec::default()
            };
            let triggers = spec.scaled_object().triggers;
            assert_eq!(signals.values(signal).len(), triggers.len());
            assert!(triggers.iter().all(|t| t.threshold > 0.0));
        }
        assert_eq!(signals.values(Signal::Inflight), [Ok(7.0)]);
    }
}
