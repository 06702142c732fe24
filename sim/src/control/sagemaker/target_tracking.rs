//! `TargetTrackingScaling`: the policy makes its two alarms itself.
//!
//! Out: the metric is above `TargetValue` in the last three periods. In: below nine tenths of it for fifteen minutes. The new capacity is the current one
//! times metric over target, rounded up.

use hwmodels::units::Secs;
use serde::{Deserialize, Serialize};

use super::alarm::{Alarm, AlarmSpec, AlarmState, ComparisonOperator, TreatMissingData};
use super::{Decision, ScalableTarget};
use crate::kernel::time::{SimDuration, SimTime};

/// The metric that is tracked; whoever drives the policy works it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum PredefinedMetricType {
    /// Requests of a minute over instances, one-minute datapoints.
    SageMakerVariantInvocationsPerInstance,
    /// Requests that the model has in hand, over instances, ten-second datapoints.
    SageMakerVariantConcurrentRequestsPerModelHighResolution,
    /// The same for copies of an inference component.
    SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution,
    /// Requests of a minute over copies, one-minute datapoints.
    SageMakerInferenceComponentInvocationsPerCopy,
}

impl PredefinedMetricType {
    /// Time that one datapoint covers [s].
    pub fn period_s(self) -> u32 {
        match self {
            PredefinedMetricType::SageMakerVariantInvocationsPerInstance
            | PredefinedMetricType::SageMakerInferenceComponentInvocationsPerCopy => 60,
            _ => 10,
        }
    }
}

/// `TargetTrackingScalingPolicyConfiguration` with the bounds of its target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetTrackingSpec {
    /// Bounds of the target.
    pub target: ScalableTarget,
    /// `PredefinedMetricSpecification`.
    pub metric: PredefinedMetricType,
    /// `TargetValue`.
    pub target_value: f64,
    /// `ScaleOutCooldown`: 300 s for SageMaker unless set.
    #[serde(default = "cooldown")]
    pub scale_out_cooldown: Secs,
    /// `ScaleInCooldown`: the same.
    #[serde(default = "cooldown")]
    pub scale_in_cooldown: Secs,
    /// `DisableScaleIn`.
    #[serde(default)]
    pub disable_scale_in: bool,
}

fn cooldown() -> Secs {
    Secs::new(300.0).unwrap_or_default()
}

/// Periods above the target before it scales out.
const HIGH_PERIODS: u32 = 3;
/// Time below before it scales in [s].
const LOW_S: u32 = 900;
/// Share of the target below which it scales in.
const LOW_SHARE: f64 = 0.9;

/// A policy and what it remembers.
#[derive(Clone, Debug)]
pub struct TargetTracking {
    spec: TargetTrackingSpec,
    high: Alarm,
    low: Alarm,
    /// The last scale-out: when, and the capacity before it.
    scaled_out: Option<(SimTime, u32)>,
    scaled_in: Option<SimTime>,
}

impl TargetTracking {
    /// # Errors
    /// The field that is wrong, by its real name.
    pub fn new(spec: TargetTrackingSpec) -> Result<TargetTracking, String> {
        spec.target.check()?;
        if !(spec.target_value.is_finite() && spec.target_value > 0.0) {
            return Err(format!(
                "TargetValue: must be above 0, got {}",
                spec.target_value
            ));
        }
        let period_s = spec.metric.period_s();
        let managed = |threshold, comparison_operator, periods| {
            Alarm::new(AlarmSpec {
                period: Secs::new(f64::from(period_s)).map_err(|e| e.to_string())?,
                evaluation_periods: periods,
                datapoints_to_alarm: periods,
                threshold,
                comparison_operator,
                treat_missing_data: TreatMissingData::Missing,
            })
        };
        Ok(TargetTracking {
            high: managed(
                spec.target_value,
                ComparisonOperator::GreaterThanThreshold,
                HIGH_PERIODS,
            )?,
            low: managed(
                LOW_SHARE * spec.target_value,
                ComparisonOperator::LessThanThreshold,
                LOW_S / period_s,
            )?,
            spec,
            scaled_out: None,
            scaled_in: None,
        })
    }

    /// The policy.
    pub fn spec(&self) -> &TargetTrackingSpec {
        &self.spec
    }

    /// Somebody registered the target anew: other bounds from now on.
    pub fn set_target(&mut self, target: ScalableTarget) {
        self.spec.target = target;
    }

