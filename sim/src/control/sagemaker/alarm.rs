//! CloudWatch metric alarms.
//!
//! An alarm looks at the last `EvaluationPeriods` periods that have ended and been published; it is ALARM where at least `DatapointsToAlarm` of them
//! breach. Not modelled: that CloudWatch looks further back where datapoints are missing, and anomaly detection.

use std::collections::VecDeque;

use hwmodels::units::Secs;
use serde::{Deserialize, Serialize};

use crate::kernel::time::{SimDuration, SimTime};

/// `ComparisonOperator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum ComparisonOperator {
    /// Breaches above the threshold.
    GreaterThanThreshold,
    /// Breaches at the threshold and above.
    GreaterThanOrEqualToThreshold,
    /// Breaches below the threshold.
    LessThanThreshold,
    /// Breaches at the threshold and below.
    LessThanOrEqualToThreshold,
}

impl ComparisonOperator {
    /// Whether a value breaches.
    pub fn breaches(self, value: f64, threshold: f64) -> bool {
        match self {
            ComparisonOperator::GreaterThanThreshold => value > threshold,
            ComparisonOperator::GreaterThanOrEqualToThreshold => value >= threshold,
            ComparisonOperator::LessThanThreshold => value < threshold,
            ComparisonOperator::LessThanOrEqualToThreshold => value <= threshold,
        }
    }
}

/// `TreatMissingData`: what a period without a datapoint counts as.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum TreatMissingData {
    /// As nothing; INSUFFICIENT_DATA where all are missing.
    #[default]
    Missing,
    /// As a datapoint that does not breach.
    NotBreaching,
    /// As one that does.
    Breaching,
    /// Any missing one keeps the state.
    Ignore,
}

/// `PutMetricAlarm`, as far as it decides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlarmSpec {
    /// `Period`.
    pub period: Secs,
    /// `EvaluationPeriods`.
    pub evaluation_periods: u32,
    /// `DatapointsToAlarm`.
    pub datapoints_to_alarm: u32,
    /// `Threshold`.
    pub threshold: f64,
    /// `ComparisonOperator`.
    pub comparison_operator: ComparisonOperator,
    /// `TreatMissingData`.
    #[serde(default)]
    pub treat_missing_data: TreatMissingData,
}

impl AlarmSpec {
    /// # Errors
    /// What CloudWatch refuses, by the field's name.
    pub fn check(&self) -> Result<(), String> {
        let period = self.period.secs();
        if !(period == 10.0 || period == 30.0 || (period > 0.0 && period % 60.0 == 0.0)) {
            return Err(format!(
                "Period: must be 10 s, 30 s or a multiple of 60 s, got {period} s"
            ));
        }
        if self.evaluation_periods == 0 {
            return Err("EvaluationPeriods: must be at least 1".to_owned());
        }
        if !(1..=self.evaluation_periods).contains(&self.datapoints_to_alarm) {
            return Err(format!(
                "DatapointsToAlarm: must be from 1 to EvaluationPeriods ({}), got {}",
                self.evaluation_periods, self.datapoints_to_alarm
            ));
        }
        if !self.threshold.is_finite() {
            return Err("Threshold: must be finite".to_owned());
        }
        Ok(())
    }
}

/// State of an alarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlarmState {
    /// Not enough is known.
    #[default]
    InsufficientData,
    /// Enough datapoints do not breach.
    Ok,
    /// Enough datapoints breach.
    Alarm,
}

/// An alarm and the datapoints that it knows.
#[derive(Clone, Debug)]
pub struct Alarm {
    spec: AlarmSpec,
    /// Starts of periods with their values, oldest first.
    points: VecDeque<(u64, f64)>,
    state: AlarmState,
}

impl Alarm {
    /// # Errors
    /// What CloudWatch refuses.
    pub fn new(spec: AlarmSpec) -> Result<Alarm, String> {
        spec.check()?;
        Ok(Alarm {
            spec,
            points: VecDeque::new(),
            state: AlarmState::default(),
        })
    }

    /// Its settings.
    pub fn spec(&self) -> &AlarmSpec {
        &self.spec
    }

    /// The latest value that it knows.
    pub fn latest(&self) -> Option<f64> {
        self.points.back().map(|p| p.1)
    }

    /// CloudWatch has published the value of the period that began at `start`.
    pub fn observe(&mut self, start: SimTime, value: f64) {
        let index = self.index(start);
        match self.points.iter_mut().find(|p| p.0 == index) {
            Some(point) => point.1 = value,
            None => {
                let at = self.points.partition_point(|p| p.0 < index);
                self.points.insert(at, (index, value));
            }
        }
        while self.points.len() > self.spec.evaluation_periods as usize {
            self.points.pop_front();
        }
    }

    fn index(&self, at: SimTime) -> u64 {
        at.0 / SimDuration::from_secs(self.spec.period.secs()).0.max(1)
    }

