//! Decode attention, plain and latent.
//!
//! It reads each sequence's keys and values once: bytes over achievable bandwidth, against
//! the cost of its CTAs (one per sequence and KV head, or several when the KV is split over idle units).

use super::span::{Span, mean_place, place_in_chunk};
use crate::ops::device::{Device, OpTime, ceil_div, soft_max};
use crate::ops::param::{ParamSpec, read_all};
use crate::{BatchStats, Dtype, Profile};

/// Where the KV of a decode step lies when the kernel starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// In device memory: the case in serving, where the other layers have passed through the cache since.
    Cold,
    /// In the last-level cache as far as it fits: a kernel benchmark that repeats one call.
    Warm,
}

/// Shape of one layer's decode attention on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeShape {
    /// Query heads of this rank.
    pub heads: u32,
    /// KV heads of this rank.
    pub kv_heads: u32,
    /// Size of a head [dims].
    pub head_dim: u32,
    /// Format of the KV cache.
    pub kv_dtype: Dtype,
    /// Which of its past a token attends to.
    pub span: Span,
}

/// Shape of one layer's latent decode attention (MLA in absorbed form) on one rank: every head reads the one
/// latent of `kv_lora_rank + rope_dim` values per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaShape {
    /// Query heads of this rank.
    pub heads: u32,
    /// Rank of the shared latent [dims].
    pub kv_lora_rank: u32,
    /// Rotary part of the key [dims].
    pub rope_dim: u32,
    /// Format of the KV cache.
    pub kv_dtype: Dtype,
}

/// Parameters of decode attention. The priors lie between the fits of A100 and H100 kernels.
pub const DECODE_SPECS: [ParamSpec; 12] = [
    ParamSpec {
        name: "bandwidth_efficiency",
        prior: 0.9,
        min: 0.3,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth at which KV is read",
    },
    ParamSpec {
        name: "fixed",
        prior: 8.2e-6,
        min: 1e-6,
        max: 40e-6,
        unit: "s",
        meaning: "time of a call over almost no context",
    },
    ParamSpec {
        name: "cta",
        prior: 1.7e-6,
        min: 0.0,
        max: 20e-6,
        unit: "s",
        meaning: "time of one CTA (one sequence and KV head) beside its reads",
    },
    ParamSpec {
        name: "cta_dims",
        prior: 1.2e-6,
        min: 0.0,
        max: 20e-6,
        unit: "s",
        meaning: "further time of one CTA per 128 dims of head size",
    },
    ParamSpec {
        name: "block",
        prior: 0.9e-6,
        min: 0.0,
        max: 5e-6,
        unit: "s",
        meaning: "time of one block of 128 tokens within a CTA",
    },
    ParamSpec {
        name: "overlap_power",
        prior: 1.6,
        min: 1.0,
        max: 12.0,
        unit: "ratio",
        meaning: "how sharply reads and the cost of CTAs overlap",
    },
    ParamSpec {
        name: "ramp",
        prior: 6e-6,
        min: 0.0,
        max: 20e-6,
        unit: "s",
        meaning: "time to get reads from device memory going at full rate",
    },
    ParamSpec {
        name: "unit_bandwidth_share",
        prior: 1.5,
        min: 0.5,
        max: 4.0,
        unit: "ratio",
        meaning: "bandwidth that one unit can pull alone, over an even share of the device's",
    },
    ParamSpec {
        name: "split",
        prior: 1.6e-6,
        min: 0.0,
        max: 20e-6,
        unit: "s",
        meaning: "extra time for joining the parts when the KV is split over units",
    },
    ParamSpec {
        name: "split_doubling",
        prior: 1.1e-6,
        min: 0.0,
        max: 10e-6,
        unit: "s",
        meaning: "further time per doubling of the number of parts",
    },
    ParamSpec {
        name: "group_copy",
        prior: 0.0,
        min: 0.0,
        max: 20e-6,
        unit: "s",
        meaning: "extra kernel that rearranges grouped query heads of several sequences",
    },
    ParamSpec {
        name: "splits_ungrouped",
        prior: 1.0,
        min: 0.0,
        max: 1.0,
        unit: "switch",
        meaning: "1 when KV is split over idle units also without grouped heads (FlashAttention 3), 0 when not (FlashAttention 2)",
    },
];

/// Values of [`DECODE_SPECS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeParams {
    bandwidth_efficiency: f64,
    fixed: f64,
    cta: f64,
    cta_dims: f64,
    block: f64,
    overlap_power: f64,
    ramp: f64,
    unit_bandwidth_share: f64,
    split: f64,
    split_doubling: f64,
    group_copy: f64,
    splits_ungrouped: f64,
    /// Whether the KV of a sequence is split over idle units at all.
    splits: bool,
}

impl DecodeParams {
    /// From values in the order of [`DECODE_SPECS`].
    pub fn from_values(v: &[f64; DECODE_SPECS.len()]) -> DecodeParams {
        DecodeParams {
            bandwidth_efficiency: v[0],
            fixed: v[1],
            cta: v[2],
            cta_dims: v[3],
            block: v[4],
            overlap_power: v[5],
            ramp: v[6],
            unit_bandwidth_share: v[7],
            split: v[8],
            split_doubling: v[9],
            group_copy: v[10],
            splits_ungrouped: v[11],
            splits: true,
        }
    }

