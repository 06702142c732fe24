//! The forward pass of one rank over its layers: all tokens of a step at once.

use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;

use crate::executor::{SeqInput, StepTimes};
use kernels::Isa;
use kernels::attention::{self, Attention, PagedKv, Span, Tile};
use kernels::elementwise::{self, RotaryTable};
use kernels::linear::Linear;
use kernels::pool::Threads;

use super::collective::{Member, RankLost};
use super::layer::Layer;
use kernels::dtype::Values;

/// A step as every rank sees it.
#[derive(Debug)]
pub struct Step {
    /// New tokens of all sequences, one after the other: the rows of the pass.
    pub tokens: Vec<u32>,
    /// Each row's position in its sequence.
    pub positions: Vec<usize>,
    /// The sequences.
    pub spans: Vec<Span>,
    /// Rows whose logits are wanted.
    pub sampled: Vec<usize>,
    /// Attention's share of work for a rank with this many query and KV heads.
    pub tiles: Vec<Tile>,
}

impl Step {
    /// Lays out the rows; `heads` and `kv_heads` are those of one rank.
    pub fn new(input: Vec<SeqInput>, heads: usize, kv_heads: usize) -> Step {
        let mut step = Step {
            tokens: Vec::new(),
            positions: Vec::new(),
            spans: Vec::with_capacity(input.len()),
            sampled: Vec::new(),
            tiles: Vec::new(),
        };
        for sequence in input {
            let context = sequence.context as usize;
            let count = sequence.tokens.len();
            step.spans.push(Span {
                row: step.tokens.len(),
                tokens: count,
                context,
                blocks: sequence.blocks,
            });
            step.tokens.extend_from_slice(&sequence.tokens);
            step.positions.extend(context..context + count);
            if sequence.sample {
                step.sampled.push(step.tokens.len() - 1);
            }
        }
        step.tiles = attention::tiles(&step.spans, heads, kv_heads);
        step
    }
}

/// The end of the model: final norm and LM head.
pub struct Head {
    pub norm: Vec<f32>,
    /// This rank's rows of the head.
    pub matrix: Linear,
    /// Size of the vocabulary.
    pub vocab: usize,
}

/// One rank: its layers, its KV cache, its buffers.
pub struct Rank {
    pub isa: Isa,
    pub threads: Threads,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub eps: f32,
    pub block_size: usize,
    /// First stage alone.
    pub embedding: Option<Arc<Values>>,
    pub layers: Vec<Layer>,
    pub caches: Vec<PagedKv>,
    pub rotary: RotaryTable,
    /// Last stage alone.
    pub head: Option<Head>,
    pub member: Member,
    pub buffers: Buffers,
}

/// Intermediate values, kept from step to step.
#[derive(Default)]
pub struct Buffers {
    normed: Vec<f32>,
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    inner: Vec<f32>,
    gated: Vec<f32>,
    out: Vec<f32>,
}

/// Resizes without keeping what is there.
fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}

/// Runs `work` on each row of `out`, in parallel where there are many.
fn rows(threads: Threads, out: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    if threads.0 == 1 || out.len() < 16_384 {
        out.chunks_exact_mut(width)
            .enumerate()
            .for_each(|(i, row)| work(i, row));
    } else {
        out.par_chunks_exact_mut(width)
            .enumerate()
            .with_min_len(8)
            .for_each(|(i, row)| work(i, row));
    }
}

/// Adds the time since the last call to one part of a step.
struct Clock(Instant);

impl Clock {
    fn lap(&mut self, part: &mut f64) {
        let now = Instant::now();
        *part += (now - self.0).as_secs_f64();
        self.0 = now;
    }
}

impl Rank {
    /// The residual stream at the model's beginning.
    pub fn embed(&self, step: &Step, times: &mut StepTimes) -> Vec<f32> {
        let mut clock = Clock(Instant::now());
        let mut x = vec![0.0; step.tokens.len() * self.hidden];
        if let Some(embedding) = &self.embedding {
            for (token, row) in step.tokens.iter().zip(x.chunks_exact_mut(self.hidden)) {
                embedding.read(*token as usize * self.hidden, row);
            }
        }
        clock.lap(&mut times.elementwise);
        x
    }

    /// Runs this rank's layers over the residual stream `x`, one row per token.
    pub fn layers(
        &mut self,
        step: &Step,
        x: &mut [f32],
        times: &mut StepTimes,
    ) -> Result<(), RankLost> {
        let end = step.positions.iter().max().map_or(0, |p| p + 1);
        let mut clock = Clock(Instant::now());
        self.rotary.extend(end);
        clock.lap(&mut times.elementwise);
        for index in 0..self.layers.len() {
            self.attend(index, step, x, times)?;
            self.feed(index, x, times)?;
        }
        Ok(())
    }

