//! `StepScaling`: an alarm of the user's own, and steps by how far the metric is from its threshold.

use hwmodels::units::Secs;
use serde::{Deserialize, Serialize};

use super::alarm::{Alarm, AlarmSpec, AlarmState};
use super::{Decision, ScalableTarget};
use crate::kernel::time::{SimDuration, SimTime};

/// `AdjustmentType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum AdjustmentType {
    /// Adds so many.
    ChangeInCapacity,
    /// Adds so many percent of the capacity.
    PercentChangeInCapacity,
    /// Sets the capacity.
    ExactCapacity,
}

/// `StepAdjustment`: bounds relative to the alarm's threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepAdjustment {
    /// `MetricIntervalLowerBound`; none: minus infinity.
    pub lower_bound: Option<f64>,
    /// `MetricIntervalUpperBound`; none: infinity.
    pub upper_bound: Option<f64>,
    /// `ScalingAdjustment`.
    pub scaling_adjustment: i32,
}

impl StepAdjustment {
    /// Above the threshold the lower bound belongs to the step, below it the upper one.
    fn holds(&self, distance: f64) -> bool {
        let low = self.lower_bound.unwrap_or(f64::NEG_INFINITY);
        let high = self.upper_bound.unwrap_or(f64::INFINITY);
        match distance >= 0.0 {
            true => low <= distance && distance < high,
            false => low < distance && distance <= high,
        }
    }
}

/// `StepScalingPolicyConfiguration` with its alarm and the bounds of its target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepScalingSpec {
    /// Bounds of the target.
    pub target: ScalableTarget,
    /// The alarm that triggers it.
    pub alarm: AlarmSpec,
    /// `AdjustmentType`.
    pub adjustment_type: AdjustmentType,
    /// `StepAdjustments`.
    pub step_adjustments: Vec<StepAdjustment>,
    /// `MinAdjustmentMagnitude`: least change by percent.
    #[serde(default)]
    pub min_adjustment_magnitude: u32,
    /// `Cooldown`; 300 s unless set.
    #[serde(default = "cooldown")]
    pub cooldown: Secs,
}

fn cooldown() -> Secs {
    Secs::new(300.0).unwrap_or_default()
}

/// A policy and what it remembers.
#[derive(Clone, Debug)]
pub struct StepScaling {
    spec: StepScalingSpec,
    alarm: Alarm,
    /// The last change: when, and the capacity before and after it.
    last: Option<(SimTime, u32, u32)>,
}

impl StepScaling {
    /// # Errors
    /// The field that is wrong, by its real name.
    pub fn new(spec: StepScalingSpec) -> Result<StepScaling, String> {
        spec.target.check()?;
        if spec.step_adjustments.is_empty() {
            return Err("StepAdjustments: at least one is needed".to_owned());
        }
        let bounds = |s: &StepAdjustment| {
            (
                s.lower_bound.unwrap_or(f64::NEG_INFINITY),
                s.upper_bound.unwrap_or(f64::INFINITY),
            )
        };
        for (i, a) in spec.step_adjustments.iter().enumerate() {
            let (low, high) = bounds(a);
            if low.is_nan() || high.is_nan() || low >= high {
                return Err(format!(
                    "StepAdjustments[{i}]: MetricIntervalLowerBound must be below MetricIntervalUpperBound"
                ));
            }
            if a.scaling_adjustment < 0 && spec.adjustment_type == AdjustmentType::ExactCapacity {
                return Err(format!(
                    "StepAdjustments[{i}].ScalingAdjustment: must be at least 0 with ExactCapacity"
                ));
            }
            for (j, b) in spec.step_adjustments.iter().enumerate().take(i) {
                let (other_low, other_high) = bounds(b);
                if low < other_high && other_low < high {
                    return Err(format!("StepAdjustments[{j}] and [{i}] overlap"));
                }
            }
        }
        Ok(StepScaling {
            alarm: Alarm::new(spec.alarm)?,
            spec,
            last: None,
        })
    }

    /// The policy.
    pub fn spec(&self) -> &StepScalingSpec {
        &self.spec
    }

    /// Somebody registered the target anew: other bounds from now on.
    pub fn set_target(&mut self, target: ScalableTarget) {
        self.spec.target = target;
    }

    /// CloudWatch has published the metric of the period that began at `start`.
    pub fn observe(&mut self, start: SimTime, value: f64) {
        self.alarm.observe(start, value);
    }