    /// TensorRT-LLM's XQA kernels over an 8-bit KV cache. Nobody has published tables of them that can be had here: where `profile` is silent, they
    /// take the parameters of 16-bit KV, so they reach the same share of the memory's bandwidth over half the bytes. (XQA feeds 8-bit keys and values
    /// to the tensor cores as they are; FlashAttention 3 converts them, and reaches two thirds of what it does with 16 bits.)
    pub(crate) fn xqa(profile: &Profile) -> DecodeParams {
        let wide = read_all(&DECODE_SPECS, profile, decode_prefix(Dtype::Bf16));
        Self::from_values(&std::array::from_fn(|i| {
            let spec = &DECODE_SPECS[i];
            profile
                .get(&spec.full_name(XQA_PREFIX), wide[i])
                .clamp(spec.min, spec.max)
        }))
    }

    /// The same, splitting the KV of a sequence over idle units or not.
    pub(crate) fn splitting(self, splits: bool) -> DecodeParams {
        DecodeParams { splits, ..self }
    }

    /// The profile's values for a KV cache of this format, priors where it is silent.
    pub fn from_profile(profile: &Profile, kv: Dtype) -> DecodeParams {
        Self::from_values(&read_all(&DECODE_SPECS, profile, decode_prefix(kv)))
    }
}

/// Prefix of the decode parameters of XQA kernels over an 8-bit KV cache.
pub const XQA_PREFIX: &str = "attn.decode.xqa_kv8";

/// Prefix of the decode parameters for a KV cache of this format.
pub fn decode_prefix(kv: Dtype) -> &'static str {
    match kv {
        Dtype::Fp8 | Dtype::Int8 => "attn.decode.kv8",
        _ => "attn.decode.kv16",
    }
}

/// Tokens of one block of keys: the KV of a sequence is read, and split, in whole blocks.
const BLOCK_TOKENS: f64 = 128.0;
/// Shares of the last-level cache between which a repeated call passes from finding its KV there to not.
const WARM_FROM: f64 = 0.7;
const WARM_TO: f64 = 1.2;

/// What decode attention needs to know of the contexts, as far as they are read.
struct Contexts {
    /// Mean context read [tokens].
    mean: f64,
    /// Estimate of the longest: the length-biased mean, which lies between mean and maximum [tokens].
    long: f64,
}

/// What is read of the contexts, taking them as spread evenly with the batch's mean and variance.
fn contexts(batch: &BatchStats, span: Span) -> Contexts {
    let n = f64::from(batch.decode_seqs);
    let mean = batch.decode_ctx_sum as f64 / n;
    let sq = batch.decode_ctx_sq_sum as f64 / n;
    let long = if mean > 0.0 {
        (sq / mean).max(mean)
    } else {
        0.0
    };
    let half = (3.0 * (sq - mean * mean).max(0.0)).sqrt();
    let (lo, hi) = (mean - half, mean + half);
    let w = match span {
        Span::All => return Contexts { mean, long },
        // A window that starts within a block reads that block too.
        Span::Last(w) => f64::from(w) + BLOCK_TOKENS,
        Span::Chunk(c) => return in_chunks(Contexts { mean, long }, lo, hi, f64::from(c)),
    };
    let clipped = if w >= hi {
        mean
    } else if w <= lo {
        w
    } else {
        // Integral of min(c, w) over the even spread [lo, hi].
        ((w * w - lo * lo) / 2.0 + w * (hi - w)) / (hi - lo)
    };
    Contexts {
        mean: clipped.min(w),
        long: long.min(w),
    }
}

/// What sequences read that attend within chunks of `chunk` tokens; chunks begin with a block.
fn in_chunks(all: Contexts, lo: f64, hi: f64, chunk: f64) -> Contexts {
    let mean = mean_place(lo, hi, chunk);
    let begins = |context: f64| context - place_in_chunk(context, chunk);
    let long = if begins(lo.max(1.0)) == begins(hi) {
        all.long - begins(hi)
    } else {
        all.long.min(chunk)
    };
    Contexts {
        mean,
        long: long.min(chunk).max(mean),
    }
}

/// Time of one layer's decode attention. Zero without decodes.
pub fn decode_time(
    p: &DecodeParams,
    d: &Device,
    shape: &DecodeShape,
    batch: &BatchStats,
    cache: Cache,
) -> OpTime {
    let row = 2.0 * f64::from(shape.head_dim) * shape.kv_dtype.bytes();
    decode_with(
        p,
        d,
        Reads {
            row_bytes: row,
            kv_heads: f64::from(shape.kv_heads),
            heads: f64::from(shape.heads),
            query_bytes: 2.0 * 2.0 * f64::from(shape.head_dim),
            flops_per_pair: 4.0 * f64::from(shape.head_dim),
            dims: f64::from(shape.head_dim),
        },
        batch,
        shape.span,
        cache,
    )
}

