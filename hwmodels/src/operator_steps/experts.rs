//! Expert layers of data-parallel ranks.

use super::device::Device;
use crate::ops::collective::{CollectiveModel, Group};
use crate::ops::{MoeShape, OperatorModel, Routing};

/// Expert layers of data-parallel ranks: each rank's tokens are gathered on all of them, every rank computes its share of the
/// experts, and the results are added up and scattered back.
#[derive(Clone, Debug)]
pub(super) struct SharedExperts {
    pub(super) shape: MoeShape,
    pub(super) routing: Routing,
    pub(super) layers: f64,
    pub(super) ranks: u32,
    pub(super) group: Group,
    pub(super) collectives: CollectiveModel,
    /// Bytes of a token as it is gathered, and as it comes back.
    pub(super) gathered: f64,
    pub(super) scattered: f64,
}

impl SharedExperts {
    /// Adds the expert layers' work for `tokens` tokens of all ranks.
    pub(super) fn add(&self, tokens: u32, ops: &OperatorModel, device: &mut Device) {
        let mut layer = Device::default();
        layer.add_gemm(ops.moe(&self.shape, tokens, self.routing));
        let tokens = f64::from(tokens);
        layer.communication += self
            .collectives
            .all_gather(tokens * self.gathered, self.group)
            + self
                .collectives
                .reduce_scatter(tokens * self.scattered, self.group);
        device.add_scaled(&layer, self.layers);
    }
}
