//! One stream of requests: draws them when their time has come, and plays their clients.
//!
//! A stream has *fresh* requests (the arrival process: single requests, or first turns of sessions) and *pending*
//! ones that something before them caused (retries, next turns, a closed loop's next request). Memory holds
//! what is under way, never what was.
//!
//! Every source of randomness has its own generator, named after the stream and the purpose, so that a change of one
//! leaves the draws of all others alone. A session draws all it needs from a generator of its own, so its
//! turns do not depend on the order in which the system happens to answer.

mod prepare;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rand::RngExt;
use rand_distr::{Distribution, Exp1};

use super::arrival::OpenArrivals;
use super::lengths::{LengthDraw, PairDraw, Pause};
use super::source::RequestEnd;
use super::spec::{Cancel, MAX_TOKENS, Prefix, Retries};
use super::trace::{MOONCAKE_BLOCK_TOKENS, TraceReader, TraceRow};
use crate::kernel::rng::{Stream as Rng, stream as rng};
use crate::kernel::time::{SimDuration, SimTime};
use crate::kv::chain;
use crate::request::{Outcome, RequestSpec, Segment};

/// Where a failure in the middle of a run is left for whoever started it.
pub type FailureCell = Arc<Mutex<Option<String>>>;

/// How many outputs of each stream were cut to their `max_tokens`. Copies count together.
#[derive(Clone, Debug)]
pub struct CutCounts(Arc<[AtomicU64]>);

impl CutCounts {
    /// Zero for each of `streams`.
    pub fn new(streams: usize) -> CutCounts {
        CutCounts((0..streams).map(|_| AtomicU64::new(0)).collect())
    }

    /// The counts, by stream.
    pub fn counts(&self) -> Vec<u64> {
        self.0.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }

