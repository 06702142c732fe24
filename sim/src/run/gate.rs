//! The rules of the gateway for tries that fail, and what they have led to.

use super::outliers::Outliers;
use super::retries::Retries;
use crate::cluster::gateway::GatewaySpec;
use crate::kernel::time::SimTime;
use crate::record::GatewayRecord;

/// The rules of the gateway, where it has any, and what they have led to.
pub(super) struct Gate {
    pub spec: GatewaySpec,
    pub retries: Option<Retries>,
    pub outliers: Option<Outliers>,
    pub record: GatewayRecord,
}

impl Gate {
    /// One that does what `spec` says, in the run with `seed`; `None`: it passes every answer on.
    pub fn new(spec: &GatewaySpec, seed: u64) -> Option<Box<Gate>> {
        (*spec != GatewaySpec::default()).then(|| {
            Box::new(Gate {
                spec: *spec,
                retries: spec.retries.map(|r| Retries::new(r, seed)),
                outliers: spec.outliers.map(Outliers::new),
                record: GatewayRecord::default(),
            })
        })
    }

    /// When it sends a request again.
    pub fn next_retry(&self) -> SimTime {
        (self.retries.as_ref()).map_or(SimTime::NEVER, Retries::next)
    }

    /// When it takes a replica back.
    pub fn next_return(&self) -> SimTime {
        (self.outliers.as_ref()).map_or(SimTime::NEVER, Outliers::next)
    }

    /// Requests that wait to be sent again.
    pub fn waiting(&self) -> usize {
        self.retries.as_ref().map_or(0, Retries::waiting)
    }

    /// What it has done.
    pub fn record(&self) -> GatewayRecord {
        self.record
    }
}
