//! Model architectures: what a transformer's shape says about parameters, weight bytes and KV bytes.
//!
//! Matrices are counted exactly; norms, biases and routers are counted too, since engines load them,
//! but they stay in 16 bits whatever the weights' format (sources 7.5), as do embedding and LM head.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::blocks::{Block, FeedForward, Mixer};
use crate::dtype::Dtype;
use crate::indexer::Indexer;
use crate::recurrence::Recurrence;

/// Tokens to which vLLM rounds the blocks of a model with layers that keep a state up: what attention's kernels take, and those of latent attention
/// (`kernel_block_alignment_size` of `vllm/model_executor/models/config.py`; 128 with CUTLASS's).
const BLOCK_STEP: u32 = 16;
const LATENT_BLOCK_STEP: u32 = 64;

/// Tokens of a block of vLLM's sparse latent attention (FlashMLA's; `vllm/platforms/cuda.py`).
const SPARSE_BLOCK: u32 = 64;

/// How attention keeps and reads its past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKind {
    /// Multi-head, grouped-query or multi-query attention: `kv_heads` keys and values of `head_dim`.
    Gqa,
    /// Multi-head latent attention (DeepSeek): one latent vector per token.
    Mla {
        /// Rank of the query compression; 0 when queries are not compressed.
        q_lora_rank: u32,
        /// Rank of the shared KV latent.
        kv_lora_rank: u32,
        /// Rotary part of each key [dims].
        qk_rope_dim: u32,
        /// Non-rotary part of each key [dims].
        qk_nope_dim: u32,
        /// Value head size [dims].
        v_head_dim: u32,
    },
}

/// Routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Moe {
    /// Routed experts per layer.
    pub experts: u32,
    /// Experts chosen per token.
    pub top_k: u32,
    /// Inner size of one routed expert.
    pub expert_intermediate: u32,
    /// Summed inner size of the shared experts (0: none).
    pub shared_intermediate: u32,
    /// Leading layers with a dense feed-forward block instead.
    pub dense_layers: u32,
    /// After the leading dense layers, every `moe_every`-th layer has experts and those between are dense (1: all).
    pub moe_every: u32,
}

/// Sliding-window (or chunked local) attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Window {
    /// Tokens a windowed layer looks back.
    pub tokens: u32,
    /// Layers that have the window; the others see everything.
    pub layers: u32,
}

/// Shape of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ModelArch {
    /// Catalog name, e.g. `llama-2-7b`.
    pub name: String,
    /// Other names, e.g. the Hugging Face identifier.
    pub aliases: Vec<String>,
    /// Family, as `model_type` of the Hugging Face configuration says it.
    pub family: String,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads (= heads for MHA, 1 for MQA).
    pub kv_heads: u32,
    /// Size of a head [dims].
    pub head_dim: u32,
    /// Attention family.
    pub attention: AttentionKind,
    /// Sliding window, where there is one.
    pub window: Option<Window>,
    /// What each layer is made of; empty: all have attention, and a feed-forward block by `moe`.
    pub blocks: Vec<Block>,
    /// Shape of the layers that keep a state, where there are any.
    pub recurrence: Option<Recurrence>,
    /// What chooses the tokens that latent attention reads, where it does not read all.
    pub indexer: Option<Indexer>,
    /// Dims of a query or key head that are rotated by their position.
    pub rotary_dim: u32,
    /// Whether 8- and 4-bit checkpoints leave the attention matrices in 16 bits, but for TensorRT-LLM's.
    pub attention_in_16_bits: bool,
    /// True when attention's output is gated by a projection as wide as the queries (Qwen3-Next, Qwen3.5).
    pub attention_gate: bool,
    /// Inner size of the dense feed-forward block.
    pub intermediate: u32,
    /// True for gated feed-forward blocks (SwiGLU): three matrices instead of two.
    pub gated: bool,
    /// Routed experts, where there are any.
    pub moe: Option<Moe>,
    /// Vocabulary rows of embedding and LM head.
    pub vocab: u32,
    /// True when embedding and LM head share one matrix.
    pub tied_embeddings: bool,
    /// True when attention and feed-forward run side by side on one input (Falcon):
    /// one all-reduce per layer under tensor parallel instead of two.
    pub parallel_block: bool,
    /// Bias vectors on the QKV projection.
    pub qkv_bias: bool,
    /// Bias vectors on the attention output and the feed-forward matrices.
    pub linear_bias: bool,
    /// Norms per layer over the residual stream.
    pub norms_per_layer: u32,
    /// True for LayerNorm (scale and bias), false for RMSNorm (scale).
    pub layer_norm: bool,
    /// True when queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Modules that predict further tokens (`num_nextn_predict_layers`), each a layer of its own; they draft tokens for speculation and are not among
    /// `layers`, nor among the parameters.
    pub nextn_layers: u32,
    /// Parameters outside the decoder that are loaded with it (a vision tower), 16-bit.
    pub other_parameters: u64,
    /// Longest sequence the model is made for [tokens].
    pub max_positions: u32,
    /// Format the weights are published in.
    pub native_dtype: crate::Dtype,
}

