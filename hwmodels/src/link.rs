//! Links between accelerators and between nodes.

use serde::{Deserialize, Serialize};

use crate::ops::collective::{LinkClass, NetworkClass};
use crate::units::{BytesPerSec, Secs};

/// What a link is: it decides which collective algorithms there are and which fitted parameters hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// NVLink 3 through NVSwitch (A100 SXM).
    Nvlink3,
    /// NVLink 4 through NVSwitch (H100, H200 SXM).
    Nvlink4,
    /// NVLink 5 through NVSwitch (B200).
    Nvlink5,
    /// AMD Infinity Fabric, fully meshed.
    InfinityFabric,
    /// PCIe with peer access below switches.
    PciePeer,
    /// PCIe through the host's root complex, without peer access.
    PcieHost,
    /// AWS NeuronLink ring or torus.
    Neuronlink,
    /// Network between nodes: AWS Elastic Fabric Adapter.
    Efa,
    /// Network between nodes: InfiniBand or RoCE.
    Infiniband,
    /// Network between nodes: TCP over Ethernet.
    Tcp,
}

impl LinkKind {
    /// The class of collectives inside a node, or `None` for a network.
    pub fn class(self) -> Option<LinkClass> {
        Some(match self {
            Self::Nvlink3 => LinkClass::NvLink3,
            Self::Nvlink4 => LinkClass::NvLink4,
            Self::Nvlink5 => LinkClass::NvLink5,
            Self::InfinityFabric => LinkClass::InfinityFabric,
            Self::PciePeer => LinkClass::PciePeer,
            Self::PcieHost => LinkClass::PcieHost,
            Self::Neuronlink => LinkClass::NeuronLink,
            Self::Efa | Self::Infiniband | Self::Tcp => return None,
        })
    }

    /// The class of collectives between nodes, or `None` for a link inside a node.
    pub fn network_class(self) -> Option<NetworkClass> {
        Some(match self {
            Self::Efa => NetworkClass::Efa,
            Self::Infiniband => NetworkClass::Infiniband,
            Self::Tcp => NetworkClass::Tcp,
            _ => return None,
        })
    }
}

/// One link type.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Link {
    /// Catalog name, e.g. `nvlink4`.
    pub name: String,
    /// Other names.
    pub aliases: Vec<String>,
    /// What it is.
    pub kind: LinkKind,
    /// Peak per direction and accelerator, or per network device [bytes/s].
    pub bandwidth: f64,
    /// Prior for one small message between neighbours [s]; a fitted profile replaces it.
    pub latency: f64,
    /// Fields recalled rather than read at the source.
    pub recalled: Vec<String>,
    /// Where the numbers come from.
    pub source: String,
}

/// A link as catalog files write it.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkEntry {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    kind: LinkKind,
    bandwidth: BytesPerSec,
    latency: Secs,
    #[serde(default)]
    recalled: Vec<String>,
    source: String,
}

impl LinkEntry {
    pub(crate) fn resolve(self) -> Result<Link, String> {
        if self.bandwidth.bytes_per_sec() <= 0.0 {
            return Err(format!(
                "link `{}`: bandwidth must be above zero",
                self.name
            ));
        }
        Ok(Link {
            name: self.name,
            aliases: self.aliases,
            kind: self.kind,
            bandwidth: self.bandwidth.bytes_per_sec(),
            latency: self.latency.secs(),
            recalled: self.recalled,
            source: self.source,
        })
    }
}
