//! Accelerators: memory size, bandwidth, peak rates, links; every number with its source.

use serde::{Deserialize, Serialize};

use crate::mig::profile::Profile;
use crate::units::{ByteSize, BytesPerSec, FlopsPerSec};

/// One device of one kind, as its datasheet gives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Accelerator {
    /// Catalog name, e.g. `H100-SXM5-80GB`.
    pub name: String,
    /// Other names users write, e.g. `h100`.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Maker.
    pub vendor: String,
    /// Another accelerator of the catalog that is the same chip with other memory, clocks or links: kernel profiles of that one hold here as
    /// extrapolated.
    #[serde(default)]
    pub same_chip_as: Option<String>,
    /// Memory of the device as listed [bytes].
    pub memory_bytes: u64,
    /// What a process sees as the device's total memory [bytes]; engines take their fractions of this.
    pub usable_bytes: u64,
    /// Peak memory bandwidth [bytes/s].
    pub memory_bandwidth: f64,
    /// Dense peak of 16-bit matrix arithmetic [FLOP/s].
    pub bf16_flops: f64,
    /// Dense peak of 8-bit floating-point matrix arithmetic [FLOP/s], where there is any.
    pub fp8_flops: Option<f64>,
    /// Dense peak of 8-bit integer matrix arithmetic [OP/s], where there is any.
    pub int8_ops: Option<f64>,
    /// Dense peak of 4-bit floating-point matrix arithmetic [FLOP/s], where there is any.
    pub fp4_flops: Option<f64>,
    /// Processors of the device (SMs, compute units, NeuronCores).
    pub units: u32,
    /// Tensor-parallel ranks that one device serves: 1 for GPUs, one per NeuronCore on Neuron chips.
    pub ranks_per_device: u32,
    /// Last-level cache or on-chip memory [bytes].
    pub on_chip_bytes: u64,
    /// Rate at which all processors together read that cache [bytes/s], as a benchmark measured it; `None` where nobody did.
    pub cache_bandwidth: Option<f64>,
    /// Name of the link between devices of one node, or `None` where traffic goes through the host.
    pub scale_up_link: Option<String>,
    /// Peak of that link per direction and device [bytes/s].
    pub scale_up_bandwidth: Option<f64>,
    /// Peak of the host link per direction [bytes/s].
    pub host_bandwidth: f64,
    /// Whether the driver lets devices reach each other's memory over PCIe. GeForce cards may not: even two of them below one switch stage through
    /// the host.
    #[serde(default = "yes")]
    pub peer_access: bool,
    /// MIG profiles that the device can be cut into, e.g. `3g.20gb`; the last one is the whole device. Empty: it has no MIG.
    #[serde(default)]
    pub mig: Vec<String>,
    /// Fields recalled from datasheets rather than read at the source.
    #[serde(default)]
    pub recalled: Vec<String>,
    /// Where the numbers come from.
    pub source: String,
}

impl Accelerator {
    /// What one rank has of the device: memory, bandwidths, peaks and units divided by
    /// [`Accelerator::ranks_per_device`]. The name stays that of the device. For GPUs this is the device itself.
    pub fn per_rank(&self) -> Accelerator {
        let n = self.ranks_per_device.max(1);
        let (ni, nf) = (u64::from(n), f64::from(n));
        Accelerator {
            memory_bytes: self.memory_bytes / ni,
            usable_bytes: self.usable_bytes / ni,
            memory_bandwidth: self.memory_bandwidth / nf,
            bf16_flops: self.bf16_flops / nf,
            fp8_flops: self.fp8_flops.map(|v| v / nf),
            int8_ops: self.int8_ops.map(|v| v / nf),
            fp4_flops: self.fp4_flops.map(|v| v / nf),
            units: (self.units / n).max(1),
            ranks_per_device: 1,
            on_chip_bytes: self.on_chip_bytes / ni,
            cache_bandwidth: self.cache_bandwidth.map(|v| v / nf),
            scale_up_bandwidth: self.scale_up_bandwidth.map(|v| v / nf),
            host_bandwidth: self.host_bandwidth / nf,
            ..self.clone()
        }
    }

