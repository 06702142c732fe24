//! KEDA's ScaledObject: 0 to 1 and back by itself, 1 to N through a Horizontal Pod Autoscaler with External metrics (5.4).
//!
//! Sources: KEDA docs "ScaledObject specification"; kedacore/keda `pkg/scaling/executor/scale_scaledobjects.go`,
//! `pkg/fallback/fallback.go`, `controllers/keda/hpa.go`.

use super::hpa::spec::{Behavior, HpaSpec, MetricSource, MetricSpec, MetricTarget, Settings};
use super::hpa::{Decision, Hpa, Reading, Scale};
use super::quantity::{milli_from_f64, saturate_i64};
use crate::kernel::time::{SimDuration, SimTime};

/// `metricType` of a trigger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricType {
    /// The threshold is a value a replica.
    #[default]
    AverageValue,
    /// The threshold is a value altogether.
    Value,
}

/// One entry of `triggers`.
#[derive(Clone, Debug, PartialEq)]
pub struct Trigger {
    /// Name of its metric.
    pub name: String,
    /// `threshold`: the HPA's target.
    pub threshold: f64,
    /// `activationThreshold`: the trigger is active above it, and not at it.
    pub activation_threshold: f64,
    /// `metricType`.
    pub metric_type: MetricType,
    /// `useCachedMetrics`: the HPA is told the value of the last poll.
    pub use_cached_metrics: bool,
}

/// `fallback`: what holds while triggers fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// `failureThreshold`: consecutive failures that are borne; it holds from the next one.
    pub failure_threshold: u32,
    /// `replicas`.
    pub replicas: i32,
}

/// `ScaledObjectSpec`, without the reference to its target.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledObjectSpec {
    /// `pollingInterval`.
    pub polling_interval: SimDuration,
    /// `cooldownPeriod`: time after the last activity before the way to 0 or idle.
    pub cooldown_period: SimDuration,
    /// `initialCooldownPeriod`: time after creation before the way to 0 or idle where no trigger was active yet.
    pub initial_cooldown_period: SimDuration,
    /// `idleReplicaCount`: size without activity; must be less than `minReplicaCount`.
    pub idle_replica_count: Option<i32>,
    /// `minReplicaCount`.
    pub min_replica_count: i32,
    /// `maxReplicaCount`.
    pub max_replica_count: i32,
    /// `fallback`; AverageValue triggers alone can have one.
    pub fallback: Option<Fallback>,
    /// `triggers`.
    pub triggers: Vec<Trigger>,
    /// `advanced.horizontalPodAutoscalerConfig.behavior`.
    pub behavior: Option<Behavior>,
}

impl Default for ScaledObjectSpec {
    fn default() -> Self {
        ScaledObjectSpec {
            polling_interval: SimDuration(30_000_000_000),
            cooldown_period: SimDuration(300_000_000_000),
            initial_cooldown_period: SimDuration::ZERO,
            idle_replica_count: None,
            min_replica_count: 0,
            max_replica_count: 100,
            fallback: None,
            triggers: Vec::new(),
            behavior: None,
        }
    }
}

impl ScaledObjectSpec {
    /// The HPA that KEDA makes of it: at least one replica.
    fn hpa_spec(&self) -> HpaSpec {
        let metric = |t: &Trigger| {
            let milli = milli_from_f64(t.threshold);
            MetricSpec {
                name: t.name.clone(),
                source: MetricSource::External,
                target: match t.metric_type {
                    MetricType::AverageValue => MetricTarget::AverageValue(milli),
                    MetricType::Value => MetricTarget::Value(milli),
                },
            }
        };
        HpaSpec {
            min_replicas: Some(self.min_replica_count.max(1)),
            max_replicas: self.max_replica_count,
            metrics: self.triggers.iter().map(metric).collect(),
            behavior: self.behavior.clone(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let min = self.min_replica_count;
        if min < 0 {
            return Err(format!("minReplicaCount: must be at least 0, got {min}"));
        }
        if let Some(idle) = self
            .idle_replica_count
            .filter(|idle| *idle < 0 || *idle >= min)
        {
            return Err(format!(
                "idleReplicaCount: must be at least 0 and less than minReplicaCount ({min}), got {idle}"
            ));
        }
        if let Some(fallback) = self.fallback {
            if fallback.replicas < 0 {
                return Err(format!(
                    "fallback.replicas: must be at least 0, got {}",
                    fallback.replicas
                ));
            }
            if let Some(i) = self
                .triggers
                .iter()
                .position(|t| t.metric_type == MetricType::Value)
            {
                return Err(format!(
                    "triggers[{i}].metricType: must be AverageValue where fallback is set"
                ));
            }
        }
        Ok(())
    }
}

/// What a poll decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollDecision {
    /// The new `spec.replicas` of the target, where it is to be written.
    pub scale_to: Option<i32>,
    /// Whether a trigger is active.
    pub is_active: bool,
    /// Why, in words.
    pub why: String,
}

/// One ScaledObject, and what KEDA remembers of it.
#[derive(Clone, Debug)]
pub struct Keda {
    spec: ScaledObjectSpec,
    hpa: Hpa,
    created: SimTime,
    last_active: Option<SimTime>,
    polled: Vec<Result<f64, String>>,
    failures: Vec<u32>,
}

/// What a trigger's source answered: its value, or why it failed.
pub type TriggerValue = Result<f64, String>;

impl Keda {
    /// A ScaledObject created at `now`.
    ///
    /// # Errors
    /// The field that is wrong, by its real name, and what would be right.
    pub fn new(now: SimTime, spec: ScaledObjectSpec, settings: Settings) -> Result<Self, String> {
        spec.check()?;
        let hpa = Hpa::new(spec.hpa_spec(), settings)
            .map_err(|e| format!("the HPA of this ScaledObject: {e}"))?;
        let failures = vec![0; spec.triggers.len()];
        Ok(Keda {
            spec,
            hpa,
            created: now,
            last_active: None,
            polled: Vec::new(),
            failures,
        })
    }