/// Parameters of one layer, by what happens to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerParams {
    /// Matrices of attention or of the recurrence.
    pub mixer: u64,
    /// Dense feed-forward matrices, or those of the shared experts in a layer with routed ones.
    pub dense: u64,
    /// Matrices of one routed expert; 0 in a dense layer.
    pub expert: u64,
    /// Routed experts of the layer; 0 in a dense layer.
    pub experts: u64,
    /// Norms, biases and the router: not quantised, not divided.
    pub small: u64,
}

impl LayerParams {
    /// All parameters of the layer.
    pub fn total(&self) -> u64 {
        self.mixer + self.dense + self.expert * self.experts + self.small
    }
}

/// Bytes of one layer's weights on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerBytes {
    /// Matrices of attention or of the recurrence [bytes].
    pub mixer: f64,
    /// Dense feed-forward or shared-expert matrices [bytes].
    pub dense: f64,
    /// What this rank holds of one routed expert [bytes].
    pub expert: f64,
    /// Routed experts that this rank holds (a part of), e.g. all of them under tensor parallel.
    pub experts_held: f64,
    /// Norms, biases, router [bytes].
    pub small: f64,
}

impl LayerBytes {
    /// All bytes of the layer on the rank.
    pub fn total(&self) -> f64 {
        self.mixer + self.dense + self.expert * self.experts_held + self.small
    }
}

impl ModelArch {
    /// Matrices of a feed-forward block with inner size `inner` [parameters].
    fn ffn(&self, inner: u32) -> u64 {
        (if self.gated { 3 } else { 2 }) * u64::from(self.hidden) * u64::from(inner)
    }

    /// Parameters of full attention that each of `tp` ranks holds: heads are divided, key and value heads are
    /// replicated once there are more ranks than heads, MLA's down-projections are on every rank.
    pub(crate) fn attention_params(&self, tp: u32) -> u64 {
        let h = u64::from(self.hidden);
        let heads = u64::from(self.heads.div_ceil(tp));
        let dim = u64::from(self.head_dim);
        match self.attention {
            AttentionKind::Gqa => {
                let kv = u64::from(self.kv_heads_per_rank(tp));
                // Queries and output, and the gates over it.
                let wide = if self.attention_gate { 3 } else { 2 };
                wide * h * heads * dim + 2 * h * kv * dim
            }
            AttentionKind::Mla {
                q_lora_rank,
                kv_lora_rank,
                qk_rope_dim,
                qk_nope_dim,
                v_head_dim,
            } => {
                let [q_rank, kv_rank, rope, nope, v] = [
                    q_lora_rank,
                    kv_lora_rank,
                    qk_rope_dim,
                    qk_nope_dim,
                    v_head_dim,
                ]
                .map(u64::from);
                let q = if q_rank == 0 {
                    h * heads * (nope + rope)
                } else {
                    h * q_rank + q_rank * heads * (nope + rope)
                };
                let indexer = (self.indexer).map_or(0, |i| i.parameters(self.hidden, q_lora_rank));
                q + h * (kv_rank + rope) + kv_rank * heads * (nope + v) + heads * v * h + indexer
            }
        }
    }

