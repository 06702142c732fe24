//! Predictive scaling: capacity for the load that the same hour of other days had, before the hour begins.
//!
//! Source: Amazon EC2 Auto Scaling user guide, "Predictive scaling" (settings, that a forecast needs a day of history and looks back at most 14 days, that it
//! adds capacity and leaves scale-in to dynamic policies). How AWS forecasts is not published: here an hour's load is the mean of the same hour of the days that are
//! known.

use serde::{Deserialize, Serialize};

use super::sagemaker::ScalableTarget;
use crate::kernel::time::{SimDuration, SimTime};

/// `Mode`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub enum Mode {
    /// Forecasts are told and change nothing.
    #[default]
    ForecastOnly,
    /// Forecasts scale out.
    ForecastAndScale,
}

/// `MaxCapacityBreachBehavior`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub enum BreachBehavior {
    /// `MaxCapacity` holds.
    #[default]
    HonorMaxCapacity,
    /// A forecast near or above `MaxCapacity` goes beyond it by `MaxCapacityBuffer`.
    IncreaseMaxCapacity,
}

/// `PredictiveScalingPolicyConfiguration`.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictiveSpec {
    /// `Mode`.
    pub mode: Mode,
    /// `SchedulingBufferTime`: how long before an hour its capacity is asked for.
    pub scheduling_buffer: SimDuration,
    /// `MaxCapacityBreachBehavior`.
    pub breach: BreachBehavior,
    /// `MaxCapacityBuffer`: percent of the forecast capacity.
    pub max_capacity_buffer: u32,
    /// `TargetValue`: requests a minute that an instance is to have.
    pub target_value: f64,
    /// Requests a minute in each hour before the run, oldest first: at least 24.
    pub history: Vec<f64>,
}

/// Hours that a forecast looks back at most.
const LONGEST: usize = 14 * 24;
/// Hours of a day.
const DAY: usize = 24;
/// An hour.
const HOUR: SimDuration = SimDuration(3_600_000_000_000);

/// A forecast's floor, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Fewest instances now; none where nothing is known, or the mode only forecasts.
    pub floor: Option<u32>,
    /// Why, in words.
    pub why: String,
}

/// Forecasts of one target.
#[derive(Clone, Debug)]
pub struct PredictiveScaling {
    spec: PredictiveSpec,
    /// Requests a minute of each hour, those before the run first.
    loads: Vec<f64>,
}

impl PredictiveScaling {
    /// # Errors
    /// The field that is wrong, by its real name.
    pub fn new(spec: PredictiveSpec) -> Result<PredictiveScaling, String> {
        if !(spec.target_value.is_finite() && spec.target_value > 0.0) {
            return Err(format!(
                "TargetValue: must be above 0, got {}",
                spec.target_value
            ));
        }
        if spec.history.len() < DAY {
            return Err(format!(
                "History: a forecast needs at least {DAY} hours, got {}",
                spec.history.len()
            ));
        }
        if spec.scheduling_buffer > HOUR {
            return Err("SchedulingBufferTime: must be at most 3600".to_owned());
        }
        if spec.max_capacity_buffer > 100 {
            return Err(format!(
                "MaxCapacityBuffer: must be from 0 to 100, got {}",
                spec.max_capacity_buffer
            ));
        }
        Ok(PredictiveScaling {
            loads: spec.history.clone(),
            spec,
        })
    }

    /// The next hour of the run had so many requests a minute.
    pub fn observe(&mut self, per_minute: f64) {
        self.loads.push(per_minute);
    }

    /// Requests a minute foreseen in hour `hour` of the run: the mean of the same hour of the days that are known.
    fn foreseen(&self, hour: usize) -> Option<f64> {
        let wanted = self.spec.history.len() + hour;
        let oldest = self.loads.len().saturating_sub(LONGEST);
        let known: Vec<f64> = (1..)
            .map_while(|day| wanted.checked_sub(day * DAY))
            .take_while(|i| *i >= oldest)
            .filter_map(|i| self.loads.get(i).copied())
            .collect();
        match known.len() {
            0 => None,
            n => Some(known.iter().sum::<f64>() / n as f64),
        }
    }