    /// The object.
    pub fn spec(&self) -> &ScaledObjectSpec {
        &self.spec
    }

    /// Somebody patched `minReplicaCount` and `maxReplicaCount`; KEDA updates its HPA.
    ///
    /// # Errors
    /// As [`Keda::new`]; nothing changes then.
    pub fn set_bounds(&mut self, min: i32, max: i32) -> Result<(), String> {
        let patched = ScaledObjectSpec {
            min_replica_count: min,
            max_replica_count: max,
            ..self.spec.clone()
        };
        patched.check()?;
        self.hpa
            .set_bounds(Some(min.max(1)), max)
            .map_err(|e| format!("the HPA of this ScaledObject: {e}"))?;
        self.spec = patched;
        Ok(())
    }

    /// One poll, every `pollingInterval`: between 0 (or idle) and the HPA's range. `current`: `spec.replicas` of the target.
    /// `values` are in the order of `triggers`.
    pub fn poll(&mut self, now: SimTime, current: i32, values: &[TriggerValue]) -> PollDecision {
        self.polled = values.to_vec();
        self.count_failures(values);
        let min = self.spec.min_replica_count;
        let idle = self.spec.idle_replica_count;
        let active = self.active_trigger(values);
        if let Some(active) = active {
            self.last_active = Some(now);
            let asleep = current == 0 || (idle.is_some() && current < min);
            return match asleep {
                true => decided(
                    true,
                    Some(min.max(1)),
                    format!("{current} to {}: {active}", min.max(1)),
                ),
                false => decided(
                    true,
                    None,
                    format!("kept {current}: {active}, the HPA decides"),
                ),
            };
        }
        if values.iter().any(Result::is_err) {
            return self.poll_failed(current);
        }
        let to = idle.unwrap_or(0);
        let may_sleep = match idle {
            Some(idle) => current > idle,
            None => current > 0 && min == 0,
        };
        if may_sleep {
            let wait = match self.last_active {
                Some(at) => (now.since(at), self.spec.cooldown_period, "cooldownPeriod"),
                None => (
                    now.since(self.created),
                    self.spec.initial_cooldown_period,
                    "initialCooldownPeriod",
                ),
            };
            let (quiet, period, name) = wait;
            // With nothing ever active and no initial period there is nothing to wait for.
            if quiet > period || period == SimDuration::ZERO {
                return decided(
                    false,
                    Some(to),
                    format!(
                        "{current} to {to}: no trigger is active since {:.0} s",
                        quiet.as_secs()
                    ),
                );
            }
            let why = format!(
                "kept {current}: no trigger is active since {:.0} s, {name} is {:.0} s",
                quiet.as_secs(),
                period.as_secs()
            );
            return decided(false, None, why);
        }
        if idle.is_none() && current < min {
            return decided(
                false,
                Some(min),
                format!("{current} to {min}: below minReplicaCount"),
            );
        }
        decided(false, None, format!("kept {current}: no trigger is active"))
    }

