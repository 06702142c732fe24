//! Autoscalers that are no HPA, under one name.

use super::endpoint::Endpoint;
use super::planner::Workers;
use super::saturation::Variant;
use super::seen::{Seen, Told};
use super::spec::{DeploymentSpec, ScalerSpec, ScalerUse};
use crate::kernel::time::SimTime;

/// An autoscaler at work.
pub(super) enum Scaler {
    SageMaker(Box<Endpoint>),
    Dynamo(Box<Workers>),
    Wva(Box<Variant>),
}

impl Scaler {
    /// That of `own`, which scales some of `all`.
    pub fn new(own: &ScalerUse, all: &[DeploymentSpec]) -> Result<Scaler, String> {
        let scaled: Vec<&DeploymentSpec> = own.deployments.iter().map(|d| &all[*d]).collect();
        Ok(match &own.spec {
            ScalerSpec::SageMaker(spec) => Scaler::SageMaker(Box::new(Endpoint::new(spec)?)),
            ScalerSpec::Dynamo(config) => Scaler::Dynamo(Box::new(Workers::new(config, &scaled)?)),
            ScalerSpec::Wva(spec) => Scaler::Wva(Box::new(Variant::new(spec, scaled[0].facts)?)),
        })
    }

    pub fn due(&self) -> SimTime {
        match self {
            Scaler::SageMaker(s) => s.due(),
            Scaler::Dynamo(s) => s.due(),
            Scaler::Wva(s) => s.due(),
        }
    }

    /// A turn; it sees each of the deployments that it scales.
    pub fn turn(&mut self, seen: &[Seen]) -> Vec<Told> {
        match self {
            Scaler::SageMaker(s) => s.turn(&seen[0]),
            Scaler::Dynamo(s) => s.turn(seen),
            Scaler::Wva(s) => s.turn(&seen[0]),
        }
    }
}
