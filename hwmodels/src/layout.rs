//! How one replica is spread over devices.

use serde::{Deserialize, Serialize};

/// Parallel layout of one replica. Data-parallel replicas are separate replicas behind a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Layout {
    /// Tensor-parallel ranks per stage.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Expert-parallel ranks within a stage: 1 splits every expert over the `tp` ranks,
    /// `tp` gives each rank whole experts.
    pub ep: u32,
}

impl Layout {
    /// One device.
    pub const SINGLE: Layout = Layout {
        tp: 1,
        pp: 1,
        ep: 1,
    };

    /// Devices of the replica.
    pub fn devices(self) -> u32 {
        self.tp * self.pp
    }
}
