//! The surfaces of one profile, ready to be asked, by operator and format.

use super::arithmetic::Arithmetic;
use super::device::OpTime;
use super::known::Curves;
use super::moe::{self, MoeShape};
use super::surface::Grid;
use crate::recurrence::Rule;
use crate::{Dtype, Evidence, Profile};

/// Head sizes that attention surfaces are made for; others take the next larger, the largest where there is none.
const HEAD_DIMS: [u32; 3] = [64, 128, 256];

/// A surface, or none: then the formula stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Maybe {
    grid: Option<Grid>,
    /// Whether it was measured on another engine's kernels.
    borrowed: bool,
}

impl Maybe {
    fn of(profile: &Profile, name: &str) -> Maybe {
        let surface = profile.surfaces.get(name);
        Maybe {
            // Profiles are checked when they are read.
            grid: surface.and_then(|s| s.grid().ok()),
            borrowed: surface.is_some_and(|s| s.kernels_of.is_some()),
        }
    }

    /// Whose kernels were measured: this engine's, or another's; `None` without a surface.
    pub fn kernels(&self) -> Option<Evidence> {
        self.is_some().then_some(if self.borrowed {
            Evidence::Extrapolated
        } else {
            Evidence::Fitted
        })
    }

    /// Whether there is a surface.
    pub fn is_some(&self) -> bool {
        self.grid.is_some()
    }

    /// How well a shape of these quantities is known; `None` without a surface.
    pub fn evidence(&self, quantities: &[f64]) -> Option<Evidence> {
        let inside = self.grid.as_ref()?.covers(quantities);
        Some(if inside {
            Evidence::Fitted
        } else {
            Evidence::Extrapolated
        })
    }

    /// `time` times what the surface says of `quantities`, and no less than `floor` [s]: what the data sheet allows when nothing lies in the cache, which
    /// benchmarks that repeat one call can beat. Both of its sides grow alike: what binds stays what binds.
    #[inline]
    pub fn scale<const N: usize>(&self, time: OpTime, quantities: [f64; N], floor: f64) -> OpTime {
        let (Some(grid), true) = (&self.grid, time.seconds > 0.0) else {
            return time;
        };
        time.times(grid.ratio(&quantities).max(floor / time.seconds))
    }
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Surfaces {
    gemm_bf16: Maybe,
    gemm_fp8: Maybe,
    gemm_fp8_block: Maybe,
    decode: [[Maybe; 3]; 2],
    prefill: [[Maybe; 3]; 2],
    mla_decode: [Maybe; 2],
    mla_prefill: Maybe,
    delta: StateTimes,
    kda: StateTimes,
    convolution: StateTimes,
    moe_bf16: ExpertTimes,
    moe_fp8: ExpertTimes,
    moe_fp8_block: ExpertTimes,
    moe_mxfp4: ExpertTimes,
    moe_int4: ExpertTimes,
    none: Maybe,
    no_experts: ExpertTimes,
}

/// What is known of the kernels of layers with a state.
#[derive(Clone, Debug, Default)]
pub(super) struct StateTimes {
    /// Over decodes.
    pub decode: Maybe,
    /// Over prompts.
    pub prefill: Maybe,
}

impl StateTimes {
    fn of(profile: &Profile, rule: Rule) -> StateTimes {
        let name = rule.surfaces();
        StateTimes {
            decode: Maybe::of(profile, &format!("{name}_decode")),
            prefill: Maybe::of(profile, &format!("{name}_prefill")),
        }
    }
}

/// What is known of experts in one format: a surface, and the shapes that were measured themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct ExpertTimes {
    surface: Maybe,
    known: Curves,
}

impl ExpertTimes {
    fn of(profile: &Profile, name: &str) -> ExpertTimes {
        // Profiles are checked when they are read.
        let known = profile.shapes.get(name).and_then(|s| s.curves().ok());
        ExpertTimes {
            surface: Maybe::of(profile, name),
            known: known.unwrap_or_default(),
        }
    }

    /// Whether any experts in this format were measured.
    fn is_some(&self) -> bool {
        self.surface.is_some() || !self.known.is_empty()
    }

    /// How well `shape` is known; `None` where nothing was measured.
    pub fn evidence(&self, shape: &MoeShape) -> Option<Evidence> {
        (self.surface.is_some() || self.known.knows(&moe::key(shape))).then_some(Evidence::Fitted)
    }

