//! What an autoscaler that is no HPA is shown, and what it answers.

use hwmodels::StepModel;

use super::record::Controller;
use super::sight::Vitals;
use crate::kernel::time::SimTime;

/// What a scaler sees of a deployment and its load.
pub(super) struct Seen<'a> {
    pub now: SimTime,
    /// Requests for it offered so far.
    pub offered: u64,
    /// Requests that have ended.
    pub ended: u64,
    /// Requests held at the gateway.
    pub held: u64,
    /// Replicas wanted.
    pub desired: i32,
    /// Replicas there are.
    pub counted: u32,
    /// Replicas that are ready.
    pub ready: u32,
    /// Engines whose exporters answer, by replica.
    pub engines: &'a [(usize, Vitals)],
    /// How long steps of a healthy engine take.
    pub steps: &'a dyn StepModel,
}

/// What a scaler says.
pub(super) struct Told {
    pub controller: Controller,
    /// Whose size: an index into what the scaler saw.
    pub deployment: usize,
    pub scale_to: Option<i32>,
    pub inputs: String,
    pub why: String,
}

impl Told {
    pub fn of(controller: Controller, scale_to: Option<u32>, why: String) -> Told {
        Told {
            controller,
            deployment: 0,
            scale_to: scale_to.map(|n| i32::try_from(n).unwrap_or(i32::MAX)),
            inputs: String::new(),
            why,
        }
    }
}
