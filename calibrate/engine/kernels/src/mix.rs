//! What a tile of attention computes: scores of all keys, their exponentials, and the values mixed by them.

use std::cell::RefCell;

use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};

use crate::attention::{Attention, ROWS, Tile};
use crate::dtype::Values;
use crate::element::Element;
use crate::elementwise::exp;
use crate::isa::{Isa, LANES, Machine, Work};
use crate::pool::{Parts, Threads};

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
                isa.run(Mix {
                    attention: self,
                    tiles,
                    scratch,
                    out: &out,
                });
            });
        });
    }
}

/// Some tiles of one layer's attention.
pub(crate) struct Mix<'a> {
    pub attention: &'a Attention<'a>,
    pub tiles: &'a [Tile],
    pub scratch: &'a mut Vec<f32>,
    pub out: &'a Parts<'a>,
}

impl Work for Mix<'_> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let kv = self.attention.kv;
        match (&kv.keys, &kv.values) {
            (Values::F32(k), Values::F32(v)) => self.all::<M, f32>(machine, k, v),
            (Values::Bf16(k), Values::Bf16(v)) => {
                self.all::<M, bf16>(machine, k.reinterpret_cast(), v.reinterpret_cast());
            }
            (Values::F16(k), Values::F16(v)) => {
                self.all::<M, f16>(machine, k.reinterpret_cast(), v.reinterpret_cast());
            }
            _ => unreachable!("keys and values are made in one format"),
        }
    }
}

impl Mix<'_> {
    /// Rows that a tile does not have, up to 1, 2, 4 or 8, are zeros.
    #[inline(always)]
    fn all<M: Machine, E: Element>(self, machine: M, keys: &[E], values: &[E]) {
        for tile in self.tiles {
            let work = One::new(self.attention, tile);
            match work.rows {
                1 => work.run::<M, E, 1>(machine, keys, values, self.scratch, self.out),
                2 => work.run::<M, E, 2>(machine, keys, values, self.scratch, self.out),
                3..=4 => work.run::<M, E, 4>(machine, keys, values, self.scratch, self.out),
                _ => work.run::<M, E, ROWS>(machine, keys, values, self.scratch, self.out),
            }
        }
    }
}

/// One tile: its rows and the positions that they see.
struct One<'a> {
    attention: &'a Attention<'a>,
    tile: &'a Tile,
    blocks: &'a [u32],
    rows: usize,
    /// Positions before the sequence's first new token.
    context: usize,
    /// The last row sees positions below `end`, the first from `begin` on, to a whole vector.
    begin: usize,
    end: usize,
    /// Scores of a row, in whole vectors.
    width: usize,
}

