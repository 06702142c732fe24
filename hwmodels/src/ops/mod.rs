//! How long one operator takes on one accelerator: GEMM, attention, fused MoE, element-wise kernels;
//! and collectives between devices ([`collective`]).
//!
//! Every operator is a pure function of its shape, the accelerator's datasheet and a few named
//! parameters with physical bounds (efficiencies in (0, 1], fixed kernel times, ...). A
//! [`Profile`] supplies the fitted values; where it is silent the prior of the [`ParamSpec`] holds,
//! so an empty profile is the purely analytic model.
//!
//! Times are of the kernel on the device. Host launch cost, gaps between kernels and collectives
//! are not in here.
//!
//! The formulas follow sources 7.1 (time is the larger of FLOPs over achievable peak and
//! bytes over achievable bandwidth, plus a fixed cost) with what the measured kernel tables
//! add: tiles and waves over the device's units, split-K, limited bandwidth of few units, the cost of
//! one CTA, query tiles, padding of experts.

mod arithmetic;
pub mod attention;
pub mod collective;
mod delta_rule;
mod device;
pub mod elementwise;
pub mod gemm;
mod kernels;
pub mod known;
mod model;
pub mod moe;
mod param;
pub mod sampling;
mod state_space;
pub mod surface;
mod surfaces;

pub use arithmetic::Arithmetic;
pub use attention::{
    Cache, DecodeShape, MlaShape, PrefillShape, PrefillWork, Span, SparseKernels, SparseShape,
};
pub use device::{Device, OpTime};
pub use kernels::{GraphMode, Kernels, Products};
pub use model::{OpShape, OperatorModel};
pub use moe::{Experts, MoeShape, Routing};
pub use param::ParamSpec;
pub use sampling::{Sampler, Sampling};

use crate::Dtype;

/// Every parameter of the operator models: dotted name, smallest and largest value, unit.
pub fn parameters() -> Vec<(String, f64, f64, String)> {
    let mut out = Vec::new();
    let mut add = |specs: &[ParamSpec], prefix: &str| {
        out.extend(
            specs
                .iter()
                .map(|s| (s.full_name(prefix), s.min, s.max, s.unit.to_owned())),
        );
    };
    for a in [
        Arithmetic::Bf16,
        Arithmetic::Fp8,
        Arithmetic::Int8,
        Arithmetic::WeightOnly,
    ] {
        add(&gemm::SPECS, a.prefix());
    }
    for (a, experts) in [
        (Arithmetic::Bf16, Experts::Triton),
        (Arithmetic::Fp8, Experts::Triton),
        (Arithmetic::Fp8, Experts::Cutlass),
    ] {
        add(&moe::SPECS, moe::prefix(a, experts));
    }
    for kv in [Dtype::Bf16, Dtype::Fp8] {
        add(&attention::DECODE_SPECS, attention::decode_prefix(kv));
        add(&attention::PREFILL_SPECS, attention::prefill_prefix(kv));
    }
    add(&attention::DECODE_SPECS, attention::XQA_PREFIX);
    add(&elementwise::SPECS, elementwise::PREFIX);
    out
}
