//! The walk over a model's layers on one rank, operator by operator.

use std::collections::BTreeSet;

use super::device::Device;
use super::experts::SharedExperts;
use crate::blocks::{Block, FeedForward, Mixer};
use crate::dtype::Dtype;
use crate::evidence::Evidence;
use crate::indexer::Indexer;
use crate::layout::Layout;
use crate::model::{AttentionKind, ModelArch, Moe};
use crate::ops::collective::{AllReduceImpl, CollectiveModel, Group, Launch};
use crate::ops::{
    DecodeShape, Experts, Kernels, MlaShape, MoeShape, OpShape, OpTime, OperatorModel,
    PrefillShape, Routing, Span, SparseShape,
};
use crate::recurrence::{Recurrence, Rule};

#[derive(Clone, Copy, Debug)]
pub(super) enum Attention {
    Gqa(DecodeShape),
    Mla(MlaShape, PrefillShape),
    /// Latent attention over chosen tokens, and its dense form.
    Sparse(SparseShape, PrefillShape),
}

/// Walks a model's layers on one rank.
#[derive(Clone, Debug)]
pub(super) struct LayerWalk {
    pub(super) model: ModelArch,
    pub(super) layout: Layout,
    pub(super) weights: Dtype,
    pub(super) kv_cache: Dtype,
    pub(super) routing: Routing,
    pub(super) kernels: Kernels,
    pub(super) all_reduce: AllReduceImpl,
    pub(super) devices_per_node: u32,
    pub(super) ops: OperatorModel,
    pub(super) collectives: CollectiveModel,
    pub(super) tp: u32,
}

impl LayerWalk {
    /// Format of the dense matrices.
    pub(super) fn dense(&self) -> Dtype {
        match self.weights {
            Dtype::Mxfp4 => Dtype::Bf16,
            d => d,
        }
    }

    /// Format that arithmetic runs in for weights of format `w`.
    pub(super) fn activations(w: Dtype) -> Dtype {
        match w {
            Dtype::Fp8 | Dtype::Int8 | Dtype::Fp32 => w,
            Dtype::Bf16 | Dtype::Int4 | Dtype::Mxfp4 => Dtype::Bf16,
        }
    }

    /// Whether 8-bit weights have a scale for each block: the models with latent attention are published so (DeepSeek-V3's `weight_block_size`).
    pub(super) fn block_scales(&self) -> bool {
        self.weights == Dtype::Fp8 && matches!(self.model.attention, AttentionKind::Mla { .. })
    }

    /// Bytes of one value that a kernel hands to a product.
    pub(super) fn product_input(&self) -> f64 {
        match self.dense() {
            // Products with a scale for each block quantise what they get themselves.
            Dtype::Fp8 | Dtype::Int8 if self.kernels.fused_quantisation && !self.block_scales() => {
                1.0
            }
            _ => 2.0,
        }
    }

    pub(super) fn gemm(&self, m: u32, n: u32, k: u32) -> OpTime {
        self.gemm_in(self.dense(), m, n, k)
    }

    fn gemm_in(&self, w: Dtype, m: u32, n: u32, k: u32) -> OpTime {
        let block = self.block_scales();
        self.ops.gemm_of(m, n, k, w, Self::activations(w), block)
    }

    /// Format of the attention matrices: TensorRT-LLM's checkpoints are those of NVIDIA's Model Optimizer, which quantises them.
    fn attention_format(&self) -> Dtype {
        let narrow = self.dense();
        if self.model.attention_in_16_bits
            && !self.kernels.fused_quantisation
            && narrow.bytes() < 2.0
        {
            return Dtype::Bf16;
        }
        narrow
    }

    pub(super) fn group(&self) -> Group {
        let nodes = self.tp.div_ceil(self.devices_per_node);
        if nodes > 1 {
            Group::across(self.tp, nodes)
        } else {
            Group::within_node(self.tp)
        }
    }

    pub(super) fn all_reduce(&self, tokens: u32) -> f64 {
        if self.tp < 2 {
            return 0.0;
        }
        self.all_reduce_bytes(f64::from(tokens) * f64::from(self.model.hidden) * 2.0)
    }

    fn all_reduce_bytes(&self, bytes: f64) -> f64 {
        self.collectives
            .all_reduce(bytes, self.group(), self.all_reduce, Launch::Graph)
    }

    /// What ranks that divide a group of Mamba2's heads tell each other for the norm over it: the sum of squares of a single group, or all its values
    /// (`Mixer2RMSNormGated` of `vllm/model_executor/layers/mamba/mamba_mixer2.py`).
    fn group_norm(&self, r: &Recurrence, t: u32) -> f64 {
        if r.rule != Rule::Mamba2 || r.key_heads.is_multiple_of(self.tp) {
            return 0.0;
        }
        let tokens = f64::from(t);
        match r.key_heads {
            1 => self.all_reduce_bytes(4.0 * tokens),
            _ => {
                let values = f64::from(r.value_width());
                self.collectives
                    .all_gather(2.0 * values * tokens, self.group())
            }
        }
    }

