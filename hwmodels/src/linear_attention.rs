//! Linear attention by the gated delta rule (Qwen3-Next, Qwen3.5): layers that keep a state of fixed size in place of KV.
//!
//! Such a layer projects its input to queries, keys, values and gates, runs a short convolution over the last tokens of
//! queries, keys and values, and updates one matrix of `key_dim` x `value_dim` for each value head (transformers,
//! `models/qwen3_next/modeling_qwen3_next.py`). Its cost for a token does not grow with the tokens before it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;

/// Layers of linear attention between those of full attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LinearAttention {
    /// Every `full_every`-th layer has full attention, the others are linear (4: three linear ones, then a full one).
    pub full_every: u32,
    /// Query and key heads.
    pub key_heads: u32,
    /// Value heads, each with a state of its own.
    pub value_heads: u32,
    /// Size of a query or key head [dims].
    pub key_dim: u32,
    /// Size of a value head [dims].
    pub value_dim: u32,
    /// Tokens that the convolution looks at.
    pub conv_kernel: u32,
    /// Format of the state.
    pub state: Dtype,
}

impl LinearAttention {
    /// Whether layer `index` (from 0) is linear.
    pub fn is_linear(&self, index: u32) -> bool {
        !(index + 1).is_multiple_of(self.full_every.max(1))
    }

    /// Linear layers in `range`.
    pub fn layers_in(&self, range: Range<u32>) -> u32 {
        range.filter(|i| self.is_linear(*i)).count() as u32
    }

    /// What each of `tp` ranks computes: its share of the heads.
    pub fn on_rank(&self, tp: u32) -> LinearAttention {
        LinearAttention {
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

    /// Columns of the input projection: queries, keys, values, output gates, and two gates for each value head.
    pub fn projected(&self) -> u32 {
        self.query_key_width() + 2 * self.value_width() + 2 * self.value_heads
    }

    /// Parameters of one layer's matrices for a stream of width `hidden`, the convolution included.
    pub fn parameters(&self, hidden: u32) -> u64 {
        let h = u64::from(hidden);
        let convolved = u64::from(self.query_key_width() + self.value_width());
        h * u64::from(self.projected())
            + convolved * u64::from(self.conv_kernel)
            + h * u64::from(self.value_width())
            + 2 * u64::from(self.value_heads)
            + u64::from(self.value_dim)
    }

    /// State of one sequence in one layer: a matrix for each value head, and the tokens that the convolution still sees [bytes].
    pub fn state_bytes(&self) -> f64 {
        let matrices =
            f64::from(self.value_heads) * f64::from(self.key_dim) * f64::from(self.value_dim);
        let convolved = f64::from(self.query_key_width() + self.value_width());
        let seen = f64::from(self.conv_kernel.saturating_sub(1));
        matrices * self.state.bytes() + convolved * seen * 2.0
    }

    /// Checks that the shape is one that can be computed with.
    ///
    /// # Errors
    /// What is out of range.
    pub fn validate(&self) -> Result<(), String> {
        for (field, value, most) in [
            ("full_attention_interval", self.full_every, 1_000),
            ("linear_num_key_heads", self.key_heads, 4_096),
            ("linear_num_value_heads", self.value_heads, 4_096),
            ("linear_key_head_dim", self.key_dim, 8_192),
            ("linear_value_head_dim", self.value_dim, 8_192),
            ("linear_conv_kernel_dim", self.conv_kernel, 64),
        ] {
            if value == 0 || value > most {
                return Err(format!("{field} must be from 1 to {most}, got {value}"));
            }
        }
        if self.full_every == 1 {
            return Err(
                "full_attention_interval of 1 leaves no layer of linear attention".to_owned(),
            );
        }
        if !self.value_heads.is_multiple_of(self.key_heads) {
            return Err(format!(
                "linear_num_value_heads ({}) must be a multiple of linear_num_key_heads ({})",
                self.value_heads, self.key_heads
            ));
        }
        Ok(())
    }
}
