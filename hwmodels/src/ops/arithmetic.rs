//! How products are computed: by the formats of weights and activations, and what the device can do.

use super::device::Device;
use crate::Dtype;

/// How a GEMM is computed, from the formats and what the device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// 32-bit inputs at half the 16-bit rate (TF32 on NVIDIA tensor cores).
    Fp32,
    /// 16-bit weights and activations.
    Bf16,
    /// 8-bit floating point, activations quantised on the fly.
    Fp8,
    /// 8-bit integers, activations quantised on the fly.
    Int8,
    /// Narrow weights expanded in the kernel, 16-bit arithmetic (sources 7.5).
    WeightOnly,
}

impl Arithmetic {
    /// What `device` does with these formats. 8-bit formats without hardware for them
    /// become weight-only, as engines do (Marlin kernels on Ampere).
    pub fn of(device: &Device, weights: Dtype, activations: Dtype) -> Arithmetic {
        match weights {
            Dtype::Fp32 => Arithmetic::Fp32,
            Dtype::Bf16 => Arithmetic::Bf16,
            Dtype::Fp8 if device.fp8.is_some() && activations != Dtype::Bf16 => Arithmetic::Fp8,
            Dtype::Int8 if device.int8.is_some() && activations != Dtype::Bf16 => Arithmetic::Int8,
            Dtype::Fp8 | Dtype::Int8 | Dtype::Int4 | Dtype::Mxfp4 => Arithmetic::WeightOnly,
        }
    }

    /// Prefix of its parameters in a profile.
    pub fn prefix(self) -> &'static str {
        match self {
            Arithmetic::Fp32 | Arithmetic::Bf16 => "gemm.bf16",
            Arithmetic::Fp8 => "gemm.fp8",
            Arithmetic::Int8 => "gemm.int8",
            Arithmetic::WeightOnly => "gemm.weight_only",
        }
    }

    /// Peak rate on `device` [FLOP/s].
    #[inline]
    pub fn peak(self, device: &Device) -> f64 {
        match self {
            Arithmetic::Fp32 => device.bf16 / 2.0,
            Arithmetic::Bf16 | Arithmetic::WeightOnly => device.bf16,
            Arithmetic::Fp8 => device.fp8.unwrap_or(device.bf16),
            Arithmetic::Int8 => device.int8.unwrap_or(device.bf16),
        }
    }

    /// Bytes of one activation as the kernel reads it.
    #[inline]
    pub fn activation_bytes(self) -> f64 {
        match self {
            Arithmetic::Fp32 => 4.0,
            Arithmetic::Bf16 | Arithmetic::WeightOnly => 2.0,
            Arithmetic::Fp8 | Arithmetic::Int8 => 1.0,
        }
    }

    /// Bytes of one output value.
    #[inline]
    pub fn output_bytes(self) -> f64 {
        if self == Arithmetic::Fp32 { 4.0 } else { 2.0 }
    }

    /// True when activations are quantised before the product.
    #[inline]
    pub fn quantises(self) -> bool {
        matches!(self, Arithmetic::Fp8 | Arithmetic::Int8)
    }
}