    fn attend(
        &mut self,
        index: usize,
        step: &Step,
        x: &mut [f32],
        times: &mut StepTimes,
    ) -> Result<(), RankLost> {
        let (isa, threads, eps) = (self.isa, self.threads, self.eps);
        let (m, h, d) = (step.tokens.len(), self.hidden, self.head_dim);
        let layer = &self.layers[index];
        let mut clock = Clock(Instant::now());

        let normed = sized(&mut self.buffers.normed, m * h);
        rows(threads, normed, h, |i, out| {
            elementwise::rms_norm(&x[i * h..(i + 1) * h], &layer.input_norm, eps, out);
        });
        clock.lap(&mut times.elementwise);

        let width = layer.qkv.rows;
        let qkv = sized(&mut self.buffers.qkv, m * width);
        layer.qkv.apply(isa, threads, normed, qkv);
        clock.lap(&mut times.linear);

        let (q, kv) = (self.heads * d, self.kv_heads * d);
        let rotary = &self.rotary;
        rows(threads, qkv, width, |i, row| {
            let (cos, sin) = rotary.at(step.positions[i]);
            for (h, head) in row[..q + kv].chunks_exact_mut(d).enumerate() {
                if let Some((q_norm, k_norm)) = &layer.qk_norms {
                    let norm = if h * d < q { q_norm } else { k_norm };
                    elementwise::rms_norm_in_place(head, norm, eps);
                }
                elementwise::rotate(head, cos, sin);
            }
        });
        clock.lap(&mut times.elementwise);

        let cache = &mut self.caches[index];
        for span in &step.spans {
            for token in 0..span.tokens {
                let position = span.context + token;
                let row = &qkv[(span.row + token) * width..][..width];
                cache.store(
                    span.blocks[position / self.block_size] as usize,
                    position % self.block_size,
                    &row[q..q + kv],
                    &row[q + kv..],
                );
            }
        }
        let mixed = sized(&mut self.buffers.mixed, m * q);
        let attention = Attention {
            kv: cache,
            spans: &step.spans,
            queries: qkv,
            query_stride: width,
            heads: self.heads,
            window: layer.window,
        };
        attention.run(isa, threads, &step.tiles, mixed);
        clock.lap(&mut times.attention);

        let out = sized(&mut self.buffers.out, m * h);
        layer.attention_out.apply(isa, threads, mixed, out);
        clock.lap(&mut times.linear);
        self.member.all_reduce(out)?;
        clock.lap(&mut times.communication);
        rows(threads, x, h, |i, row| {
            elementwise::add(row, &out[i * h..(i + 1) * h])
        });
        clock.lap(&mut times.elementwise);
        Ok(())
    }

    fn feed(&mut self, index: usize, x: &mut [f32], times: &mut StepTimes) -> Result<(), RankLost> {
        let (isa, threads, eps, h) = (self.isa, self.threads, self.eps, self.hidden);
        let m = x.len() / h;
        let layer = &self.layers[index];
        let mut clock = Clock(Instant::now());

        let normed = sized(&mut self.buffers.normed, m * h);
        rows(threads, normed, h, |i, out| {
            elementwise::rms_norm(&x[i * h..(i + 1) * h], &layer.feed_norm, eps, out);
        });
        clock.lap(&mut times.elementwise);

        let width = layer.gate_up.rows;
        let inner = sized(&mut self.buffers.inner, m * width);
        layer.gate_up.apply(isa, threads, normed, inner);
        clock.lap(&mut times.linear);

        let gated = sized(&mut self.buffers.gated, m * width / 2);
        rows(threads, gated, width / 2, |i, out| {
            elementwise::swiglu(isa, &inner[i * width..(i + 1) * width], out);
        });
        clock.lap(&mut times.elementwise);

        let out = sized(&mut self.buffers.out, m * h);
        layer.down.apply(isa, threads, gated, out);
        clock.lap(&mut times.linear);
        self.member.all_reduce(out)?;
        clock.lap(&mut times.communication);
        rows(threads, x, h, |i, row| {
            elementwise::add(row, &out[i * h..(i + 1) * h])
        });
        clock.lap(&mut times.elementwise);
        Ok(())
    }

    /// Logits of the sampled rows, whole on rank 0 and empty on the others.
    pub fn logits(
        &mut self,
        step: &Step,
        x: &[f32],
        times: &mut StepTimes,
    ) -> Result<Vec<f32>, RankLost> {
        self.project(&step.sampled, x, times)
    }

    /// Logits of these rows of `x`, whole on rank 0 and empty on the others.
    fn project(
        &mut self,
        wanted: &[usize],
        x: &[f32],
        times: &mut StepTimes,
    ) -> Result<Vec<f32>, RankLost> {
        let Some(head) = &self.head else {
            return Ok(Vec::new());
        };
        let (h, m) = (self.hidden, wanted.len());
        let mut clock = Clock(Instant::now());
        let normed = sized(&mut self.buffers.normed, m * h);
        for (row, out) in wanted.iter().zip(normed.chunks_exact_mut(h)) {
            elementwise::rms_norm(&x[row * h..(row + 1) * h], &head.norm, self.eps, out);
        }
        clock.lap(&mut times.elementwise);
        let mut part = vec![0.0; m * head.matrix.rows];
        head.matrix.apply(self.isa, self.threads, normed, &mut part);
        clock.lap(&mut times.lm_head);
        if self.member.ranks() == 1 {
            return Ok(part);
        }
        let (vocab, ranks) = (head.vocab, self.member.ranks());
        let mut whole = if self.member.rank() == 0 {
            vec![0.0; m * vocab]
        } else {
            Vec::new()
        };
        self.member.gather(&part, |rank, part| {
            let columns = super::layer::share(vocab, rank, ranks);
            for (row, part) in whole
                .chunks_exact_mut(vocab)
                .zip(part.chunks_exact(columns.len()))
            {
                row[columns.clone()].copy_from_slice(part);
            }
        })?;
        clock.lap(&mut times.communication);
        Ok(whole)
    }
}
