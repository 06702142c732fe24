//! All operators of one accelerator under one profile: the formula of each, with the surface of its measured kernels over it.

use super::arithmetic::Arithmetic;
use super::attention::{
    self, Cache, DecodeShape, MlaShape, PrefillShape, PrefillWork, SparseShape, sparse,
};
use super::device::{Device, OpTime};
use super::kernels::{Kernels, Products};
use super::moe::{self, Experts, MoeShape, Routing};
use super::surfaces::{ExpertTimes, Surfaces};
use super::{delta_rule, elementwise, gemm, sampling, state_space};
use crate::recurrence::{Recurrence, Rule};
use crate::{Accelerator, Dtype, Evidence, Profile};

/// Share of the peak bandwidth that the best streaming kernel reached in any fit (decode attention on H100).
const STREAMING: f64 = 0.94;

/// Names of the parameters whose evidence is one of `evidence`.
fn names(profile: &Profile, evidence: &[Evidence]) -> std::collections::BTreeSet<String> {
    (profile.params.iter())
        .filter(|(_, p)| evidence.contains(&p.evidence))
        .map(|(n, _)| n.clone())
        .collect()
}

/// Which fitted operator a question about the fitted range is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OpShape {
    /// `m` tokens through an `n` x `k` weight of this format.
    Gemm {
        /// Tokens.
        m: u32,
        /// Output features.
        n: u32,
        /// Input features.
        k: u32,
        /// Format of the weight.
        weights: Dtype,
    },
    /// Attention with this head size and KV format.
    Attention {
        /// Size of a head [dims].
        head_dim: u32,
        /// Format of the KV cache.
        kv: Dtype,
    },
    /// Layers with a state by this rule.
    State(Rule),
    /// Routed experts of this shape.
    Moe(MoeShape),
}

/// Operator times of one accelerator under one profile.
#[derive(Clone, Debug)]
pub struct OperatorModel {
    device: Device,
    kernels: Kernels,
    gemm_bf16: gemm::GemmParams,
    gemm_fp8: gemm::GemmParams,
    gemm_int8: gemm::GemmParams,
    gemm_wonly: gemm::GemmParams,
    decode_bf16: attention::DecodeParams,
    decode_fp8: attention::DecodeParams,
    decode_xqa: attention::DecodeParams,
    prefill_bf16: attention::PrefillParams,
    prefill_fp8: attention::PrefillParams,
    moe_bf16: moe::MoeParams,
    moe_fp8: moe::MoeParams,
    moe_fp8_cutlass: moe::MoeParams,
    elementwise: elementwise::ElementwiseParams,
    surfaces: Surfaces,
    fitted: std::collections::BTreeSet<String>,
    carried: std::collections::BTreeSet<String>,
    validity: std::collections::BTreeMap<String, [f64; 2]>,
}

impl OperatorModel {
    /// The operators of `accelerator` with the parameters of `profile`, priors where it is silent.
    pub fn new(accelerator: &Accelerator, profile: &Profile) -> OperatorModel {
        OperatorModel {
            device: Device::new(accelerator),
            kernels: Kernels::default(),
            gemm_bf16: gemm::GemmParams::from_profile(profile, Arithmetic::Bf16),
            gemm_fp8: gemm::GemmParams::from_profile(profile, Arithmetic::Fp8),
            gemm_int8: gemm::GemmParams::from_profile(profile, Arithmetic::Int8),
            gemm_wonly: gemm::GemmParams::from_profile(profile, Arithmetic::WeightOnly),
            decode_bf16: attention::DecodeParams::from_profile(profile, Dtype::Bf16),
            decode_fp8: attention::DecodeParams::from_profile(profile, Dtype::Fp8),
            decode_xqa: attention::DecodeParams::xqa(profile),
            prefill_bf16: attention::PrefillParams::from_profile(profile, Dtype::Bf16),
            prefill_fp8: attention::PrefillParams::from_profile(profile, Dtype::Fp8),
            moe_bf16: moe::MoeParams::from_profile(profile, Arithmetic::Bf16, Experts::Triton),
            moe_fp8: moe::MoeParams::from_profile(profile, Arithmetic::Fp8, Experts::Triton),
            moe_fp8_cutlass: moe::MoeParams::from_profile(
                profile,
                Arithmetic::Fp8,
                Experts::Cutlass,
            ),
            elementwise: elementwise::ElementwiseParams::from_profile(profile),
            surfaces: Surfaces::new(profile),
            fitted: names(profile, &[Evidence::Fitted, Evidence::Measured]),
            carried: names(profile, &[Evidence::Extrapolated]),
            validity: profile.validity.clone(),
        }
    }

