//! A tiny driver for policy tests: constant or per-step durations, every contract of [`Scheduler`] checked on the way.
//!
//! It plays the simulator's part with none of its machinery, so a policy's tests show the policy alone. Ids handed to
//! the policy are slots that get reused; everything reported here is in terms of the index into the workload.

use std::collections::VecDeque;

use hwmodels::BatchStats;
use proptest::prelude::*;

use super::{Blocked, Given, Load, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::SimTime;
use crate::request::{RejectReason, ReqId};

/// One request of a test workload.
#[derive(Clone, Debug, Default)]
pub struct Req {
    /// Arrival [ns].
    pub at: u64,
    /// Prompt [tokens].
    pub prompt: u32,
    /// Tokens it really produces.
    pub output: u32,
    /// `max_tokens` of the call.
    pub max: u32,
    /// Priority, lower first.
    pub priority: i32,
    /// The client leaves at this time [ns].
    pub leaves: Option<u64>,
    /// Prefix hashes.
    pub hashes: Vec<u64>,
}

/// A request that arrives at `at` and produces all of its `max_tokens`.
pub fn req(at: u64, prompt: u32, output: u32) -> Req {
    Req {
        at,
        prompt,
        output,
        max: output,
        ..Req::default()
    }
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fate {
    /// Refused on arrival.
    pub rejected: Option<RejectReason>,
    /// Dropped as never servable.
    pub failed: bool,
    /// Removed by its client.
    pub cancelled: bool,
    /// Index of the step that first held it.
    pub first_step: Option<usize>,
    /// End of the step that gave its first token [ns].
    pub first_token: Option<u64>,
    /// End of the step that gave its last token [ns].
    pub finished: Option<u64>,
    /// Tokens it received.
    pub tokens: u32,
    /// Times it lost its KV.
    pub preempted: u32,
    /// Prompt or recomputed tokens that were computed for it.
    pub prefilled: u64,
}

/// One step as it was planned.
#[derive(Clone, Debug)]
pub struct Row {
    /// When it was planned [ns].
    pub at: u64,
    /// The plan, its ids replaced by workload indices.
    pub plan: StepPlan,
    /// The load right after planning.
    pub load: Load,
}

impl Row {
    /// Workload indices of the prefill chunks, with their token counts.
    pub fn prefills(&self) -> Vec<(u32, u32)> {
        let p = self.plan.entries.iter().filter(|e| !e.decode);
        p.map(|e| (e.id, e.tokens)).collect()
    }

    /// Workload indices of the decodes.
    pub fn decodes(&self) -> Vec<u32> {
        let d = self.plan.entries.iter().filter(|e| e.decode);
        d.map(|e| e.id).collect()
    }
}

/// Everything a test may want to look at.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Steps in order.
    pub rows: Vec<Row>,
    /// Fates by workload index.
    pub fates: Vec<Fate>,
}

/// How strictly to check a run.
#[derive(Clone, Copy, Debug)]
pub struct Checks {
    /// Whether `plan.stats` must equal the sum over the entries (false for engines that pad).
    pub exact_stats: bool,
    /// KV block size when blocks are not shared, to check that the accounting covers what is computed [tokens].
    pub block: Option<u32>,
}

impl Default for Checks {
    fn default() -> Checks {
        Checks {
            exact_stats: true,
            block: None,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Live {
    /// Workload index.
    who: usize,
    alive: bool,
    computed: u32,
    planned: u32,
}

/// Nanoseconds of a step in tests that do not care.
pub const STEP: u64 = 1000;

/// Runs `reqs` (in arrival order) to the end with steps of [`STEP`], checking the contract at every step.
pub fn run(policy: &mut dyn Scheduler, reqs: &[Req], checks: Checks) -> Run {
    run_timed(policy, reqs, checks, |_| STEP)
}

/// As [`run`], with a duration per step [ns].
///
/// # Panics
/// When the policy breaks its contract: more KV than there is, a token before the prefill is complete, work that is
/// never scheduled, resources left at the end, statistics that do not match the entries.
pub fn run_timed(
    policy: &mut dyn Scheduler,
    reqs: &[Req],
    checks: Checks,
    duration: impl Fn(&StepPlan) -> u64,
) -> Run {
    let mut drive = Drive::new(policy, reqs, checks);
    loop {
        drive.arrive();
        drive.leave();
        drive.begin_steps(&duration);
        let Some(at) = drive.next_event() else {
            break;
        };
        drive.now = at;
        drive.end_step();
    }
    drive.close()
}

/// A run under way.
struct Drive<'a> {
    policy: &'a mut dyn Scheduler,
    reqs: &'a [Req],
    checks: Checks,
    out: Run,
    /// What is known of the request in each slot.
    live: Vec<Live>,
    /// Slots of the requests that are in the engine.
    slot_of: Vec<Option<ReqId>>,
    /// Ends of the steps that have begun, and their plans.
    in_flight: VecDeque<(u64, StepPlan)>,
    /// Clients that leave, in order.
    leaving: VecDeque<(u64, usize)>,
    now: u64,
    /// The next request to arrive.
    next: usize,
    last_end: u64,
}

impl<'a> Drive<'a> {
    fn new(policy: &'a mut dyn Scheduler, reqs: &'a [Req], checks: Checks) -> Drive<'a> {
        let left = |(i, r): (usize, &Req)| r.leaves.map(|t| (t.max(r.at), i));
        let mut leaving: Vec<(u64, usize)> = reqs.iter().enumerate().filter_map(left).collect();
        leaving.sort_unstable();
        Drive {
            policy,
            reqs,
            checks,
            out: Run {
                rows: Vec::new(),
                fates: vec![Fate::default(); reqs.len()],
            },
            live: Vec::new(),
            slot_of: vec![None; reqs.len()],
            in_flight: VecDeque::new(),
            leaving: VecDeque::from(leaving),
            now: 0,
            next: 0,
            last_end: 0,
        }
    }

    /// A slot that nobody uses, nor a step under way.
    fn free_slot(&mut self) -> usize {
        let busy = |slot: usize| {
            (self.in_flight.iter()).any(|(_, p)| p.entries.iter().any(|e| e.id as usize == slot))
        };
        let free = (0..self.live.len()).find(|&s| !self.live[s].alive && !busy(s));
        free.unwrap_or_else(|| {
            self.live.push(Live::default());
            self.live.len() - 1
        })
    }

    fn arrive(&mut self) {
        while self.next < self.reqs.len() && self.reqs[self.next].at <= self.now {
            let r = &self.reqs[self.next];
            let slot = self.free_slot();
            let added = self.policy.add(
                slot as ReqId,
                SeqParams {
                    prompt_tokens: r.prompt,
                    max_tokens: r.max,
                    priority: r.priority,
                    arrival: SimTime(r.at),
                    block_hashes: r.hashes.clone(),
                },
            );
            match added {
                Ok(()) => {
                    self.live[slot] = Live {
                        who: self.next,
                        alive: true,
                        ..Live::default()
                    };
                    self.slot_of[self.next] = Some(slot as ReqId);
                }
                Err(reason) => self.out.fates[self.next].rejected = Some(reason),
            }
            self.next += 1;
        }
    }

    fn leave(&mut self) {
        while self.leaving.front().is_some_and(|&(t, _)| t <= self.now) {
            let (_, who) = self.leaving.pop_front().expect("checked");
            if let Some(slot) = self.slot_of[who].take() {
                self.policy.cancel(slot);
                self.live[slot as usize].alive = false;
                self.out.fates[who].cancelled = true;
            }
        }
    }

    fn begin_steps(&mut self, duration: &impl Fn(&StepPlan) -> u64) {
        let mut failed = Vec::new();
        while (self.in_flight.len() as u32) < self.policy.depth() {
            let mut plan = StepPlan::default();
            let planned = self.policy.plan(SimTime(self.now), &mut plan);
            self.policy.take_failed(&mut failed);
            for id in failed.drain(..) {
                let l = &mut self.live[id as usize];
                assert!(l.alive, "a request failed that is not there");
                l.alive = false;
                self.slot_of[l.who] = None;
                self.out.fates[l.who].failed = true;
            }
            if !planned {
                assert!(plan.entries.is_empty(), "entries without a step");
                break;
            }
            assert!(!plan.entries.is_empty(), "an empty step was planned");
            let index = self.out.rows.len();
            let row = check_plan(
                self.policy,
                &plan,
                self.reqs,
                &mut self.live,
                &mut self.out.fates,
                self.checks,
                (index, self.now),
            );
            self.out.rows.push(row);
            self.last_end = self.last_end.max(self.now) + duration(&plan);
            self.in_flight.push_back((self.last_end, plan));
            assert!(self.out.rows.len() < 200_000, "the run does not end");
        }
    }

    /// When something happens next.
    fn next_event(&self) -> Option<u64> {
        let wakes = self.policy.next_wake().map(|t| t.0);
        let events = [
            self.in_flight.front().map(|(t, _)| *t),
            self.reqs.get(self.next).map(|r| r.at),
            self.leaving.front().map(|l| l.0),
            wakes.filter(|&t| t > self.now),
        ];
        events.into_iter().flatten().min()
    }

    fn end_step(&mut self) {
        if self.in_flight.front().is_none_or(|(t, _)| *t > self.now) {
            return;
        }
        let (end, plan) = self.in_flight.pop_front().expect("checked");
        let mut stopped = Vec::new();
        for e in plan.entries.iter().filter(|e| e.samples) {
            let l = &mut self.live[e.id as usize];
            if !l.alive {
                continue;
            }
            let fate = &mut self.out.fates[l.who];
            fate.tokens += 1;
            fate.first_token.get_or_insert(end);
            if fate.tokens == self.reqs[l.who].output {
                fate.finished = Some(end);
                l.alive = false;
                self.slot_of[l.who] = None;
                stopped.push(e.id);
            }
        }
        self.policy.complete(&plan, Given::one_each(&stopped));
    }

    /// Nobody starved, nothing is left.
    fn close(self) -> Run {
        for (i, f) in self.out.fates.iter().enumerate() {
            assert!(
                f.rejected.is_some() || f.failed || f.cancelled || f.finished.is_some(),
                "request {i} starved: {f:?}"
            );
        }
        let load = self.policy.load();
        assert_eq!(
            (load.running, load.waiting, load.kv_used_blocks),
            (0, 0, 0),
            "something is left at the end"
        );
        self.out
    }
}

/// Checks one plan against what the driver knows and turns its slots into workload indices.
fn check_plan(
    policy: &dyn Scheduler,
    plan: &StepPlan,
    reqs: &[Req],
    live: &mut [Live],
    fates: &mut [Fate],
    checks: Checks,
    (index, now): (usize, u64),
) -> Row {
    if !plan.passes.is_empty() {
        let sum = |f: &dyn Fn(&BatchStats) -> u32| plan.passes.iter().map(f).sum::<u32>();
        assert!(plan.passes.len() > 1 && plan.passes.iter().all(|p| !p.is_empty()));
        assert_eq!(sum(&BatchStats::tokens), plan.stats.tokens());
        assert_eq!(sum(&|p| p.sampled_seqs), plan.stats.sampled_seqs);
    }
    if !plan.ranks.is_empty() {
        let mut sum = BatchStats::default();
        for rank in &plan.ranks {
            sum.merge(rank);
        }
        assert_eq!(sum, plan.stats, "step {index}: the ranks' batches");
    }
    for &id in &plan.preempted {
        let l = &mut live[id as usize];
        l.computed = 0;
        fates[l.who].preempted += 1;
    }
    let mut stats = BatchStats::default();
    let mut seen: Vec<ReqId> = plan.entries.iter().map(|e| e.id).collect();
    seen.sort_unstable();
    assert!(seen.windows(2).all(|w| w[0] != w[1]), "a sequence twice");
    for e in &plan.entries {
        let l = &mut live[e.id as usize];
        let fate = &mut fates[l.who];
        assert!(e.tokens > 0, "an entry without tokens: {e:?}");
        // A client may have left while the engine still carries the sequence to the end of a step.
        if l.alive {
            assert!(
                e.context == l.computed || l.computed == 0,
                "step {index}: {e:?} but {} tokens are computed",
                l.computed
            );
            l.computed = e.context + e.tokens;
            let known = reqs[l.who].prompt + l.planned;
            assert!(
                l.computed <= known,
                "step {index}: {e:?} beyond {known} known tokens"
            );
            assert_eq!(
                e.samples,
                l.computed == known,
                "step {index}: {e:?}, {known} tokens known: a token comes exactly when all of them are computed"
            );
        }
        fate.first_step.get_or_insert(index);
        if e.decode {
            assert!(e.tokens == 1 && e.samples, "{e:?}");
            assert!(l.planned > 0, "a decode before the first token: {e:?}");
            stats.add_decode(e.context + 1);
        } else {
            fate.prefilled += u64::from(e.tokens);
            stats.add_prefill(e.tokens, e.context, e.samples);
        }
        l.planned += u32::from(e.samples);
    }
    if checks.exact_stats {
        assert_eq!(plan.stats, stats, "step {index}: statistics of {plan:?}");
    }
    let load = policy.load();
    assert!(
        load.kv_used_blocks <= load.kv_total_blocks,
        "KV beyond capacity: {load:?}"
    );
    assert!(
        plan.blocked == Blocked::Nothing || load.waiting > 0,
        "{:?} keeps nobody out",
        plan.blocked
    );
    if let Some(block) = checks.block {
        let held = live.iter().filter(|l| l.alive);
        let held: u64 = held.map(|l| u64::from(l.computed.div_ceil(block))).sum();
        assert!(
            held <= load.kv_used_blocks,
            "{held} blocks computed, {load:?}"
        );
    }
    let mut plan = plan.clone();
    for e in &mut plan.entries {
        e.id = live[e.id as usize].who as ReqId;
    }
    for id in plan.admitted.iter_mut().chain(&mut plan.preempted) {
        *id = live[*id as usize].who as ReqId;
    }
    Row {
        at: now,
        plan,
        load,
    }
}

/// Random workloads: up to `count` requests with prompts up to `prompt` and outputs up to `output` tokens, `max_tokens`
/// sometimes above the real output, arriving over about `span` steps; now and then a client leaves.
pub fn workload(
    count: usize,
    prompt: u32,
    output: u32,
    span: u64,
) -> impl Strategy<Value = Vec<Req>> {
    let one = (0..span * STEP, 1..=prompt, 1..=output, 0..=output, 0..20u64);
    prop::collection::vec(one, 1..=count).prop_map(move |mut v| {
        v.sort_unstable_by_key(|t| t.0);
        v.into_iter()
            .map(|(at, prompt, out, extra, luck)| Req {
                at,
                prompt,
                output: out,
                max: (out + extra).min(output),
                leaves: (luck == 0).then_some(at + u64::from(extra) * STEP + STEP / 2),
                ..Req::default()
            })
            .collect()
    })
}

/// Asserts that requests are first scheduled in the order of their arrival.
pub fn assert_fifo(run: &Run) {
    let firsts: Vec<usize> = run.fates.iter().filter_map(|f| f.first_step).collect();
    assert!(
        firsts.is_sorted(),
        "not first come, first served: {firsts:?}"
    );
}
