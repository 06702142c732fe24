//! The reference path: any scheduling policy, one step after the other, every sequence of every step looked at.

use std::collections::VecDeque;

use super::requests::{Request, Requests, Slot, Stage};
use super::surroundings::{Out, Surroundings, cut};
use crate::kernel::rng;
use crate::kernel::time::{SimDuration, SimTime};
use crate::policy::{Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::record::StepRow;
use crate::request::{RejectReason, ReqId};

/// What the driver knows of a request under its local id.
#[derive(Clone, Copy, Debug)]
struct Local {
    slot: Slot,
    live: bool,
}

struct InFlight {
    plan: StepPlan,
    row: StepRow,
}

/// A scheduler with a predicted step time and a virtual clock.
pub struct SteppedReplica {
    around: Surroundings,
    scheduler: Box<dyn Scheduler>,
    depth: usize,
    in_flight: VecDeque<InFlight>,
    spare: Vec<StepPlan>,
    /// When the last planned step enters and leaves the pipeline.
    last_start: SimTime,
    last_end: SimTime,
    /// Something has changed since the scheduler last had nothing to run.
    ask: bool,
    /// The engine waits for the oldest step in flight; it sees nothing else until that ends (serving-policies 1.4).
    awaits: bool,
    wake: SimTime,
    locals: Vec<Local>,
    free_ids: Vec<ReqId>,
    /// Ids that steps in flight may still name, with the number of steps that must complete first.
    resting: VecDeque<(u64, ReqId)>,
    planned: u64,
    completed: u64,
    /// KV of its requests has gone to other replicas, or come from them.
    has_transferred: bool,
    /// How likely drafts are accepted ([`Scheduler::acceptance`]); empty: there are none.
    acceptance: Vec<f64>,
    /// Tokens that each entry of a step got, where drafts are verified.
    given: Vec<u32>,
    stopped: Vec<ReqId>,
    /// Those that go on elsewhere.
    kept: Vec<ReqId>,
    failed: Vec<ReqId>,
}

impl SteppedReplica {
    /// A replica that has nothing to do.
    pub fn new(around: Surroundings, scheduler: Box<dyn Scheduler>) -> SteppedReplica {
        SteppedReplica {
            around,
            depth: scheduler.depth().max(1) as usize,
            acceptance: scheduler.acceptance().to_vec(),
            scheduler,
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            last_start: SimTime::ZERO,
            last_end: SimTime::ZERO,
            ask: false,
            awaits: false,
            wake: SimTime::NEVER,
            locals: Vec::new(),
            free_ids: Vec::new(),
            resting: VecDeque::new(),
            planned: 0,
            completed: 0,
            has_transferred: false,
            given: Vec::new(),
            stopped: Vec::new(),
            kept: Vec::new(),
            failed: Vec::new(),
        }
    }

    pub(super) fn enter(
        &mut self,
        now: SimTime,
        slot: Slot,
        requests: &mut Requests,
    ) -> Result<(), RejectReason> {
        while let Some(&(step, id)) = self.resting.front() {
            if step > self.completed {
                break;
            }
            self.resting.pop_front();
            self.free_ids.push(id);
        }
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.locals.push(Local { slot, live: false });
            self.locals.len() as ReqId - 1
        });
        let r = requests.get_mut(slot);
        let params = SeqParams {
            prompt_tokens: r.prompt_tokens,
            max_tokens: r.max_tokens,
            priority: r.priority,
            arrival: now,
            block_hashes: std::mem::take(&mut r.block_hashes),
        };
        if let Err(reason) = self.scheduler.add(id, params) {
            self.free_ids.push(id);
            return Err(reason);
        }
        if let Some(remote) = r.remote {
            self.has_transferred = true;
            self.scheduler.expect_kv(id, remote);
        }
        r.stage = Stage::Engine(id);
        self.locals[id as usize] = Local { slot, live: true };
        self.ask = true;
        Ok(())
    }

    pub(super) fn cancel(&mut self, local: u32, _requests: &mut Requests) {
        self.scheduler.cancel(local);
        self.retire(local);
        self.ask = true;
    }

    /// The KV of `local`, which has been handed over, has been fetched or is not wanted any more.
    pub(super) fn sent(&mut self, local: u32) {
        self.scheduler.sent(local);
        self.resting.push_back((self.planned, local));
        self.ask = true;
    }

    /// The KV that `local` asked for is there.
    pub(super) fn received(&mut self, local: u32) {
        self.scheduler.received(local);
        self.ask = true;
    }

    /// The KV that `local` waits for will not come; false: it cannot go on without.
    pub(super) fn kv_lost(&mut self, local: u32) -> bool {
        self.ask = true;
        self.scheduler.kv_lost(local)
    }

    fn retire(&mut self, id: ReqId) {
        self.locals[id as usize].live = false;
        self.resting.push_back((self.planned, id));
    }

    pub(super) fn next(&self) -> SimTime {
        let end = self.in_flight.front().map_or(SimTime::NEVER, |s| s.row.end);
        if self.awaits {
            return end;
        }
        let start = if self.ask { SimTime::ZERO } else { self.wake };
        end.min(start)
    }

    pub(super) fn complete(&mut self, now: SimTime, out: &mut Out) {
        while self.in_flight.front().is_some_and(|s| s.row.end <= now) {
            let Some(step) = self.in_flight.pop_front() else {
                break;
            };
            self.completed += 1;
            self.ask = true;
            self.awaits = false;
            out.recorder.step(&step.row);
            self.hand_out_tokens(now, &step.plan, out);
            let given = Given {
                tokens: &self.given,
                kept: &self.kept,
                stopped: &self.stopped,
            };
            self.scheduler.complete(&step.plan, given);
            while let Some(id) = self.stopped.pop() {
                self.retire(id);
            }
            // Their ids rest when their KV has gone.
            while let Some(id) = self.kept.pop() {
                self.locals[id as usize].live = false;
                self.has_transferred = true;
            }
            self.spare.push(step.plan);
        }
    }

    fn hand_out_tokens(&mut self, now: SimTime, plan: &StepPlan, out: &mut Out) {
        let at_client = now + self.around.output_delay;
        let (mut gap, mut equal) = (SimDuration::ZERO, 0);
        // Tokens that come together with the one before them.
        let mut together = 0;
        self.given.clear();
        let speculates = !self.acceptance.is_empty();
        for e in &plan.entries {
            let local = self.locals[e.id as usize];
            let gets = match e.samples && local.live {
                true => self.accepted(e, out.requests.get(local.slot)),
                false => u32::from(e.samples),
            };
            if speculates {
                self.given.push(gets);
            }
            if !e.samples || !local.live {
                continue;
            }
            let r = out.requests.get_mut(local.slot);
            together += gets - 1;
            if r.produced == 0 {
                r.first_token = at_client;
            } else {
                let g = now - r.last_token;
                if g != gap && equal > 0 {
                    out.recorder.gaps(at_client, gap, equal);
                    equal = 0;
                }
                gap = g;
                equal += 1;
            }
            r.produced += gets;
            r.last_token = now;
            if r.produced == r.output_tokens && r.hands_over {
                self.kept.push(e.id);
                out.kv.prefilled.push(local.slot);
            } else if r.produced == r.output_tokens {
                self.stopped.push(e.id);
                out.done.push((local.slot, true));
            }
        }
        if equal > 0 {
            out.recorder.gaps(at_client, gap, equal);
        }
        if together > 0 {
            out.recorder.gaps(at_client, SimDuration::ZERO, together);
        }
    }

    /// Tokens that entry `e` of a step gives to `r`: its next one, and those drafts that are accepted.
    #[inline]
    fn accepted(&self, e: &Scheduled, r: &Request) -> u32 {
        if !e.decode || e.tokens < 2 {
            return 1;
        }
        let drafts = e.tokens.min(r.output_tokens - r.produced).saturating_sub(1);
        let last = self.acceptance.last().copied().unwrap_or(0.0);
        let is_accepted = |draft: &u32| {
            let place = u64::from(r.produced) << 8 | u64::from(*draft);
            let p = self.acceptance.get(*draft as usize).copied();
            rng::draw(self.around.seed, u64::from(r.id), place) < p.unwrap_or(last)
        };
        1 + (0..drafts).take_while(is_accepted).count() as u32
    }

    pub(super) fn start(&mut self, now: SimTime, out: &mut Out) {
        if !self.awaits {
            self.plan_steps(now, out);
            self.awaits = !self.in_flight.is_empty();
        }
    }

    fn plan_steps(&mut self, now: SimTime, out: &mut Out) {
        self.ask |= self.wake <= now;
        while self.ask && self.in_flight.len() < self.depth {
            let mut plan = self.spare.pop().unwrap_or_default();
            let runs = self.scheduler.plan(now, &mut plan);
            self.note_plan(now, &plan, out);
            if !runs {
                self.spare.push(plan);
                self.ask = false;
                // A wake-up that is not in the future would be asked for again and again.
                self.wake = self
                    .scheduler
                    .next_wake()
                    .filter(|&t| t > now)
                    .unwrap_or(SimTime::NEVER);
                return;
            }
            self.wake = SimTime::NEVER;
            self.launch(now, plan);
        }
    }

    /// Notes first schedulings, preemptions and drops.
    fn note_plan(&mut self, now: SimTime, plan: &StepPlan, out: &mut Out) {
        if !plan.admitted.is_empty() {
            for e in &plan.entries {
                let r = out.requests.get_mut(self.locals[e.id as usize].slot);
                if self.locals[e.id as usize].live && r.first_scheduled == SimTime::NEVER {
                    r.cached_tokens = e.context.min(r.prompt_tokens);
                    r.first_scheduled = now;
                }
            }
            for &id in &plan.admitted {
                let r = out.requests.get_mut(self.locals[id as usize].slot);
                r.first_scheduled = r.first_scheduled.min(now);
                if std::mem::take(&mut r.relays) {
                    // The first token came with the KV and is told as the request joins the batch.
                    r.first_token = now + self.around.output_delay;
                    r.last_token = now;
                }
            }
        }
        for m in plan.moves.iter().filter(|m| m.inwards) {
            out.kv
                .wanted
                .push((self.locals[m.id as usize].slot, m.tokens));
        }
        for &id in &plan.preempted {
            out.requests
                .get_mut(self.locals[id as usize].slot)
                .preemptions += 1;
        }
        self.scheduler.take_failed(&mut self.failed);
        while let Some(id) = self.failed.pop() {
            out.done.push((self.locals[id as usize].slot, false));
            self.retire(id);
        }
    }

    fn launch(&mut self, now: SimTime, plan: StepPlan) {
        let step = &mut self.around.step;
        let cost = if !plan.ranks.is_empty() {
            step.of_ranks(now, &plan.ranks)
        } else if plan.passes.is_empty() {
            step.of(now, std::slice::from_ref(&plan.stats))
        } else {
            step.of(now, &plan.passes)
        };
        let latency = SimDuration::from_secs(cost.latency);
        let mut end = now + latency;
        // A step is planned as soon as there is a place in flight (serving-policies 1.4), queues behind the
        // one before it, and leaves the pipeline an `interval` after that at the earliest.
        if !self.in_flight.is_empty() {
            end = end.max(self.last_end + SimDuration::from_secs(cost.interval));
        }
        // Planned at `now`; it runs from when the device gets to it, never before its predecessor.
        let start = SimTime(end.0 - latency.0).max(self.last_start);
        (self.last_start, self.last_end) = (start, end);
        let load = self.scheduler.load();
        self.planned += 1;
        self.in_flight.push_back(InFlight {
            row: StepRow {
                replica: self.around.replica,
                start,
                end,
                stats: plan.stats,
                parts: cost.parts,
                running: load.running,
                waiting: load.waiting,
                kv_used_blocks: load.kv_used_blocks,
                blocked: plan.blocked,
            },
            plan,
        });
    }

    pub(super) fn close(&mut self, now: SimTime, out: &mut Out) {
        for step in &self.in_flight {
            out.recorder.step(&cut(step.row, now));
        }
    }

    pub(super) fn load(&self) -> Load {
        self.scheduler.load()
    }

    pub(super) fn check(&self) {
        let load = self.scheduler.load();
        let live = self.locals.iter().filter(|l| l.live).count();
        // A server may hold what its client has left until the step that computes it ends (TGI).
        let held = (load.running + load.waiting) as usize;
        assert!(
            (live..=live + self.resting.len()).contains(&held),
            "the scheduler holds {held} requests, its driver {live}: {load:?}"
        );
        // Blocks may all be held for KV that is to go or to come.
        let waits = self.scheduler.takes_part_in_transfers() && self.has_transferred;
        assert!(
            waits || live == 0 || !self.in_flight.is_empty() || self.wake != SimTime::NEVER,
            "idle with {live} requests and no wake-up: {load:?}"
        );
    }
}
