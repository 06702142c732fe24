//! Sparse latent attention: the indexer's scores, the choice of the best tokens, and latent attention over these.
//!
//! Three kernels a layer, besides projections (vLLM and SGLang: DeepGEMM's `fp8_mqa_logits` and `fp8_paged_mqa_logits`, a top-k kernel, FlashMLA's
//! sparse kernels; AIConfigurator's tables of them on H100, H200 and B200, `sparse_attention/`). Their figures stand at the constants below.

use super::decode::MlaShape;
use super::prefill::PrefillWork;
use crate::indexer::Indexer;
use crate::ops::device::{Device, OpTime, ceil_div};
use crate::{BatchStats, Dtype};

/// Shape of one layer's sparse latent attention on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseShape {
    /// The latent attention.
    pub latent: MlaShape,
    /// What chooses the tokens that it reads.
    pub indexer: Indexer,
}

/// Whose kernels do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SparseKernels {
    /// FlashMLA's for everything (vLLM).
    #[default]
    FlashMla,
    /// FlashMLA's for prompts, the dense kernels where no sequence is longer than `top_k`, FlashAttention 3 or TensorRT-LLM's for decodes (SGLang).
    Sglang,
    /// TensorRT-LLM's own.
    TrtLlm,
}

/// Rows of queries that one block of the scoring kernel takes: so many tokens times heads.
const SCORE_ROWS: f64 = 128.0;
/// Share of the 8-bit peak at which full blocks score, on Hopper and on Blackwell. 16 384 tokens and 32 heads: 1.20 ms on H100, 0.57 on B200.
const SCORE_EFFICIENCY: [f64; 2] = [0.48, 0.42];
/// Time of a scoring kernel over almost nothing [s].
const SCORE_FIXED: f64 = 3.6e-6;
/// Share of the memory's peak at which decodes read the indexer's keys, and write and read their scores. 128 sequences from 2048 to 131 072 tokens:
/// 0.85 ms more on H100, 0.61 on H200, 0.38 on B200, under vLLM.
const SCORE_BANDWIDTH: f64 = 0.8;
/// Bytes of one 32-bit score, written and read.
const SCORE_BYTES: f64 = 8.0;
/// Time of choosing the best tokens: of a call, of one row on one unit, and of a token of its context [s]. The tables hold scores as flat as can be and
/// scores that grow towards the end, which take 1.5 to 3 times less; these lie between (geometric mean) and are 7 to 10 % off in the median on three chips.
const CHOICE_FIXED: f64 = 2.5e-6;
const CHOICE_ROW: f64 = 3.1e-6;
const CHOICE_TOKEN: f64 = 0.35e-9;
/// Time of a sparse attention kernel over almost nothing [s].
const ATTENTION_FIXED: f64 = 8e-6;
/// Share of the memory's peak at which chosen latents are read.
const GATHER_BANDWIDTH: f64 = 0.75;

/// Least heads that sparse kernels compute for a token: what there is less of is padded. FlashMLA's tables take as long for 8 heads as for 64 on H100 and as for
/// 128 on B200, projections apart.
fn padded_heads(d: &Device, heads: u32) -> f64 {
    let least = if d.fp4 { 128 } else { 64 };
    f64::from(heads.next_multiple_of(least))
}

/// Share of the 16-bit peak at which FlashMLA attends to chosen tokens, over 16-bit latents: 64 heads and 16 384 tokens 7.8 ms on H100, padded to 128 heads 8.1 ms
/// on B200 (its authors: 640 of 989 and 1450 of 2250 TFLOP/s).
fn flash_mla_efficiency(d: &Device) -> f64 {
    if d.fp4 { 0.515 } else { 0.60 }
}

/// The same of its kernel over 8-bit latents, which computes `top_k` tokens whatever the context: of decodes 410 of 989 TFLOP/s on H800 (its authors).
const NARROW_DECODES: f64 = 0.415;
/// And of prompts that take that kernel: 3.4 ms more than over 16-bit latents for 8192 tokens and 16 heads under vLLM (H100).
const NARROW_PROMPTS: f64 = 0.33;
/// Heads of a rank below which vLLM's prompts over 8-bit latents take it (`MIN_HEADS_FOR_BF16_PREFILL`).
const LEAST_HEADS_OF_PROMPTS: u32 = 32;
/// TensorRT-LLM's kernels on Hopper: from 64 to 128 heads 12.9 ms more for 8192 tokens, projections included.
const TRT_LLM_ON_HOPPER: f64 = 0.21;
/// Share of the time of `top_k` tokens that prompts take however few they read: from one kernel's 45 % for 128 keys to 85 % for 1500 (vLLM, H100).
const UNFILLED: f64 = 0.4;