    pub(super) fn kv_heads(&self) -> u32 {
        self.model.kv_heads.div_ceil(self.tp).max(1)
    }

    /// What the layers with a window attend to.
    pub(super) fn span(&self) -> Span {
        match self.model.window {
            None => Span::All,
            Some(w) if self.model.attends_in_chunks() => Span::Chunk(w.tokens),
            Some(w) => Span::Last(w.tokens),
        }
    }

    pub(super) fn attention(&self) -> Attention {
        let m = &self.model;
        let heads = m.heads.div_ceil(self.tp);
        match m.attention {
            AttentionKind::Gqa => Attention::Gqa(DecodeShape {
                heads,
                kv_heads: self.kv_heads(),
                head_dim: m.head_dim,
                kv_dtype: self.kv_cache,
                span: Span::All,
            }),
            AttentionKind::Mla {
                kv_lora_rank,
                qk_rope_dim,
                qk_nope_dim,
                v_head_dim,
                ..
            } => {
                let latent = MlaShape {
                    heads,
                    kv_lora_rank,
                    rope_dim: qk_rope_dim,
                    kv_dtype: self.kv_cache,
                };
                let dense = PrefillShape {
                    heads,
                    kv_heads: heads,
                    head_dim: (qk_nope_dim + qk_rope_dim + v_head_dim) / 2,
                    kv_dtype: self.kv_cache,
                    span: Span::All,
                };
                match m.indexer {
                    Some(indexer) => Attention::Sparse(SparseShape { latent, indexer }, dense),
                    None => Attention::Mla(latent, dense),
                }
            }
        }
    }

    /// Projections and gated norm of one layer with a state.
    fn state_block(&self, r: &Recurrence, t: u32, d: &mut Device) {
        d.communication += self.group_norm(r, t);
        let r = r.on_rank(self.tp);
        let hidden = self.model.hidden;
        let values = r.value_width();
        d.add_gemm(self.gemm(t, r.wide_columns(), hidden));
        let narrow = |n: u32, k: u32| (self.ops).gemm(t, n, k, Dtype::Bf16, Dtype::Bf16);
        if r.narrow_columns() > 0 {
            d.add_gemm(narrow(r.narrow_columns(), hidden));
        }
        for _ in 0..r.low_rank_products() {
            d.add_gemm(narrow(values, r.value_dim));
        }
        // The norm reads the output and its gates, and writes the next product's input.
        let norm = (2.0 * 2.0 + self.product_input()) * f64::from(values) * f64::from(t);
        d.add_activations(self.ops.elementwise(norm, 1.0));
        d.add_gemm(self.gemm(t, hidden, values));
    }

    /// Projections, element-wise kernels and output projection of one layer's attention.
    pub(super) fn attention_block(&self, t: u32, d: &mut Device) {
        let m = &self.model;
        let heads = m.heads.div_ceil(self.tp);
        let tokens = f64::from(t);
        let format = self.attention_format();
        let (q_width, kv_width, out_width);
        match m.attention {
            AttentionKind::Gqa => {
                q_width = heads * m.head_dim;
                kv_width = 2 * self.kv_heads() * m.head_dim;
                out_width = q_width;
                let gate = if m.attention_gate { q_width } else { 0 };
                d.add_gemm(self.gemm_in(format, t, q_width + gate + kv_width, m.hidden));
                if m.attention_gate {
                    // The output is read with its gates and written.
                    let bytes = (2.0 * 2.0 + self.product_input()) * f64::from(out_width) * tokens;
                    d.add_activations(self.ops.elementwise(bytes, 1.0));
                }
            }
            AttentionKind::Mla {
                q_lora_rank,
                kv_lora_rank,
                qk_rope_dim,
                qk_nope_dim,
                v_head_dim,
            } => {
                q_width = heads * (qk_nope_dim + qk_rope_dim);
                kv_width = kv_lora_rank + qk_rope_dim;
                out_width = heads * v_head_dim;
                if q_lora_rank > 0 {
                    d.add_gemm(self.gemm(t, q_lora_rank + kv_width, m.hidden));
                    d.add_gemm(self.gemm(t, q_width, q_lora_rank));
                } else {
                    d.add_gemm(self.gemm(t, q_width + kv_width, m.hidden));
                }
                // Key and value up-projections, absorbed into query and output in decode.
                d.add_gemm(self.gemm(t, heads * (qk_nope_dim + v_head_dim), kv_lora_rank));
                if let Some(i) = &m.indexer {
                    self.index_block(i, t, q_lora_rank, d);
                }
            }
        }
        d.add_gemm(self.gemm_in(format, t, m.hidden, out_width));
        let kv_bytes = self.kv_cache.bytes();
        let write = f64::from(kv_width) * tokens * (2.0 + kv_bytes);
        if m.rotary_dim == 0 {
            // Without rotary positions keys and values are written as they are.
            d.add_activations(self.ops.elementwise(write, 1.0));
        } else if self.kernels.fused_rotary {
            // Q, K and V are read once; Q is written in place, K and V to the cache.
            let bytes = 4.0 * f64::from(q_width) + (2.0 + kv_bytes) * f64::from(kv_width);
            d.add_activations(self.ops.elementwise(bytes * tokens, 1.0));
        } else {
            // Rotary embedding reads and writes Q and K; the KV write reads and writes K and V.
            let rotary = 2.0 * 2.0 * f64::from(q_width + kv_width / 2) * tokens;
            d.add_activations(self.ops.elementwise(rotary + write, 2.0));
        }
        if m.qk_norm {
            // Queries and keys are normalised head by head: each is read and written once more.
            let norm = 2.0 * 2.0 * f64::from(q_width + kv_width / 2) * tokens;
            d.add_activations(self.ops.elementwise(norm, 2.0));
        }
    }