    /// Dense peak for arithmetic in `dtype` [FLOP/s]; formats the part has no arithmetic for run at the 16-bit peak.
    /// Weight-only formats (int4, mxfp4 without FP4 arithmetic) are dequantised to 16 bits (sources 7.5).
    pub fn peak_flops(&self, dtype: crate::Dtype) -> f64 {
        use crate::Dtype::{Bf16, Fp8, Fp32, Int4, Int8, Mxfp4};
        match dtype {
            Fp8 => self.fp8_flops.unwrap_or(self.bf16_flops),
            Int8 => self.int8_ops.unwrap_or(self.bf16_flops),
            Mxfp4 => self.fp4_flops.unwrap_or(self.bf16_flops),
            // TF32 matrix arithmetic runs at half the 16-bit rate on the tensor cores.
            Fp32 => self.bf16_flops / 2.0,
            Bf16 | Int4 => self.bf16_flops,
        }
    }
}

/// An accelerator as catalog files write it.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcceleratorEntry {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    vendor: String,
    same_chip_as: Option<String>,
    memory: ByteSize,
    usable_memory: Option<ByteSize>,
    memory_bandwidth: BytesPerSec,
    bf16: FlopsPerSec,
    fp8: Option<FlopsPerSec>,
    int8: Option<FlopsPerSec>,
    fp4: Option<FlopsPerSec>,
    units: u32,
    #[serde(default = "one")]
    ranks_per_device: u32,
    on_chip: ByteSize,
    cache_bandwidth: Option<BytesPerSec>,
    scale_up_link: Option<String>,
    scale_up_bandwidth: Option<BytesPerSec>,
    host_bandwidth: BytesPerSec,
    #[serde(default = "yes")]
    peer_access: bool,
    #[serde(default)]
    mig: Vec<String>,
    #[serde(default)]
    recalled: Vec<String>,
    source: String,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

impl AcceleratorEntry {
    pub(crate) fn resolve(self) -> Result<Accelerator, String> {
        let at =
            |field: &str, rule: &str| Err(format!("accelerator `{}`: {field} {rule}", self.name));
        if self.memory.bytes() == 0 {
            return at("memory", "must be above zero");
        }
        let usable = self.usable_memory.unwrap_or(self.memory);
        if usable.bytes() == 0 || usable > self.memory {
            return at("usable_memory", "must be above zero and at most `memory`");
        }
        if self.memory_bandwidth.bytes_per_sec() <= 0.0
            || self.host_bandwidth.bytes_per_sec() <= 0.0
        {
            return at("memory_bandwidth and host_bandwidth", "must be above zero");
        }
        if self
            .cache_bandwidth
            .is_some_and(|r| r.bytes_per_sec() < self.memory_bandwidth.bytes_per_sec())
        {
            return at(
                "cache_bandwidth",
                "must be at least `memory_bandwidth` where given",
            );
        }
        let peaks = [Some(self.bf16), self.fp8, self.int8, self.fp4];
        if peaks.iter().flatten().any(|p| p.per_sec() <= 0.0) {
            return at("bf16, fp8, int8, fp4", "must be above zero where given");
        }
        if self.units == 0 || self.ranks_per_device == 0 || self.units < self.ranks_per_device {
            return at(
                "units and ranks_per_device",
                "must be at least 1, and units at least ranks_per_device",
            );
        }
        if let Some(bad) = self.mig.iter().find(|p| Profile::parse(p).is_none()) {
            return at(
                "mig",
                &format!("must name profiles like `3g.20gb`, got `{bad}`"),
            );
        }
        Ok(Accelerator {
            name: self.name,
            aliases: self.aliases,
            vendor: self.vendor,
            same_chip_as: self.same_chip_as,
            memory_bytes: self.memory.bytes(),
            usable_bytes: usable.bytes(),
            memory_bandwidth: self.memory_bandwidth.bytes_per_sec(),
            bf16_flops: self.bf16.per_sec(),
            fp8_flops: self.fp8.map(FlopsPerSec::per_sec),
            int8_ops: self.int8.map(FlopsPerSec::per_sec),
            fp4_flops: self.fp4.map(FlopsPerSec::per_sec),
            units: self.units,
            ranks_per_device: self.ranks_per_device,
            on_chip_bytes: self.on_chip.bytes(),
            cache_bandwidth: self.cache_bandwidth.map(BytesPerSec::bytes_per_sec),
            scale_up_link: self.scale_up_link,
            scale_up_bandwidth: self.scale_up_bandwidth.map(BytesPerSec::bytes_per_sec),
            host_bandwidth: self.host_bandwidth.bytes_per_sec(),
            peer_access: self.peer_access,
            mig: self.mig,
            recalled: self.recalled,
            source: self.source,
        })
    }
}