    /// Its state from the periods up to the one that began at `last`, the newest that is published.
    pub fn evaluate(&mut self, last: SimTime) -> AlarmState {
        let n = u64::from(self.spec.evaluation_periods);
        let end = self.index(last) + 1;
        let start = end.saturating_sub(n);
        let known = self.points.iter().filter(|p| (start..end).contains(&p.0));
        let (mut breaching, mut present) = (0u64, 0u64);
        for (_, value) in known {
            present += 1;
            let spec = &self.spec;
            breaching += u64::from(spec.comparison_operator.breaches(*value, spec.threshold));
        }
        let missing = n - present;
        let needed = u64::from(self.spec.datapoints_to_alarm);
        self.state = match self.spec.treat_missing_data {
            TreatMissingData::Ignore if missing > 0 => self.state,
            TreatMissingData::Missing if present == 0 => AlarmState::InsufficientData,
            TreatMissingData::Breaching if breaching + missing >= needed => AlarmState::Alarm,
            _ if breaching >= needed => AlarmState::Alarm,
            // What is missing might have breached: the state is not known to be OK, and stays where it was ALARM.
            TreatMissingData::Missing
                if breaching + missing >= needed && self.state == AlarmState::Alarm =>
            {
                AlarmState::Alarm
            }
            _ => AlarmState::Ok,
        };
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> SimTime {
        SimTime(secs * 1_000_000_000)
    }

    fn alarm(of: u32, n: u32, treat: TreatMissingData) -> Alarm {
        Alarm::new(AlarmSpec {
            period: Secs::new(60.0).expect("a duration"),
            evaluation_periods: n,
            datapoints_to_alarm: of,
            threshold: 10.0,
            comparison_operator: ComparisonOperator::GreaterThanThreshold,
            treat_missing_data: treat,
        })
        .expect("right")
    }

    fn told(alarm: &mut Alarm, values: &[f64]) -> AlarmState {
        for (i, v) in values.iter().enumerate() {
            if !v.is_nan() {
                alarm.observe(at(60 * i as u64), *v);
            }
        }
        alarm.evaluate(at(60 * (values.len() as u64 - 1)))
    }

    #[test]
    fn so_many_datapoints_out_of_so_many_periods_make_an_alarm() {
        let state =
            |of, n, values: &[f64]| told(&mut alarm(of, n, TreatMissingData::Missing), values);
        assert_eq!(
            state(3, 3, &[11.0, 11.0]),
            AlarmState::Ok,
            "two of three, none before"
        );
        assert_eq!(state(3, 3, &[11.0, 11.0, 11.0]), AlarmState::Alarm);
        assert_eq!(
            state(3, 3, &[11.0, 10.0, 11.0]),
            AlarmState::Ok,
            "not at the threshold"
        );
        assert_eq!(state(2, 3, &[11.0, 9.0, 11.0]), AlarmState::Alarm);
        assert_eq!(
            state(3, 3, &[11.0, 11.0, 11.0, 9.0]),
            AlarmState::Ok,
            "the window moved on"
        );
    }

    #[test]
    fn missing_datapoints_count_as_they_are_said_to() {
        let nan = f64::NAN;
        let state = |treat, values: &[f64]| told(&mut alarm(2, 2, treat), values);
        assert_eq!(
            state(TreatMissingData::Missing, &[nan, nan]),
            AlarmState::InsufficientData
        );
        assert_eq!(
            state(TreatMissingData::NotBreaching, &[11.0, nan]),
            AlarmState::Ok
        );
        assert_eq!(
            state(TreatMissingData::Breaching, &[11.0, nan]),
            AlarmState::Alarm
        );
        let mut kept = alarm(2, 2, TreatMissingData::Ignore);
        assert_eq!(told(&mut kept, &[11.0, 11.0]), AlarmState::Alarm);
        assert_eq!(kept.evaluate(at(180)), AlarmState::Alarm);
        let mut missing = alarm(2, 2, TreatMissingData::Missing);
        assert_eq!(told(&mut missing, &[11.0, 11.0]), AlarmState::Alarm);
        assert_eq!(
            missing.evaluate(at(120)),
            AlarmState::Alarm,
            "one is missing"
        );
        assert_eq!(missing.evaluate(at(300)), AlarmState::InsufficientData);
    }

    #[test]
    fn a_late_datapoint_finds_its_place() {
        let mut a = alarm(2, 2, TreatMissingData::NotBreaching);
        a.observe(at(60), 11.0);
        assert_eq!(a.evaluate(at(60)), AlarmState::Ok);
        a.observe(at(0), 12.0);
        assert_eq!(a.evaluate(at(60)), AlarmState::Alarm);
        assert_eq!(a.latest(), Some(11.0));
    }

    #[test]
    fn what_cloudwatch_refuses_is_refused_by_name() {
        let right = *alarm(1, 1, TreatMissingData::Missing).spec();
        let refused = |spec: AlarmSpec, field: &str| {
            let message = Alarm::new(spec).expect_err(field);
            assert!(message.starts_with(field), "{message}");
        };
        let secs = |s| Secs::new(s).expect("a duration");
        refused(
            AlarmSpec {
                period: secs(45.0),
                ..right
            },
            "Period",
        );
        refused(
            AlarmSpec {
                period: secs(0.0),
                ..right
            },
            "Period",
        );
        refused(
            AlarmSpec {
                evaluation_periods: 0,
                ..right
            },
            "EvaluationPeriods",
        );
        refused(
            AlarmSpec {
                datapoints_to_alarm: 2,
                ..right
            },
            "DatapointsToAlarm",
        );
        refused(
            AlarmSpec {
                threshold: f64::NAN,
                ..right
            },
            "Threshold",
        );
        assert!(
            Alarm::new(AlarmSpec {
                period: secs(10.0),
                ..right
            })
            .is_ok()
        );
    }
}