    /// Projections and element-wise kernels of one layer's indexer, which every rank computes whole.
    fn index_block(&self, i: &Indexer, t: u32, q_rank: u32, d: &mut Device) {
        let width = i.heads * i.head_dim;
        d.add_gemm(self.gemm(t, width, q_rank));
        // Key and head weights stay apart, the weights in 16 bits.
        d.add_gemm(self.gemm(t, i.head_dim, self.model.hidden));
        let weights = (self.ops).gemm(t, i.heads, self.model.hidden, Dtype::Bf16, Dtype::Bf16);
        d.add_gemm(weights);
        // Queries and keys are rotated, transformed (Hadamard) and quantised, the key normalised before: each reads and writes 16 bits, the last writes 8.
        let values = f64::from(width + i.head_dim) * f64::from(t);
        d.add_activations(
            self.ops
                .elementwise(values * (2.0 * 2.0 + 2.0 * 2.0 + 3.0), 4.0),
        );
    }

    pub(super) fn dense_mlp(&self, t: u32, intermediate: u32, d: &mut Device) {
        let m = &self.model;
        let inner = intermediate.div_ceil(self.tp);
        let up = if m.gated { 2 * inner } else { inner };
        if m.gated && !self.kernels.gate_with_up {
            d.add_gemm(self.gemm(t, inner, m.hidden));
            d.add_gemm(self.gemm(t, inner, m.hidden));
        } else {
            d.add_gemm(self.gemm(t, up, m.hidden));
        }
        let bytes = (2.0 * f64::from(up) + self.product_input() * f64::from(inner)) * f64::from(t);
        d.add_activations(self.ops.elementwise(bytes, 1.0));
        d.add_gemm(self.gemm(t, m.hidden, inner));
    }

    pub(super) fn moe(&self, t: u32, d: &mut Device) {
        let m = &self.model;
        let Some(moe) = m.moe else { return };
        // Router, then choice and permutation of tokens.
        d.add_gemm(
            self.ops
                .gemm(t, moe.experts, m.hidden, Dtype::Bf16, Dtype::Bf16),
        );
        d.add_activations(
            self.ops
                .elementwise(f64::from(t) * f64::from(moe.experts) * 4.0, 2.0),
        );
        if self.layout.dp == 1 {
            let shape = self.experts(&moe);
            d.add_gemm(self.ops.moe(&shape, t, self.routing));
        }
        if moe.shared_intermediate > 0 {
            self.dense_mlp(t, moe.shared_intermediate, d);
        }
    }

    /// Routed experts as the ranks of a stage share them.
    pub(super) fn experts(&self, moe: &Moe) -> MoeShape {
        let ranks = self.layout.stage_ranks().max(1);
        let ep = self.layout.ep.max(1);
        let tp = (ranks / ep).max(1);
        let (hidden, inner) = (self.model.hidden, moe.expert_intermediate);
        // Marlin takes whole tiles alone, so vLLM pads MXFP4 experts: the stream to 256, a rank's inner size to 128 (GPT-OSS: 2880 to 3072).
        let (hidden, inner) = match (self.kernels.experts, self.weights) {
            (Experts::Marlin, Dtype::Mxfp4) => (
                hidden.next_multiple_of(256),
                inner.div_ceil(tp).next_multiple_of(128) * tp,
            ),
            _ => (hidden, inner),
        };
        MoeShape {
            hidden,
            intermediate: inner,
            experts: moe.experts,
            top_k: moe.top_k,
            tp,
            ep,
            weights: self.weights,
            activations: Self::activations(self.weights),
            block_scales: self.block_scales(),
        }
    }

