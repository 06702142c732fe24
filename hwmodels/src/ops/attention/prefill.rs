//! Prefill attention.
//!
//! It is arithmetic: 4 x heads x head_dim FLOPs per query-key pair, padded to query tiles,
//! plus the softmax, over the units in waves.

use super::span::{Span, chunk_pairs, place_in_chunk};
use crate::ops::device::{Device, OpTime, ceil_div, soft_max};
use crate::ops::param::{ParamSpec, read_all};
use crate::{BatchStats, Dtype, Profile};

/// Shape of one layer's prefill attention on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillShape {
    /// Query heads of this rank.
    pub heads: u32,
    /// KV heads of this rank.
    pub kv_heads: u32,
    /// Size of a head [dims]; for MLA the mean of key and value size (192 and 128: 160).
    pub head_dim: u32,
    /// Format of the KV cache.
    pub kv_dtype: Dtype,
    /// Which of its past a token attends to.
    pub span: Span,
}

/// The chunks of one prefill step, as sums over them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillWork {
    /// Chunks.
    pub seqs: f64,
    /// New tokens [tokens].
    pub tokens: f64,
    /// KV length after each chunk, summed [tokens].
    pub ctx_sum: f64,
    /// Query-key pairs under the causal mask [pairs].
    pub pairs: f64,
}

impl PrefillWork {
    /// The prefill part of `batch`.
    #[inline]
    pub fn of(batch: &BatchStats) -> PrefillWork {
        PrefillWork {
            seqs: f64::from(batch.prefill_seqs),
            tokens: f64::from(batch.prefill_tokens),
            ctx_sum: batch.prefill_ctx_sum as f64,
            pairs: batch.prefill_pairs as f64,
        }
    }
}

/// Prefix of the prefill parameters for a KV cache of this format.
pub fn prefill_prefix(kv: Dtype) -> &'static str {
    match kv {
        Dtype::Fp8 | Dtype::Int8 => "attn.prefill.kv8",
        _ => "attn.prefill.kv16",
    }
}

/// Parameters of prefill attention. The priors lie between the fits of A100 and H100 kernels; those of the kernel's
/// kind are FlashAttention 2, which all but Hopper devices run.
pub const PREFILL_SPECS: [ParamSpec; 12] = [
    ParamSpec {
        name: "efficiency",
        prior: 0.85,
        min: 0.2,
        max: 1.0,
        unit: "ratio",
        meaning: "share of the 16-bit peak in long sequences, softmax apart",
    },
    ParamSpec {
        name: "fixed",
        prior: 9e-6,
        min: 1e-6,
        max: 40e-6,
        unit: "s",
        meaning: "time of a call over almost no tokens",
    },
    ParamSpec {
        name: "softmax_dims",
        prior: 45.0,
        min: 0.0,
        max: 200.0,
        unit: "dims",
        meaning: "cost of the softmax of one pair, in dims of head size",
    },
    ParamSpec {
        name: "cta",
        prior: 1.5e-6,
        min: 0.0,
        max: 20e-6,
        unit: "s",
        meaning: "time of one CTA (one query tile) beside its products",
    },
    ParamSpec {
        name: "cta_group",
        prior: 1.0e-6,
        min: 0.0,
        max: 20e-6,
        unit: "s",
        meaning: "further time of one full tile whose rows are gathered from several query heads",
    },
    ParamSpec {
        name: "bandwidth_efficiency",
        prior: 0.85,
        min: 0.1,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth at which queries and outputs move",
    },
    ParamSpec {
        name: "kv_bandwidth_efficiency",
        prior: 0.83,
        min: 0.03,
        max: 1.0,
        unit: "ratio",
        meaning: "share of peak memory bandwidth at which new keys and values are written to the cache and read back",
    },
    ParamSpec {
        name: "overlap_power",
        prior: 1.3,
        min: 1.0,
        max: 12.0,
        unit: "ratio",
        meaning: "how sharply arithmetic and the movement of queries and outputs overlap",
    },
    ParamSpec {
        name: "wave_quantisation",
        prior: 0.7,
        min: 0.0,
        max: 1.0,
        unit: "ratio",
        meaning: "share of a partial wave that costs a whole one",
    },
    ParamSpec {
        name: "key_padding",
        prior: 30.0,
        min: 0.0,
        max: 256.0,
        unit: "tokens",
        meaning: "keys that a tile computes beyond those its queries see",
    },
    ParamSpec {
        name: "wide_heads",
        prior: 0.2,
        min: 0.0,
        max: 2.0,
        unit: "ratio",
        meaning: "further cost of a pair per 128 dims of head size beyond 128",
    },
    ParamSpec {
        name: "packs_groups",
        prior: 0.0,
        min: 0.0,
        max: 1.0,
        unit: "switch",
        meaning: "1 when query heads that share a KV head share a tile (FlashAttention 3), 0 when not (FlashAttention 2)",
    },
];

/// Values of [`PREFILL_SPECS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillParams {
    efficiency: f64,
    fixed: f64,
    softmax_dims: f64,
    cta: f64,
    cta_group: f64,
    bandwidth_efficiency: f64,
    kv_bandwidth_efficiency: f64,
    overlap_power: f64,
    wave_quantisation: f64,
    key_padding: f64,
    wide_heads: f64,
    packs_groups: f64,
}

impl PrefillParams {
    /// From values in the order of [`PREFILL_SPECS`].
    pub fn from_values(v: &[f64; PREFILL_SPECS.len()]) -> PrefillParams {
        PrefillParams {
            efficiency: v[0],
            fixed: v[1],
            softmax_dims: v[2],
            cta: v[3],
            cta_group: v[4],
            bandwidth_efficiency: v[5],
            kv_bandwidth_efficiency: v[6],
            overlap_power: v[7],
            wave_quantisation: v[8],
            key_padding: v[9],
            wide_heads: v[10],
            packs_groups: v[11],
        }
    }

