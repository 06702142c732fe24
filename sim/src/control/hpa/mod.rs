//! The Horizontal Pod Autoscaler, autoscaling/v2 (4).
//!
//! ```text
//!  pods, samples --> pods (4.2) --> calculator (4.3 to 4.5) --> Hpa: largest wins (4.6)
//!                                                                  |
//!                      scale <-- bounds, rates (4.7, 4.8) <-- stabilize (4.7, 4.8)
//! ```
//!
//! [`Hpa::sync`] is one reconcile; whoever drives it calls it every [`Settings::sync_period`]. Source: kubernetes
//! `pkg/controller/podautoscaler/horizontal.go`, `reconcileAutoscaler`.

pub mod bounds;
pub mod calculator;
pub mod pods;
pub mod spec;
pub mod stabilize;
#[cfg(test)]
mod tests;

use crate::kernel::time::SimTime;
use bounds::{Limit, Rates, ScaleEvents};
use calculator::{MetricError, PodView, Proposal, UtilizationTarget};
use pods::{PodSamples, PodState};
use spec::{HpaSpec, MetricSource, MetricSpec, MetricTarget, Settings, SpecError};
use stabilize::{Recommendation, RecommendationLog};

/// What the scale subresource of the target shows, and its pods.
#[derive(Clone, Copy, Debug)]
pub struct Scale<'a> {
    /// `spec.replicas`.
    pub spec_replicas: i32,
    /// `status.replicas`.
    pub status_replicas: i32,
    /// Pods that its selector matches; for a LeaderWorkerSet the leaders alone.
    pub pods: &'a [PodState],
}

/// What the metrics API answered for one entry of `spec.metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Resource and ContainerResource: usage and requests, by pod.
    Resource {
        /// Usage over the containers considered.
        samples: PodSamples,
        /// Requests over them [milli-units]; none where one of them sets none.
        requests_milli: Vec<Option<i64>>,
    },
    /// Pods: a value of each.
    Pods(PodSamples),
    /// Object and External: the series returned [milli-units].
    Series(Vec<i64>),
    /// The query failed, with what the API said.
    Unavailable(String),
}

/// A condition of the status: whether it is true, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Status.
    pub is_true: bool,
    /// Reason, by its name in the API.
    pub reason: String,
}

fn condition(is_true: bool, reason: &str) -> Condition {
    Condition {
        is_true,
        reason: reason.to_owned(),
    }
}

/// What a reconcile decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The new `spec.replicas` of the target, where it is to be written.
    pub scale_to: Option<i32>,
    /// `status.desiredReplicas`.
    pub desired: i32,
    /// Why, in words.
    pub why: String,
    /// AbleToScale: whether a scale was read and written, or what stabilizes.
    pub able_to_scale: Condition,
    /// ScalingActive: whether the metrics gave a count.
    pub scaling_active: Option<Condition>,
    /// ScalingLimited: whether a bound or a rate changed the count.
    pub scaling_limited: Option<Condition>,
    /// What each metric proposed, in the order of `spec.metrics`; empty where they were not looked at.
    pub metrics: Vec<Result<Proposal, MetricError>>,
}

/// One HorizontalPodAutoscaler and what the controller remembers of it.
#[derive(Clone, Debug)]
pub struct Hpa {
    spec: HpaSpec,
    settings: Settings,
    log: RecommendationLog,
    events: ScaleEvents,
}

/// What the metrics together ask for.
struct Combined {
    replicas: i32,
    why: String,
}

impl Hpa {
    /// A controller that remembers nothing yet.
    ///
    /// # Errors
    /// What the API server would refuse.
    pub fn new(spec: HpaSpec, settings: Settings) -> Result<Self, SpecError> {
        spec.check()?;
        Ok(Hpa {
            spec,
            settings,
            log: RecommendationLog::default(),
            events: ScaleEvents::default(),
        })
    }

    /// The object.
    pub fn spec(&self) -> &HpaSpec {
        &self.spec
    }

    /// Somebody patched the object's bounds.
    ///
    /// # Errors
    /// What the API server would refuse; nothing changes then.
    pub fn set_bounds(&mut self, min: Option<i32>, max: i32) -> Result<(), SpecError> {
        let patched = HpaSpec {
            min_replicas: min,
            max_replicas: max,
            ..self.spec.clone()
        };
        patched.check()?;
        self.spec = patched;
        Ok(())
    }