    /// `time` times what was measured of `shape`, or of shapes around it, over what the formula says; no less than `floor` [s].
    pub fn scale(&self, time: OpTime, shape: &MoeShape, tokens: f64, floor: f64) -> OpTime {
        match self.known.ratio(&moe::key(shape), tokens) {
            Some(ratio) if time.seconds > 0.0 => time.times(ratio.max(floor / time.seconds)),
            _ => (self.surface).scale(time, moe::quantities(shape, tokens), floor),
        }
    }
}

impl Surfaces {
    pub fn new(profile: &Profile) -> Surfaces {
        let of = |name: &str| Maybe::of(profile, name);
        let experts = |name: &str| ExpertTimes::of(profile, name);
        let heads = |op: &str, kv: &str| HEAD_DIMS.map(|dim| of(&format!("{op}.{kv}.d{dim}")));
        let pair = |op: &str| ["kv16", "kv8"].map(|kv| heads(op, kv));
        Surfaces {
            gemm_bf16: of("gemm.bf16"),
            gemm_fp8: of("gemm.fp8"),
            gemm_fp8_block: of("gemm.fp8_block"),
            decode: pair("decode"),
            prefill: pair("prefill"),
            mla_decode: ["kv16", "kv8"].map(|kv| of(&format!("mla_decode.{kv}"))),
            mla_prefill: of("mla_prefill"),
            delta: StateTimes::of(profile, Rule::GatedDelta),
            kda: StateTimes::of(profile, Rule::Kda),
            convolution: StateTimes::of(profile, Rule::Mamba2),
            moe_bf16: experts("moe.bf16"),
            moe_fp8: experts("moe.fp8"),
            moe_fp8_block: experts("moe.fp8_block"),
            moe_mxfp4: experts("moe.mxfp4"),
            moe_int4: experts("moe.int4"),
            none: Maybe::default(),
            no_experts: ExpertTimes::default(),
        }
    }

    /// Of matrix products.
    pub fn gemm(&self, arithmetic: Arithmetic, block_scales: bool) -> &Maybe {
        match arithmetic {
            Arithmetic::Bf16 => &self.gemm_bf16,
            Arithmetic::Fp8 if block_scales && self.gemm_fp8_block.is_some() => {
                &self.gemm_fp8_block
            }
            Arithmetic::Fp8 => &self.gemm_fp8,
            _ => &self.none,
        }
    }

    fn kv(dtype: Dtype) -> usize {
        usize::from(matches!(dtype, Dtype::Fp8 | Dtype::Int8))
    }

    fn head(dim: u32) -> usize {
        HEAD_DIMS
            .iter()
            .position(|d| dim <= *d)
            .unwrap_or(HEAD_DIMS.len() - 1)
    }

    /// Of decode attention.
    #[inline]
    pub fn decode(&self, kv: Dtype, head_dim: u32) -> &Maybe {
        &self.decode[Self::kv(kv)][Self::head(head_dim)]
    }

    /// Of prefill attention.
    #[inline]
    pub fn prefill(&self, kv: Dtype, head_dim: u32) -> &Maybe {
        &self.prefill[Self::kv(kv)][Self::head(head_dim)]
    }

    /// Of latent decode attention.
    #[inline]
    pub fn mla_decode(&self, kv: Dtype) -> &Maybe {
        &self.mla_decode[Self::kv(kv)]
    }

    /// Of latent prefill attention.
    #[inline]
    pub fn mla_prefill(&self) -> &Maybe {
        &self.mla_prefill
    }

    /// Of layers with a state: all their kernels by a delta rule, the convolution alone by Mamba2's.
    #[inline]
    pub fn state(&self, rule: Rule) -> &StateTimes {
        match rule {
            Rule::GatedDelta => &self.delta,
            Rule::Kda => &self.kda,
            Rule::Mamba2 => &self.convolution,
        }
    }

    /// Of routed experts.
    pub fn moe(&self, weights: Dtype, arithmetic: Arithmetic, block_scales: bool) -> &ExpertTimes {
        match (weights, arithmetic) {
            (Dtype::Mxfp4, _) => &self.moe_mxfp4,
            (Dtype::Int4, _) => &self.moe_int4,
            (_, Arithmetic::Bf16) => &self.moe_bf16,
            (_, Arithmetic::Fp8) if block_scales && self.moe_fp8_block.is_some() => {
                &self.moe_fp8_block
            }
            (_, Arithmetic::Fp8) => &self.moe_fp8,
            _ => &self.no_experts,
        }
    }
}