    /// What data-parallel ranks compute together.
    pub(super) fn shared_experts(&self) -> Option<SharedExperts> {
        let m = &self.model;
        let layout = self.layout;
        let moe = m.moe.filter(|_| layout.dp > 1)?;
        let nodes = (layout.stage_ranks()).div_ceil(self.devices_per_node);
        let hidden = f64::from(m.hidden);
        Some(SharedExperts {
            shape: self.experts(&moe),
            routing: self.routing,
            layers: f64::from(m.moe_layers_in(0..m.layers)),
            ranks: layout.dp,
            group: if nodes > 1 {
                Group::across(layout.dp, nodes.min(layout.dp))
            } else {
                Group::within_node(layout.dp)
            },
            collectives: self.collectives.clone(),
            gathered: hidden * self.product_input(),
            scattered: hidden * 2.0,
        })
    }

    /// One layer that is made of `block`.
    pub(super) fn layer(&self, t: u32, block: Block) -> Device {
        let m = &self.model;
        let mut d = Device::default();
        // A norm with its residual reads two streams and writes two, one of them the next product's input. Attention and feed-forward side by side share one.
        let halves = if m.parallel_block {
            1.0
        } else {
            f64::from(block.halves())
        };
        let norm = (3.0 * 2.0 + self.product_input()) * f64::from(m.hidden) * f64::from(t);
        d.add_activations(self.ops.elementwise(norm * halves, halves));
        match (block.mixer, &m.recurrence) {
            (Mixer::Attention, _) => self.attention_block(t, &mut d),
            (Mixer::State, Some(r)) => self.state_block(r, t, &mut d),
            (Mixer::State | Mixer::None, _) => {}
        }
        match block.feed_forward {
            FeedForward::Experts => self.moe(t, &mut d),
            FeedForward::Dense => self.dense_mlp(t, m.intermediate, &mut d),
            FeedForward::None => {}
        }
        d.communication += halves * self.all_reduce(t);
        d
    }

    /// Every layer's token-wise work for `t` tokens.
    pub(super) fn all_layers(&self, t: u32) -> Device {
        let mut d = Device::default();
        if t == 0 {
            return d;
        }
        for (block, layers) in self.model.blocks_in(0..self.model.layers) {
            d.add_scaled(&self.layer(t, block), f64::from(layers));
        }
        d
    }

    /// Final norm, LM head, gathering of logits, sampling.
    pub(super) fn head(&self, sampled: u32) -> Device {
        let mut d = Device::default();
        if sampled == 0 {
            return d;
        }
        let m = &self.model;
        d.add_gemm(self.ops.gemm(
            sampled,
            m.vocab.div_ceil(self.tp),
            m.hidden,
            Dtype::Bf16,
            Dtype::Bf16,
        ));
        if self.tp > 1 {
            let bytes = f64::from(sampled) * f64::from(m.vocab) * 2.0;
            d.communication += self.collectives.all_gather(bytes, self.group());
        }
        d.add_activations(self.ops.sampling(sampled, m.vocab));
        d
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let m = &self.model;
        let inner = m.intermediate.div_ceil(self.tp).max(1);
        let mut weak = BTreeSet::new();
        let mut note = |what: &str, e: Evidence| {
            if matches!(e, Evidence::Analytic | Evidence::Extrapolated) {
                weak.insert(format!("{what} times are {}", match e {
                    Evidence::Analytic => "analytic: no kernel measurements of this accelerator are in the profile",
                    _ => "extrapolated: beyond the shapes that the profile was fitted on, or from another accelerator with the same chip or another engine's kernels",
                }));
            }
        };
        note(
            "GEMM",
            self.ops.evidence(&OpShape::Gemm {
                m: 64,
                n: m.hidden,
                k: inner,
                weights: self.dense(),
            }),
        );
        note(
            "attention",
            self.ops.evidence(&OpShape::Attention {
                head_dim: m.head_dim,
                kv: self.kv_cache,
            }),
        );
        if m.indexer.is_some() {
            note("sparse attention", Evidence::Analytic);
        }
        if let Some(r) = &m.recurrence {
            let kernels = match r.rule {
                Rule::Mamba2 => "Mamba2 scan and update",
                rule => rule.name(),
            };
            note(kernels, self.ops.evidence(&OpShape::State(r.rule)));
        }
        if let Some(moe) = &m.moe {
            note(
                "expert",
                self.ops.evidence(&OpShape::Moe(self.experts(moe))),
            );
        }
        weak.into_iter().collect()
    }
}