/// Whether prompts no longer than `top_k` take dense kernels, as SGLang's do, and TensorRT-LLM's on Blackwell.
pub fn takes_dense(
    d: &Device,
    s: &SparseShape,
    kernels: SparseKernels,
    work: &PrefillWork,
) -> bool {
    let has = match kernels {
        SparseKernels::FlashMla => false,
        SparseKernels::Sglang => true,
        SparseKernels::TrtLlm => d.fp4,
    };
    has && work.ctx_sum <= work.seqs * f64::from(s.indexer.top_k)
}

/// Time of scoring the past of prompts and choosing its best tokens. Zero without tokens.
pub fn prefill_index_time(d: &Device, i: &Indexer, work: &PrefillWork) -> OpTime {
    if work.tokens <= 0.0 || work.seqs <= 0.0 {
        return OpTime::default();
    }
    let (heads, dim) = (f64::from(i.heads), f64::from(i.head_dim));
    let keys = work.pairs / work.tokens;
    // A block holds whole tokens; each wave of blocks walks over all keys.
    let tokens_at_once = (SCORE_ROWS / heads).floor().max(1.0) * d.units;
    let padded = ceil_div(work.tokens, tokens_at_once) * tokens_at_once;
    let peak = d.fp8.unwrap_or(d.bf16);
    let scores = 2.0 * padded * keys * heads * dim / (peak * SCORE_EFFICIENCY[usize::from(d.fp4)]);
    let written = SCORE_BYTES * work.pairs / (d.bandwidth * SCORE_BANDWIDTH);
    let scored = OpTime {
        seconds: SCORE_FIXED + scores.max(written),
        compute: scores,
        memory: written,
    };
    scored + choice_time(d, i, work.tokens, keys, work.ctx_sum / work.seqs)
}

/// Time of choosing the best of `keys` scores for each of `rows` tokens, the longest of which has `longest`. Nothing to choose: no time.
fn choice_time(d: &Device, i: &Indexer, rows: f64, keys: f64, longest: f64) -> OpTime {
    if longest <= f64::from(i.top_k) {
        return OpTime::default();
    }
    let one = CHOICE_ROW + CHOICE_TOKEN * keys;
    let seconds = CHOICE_FIXED + one * (rows / d.units).max(1.0);
    OpTime {
        seconds,
        compute: seconds,
        memory: 0.0,
    }
}

/// Time of scoring the contexts of decodes and choosing their best tokens. Zero without decodes.
pub fn decode_index_time(d: &Device, i: &Indexer, batch: &BatchStats) -> OpTime {
    if batch.decode_seqs == 0 {
        return OpTime::default();
    }
    let tokens = batch.decode_ctx_sum as f64;
    let seqs = f64::from(batch.decode_seqs);
    let bytes = tokens * (i.key_bytes() + SCORE_BYTES);
    let memory = bytes / (d.bandwidth * SCORE_BANDWIDTH);
    let peak = d.fp8.unwrap_or(d.bf16) * SCORE_EFFICIENCY[usize::from(d.fp4)];
    let compute = 2.0 * tokens * f64::from(i.heads) * f64::from(i.head_dim) / peak;
    let scored = OpTime {
        seconds: SCORE_FIXED + memory.max(compute),
        compute,
        memory,
    };
    scored + choice_time(d, i, seqs, 0.0, tokens / seqs)
}

/// Keys that a query of the mean prompt reads: all that precede it, at most `top_k`.
fn read_by_prompts(work: &PrefillWork, top_k: f64) -> f64 {
    let after = work.ctx_sum / work.seqs.max(1.0);
    let new = work.tokens / work.seqs.max(1.0);
    let sum = |x: f64| {
        let few = x.min(top_k);
        few * (few + 1.0) / 2.0 + (x - few) * top_k
    };
    (sum(after) - sum((after - new).max(0.0))) / new
}