    /// The controller's flags.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// One reconcile. `readings` are in the order of `spec.metrics`; one that is not there counts as unavailable.
    pub fn sync(&mut self, now: SimTime, scale: Scale, readings: &[Reading]) -> Decision {
        let current = scale.spec_replicas;
        let (min, max) = (self.spec.min(), self.spec.max_replicas);
        if self.log.slots().is_empty() {
            // A restarted controller stabilizes what it finds.
            let found = Recommendation {
                replicas: current,
                at: now,
            };
            self.log = RecommendationLog::new(vec![found]);
        }
        if current == 0 && min != 0 {
            let mut disabled = unchanged(
                current,
                "kept 0: scaling is disabled since the target has no replicas".to_owned(),
            );
            disabled.scaling_active = Some(condition(false, "ScalingDisabled"));
            return disabled;
        }
        if current > max {
            return self.rescale(
                now,
                current,
                max,
                format!("{current} to {max}: above maxReplicas"),
            );
        }
        if current < min {
            return self.rescale(
                now,
                current,
                min,
                format!("{current} to {min}: below minReplicas"),
            );
        }
        let metrics = self.proposals(now, scale, readings);
        let combined = match combine(current, &self.spec.metrics, &metrics) {
            Ok(combined) => combined,
            Err((why, reason)) => {
                let mut failed = unchanged(current, why);
                failed.scaling_active = Some(condition(false, reason));
                failed.metrics = metrics;
                return failed;
            }
        };
        let mut decision = self.normalize(now, current, combined);
        decision.metrics = metrics;
        decision
    }

    fn proposals(
        &self,
        now: SimTime,
        scale: Scale,
        readings: &[Reading],
    ) -> Vec<Result<Proposal, MetricError>> {
        let nothing = Reading::Unavailable("no answer".to_owned());
        let propose =
            |(i, metric)| self.proposal(now, scale, metric, readings.get(i).unwrap_or(&nothing));
        self.spec.metrics.iter().enumerate().map(propose).collect()
    }

    fn proposal(
        &self,
        now: SimTime,
        scale: Scale,
        metric: &MetricSpec,
        reading: &Reading,
    ) -> Result<Proposal, MetricError> {
        use MetricSource::{ContainerResource, External, Object, Pods, Resource};
        let tolerance = self.spec.tolerance(&self.settings);
        let view = |samples| PodView {
            current: scale.spec_replicas,
            pods: scale.pods,
            samples,
            tolerance,
            now,
            settings: &self.settings,
        };
        match (&metric.source, reading) {
            (_, Reading::Unavailable(reason)) => Err(MetricError::Unavailable {
                metric: format!("metric {}", metric.name),
                reason: reason.clone(),
            }),
            (
                Resource | ContainerResource { .. },
                Reading::Resource {
                    samples,
                    requests_milli,
                },
            ) => match metric.target {
                MetricTarget::Utilization(percent) => {
                    let container = match &metric.source {
                        ContainerResource { container } => Some(container.as_str()),
                        _ => None,
                    };
                    let target = UtilizationTarget {
                        resource: &metric.name,
                        container,
                        requests_milli,
                        percent,
                    };
                    calculator::utilization(view(samples), target)
                }
                MetricTarget::AverageValue(milli) => {
                    calculator::average(view(samples), milli, &metric.name, true)
                }
                MetricTarget::Value(_) => Err(MetricError::WrongReading),
            },
            (Pods, Reading::Pods(samples)) => match metric.target {
                MetricTarget::AverageValue(milli) => {
                    calculator::average(view(samples), milli, &metric.name, false)
                }
                _ => Err(MetricError::WrongReading),
            },
            (Object | External, Reading::Series(series)) => {
                let api = if metric.source == External {
                    "external"
                } else {
                    "custom"
                };
                let usage = calculator::total(series, &metric.name, api)?;
                match metric.target {
                    MetricTarget::Value(milli) => {
                        calculator::value(scale.spec_replicas, usage, milli, scale.pods, tolerance)
                    }
                    MetricTarget::AverageValue(milli) => {
                        calculator::value_per_pod(scale.status_replicas, usage, milli, tolerance)
                    }
                    MetricTarget::Utilization(_) => Err(MetricError::WrongReading),
                }
            }
            _ => Err(MetricError::WrongReading),
        }
    }