    /// The profile's values for a KV cache of this format, priors where it is silent.
    pub fn from_profile(profile: &Profile, kv: Dtype) -> PrefillParams {
        Self::from_values(&read_all(&PREFILL_SPECS, profile, prefill_prefix(kv)))
    }
}

/// Query rows of one CTA, and with small heads in FlashAttention 3.
const TILE_ROWS: f64 = 128.0;
const TILE_ROWS_SMALL_HEADS: f64 = 192.0;

/// What the surface of prefill attention is a function of: prompt tokens of a whole prompt with so many pairs to a query, queries over all heads, query heads to a KV head.
#[inline]
pub fn prefill_quantities(shape: &PrefillShape, work: &PrefillWork) -> [f64; 3] {
    let heads = f64::from(shape.heads);
    let tokens = work.tokens.max(1.0);
    let keys = work.pairs / tokens;
    let keys = match shape.span {
        Span::All => keys,
        Span::Last(w) => keys.min(f64::from(w)),
        Span::Chunk(c) => keys_in_chunk(work, f64::from(c)),
    };
    [
        2.0 * keys,
        tokens * heads,
        heads / f64::from(shape.kv_heads.max(1)),
    ]
}

/// Keys that a query sees on average within chunks of `chunk` tokens: what the mean sequence keeps of its pairs, of all pairs.
fn keys_in_chunk(work: &PrefillWork, chunk: f64) -> f64 {
    let after = work.ctx_sum / work.seqs.max(1.0);
    let before = (after - work.tokens / work.seqs.max(1.0)).max(0.0);
    let all = |tokens: f64| tokens * (tokens + 1.0) / 2.0;
    let kept = chunk_pairs(after, chunk) - chunk_pairs(before, chunk);
    let share = kept / (all(after) - all(before)).max(1.0);
    (work.pairs / work.tokens.max(1.0) * share).min(chunk)
}

/// Time of one layer's prefill attention, the write of the new keys and values into the cache included.
/// Zero without tokens.
pub fn prefill_time(
    p: &PrefillParams,
    d: &Device,
    shape: &PrefillShape,
    work: &PrefillWork,
) -> OpTime {
    if work.seqs <= 0.0 || work.tokens <= 0.0 {
        return OpTime::default();
    }
    let heads = f64::from(shape.heads);
    let kv_heads = f64::from(shape.kv_heads.max(1));
    let dim = f64::from(shape.head_dim);
    let new = work.tokens / work.seqs;
    let group = if p.packs_groups >= 0.5 {
        (heads / kv_heads).max(1.0)
    } else {
        1.0
    };
    let rows = if p.packs_groups >= 0.5 && shape.head_dim <= 64 {
        TILE_ROWS_SMALL_HEADS
    } else {
        TILE_ROWS
    };
    // Tokens of one tile, whose rows are token and head when heads share it.
    let tile_tokens = (rows / group).min(new);

    // Keys that a query sees on average, and those of the longest tile.
    let mut keys = work.pairs / work.tokens;
    let mut longest = work.ctx_sum / work.seqs;
    let mut ctx = longest;
    if let Span::Last(w) = shape.span {
        let w = f64::from(w);
        let before = (ctx - new).max(0.0);
        // Queries near the start see fewer than w.
        let ramp = (w - before).clamp(0.0, new);
        let clipped = (ramp * before + ramp * ramp / 2.0 + (new - ramp) * w) / new;
        keys = keys.min(clipped.max(1.0));
        longest = longest.min(w + tile_tokens);
        ctx = ctx.min(new + w);
    }
    if let Span::Chunk(c) = shape.span {
        let c = f64::from(c);
        keys = keys_in_chunk(work, c);
        // The last token's place, or that of a chunk's end among the new tokens.
        let begins = |tokens: f64| tokens - place_in_chunk(tokens, c);
        longest = if begins(ctx) > (ctx - new).max(0.0) {
            c
        } else {
            place_in_chunk(ctx, c)
        };
        // What precedes the new tokens in the chunk that they begin in is read as well.
        ctx = new + (ctx - new).max(0.0) % c;
    }
    let unit_rate = d.bf16 / d.units * p.efficiency;
    let pair_dims = (dim + p.softmax_dims) * (1.0 + p.wide_heads * (dim - 128.0).max(0.0) / 128.0);
    let per_key = 4.0 * rows * pair_dims / unit_rate;
    let fill = (new * group / rows).min(1.0);
    let gather = if group > 1.0 { p.cta_group } else { 0.0 };
    let start = p.cta + gather * fill;
    let tile = start + (keys + tile_tokens / 2.0 + p.key_padding) * per_key;

    let tiles = work.seqs * ceil_div(new * group, rows) * heads / group;
    let ideal = tiles / d.units;
    let compute = (ideal * tile).max(start + (longest + p.key_padding) * per_key)
        + p.wave_quantisation * (ideal.ceil() - ideal.max(1.0)).max(0.0) * tile;

    let queries = 4.0 * work.tokens * heads * dim / (d.bandwidth * p.bandwidth_efficiency);
    let row = 2.0 * kv_heads * dim;
    let bytes = shape.kv_dtype.bytes();
    // New keys and values: read, written to the cache, read back; earlier ones only read.
    let moved = row * (work.tokens * (4.0 + bytes) + work.seqs * ctx * bytes);
    let kv = moved / (d.bandwidth * p.kv_bandwidth_efficiency);
    OpTime {
        seconds: p.fixed + kv + soft_max(compute, queries, p.overlap_power),
        compute,
        memory: queries + kv,
    }
}
