//! The search for what a scheduler allows: limits are whole numbers, so each is tried, by simulating.

use hwmodels::EngineKind;
use sim::policy::llama_cpp::LlamaCppParams;

use super::joint::Joint;
use super::load::Load;
use super::params::Params;
use super::server::{Known, PLENTY_TOKENS, Server, Source};

/// A finite limit must explain the loads better than no limit by this share of the loss.
const TELLS: f64 = 0.05;

/// Another system's rules must explain them better by this share: rules differ little where nothing is scarce.
const KIND_TELLS: f64 = 0.15;

/// Token budgets that are tried [tokens].
const BUDGETS: [u32; 10] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

/// What the loads alone show of the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Most requests in flight.
    pub in_flight: u32,
    /// Most requests that got tokens at the same time.
    pub streaming: u32,
    /// Most tokens they held.
    pub held_tokens: u64,
    /// Longest request [tokens].
    pub longest: u32,
}

/// What `loads` show.
pub fn seen(loads: &[&Load]) -> Seen {
    let most = |f: &dyn Fn(&Load) -> u64| loads.iter().map(|l| f(l)).max().unwrap_or(0);
    Seen {
        in_flight: most(&|l| l.most_in_flight().into()) as u32,
        streaming: most(&|l| l.most_streaming().into()).max(1) as u32,
        held_tokens: most(&|l| l.most_held_tokens()),
        longest: most(&|l| {
            let lengths = l.requests.iter().map(|r| u64::from(r.prompt + r.output));
            lengths.max().unwrap_or(0)
        }) as u32,
    }
}

/// `server` where nothing is known of a limit: at least what was seen, without another bound.
pub fn unlimited(server: &Server, seen: &Seen) -> Server {
    let mut s = *server;
    if s.max_num_seqs.source != Source::Read {
        s.max_num_seqs = Known {
            value: seen.in_flight.max(s.max_num_seqs.value),
            source: Source::AtLeast,
        };
    }
    if s.kv_tokens.source != Source::Read {
        s.kv_tokens = Known {
            value: PLENTY_TOKENS,
            source: Source::AtLeast,
        };
    }
    if s.max_model_len.source != Source::Read {
        s.max_model_len.value = s.max_model_len.value.max(seen.longest);
    }
    s
}

/// An explanation of the loads: limits, the parameters that go with them, and the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// The limits.
    pub server: Server,
    /// The parameters.
    pub params: Params,
    /// Sum of squared residuals.
    pub loss: f64,
}

/// Iterations that the parameters get to settle under each limit tried: a limit must not be judged by step times that were
/// bent to make up for another.
const SETTLE: usize = 4;

/// The limits that explain the loads best, from `answer` on: one pass over all that are not known.
pub fn search(joint: &Joint, answer: Answer, seen: &Seen) -> Answer {
    let mut best = answer;
    kinds(joint, &mut best);
    cells(joint, &mut best);
    seats_and_kv(joint, seen, &mut best);
    budget(joint, &mut best);
    best
}

/// `server` with the parameters settled from those of `from`; none where nothing can be fitted.
fn settled(joint: &Joint, server: Server, from: &Params) -> Option<Answer> {
    let (params, loss) = joint.descend(&server, from, SETTLE).ok()?;
    Some(Answer {
        server,
        params,
        loss,
    })
}

/// Takes `server` if it explains the loads better than `best` by the share `by`.
fn take(joint: &Joint, best: &mut Answer, server: Server, by: f64) {
    if let Some(a) = settled(joint, server, &best.params)
        && a.loss < best.loss * (1.0 - by)
    {
        *best = a;
    }
}

/// Takes `server`, which is what one would expect, unless it explains the loads worse than `best` by more than tells.
fn prefer(joint: &Joint, best: &mut Answer, server: Server) {
    if let Some(a) = settled(joint, server, &best.params)
        && a.loss <= best.loss * (1.0 + TELLS)
    {
        *best = a;
    }
}

fn kinds(joint: &Joint, best: &mut Answer) {
    if best.server.kind.source == Source::Read {
        return;
    }
    for kind in [EngineKind::VllmV1, EngineKind::LlamaCpp] {
        let mut s = best.server;
        if s.kind.value != kind {
            s.kind = Known {
                value: kind,
                source: Source::Inferred,
            };
            take(joint, best, s, KIND_TELLS);
        }
    }
}

