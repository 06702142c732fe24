//! Layers that keep a state of fixed size for each sequence in place of KV: linear attention and state spaces.
//!
//! Three rules update the state, which is one matrix of `key_dim` x `value_dim` for each value head:
//!
//! - the **gated delta rule** (Qwen3-Next, Qwen3.5): transformers, `models/qwen3_next/modeling_qwen3_next.py`;
//! - **Kimi delta attention** (Kimi Linear), whose gate forgets each channel of a key by itself: `vllm/model_executor/layers/kda.py`;
//! - **Mamba2** (Nemotron-H, Granite 4 hybrids), whose keys and queries (B and C) are shared by groups of heads: `vllm/model_executor/layers/mamba/mamba_mixer2.py`.
//!
//! All of them project their input, run a short convolution over the last tokens of what the rule reads, and norm and gate what it yields. Their cost for
//! a token does not grow with the tokens before it.

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;

/// How a token changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Gated delta rule: a gate for each head.
    GatedDelta,
    /// Kimi delta attention: a gate for each channel of a key, by way of a projection of low rank.
    Kda,
    /// Mamba2's state space: a gate for each head, and no delta.
    Mamba2,
}

impl Rule {
    /// What its layers are called.
    pub fn name(self) -> &'static str {
        match self {
            Rule::GatedDelta => "linear attention by the gated delta rule",
            Rule::Kda => "Kimi delta attention",
            Rule::Mamba2 => "Mamba2's state space",
        }
    }

    /// What the surfaces of its measured kernels are called, before `_decode` and `_prefill`. Of Mamba2 the convolution alone was measured.
    pub fn surfaces(self) -> &'static str {
        match self {
            Rule::GatedDelta => "linear",
            Rule::Kda => "kda",
            Rule::Mamba2 => "convolution",
        }
    }
}

/// Shape of the layers that keep a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Recurrence {
    /// How a token changes the state.
    pub rule: Rule,
    /// Query and key heads; Mamba2's groups.
    pub key_heads: u32,
    /// Value heads, each with a state of its own.
    pub value_heads: u32,
    /// Size of a query or key head; Mamba2's state size [dims].
    pub key_dim: u32,
    /// Size of a value head [dims].
    pub value_dim: u32,
    /// Tokens that the convolution looks at.
    pub conv_kernel: u32,
    /// Tokens that a prompt is computed in at a time [tokens].
    pub chunk: u32,
    /// Format of the state, where the model says it.
    pub state: Option<Dtype>,
}

impl Recurrence {
    /// What each of `tp` ranks computes: its share of the heads, and at least one key head (Mamba2's groups are copied to the ranks then).
    pub fn on_rank(&self, tp: u32) -> Recurrence {
        Recurrence {
            key_heads: self.key_heads.div_ceil(tp.max(1)),
            value_heads: self.value_heads.div_ceil(tp.max(1)),
            ..*self
        }
    }

    /// Width of queries and keys together [dims].
    pub fn query_key_width(&self) -> u32 {
        2 * self.key_heads * self.key_dim
    }

    /// Width of the values, and of the gates over the output [dims].
    pub fn value_width(&self) -> u32 {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> u32 {
        self.query_key_width() + self.value_width()
    }

    /// Columns of the projections of the stream that are as wide as the heads.
    pub fn wide_columns(&self) -> u32 {
        match self.rule {
            Rule::GatedDelta => self.channels() + self.value_width(),
            Rule::Kda => self.channels(),
            Rule::Mamba2 => self.channels() + self.value_width() + self.value_heads,
        }
    }

    /// Columns of the projections of the stream that stay in 16 bits: gates of each head, and the first halves of gates of low rank, which every rank
    /// computes whole.
    pub fn narrow_columns(&self) -> u32 {
        match self.rule {
            Rule::GatedDelta => 2 * self.value_heads,
            Rule::Kda => self.value_heads + 2 * self.value_dim,
            Rule::Mamba2 => 0,
        }
    }

    /// Products of `value_dim` rows and as many columns as the values have: the second halves of gates of low rank.
    pub fn low_rank_products(&self) -> u32 {
        match self.rule {
            Rule::Kda => 2,
            Rule::GatedDelta | Rule::Mamba2 => 0,
        }
    }

    /// Values that a token's projections make: the widest point of a layer.
    pub fn projected(&self) -> u32 {
        self.wide_columns() + self.narrow_columns() + self.low_rank_products() * self.value_width()
    }

    /// Parameters of one layer's matrices for a stream of width `hidden`, with convolution, gates and norm.
    pub fn parameters(&self, hidden: u32) -> u64 {
        let [h, values, heads, dim] =
            [hidden, self.value_width(), self.value_heads, self.value_dim].map(u64::from);
        let columns = u64::from(self.wide_columns()) + u64::from(self.narrow_columns());
        let low_rank = u64::from(self.low_rank_products()) * dim * values;
        let convolution = u64::from(self.channels()) * u64::from(self.conv_kernel);
        let small = match self.rule {
            // A and the bias of the gates by head; a norm of one head.
            Rule::GatedDelta => 2 * heads + dim,
            // The bias by channel.
            Rule::Kda => heads + values + dim,
            // A, D and the bias; a norm over all values; the convolution's bias.
            Rule::Mamba2 => 3 * heads + values + u64::from(self.channels()),
        };
        h * columns + low_rank + convolution + h * values + small
    }

    /// Format of the state; `unsaid` where the model leaves it to the engine. Kimi delta attention's is in 32 bits everywhere
    /// (`MambaStateDtypeCalculator.kda_state_dtype`).
    pub fn state_format(&self, unsaid: Dtype) -> Dtype {
        match self.rule {
            Rule::Kda => self.state.unwrap_or(Dtype::Fp32),
            Rule::GatedDelta | Rule::Mamba2 => self.state.unwrap_or(unsaid),
        }
    }

    /// State of one sequence in one layer: a matrix for each value head, in `unsaid` where the model says nothing, and the tokens that the convolution
    /// still sees, in 16 bits [bytes].
    pub fn state_bytes(&self, unsaid: Dtype) -> f64 {
        self.matrix_values() * self.state_format(unsaid).bytes() + self.seen_bytes()
    }

    /// Values of the matrices of one sequence in one layer.
    pub fn matrix_values(&self) -> f64 {
        f64::from(self.value_heads) * f64::from(self.key_dim) * f64::from(self.value_dim)
    }

    /// What the convolution keeps of one sequence in one layer [bytes].
    pub fn seen_bytes(&self) -> f64 {
        f64::from(self.channels()) * f64::from(self.conv_kernel.saturating_sub(1)) * 2.0
    }

    /// Checks that the shape is one that can be computed with.
    ///
    /// # Errors
    /// What is out of range.
    pub fn validate(&self) -> Result<(), String> {
        for (field, value, most) in [
            ("key heads (groups)", self.key_heads, 4_096),
            ("value heads", self.value_heads, 4_096),
            ("the size of a key head (state)", self.key_dim, 8_192),
            ("the size of a value head", self.value_dim, 8_192),
            ("the convolution's width", self.conv_kernel, 64),
            ("the tokens of a chunk", self.chunk, 65_536),
        ] {
            if value == 0 || value > most {
                return Err(format!(
                    "layers with a state: {field} must be from 1 to {most}, got {value}"
                ));
            }
        }
        if !self.value_heads.is_multiple_of(self.key_heads) {
            return Err(format!(
                "layers with a state: the {} value heads must be a multiple of the {} key heads (groups)",
                self.value_heads, self.key_heads
            ));
        }
        Ok(())
    }
}