/// What the surface of decode attention is a function of: tokens of a sequence that are read, KV heads of all sequences, query heads to a KV head.
#[inline]
pub fn decode_quantities(shape: &DecodeShape, batch: &BatchStats) -> [f64; 3] {
    let kv_heads = f64::from(shape.kv_heads.max(1));
    [
        contexts(batch, shape.span).mean,
        f64::from(batch.decode_seqs) * kv_heads,
        f64::from(shape.heads) / kv_heads,
    ]
}

/// The same of latent decode attention: tokens of a sequence, sequences, query heads.
#[inline]
pub fn mla_decode_quantities(shape: &MlaShape, batch: &BatchStats) -> [f64; 3] {
    [
        contexts(batch, Span::All).mean,
        f64::from(batch.decode_seqs),
        f64::from(shape.heads),
    ]
}

/// Time of one layer's latent decode attention. Zero without decodes.
pub fn mla_decode_time(
    p: &DecodeParams,
    d: &Device,
    shape: &MlaShape,
    batch: &BatchStats,
    cache: Cache,
) -> OpTime {
    let latent = f64::from(shape.kv_lora_rank);
    let key = latent + f64::from(shape.rope_dim);
    decode_with(
        p,
        d,
        Reads {
            row_bytes: key * shape.kv_dtype.bytes(),
            kv_heads: 1.0,
            heads: f64::from(shape.heads),
            query_bytes: 2.0 * (key + latent),
            flops_per_pair: 2.0 * (key + latent),
            dims: key,
        },
        batch,
        Span::All,
        cache,
    )
}

/// One KV head's traffic and arithmetic.
struct Reads {
    /// Bytes of one token and KV head.
    row_bytes: f64,
    kv_heads: f64,
    heads: f64,
    /// Query and output bytes of one head.
    query_bytes: f64,
    flops_per_pair: f64,
    /// Head size that a CTA works on [dims].
    dims: f64,
}

/// Rows of queries that one tensor-core instruction takes: query heads that share a KV head, and the
/// tokens of a verification, are padded to it.
const QUERY_ROWS: f64 = 64.0;
/// Share of the peak that decode's narrow products reach. Analytic; binds only for latent attention
/// with many heads.
const DECODE_COMPUTE_EFFICIENCY: f64 = 0.5;

fn decode_with(
    p: &DecodeParams,
    d: &Device,
    r: Reads,
    batch: &BatchStats,
    span: Span,
    cache: Cache,
) -> OpTime {
    if batch.decode_seqs == 0 {
        return OpTime::default();
    }
    let seqs = f64::from(batch.decode_seqs);
    let per_seq = f64::from(batch.decode_tokens) / seqs;
    let c = contexts(batch, span);

    let kv = seqs * r.kv_heads * c.mean * r.row_bytes;
    let other = f64::from(batch.decode_tokens) * r.heads * r.query_bytes;
    let bandwidth = d.bandwidth * p.bandwidth_efficiency;
    let ramp = match cache {
        // Never more than the reads themselves.
        Cache::Cold => p.ramp.min(kv / bandwidth),
        Cache::Warm => {
            let full = WARM_TO * d.cache;
            let miss = (kv - WARM_FROM * d.cache) / (full - WARM_FROM * d.cache);
            p.ramp * miss.clamp(0.0, 1.0)
        }
    };

    // Query heads beyond one tile of a KV head take further CTAs.
    let group = r.heads / r.kv_heads;
    let whole = seqs * r.kv_heads * ceil_div(per_seq * group, QUERY_ROWS).max(1.0);
    let splits = if p.splits && (group > 1.0 || p.splits_ungrouped >= 0.5) {
        (d.units / whole)
            .floor()
            .min(ceil_div(c.long, BLOCK_TOKENS))
            .max(1.0)
    } else {
        1.0
    };
    let waves = ceil_div(whole * splits, d.units);
    let blocks = ceil_div(c.mean / splits, BLOCK_TOKENS);
    // The longest sequence's CTA bounds the kernel however short the others are.
    let longest = c.long / splits * r.row_bytes * d.units / (d.bandwidth * p.unit_bandwidth_share);
    let memory = ((kv + other) / bandwidth).max(longest);

    let compute =
        whole * QUERY_ROWS * c.mean * r.flops_per_pair / (d.bf16 * DECODE_COMPUTE_EFFICIENCY);
    let ctas = waves * (p.cta + p.cta_dims * r.dims / 128.0 + p.block * blocks);
    let mut extra = 0.0;
    if splits > 1.0 {
        extra += p.split + p.split_doubling * splits.log2();
    }
    if group > 1.0 && r.kv_heads > 1.0 && batch.decode_seqs > 1 {
        extra += p.group_copy;
    }
    OpTime {
        seconds: p.fixed + ramp + extra + soft_max(memory.max(compute), ctas, p.overlap_power),
        compute: compute.max(ctas),
        memory: memory + ramp,
    }
}
