//! Instance types: which accelerators a node has, how they are joined, and what an hour of it costs.

use serde::{Deserialize, Serialize};

use crate::accelerator::Accelerator;
use crate::ops::collective::HostPath;
use crate::units::{ByteSize, BytesPerSec, UsdPerHour};

/// A price and the day it was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Day of the price list, `YYYY-MM-DD`.
    pub date: String,
    /// On demand.
    pub usd: UsdPerHour,
}

/// One type of node.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Instance {
    /// Catalog name, e.g. `p5.48xlarge`.
    pub name: String,
    /// Other names, e.g. `ml.p5.48xlarge`.
    pub aliases: Vec<String>,
    /// Catalog name of its accelerator.
    pub accelerator: String,
    /// Accelerator devices (chips, GPUs) of the node.
    pub devices: u32,
    /// Name of the link that joins them, `None` where there is but one device.
    pub intra_link: Option<String>,
    /// How bytes between devices travel through the host, where these have no peer access; `None`: nobody says.
    pub host_path: Option<HostPath>,
    /// CPU sockets that the devices are spread over.
    pub sockets: u32,
    /// Name of the link between nodes.
    pub network_link: String,
    /// Baseline network bandwidth of the node per direction [bytes/s].
    pub network_bandwidth: f64,
    /// EFA devices of the node (0: none, TCP only).
    pub efa_devices: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Host memory [bytes].
    pub ram_bytes: u64,
    /// Maker of the host CPU.
    pub cpu_vendor: String,
    /// Bandwidth to block storage [bytes/s], where listed.
    pub ebs_bandwidth: Option<f64>,
    /// Local NVMe storage [bytes], where there is any.
    pub local_nvme_bytes: Option<u64>,
    /// Most pods that Kubernetes places on the node, where listed.
    pub max_pods: Option<u32>,
    /// CPU left for pods [millicores], where listed.
    pub allocatable_cpu_millis: Option<u32>,
    /// Memory left for pods [bytes], where listed.
    pub allocatable_memory_bytes: Option<u64>,
    /// How the accelerators are joined, in words.
    pub topology: String,
    /// Who rents it out, e.g. `AWS`, where the catalog says.
    pub provider: Option<String>,
    /// Region that the prices are of, e.g. `us-east-1`, where the catalog says.
    pub region: Option<String>,
    /// Prices, newest first; empty where none is listed.
    pub prices: Vec<Price>,
    /// Where the numbers come from.
    pub source: String,
}

impl Instance {
    /// Ranks that one node serves: its devices times the ranks of each
    /// (a Neuron chip serves one rank per NeuronCore: inf2.48xlarge has 12 chips and 24 ranks).
    pub fn ranks(&self, accelerator: &Accelerator) -> u32 {
        self.devices.saturating_mul(accelerator.ranks_per_device)
    }

    /// The newest price [USD/h], or `None` where none is listed.
    pub fn price(&self) -> Option<&Price> {
        self.prices.iter().max_by(|a, b| a.date.cmp(&b.date))
    }

    /// The price in force on `date` (`YYYY-MM-DD`): the newest that is not later, or `None`.
    pub fn price_on(&self, date: &str) -> Option<&Price> {
        self.prices
            .iter()
            .filter(|p| p.date.as_str() <= date)
            .max_by(|a, b| a.date.cmp(&b.date))
    }
}

/// An instance type as catalog files write it.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InstanceEntry {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    accelerator: String,
    devices: u32,
    intra_link: Option<String>,
    /// Without peer access: `own` (default) where each device has a root port, `shared` where all take one path.
    host_path: Option<HostPath>,
    /// CPU sockets that the devices are spread over; default 1.
    #[serde(default = "one")]
    sockets: u32,
    network_link: String,
    network: BytesPerSec,
    #[serde(default)]
    efa_devices: u32,
    vcpus: u32,
    ram: ByteSize,
    #[serde(default)]
    cpu_vendor: String,
    ebs: Option<BytesPerSec>,
    local_nvme: Option<ByteSize>,
    max_pods: Option<u32>,
    allocatable_cpu_millis: Option<u32>,
    allocatable_memory: Option<ByteSize>,
    #[serde(default)]
    topology: String,
    /// Who rents it out; default: the file's `provider`.
    provider: Option<String>,
    /// Region that the prices are of; default: the file's `region`.
    region: Option<String>,
    #[serde(default)]
    prices: Vec<Price>,
    source: String,
}

fn one() -> u32 {
    1
}

impl InstanceEntry {
    /// The instance type, of `provider` and with prices of `region` where the entry does not say.
    pub(crate) fn resolve(
        self,
        provider: Option<&str>,
        region: Option<&str>,
    ) -> Result<Instance, String> {
        let at = |message: &str| Err(format!("instance `{}`: {message}", self.name));
        if self.devices == 0 || self.devices > 1024 {
            return at("devices must be from 1 to 1024");
        }
        if self.sockets == 0 || self.sockets > self.devices.max(1) {
            return at("sockets must be from 1 to the number of devices");
        }
        if self.network.bytes_per_sec() <= 0.0 {
            return at("network must be above zero");
        }
        if self.devices > 1 && self.intra_link.is_none() {
            return at(
                "intra_link is missing: it names the link between the devices, e.g. \"nvlink4\" or \"pcie4-host\"",
            );
        }
        for p in &self.prices {
            let b = p.date.as_bytes();
            let shape = b.len() == 10
                && b.iter().enumerate().all(|(i, c)| match i {
                    4 | 7 => *c == b'-',
                    _ => c.is_ascii_digit(),
                });
            if !shape {
                return at("prices: date must be written YYYY-MM-DD");
            }
        }
        let mut prices = self.prices;
        prices.sort_by(|a, b| b.date.cmp(&a.date));
        Ok(Instance {
            name: self.name,
            aliases: self.aliases,
            accelerator: self.accelerator,
            devices: self.devices,
            intra_link: self.intra_link,
            host_path: self.host_path,
            sockets: self.sockets,
            network_link: self.network_link,
            network_bandwidth: self.network.bytes_per_sec(),
            efa_devices: self.efa_devices,
            vcpus: self.vcpus,
            ram_bytes: self.ram.bytes(),
            cpu_vendor: self.cpu_vendor,
            ebs_bandwidth: self.ebs.map(BytesPerSec::bytes_per_sec),
            local_nvme_bytes: self.local_nvme.map(ByteSize::bytes),
            max_pods: self.max_pods,
            allocatable_cpu_millis: self.allocatable_cpu_millis,
            allocatable_memory_bytes: self.allocatable_memory.map(ByteSize::bytes),
            topology: self.topology,
            provider: self.provider.or_else(|| provider.map(str::to_owned)),
            region: self.region.or_else(|| region.map(str::to_owned)),
            prices,
            source: self.source,
        })
    }
}