/// Time of latent attention of prompts over their chosen tokens. Zero without tokens.
pub fn sparse_prefill_time(
    d: &Device,
    s: &SparseShape,
    kernels: SparseKernels,
    work: &PrefillWork,
) -> OpTime {
    if work.tokens <= 0.0 {
        return OpTime::default();
    }
    let top_k = f64::from(s.indexer.top_k);
    let read = read_by_prompts(work, top_k);
    if generated(d, kernels, narrow(&s.latent), false) {
        return gathered(d, s, work.tokens * read);
    }
    // A block of 64 heads of one token at a time on each unit.
    let blocks = work.tokens * padded_heads(d, s.latent.heads) / 64.0;
    let waves = ceil_div(blocks, d.units);
    // FlashMLA's kernel over 16-bit latents alone does less where there is less to read.
    let filled = top_k * UNFILLED + read * (1.0 - UNFILLED);
    let few = s.latent.heads < LEAST_HEADS_OF_PROMPTS;
    let (computed, efficiency) = match kernels {
        SparseKernels::TrtLlm => (top_k, TRT_LLM_ON_HOPPER),
        SparseKernels::FlashMla if narrow(&s.latent) && few => (top_k, NARROW_PROMPTS),
        SparseKernels::Sglang if narrow(&s.latent) => (top_k, NARROW_PROMPTS),
        _ => (filled, flash_mla_efficiency(d)),
    };
    let compute =
        waves * 64.0 * computed * flops_per_pair(&s.latent) * d.units / (d.bf16 * efficiency);
    OpTime {
        seconds: ATTENTION_FIXED + compute,
        compute,
        // Neighbouring tokens choose alike, so most of it comes from the cache.
        memory: 0.0,
    }
}

/// Time of latent attention of decodes over their chosen tokens. Zero without decodes.
pub fn sparse_decode_time(
    d: &Device,
    s: &SparseShape,
    kernels: SparseKernels,
    batch: &BatchStats,
) -> OpTime {
    if batch.decode_seqs == 0 {
        return OpTime::default();
    }
    let seqs = f64::from(batch.decode_seqs);
    let tokens = f64::from(batch.decode_tokens);
    let top_k = f64::from(s.indexer.top_k);
    let read = (batch.decode_ctx_sum as f64 / seqs).min(top_k);
    if generated(d, kernels, narrow(&s.latent), true) {
        return gathered(d, s, seqs * read);
    }
    let memory = seqs * read * row_bytes(&s.latent) / (d.bandwidth * GATHER_BANDWIDTH);
    let (computed, efficiency) = match kernels {
        SparseKernels::TrtLlm => (top_k, TRT_LLM_ON_HOPPER),
        _ if narrow(&s.latent) => (top_k, NARROW_DECODES),
        _ => (read, flash_mla_efficiency(d)),
    };
    let flops = tokens * padded_heads(d, s.latent.heads) * computed * flops_per_pair(&s.latent);
    let compute = flops / (d.bf16 * efficiency);
    OpTime {
        seconds: ATTENTION_FIXED + memory.max(compute),
        compute,
        memory,
    }
}

/// Whether TensorRT-LLM's generated kernels for Blackwell run, which FlashInfer carries: over 8-bit latents in all engines, over 16-bit ones in
/// TensorRT-LLM's and in SGLang's decodes.
fn generated(d: &Device, kernels: SparseKernels, narrow: bool, decode: bool) -> bool {
    let wide = match kernels {
        SparseKernels::FlashMla => false,
        SparseKernels::Sglang => decode,
        SparseKernels::TrtLlm => true,
    };
    d.fp4 && (narrow || wide)
}

/// Time of those kernels for queries that read `rows` latents together: what they gather, or what they compute, in the latents' format and for no more heads
/// than there are.
fn gathered(d: &Device, s: &SparseShape, rows: f64) -> OpTime {
    let memory = rows * row_bytes(&s.latent) / (d.bandwidth * GATHER_BANDWIDTH);
    let heads = f64::from(s.latent.heads.next_multiple_of(16));
    let (peak, efficiency) = match d.fp8 {
        Some(fp8) if narrow(&s.latent) => (fp8, 0.45),
        _ => (d.bf16, 0.6),
    };
    let compute = rows * heads * flops_per_pair(&s.latent) / (peak * efficiency);
    OpTime {
        seconds: ATTENTION_FIXED + memory.max(compute),
        compute,
        memory,
    }
}

fn narrow(m: &MlaShape) -> bool {
    matches!(m.kv_dtype, Dtype::Fp8 | Dtype::Int8)
}

/// FLOPs of one query head and one chosen token: scores over latent and rotary part, values over the latent.
fn flops_per_pair(m: &MlaShape) -> f64 {
    let latent = f64::from(m.kv_lora_rank);
    2.0 * (2.0 * latent + f64::from(m.rope_dim))
}

/// Bytes of one token's latent and rotary key; in 8 bits packed with a 32-bit scale for each 128 values and 16-bit rotary keys.
fn row_bytes(m: &MlaShape) -> f64 {
    let (latent, rope) = (f64::from(m.kv_lora_rank), f64::from(m.rope_dim));
    if m.kv_dtype == Dtype::Fp8 {
        latent + (latent / 128.0).ceil() * 4.0 + 2.0 * rope
    } else {
        (latent + rope) * m.kv_dtype.bytes()
    }
}
