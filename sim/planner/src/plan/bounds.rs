//! What a replica can do at best, from its memory plan and step model alone: no queueing, no unevenness, no ramp.
//!
//! In the steady state of a replica that runs `b` sequences, each of its steps makes `b` output tokens and takes in `b P / O` prompt tokens, P and O the
//! mean lengths: it then finishes `b / O` requests per step. The step is priced with even contexts, which is the least that so many tokens cost.
//! Throughput is largest at the largest `b` that memory, the engine's limits and the limit on the time between tokens allow; all of it is an upper bound.
//! Where prefill and decode are apart, a cell finishes no more requests than its replicas can prefill, than its others can decode, and than the link
//! between them can carry.
//!
//! A request's TTFT is at least the time of its own prefill on an idle replica.

use hwmodels::{BatchStats, Layout, StepModel};

use super::apart::Apart;
use super::question::Question;
use super::ready::{Limits, Ready};
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
    /// What of prefill and decode apart allows no more; empty where they are together.
    pub by: &'static str,
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
            by: "",
            impossible: None,
        };
    }
    if let (Some(apart), Some(decode)) = (&ready.candidate.apart, &ready.decode) {
        return bound_apart(ready, apart, decode, question);
    }
    let m = &question.moments;
    let step = ready.step().as_ref();
    let layout = ready.candidate.layout;
    let mut impossible = too_slow(ready, question);
    let by_budget = (ready.limits.step_tokens).map_or(f64::INFINITY, |t| {
        f64::from(t) / (1.0 + m.prompt / m.output) * f64::from(layout.pp)
    });
    let most = sequences(&ready.limits, m);
    if most < 1.0 {
        impossible.get_or_insert_with(|| no_room(&ready.limits));
    }
    // What a stage holds is a share of the running sequences.
    let stages = f64::from(layout.pp);
    let most = (most.min(by_budget) / stages).clamp(1.0, 4096.0);
    let prompt = if m.shares { 0.0 } else { m.prompt / m.output };
    let limit_s = tpot_limit_s(question);
    let best = best_batch(step, m, layout, (most, prompt), (m.output, limit_s));
    Bound {
        requests_per_s: best.0 * (1.0 + SLACK),
        sequences: (best.1 * stages) as u32,
        by: "",
        impossible,
    }
}

/// Most sequences that a rank can run: what memory holds and the engine allows.
fn sequences(limits: &Limits, m: &Moments) -> f64 {
    // KV of prompts that share content is held once, so it bounds nothing.
    let by_memory = if m.shares {
        f64::INFINITY
    } else {
        limits.kv_tokens as f64 / m.context.max(1.0)
    };
    by_memory.min(limits.max_seqs.map_or(f64::INFINITY, f64::from))
}

fn no_room(limits: &Limits) -> String {
    format!(
        "KV has room for {} tokens, less than one mean request holds",
        limits.kv_tokens
    )
}

/// The highest rate of requests and the batch of a rank with which it is reached, of up to `most` sequences that take in `prompt` prompt tokens per output
/// token; a request takes `output` steps, each within `limit_s`.
fn best_batch(
    step: &dyn StepModel,
    m: &Moments,
    layout: Layout,
    (most, prompt): (f64, f64),
    (output, limit_s): (f64, Option<f64>),
) -> (f64, f64) {
    let stages = f64::from(layout.pp);
    let mut best = (0.0, 1.0);
    let mut b = 1.0;
    loop {
        let cost = step_of(step, b, prompt, m, layout.dp);
        let gap = cost.1.min(cost.0 * stages);
        if limit_s.is_some_and(|l| gap > l * (1.0 + SLACK)) && b > 1.0 {
            break;
        }
        let rate = f64::from(layout.dp) * b / (output * cost.0);
        if rate > best.0 {
            best = (rate, b);
        }
        if b >= most {
            break;
        }
        b = (b * 1.3).max(b + 1.0).min(most);
    }
    best
}