    /// The floor at `now`: what this hour needs, or the next one from `SchedulingBufferTime` before it on.
    pub fn floor(&self, now: SimTime, target: ScalableTarget) -> Forecast {
        let hour = |at: SimTime| (at.0 / HOUR.0) as usize;
        let hours = [hour(now), hour(now + self.spec.scheduling_buffer)];
        let load = hours
            .iter()
            .filter_map(|h| self.foreseen(*h))
            .fold(None, |most: Option<f64>, l| {
                Some(most.map_or(l, |m| m.max(l)))
            });
        let Some(load) = load else {
            return Forecast {
                floor: None,
                why: "no forecast: the same hour is not known of any day".to_owned(),
            };
        };
        let wanted = (load / self.spec.target_value).ceil();
        let most = match self.spec.breach {
            BreachBehavior::HonorMaxCapacity => f64::from(target.max_capacity),
            BreachBehavior::IncreaseMaxCapacity => f64::from(target.max_capacity)
                .max((wanted * (1.0 + f64::from(self.spec.max_capacity_buffer) / 100.0)).ceil()),
        };
        let floor = wanted.clamp(f64::from(target.min_capacity).min(most), most) as u32;
        let why = format!(
            "{load:.1} requests a minute foreseen, {} for each instance",
            self.spec.target_value
        );
        Forecast {
            floor: (self.spec.mode == Mode::ForecastAndScale).then_some(floor),
            why: match self.spec.mode {
                Mode::ForecastAndScale => why,
                Mode::ForecastOnly => format!("{why}: {floor} wanted; ForecastOnly"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: ScalableTarget = ScalableTarget {
        min_capacity: 1,
        max_capacity: 10,
    };

    fn spec() -> PredictiveSpec {
        PredictiveSpec {
            mode: Mode::ForecastAndScale,
            scheduling_buffer: SimDuration(300_000_000_000),
            breach: BreachBehavior::HonorMaxCapacity,
            max_capacity_buffer: 0,
            target_value: 60.0,
            // Hour h had 60 h requests a minute.
            history: (0..24).map(|h| 60.0 * f64::from(h)).collect(),
        }
    }

    fn at(hours: f64) -> SimTime {
        SimTime::from_secs(hours * 3600.0)
    }

    #[test]
    fn an_hour_gets_what_it_needed_the_day_before_five_minutes_early() {
        let p = PredictiveScaling::new(spec()).expect("right");
        let floor = |hours: f64| p.floor(at(hours), TARGET).floor;
        assert_eq!(floor(4.5), Some(4));
        assert_eq!(floor(4.95), Some(5), "SchedulingBufferTime before hour 5");
        assert_eq!(floor(0.0), Some(1), "MinCapacity");
        assert_eq!(floor(20.0), Some(10), "MaxCapacity");
    }

    #[test]
    fn days_are_averaged_and_hours_that_are_not_known_are_not() {
        let mut p = PredictiveScaling::new(spec()).expect("right");
        assert_eq!(p.floor(at(28.0), TARGET).floor, Some(4), "the first day");
        for h in 0..24 {
            p.observe(60.0 * f64::from(h) + 120.0);
        }
        assert_eq!(
            p.floor(at(28.0), TARGET).floor,
            Some(5),
            "4 and 6 on average"
        );
        assert!(p.floor(at(28.0), TARGET).why.starts_with("300.0 requests"));
    }

    #[test]
    fn a_breach_goes_beyond_the_maximum_and_forecast_only_changes_nothing() {
        let more = PredictiveSpec {
            breach: BreachBehavior::IncreaseMaxCapacity,
            max_capacity_buffer: 10,
            ..spec()
        };
        let p = PredictiveScaling::new(more).expect("right");
        assert_eq!(p.floor(at(20.0), TARGET).floor, Some(20));
        let told = PredictiveSpec {
            mode: Mode::ForecastOnly,
            ..spec()
        };
        let f = PredictiveScaling::new(told)
            .expect("right")
            .floor(at(5.0), TARGET);
        assert_eq!(f.floor, None);
        assert!(f.why.ends_with("5 wanted; ForecastOnly"), "{}", f.why);
    }

    #[test]
    fn wrong_fields_are_named() {
        let refused = |s: PredictiveSpec, field: &str| {
            let message = PredictiveScaling::new(s).expect_err(field);
            assert!(message.starts_with(field), "{message}");
        };
        refused(
            PredictiveSpec {
                target_value: 0.0,
                ..spec()
            },
            "TargetValue",
        );
        refused(
            PredictiveSpec {
                history: vec![1.0; 23],
                ..spec()
            },
            "History",
        );
        refused(
            PredictiveSpec {
                scheduling_buffer: SimDuration(3_601_000_000_000),
                ..spec()
            },
            "SchedulingBufferTime",
        );
    }
}