    /// Parameters of what mixes tokens that each of `tp` ranks holds.
    pub(crate) fn mixer_params(&self, mixer: Mixer, tp: u32) -> u64 {
        match mixer {
            Mixer::Attention => self.attention_params(tp),
            Mixer::State => (self.recurrence).map_or(0, |r| r.on_rank(tp).parameters(self.hidden)),
            Mixer::None => 0,
        }
    }

    /// Key/value heads on each of `tp` ranks: divided, or replicated when there are fewer than ranks.
    pub fn kv_heads_per_rank(&self, tp: u32) -> u32 {
        self.kv_heads.div_ceil(tp.max(1)).max(1)
    }

    /// Norms and biases of attention.
    fn attention_small(&self) -> u64 {
        let dim = u64::from(self.head_dim);
        let mut small = 0;
        if self.qk_norm {
            small += 2 * dim;
        }
        if let AttentionKind::Mla {
            q_lora_rank,
            kv_lora_rank,
            ..
        } = self.attention
        {
            small += u64::from(q_lora_rank) + u64::from(kv_lora_rank);
        }
        if let Some(i) = self.indexer {
            // Scale and shift of the norm over the indexer's keys.
            small += 2 * u64::from(i.head_dim);
        }
        if self.qkv_bias {
            small += (u64::from(self.heads) + 2 * u64::from(self.kv_heads)) * dim;
        }
        if self.linear_bias {
            small += u64::from(self.hidden);
        }
        small
    }

    /// Parameters of one layer that is made of `block`.
    pub fn layer_params(&self, block: Block) -> LayerParams {
        let h = u64::from(self.hidden);
        let per_norm = if self.layer_norm { 2 * h } else { h };
        let mut small = u64::from(self.norms_per_layer) * per_norm;
        if block.mixer == Mixer::Attention {
            small += self.attention_small();
        }
        let ffn_bias = |inner: u64| inner * if self.gated { 2 } else { 1 } + h;
        let mixer = self.mixer_params(block.mixer, 1);
        let experts = self
            .moe
            .filter(|_| block.feed_forward == FeedForward::Experts);
        if let Some(m) = experts {
            let experts = u64::from(m.experts);
            small += h * experts;
            if self.linear_bias {
                small += experts * (ffn_bias(u64::from(m.expert_intermediate)) + 1);
            }
            return LayerParams {
                mixer,
                dense: self.ffn(m.shared_intermediate),
                expert: self.ffn(m.expert_intermediate),
                experts,
                small,
            };
        }
        let dense = match block.feed_forward {
            FeedForward::None => 0,
            FeedForward::Dense | FeedForward::Experts => self.ffn(self.intermediate),
        };
        if self.linear_bias && dense > 0 {
            small += ffn_bias(u64::from(self.intermediate));
        }
        LayerParams {
            mixer,
            dense,
            small,
            ..LayerParams::default()
        }
    }

    /// Parameters of the embedding table.
    pub fn embedding_parameters(&self) -> u64 {
        u64::from(self.vocab) * u64::from(self.hidden)
    }

    /// All parameters, what is outside the decoder included; a tied LM head counts once.
    pub fn parameters(&self) -> u64 {
        let tables = if self.tied_embeddings { 1 } else { 2 };
        let layers: u64 = (self.blocks_in(0..self.layers).iter())
            .map(|(block, n)| u64::from(*n) * self.layer_params(*block).total())
            .sum();
        layers
            + tables * self.embedding_parameters()
            + u64::from(self.hidden)
            + self.other_parameters
    }

    /// Parameters of the decoder that one token goes through: all but the experts it is not routed to,
    /// embedding and LM head included.
    pub fn active_parameters(&self) -> u64 {
        let idle = self.moe.map_or(0, |m| {
            let moe = u64::from(self.moe_layers_in(0..self.layers));
            moe * self.ffn(m.expert_intermediate) * u64::from(m.experts - m.top_k.min(m.experts))
        });
        self.parameters() - self.other_parameters - idle
    }

    /// Bytes of the embedding table on one rank (rows divided over `tp`); never quantised.
    pub fn embedding_bytes(&self, weights: Dtype, tp: u32) -> f64 {
        f64::from(self.vocab.div_ceil(tp.max(1))) * f64::from(self.hidden) * small_bytes(weights)
    }