/// The bound of a cell whose prefill and decode are apart.
fn bound_apart(ready: &Ready, apart: &Apart, decode: &Limits, question: &Question) -> Bound {
    let m = &question.moments;
    let mut impossible = too_slow(ready, question);
    if !m.shares && (ready.limits.kv_tokens as f64) < m.prompt {
        impossible.get_or_insert_with(|| {
            format!(
                "KV of a replica that prefills has room for {} tokens, less than a mean prompt",
                ready.limits.kv_tokens
            )
        });
    }
    let most = sequences(decode, m);
    if most < 1.0 {
        impossible.get_or_insert_with(|| no_room(decode));
    }
    let by_budget = decode.step_tokens.map_or(f64::INFINITY, f64::from);
    let most = most.min(by_budget).clamp(1.0, 4096.0);
    // The first token is made where the prompt is computed.
    let output = (m.output - 1.0).max(1e-6);
    let limits = (output, tpot_limit_s(question));
    let step = ready.decode_step().as_ref();
    let decoded = best_batch(step, m, apart.decode_layout, (most, 0.0), limits);
    let of_cell = [
        (
            f64::from(apart.prefill) * prefilled_per_s(ready, m) * (1.0 + SLACK),
            "the replicas that prefill",
        ),
        (
            f64::from(apart.decode) * decoded.0 * (1.0 + SLACK),
            "the replicas that decode",
        ),
        (
            transferred_per_s(ready, apart, m),
            "the link between prefill and decode",
        ),
    ];
    let mut least = of_cell[0];
    for other in of_cell {
        if other.0 < least.0 {
            least = other;
        }
    }
    Bound {
        requests_per_s: least.0,
        sequences: decoded.1 as u32,
        by: least.1,
        impossible,
    }
}

/// Most requests per second whose prompts a replica computes that does nothing else.
fn prefilled_per_s(ready: &Ready, m: &Moments) -> f64 {
    if m.shares {
        return f64::INFINITY;
    }
    let longest = m.prompts.last().copied().unwrap_or(1);
    let most = f64::from(ready.limits.step_tokens.unwrap_or(longest)).max(1.0);
    let mut best: f64 = 0.0;
    let mut tokens = most.min(64.0);
    loop {
        let batch = BatchStats {
            prefill_tokens: tokens as u32,
            prefill_seqs: 1,
            prefill_pairs: (tokens * m.pairs_per_token) as u64,
            prefill_ctx_sum: tokens as u64,
            sampled_seqs: 1,
            ..BatchStats::default()
        };
        let cost = ready.step().step(&batch).interval.max(1e-9);
        best = best.max(f64::from(batch.prefill_tokens) / (m.prompt.max(1.0) * cost));
        if tokens >= most {
            return best;
        }
        tokens = (tokens * 1.5).min(most);
    }
}

/// Most requests per second of a cell whose KV its replicas can send and receive.
fn transferred_per_s(ready: &Ready, apart: &Apart, m: &Moments) -> f64 {
    if m.shares {
        return f64::INFINITY;
    }
    let joined = [
        Some(&ready.fleet.simulation.serving),
        ready.fleet.beyond.as_ref(),
    ];
    let rates = joined.into_iter().flatten().filter_map(|s| {
        let (p, d) = (s.pools.first()?, s.pools.get(1)?);
        let sent = f64::from(apart.prefill) * p.kv_bandwidth;
        let received = f64::from(apart.decode) * d.kv_bandwidth;
        Some(sent.min(received) / (m.prompt * p.kv_bytes_per_token).max(1.0))
    });
    rates.fold(0.0, f64::max)
}

/// Interval and latency of a step that makes `b` output tokens per rank and takes in `per_token` prompt tokens for each [s].
fn step_of(step: &dyn StepModel, b: f64, per_token: f64, m: &Moments, dp: u32) -> (f64, f64) {
    let seqs = b.floor().max(1.0);
    let prompt = seqs * per_token;
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
    let step = ready.decode_step();
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
    let chunk = ready.limits.step_tokens.unwrap_or(prompt).max(1);
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
