//! Attention over a paged KV cache.
//!
//! Work is cut into tiles of up to eight query rows (tokens times the query heads that share a KV head) against all
//! cached positions of their sequence. Keys are stored sixteen positions side by side, so that scores come out as
//! vectors; a row's sums run over positions in order, whatever else its tile or its step holds.

use half::{bf16, f16};

use crate::dtype::{Values, WeightDtype};
use crate::isa::LANES;

/// Most query rows of a tile.
pub(crate) const ROWS: usize = 8;

/// Keys and values of one layer's share of KV heads, in blocks.
///
/// Values lie `[block][head][position][dimension]`; keys `[block][head][tile][dimension][position in tile]`.
pub struct PagedKv {
    pub(crate) keys: Values,
    pub(crate) values: Values,
    pub(crate) shape: KvShape,
}

/// Sizes of a layer's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Blocks.
    pub blocks: usize,
    /// Positions in a block.
    pub block_size: usize,
    /// KV heads.
    pub heads: usize,
    /// Values per head.
    pub head_dim: usize,
}

impl KvShape {
    /// Positions of a key tile: sixteen where that divides a block, else one.
    pub(crate) fn tile(self) -> usize {
        if self.block_size.is_multiple_of(LANES) {
            LANES
        } else {
            1
        }
    }

    /// Where the values of a head of a block begin.
    pub(crate) fn start(self, block: usize, head: usize) -> usize {
        (block * self.heads + head) * self.block_size * self.head_dim
    }
}

impl PagedKv {
    /// An empty cache. Its memory is touched as it is used.
    #[must_use]
    pub fn new(dtype: WeightDtype, shape: KvShape) -> PagedKv {
        let len = shape.blocks * shape.block_size * shape.heads * shape.head_dim;
        let zeros = || match dtype {
            WeightDtype::F32 => Values::F32(vec![0.0; len]),
            WeightDtype::Bf16 => Values::Bf16(vec![0; len]),
            WeightDtype::F16 => Values::F16(vec![0; len]),
        };
        PagedKv {
            keys: zeros(),
            values: zeros(),
            shape,
        }
    }

    /// Stores the keys and values of one token, head by head, at a position of a block.
    pub fn store(&mut self, block: usize, position: usize, keys: &[f32], values: &[f32]) {
        let (d, tile) = (self.shape.head_dim, self.shape.tile());
        for head in 0..self.shape.heads {
            let start = self.shape.start(block, head);
            let from = head * d..(head + 1) * d;
            let at = start + position / tile * tile * d + position % tile;
            let (k, v) = (&keys[from.clone()], &values[from]);
            put(&mut self.keys, at, tile, k);
            put(&mut self.values, start + position * d, 1, v);
        }
    }
}

/// Writes `values` from `at` on, `stride` apart.
fn put(out: &mut Values, at: usize, stride: usize, values: &[f32]) {
    match out {
        Values::F32(out) => {
            for (o, v) in out[at..].iter_mut().step_by(stride).zip(values) {
                *o = *v;
            }
        }
        Values::Bf16(out) => {
            for (o, v) in out[at..].iter_mut().step_by(stride).zip(values) {
                *o = bf16::from_f32(*v).to_bits();
            }
        }
        Values::F16(out) => {
            for (o, v) in out[at..].iter_mut().step_by(stride).zip(values) {
                *o = f16::from_f32(*v).to_bits();
            }
        }
    }
}

/// One sequence's new tokens in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Row of its first new token.
    pub row: usize,
    /// New tokens.
    pub tokens: usize,
    /// Positions before the first new token.
    pub context: usize,
    /// Its blocks, new tokens included.
    pub blocks: Vec<u32>,
}

/// Up to `ROWS` query rows that share a KV head.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    pub(crate) span: usize,
    pub(crate) kv_head: usize,
    /// First query head, and how many.
    pub(crate) head: usize,
    pub(crate) heads: usize,
    /// First token, counted from the span's first, and how many.
    pub(crate) token: usize,
    pub(crate) tokens: usize,
}

/// Cuts a step's attention into tiles, the longest first. The same for every layer.
#[must_use]
pub fn tiles(spans: &[Span], heads: usize, kv_heads: usize) -> Vec<Tile> {
    let group = heads / kv_heads;
    let heads_each = group.min(ROWS);
    let tokens_each = (ROWS / heads_each).max(1);
    let mut list = Vec::new();
    for (index, span) in spans.iter().enumerate() {
        for kv_head in 0..kv_heads {
            for first in (0..group).step_by(heads_each) {
                for token in (0..span.tokens).step_by(tokens_each) {
                    list.push(Tile {
                        span: index,
                        kv_head,
                        head: kv_head * group + first,
                        heads: heads_each.min(group - first),
                        token,
                        tokens: tokens_each.min(span.tokens - token),
                    });
                }
            }
        }
    }
    let work = |t: &Tile| spans[t.span].context + t.token + t.tokens;
    list.sort_by_key(|t| std::cmp::Reverse(work(t)));
    list
}

/// One layer's attention in a step.
pub struct Attention<'a> {
    /// The cache, with the new tokens' keys and values already stored.
    pub kv: &'a PagedKv,
    /// The step's sequences.
    pub spans: &'a [Span],
    /// Queries of head 0 of a row lie at `row * query_stride`, the other heads' behind them.
    pub queries: &'a [f32],
    /// From row to row of the queries.
    pub query_stride: usize,
    /// Query heads.
    pub heads: usize,
    /// How many positions back a query sees, its own included.
    pub window: Option<usize>,
}