    /// CloudWatch has published the metric of the period that began at `start`.
    pub fn observe(&mut self, start: SimTime, value: f64) {
        self.high.observe(start, value);
        self.low.observe(start, value);
    }

    /// One evaluation, once a period. `last`: start of the newest period that is published; `current`: desired capacity.
    pub fn tick(&mut self, now: SimTime, last: SimTime, current: u32) -> Decision {
        let (high, low) = (self.high.evaluate(last), self.low.evaluate(last));
        let bounded = self.spec.target.bound(f64::from(current));
        if bounded != current {
            return Decision {
                scale_to: Some(bounded),
                why: format!("{current} to {bounded}: MinCapacity and MaxCapacity"),
            };
        }
        let Some(metric) = self.high.latest() else {
            return Decision::keep(current, "no datapoint yet");
        };
        if high == AlarmState::Alarm {
            return self.scale_out(now, current, metric);
        }
        if low == AlarmState::Alarm {
            return self.scale_in(now, current, metric);
        }
        Decision::keep(
            current,
            &format!(
                "metric {metric:.4}, target {}, no alarm",
                self.spec.target_value
            ),
        )
    }

    fn scale_out(&mut self, now: SimTime, current: u32, metric: f64) -> Decision {
        let cooldown = SimDuration::from_secs(self.spec.scale_out_cooldown.secs());
        let cooling = self.scaled_out.filter(|(at, _)| now.since(*at) < cooldown);
        // What the last scale-out added belongs to what this one wants.
        let base = cooling.map_or(current, |(_, before)| before);
        let wanted = self
            .spec
            .target
            .bound((f64::from(base) * metric / self.spec.target_value).ceil());
        let reason = format!(
            "alarm, metric {metric:.4} above target {}",
            self.spec.target_value
        );
        if wanted <= current {
            let limit = match cooling {
                Some(_) => "the last scale-out covers it, in ScaleOutCooldown",
                None if current == self.spec.target.max_capacity => "at MaxCapacity",
                None => "the capacity suffices",
            };
            return Decision::keep(current, &format!("{reason}; {limit}"));
        }
        // A scale-out ends the cool-down of a scale-in.
        self.scaled_in = None;
        self.scaled_out = Some((now, base));
        Decision {
            scale_to: Some(wanted),
            why: format!("{current} to {wanted}: {reason}"),
        }
    }

