//! Number formats of weights, KV cache and arithmetic.

use serde::{Deserialize, Serialize};

/// Storage format of weights or KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit floating point.
    Fp32,
    /// bfloat16 or IEEE half; the two cost the same everywhere in this model.
    #[serde(alias = "fp16", alias = "float16", alias = "bfloat16")]
    Bf16,
    /// 8-bit floating point, arithmetic included where the hardware has it.
    Fp8,
    /// 8-bit integer, arithmetic included (W8A8).
    Int8,
    /// 4-bit integer weights in groups of 128 (AWQ, GPTQ): dequantised in the kernel, 16-bit arithmetic.
    Int4,
    /// 4-bit floating point with 8-bit scales per 32 values (MXFP4).
    Mxfp4,
}

impl Dtype {
    /// Bytes per stored value, scales and zero points included.
    /// INT4 group 128: 4 bits + 16-bit scale + 4-bit zero per 128 (sources 7.5: 0.516 to 0.53).
    pub fn bytes(self) -> f64 {
        match self {
            Dtype::Fp32 => 4.0,
            Dtype::Bf16 => 2.0,
            Dtype::Fp8 | Dtype::Int8 => 1.0,
            Dtype::Int4 => 0.5 + (2.0 + 0.5) / 128.0,
            Dtype::Mxfp4 => 0.5 + 1.0 / 32.0,
        }
    }
}