    /// No trigger is active and one failed: the fallback once it failed too often, else nothing.
    fn poll_failed(&self, current: i32) -> PollDecision {
        let fallback = self
            .spec
            .fallback
            .filter(|f| f.replicas != 0 && self.failures.iter().any(|&n| n > f.failure_threshold));
        match fallback {
            Some(f) if f.replicas != current => {
                let why = format!(
                    "{current} to {}: fallback, a trigger failed more than {} times",
                    f.replicas, f.failure_threshold
                );
                decided(false, Some(f.replicas), why)
            }
            _ => decided(
                false,
                None,
                format!("kept {current}: a trigger failed, none is active"),
            ),
        }
    }

    /// One reconcile of the HPA. `values`: what the triggers answer now; a trigger with cached metrics tells the last poll's value.
    pub fn sync(&mut self, now: SimTime, scale: Scale, values: &[TriggerValue]) -> Decision {
        let readings: Vec<Reading> = (0..self.spec.triggers.len())
            .map(|i| self.reading(i, values))
            .collect();
        self.hpa.sync(now, scale, &readings)
    }

    fn reading(&self, i: usize, values: &[TriggerValue]) -> Reading {
        let trigger = &self.spec.triggers[i];
        let source = if trigger.use_cached_metrics {
            &self.polled
        } else {
            values
        };
        match source.get(i) {
            Some(Ok(value)) => Reading::Series(vec![milli_from_f64(*value)]),
            // The fallback is a metric that makes the HPA want just its replicas.
            _ if self
                .spec
                .fallback
                .is_some_and(|f| self.failures[i] > f.failure_threshold) =>
            {
                let replicas = self.spec.fallback.map_or(0, |f| f.replicas);
                let total = i128::from(milli_from_f64(trigger.threshold)) * i128::from(replicas);
                Reading::Series(vec![saturate_i64(total)])
            }
            Some(Err(reason)) => Reading::Unavailable(reason.clone()),
            None => Reading::Unavailable("not polled yet".to_owned()),
        }
    }

    fn count_failures(&mut self, values: &[TriggerValue]) {
        for (failures, value) in self.failures.iter_mut().zip(values) {
            *failures = if value.is_ok() {
                0
            } else {
                failures.saturating_add(1)
            };
        }
    }

