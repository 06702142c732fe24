//! What a replica can do at best, from its memory plan and step model alone: no queueing, no unevenness, no ramp.
//!
//! In the steady state of a replica that runs `b` sequences, each of its steps makes `b` output tokens and takes in `b P / O` prompt tokens, P and O the
//! mean lengths: it then finishes `b / O` requests per step. The step is priced with even contexts, which is the least that so many tokens cost.
//! Throughput is largest at the largest `b` that memory, the engine's limits and the limit on the time between tokens allow; all of it is an upper bound.
//! A request's TTFT is at least the time of its own prefill on an idle replica.

use hwmodels::{BatchStats, StepModel};

use super::question::Question;
use super::ready::Ready;
use crate::requests::Moments;

/// By how much a bound is relaxed: the step model's tiles make its cost not quite convex, so that a mean batch may cost more than the mean of batches
/// [ratio].
const SLACK: f64 = 0.15;

/// What a replica can do at best.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Most requests per second that it finishes within the limit on the time between tokens.
    pub requests_per_s: f64,
    /// Sequences at once with which it does.
    pub sequences: u32,
    /// Why no load at all can be carried; none where some may.
    pub impossible: Option<String>,
}

/// The bound of a candidate under the question's load.
pub fn bound(ready: &Ready, question: &Question) -> Bound {
    if question.world.is_cancelled() {
        // Nobody reads it.
        return Bound {
            requests_per_s: 0.0,
            sequences: 0,
            impossible: None,
        };
    }
    let m = &question.moments;
    let step = ready.step().as_ref();
    let layout = ready.candidate.layout;
    let mut impossible = too_slow(ready, question);
    // KV of prompts that share content is held once, so it bounds nothing.
    let by_memory = if m.shares {
        f64::INFINITY
    } else {
        ready.kv_tokens as f64 / m.context.max(1.0)
    };
    let by_budget = ready.step_tokens.map_or(f64::INFINITY, |t| {
        f64::from(t) / (1.0 + m.prompt / m.output) * f64::from(layout.pp)
    });
    let by_seqs = ready.max_seqs.map_or(f64::INFINITY, f64::from);
    let most = by_memory.min(by_seqs);
    if most < 1.0 {
        impossible.get_or_insert_with(|| {
            format!(
                "KV has room for {} tokens, less than one mean request holds",
                ready.kv_tokens
            )
        });
    }
    // What a stage holds is a share of the running sequences.
    let stages = f64::from(layout.pp);
    let most = (most.min(by_budget) / stages).clamp(1.0, 4096.0);
    let limit_s = tpot_limit_s(question);
    let mut best = (0.0, 1.0);
    let mut b = 1.0;
    loop {
        let cost = step_of(step, b, m, layout.dp);
        let gap = cost.1.min(cost.0 * stages);
        if limit_s.is_some_and(|l| gap > l * (1.0 + SLACK)) && b > 1.0 {
            break;
        }
        let rate = f64::from(layout.dp) * b / (m.output * cost.0);
        if rate > best.0 {
            best = (rate, b);
        }
        if b >= most {
            break;
        }
        b = (b * 1.3).max(b + 1.0).min(most);
    }
    Bound {
        requests_per_s: best.0 * (1.0 + SLACK),
        sequences: (best.1 * stages) as u32,
        impossible,
    }
}

/// Interval and latency of a step that makes `b` output tokens per rank and takes in its share of prompts [s].
fn step_of(step: &dyn StepModel, b: f64, m: &Moments, dp: u32) -> (f64, f64) {
    let seqs = b.floor().max(1.0);
    let prompt = if m.shares {
        0.0
    } else {
        seqs * m.prompt / m.output
    };
    let mut batch = BatchStats {
        decode_seqs: seqs as u32,
        decode_tokens: seqs as u32,
        decode_ctx_sum: (seqs * m.context) as u64,
        decode_ctx_sq_sum: (seqs * m.context * m.context) as u64,
        sampled_seqs: seqs as u32,
        ..BatchStats::default()
    };
    if prompt >= 1.0 {
        batch.prefill_tokens = prompt as u32;
        batch.prefill_seqs = 1;
        batch.prefill_pairs = (prompt * m.pairs_per_token) as u64;
        batch.prefill_ctx_sum = batch.prefill_tokens.into();
    }
    let cost = if dp > 1 {
        step.step_ranks(&vec![batch; dp as usize])
    } else {
        step.step(&batch)
    };
    // The batch that was priced is a little smaller than the one that is meant.
    let more = b / seqs;
    (cost.interval.max(1e-9) * more, cost.latency * more)
}

/// The tightest limit on the time between tokens that a mean must keep [s].
fn tpot_limit_s(question: &Question) -> Option<f64> {
    let limits = question.conditions.iter().filter(|c| c.bounds_tpot());
    // A low quantile may lie below the mean; it bounds nothing here.
    let high = limits.filter(|c| c.limit.quantile.is_none_or(|q| q >= 0.9));
    high.map(|c| c.limit.limit_ms / 1e3).min_by(f64::total_cmp)
}

/// Why a request alone on a replica misses an objective, if it does.
fn too_slow(ready: &Ready, question: &Question) -> Option<String> {
    let m = &question.moments;
    let step = ready.step();
    let token = |context: u32| {
        let mut b = BatchStats::default();
        b.add_decode(context);
        step.step(&b).interval
    };
    if let Some(limit) = tpot_limit_s(question) {
        let alone = token(1);
        if alone > limit * (1.0 + SLACK) {
            return Some(format!(
                "a token takes at least {} ms even alone on a replica; the limit is {} ms",
                short(1e3 * alone),
                short(1e3 * limit)
            ));
        }
    }
    if m.shares {
        return None;
    }
    for c in question.conditions.iter().filter(|c| c.bounds_ttft()) {
        let at = match c.limit.quantile {
            Some(q) => ((m.prompts.len() - 1) as f64 * q).floor() as usize,
            None => 0,
        };
        let prompt = m.prompts[at.min(m.prompts.len() - 1)];
        let prefill = prefill_s(ready, prompt);
        let limit = c.limit.limit_ms / 1e3;
        if prefill > limit * (1.0 + SLACK) {
            return Some(format!(
                "the prefill of a prompt of {prompt} tokens alone takes {} ms; {} must be below {} ms",
                short(1e3 * prefill),
                c.label(),
                short(c.limit.limit_ms)
            ));
        }
    }
    None
}

/// Time of a prompt's prefill on an idle replica [s].
fn prefill_s(ready: &Ready, prompt: u32) -> f64 {
    let chunk = ready.step_tokens.unwrap_or(prompt).max(1);
    let mut done = 0;
    let mut total = 0.0;
    while done < prompt {
        let new = chunk.min(prompt - done);
        let mut b = BatchStats::default();
        b.add_prefill(new, done, done + new == prompt);
        total += ready.step().step(&b).interval;
        done += new;
    }
    total
}

fn short(x: f64) -> String {
    sim::report::text::figure(x)
}