    fn add(&self, stream: u16) {
        if let Some(n) = self.0.get(usize::from(stream)) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Tag of requests that nothing waits for.
const NO_SLOT: u64 = u64::MAX;

/// A request that an earlier one caused. Ordered by time, then by when it was caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    at: SimTime,
    order: u64,
    what: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// Send the request of this slot again.
    Retry(usize),
    /// Next turn of the session in this slot.
    Turn(usize),
    /// A closed loop's user is ready.
    User,
}

/// A request under way that somebody waits for.
#[derive(Clone, Debug, Default)]
struct Awaited {
    /// The request as sent, for retries.
    spec: RequestSpec,
    /// Times it was sent again.
    retries: u32,
    /// Slot of its session.
    session: Option<usize>,
}

/// A dialogue under way.
#[derive(Clone, Debug)]
struct Session {
    id: u64,
    rng: Rng,
    turn: u32,
    turns: u32,
    /// All that was said, in order.
    history: Vec<Segment>,
    /// Tokens of it.
    context: u32,
}

/// A dense store with reused slots.
#[derive(Clone, Debug)]
struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slab<T> {
    fn new() -> Slab<T> {
        Slab {
            items: Vec::new(),
            free: Vec::new(),
        }
    }

    fn insert(&mut self, item: T) -> usize {
        match self.free.pop() {
            Some(i) => {
                self.items[i] = Some(item);
                i
            }
            None => {
                self.items.push(Some(item));
                self.items.len() - 1
            }
        }
    }

    fn remove(&mut self, i: usize) -> Option<T> {
        let item = self.items.get_mut(i)?.take()?;
        self.free.push(i);
        Some(item)
    }
}

/// Where fresh requests come from.
enum Clock {
    Open(OpenArrivals),
    /// Users that have not sent anything yet; the rest is pending.
    Users {
        /// How many.
        unsent: u64,
        /// Pause between the first requests of two of them.
        stagger: SimDuration,
        /// When the next of them sends.
        next: SimTime,
    },
    Trace(Box<TraceClock>),
}

struct TraceClock {
    reader: TraceReader,
    row: TraceRow,
    time_scale: f64,
}

/// The generators of a stream.
struct Draws {
    prompt: Rng,
    output: Rng,
    prefix: Rng,
    cancel: Rng,
    retry: Rng,
    think: Rng,
}

/// Dialogues, ready to draw.
struct SessionPlan {
    turns: LengthDraw,
    think: Pause,
    max_context: u32,
}

/// One stream, ready to run.
pub struct StreamSource {
    index: u16,
    /// Distinguishes this stream's contents and sessions from those of others.
    salt: u64,
    seed: u64,
    priority: i32,
    max_tokens: Option<u32>,
    timeout: Option<SimDuration>,
    lengths: Option<PairDraw>,
    prefix: Option<(Prefix, Vec<f64>)>,
    cancel: Option<Cancel>,
    retries: Option<Retries>,
    sessions: Option<SessionPlan>,
    /// Closed loop: a user's pause, and the least one after a refusal.
    closed: Option<(Pause, SimDuration)>,
    clock: Clock,
    /// When the next fresh request is sent.
    fresh: Option<SimTime>,
    pending: BinaryHeap<Reverse<Pending>>,
    order: u64,
    awaited: Slab<Awaited>,
    live_sessions: Slab<Session>,
    sessions_started: u64,
    /// Requests that may still be sent, retries not counted.
    left: u64,
    hint: Option<u64>,
    shares: bool,
    draws: Draws,
    failure: FailureCell,
    cut: CutCounts,
}

impl StreamSource {
    /// When its next request is sent.
    #[inline]
    pub fn peek(&self) -> Option<SimTime> {
        let fresh = if self.left > 0 { self.fresh } else { None };
        match (self.pending.peek().map(|p| p.0.at), fresh) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Writes the request that [`StreamSource::peek`] announced. False: it is a retry, not a new request.
    pub fn pop(&mut self, out: &mut RequestSpec) -> bool {
        let pending_first = match (self.pending.peek(), self.fresh) {
            (Some(Reverse(p)), Some(fresh)) => self.left == 0 || p.at <= fresh,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let pending = if pending_first {
            self.pending.pop()
        } else {
            None
        };
        match pending {
            Some(Reverse(p)) => match p.what {
                Cause::Retry(slot) => {
                    if let Some(Some(a)) = self.awaited.items.get(slot) {
                        out.clone_from(&a.spec);
                    }
                    out.arrival = p.at;
                    return false;
                }
                Cause::Turn(session) => self.turn(session, p.at, out),
                Cause::User => self.first(p.at, out),
            },
            None => {
                let at = self.fresh.unwrap_or(SimTime::NEVER);
                self.first(at, out);
                self.advance();
            }
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.forget_unsent();
        }
        true
    }

    /// One of its requests has ended. `may_send` is false once the run's limits forbid new requests.
    pub fn on_end(&mut self, end: &RequestEnd, may_send: bool) {
        let refused = matches!(end.outcome, Outcome::Rejected(_));
        let mut session = None;
        if end.tag != NO_SLOT {
            let slot = end.tag as usize;
            if let (Some(r), Some(Some(a))) = (&self.retries, self.awaited.items.get_mut(slot)) {
                let wanted = match end.outcome {
                    Outcome::Rejected(_) => r.on_rejected,
                    Outcome::TimedOut => r.on_timed_out,
                    Outcome::Failed => r.on_failed,
                    Outcome::Finished | Outcome::InFlight => false,
                };
                if wanted && a.retries < r.max {
                    let length = r.backoff.secs() * r.factor.powi(a.retries as i32);
                    let u: f64 = self.draws.retry.random();
                    let jittered = length * (1.0 + r.jitter.get() * (2.0 * u - 1.0));
                    a.retries += 1;
                    let at = end.at + SimDuration::from_secs(jittered);
                    self.push(at, Cause::Retry(slot));
                    return;
                }
            }
            session = self.awaited.remove(slot).and_then(|a| a.session);
        }
        if let Some(s) = session {
            if self.next_turn(s, end, may_send) {
                return;
            }
            self.live_sessions.remove(s);
        }
        if may_send
            && self.left > 0
            && let Some((pause, refused_pause)) = self.closed
        {
            let mut wait = pause.draw(&mut self.draws.think);
            if refused {
                wait = wait.max(refused_pause);
            }
            self.push(end.at + wait, Cause::User);
        }
    }

    /// Drops everything that is not sent yet, but for retries: the run's limits are reached.
    pub fn forget_unsent(&mut self) {
        self.left = 0;
        let kept = std::mem::take(&mut self.pending)
            .into_iter()
            .filter(|p| match p.0.what {
                Cause::Retry(_) => true,
                Cause::Turn(s) => {
                    self.live_sessions.remove(s);
                    false
                }
                Cause::User => false,
            })
            .collect();
        self.pending = kept;
    }

    /// Whether what becomes of its requests decides what it sends later.
    pub fn reacts(&self) -> bool {
        self.closed.is_some() || self.sessions.is_some() || self.retries.is_some()
    }

    /// Whether its requests can share content with each other.
    pub fn shares_content(&self) -> bool {
        self.shares
    }

    /// Requests it will send, if that is known; retries not counted.
    pub fn len_hint(&self) -> Option<u64> {
        self.hint
    }

    /// Slots that its stores ever needed at once.
    #[cfg(test)]
    pub fn slots(&self) -> usize {
        self.awaited.items.len() + self.live_sessions.items.len()
    }

    fn push(&mut self, at: SimTime, what: Cause) {
        let order = self.order;
        self.order += 1;
        self.pending.push(Reverse(Pending { at, order, what }));
    }

    /// Finds the next fresh request.
    fn advance(&mut self) {
        self.fresh = match &mut self.clock {
            Clock::Open(a) => a.next_arrival().filter(|t| *t < SimTime::NEVER),
            Clock::Users {
                unsent,
                stagger,
                next,
            } => {
                let ready = (*unsent > 0).then_some(*next);
                *unsent = unsent.saturating_sub(1);
                *next += *stagger;
                ready
            }
            Clock::Trace(t) => match t.reader.next_row(&mut t.row) {
                Ok(true) => Some(SimTime::from_secs(t.row.arrival_s * t.time_scale)),
                Ok(false) => None,
                Err(message) => {
                    // The check before the run passed, so the file has changed since.
                    if let Ok(mut cell) = self.failure.lock() {
                        cell.get_or_insert(message);
                    }
                    None
                }
            },
        };
    }

    /// A single request, or the first turn of a session.
    fn first(&mut self, at: SimTime, out: &mut RequestSpec) {
        self.common(at, out);
        if let Clock::Trace(t) = &self.clock {
            let row = &t.row;
            out.prompt_tokens = row.prompt_tokens;
            self.outputs(row.output_tokens, row.max_tokens.or(self.max_tokens), out);
            out.session = row.session;
            let mut left = row.prompt_tokens;
            for &hash in &row.hash_ids {
                let tokens = left.min(MOONCAKE_BLOCK_TOKENS);
                left -= tokens;
                out.segments.push(Segment {
                    content: chain(self.salt, hash),
                    tokens,
                });
            }
            self.patience(out);
            self.await_end(None, out);
            return;
        }
        if self.sessions.is_some() {
            let session = self.begin_session(out);
            self.turn_text(session, out);
            return;
        }
        let (prompt, output) = self.draw_lengths();
        if let Some(prefix) = self.draw_prefix() {
            out.segments.push(prefix);
            out.prompt_tokens = prefix.tokens.saturating_add(prompt).min(MAX_TOKENS);
        } else {
            out.prompt_tokens = prompt;
        }
        self.outputs(output, self.max_tokens, out);
        self.patience(out);
        self.await_end(None, out);
    }

    fn common(&self, at: SimTime, out: &mut RequestSpec) {
        out.arrival = at;
        out.stream = self.index;
        out.priority = self.priority;
        out.session = None;
        out.segments.clear();
        out.output_content = 0;
        out.timeout = self.timeout;
        out.tag = NO_SLOT;
    }

    fn draw_lengths(&mut self) -> (u32, u32) {
        match &mut self.lengths {
            Some(l) => l.draw(&mut self.draws.prompt, &mut self.draws.output),
            None => (1, 1),
        }
    }

    fn draw_prefix(&mut self) -> Option<Segment> {
        let (prefix, shares) = self.prefix.as_ref()?;
        let group = if prefix.groups == 1 {
            0
        } else {
            let u: f64 = self.draws.prefix.random();
            shares.partition_point(|s| *s <= u).min(shares.len() - 1)
        };
        Some(Segment {
            content: chain(chain(self.salt, 0x9ef1), group as u64),
            tokens: prefix.tokens,
        })
    }

    /// Sets the output's length, cut to the call's `max_tokens` where it has one.
    fn outputs(&self, output: u32, max_tokens: Option<u32>, out: &mut RequestSpec) {
        let max_tokens = max_tokens.unwrap_or(output).max(1);
        if output > max_tokens {
            self.cut.add(self.index);
        }
        out.output_tokens = output.min(max_tokens);
        out.max_tokens = max_tokens;
    }

    /// Draws how long the client waits.
    fn patience(&mut self, out: &mut RequestSpec) {
        let Some(cancel) = &self.cancel else { return };
        // Both draws are made whatever the first says, so that a new fraction leaves the times alone.
        let u: f64 = self.draws.cancel.random();
        let x: f64 = Exp1.sample(&mut self.draws.cancel);
        if u < cancel.fraction.get() {
            let leaves = SimDuration::from_secs(x * cancel.after.secs());
            out.timeout = Some(out.timeout.map_or(leaves, |t| t.min(leaves)));
        }
    }

    /// Keeps what is needed when the request ends, if anything is.
    fn await_end(&mut self, session: Option<usize>, out: &mut RequestSpec) {
        if session.is_none() && self.retries.is_none() {
            return;
        }
        let slot = self.awaited.insert(Awaited {
            session,
            ..Awaited::default()
        });
        out.tag = slot as u64;
        if self.retries.is_some()
            && let Some(a) = &mut self.awaited.items[slot]
        {
            a.spec.clone_from(out);
        }
    }

    fn begin_session(&mut self, out: &mut RequestSpec) -> usize {
        let n = self.sessions_started;
        self.sessions_started += 1;
        let id = chain(chain(self.salt, 0x5e55), n);
        let mut own = rng(self.seed ^ id, "session");
        let turns = match &mut self.sessions {
            Some(plan) => plan.turns.draw(&mut own),
            None => 1,
        };
        let mut history = std::mem::take(&mut out.segments);
        history.clear();
        let prefix = self.draw_prefix();
        history.extend(prefix);
        self.live_sessions.insert(Session {
            id,
            rng: own,
            turn: 0,
            turns,
            context: prefix.map_or(0, |p| p.tokens),
            history,
        })
    }

    fn turn(&mut self, session: usize, at: SimTime, out: &mut RequestSpec) {
        self.common(at, out);
        self.turn_text(session, out);
    }

    /// Writes the session's next turn: all that was said, and new text.
    fn turn_text(&mut self, slot: usize, out: &mut RequestSpec) {
        let Some(Some(s)) = self.live_sessions.items.get_mut(slot) else {
            return;
        };
        // Prompt and output of a turn both come from the session's own generator.
        let (new, output) = match &mut self.lengths {
            Some(PairDraw::Separate(p, o)) => (p.draw(&mut s.rng), o.draw(&mut s.rng)),
            Some(PairDraw::Rows(rows)) => rows[s.rng.random_range(0..rows.len())],
            None => (1, 1),
        };
        let new = new.min(MAX_TOKENS.saturating_sub(s.context)).max(1);
        s.history.push(Segment {
            content: chain(chain(s.id, u64::from(s.turn)), 1),
            tokens: new,
        });
        s.context = s.context.saturating_add(new);
        out.prompt_tokens = s.context;
        out.session = Some(s.id);
        out.segments.clone_from(&s.history);
        out.output_content = chain(chain(s.id, u64::from(s.turn)), 2);
        s.turn += 1;
        self.outputs(output, self.max_tokens, out);
        self.patience(out);
        self.await_end(Some(slot), out);
    }

    /// Schedules the session's next turn. False: it is over.
    fn next_turn(&mut self, slot: usize, end: &RequestEnd, may_send: bool) -> bool {
        let (Some(plan), Some(Some(s))) = (&self.sessions, self.live_sessions.items.get_mut(slot))
        else {
            return false;
        };
        // A client that got no answer does not go on talking.
        if end.outcome != Outcome::Finished || s.turn >= s.turns || !may_send || self.left == 0 {
            return false;
        }
        s.history.push(Segment {
            content: chain(chain(s.id, u64::from(s.turn - 1)), 2),
            tokens: end.output_tokens,
        });
        s.context = s.context.saturating_add(end.output_tokens);
        if s.context >= plan.max_context {
            return false;
        }
        let at = end.at + plan.think.draw(&mut s.rng);
        self.push(at, Cause::Turn(slot));
        true
    }
}