    /// The same operators on the kernels that `kernels` says.
    pub fn with_kernels(self, kernels: Kernels) -> OperatorModel {
        OperatorModel {
            kernels,
            decode_bf16: self.decode_bf16.splitting(kernels.split_kv),
            decode_fp8: self.decode_fp8.splitting(kernels.split_kv),
            decode_xqa: self.decode_xqa.splitting(kernels.split_kv),
            ..self
        }
    }

    /// The datasheet numbers in use.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Time of `[m, k] x [k, n]` for weights and activations of these formats.
    /// Zero when any of `m`, `n`, `k` is zero.
    pub fn gemm(&self, m: u32, n: u32, k: u32, weights: Dtype, activations: Dtype) -> OpTime {
        self.gemm_of(m, n, k, weights, activations, false)
    }

    /// [`OperatorModel::gemm`]; `block_scales` says whether 8-bit weights have a scale for each block.
    pub fn gemm_of(
        &self,
        m: u32,
        n: u32,
        k: u32,
        weights: Dtype,
        activations: Dtype,
        block_scales: bool,
    ) -> OpTime {
        let arithmetic = Arithmetic::of(&self.device, weights, activations);
        let params = match arithmetic {
            Arithmetic::Bf16 | Arithmetic::Fp32 => &self.gemm_bf16,
            Arithmetic::Fp8 => &self.gemm_fp8,
            Arithmetic::Int8 => &self.gemm_int8,
            Arithmetic::WeightOnly => &self.gemm_wonly,
        };
        let time = gemm::time(
            params,
            &self.device,
            &self.kernels,
            gemm::Product {
                arithmetic,
                weight_bytes: weights.bytes(),
                m: f64::from(m),
                n: f64::from(n),
                k: f64::from(k),
            },
        );
        if self.kernels.products != Products::PerShape {
            return time;
        }
        let of @ [m, n, k] = [m, n, k].map(f64::from);
        let floor = self.floor(n * k * weights.bytes(), 2.0 * m * n * k, arithmetic);
        let surface = self.surfaces.gemm(arithmetic, block_scales);
        surface.scale(time, of, floor)
    }

    /// Least time for so many bytes from device memory and so many operations, whatever a table says [s].
    #[inline]
    fn floor(&self, bytes: f64, flops: f64, arithmetic: Arithmetic) -> f64 {
        let memory = bytes / (self.device.bandwidth * STREAMING);
        memory.max(flops / arithmetic.peak(&self.device))
    }

    /// The same for prefill attention of these quantities; 8-bit caches may be multiplied in 8 bits.
    #[inline]
    fn prefill_floor(&self, shape: &PrefillShape, of: [f64; 3]) -> f64 {
        let arithmetic = match shape.kv_dtype {
            Dtype::Fp8 | Dtype::Int8 => Arithmetic::Fp8,
            _ => Arithmetic::Bf16,
        };
        // Half as many keys as prompt tokens to a query.
        let flops = 2.0 * of[0] * of[1] * f64::from(shape.head_dim);
        self.floor(0.0, flops, arithmetic)
    }

    fn decode_params(&self, kv: Dtype) -> &attention::DecodeParams {
        match kv {
            Dtype::Fp8 | Dtype::Int8 if self.kernels.xqa => &self.decode_xqa,
            Dtype::Fp8 | Dtype::Int8 => &self.decode_fp8,
            _ => &self.decode_bf16,
        }
    }