    /// Stabilization, then bounds and rates.
    fn normalize(&mut self, now: SimTime, current: i32, combined: Combined) -> Decision {
        let (min, max) = (self.spec.min(), self.spec.max_replicas);
        let recommended = combined.replicas;
        let default_window = self.settings.downscale_stabilization;
        let (stabilized, (limited, limit)) = match &self.spec.behavior {
            None => {
                let stabilized = self
                    .log
                    .stabilize_downscale(now, recommended, default_window);
                (
                    stabilized,
                    bounds::without_behavior(current, stabilized, min, max),
                )
            }
            Some(behavior) => {
                let up = behavior.scale_up.stabilization_window.unwrap_or_default();
                let down = behavior
                    .scale_down
                    .stabilization_window
                    .unwrap_or(default_window);
                let stabilized = self.log.stabilize(now, current, recommended, up, down);
                let rates = Rates {
                    up: &behavior.scale_up,
                    down: &behavior.scale_down,
                    events: &self.events,
                    min,
                    max,
                };
                (stabilized, rates.apply(now, current, stabilized))
            }
        };
        let mut why = combined.why;
        let mut able = "ReadyForNewScale";
        if stabilized != recommended {
            let up = self.spec.behavior.is_some() && recommended >= current;
            able = if up {
                "ScaleUpStabilized"
            } else {
                "ScaleDownStabilized"
            };
            why = format!("{why}; stabilized at {stabilized}");
        }
        if limit != Limit::DesiredWithinRange {
            why = format!("{why}; {limited}, {}", limit.in_words());
        }
        let mut decision = if limited == current {
            unchanged(current, why)
        } else {
            self.rescale(now, current, limited, why)
        };
        if limited == current {
            decision.able_to_scale = condition(true, able);
        }
        decision.scaling_active = Some(condition(true, "ValidMetricFound"));
        decision.scaling_limited = Some(condition(limited != stabilized, limit.reason()));
        decision
    }

    /// Writes a new size and remembers the change for the rates of `behavior`.
    fn rescale(&mut self, now: SimTime, from: i32, to: i32, why: String) -> Decision {
        if let Some(behavior) = &self.spec.behavior {
            self.events
                .store(now, from, to, &behavior.scale_up, &behavior.scale_down);
        }
        Decision {
            scale_to: Some(to),
            able_to_scale: condition(true, "SucceededRescale"),
            ..unchanged(to, why)
        }
    }
}

fn unchanged(replicas: i32, why: String) -> Decision {
    Decision {
        scale_to: None,
        desired: replicas,
        why,
        able_to_scale: condition(true, "SucceededGetScale"),
        scaling_active: None,
        scaling_limited: None,
        metrics: Vec::new(),
    }
}

/// The largest proposal (4.6); a metric that failed forbids to scale down. Errors: why, and the reason of ScalingActive.
fn combine(
    current: i32,
    specs: &[MetricSpec],
    metrics: &[Result<Proposal, MetricError>],
) -> Result<Combined, (String, &'static str)> {
    let mut best: Option<(&MetricSpec, &Proposal)> = None;
    let mut failed: Option<(&MetricSpec, &MetricError)> = None;
    for (spec, outcome) in specs.iter().zip(metrics) {
        match outcome {
            Ok(proposal) if best.is_none_or(|(_, most)| proposal.replicas > most.replicas) => {
                best = Some((spec, proposal))
            }
            Err(error) if failed.is_none() => failed = Some((spec, error)),
            _ => {}
        }
    }
    match (best, failed) {
        (Some((spec, proposal)), None) => Ok(combined(spec, proposal)),
        (Some((spec, proposal)), Some(_)) if proposal.replicas >= current => {
            Ok(combined(spec, proposal))
        }
        (best, Some((spec, error))) => {
            let kept = match best {
                Some(_) => format!(
                    "kept {current}: a metric failed, and the others would scale down; {}: {error}",
                    spec.name
                ),
                None => format!(
                    "kept {current}: no metric gave a count; {}: {error}",
                    spec.name
                ),
            };
            Err((kept, failure_reason(&spec.source)))
        }
        (None, None) => Err((
            format!("kept {current}: no metrics are set"),
            "InvalidMetricSourceType",
        )),
    }
}

fn combined(spec: &MetricSpec, proposal: &Proposal) -> Combined {
    Combined {
        replicas: proposal.replicas,
        why: format!("{} ({})", proposal.why, spec.name),
    }
}

fn failure_reason(source: &MetricSource) -> &'static str {
    match source {
        MetricSource::Resource => "FailedGetResourceMetric",
        MetricSource::ContainerResource { .. } => "FailedGetContainerResourceMetric",
        MetricSource::Pods => "FailedGetPodsMetric",
        MetricSource::Object => "FailedGetObjectMetric",
        MetricSource::External => "FailedGetExternalMetric",
    }
}