    /// Whether layers with a window attend within chunks of the sequence, as long as the window, and not to the last tokens (Llama 4).
    pub fn attends_in_chunks(&self) -> bool {
        self.window.is_some() && self.family.starts_with("llama4")
    }

    /// Values of the table of cosines and sines by which an engine rotates queries and keys: for every position that the model is made for, whatever
    /// `max_model_len` says. 1.3e9 for Llama 4 Scout's 10 485 760 positions, 17e6 for 131 072.
    pub fn rotary_table_values(&self) -> f64 {
        f64::from(self.max_positions) * f64::from(self.rotary_dim)
    }

    /// KV bytes per token of one layer on one of `tp` ranks (serving-policies 1.5). An indexer keeps a key of its own beside the latent.
    ///
    /// MLA keeps one latent and one rotary key per token on every rank, not divided; its packed FP8 form has a
    /// 32-bit scale per 128 latent values and 16-bit rotary keys (656 bytes for DeepSeek-V3).
    pub fn kv_bytes_per_token_layer(&self, kv: Dtype, tp: u32) -> f64 {
        match self.attention {
            AttentionKind::Gqa => {
                2.0 * f64::from(self.kv_heads_per_rank(tp)) * f64::from(self.head_dim) * kv.bytes()
            }
            AttentionKind::Mla {
                kv_lora_rank,
                qk_rope_dim,
                ..
            } => {
                let (latent, rope) = (f64::from(kv_lora_rank), f64::from(qk_rope_dim));
                let indexer = self.indexer.map_or(0.0, |i| i.key_bytes());
                indexer
                    + if kv == Dtype::Fp8 {
                        latent + (latent / 128.0).ceil() * 4.0 + 2.0 * rope
                    } else {
                        (latent + rope) * kv.bytes()
                    }
            }
        }
    }

    /// KV bytes per token of the whole model, undivided: the sum over all layers that keep KV, as if none had a window.
    pub fn kv_bytes_per_token(&self, kv: Dtype) -> f64 {
        f64::from(self.kv_layers()) * self.kv_bytes_per_token_layer(kv, 1)
    }

    /// KV bytes per token on one rank that holds `layers` layers with KV of a stage of `tp` ranks.
    pub fn kv_bytes_per_token_rank(&self, kv: Dtype, tp: u32, layers: u32) -> f64 {
        f64::from(layers) * self.kv_bytes_per_token_layer(kv, tp)
    }

    /// KV bytes that a sequence of `context` tokens needs at most, undivided: windowed layers keep only their window.
    pub fn kv_bytes_for_context(&self, context: u64, kv: Dtype) -> f64 {
        let per_layer = self.kv_bytes_per_token_layer(kv, 1);
        let (windowed, kept) = self.window.map_or((0, 0), |w| {
            (w.layers.min(self.layers), context.min(u64::from(w.tokens)))
        });
        per_layer
            * (f64::from(self.kv_layers().saturating_sub(windowed)) * context as f64
                + f64::from(windowed) * kept as f64)
    }

    /// State of one sequence on one of `tp` ranks that holds `layers` [bytes]; 0 where no layer keeps one. `unsaid` is the format where the model says none.
    pub fn state_bytes_rank(&self, unsaid: Dtype, tp: u32, layers: Range<u32>) -> f64 {
        self.recurrence.map_or(0.0, |r| {
            f64::from(self.state_layers_in(layers)) * r.on_rank(tp).state_bytes(unsaid)
        })
    }

    /// What vLLM makes of a block of `block` tokens and how many blocks a sequence holds beside those of its tokens. Layers of
    /// one kind share a pool of pages of one size, so a block of attention must be as large as a state: it gets as many tokens
    /// as that takes. Qwen3-Next on one device: 1 097 728 bytes of state over 2048 bytes of KV a token are 536, so 544 tokens.
    /// The layers are grouped by as many as have attention, and each group of those with a state takes one block for a sequence
    /// (vllm/model_executor/models/config.py, `HybridAttentionMambaModelConfig`; v1/core/kv_cache_utils.py).
    ///
    /// Sparse latent attention takes blocks of 64 tokens.
    pub fn vllm_blocks(&self, kv: Dtype, tp: u32, block: u32) -> (u32, u32) {
        let Some(r) = self.recurrence else {
            let sparse = self.indexer.is_some();
            return (if sparse { SPARSE_BLOCK } else { block }, 0);
        };
        let step = match self.attention {
            AttentionKind::Gqa => BLOCK_STEP,
            AttentionKind::Mla { .. } => LATENT_BLOCK_STEP,
        };
        let state = r.on_rank(tp).state_bytes(Dtype::Bf16);
        let tokens = (state / self.kv_bytes_per_token_layer(kv, tp)).ceil();
        let least = (tokens.min(1e6) as u32).next_multiple_of(step);
        let states = self.state_layers_in(0..self.layers);
        (block.max(least), states.div_ceil(self.kv_layers().max(1)))
    }

