//! Takes in a run while it goes on, in bounded memory.

use std::sync::{Arc, Mutex, PoisonError};

use sim::kernel::time::SimTime;
use sim::observer::{FleetEvent, Observer};
use sim::policy::Blocked;
use sim::record::{RequestRow, StepRow};
use sim::request::Outcome;

use crate::levels::merge_neighbours;
use crate::{Bin, Event, Packed, Rates, Stat, StepLevel, StepSpan, build_levels, merge};

/// Narrowest bin of counts [ns]: about a millisecond.
const MIN_BIN: u64 = 1 << 20;

/// Most events of the fleet; those after are counted, not kept.
const MAX_EVENTS: usize = 100_000;

/// How much of a run is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most rows of requests; beyond, every second one goes.
    pub requests: usize,
    /// Most rows of steps; beyond, neighbours are merged.
    pub steps: usize,
    /// Most bins of counts; beyond, they double in width.
    pub bins: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            requests: 2_000_000,
            steps: 500_000,
            bins: 2048,
        }
    }
}

/// What was taken in.
#[derive(Debug, Default)]
pub struct Collected {
    /// Rows of requests, in the order of their ends.
    pub requests: Packed<RequestRow>,
    /// Every so-many-th request is there.
    pub request_stride: u32,
    /// Levels of steps.
    pub steps: Vec<StepLevel>,
    /// Most steps in a row of the finest level.
    pub step_merge: u32,
    /// Counts over time.
    pub rates: Rates,
    /// Events of the fleet.
    pub events: Vec<Event>,
    /// Replicas that were seen.
    pub replicas: usize,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    requests: Vec<RequestRow>,
    stride: u32,
    /// By replica: closed rows, and at the end one that takes in up to `merge` steps.
    steps: Vec<Vec<StepSpan>>,
    rows: usize,
    merge: u32,
    rates: Rates,
    events: Vec<Event>,
    replicas: usize,
}

/// Takes in a run; its clones take in the same one. Give one to the run as its observer and keep the other.
#[derive(Clone, Debug)]
pub struct Collector(Arc<Mutex<State>>);

impl Collector {
    /// One that has seen nothing.
    pub fn new(limits: Limits) -> Collector {
        Collector(Arc::new(Mutex::new(State {
            limits: Limits {
                requests: limits.requests.max(2),
                steps: limits.steps.max(2),
                bins: limits.bins.max(2),
            },
            requests: Vec::new(),
            stride: 1,
            steps: Vec::new(),
            rows: 0,
            merge: 1,
            rates: Rates {
                width: MIN_BIN,
                bins: Vec::new(),
            },
            events: Vec::new(),
            replicas: 0,
        })))
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What was taken in; nothing is left.
    pub fn take(&self) -> Collected {
        self.with(State::take)
    }
}

impl Observer for Collector {
    fn step(&mut self, row: &StepRow) {
        self.with(|s| s.step(row));
    }

    fn request(&mut self, row: &RequestRow) {
        self.with(|s| s.request(row));
    }

    fn fleet(&mut self, at: SimTime, replica: u32, event: FleetEvent) {
        self.with(|s| {
            s.replicas = s.replicas.max(replica as usize + 1);
            if s.events.len() < MAX_EVENTS {
                s.events.push(Event {
                    at: at.0,
                    replica,
                    kind: event.into(),
                });
            }
        });
    }
}

/// A step as a row of its own.
fn span(row: &StepRow) -> StepSpan {
    let busy = row.end.since(row.start).0;
    let mut blocked = [0; 3];
    if let Some(i) = Blocked::CAUSES.iter().position(|c| *c == row.blocked) {
        blocked[i] = busy;
    }
    StepSpan {
        replica: row.replica,
        steps: 1,
        start: row.start.0,
        end: row.end.0,
        busy,
        parts: row.parts.as_array().map(|p| p as f32),
        prefill_tokens: row.stats.prefill_tokens.into(),
        prefill_seqs: row.stats.prefill_seqs.into(),
        decode_tokens: row.stats.decode_tokens.into(),
        decode_ctx: row.stats.decode_ctx_sum,
        prefill_pairs: row.stats.prefill_pairs,
        running: Stat::of(row.running.into()),
        waiting: Stat::of(row.waiting.into()),
        kv_blocks: Stat::of(row.kv_used_blocks),
        blocked,
    }
}

impl State {
    fn step(&mut self, row: &StepRow) {
        let r = row.replica as usize;
        if r >= self.steps.len() {
            self.steps.resize_with(r + 1, Vec::new);
            self.replicas = self.replicas.max(r + 1);
        }
        let new = span(row);
        match self.steps[r].last_mut() {
            Some(open) if open.steps < self.merge => *open = merge(open, &new),
            _ => {
                self.steps[r].push(new);
                self.rows += 1;
            }
        }
        // One row per replica stays whatever the limit.
        if self.rows > self.limits.steps.max(2 * self.steps.len()) {
            self.merge = self.merge.saturating_mul(2);
            for rows in &mut self.steps {
                *rows = merge_neighbours(rows.iter().copied(), 2).collect();
            }
            self.rows = self.steps.iter().map(Vec::len).sum();
        }
    }

    fn request(&mut self, row: &RequestRow) {
        self.count(row.arrival.0, |bin| {
            bin.sent += 1;
            bin.prompt_tokens += u64::from(row.prompt_tokens);
        });
        match row.outcome {
            Outcome::Finished => self.count(row.end.0, |bin| {
                bin.finished += 1;
                bin.output_tokens += u64::from(row.output_tokens);
            }),
            Outcome::InFlight => {}
            _ => self.count(row.end.0, |bin| bin.lost += 1),
        }
        if !row.id.is_multiple_of(self.stride) {
            return;
        }
        self.requests.push(*row);
        while self.requests.len() > self.limits.requests {
            self.stride = self.stride.saturating_mul(2);
            let stride = self.stride;
            self.requests.retain(|r| r.id.is_multiple_of(stride));
        }
    }

    fn count(&mut self, at: u64, add: impl FnOnce(&mut Bin)) {
        if at == u64::MAX {
            return;
        }
        while (at / self.rates.width) as usize >= self.limits.bins {
            let halved = self.rates.bins.chunks(2).map(|pair| {
                pair.iter().fold(Bin::default(), |a, b| Bin {
                    sent: a.sent + b.sent,
                    finished: a.finished + b.finished,
                    lost: a.lost + b.lost,
                    prompt_tokens: a.prompt_tokens + b.prompt_tokens,
                    output_tokens: a.output_tokens + b.output_tokens,
                })
            });
            self.rates.bins = halved.collect();
            self.rates.width *= 2;
        }
        let i = (at / self.rates.width) as usize;
        if i >= self.rates.bins.len() {
            self.rates.bins.resize(i + 1, Bin::default());
        }
        add(&mut self.rates.bins[i]);
    }

    fn take(&mut self) -> Collected {
        let mut requests = std::mem::take(&mut self.requests);
        requests.sort_by_key(|r| (r.end, r.id));
        let replicas = self.replicas;
        let mut steps = std::mem::take(&mut self.steps);
        for of_one in &mut steps {
            of_one.sort_by_key(|r| r.start);
        }
        Collected {
            requests: requests.into_iter().collect(),
            request_stride: self.stride,
            steps: build_levels(steps.into_iter().flatten(), replicas),
            step_merge: self.merge,
            rates: std::mem::take(&mut self.rates),
            events: std::mem::take(&mut self.events),
            replicas,
        }
    }
}
