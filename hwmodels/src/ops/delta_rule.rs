//! Linear attention by a delta rule, gated by head or (Kimi delta attention) by channel: the short convolution and the kernels that keep the states.
//!
//! A decode reads and writes the whole state of its sequence, whatever its context. A prompt is computed in chunks of 64 tokens
//! (flash-linear-attention, `chunk_gated_delta_rule`, `chunk_kda`): products within a chunk, and a state that goes through memory after each.

use super::arithmetic::Arithmetic;
use super::attention::PrefillWork;
use super::device::{Device, OpTime};
use super::elementwise::{self, ElementwiseParams};
use crate::Dtype;
use crate::recurrence::{Recurrence, Rule};

/// Kernels of a decode: the convolution and the rule.
const DECODE_KERNELS: f64 = 2.0;
/// Kernels of a prefill: the convolution, the sums of the gates, the inverse within each chunk, keys and values times it, states, output.
const PREFILL_KERNELS: f64 = 6.0;
/// Share of the peak rate that products of such small matrices reach; assumed.
const ARITHMETIC: f64 = 0.3;
/// Bytes of gates for each channel of a key that a prompt's kernels move: read in 16 bits, their sums written and read by three kernels in 32.
const CHANNEL_GATES: f64 = 2.0 + 4.0 + 3.0 * 4.0;

/// Widths of one token on a rank: queries and keys, values [dims].
fn widths(r: &Recurrence) -> (f64, f64) {
    (f64::from(r.query_key_width()), f64::from(r.value_width()))
}

/// Channels that have a gate of their own.
fn gated_channels(r: &Recurrence) -> f64 {
    match r.rule {
        Rule::Kda => f64::from(r.key_heads) * f64::from(r.key_dim),
        Rule::GatedDelta | Rule::Mamba2 => 0.0,
    }
}

/// Bytes that `seqs` decodes move in one layer whose states are kept in `unsaid` where the model says nothing.
pub fn decode_bytes(r: &Recurrence, unsaid: Dtype, seqs: f64) -> f64 {
    let (keys, values) = widths(r);
    // Queries, keys and values come in and go through the convolution, gates come in; the output goes out.
    let token = 3.0 * keys + 4.0 * values + gated_channels(r);
    seqs * (2.0 * r.state_bytes(unsaid) + 2.0 * token)
}

/// Time of one layer's kernels over `seqs` decodes.
pub fn decode_time(
    p: &ElementwiseParams,
    d: &Device,
    r: &Recurrence,
    unsaid: Dtype,
    seqs: f64,
) -> OpTime {
    elementwise::time(p, d, decode_bytes(r, unsaid, seqs), DECODE_KERNELS)
}

/// Products over a prompt's tokens in one layer [FLOP].
pub fn prefill_flops(r: &Recurrence, work: &PrefillWork) -> f64 {
    let (key, value) = (f64::from(r.key_dim), f64::from(r.value_dim));
    let within = 2.0 * f64::from(r.chunk) * (2.0 * key + 2.0 * value);
    let states = 4.0 * key * value;
    work.tokens * f64::from(r.value_heads) * (within + states)
}

/// Time of one layer's kernels over the chunks `work`.
pub fn prefill_time(
    p: &ElementwiseParams,
    d: &Device,
    r: &Recurrence,
    unsaid: Dtype,
    work: &PrefillWork,
) -> OpTime {
    let (keys, values) = widths(r);
    let convolution = 2.0 * 2.0 * (keys + values);
    // Keys are read by three kernels and queries by two; values become two products, each written and read, and then the output.
    let rule = 2.0 * (2.5 * keys + 6.0 * values) + CHANNEL_GATES * gated_channels(r);
    let states = 2.0 * 2.0 * r.matrix_values() / f64::from(r.chunk);
    let bytes =
        work.tokens * (convolution + rule + states) + work.seqs * 2.0 * r.state_bytes(unsaid);
    let time = elementwise::time(p, d, bytes, PREFILL_KERNELS);
    let compute = prefill_flops(r, work) / (Arithmetic::Bf16.peak(d) * ARITHMETIC);
    OpTime {
        seconds: time.seconds + (compute - time.memory).max(0.0),
        compute,
        memory: time.memory,
    }
}
