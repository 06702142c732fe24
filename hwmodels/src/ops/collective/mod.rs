//! Time of collective communication: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast
//! and point-to-point sends, over NVLink, PCIe, NeuronLink and between nodes.
//!
//! Every algorithm is `latency(ranks) + traffic(bytes, ranks) / (efficiency x link peak)`, and a
//! library picks among its algorithms as it does in reality: NCCL by the smallest estimate
//! (sources 9.1), the engines' own all-reduce by message size (9.3). Latencies and
//! efficiencies are parameters named `collective.<link>.<library>.<algorithm>.<what>`; a
//! [`Profile`] overrides the fitted values that ship with the crate, and those override the
//! analytic priors. Efficiencies are fractions of the link's peak, so no parameter can make a
//! link faster than its datasheet. See `docs/collectives.md`.

mod all_reduce;
mod engines;
mod fabric;
mod line;
mod model;
mod nccl;
mod params;
#[cfg(test)]
mod tests;
mod tuning;

pub use all_reduce::{AllReduceImpl, Launch};
pub use fabric::{Fabric, Group, HostPath, LinkClass, Network, NetworkClass};
pub use model::CollectiveModel;
pub use params::{Prior, all_parameters, fitted_param, parameters, shipped_profile};