    /// Time of one layer's decode attention over the decodes of a batch.
    ///
    /// Only `decode_seqs`, `decode_tokens`, `decode_ctx_sum` and `decode_ctx_sq_sum` of `batch` are read.
    pub fn decode_attention(
        &self,
        shape: &DecodeShape,
        batch: &crate::BatchStats,
        cache: Cache,
    ) -> OpTime {
        let time = attention::decode_time(
            self.decode_params(shape.kv_dtype),
            &self.device,
            shape,
            batch,
            cache,
        );
        let of = attention::decode_quantities(shape, batch);
        let surface = self.surfaces.decode(shape.kv_dtype, shape.head_dim);
        let bytes = of[0] * of[1] * 2.0 * f64::from(shape.head_dim) * shape.kv_dtype.bytes();
        surface.scale(time, of, self.floor(bytes, 0.0, Arithmetic::Bf16))
    }

    /// Time of one layer's latent (MLA, absorbed) decode attention over the decodes of a batch.
    pub fn decode_mla(&self, shape: &MlaShape, batch: &crate::BatchStats, cache: Cache) -> OpTime {
        let time = attention::mla_decode_time(
            self.decode_params(shape.kv_dtype),
            &self.device,
            shape,
            batch,
            cache,
        );
        let of = attention::mla_decode_quantities(shape, batch);
        let latent = f64::from(shape.kv_lora_rank + shape.rope_dim);
        let bytes = of[0] * of[1] * latent * shape.kv_dtype.bytes();
        let surface = self.surfaces.mla_decode(shape.kv_dtype);
        surface.scale(time, of, self.floor(bytes, 0.0, Arithmetic::Bf16))
    }

    /// Time of one layer's prefill attention over the chunks `work`.
    pub fn prefill_attention(&self, shape: &PrefillShape, work: &PrefillWork) -> OpTime {
        let time = self.prefill(shape, work);
        let of = attention::prefill_quantities(shape, work);
        let surface = self.surfaces.prefill(shape.kv_dtype, shape.head_dim);
        surface.scale(time, of, self.prefill_floor(shape, of))
    }

    /// Time of one layer's latent (MLA) prefill attention, keys and values expanded, over the chunks `work`.
    pub fn prefill_mla(&self, shape: &PrefillShape, work: &PrefillWork) -> OpTime {
        let time = self.prefill(shape, work);
        let of = attention::prefill_quantities(shape, work);
        let floor = self.prefill_floor(shape, of);
        let of = [of[0], of[1]];
        self.surfaces.mla_prefill().scale(time, of, floor)
    }

    /// Time of one layer's sparse latent attention over the decodes of a batch: scores, choice, attention.
    pub fn decode_sparse(&self, shape: &SparseShape, batch: &crate::BatchStats) -> OpTime {
        let d = &self.device;
        sparse::decode_index_time(d, &shape.indexer, batch)
            + sparse::sparse_decode_time(d, shape, self.kernels.sparse, batch)
    }

    /// Time of one layer's sparse latent attention over the chunks `work`: scores, choice, attention. `dense` is the shape of its dense attention, which
    /// some engines take for short prompts; keys are then written and not scored.
    pub fn prefill_sparse(
        &self,
        shape: &SparseShape,
        dense: &PrefillShape,
        work: &PrefillWork,
    ) -> OpTime {
        let d = &self.device;
        if sparse::takes_dense(d, shape, self.kernels.sparse, work) {
            return self.prefill_mla(dense, work);
        }
        sparse::prefill_index_time(d, &shape.indexer, work)
            + sparse::sparse_prefill_time(d, shape, self.kernels.sparse, work)
    }

    /// Time of the kernels of one layer with a state over `seqs` decodes.
    pub fn state_decode(&self, r: &Recurrence, seqs: u32) -> OpTime {
        let d = &self.device;
        let (unsaid, seqs) = (self.kernels.states, f64::from(seqs));
        let surface = &self.surfaces.state(r.rule).decode;
        if r.rule == Rule::Mamba2 {
            let time = state_space::convolution_time(&self.elementwise, d, r, seqs, seqs);
            let of = [seqs, f64::from(r.channels())];
            let floor = self.convolution_floor(r, seqs, seqs);
            return surface.scale(time, of, floor) + state_space::update_time(d, r, unsaid, seqs);
        }
        let time = delta_rule::decode_time(&self.elementwise, d, r, unsaid, seqs);
        let bytes = delta_rule::decode_bytes(r, unsaid, seqs);
        let floor = self.floor(bytes, 0.0, Arithmetic::Bf16);
        let heads = f64::from(r.value_heads);
        match r.rule {
            Rule::Kda => surface.scale(time, [seqs * heads], floor),
            Rule::GatedDelta | Rule::Mamba2 => surface.scale(time, [seqs, heads], floor),
        }
    }

