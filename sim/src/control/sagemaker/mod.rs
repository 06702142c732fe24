//! Application Auto Scaling of SageMaker endpoints: CloudWatch alarms, target tracking and step scaling (5.5).
//!
//! A scalable target has a capacity (instances of a variant, copies of an inference component) between `MinCapacity` and `MaxCapacity`. A policy owns
//! alarms on a metric. Whoever drives it tells each datapoint when CloudWatch has published it (a minute or two after its period) with
//! `observe`, and calls `tick` once a period. Sources: Application Auto Scaling user guide ("How target tracking scaling works",
//! "How step scaling works", "Define cooldown periods"), API reference of the policy configurations; AWS re:Post "SageMaker autoscaling
//! delay" for the datapoints of managed alarms.

pub mod alarm;
pub mod step_scaling;
pub mod target_tracking;

use serde::{Deserialize, Serialize};

/// Bounds of a scalable target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalableTarget {
    /// `MinCapacity`.
    pub min_capacity: u32,
    /// `MaxCapacity`.
    pub max_capacity: u32,
}

impl ScalableTarget {
    /// # Errors
    /// The bounds contradict each other.
    pub fn check(&self) -> Result<(), String> {
        if self.min_capacity > self.max_capacity {
            return Err(format!(
                "MinCapacity ({}) must be at most MaxCapacity ({})",
                self.min_capacity, self.max_capacity
            ));
        }
        Ok(())
    }

    pub(super) fn bound(&self, capacity: f64) -> u32 {
        let (low, high) = (f64::from(self.min_capacity), f64::from(self.max_capacity));
        capacity.clamp(low, high) as u32
    }
}

/// What a policy decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The new desired capacity, where it is to be written.
    pub scale_to: Option<u32>,
    /// Why, in words.
    pub why: String,
}

impl Decision {
    pub(super) fn keep(current: u32, why: &str) -> Decision {
        Decision {
            scale_to: None,
            why: format!("kept {current}: {why}"),
        }
    }
}
