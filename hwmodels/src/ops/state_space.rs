//! Mamba2's state space: the short convolution, the update of the states in a decode, the scan over a prompt.
//!
//! The convolution is measured. Update and scan are not in any public table: their two constants come from kernel times that were published for one shape
//! on one H100, and hold for other shapes and devices as shares of the peaks.

use super::arithmetic::Arithmetic;
use super::attention::PrefillWork;
use super::device::{Device, OpTime};
use super::elementwise::{self, ElementwiseParams};
use crate::Dtype;
use crate::recurrence::Recurrence;

/// Share of the peak bandwidth that the update of the states reaches. vllm-project/vllm pull request 43083 prints the times of its tuned kernel on an H100
/// (heads of 64, states of 128 in 16 bits): for 2048, 4096, 8192 and 12 288 heads of a batch 28.45, 55.48, 104.54 and 145.55 us, which are 70, 72, 77 and
/// 83 % of 3.35 TB/s. The median.
const UPDATE_BANDWIDTH: f64 = 0.745;
/// Time of an update of next to nothing [s]: the same table, 8 heads.
const UPDATE_FIXED: f64 = 2.2e-6;
/// Share of the 16-bit peak that the scan's products reach, with all else that its kernels do counted in. vllm-project/vllm pull request 27299 prints tokens
/// per second of the five kernels that vLLM runs, on an H100 for the shape of Granite-4.0-H-Small (128 heads of 64, one group, states of 128, chunks
/// of 256): 10.7 to 12.9 million from 4096 tokens to 262 144. The median, 11.8 million tokens of 8.45 MFLOP, is 100 TFLOP/s. Shorter prompts wait for their
/// launches from the host there, which are counted elsewhere.
const SCAN_ARITHMETIC: f64 = 0.1;
/// Kernels of a scan: sums of the gates, products of keys and queries, states of the chunks, their passing on, output.
const SCAN_KERNELS: f64 = 5.0;

/// Bytes that the convolution of `tokens` tokens of `seqs` sequences moves.
pub fn convolution_bytes(r: &Recurrence, tokens: f64, seqs: f64) -> f64 {
    2.0 * 2.0 * f64::from(r.channels()) * tokens + 2.0 * r.seen_bytes() * seqs
}

/// Time of one layer's convolution over `tokens` tokens of `seqs` sequences.
pub fn convolution_time(
    p: &ElementwiseParams,
    d: &Device,
    r: &Recurrence,
    tokens: f64,
    seqs: f64,
) -> OpTime {
    elementwise::time(p, d, convolution_bytes(r, tokens, seqs), 1.0)
}

/// Time of one layer's update of the states over `seqs` decodes, kept in `unsaid` where the model says nothing.
pub fn update_time(d: &Device, r: &Recurrence, unsaid: Dtype, seqs: f64) -> OpTime {
    // The state is read and written; inputs are read and the output written.
    let state = 2.0 * r.matrix_values() * r.state_format(unsaid).bytes();
    let token = 2.0 * (f64::from(r.query_key_width()) + 2.0 * f64::from(r.value_width()));
    let memory = seqs * (state + token) / (d.bandwidth * UPDATE_BANDWIDTH);
    OpTime {
        seconds: memory + UPDATE_FIXED,
        compute: 0.0,
        memory,
    }
}

/// Products of a scan over a prompt's tokens in one layer [FLOP]: queries with keys of the chunk for each group; for each head these with the values, the
/// chunk's state and what the state before it yields.
pub fn scan_flops(r: &Recurrence, work: &PrefillWork) -> f64 {
    let [groups, heads, key, value, chunk] =
        [r.key_heads, r.value_heads, r.key_dim, r.value_dim, r.chunk].map(f64::from);
    let scores = 2.0 * groups * chunk * key;
    let head = 2.0 * chunk * value + 4.0 * key * value;
    work.tokens * (scores + heads * head)
}

/// Time of one layer's scan over the chunks `work`.
pub fn scan_time(
    p: &ElementwiseParams,
    d: &Device,
    r: &Recurrence,
    unsaid: Dtype,
    work: &PrefillWork,
) -> OpTime {
    let (keys, values) = (f64::from(r.query_key_width()), f64::from(r.value_width()));
    // Keys and values are read by two kernels; the output is written.
    let token = 2.0 * (2.0 * keys + 3.0 * values);
    // Each chunk's state is written, passed on and read, in 32 bits.
    let states = 4.0 * 4.0 * r.matrix_values() / f64::from(r.chunk);
    let kept = 2.0 * r.matrix_values() * r.state_format(unsaid).bytes();
    let bytes = work.tokens * (token + states) + work.seqs * kept;
    let time = elementwise::time(p, d, bytes, SCAN_KERNELS);
    let compute = scan_flops(r, work) / (Arithmetic::Bf16.peak(d) * SCAN_ARITHMETIC);
    OpTime {
        seconds: time.seconds + (compute - time.memory).max(0.0),
        compute,
        memory: time.memory,
    }
}
