//! Routed experts as one fused kernel: gate/up and down projections of the experts that the batch
//! touches.
//!
//! Weights of the touched experts are read once (sources 7.6); each expert's tokens are
//! padded to a tile; with expert parallelism the busiest rank sets the time.

use super::arithmetic::Arithmetic;
use super::device::{Device, OpTime, ceil_div, soft_max};
use super::known;
use super::param::{ParamSpec, read_all};
use crate::{Dtype, Profile};

/// Shape of one layer's routed experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeShape {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Inner size of one expert, before it is split over ranks.
    pub intermediate: u32,
    /// Routed experts of the layer.
    pub experts: u32,
    /// Experts per token.
    pub top_k: u32,
    /// Ranks that each expert is split over.
    pub tp: u32,
    /// Ranks that the experts are spread over.
    pub ep: u32,
    /// Format of the expert weights.
    pub weights: Dtype,
    /// Format of the activations.
    pub activations: Dtype,
    /// Whether 8-bit weights have a scale for each block of 128 x 128 (DeepSeek's format) rather than for the whole tensor.
    pub block_scales: bool,
}

/// How evenly tokens spread over experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// Every expert equally likely.
    Balanced,
    /// Experts taken in turn, as kernel benchmarks do: as many different ones as there are choices.
    Even,
    /// Popularity of the i-th expert proportional to i^-a: 0 is uniform, 1.0 to 1.2 is strongly skewed.
    PowerLaw(f64),
}

/// Parameters of the fused MoE kernel.
pub const SPECS: [ParamSpec; 6] = [
    ParamSpec {
        name: "compute_efficiency",
        prior: 0.45,
        min: 0.1,
        max: 1.0,
        unit: "ratio",
        meaning: "share of the peak that grouped tiles reach",
    },
    ParamSpec {
        name: "bandwidth_efficiency",
        prior: 0.75,
        min: 0.2,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth at which expert weights are read",
    },
    ParamSpec {
        name: "fixed",
        prior: 35e-6,
        min: 2e-6,
        max: 300e-6,
        unit: "s",
        meaning: "routing, sorting and kernels that do nothing",
    },
    ParamSpec {
        name: "tile",
        prior: 64.0,
        min: 8.0,
        max: 256.0,
        unit: "tokens",
        meaning: "tokens to which an expert's share is padded at most",
    },
    ParamSpec {
        name: "overlap_power",
        prior: 2.5,
        min: 1.0,
        max: 12.0,
        unit: "ratio",
        meaning: "how sharply memory and arithmetic overlap",
    },
    ParamSpec {
        name: "handling_efficiency",
        prior: 0.6,
        min: 0.05,
        max: 4.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth at which tokens are gathered, activated and added up; above 1 out of the cache",
    },
];

/// Values of [`SPECS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeParams {
    compute_efficiency: f64,
    bandwidth_efficiency: f64,
    fixed: f64,
    tile: f64,
    overlap_power: f64,
    handling_efficiency: f64,
    /// Sorting, gathering and adding up touch only what this rank's experts were chosen for, not every choice of every token.
    own_only: bool,
}

/// Who wrote the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// vLLM's Triton kernels.
    Triton,
    /// TensorRT-LLM's CUTLASS kernels, which FlashInfer carries and vLLM takes for block-scaled 8-bit experts spread over ranks.
    Cutlass,
    /// Marlin's kernels for MXFP4 weights and 16-bit activations; other formats as under Triton. No table has them at the shapes of models in this
    /// format: they take the surface of Marlin's int4 kernels, which differ in how a weight is widened alone.
    Marlin,
}

impl Experts {
    /// The format whose measured kernels are those of `weights`.
    pub fn measured_as(self, weights: Dtype) -> Dtype {
        match (self, weights) {
            (Experts::Marlin, Dtype::Mxfp4) => Dtype::Int4,
            (_, weights) => weights,
        }
    }
}

impl MoeParams {
    /// From values in the order of [`SPECS`].
    pub fn from_values(v: &[f64; SPECS.len()], experts: Experts) -> MoeParams {
        MoeParams {
            own_only: experts == Experts::Cutlass,
            compute_efficiency: v[0],
            bandwidth_efficiency: v[1],
            fixed: v[2],
            tile: v[3],
            overlap_power: v[4],
            handling_efficiency: v[5],
        }
    }

    /// The profile's values for `arithmetic`, priors where it is silent.
    pub fn from_profile(profile: &Profile, arithmetic: Arithmetic, experts: Experts) -> MoeParams {
        Self::from_values(
            &read_all(&SPECS, profile, prefix(arithmetic, experts)),
            experts,
        )
    }
}

/// Prefix of the parameters in a profile. No table of 16-bit CUTLASS kernels could be had: they take the parameters of the Triton ones.
pub fn prefix(arithmetic: Arithmetic, experts: Experts) -> &'static str {
    match (arithmetic, experts) {
        (Arithmetic::Fp8 | Arithmetic::Int8, Experts::Cutlass) => "moe.fp8_cutlass",
        (Arithmetic::Fp8 | Arithmetic::Int8, Experts::Triton | Experts::Marlin) => "moe.fp8",
        _ => "moe.bf16",
    }
}

