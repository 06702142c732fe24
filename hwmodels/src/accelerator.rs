//! Accelerators: memory size, bandwidth, peak rates, links; every number with its source.

use serde::{Deserialize, Serialize};

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
    /// Memory the driver shows [bytes].
    pub memory_bytes: u64,
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
    /// Last-level cache or on-chip memory [bytes].
    pub on_chip_bytes: u64,
    /// Name of the link between devices of one node, or `None` where traffic goes through the host.
    pub scale_up_link: Option<String>,
    /// Peak of that link per direction and device [bytes/s].
    pub scale_up_bandwidth: Option<f64>,
    /// Peak of the host link per direction [bytes/s].
    pub host_bandwidth: f64,
    /// Fields recalled from datasheets rather than read at the source.
    #[serde(default)]
    pub recalled: Vec<String>,
    /// Where the numbers come from.
    pub source: String,
}
