//! Bounds and rates of change (4.7, 4.8).
//!
//! Source: kubernetes `pkg/controller/podautoscaler/horizontal.go`, `convertDesiredReplicasWithRules` and
//! `convertDesiredReplicasWithBehaviorRate`.

use super::spec::{PolicyAmount, ScalingPolicy, ScalingRules, SelectPolicy};
use crate::control::quantity::{ceil_i32, saturate_i32};
use crate::kernel::time::{SimDuration, SimTime};

/// Reason of the condition ScalingLimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Nothing limits.
    DesiredWithinRange,
    /// `minReplicas`.
    TooFewReplicas,
    /// `maxReplicas`.
    TooManyReplicas,
    /// The rate of scale-up.
    ScaleUpLimit,
    /// The rate of scale-down.
    ScaleDownLimit,
}

impl Limit {
    /// Its name in the API.
    pub fn reason(self) -> &'static str {
        match self {
            Limit::DesiredWithinRange => "DesiredWithinRange",
            Limit::TooFewReplicas => "TooFewReplicas",
            Limit::TooManyReplicas => "TooManyReplicas",
            Limit::ScaleUpLimit => "ScaleUpLimit",
            Limit::ScaleDownLimit => "ScaleDownLimit",
        }
    }

    /// What it means.
    pub fn in_words(self) -> &'static str {
        match self {
            Limit::DesiredWithinRange => "within the acceptable range",
            Limit::TooFewReplicas => "limited by minReplicas",
            Limit::TooManyReplicas => "limited by maxReplicas",
            Limit::ScaleUpLimit => "limited by the rate of scale-up",
            Limit::ScaleDownLimit => "limited by the rate of scale-down",
        }
    }
}

/// Without `behavior` (4.7): at most `max(2 * current, 4)` replicas in one sync, then `minReplicas` and `maxReplicas`.
pub fn without_behavior(current: i32, desired: i32, min: i32, max: i32) -> (i32, Limit) {
    let rate = current.saturating_mul(2).max(4);
    let (most, limit) = if max > rate {
        (rate, Limit::ScaleUpLimit)
    } else {
        (max, Limit::TooManyReplicas)
    };
    if desired < min {
        (min, Limit::TooFewReplicas)
    } else if desired > most {
        (most, limit)
    } else {
        (desired, Limit::DesiredWithinRange)
    }
}

/// An executed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleEvent {
    /// Replicas that came or went; positive in either direction.
    pub change: i32,
    /// When.
    pub at: SimTime,
}

/// Executed changes of the recent past, by direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScaleEvents {
    /// Replicas added.
    pub up: Vec<ScaleEvent>,
    /// Replicas removed.
    pub down: Vec<ScaleEvent>,
}

impl ScaleEvents {
    /// Logs a change and forgets what no policy of its direction looks at any more.
    pub fn store(
        &mut self,
        now: SimTime,
        from: i32,
        to: i32,
        up: &ScalingRules,
        down: &ScalingRules,
    ) {
        let (events, rules) = if to > from {
            (&mut self.up, up)
        } else {
            (&mut self.down, down)
        };
        let longest = rules.longest_period();
        events.retain(|e| now.since(e.at) <= longest);
        let change = saturate_i32(i128::from(to) - i128::from(from)).saturating_abs();
        events.push(ScaleEvent { change, at: now });
    }

    /// Replicas at the start of a period that ends now.
    fn start_of(&self, now: SimTime, current: i32, period: SimDuration) -> i128 {
        let within = |events: &[ScaleEvent]| -> i128 {
            events
                .iter()
                .filter(|e| now.since(e.at) < period)
                .map(|e| i128::from(e.change))
                .sum()
        };
        i128::from(current) - within(&self.up) + within(&self.down)
    }
}

/// What the rates of `behavior` are applied to.
#[derive(Clone, Copy, Debug)]
pub struct Rates<'a> {
    /// `scaleUp`.
    pub up: &'a ScalingRules,
    /// `scaleDown`.
    pub down: &'a ScalingRules,
    /// Changes of the past.
    pub events: &'a ScaleEvents,
    /// `minReplicas`.
    pub min: i32,
    /// `maxReplicas`.
    pub max: i32,
}

impl Rates<'_> {
    /// With `behavior` (4.8): bounds and rates on a stabilized recommendation.
    pub fn apply(&self, now: SimTime, current: i32, desired: i32) -> (i32, Limit) {
        if desired > current {
            let rate = self.up_limit(now, current).max(current);
            let (most, limit) = if self.max > rate {
                (rate, Limit::ScaleUpLimit)
            } else {
                (self.max, Limit::TooManyReplicas)
            };
            if desired > most {
                return (most, limit);
            }
        } else if desired < current {
            let rate = self.down_limit(now, current).min(current);
            let (least, limit) = if self.min < rate {
                (rate, Limit::ScaleDownLimit)
            } else {
                (self.min, Limit::TooFewReplicas)
            };
            if desired < least {
                return (least, limit);
            }
        }
        (desired, Limit::DesiredWithinRange)
    }

    fn up_limit(&self, now: SimTime, current: i32) -> i32 {
        let limit = |policy: &ScalingPolicy| {
            let start = self.events.start_of(now, current, policy.period);
            match policy.amount {
                PolicyAmount::Pods(value) => saturate_i32(start + i128::from(value)),
                PolicyAmount::Percent(value) => {
                    ceil_i32(start as f64 * (1.0 + f64::from(value) / 100.0))
                }
            }
        };
        let limits = self.up.policies.iter().map(limit);
        match self.up.select_policy {
            SelectPolicy::Disabled => current,
            SelectPolicy::Min => limits.min().unwrap_or(i32::MAX),
            SelectPolicy::Max => limits.max().unwrap_or(i32::MIN),
        }
    }

    fn down_limit(&self, now: SimTime, current: i32) -> i32 {
        let limit = |policy: &ScalingPolicy| {
            let start = self.events.start_of(now, current, policy.period);
            match policy.amount {
                PolicyAmount::Pods(value) => saturate_i32(start - i128::from(value)),
                // Cut towards zero.
                PolicyAmount::Percent(value) => {
                    (start as f64 * (1.0 - f64::from(value) / 100.0)) as i32
                }
            }
        };
        let limits = self.down.policies.iter().map(limit);
        match self.down.select_policy {
            SelectPolicy::Disabled => current,
            // The smallest change leaves the most replicas.
            SelectPolicy::Min => limits.max().unwrap_or(i32::MIN),
            SelectPolicy::Max => limits.min().unwrap_or(i32::MAX),
        }
    }
}
