//! Links between accelerators and between nodes.

use serde::{Deserialize, Serialize};

use crate::units::{BytesPerSec, Secs};

/// How the ends of a link reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// All to all through a switch (NVSwitch).
    Switched,
    /// A link from each device to each other (Infinity Fabric).
    Mesh,
    /// Through the host's root complex, shared by the devices below one bridge.
    Host,
    /// A ring over the devices (NeuronLink on Inferentia2).
    Ring,
    /// A torus over the devices (NeuronLink on Trainium).
    Torus,
    /// A network between nodes (EFA, ENA).
    Network,
}

/// One link type.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Link {
    /// Catalog name, e.g. `nvlink4`.
    pub name: String,
    /// Other names.
    pub aliases: Vec<String>,
    /// How its ends reach each other.
    pub kind: LinkKind,
    /// Peak per direction and accelerator, or per network device [bytes/s].
    pub bandwidth: f64,
    /// Prior for one small message between neighbours [s]; a fitted profile replaces it.
    pub latency: f64,
    /// True when a device can read its peer's memory directly.
    pub peer_access: bool,
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
    peer_access: bool,
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
            peer_access: self.peer_access,
            recalled: self.recalled,
            source: self.source,
        })
    }
}