    /// Time of the kernels of one layer with a state over the chunks `work`.
    pub fn state_prefill(&self, r: &Recurrence, work: &PrefillWork) -> OpTime {
        let (p, d) = (&self.elementwise, &self.device);
        let unsaid = self.kernels.states;
        let each = work.tokens / work.seqs.max(1.0);
        let surface = &self.surfaces.state(r.rule).prefill;
        if r.rule == Rule::Mamba2 {
            let time = state_space::convolution_time(p, d, r, work.tokens, work.seqs);
            let of = [each, work.tokens, f64::from(r.channels())];
            let floor = self.convolution_floor(r, work.tokens, work.seqs);
            return surface.scale(time, of, floor) + state_space::scan_time(p, d, r, unsaid, work);
        }
        let time = delta_rule::prefill_time(p, d, r, unsaid, work);
        let flops = delta_rule::prefill_flops(r, work);
        let floor = self.floor(0.0, flops, Arithmetic::Bf16);
        let heads = f64::from(r.value_heads);
        match r.rule {
            Rule::Kda => surface.scale(time, [each, work.seqs * heads], floor),
            Rule::GatedDelta | Rule::Mamba2 => {
                surface.scale(time, [each, work.tokens, heads], floor)
            }
        }
    }

    /// Least time of a short convolution, all of whose bytes come from device memory [s].
    fn convolution_floor(&self, r: &Recurrence, tokens: f64, seqs: f64) -> f64 {
        let bytes = state_space::convolution_bytes(r, tokens, seqs);
        self.floor(bytes, 0.0, Arithmetic::Bf16)
    }

    /// Time of a short convolution alone, as Mamba2's layers run it, over `seqs` sequences of `tokens` tokens each.
    pub fn convolution(&self, r: &Recurrence, seqs: u32, tokens: u32) -> OpTime {
        let (seqs, each) = (f64::from(seqs), f64::from(tokens));
        state_space::convolution_time(&self.elementwise, &self.device, r, seqs * each, seqs)
    }

    fn prefill(&self, shape: &PrefillShape, work: &PrefillWork) -> OpTime {
        let params = match shape.kv_dtype {
            Dtype::Fp8 | Dtype::Int8 => &self.prefill_fp8,
            _ => &self.prefill_bf16,
        };
        attention::prefill_time(params, &self.device, shape, work)
    }

    /// Kernels of 8-bit experts that are spread over `ep` ranks.
    fn experts(&self, ep: u32) -> Experts {
        if ep > 1 {
            Experts::Cutlass
        } else {
            self.kernels.experts
        }
    }

    /// Time of one layer's routed experts on the busiest rank for `tokens` tokens of the whole
    /// expert-parallel group.
    pub fn moe(&self, shape: &MoeShape, tokens: u32, routing: Routing) -> OpTime {
        let arithmetic = Arithmetic::of(&self.device, shape.weights, shape.activations);
        let params = match (arithmetic, self.experts(shape.ep)) {
            (Arithmetic::Fp8 | Arithmetic::Int8, Experts::Cutlass) => &self.moe_fp8_cutlass,
            (Arithmetic::Fp8 | Arithmetic::Int8, _) => &self.moe_fp8,
            _ => &self.moe_bf16,
        };
        let time = moe::time(
            params,
            &self.device,
            shape,
            arithmetic,
            f64::from(tokens),
            routing,
        );
        let of = moe::quantities(shape, f64::from(tokens));
        let flops = 6.0 * of[0] * of[1] * of[2] * of[3];
        self.expert_times(shape, arithmetic).scale(
            time,
            shape,
            f64::from(tokens),
            self.floor(0.0, flops, arithmetic),
        )
    }