    fn scale_in(&mut self, now: SimTime, current: u32, metric: f64) -> Decision {
        let reason = format!(
            "alarm, metric {metric:.4} below {:.4}",
            LOW_SHARE * self.spec.target_value
        );
        if self.spec.disable_scale_in {
            return Decision::keep(current, &format!("{reason}; DisableScaleIn"));
        }
        let cooldown = SimDuration::from_secs(self.spec.scale_in_cooldown.secs());
        if self.scaled_in.is_some_and(|at| now.since(at) < cooldown) {
            return Decision::keep(current, &format!("{reason}; in ScaleInCooldown"));
        }
        let wanted = self
            .spec
            .target
            .bound((f64::from(current) * metric / self.spec.target_value).ceil());
        if wanted >= current {
            let limit = match current == self.spec.target.min_capacity {
                true => "at MinCapacity",
                false => "one less would be above the target",
            };
            return Decision::keep(current, &format!("{reason}; {limit}"));
        }
        self.scaled_in = Some(now);
        Decision {
            scale_to: Some(wanted),
            why: format!("{current} to {wanted}: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> SimTime {
        SimTime(secs * 1_000_000_000)
    }

    fn spec() -> TargetTrackingSpec {
        TargetTrackingSpec {
            target: ScalableTarget {
                min_capacity: 1,
                max_capacity: 10,
            },
            metric: PredefinedMetricType::SageMakerVariantInvocationsPerInstance,
            target_value: 100.0,
            scale_out_cooldown: cooldown(),
            scale_in_cooldown: cooldown(),
            disable_scale_in: false,
        }
    }

    /// Tells one value a minute from `from` on and ticks at the end of each; what was decided, in minutes.
    fn run(
        policy: &mut TargetTracking,
        from: u64,
        capacity: &mut u32,
        values: &[f64],
    ) -> Vec<(u64, u32)> {
        let mut out = Vec::new();
        for (i, v) in values.iter().enumerate() {
            let minute = from + i as u64;
            policy.observe(at(60 * minute), *v);
            let d = policy.tick(at(60 * (minute + 1)), at(60 * minute), *capacity);
            if let Some(to) = d.scale_to {
                *capacity = to;
                out.push((minute, to));
            }
        }
        out
    }

    #[test]
    fn scales_out_after_three_minutes_by_the_ratio() {
        let (mut p, mut n) = (TargetTracking::new(spec()).expect("right"), 2);
        assert_eq!(
            run(&mut p, 0, &mut n, &[120.0, 180.0, 170.0]),
            [(2, 4)],
            "ceil(2 x 1.7)"
        );
    }

    #[test]
    fn in_its_cool_down_a_larger_scale_out_adds_the_difference_alone() {
        let (mut p, mut n) = (TargetTracking::new(spec()).expect("right"), 2);
        assert_eq!(run(&mut p, 0, &mut n, &[150.0; 3]), [(2, 3)]);
        assert_eq!(run(&mut p, 3, &mut n, &[150.0]), [], "the same again");
        assert_eq!(
            run(&mut p, 4, &mut n, &[240.0]),
            [(4, 5)],
            "ceil(2 x 2.4), from the capacity before"
        );
        assert_eq!(run(&mut p, 5, &mut n, &[150.0; 4]), []);
        assert_eq!(
            run(&mut p, 9, &mut n, &[150.0]),
            [(9, 8)],
            "the cool-down is over: ceil(5 x 1.5)"
        );
        assert_eq!(run(&mut p, 10, &mut n, &[500.0]), [(10, 10)], "MaxCapacity");
    }

    #[test]
    fn scales_in_after_fifteen_minutes_and_once_in_a_cool_down() {
        let (mut p, mut n) = (TargetTracking::new(spec()).expect("right"), 8);
        assert_eq!(run(&mut p, 0, &mut n, &[50.0; 15]), [(14, 4)]);
        assert_eq!(
            run(&mut p, 15, &mut n, &[60.0; 5]),
            [(19, 3)],
            "300 s later"
        );
        let (mut p, mut n) = (TargetTracking::new(spec()).expect("right"), 8);
        assert_eq!(
            run(&mut p, 0, &mut n, &[90.0; 20]),
            [],
            "nine tenths is not below it"
        );
        let held = TargetTrackingSpec {
            disable_scale_in: true,
            ..spec()
        };
        let (mut p, mut n) = (TargetTracking::new(held).expect("right"), 8);
        assert_eq!(run(&mut p, 0, &mut n, &[1.0; 20]), []);
    }

    #[test]
    fn a_scale_out_ends_the_cool_down_of_a_scale_in() {
        let (mut p, mut n) = (TargetTracking::new(spec()).expect("right"), 8);
        run(&mut p, 0, &mut n, &[50.0; 15]);
        assert_eq!(run(&mut p, 15, &mut n, &[200.0; 3]), [(17, 8)]);
        assert_eq!(p.scaled_in, None);
    }

    #[test]
    fn high_resolution_metrics_are_seen_in_half_a_minute() {
        let metric = PredefinedMetricType::SageMakerVariantConcurrentRequestsPerModelHighResolution;
        let fast = TargetTrackingSpec {
            metric,
            target_value: 5.0,
            ..spec()
        };
        let mut p = TargetTracking::new(fast).expect("right");
        let mut decided = Vec::new();
        for i in 0..4u64 {
            p.observe(at(10 * i), 8.0);
            decided.push(p.tick(at(10 * (i + 1)), at(10 * i), 2).scale_to);
        }
        assert_eq!(decided[..3], [None, None, Some(4)]);
    }

    #[test]
    fn bounds_hold_and_wrong_specs_are_named() {
        let mut p = TargetTracking::new(spec()).expect("right");
        assert_eq!(p.tick(at(0), at(0), 0).scale_to, Some(1));
        assert_eq!(p.tick(at(0), at(0), 12).scale_to, Some(10));
        assert!(p.tick(at(0), at(0), 3).why.contains("no datapoint yet"));
        let wrong = TargetTrackingSpec {
            target_value: 0.0,
            ..spec()
        };
        assert!(
            TargetTracking::new(wrong)
                .expect_err("zero")
                .starts_with("TargetValue")
        );
        let target = ScalableTarget {
            min_capacity: 3,
            max_capacity: 2,
        };
        let wrong = TargetTrackingSpec { target, ..spec() };
        assert!(
            TargetTracking::new(wrong)
                .expect_err("bounds")
                .starts_with("MinCapacity")
        );
    }
}