    /// One evaluation, once a period. `last`: start of the newest period that is published; `current`: desired capacity.
    pub fn tick(&mut self, now: SimTime, last: SimTime, current: u32) -> Decision {
        let state = self.alarm.evaluate(last);
        let Some(metric) = self.alarm.latest().filter(|_| state == AlarmState::Alarm) else {
            return Decision::keep(current, "no alarm");
        };
        let distance = metric - self.spec.alarm.threshold;
        let Some(step) = self
            .spec
            .step_adjustments
            .iter()
            .find(|s| s.holds(distance))
            .copied()
        else {
            return Decision::keep(
                current,
                &format!("alarm, but no step for {distance:+.4} from the threshold"),
            );
        };
        let cooldown = SimDuration::from_secs(self.spec.cooldown.secs());
        let cooling = self.last.filter(|(at, _, _)| now.since(*at) < cooldown);
        let base = match cooling {
            // Only scale-outs go on in a cool-down, and count from the capacity before it.
            Some((_, before, after)) if after > before => before,
            _ => current,
        };
        let wanted = self
            .spec
            .target
            .bound(self.adjusted(base, step.scaling_adjustment));
        let reason = format!("alarm, metric {metric:.4}, {distance:+.4} from the threshold");
        if let Some((_, before, after)) = cooling {
            let goes_on = wanted > current && (after > before || wanted > after);
            if !goes_on {
                return Decision::keep(current, &format!("{reason}; in Cooldown"));
            }
        }
        if wanted == current {
            return Decision::keep(
                current,
                &format!("{reason}; the capacity is there, or at its bound"),
            );
        }
        self.last = Some((now, base, wanted));
        Decision {
            scale_to: Some(wanted),
            why: format!("{current} to {wanted}: {reason}"),
        }
    }

