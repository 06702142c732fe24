//! Autoscalers that are no HPA, under one name.

use super::endpoint::Endpoint;
use super::planner::Workers;
use super::saturation::Variant;
use super::seen::{Seen, Told};
use super::spec::{EngineFacts, ScalerSpec};
use crate::kernel::time::SimTime;

/// An autoscaler at work.
pub(super) enum Scaler {
    SageMaker(Box<Endpoint>),
    Dynamo(Box<Workers>),
    Wva(Box<Variant>),
}

impl Scaler {
    pub fn new(spec: &ScalerSpec, facts: EngineFacts, gpus: u32) -> Result<Scaler, String> {
        Ok(match spec {
            ScalerSpec::SageMaker(spec) => Scaler::SageMaker(Box::new(Endpoint::new(spec)?)),
            ScalerSpec::Dynamo(config) => {
                Scaler::Dynamo(Box::new(Workers::new(config, facts, gpus)?))
            }
            ScalerSpec::Wva(spec) => Scaler::Wva(Box::new(Variant::new(spec, facts)?)),
        })
    }

    pub fn due(&self) -> SimTime {
        match self {
            Scaler::SageMaker(s) => s.due(),
            Scaler::Dynamo(s) => s.due(),
            Scaler::Wva(s) => s.due(),
        }
    }

    pub fn turn(&mut self, seen: &Seen) -> Vec<Told> {
        match self {
            Scaler::SageMaker(s) => s.turn(seen),
            Scaler::Dynamo(s) => s.turn(seen),
            Scaler::Wva(s) => s.turn(seen),
        }
    }
}