    fn active_trigger(&self, values: &[TriggerValue]) -> Option<String> {
        let active = |(t, v): (&Trigger, &TriggerValue)| match v {
            Ok(value) if *value > t.activation_threshold => Some(format!(
                "{} is {value}, above its activationThreshold {}",
                t.name, t.activation_threshold
            )),
            _ => None,
        };
        self.spec.triggers.iter().zip(values).find_map(active)
    }
}

fn decided(is_active: bool, scale_to: Option<i32>, why: String) -> PollDecision {
    PollDecision {
        scale_to,
        is_active,
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> SimTime {
        SimTime(secs * 1_000_000_000)
    }

    fn queue() -> ScaledObjectSpec {
        ScaledObjectSpec {
            triggers: vec![Trigger {
                name: "queue".to_owned(),
                threshold: 10.0,
                activation_threshold: 5.0,
                metric_type: MetricType::AverageValue,
                use_cached_metrics: false,
            }],
            ..ScaledObjectSpec::default()
        }
    }

    fn keda(spec: ScaledObjectSpec) -> Keda {
        Keda::new(at(0), spec, Settings::default()).expect("a right spec")
    }

    fn scale(replicas: i32) -> Scale<'static> {
        Scale {
            spec_replicas: replicas,
            status_replicas: replicas,
            pods: &[],
        }
    }

    #[test]
    fn defaults_are_those_of_the_docs() {
        let s = ScaledObjectSpec::default();
        assert_eq!(
            (s.polling_interval, s.cooldown_period),
            (SimDuration(30_000_000_000), SimDuration(300_000_000_000))
        );
        assert_eq!((s.min_replica_count, s.max_replica_count), (0, 100));
    }

    #[test]
    fn wakes_above_the_activation_threshold_and_not_at_it() {
        let mut keda = keda(queue());
        assert_eq!(keda.poll(at(0), 0, &[Ok(5.0)]).scale_to, None);
        let woken = keda.poll(at(30), 0, &[Ok(5.1)]);
        assert_eq!((woken.scale_to, woken.is_active), (Some(1), true));
        assert!(
            woken.why.contains("above its activationThreshold 5"),
            "{}",
            woken.why
        );
    }

    #[test]
    fn wakes_to_min_replica_count() {
        let spec = ScaledObjectSpec {
            min_replica_count: 3,
            idle_replica_count: Some(0),
            ..queue()
        };
        assert_eq!(keda(spec).poll(at(0), 0, &[Ok(6.0)]).scale_to, Some(3));
    }

    #[test]
    fn sleeps_only_after_the_cooldown() {
        let mut keda = keda(queue());
        keda.poll(at(0), 2, &[Ok(50.0)]);
        assert_eq!(
            keda.poll(at(300), 2, &[Ok(0.0)]).scale_to,
            None,
            "not at its end"
        );
        assert_eq!(keda.poll(at(301), 2, &[Ok(0.0)]).scale_to, Some(0));
    }

    #[test]
    fn without_activity_ever_the_initial_cooldown_counts() {
        assert_eq!(keda(queue()).poll(at(0), 2, &[Ok(0.0)]).scale_to, Some(0));
        let mut waits = keda(ScaledObjectSpec {
            initial_cooldown_period: SimDuration(60_000_000_000),
            ..queue()
        });
        assert_eq!(waits.poll(at(60), 2, &[Ok(0.0)]).scale_to, None);
        assert_eq!(waits.poll(at(90), 2, &[Ok(0.0)]).scale_to, Some(0));
    }

    #[test]
    fn idle_replicas_are_kept_without_activity() {
        let mut keda = keda(ScaledObjectSpec {
            min_replica_count: 4,
            idle_replica_count: Some(1),
            ..queue()
        });
        assert_eq!(keda.poll(at(0), 4, &[Ok(0.0)]).scale_to, Some(1));
        assert_eq!(keda.poll(at(30), 1, &[Ok(0.0)]).scale_to, None);
        assert_eq!(keda.poll(at(60), 1, &[Ok(6.0)]).scale_to, Some(4));
    }

    #[test]
    fn a_min_replica_count_without_idle_is_never_left() {
        let mut keda = keda(ScaledObjectSpec {
            min_replica_count: 2,
            ..queue()
        });
        assert_eq!(keda.poll(at(1000), 2, &[Ok(0.0)]).scale_to, None);
        assert_eq!(keda.poll(at(1030), 1, &[Ok(0.0)]).scale_to, Some(2));
    }

    #[test]
    fn the_hpa_scales_between_one_and_max() {
        let mut keda = keda(queue());
        assert_eq!(
            keda.sync(at(0), scale(0), &[Ok(100.0)]).scale_to,
            None,
            "0 is KEDA's"
        );
        assert_eq!(keda.sync(at(15), scale(1), &[Ok(35.0)]).scale_to, Some(4));
        let kept = keda.sync(at(30), scale(4), &[Ok(0.0)]);
        assert_eq!(kept.scale_to, None, "stabilized: {}", kept.why);
    }

    #[test]
    fn fallback_holds_after_the_threshold_of_failures() {
        let mut keda = keda(ScaledObjectSpec {
            fallback: Some(Fallback {
                failure_threshold: 2,
                replicas: 6,
            }),
            ..queue()
        });
        let failed = [Err("timeout".to_owned())];
        for poll in 0..2 {
            assert_eq!(keda.poll(at(30 * poll), 3, &failed).scale_to, None);
            assert_eq!(keda.sync(at(30 * poll), scale(3), &failed).scale_to, None);
        }
        assert_eq!(keda.poll(at(60), 3, &failed).scale_to, Some(6));
        assert_eq!(
            keda.sync(at(60), scale(3), &failed).scale_to,
            Some(6),
            "the HPA wants the same"
        );
        keda.poll(at(90), 6, &[Ok(60.0)]);
        assert_eq!(
            keda.sync(at(90), scale(6), &failed).scale_to,
            None,
            "counted anew"
        );
    }

    #[test]
    fn cached_metrics_are_those_of_the_last_poll() {
        let mut spec = queue();
        spec.triggers[0].use_cached_metrics = true;
        let mut keda = keda(spec);
        keda.poll(at(0), 1, &[Ok(20.0)]);
        assert_eq!(keda.sync(at(15), scale(1), &[Ok(90.0)]).scale_to, Some(2));
    }

    #[test]
    fn wrong_specs_name_the_field() {
        let refused = |spec, field: &str| {
            let message = Keda::new(at(0), spec, Settings::default()).expect_err(field);
            assert!(message.contains(field), "{message}");
        };
        refused(
            ScaledObjectSpec {
                min_replica_count: -1,
                ..queue()
            },
            "minReplicaCount",
        );
        refused(
            ScaledObjectSpec {
                idle_replica_count: Some(0),
                ..queue()
            },
            "idleReplicaCount",
        );
        refused(
            ScaledObjectSpec {
                max_replica_count: 0,
                ..queue()
            },
            "maxReplicas",
        );
        refused(ScaledObjectSpec::default(), "metrics");
        let mut value = queue();
        value.triggers[0].metric_type = MetricType::Value;
        value.fallback = Some(Fallback {
            failure_threshold: 1,
            replicas: 1,
        });
        refused(value, "triggers[0].metricType");
    }
}
