//! Attention over a paged KV cache.
//!
//! Work is cut into tiles of up to eight query rows (tokens times the query heads that share a KV head) against all
//! cached positions of their sequence. Keys are stored sixteen positions side by side, so that scores come out as
//! vectors; a row's sums run over positions in order, whatever else its tile or its step holds.

use std::cell::RefCell;

use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};

use crate::dtype::{Values, WeightDtype};

use super::Isa;
use super::element::{Element, multiply_add};
use super::elementwise::exp;
use super::pool::{Parts, Threads};

/// Most query rows of a tile.
const ROWS: usize = 8;

/// Keys and values of one layer's share of KV heads, in blocks.
///
/// Values lie `[block][head][position][dimension]`; keys `[block][head][tile][dimension][position in tile]`.
pub struct PagedKv {
    keys: Values,
    values: Values,
    shape: KvShape,
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
    fn tile(self) -> usize {
        if self.block_size.is_multiple_of(16) {
            16
        } else {
            1
        }
    }

    /// Where the values of a head of a block begin.
    fn start(self, block: usize, head: usize) -> usize {
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
    span: usize,
    kv_head: usize,
    /// First query head, and how many.
    head: usize,
    heads: usize,
    /// First token, counted from the span's first, and how many.
    token: usize,
    tokens: usize,
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

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Attention<'_> {
    /// Writes the mixed values, `[row][head][dimension]`, to `out`.
    pub fn run(&self, isa: Isa, threads: Threads, tiles: &[Tile], out: &mut [f32]) {
        let out = Parts::new(out);
        // Short decodes are many small tiles; a task should be worth its hand-over.
        let per = tiles.len().div_ceil(threads.0 * 8);
        threads.each(tiles.len().div_ceil(per.max(1)), |task| {
            let tiles = &tiles[task * per..((task + 1) * per).min(tiles.len())];
            SCRATCH.with_borrow_mut(|scratch| {
                for tile in tiles {
                    self.dispatch(isa, tile, scratch, &out);
                }
            });
        });
    }

    fn dispatch(&self, isa: Isa, tile: &Tile, scratch: &mut Vec<f32>, out: &Parts) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")]
        fn with_avx512(a: &Attention, tile: &Tile, scratch: &mut Vec<f32>, out: &Parts) {
            a.tile::<true>(tile, scratch, out);
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2(a: &Attention, tile: &Tile, scratch: &mut Vec<f32>, out: &Parts) {
            a.tile::<true>(tile, scratch, out);
        }
        match isa {
            // SAFETY: these sets are chosen where their instructions are found.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Isa::Avx512 => unsafe { with_avx512(self, tile, scratch, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            Isa::Avx2 => unsafe { with_avx2(self, tile, scratch, out) },
            _ => self.tile::<false>(tile, scratch, out),
        }
    }

    #[inline(always)]
    fn tile<const FMA: bool>(&self, tile: &Tile, scratch: &mut Vec<f32>, out: &Parts) {
        match (&self.kv.keys, &self.kv.values) {
            (Values::F32(k), Values::F32(v)) => self.sized::<f32, FMA>(k, v, tile, scratch, out),
            (Values::Bf16(k), Values::Bf16(v)) => {
                let (k, v) = (k.reinterpret_cast::<bf16>(), v.reinterpret_cast::<bf16>());
                self.sized::<bf16, FMA>(k, v, tile, scratch, out);
            }
            (Values::F16(k), Values::F16(v)) => {
                let (k, v) = (k.reinterpret_cast::<f16>(), v.reinterpret_cast::<f16>());
                self.sized::<f16, FMA>(k, v, tile, scratch, out);
            }
            _ => unreachable!("keys and values are made in one format"),
        }
    }

    #[inline(always)]
    fn sized<E: Element, const FMA: bool>(
        &self,
        k: &[E],
        v: &[E],
        tile: &Tile,
        scratch: &mut Vec<f32>,
        out: &Parts,
    ) {
        match (self.kv.shape.tile(), tile.heads * tile.tokens) {
            (16, 1) => self.mix::<E, 16, 1, FMA>(k, v, tile, scratch, out),
            (16, 2) => self.mix::<E, 16, 2, FMA>(k, v, tile, scratch, out),
            (16, 3..=4) => self.mix::<E, 16, 4, FMA>(k, v, tile, scratch, out),
            (16, _) => self.mix::<E, 16, ROWS, FMA>(k, v, tile, scratch, out),
            _ => self.mix::<E, 1, ROWS, FMA>(k, v, tile, scratch, out),
        }
    }

    /// A tile of at most `R` rows, keys in tiles of `W` positions. Rows that the tile does not have are zeros.
    #[inline(always)]
    fn mix<E: Element, const W: usize, const R: usize, const FMA: bool>(
        &self,
        keys: &[E],
        values: &[E],
        tile: &Tile,
        scratch: &mut Vec<f32>,
        out: &Parts,
    ) {
        let shape = self.kv.shape;
        let d = shape.head_dim;
        let span = &self.spans[tile.span];
        // The last row sees positions below `end`, the first from `begin` on, both to whole vectors.
        let end = span.context + tile.token + tile.tokens;
        let begin = match self.window {
            Some(w) => (end - tile.tokens + 1).saturating_sub(w) / 16 * 16,
            None => 0,
        };
        let width = (end - begin).next_multiple_of(16);
        scratch.resize((R * (width + d)).max(scratch.len()), 0.0);
        let (queries, rest) = scratch.split_at_mut(R * d);
        let scores = &mut rest[..R * width];
        let place = |position: usize| {
            let block = span.blocks[position / shape.block_size] as usize;
            (
                shape.start(block, tile.kv_head),
                position % shape.block_size,
            )
        };
        let row_of = |r: usize| (tile.token + r / tile.heads, tile.head + r % tile.heads);
        let rows = tile.heads * tile.tokens;

        let scale = 1.0 / (d as f32).sqrt();
        queries.fill(0.0);
        for r in 0..rows {
            let (token, head) = row_of(r);
            let at = (span.row + token) * self.query_stride + head * d;
            let row = &mut queries[r * d..(r + 1) * d];
            for (scaled, query) in row.iter_mut().zip(&self.queries[at..at + d]) {
                *scaled = query * scale;
            }
        }

        for position in (begin..end).step_by(W) {
            let (start, offset) = place(position);
            let keys = &keys[start + offset * d..][..W * d];
            let keys = keys.as_chunks::<W>().0;
            let sums = dot::<E, W, R, FMA>(keys, queries, d);
            for r in 0..R {
                scores[r * width + position - begin..][..W].copy_from_slice(&sums[r]);
            }
        }

        let mut inverse = [0.0_f32; R];
        for r in 0..rows {
            let last = span.context + row_of(r).0;
            let first = self.window.map_or(0, |w| (last + 1).saturating_sub(w));
            let scores = &mut scores[r * width..(r + 1) * width];
            inverse[r] = 1.0 / soften(scores, first - begin, last + 1 - begin);
        }

        // Thirty-two dimensions at a time, so that their sums stay in registers.
        let mut from = 0;
        while from < d {
            let put = |r: usize, values: &[f32]| {
                let (token, head) = row_of(r);
                let at = ((span.row + token) * self.heads + head) * d + from;
                // SAFETY: a row and head belong to one tile, and a tile writes one part at a time.
                #[allow(unsafe_code)]
                unsafe { out.part(at..at + values.len()) }.copy_from_slice(values);
            };
            macro_rules! columns {
                ($count:literal) => {{
                    let mut sums = [[0.0_f32; $count]; R];
                    let mut position = begin;
                    while position < end {
                        let (start, offset) = place(position);
                        let count = (shape.block_size - offset).min(end - position);
                        let values = &values[start + offset * d + from..];
                        let weights = std::array::from_fn(|r| {
                            &scores[r * width + position - begin..][..count]
                        });
                        add::<E, $count, R, FMA>(&mut sums, values, d, weights, count);
                        position += count;
                    }
                    for r in 0..rows {
                        let row = sums[r].map(|sum| sum * inverse[r]);
                        put(r, &row);
                    }
                    from += $count;
                }};
            }
            match d - from {
                32.. => columns!(32),
                16.. => columns!(16),
                _ => columns!(1),
            }
        }
    }
}

/// Scores of `W` keys for `R` queries of `d` dimensions.
#[allow(clippy::needless_range_loop)] // Indices keep the loops in the form that vectorises.
#[inline(always)]
fn dot<E: Element, const W: usize, const R: usize, const FMA: bool>(
    keys: &[[E; W]],
    queries: &[f32],
    d: usize,
) -> [[f32; W]; R] {
    let keys = &keys[..d];
    // Row by row: if the rows' values lay side by side, the compiler would make vectors of rows.
    let queries: [&[f32]; R] = std::array::from_fn(|r| &queries[r * d..][..d]);
    let mut sums = [[0.0_f32; W]; R];
    for i in 0..d {
        let mut key = [0.0_f32; W];
        for l in 0..W {
            key[l] = keys[i][l].widen();
        }
        for r in 0..R {
            let query = queries[r][i];
            for l in 0..W {
                sums[r][l] = multiply_add::<FMA>(query, key[l], sums[r][l]);
            }
        }
    }
    sums
}

/// Adds `C` dimensions of `count` values, `d` apart, weighted for `R` rows.
#[allow(clippy::needless_range_loop)] // As above.
#[inline(always)]
fn add<E: Element, const C: usize, const R: usize, const FMA: bool>(
    sums: &mut [[f32; C]; R],
    values: &[E],
    d: usize,
    weights: [&[f32]; R],
    count: usize,
) {
    let weights: [&[f32]; R] = std::array::from_fn(|r| &weights[r][..count]);
    let mut local = *sums;
    for (i, values) in values.chunks(d).take(count).enumerate() {
        let Some(values) = values.first_chunk::<C>() else {
            break;
        };
        let mut value = [0.0_f32; C];
        for c in 0..C {
            value[c] = values[c].widen();
        }
        for r in 0..R {
            for c in 0..C {
                local[r][c] = multiply_add::<FMA>(weights[r][i], value[c], local[r][c]);
            }
        }
    }
    *sums = local;
}

/// Replaces scores from `first` to `end` by `e^(score - highest)` and all others by 0; gives their sum.
#[inline(always)]
fn soften(scores: &mut [f32], first: usize, end: usize) -> f32 {
    scores[..first].fill(f32::NEG_INFINITY);
    scores[end..].fill(f32::NEG_INFINITY);
    let mut highest = [f32::NEG_INFINITY; 16];
    let chunks = scores.as_chunks_mut::<16>().0;
    for chunk in chunks.iter() {
        for l in 0..16 {
            highest[l] = if chunk[l] > highest[l] {
                chunk[l]
            } else {
                highest[l]
            };
        }
    }
    let highest = highest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0_f32; 16];
    for chunk in chunks {
        for l in 0..16 {
            let value = exp(chunk[l] - highest);
            let value = if chunk[l] == f32::NEG_INFINITY {
                0.0
            } else {
                value
            };
            chunk[l] = value;
            sums[l] += value;
        }
    }
    sums.into_iter().sum()
}
