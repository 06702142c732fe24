//! Sparse latent attention (DeepSeek sparse attention, DSA: DeepSeek-V3.2, GLM-5): an indexer scores the whole past of a token with a few small
//! heads in 8 bits, and attention reads the latents of the best `top_k` tokens alone.

use serde::{Deserialize, Serialize};

/// Values of an indexer's key that share a 32-bit scale.
const SCALE_GROUP: u32 = 128;

/// The indexer of every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Indexer {
    /// Query heads; all score against one key for each token.
    pub heads: u32,
    /// Size of a query or of the key [dims].
    pub head_dim: u32,
    /// Tokens that attention reads, at most.
    pub top_k: u32,
}

impl Indexer {
    /// Bytes of one token's key: 8-bit values and a 32-bit scale for each 128, on every rank, whatever the format of the KV cache
    /// (132 for 128 dims; vllm/model_executor/models/deepseek_v2.py, `DeepseekV32IndexerCache`).
    pub fn key_bytes(&self) -> f64 {
        f64::from(self.head_dim) + 4.0 * f64::from(self.head_dim.div_ceil(SCALE_GROUP))
    }

    /// Parameters of one layer: queries from the compressed query of `q_rank` dims, key and head weights from the stream of width `hidden`. Every rank
    /// has all of them.
    pub fn parameters(&self, hidden: u32, q_rank: u32) -> u64 {
        let [heads, dim] = [self.heads, self.head_dim].map(u64::from);
        u64::from(q_rank) * heads * dim + u64::from(hidden) * (dim + heads)
    }

    /// Checks that the shape is one that can be computed with.
    ///
    /// # Errors
    /// What is out of range.
    pub fn validate(&self) -> Result<(), String> {
        for (field, value, most) in [
            ("index_n_heads", self.heads, 4_096),
            ("index_head_dim", self.head_dim, 8_192),
            ("index_topk", self.top_k, 1 << 24),
        ] {
            if value == 0 || value > most {
                return Err(format!("{field} must be from 1 to {most}, got {value}"));
            }
        }
        Ok(())
    }
}