    /// Checks that the shape is one that can be computed with.
    ///
    /// # Errors
    /// The field that is out of range, with its value.
    pub fn validate(&self) -> Result<(), String> {
        let limits: [(&str, u32, u32); 7] = [
            ("layers", self.layers, 1_000),
            ("hidden", self.hidden, 1 << 20),
            ("heads", self.heads, 4_096),
            ("kv_heads", self.kv_heads, 4_096),
            ("head_dim", self.head_dim, 8_192),
            ("intermediate", self.intermediate, 1 << 22),
            ("vocab", self.vocab, 1 << 24),
        ];
        for (field, value, max) in limits {
            if value == 0 || value > max {
                return Err(format!("{field} must be from 1 to {max}, got {value}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "heads ({}) must be a multiple of kv_heads ({})",
                self.heads, self.kv_heads
            ));
        }
        if let Some(m) = self.moe {
            if m.experts == 0 || m.experts > 4_096 {
                return Err(format!("experts must be from 1 to 4096, got {}", m.experts));
            }
            if m.top_k == 0 || m.top_k > m.experts {
                return Err(format!(
                    "experts per token must be from 1 to {} (the experts), got {}",
                    m.experts, m.top_k
                ));
            }
            if m.expert_intermediate == 0
                || m.expert_intermediate > 1 << 20
                || m.shared_intermediate > 1 << 22
            {
                return Err("expert sizes must be from 1 to 1048576".to_owned());
            }
            if m.dense_layers > self.layers || m.moe_every == 0 {
                return Err(
                    "dense_layers must not exceed layers, moe_every must be at least 1".to_owned(),
                );
            }
        }
        if let AttentionKind::Mla {
            q_lora_rank,
            kv_lora_rank,
            qk_rope_dim,
            qk_nope_dim,
            v_head_dim,
        } = self.attention
        {
            let dims = [
                q_lora_rank,
                kv_lora_rank,
                qk_rope_dim,
                qk_nope_dim,
                v_head_dim,
            ];
            if kv_lora_rank == 0 || v_head_dim == 0 || dims.iter().any(|d| *d > 1 << 16) {
                return Err(
                    "latent attention ranks and head sizes must be from 1 to 65536".to_owned(),
                );
            }
        }
        if let Some(w) = self.window
            && (w.tokens == 0 || w.layers > self.layers)
        {
            return Err(format!(
                "window must be at least 1 token on at most {} layers",
                self.layers
            ));
        }
        self.validate_blocks()?;
        if let Some(i) = self.indexer {
            i.validate()?;
            if !matches!(self.attention, AttentionKind::Mla { q_lora_rank, .. } if q_lora_rank > 0)
            {
                return Err(
                    "an indexer is modelled for latent attention with compressed queries (`q_lora_rank`)"
                        .to_owned(),
                );
            }
        }
        // In floating point, since the product of hostile fields overflows integers.
        let experts = self.moe.map_or(0.0, |m| {
            f64::from(m.experts) * f64::from(m.expert_intermediate)
        });
        let estimate = 3.0
            * f64::from(self.layers)
            * f64::from(self.hidden)
            * (f64::from(self.intermediate)
                + experts
                + f64::from(self.heads) * f64::from(self.head_dim));
        if estimate > 1e15 {
            return Err(format!(
                "about {estimate:.1e} parameters are more than any model has"
            ));
        }
        Ok(())
    }
}

/// Bytes per parameter of what is never quantised.
pub(crate) fn small_bytes(weights: Dtype) -> f64 {
    if weights == Dtype::Fp32 { 4.0 } else { 2.0 }
}