    /// What was measured of experts like `shape`.
    fn expert_times(&self, shape: &MoeShape, arithmetic: Arithmetic) -> &ExpertTimes {
        self.surfaces.moe(
            self.kernels.experts.measured_as(shape.weights),
            arithmetic,
            shape.block_scales,
        )
    }

    /// Time of `kernels` element-wise kernels that move `bytes` bytes in total.
    pub fn elementwise(&self, bytes: f64, kernels: f64) -> OpTime {
        elementwise::time(&self.elementwise, &self.device, bytes, kernels)
    }

    /// Time of choosing one token each from `vocab` logits (32-bit) of `rows` sequences, in the way that the kernels' [`Sampling`] says.
    pub fn sampling(&self, rows: u32, vocab: u32) -> OpTime {
        let greedy = elementwise::sampling_time(&self.elementwise, &self.device, rows, vocab);
        let extra = sampling::extra(self.kernels.sampling, self.kernels.sampler, rows);
        let logits = f64::from(rows) * f64::from(vocab);
        let mut time = greedy + self.elementwise(extra.bytes * logits, extra.kernels.max(1.0));
        if rows > 0 {
            time.seconds += extra.fixed;
        }
        time
    }

    /// How well a shape's time is known: `Fitted` inside the range of the tables this profile was fitted on,
    /// `Extrapolated` outside it, `Analytic` where the parameters are priors.
    pub fn evidence(&self, shape: &OpShape) -> Evidence {
        let arithmetic = |w: Dtype| Arithmetic::of(&self.device, w, w);
        let surfaced = match *shape {
            OpShape::Gemm { m, n, k, weights } if self.kernels.products == Products::PerShape => {
                let surface = self.surfaces.gemm(arithmetic(weights), false);
                surface.evidence(&[m, n, k].map(f64::from))
            }
            OpShape::Gemm { .. } => None,
            OpShape::Attention { head_dim, kv } => {
                let surface = self.surfaces.decode(kv, head_dim);
                surface.is_some().then_some(Evidence::Fitted)
            }
            // Mamba2's scan and update are in no table.
            OpShape::State(Rule::Mamba2) => return Evidence::Analytic,
            OpShape::State(rule) => {
                let known = self.surfaces.state(rule).decode.kernels();
                return known.unwrap_or(Evidence::Analytic);
            }
            OpShape::Moe(ref shape) => {
                let a = Arithmetic::of(&self.device, shape.weights, shape.activations);
                self.expert_times(shape, a).evidence(shape)
            }
        };
        if let Some(evidence) = surfaced {
            return evidence;
        }
        let (probe, ranges): (String, Vec<(String, f64)>) = match *shape {
            OpShape::Gemm { m, n, k, weights } => {
                let a = Arithmetic::of(&self.device, weights, weights);
                let prefix = a.prefix();
                (
                    format!("{prefix}.bandwidth_efficiency"),
                    [("m", m), ("n", n), ("k", k)]
                        .iter()
                        .map(|(q, v)| (format!("{prefix}.{q}"), f64::from(*v)))
                        .collect(),
                )
            }
            OpShape::Attention { head_dim, kv } => {
                let prefix = match kv {
                    Dtype::Fp8 | Dtype::Int8 if self.kernels.xqa => attention::XQA_PREFIX,
                    kv => attention::decode_prefix(kv),
                };
                (
                    format!("{prefix}.bandwidth_efficiency"),
                    vec![(format!("{prefix}.head_dim"), f64::from(head_dim))],
                )
            }
            OpShape::State(_) => return Evidence::Analytic,
            OpShape::Moe(ref shape) => {
                let a = Arithmetic::of(&self.device, shape.weights, shape.activations);
                let prefix = moe::prefix(a, self.experts(shape.ep));
                (format!("{prefix}.bandwidth_efficiency"), vec![])
            }
        };
        if self.carried.contains(&probe) {
            return Evidence::Extrapolated;
        }
        if !self.fitted.contains(&probe) {
            return Evidence::Analytic;
        }
        let inside = ranges.iter().all(|(name, v)| {
            self.validity
                .get(name)
                .is_none_or(|[lo, hi]| (*lo..=*hi).contains(v))
        });
        if inside {
            Evidence::Fitted
        } else {
            Evidence::Extrapolated
        }
    }
}