    /// The capacity after an adjustment, before bounds. Parts of an instance go towards none, but a change is at least one.
    fn adjusted(&self, base: u32, adjustment: i32) -> f64 {
        let (base, adjustment) = (f64::from(base), f64::from(adjustment));
        match self.spec.adjustment_type {
            AdjustmentType::ChangeInCapacity => base + adjustment,
            AdjustmentType::ExactCapacity => adjustment,
            AdjustmentType::PercentChangeInCapacity => {
                let change = base * adjustment / 100.0;
                let whole = match change.abs() < 1.0 && change != 0.0 {
                    true => change.signum(),
                    false => change.trunc(),
                };
                let least = f64::from(self.spec.min_adjustment_magnitude);
                base + match whole.abs() < least && adjustment != 0.0 {
                    true => least * adjustment.signum(),
                    false => whole,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::alarm::{ComparisonOperator, TreatMissingData};
    use super::*;

    fn at(secs: u64) -> SimTime {
        SimTime(secs * 1_000_000_000)
    }

    fn step(
        lower_bound: Option<f64>,
        upper_bound: Option<f64>,
        scaling_adjustment: i32,
    ) -> StepAdjustment {
        StepAdjustment {
            lower_bound,
            upper_bound,
            scaling_adjustment,
        }
    }

    /// Above 60: one more up to 75, three more from there.
    fn spec() -> StepScalingSpec {
        StepScalingSpec {
            target: ScalableTarget {
                min_capacity: 0,
                max_capacity: 20,
            },
            alarm: AlarmSpec {
                period: Secs::new(60.0).expect("a duration"),
                evaluation_periods: 1,
                datapoints_to_alarm: 1,
                threshold: 60.0,
                comparison_operator: ComparisonOperator::GreaterThanOrEqualToThreshold,
                treat_missing_data: TreatMissingData::Missing,
            },
            adjustment_type: AdjustmentType::ChangeInCapacity,
            step_adjustments: vec![step(Some(0.0), Some(15.0), 1), step(Some(15.0), None, 3)],
            min_adjustment_magnitude: 0,
            cooldown: cooldown(),
        }
    }

    fn tell(p: &mut StepScaling, minute: u64, value: f64, current: u32) -> Option<u32> {
        p.observe(at(60 * minute), value);
        p.tick(at(60 * (minute + 1)), at(60 * minute), current)
            .scale_to
    }

    fn once(spec: StepScalingSpec, value: f64, current: u32) -> Option<u32> {
        tell(
            &mut StepScaling::new(spec).expect("right"),
            0,
            value,
            current,
        )
    }

    #[test]
    fn the_step_is_that_of_the_distance_from_the_threshold() {
        assert_eq!(once(spec(), 59.9, 4), None);
        assert_eq!(
            once(spec(), 60.0, 4),
            Some(5),
            "the lower bound belongs to the step"
        );
        assert_eq!(once(spec(), 74.9, 4), Some(5));
        assert_eq!(once(spec(), 75.0, 4), Some(7));
        assert_eq!(once(spec(), 90.0, 19), Some(20), "MaxCapacity");
        assert_eq!(once(spec(), 90.0, 20), None);
    }

    #[test]
    fn below_the_threshold_the_upper_bound_belongs_to_the_step() {
        let mut down = spec();
        down.alarm.comparison_operator = ComparisonOperator::LessThanOrEqualToThreshold;
        down.step_adjustments = vec![
            step(Some(-10.0), Some(0.0), -1),
            step(None, Some(-10.0), -2),
        ];
        assert_eq!(once(down.clone(), 55.0, 4), Some(3));
        assert_eq!(
            once(down.clone(), 50.0, 4),
            Some(2),
            "-10 belongs to the lower step"
        );
        assert_eq!(once(down, 10.0, 1), Some(0), "MinCapacity");
    }

    #[test]
    fn percent_changes_are_cut_but_at_least_one() {
        let percent = |adjustment, current, least| {
            let mut s = spec();
            s.adjustment_type = AdjustmentType::PercentChangeInCapacity;
            s.step_adjustments = vec![step(Some(0.0), None, adjustment)];
            s.min_adjustment_magnitude = least;
            once(s, 80.0, current)
        };
        assert_eq!(percent(25, 10, 0), Some(12), "2.5 is 2");
        assert_eq!(percent(10, 4, 0), Some(5), "0.4 is 1");
        assert_eq!(percent(-10, 4, 0), Some(3), "-0.4 is -1");
        assert_eq!(percent(-67, 10, 0), Some(4), "-6.7 is -6");
        assert_eq!(percent(25, 10, 4), Some(14));
    }

    #[test]
    fn exact_capacity_wakes_an_endpoint_from_zero() {
        let mut wake = spec();
        wake.alarm.threshold = 1.0;
        wake.adjustment_type = AdjustmentType::ExactCapacity;
        wake.step_adjustments = vec![step(Some(0.0), None, 2)];
        assert_eq!(once(wake, 7.0, 0), Some(2));
    }

    #[test]
    fn in_a_cool_down_only_the_difference_to_a_larger_step_is_added() {
        let mut p = StepScaling::new(spec()).expect("right");
        assert_eq!(tell(&mut p, 0, 65.0, 4), Some(5));
        assert_eq!(tell(&mut p, 1, 65.0, 5), None);
        assert_eq!(tell(&mut p, 2, 80.0, 5), Some(7), "4 and 3, not 5 and 3");
        assert_eq!(tell(&mut p, 7, 65.0, 7), Some(8), "the cool-down is over");
    }

    #[test]
    fn scale_ins_wait_for_the_end_of_the_cool_down() {
        let mut down = spec();
        down.alarm.comparison_operator = ComparisonOperator::LessThanOrEqualToThreshold;
        down.step_adjustments = vec![step(None, Some(0.0), -1)];
        let mut p = StepScaling::new(down).expect("right");
        assert_eq!(tell(&mut p, 0, 5.0, 4), Some(3));
        assert_eq!(tell(&mut p, 1, 5.0, 3), None);
        assert_eq!(tell(&mut p, 5, 5.0, 3), Some(2));
    }

    #[test]
    fn wrong_specs_are_named() {
        let refused = |s: StepScalingSpec, field: &str| {
            let message = StepScaling::new(s).expect_err(field);
            assert!(message.starts_with(field), "{message}");
        };
        let with = |steps: Vec<StepAdjustment>| StepScalingSpec {
            step_adjustments: steps,
            ..spec()
        };
        refused(with(vec![]), "StepAdjustments");
        refused(
            with(vec![step(Some(3.0), Some(3.0), 1)]),
            "StepAdjustments[0]",
        );
        refused(
            with(vec![step(None, Some(2.0), 1), step(Some(1.0), None, 2)]),
            "StepAdjustments[0] and [1] overlap",
        );
        let mut exact = with(vec![step(None, None, -1)]);
        exact.adjustment_type = AdjustmentType::ExactCapacity;
        refused(exact, "StepAdjustments[0].ScalingAdjustment");
    }
}
