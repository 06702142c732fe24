//! Linear attention by the gated delta rule: the short convolution and the kernels that keep the states.
//!
//! A decode reads and writes the whole state of its sequence, whatever its context. A prompt is computed in chunks of 64 tokens
//! (flash-linear-attention, `chunk_gated_delta_rule`): products within a chunk, and a state that goes through memory after each.

use super::arithmetic::Arithmetic;
use super::attention::PrefillWork;
use super::device::{Device, OpTime};
use super::elementwise::{self, ElementwiseParams};
use crate::linear_attention::LinearAttention;

/// Tokens of a chunk.
const CHUNK: f64 = 64.0;
/// Kernels of a decode: the convolution and the rule.
const DECODE_KERNELS: f64 = 2.0;
/// Kernels of a prefill: the convolution, the sums of the gates, the inverse within each chunk, keys and values times it, states, output.
const PREFILL_KERNELS: f64 = 6.0;
/// Share of the peak rate that products of such small matrices reach; assumed.
const ARITHMETIC: f64 = 0.3;

/// Widths of one token on a rank: queries and keys, values [dims].
fn widths(l: &LinearAttention) -> (f64, f64) {
    (f64::from(l.query_key_width()), f64::from(l.value_width()))
}

/// Bytes that `seqs` decodes move in one layer.
pub fn decode_bytes(l: &LinearAttention, seqs: f64) -> f64 {
    let (keys, values) = widths(l);
    // Queries, keys and values come in and go through the convolution; the output goes out.
    seqs * (2.0 * l.state_bytes() + 2.0 * (3.0 * keys + 4.0 * values))
}

/// Time of one layer's kernels over `seqs` decodes.
pub fn decode_time(p: &ElementwiseParams, d: &Device, l: &LinearAttention, seqs: f64) -> OpTime {
    elementwise::time(p, d, decode_bytes(l, seqs), DECODE_KERNELS)
}

/// Products over a prompt's tokens in one layer [FLOP].
pub fn prefill_flops(l: &LinearAttention, work: &PrefillWork) -> f64 {
    let (key, value) = (f64::from(l.key_dim), f64::from(l.value_dim));
    let within = 2.0 * CHUNK * (2.0 * key + 2.0 * value);
    let states = 4.0 * key * value;
    work.tokens * f64::from(l.value_heads) * (within + states)
}

/// Time of one layer's kernels over the chunks `work`.
pub fn prefill_time(
    p: &ElementwiseParams,
    d: &Device,
    l: &LinearAttention,
    work: &PrefillWork,
) -> OpTime {
    let (keys, values) = widths(l);
    let convolution = 2.0 * 2.0 * (keys + values);
    // Keys are read by three kernels and queries by two; values become two products, each written and read, and then the output.
    let rule = 2.0 * (2.5 * keys + 6.0 * values);
    let matrices = f64::from(l.value_heads) * f64::from(l.key_dim) * f64::from(l.value_dim);
    let states = 2.0 * 2.0 * matrices / CHUNK;
    let bytes = work.tokens * (convolution + rule + states) + work.seqs * 2.0 * l.state_bytes();
    let time = elementwise::time(p, d, bytes, PREFILL_KERNELS);
    let compute = prefill_flops(l, work) / (Arithmetic::Bf16.peak(d) * ARITHMETIC);
    OpTime {
        seconds: time.seconds + (compute - time.memory).max(0.0),
        compute,
        memory: time.memory,
    }
}