/// Experts that at least one of `tokens` tokens chooses, out of `experts`, when each takes
/// `top_k`: E (1 - (1 - k/E)^B) (sources 7.6).
pub fn distinct_experts(experts: f64, top_k: f64, tokens: f64) -> f64 {
    if experts <= 0.0 || tokens <= 0.0 {
        return 0.0;
    }
    let miss = (1.0 - (top_k / experts).min(1.0)).max(0.0);
    experts * (1.0 - miss.powf(tokens))
}

/// What the busiest rank gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankLoad {
    /// Experts it must read.
    pub experts: f64,
    /// Token-expert assignments it computes.
    pub assignments: f64,
    /// Assignments after each expert's share is padded to a tile of `tile` tokens.
    pub padded: f64,
}

/// Load of the busiest rank for `tokens` tokens of the whole group.
pub fn busiest_rank(shape: &MoeShape, tokens: f64, routing: Routing, tile: f64) -> RankLoad {
    let experts = f64::from(shape.experts).max(1.0);
    let top_k = f64::from(shape.top_k).min(experts);
    let ep = f64::from(shape.ep).clamp(1.0, experts);
    let per_rank = experts / ep;
    let total = tokens * top_k;
    match routing {
        Routing::Balanced | Routing::Even => {
            let distinct = match routing {
                Routing::Even => total.min(experts),
                _ => distinct_experts(experts, top_k, tokens),
            };
            let touched = distinct / ep;
            let touched = touched.max(total.min(1.0)).min(per_rank);
            let assignments = total / ep;
            let each = assignments / touched;
            RankLoad {
                experts: touched,
                assignments,
                padded: touched * ceil_div(each, tile) * tile,
            }
        }
        Routing::PowerLaw(a) => {
            // Ranks take experts in turn in the order of their popularity: the busiest one holds the most
            // popular. No expert takes more than every token.
            let stride = ep.round().max(1.0) as usize;
            let norm: f64 = (1..=shape.experts).map(|i| f64::from(i).powf(-a)).sum();
            let mut load = RankLoad {
                experts: 0.0,
                assignments: 0.0,
                padded: 0.0,
            };
            for i in (1..=shape.experts).step_by(stride) {
                let mean = (total * f64::from(i).powf(-a) / norm).min(tokens);
                let touched = 1.0 - (-mean).exp();
                load.experts += touched;
                load.assignments += mean;
                if touched > 0.0 {
                    load.padded += touched * ceil_div(mean / touched, tile) * tile;
                }
            }
            load
        }
    }
}

/// What the surface of routed experts is a function of: mean tokens of an expert, experts of a rank, the expert's inner size on a rank and the
/// residual stream's width.
pub fn quantities(shape: &MoeShape, tokens: f64) -> [f64; 4] {
    let experts = f64::from(shape.experts).max(1.0);
    [
        tokens * f64::from(shape.top_k) / experts,
        experts / f64::from(shape.ep.max(1)),
        f64::from(shape.intermediate) / f64::from(shape.tp.max(1)),
        f64::from(shape.hidden),
    ]
}

/// What tells the shape from all others whose kernels may be tuned otherwise.
pub fn key(shape: &MoeShape) -> known::Key {
    let inner = shape.intermediate / shape.tp.max(1);
    [
        shape.hidden,
        inner,
        shape.experts,
        shape.ep.max(1),
        shape.top_k,
    ]
}

/// Time of one layer's routed experts on the busiest rank. Zero without tokens.
pub fn time(
    p: &MoeParams,
    d: &Device,
    shape: &MoeShape,
    arithmetic: Arithmetic,
    tokens: f64,
    routing: Routing,
) -> OpTime {
    if tokens <= 0.0 || shape.experts == 0 || shape.top_k == 0 {
        return OpTime::default();
    }
    // Kernels take small tiles while experts get few tokens.
    let mean = tokens * f64::from(shape.top_k) / f64::from(shape.experts);
    let tile = mean
        .max(1.0)
        .log2()
        .ceil()
        .exp2()
        .clamp(16.0_f64.min(p.tile), p.tile);
    let load = busiest_rank(shape, tokens, routing, tile);
    let hidden = f64::from(shape.hidden);
    let inner = f64::from(shape.intermediate) / f64::from(shape.tp.max(1));
    let weights = 3.0 * hidden * inner;
    let bytes = load.experts * weights * shape.weights.bytes();
    let memory = bytes / (d.bandwidth * p.bandwidth_efficiency);
    let compute = 2.0 * load.padded * weights / (arithmetic.peak(d) * p.compute_efficiency);
    let handled = if p.own_only {
        load.assignments
    } else {
        tokens * f64::from(shape.top_k)
    };
    // For each choice: the token gathered, gate and up projection written, read and activated, the down projection written and
    // read again to be added up.
    let handling = handled * (2.0 + arithmetic.activation_bytes()) * (2.0 * hidden + 3.0 * inner);
    OpTime {
        seconds: p.fixed
            + handling / (d.bandwidth * p.handling_efficiency)
            + soft_max(compute, memory, p.overlap_power),
        compute,
        memory,
    }
}
