//! Model architectures: what a transformer's shape says about bytes and FLOPs.

use serde::{Deserialize, Serialize};

/// How attention keeps and reads its past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// Sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Tokens a windowed layer looks back.
    pub tokens: u32,
    /// Layers that have the window; the others see everything.
    pub layers: u32,
}

/// Shape of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelArch {
    /// Catalog name, e.g. `llama-2-7b`.
    pub name: String,
    /// Other names, e.g. the Hugging Face identifier.
    pub aliases: Vec<String>,
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
    /// Longest sequence the model is made for [tokens].
    pub max_positions: u32,
    /// Format the weights are published in.
    pub native_dtype: crate::Dtype,
}
