//! `[autoscaler.on_demand]` as written: models that share accelerators and are loaded on demand.

use hwmodels::units::Secs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::on_demand::Evict;

/// Pools share the accelerators of the node groups, and their models are loaded on demand (llama-swap; Triton with explicit model control): a request for
/// one that is not there waits while the least recently used make room. With `[cluster.actuation]` they sleep and wake, else they end and start.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnDemandFile {
    /// A model that has had no request for so long is unloaded [s]; 0: never. Default: 0.
    #[serde(rename = "globalTTL")]
    pub global_ttl: Option<u32>,
    /// When a model may go for another: it drains, or it is left to its requests until it has none. Default: "drain".
    pub evict: Option<Evict>,
    /// A model that was loaded is not evicted before it has been ready for so long. Default: "0 s".
    pub min_residency: Option<Secs>,
    /// Pools of which something differs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<OnDemandModelFile>,
}

/// One of `models`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnDemandModelFile {
    /// Name of its pool. Needed.
    pub pool: String,
    /// `ttl` [s]: -1 is globalTTL, 0 never. Default: -1.
    pub ttl: Option<i32>,
    /// Requests for models of a higher priority are served first. Default: 0.
    pub priority: Option<i32>,
    /// It is never evicted for another. Default: false.
    pub persistent: Option<bool>,
    /// Most replicas of it: another is loaded while requests wait though all of them are ready (`cluster.max_outstanding`). Default: 1.
    pub replicas: Option<u32>,
}