/// Whether the slots of llama.cpp's server share their KV cells: by how long steps over some of the slots take.
fn cells(joint: &Joint, best: &mut Answer) {
    if best.server.kind.value == EngineKind::LlamaCpp {
        // Slots that were not asked for are 4 and share their cells; asking for a number of them ends that.
        let Server {
            kv_unified,
            max_num_seqs,
            ..
        } = best.server;
        let usual = max_num_seqs.value == LlamaCppParams::default().n_parallel;
        if kv_unified.source == Source::Default
            && max_num_seqs.source == Source::Inferred
            && kv_unified.value != usual
        {
            let server = best.server.with_kv_unified(Known::default_of(usual));
            prefer(joint, best, server);
        }
        let other = best.server.with_kv_unified(Known {
            value: !best.server.kv_unified.value,
            source: Source::Inferred,
        });
        take(joint, best, other, TELLS);
    }
}

/// Seats to try: about as many as got tokens at once, where more than that were in flight.
fn seats_to_try(seen: &Seen) -> Vec<u32> {
    let n = seen.streaming;
    let scaled = [0.8, 0.9, 1.1, 1.25, 1.5, 2.0].map(|f| (f64::from(n) * f).round() as u32);
    let mut values: Vec<u32> = scaled
        .into_iter()
        .chain([n.saturating_sub(1), n, n + 1, n + 2])
        .filter(|&v| v > 0 && v < seen.in_flight)
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn seats_and_kv(joint: &Joint, seen: &Seen, best: &mut Answer) {
    let none = unlimited(&best.server, seen);
    let Some(open) = settled(joint, none, &best.params) else {
        return;
    };
    // Where everybody in flight got tokens, nothing kept anybody waiting.
    let waited = seen.streaming < seen.in_flight;
    let seats = |s: Server, value: u32| Server {
        max_num_seqs: Known {
            value,
            source: Source::Inferred,
        },
        ..s
    };
    let kv = |s: Server, value: u64| Server {
        kv_tokens: Known {
            value,
            source: Source::Inferred,
        },
        ..s
    };
    let held = (seen.held_tokens as f64).max(f64::from(seen.longest));
    let capacities: Vec<u64> = [1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.8, 2.5]
        .map(|f| (held * f) as u64)
        .to_vec();
    let seats_known = none.max_num_seqs.source == Source::Read;
    let kv_known = none.kv_tokens.source == Source::Read;
    // Each limit alone, from the same parameters; both together only if they tell more than either.
    let mut by_seats = open;
    if waited && !seats_known {
        for n in seats_to_try(seen) {
            if let Some(a) = settled(joint, seats(none, n), &open.params)
                && a.loss < by_seats.loss
            {
                by_seats = a;
            }
        }
    }
    let mut by_kv = open;
    if waited && !kv_known {
        for &t in &capacities {
            if let Some(a) = settled(joint, kv(none, t), &open.params)
                && a.loss < by_kv.loss
            {
                by_kv = a;
            }
        }
    }
    let mut found = if by_kv.loss < by_seats.loss * (1.0 - TELLS) {
        by_kv
    } else {
        by_seats
    };
    if found.server.max_num_seqs.source == Source::Inferred && !kv_known {
        for &t in &capacities {
            let both = kv(found.server, t);
            take(joint, &mut found, both, TELLS);
        }
    }
    refine_kv(joint, &mut found);
    if found.loss > open.loss * (1.0 - TELLS) {
        found = open;
    }
    // What was found before, under other parameters, may still be the better answer.
    let before_was_limited = best.server != none;
    if found.loss < best.loss || !before_was_limited {
        *best = found;
    }
}

/// Halves the distance to the neighbours of an inferred KV capacity.
fn refine_kv(joint: &Joint, found: &mut Answer) {
    if found.server.kv_tokens.source != Source::Inferred {
        return;
    }
    let mut step = 0.05;
    for _ in 0..5 {
        let centre = found.server.kv_tokens.value as f64;
        for f in [1.0 - step, 1.0 + step] {
            let mut s = found.server;
            s.kv_tokens.value = (centre * f) as u64;
            take(joint, found, s, 0.0);
        }
        step /= 2.0;
    }
}

fn budget(joint: &Joint, best: &mut Answer) {
    if best.server.max_num_batched_tokens.source == Source::Read {
        return;
    }
    for value in BUDGETS {
        let mut s = best.server;
        s.max_num_batched_tokens = Known {
            value,
            source: Source::Inferred,
        };
        take(joint, best, s, 0.0);
    }
    let chunks = best.server.kind.value != EngineKind::LlamaCpp;
    if chunks && best.server.chunked_prefill.source != Source::Read {
        let mut s = best.server;
        s.chunked_prefill = Known {
            value: !s.chunked_prefill.value,
            source: Source::Inferred,
        };
        take(joint, best, s, TELLS);
    }
    // A budget that explains no more than the default is not known.
    let mut default = best.server;
    default.max_num_batched_tokens = Server::default().max_num_batched_tokens;
    prefer(joint, best, default);
}