impl<'a> One<'a> {
    #[inline(always)]
    fn new(attention: &'a Attention<'a>, tile: &'a Tile) -> One<'a> {
        let span = &attention.spans[tile.span];
        let end = span.context + tile.token + tile.tokens;
        let begin = match attention.window {
            Some(w) => (end - tile.tokens + 1).saturating_sub(w) / LANES * LANES,
            None => 0,
        };
        One {
            attention,
            tile,
            blocks: &span.blocks,
            rows: tile.heads * tile.tokens,
            context: span.context,
            begin,
            end,
            width: (end - begin).next_multiple_of(LANES),
        }
    }

    /// Token (counted from the sequence's first new one) and head of a row.
    #[inline(always)]
    fn row(&self, r: usize) -> (usize, usize) {
        let t = self.tile;
        (t.token + r / t.heads, t.head + r % t.heads)
    }

    /// Where the head's values of a position's block begin, and the position in that block.
    #[inline(always)]
    fn place(&self, position: usize) -> (usize, usize) {
        let shape = self.attention.kv.shape;
        let block = self.blocks[position / shape.block_size] as usize;
        (
            shape.start(block, self.tile.kv_head),
            position % shape.block_size,
        )
    }

    #[inline(always)]
    fn run<M: Machine, E: Element, const R: usize>(
        &self,
        machine: M,
        keys: &[E],
        values: &[E],
        scratch: &mut Vec<f32>,
        out: &Parts,
    ) {
        let shape = self.attention.kv.shape;
        let (d, width) = (shape.head_dim, self.width);
        scratch.resize((R * (width + d)).max(scratch.len()), 0.0);
        let (queries, rest) = scratch.split_at_mut(R * d);
        let scores = &mut rest[..R * width];
        self.scale(queries);

        // Rows at once, and key tiles beside each other where rows are few: sums that keep the multipliers busy. Conditions
        // are constants, so that only what a machine uses is compiled for it.
        if shape.tile() != LANES {
            self.score_singly(machine, keys, queries, scores);
        } else if const { R == 1 && M::SUMS >= 4 } {
            self.score::<M, E, 1, 4>(machine, keys, queries, scores);
        } else if const { R <= 2 && M::SUMS >= 2 * R } {
            self.score::<M, E, R, 2>(machine, keys, queries, scores);
        } else if const { M::SUMS >= R } {
            self.score::<M, E, R, 1>(machine, keys, queries, scores);
        } else if const { M::SUMS >= 4 } {
            self.score::<M, E, 4, 1>(machine, keys, queries, scores);
        } else {
            self.score::<M, E, 2, 1>(machine, keys, queries, scores);
        }

        let mut inverse = [0.0_f32; R];
        for r in 0..self.rows {
            let last = self.context + self.row(r).0;
            let first = self
                .attention
                .window
                .map_or(0, |w| (last + 1).saturating_sub(w));
            let scores = &mut scores[r * width..(r + 1) * width];
            inverse[r] = 1.0 / soften(scores, first - self.begin, last + 1 - self.begin);
        }

        if const { R == 1 && M::SUMS >= 4 } {
            self.mix::<M, E, 1, 4>(machine, values, scores, &inverse, out);
        } else if const { M::SUMS >= 2 * R } {
            self.mix::<M, E, R, 2>(machine, values, scores, &inverse, out);
        } else if const { M::SUMS >= 4 } {
            self.mix::<M, E, 4, 1>(machine, values, scores, &inverse, out);
        } else {
            self.mix::<M, E, 2, 1>(machine, values, scores, &inverse, out);
        }
    }

    /// Writes the rows' queries, times the scale of scores.
    #[inline(always)]
    fn scale(&self, queries: &mut [f32]) {
        let a = self.attention;
        let d = a.kv.shape.head_dim;
        let scale = 1.0 / (d as f32).sqrt();
        let first = a.spans[self.tile.span].row;
        queries.fill(0.0);
        for (r, row) in queries.chunks_exact_mut(d).take(self.rows).enumerate() {
            let (token, head) = self.row(r);
            let at = (first + token) * a.query_stride + head * d;
            for (scaled, query) in row.iter_mut().zip(&a.queries[at..at + d]) {
                *scaled = query * scale;
            }
        }
    }

    /// Scores of all rows, `G` rows by `T` tiles of keys at a time.
    #[inline(always)]
    fn score<M: Machine, E: Element, const G: usize, const T: usize>(
        &self,
        machine: M,
        keys: &[E],
        queries: &[f32],
        scores: &mut [f32],
    ) {
        let d = self.attention.kv.shape.head_dim;
        let tile = |position: usize| {
            let (start, offset) = self.place(position);
            keys[start + offset * d..][..LANES * d].as_chunks().0
        };
        let groups = queries.chunks_exact(G * d);
        let mut position = self.begin;
        while position + (T - 1) * LANES < self.end {
            let keys: [&[[E; LANES]]; T] = std::array::from_fn(|t| tile(position + t * LANES));
            for (g, queries) in groups.clone().enumerate() {
                let at = g * G * self.width + position - self.begin;
                dot::<M, E, G, T>(machine, keys, queries, d, &mut scores[at..], self.width);
            }
            position += T * LANES;
        }
        if const { T > 1 } {
            for position in (position..self.end).step_by(LANES) {
                for (g, queries) in groups.clone().enumerate() {
                    let at = g * G * self.width + position - self.begin;
                    let keys = [tile(position)];
                    dot::<M, E, G, 1>(machine, keys, queries, d, &mut scores[at..], self.width);
                }
            }
        }
    }

    /// As [`One::score`], where keys do not lie side by side.
    #[inline(always)]
    fn score_singly<M: Machine, E: Element>(
        &self,
        machine: M,
        keys: &[E],
        queries: &[f32],
        scores: &mut [f32],
    ) {
        let d = self.attention.kv.shape.head_dim;
        for position in self.begin..self.end {
            let (start, offset) = self.place(position);
            let key = &keys[start + offset * d..][..d];
            for (r, query) in queries.chunks_exact(d).enumerate() {
                let mut sum = 0.0;
                for (query, key) in query.iter().zip(key) {
                    sum = machine.multiply_add_one(*query, key.widen(), sum);
                }
                scores[r * self.width + position - self.begin] = sum;
            }
        }
    }

    /// Sums of the values, weighted by `scores`: `G` rows by `C` vectors of dimensions at a time.
    #[inline(always)]
    fn mix<M: Machine, E: Element, const G: usize, const C: usize>(
        &self,
        machine: M,
        values: &[E],
        scores: &[f32],
        inverse: &[f32],
        out: &Parts,
    ) {
        let d = self.attention.kv.shape.head_dim;
        for first in (0..self.rows).step_by(G) {
            let mut from = 0;
            while from + C * LANES <= d {
                self.columns::<M, E, G, C>(machine, values, scores, inverse, out, first, from);
                from += C * LANES;
            }
            while const { C > 1 } && from + LANES <= d {
                self.columns::<M, E, G, 1>(machine, values, scores, inverse, out, first, from);
                from += LANES;
            }
            for r in first..(first + G).min(self.rows) {
                for column in from..d {
                    let mut sum = 0.0;
                    for position in self.begin..self.end {
                        let (start, offset) = self.place(position);
                        let value = values[start + offset * d + column].widen();
                        let weight = scores[r * self.width + position - self.begin];
                        sum = machine.multiply_add_one(weight, value, sum);
                    }
                    self.put(out, r, column, &[sum * inverse[r]]);
                }
            }
        }
    }

    /// The dimensions from `from` on of the rows from `first` on.
    #[allow(clippy::too_many_arguments, reason = "what `mix` has, and where it is")]
    #[inline(always)]
    fn columns<M: Machine, E: Element, const G: usize, const C: usize>(
        &self,
        machine: M,
        values: &[E],
        scores: &[f32],
        inverse: &[f32],
        out: &Parts,
        first: usize,
        from: usize,
    ) {
        let shape = self.attention.kv.shape;
        let d = shape.head_dim;
        let mut sums = [[machine.splat(0.0); C]; G];
        let mut position = self.begin;
        while position < self.end {
            let (start, offset) = self.place(position);
            let count = (shape.block_size - offset).min(self.end - position);
            let weights: [&[f32]; G] = std::array::from_fn(|r| {
                &scores[(first + r) * self.width + position - self.begin..][..count]
            });
            let values = values[start + offset * d + from..].chunks(d);
            for (i, values) in values.take(count).enumerate() {
                let Some(values) = values.as_chunks::<LANES>().0.first_chunk::<C>() else {
                    break;
                };
                let mut value = [machine.splat(0.0); C];
                for c in 0..C {
                    value[c] = E::load(machine, &values[c]);
                }
                for r in 0..G {
                    let weight = machine.splat(weights[r][i]);
                    for c in 0..C {
                        sums[r][c] = machine.multiply_add(weight, value[c], sums[r][c]);
                    }
                }
            }
            position += count;
        }
        for r in 0..G.min(self.rows - first) {
            for c in 0..C {
                let mut row = [0.0; LANES];
                machine.store(sums[r][c], &mut row);
                let row = row.map(|sum| sum * inverse[first + r]);
                self.put(out, first + r, from + c * LANES, &row);
            }
        }
    }

    /// Writes values of a row from dimension `from` on.
    #[inline(always)]
    fn put(&self, out: &Parts, r: usize, from: usize, values: &[f32]) {
        let (token, head) = self.row(r);
        let a = self.attention;
        let row = a.spans[self.tile.span].row + token;
        let at = (row * a.heads + head) * a.kv.shape.head_dim + from;
        // SAFETY: a row and head belong to one tile, and a tile writes one part at a time.
        #[allow(unsafe_code)]
        let out = unsafe { out.part(at..at + values.len()) };
        out.copy_from_slice(values);
    }
}

/// Scores of `T` tiles of keys for `G` queries of `d` dimensions, each row's `stride` behind the one before.
#[inline(always)]
fn dot<M: Machine, E: Element, const G: usize, const T: usize>(
    machine: M,
    keys: [&[[E; LANES]]; T],
    queries: &[f32],
    d: usize,
    out: &mut [f32],
    stride: usize,
) {
    let keys = keys.map(|k| &k[..d]);
    let queries: [&[f32]; G] = std::array::from_fn(|r| &queries[r * d..][..d]);
    let mut sums = [[machine.splat(0.0); T]; G];
    for i in 0..d {
        let mut key = [machine.splat(0.0); T];
        for t in 0..T {
            key[t] = E::load(machine, &keys[t][i]);
        }
        for r in 0..G {
            let query = machine.splat(queries[r][i]);
            for t in 0..T {
                sums[r][t] = machine.multiply_add(query, key[t], sums[r][t]);
            }
        }
    }
    for r in 0..G {
        for t in 0..T {
            let mut row = [0.0; LANES];
            machine.store(sums[r][t], &mut row);
            out[r * stride + t * LANES..][..LANES].copy_from_slice(&row);
        }
    }
}

/// Replaces scores from `first` to `end` by `e^(score - highest)` and all others by 0; gives their sum.
#[inline(always)]
fn soften(scores: &mut [f32], first: usize, end: usize) -> f32 {
    scores[..first].fill(f32::NEG_INFINITY);
    scores[end..].fill(f32::NEG_INFINITY);
    let mut highest = [f32::NEG_INFINITY; LANES];
    let chunks = scores.as_chunks_mut::<LANES>().0;
    for chunk in chunks.iter() {
        for l in 0..LANES {
            highest[l] = if chunk[l] > highest[l] {
                chunk[l]
            } else {
                highest[l]
            };
        }
    }
    let highest = highest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0_f32; LANES];
    for chunk in chunks {
        for l in 0..LANES {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{KvShape, PagedKv, Span, tiles};
    use crate::dtype::WeightDtype;
    use crate::isa::Isa;
    use crate::pool::Threads;

    /// Numbers that every format holds exactly.
    fn number(seed: usize) -> f32 {
        let mixed = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        (mixed % 129) as f32 / 64.0 - 1.0
    }

    struct Case {
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        block_size: usize,
        window: Option<usize>,
    }

    const SPANS: [(usize, usize); 3] = [(0, 37), (50, 1), (16, 6)];

    impl Case {
        fn spans(&self) -> Vec<Span> {
            let (mut row, mut block) = (0, 0);
            let span = |&(context, tokens): &(usize, usize)| {
                let blocks = (context + tokens).div_ceil(self.block_size) as u32;
                let span = Span {
                    row,
                    tokens,
                    context,
                    blocks: (block..block + blocks).rev().collect(),
                };
                row += tokens;
                block += blocks;
                span
            };
            SPANS.iter().map(span).collect()
        }

        fn key(&self, span: usize, position: usize, kv_head: usize, i: usize) -> f32 {
            number(((span * 100 + position) * 10 + kv_head) * 500 + i)
        }

        fn value(&self, span: usize, position: usize, kv_head: usize, i: usize) -> f32 {
            number(((span * 100 + position) * 10 + kv_head) * 500 + i + 7_000_003)
        }

        fn query(&self, row: usize, head: usize, i: usize) -> f32 {
            number((row * 20 + head) * 500 + i + 11_000_027)
        }

        /// What the kernels make of it, `[row][head][dimension]`; of one sequence alone if `only` names it.
        fn run(&self, isa: Isa, dtype: WeightDtype, only: Option<usize>) -> Vec<f32> {
            let spans = self.spans();
            let shape = KvShape {
                blocks: 40,
                block_size: self.block_size,
                heads: self.kv_heads,
                head_dim: self.head_dim,
            };
            let mut kv = PagedKv::new(dtype, shape);
            for (s, span) in spans.iter().enumerate() {
                for position in 0..span.context + span.tokens {
                    let of = |get: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
                        (0..self.kv_heads * self.head_dim)
                            .map(|j| get(j / self.head_dim, j % self.head_dim))
                            .collect()
                    };
                    kv.store(
                        span.blocks[position / self.block_size] as usize,
                        position % self.block_size,
                        &of(&|h, i| self.key(s, position, h, i)),
                        &of(&|h, i| self.value(s, position, h, i)),
                    );
                }
            }
            let rows: usize = spans.iter().map(|s| s.tokens).sum();
            let width = self.heads * self.head_dim;
            let queries: Vec<f32> = (0..rows * width)
                .map(|j| {
                    let (row, j) = (j / width, j % width);
                    self.query(row, j / self.head_dim, j % self.head_dim)
                })
                .collect();
            let spans = match only {
                Some(s) => vec![spans[s].clone()],
                None => spans,
            };
            let attention = Attention {
                kv: &kv,
                spans: &spans,
                queries: &queries,
                query_stride: width,
                heads: self.heads,
                window: self.window,
            };
            let mut out = vec![0.0; rows * width];
            let tiles = tiles(&spans, self.heads, self.kv_heads);
            attention.run(isa, Threads(1), &tiles, &mut out);
            out
        }

        /// The same in double precision.
        fn exact(&self, s: usize, token: usize, head: usize, column: usize) -> f64 {
            let span = &self.spans()[s];
            let (kv_head, last) = (head * self.kv_heads / self.heads, span.context + token);
            let first = self.window.map_or(0, |w| (last + 1).saturating_sub(w));
            let score = |position: usize| -> f64 {
                let dot: f64 = (0..self.head_dim)
                    .map(|i| {
                        f64::from(self.query(span.row + token, head, i))
                            * f64::from(self.key(s, position, kv_head, i))
                    })
                    .sum();
                (dot / (self.head_dim as f64).sqrt()).exp()
            };
            let (mut sum, mut total) = (0.0, 0.0);
            for position in first..=last {
                let weight = score(position);
                total += weight;
                sum += weight * f64::from(self.value(s, position, kv_head, column));
            }
            sum / total
        }
    }

    const fn case(
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        block_size: usize,
        window: Option<usize>,
    ) -> Case {
        Case {
            heads,
            kv_heads,
            head_dim,
            block_size,
            window,
        }
    }

    const CASES: [Case; 6] = [
        case(2, 2, 64, 16, None),
        case(4, 2, 80, 32, None),
        case(6, 2, 40, 16, Some(9)),
        case(8, 1, 32, 16, None),
        case(9, 1, 16, 16, Some(20)),
        case(4, 2, 24, 5, None),
    ];

    #[test]
    fn attention_agrees_with_double_precision_for_every_grouping_of_rows() {
        for c in &CASES {
            let width = c.heads * c.head_dim;
            for dtype in [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16] {
                for isa in Isa::available() {
                    let out = c.run(isa, dtype, None);
                    for (s, span) in c.spans().iter().enumerate() {
                        for token in 0..span.tokens {
                            for j in (0..width).step_by(7) {
                                let exact = c.exact(s, token, j / c.head_dim, j % c.head_dim);
                                let got = out[(span.row + token) * width + j];
                                assert!(
                                    (f64::from(got) - exact).abs() < 2e-5,
                                    "{isa} {dtype} {} heads, span {s}, token {token}, {j}: {got}, exactly {exact}",
                                    c.heads
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_sequence_gives_the_same_bits_alone_and_beside_others() {
        for c in &CASES {
            let width = c.heads * c.head_dim;
            for isa in Isa::available() {
                let together = c.run(isa, WeightDtype::F16, None);
                for (s, span) in c.spans().iter().enumerate() {
                    let alone = c.run(isa, WeightDtype::F16, Some(s));
                    let rows = span.row * width..(span.row + span.tokens) * width;
                    assert_eq!(alone[rows.clone()], together[rows], "{isa} span {s}");
                }
            }
        }
    }
}
