//! What connects the devices that communicate: links inside a node, networks between nodes.

/// Kinds of links between devices of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkClass {
    /// NVLink 3 through NVSwitch (A100 SXM): all pairs at full rate.
    NvLink3,
    /// NVLink 4 through NVSwitch with in-switch reduction (H100, H200 SXM).
    NvLink4,
    /// NVLink 5 through NVSwitch with in-switch reduction (B200).
    NvLink5,
    /// AMD Infinity Fabric, fully meshed (MI300X).
    InfinityFabric,
    /// PCIe with peer access below switches.
    PciePeer,
    /// PCIe without peer access: every byte goes through host memory, and ranks compete for it.
    PcieHost,
    /// AWS NeuronLink ring or torus (Inferentia2, Trainium).
    NeuronLink,
}

impl LinkClass {
    /// All classes.
    pub const ALL: [Self; 7] = [
        Self::NvLink3,
        Self::NvLink4,
        Self::NvLink5,
        Self::InfinityFabric,
        Self::PciePeer,
        Self::PcieHost,
        Self::NeuronLink,
    ];

    /// Name in parameter names.
    pub fn name(self) -> &'static str {
        match self {
            Self::NvLink3 => "nvlink3",
            Self::NvLink4 => "nvlink4",
            Self::NvLink5 => "nvlink5",
            Self::InfinityFabric => "infinity_fabric",
            Self::PciePeer => "pcie_peer",
            Self::PcieHost => "pcie_host",
            Self::NeuronLink => "neuronlink",
        }
    }

    /// Usual peak per direction and device [bytes/s] (sources 10.1).
    pub fn peak(self) -> f64 {
        match self {
            Self::NvLink3 => 300e9,
            Self::NvLink4 => 450e9,
            Self::NvLink5 => 900e9,
            Self::InfinityFabric => 448e9,
            Self::PciePeer | Self::PcieHost => 32e9,
            // 192 GiB/s per chip over both neighbours.
            Self::NeuronLink => 206e9,
        }
    }

    /// True where devices reach each other's memory without the host.
    pub fn has_peer_access(self) -> bool {
        self != Self::PcieHost
    }

    /// True where the switch reduces (NVLS, multimem).
    pub(super) fn has_in_switch_reduction(self) -> bool {
        matches!(self, Self::NvLink4 | Self::NvLink5)
    }

    /// True for the GPU links with switch or mesh at memory-like rates.
    pub(super) fn is_nvlink_like(self) -> bool {
        matches!(
            self,
            Self::NvLink3 | Self::NvLink4 | Self::NvLink5 | Self::InfinityFabric
        )
    }

    /// Class whose fitted parameters stand in where this one was never measured.
    pub(super) fn stand_in(self) -> Option<Self> {
        match self {
            Self::NvLink5 => Some(Self::NvLink4),
            Self::InfinityFabric => Some(Self::NvLink3),
            _ => None,
        }
    }
}

/// Kinds of networks between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkClass {
    /// AWS Elastic Fabric Adapter through aws-ofi-nccl, by its published figures.
    Efa,
    /// The two-node p5 fabric that the NVIDIA/AWS multi-node Triton guide measured: 187 us for a
    /// small all-reduce over 16 ranks and 42 GB/s for a large one, as of 4 x 100 Gb/s adapters.
    Efa4x100,
    /// InfiniBand or RoCE with GPUDirect.
    Infiniband,
    /// TCP over Ethernet.
    Tcp,
}

impl NetworkClass {
    /// All classes.
    pub const ALL: [Self; 4] = [Self::Efa, Self::Efa4x100, Self::Infiniband, Self::Tcp];

    /// Name in parameter names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Efa => "efa",
            Self::Efa4x100 => "efa_4x100",
            Self::Infiniband => "infiniband",
            Self::Tcp => "tcp",
        }
    }
}

/// Network between nodes as one group of devices sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Kind.
    pub class: NetworkClass,
    /// Peak of one node per direction over all its adapters [bytes/s], > 0.
    pub node_bandwidth: f64,
}

/// The way that staged bytes take through a host without peer access between its devices.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum HostPath {
    /// A root port of its own for each device, as in most servers one buys: a rank stages as fast as its own link
    /// carries, unless the ring crosses sockets.
    #[default]
    Own,
    /// One path for all devices of the node, as virtual machines with passed-through devices show it, rented ones among them.
    Shared,
}

/// What connects the devices of a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabric {
    /// Link between devices of one node.
    pub link: LinkClass,
    /// Its peak per direction and device [bytes/s], > 0.
    pub link_bandwidth: f64,
    /// Peak memory bandwidth of a device [bytes/s], > 0; copies into registered buffers run at it.
    pub memory_bandwidth: f64,
    /// Devices of a full node, >= 1; sends between nodes share the adapters among them.
    pub devices_per_node: u32,
    /// How staged bytes travel where devices have no peer access ([`LinkClass::PcieHost`]).
    pub host_path: HostPath,
    /// Whether two devices of such a node may reach each other without the host all the same, below one switch.
    pub paired_access: bool,
    /// CPU sockets that the node's devices are spread over, >= 1.
    pub sockets: u32,
    /// Network between nodes, or `None` where the replica stays on one.
    pub network: Option<Network>,
}

impl Fabric {
    /// Whether what `ranks` ranks of a node exchange goes through the host's memory. Two devices below one switch reach each other
    /// also where the rest does not (measured on L40S), if their driver lets them.
    pub fn is_staged(&self, ranks: f64) -> bool {
        !(self.link.has_peer_access() || (ranks <= 2.0 && self.paired_access))
    }

    /// One node with `link` at its usual peak.
    pub fn single_node(link: LinkClass, devices_per_node: u32, memory_bandwidth: f64) -> Self {
        Self {
            link,
            link_bandwidth: link.peak(),
            memory_bandwidth,
            devices_per_node: devices_per_node.max(1),
            host_path: HostPath::Own,
            paired_access: true,
            sockets: 1,
            network: None,
        }
    }
}

/// Devices that communicate: `ranks` of them, spread evenly over `nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Devices.
    pub ranks: u32,
    /// Nodes that they lie on, 1 ..= `ranks`.
    pub nodes: u32,
}

impl Group {
    /// A group on one node.
    pub fn within_node(ranks: u32) -> Self {
        Self { ranks, nodes: 1 }
    }

    /// A group over several nodes.
    pub fn across(ranks: u32, nodes: u32) -> Self {
        Self {
            ranks,
            nodes: nodes.clamp(1, ranks.max(1)),
        }
    }
}
