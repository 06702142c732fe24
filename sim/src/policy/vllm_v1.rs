//! vLLM V1: one token budget per step, running requests first, preemption by recompute (serving-policies 1.1 to 1.6).
//!
//! There is no prefill phase and no decode phase: each step moves a request's computed tokens toward the tokens it has.
//! Phase A serves `running` in order of admission; phase B admits from `waiting`, unless phase A had to preempt.

mod host;
mod offload;
mod params;
mod remote;
mod transfer;

use std::collections::{BTreeSet, VecDeque};

use super::{Blocked, Given, Load, RemoteKv, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::SimTime;
use crate::kv::KvManager;
use crate::request::{RejectReason, ReqId};
use host::HostTier;
use remote::Remote;

pub use host::HostKv;
pub use params::{SchedulingPolicy, VllmV1Params, VllmVersion};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not here: stopped, cancelled or never added.
    #[default]
    Gone,
    Waiting,
    Running,
    /// Stopped here; its blocks wait for another replica to fetch them.
    Sending,
}

#[derive(Clone, Debug, Default)]
struct Seq {
    state: State,
    /// Marks this use of the id; entries of `waiting` with another ticket are stale.
    ticket: u64,
    prompt: u32,
    max_tokens: u32,
    priority: i32,
    arrival: SimTime,
    /// Tokens generated and known.
    outputs: u32,
    /// Tokens being sampled by steps in flight.
    pending: u32,
    /// Tokens whose KV exists or is being computed.
    computed: u32,
    /// Scheduled before, i.e. a preempted request when it waits.
    started: bool,
    remote: Remote,
    /// Content of its blocks as told, and how many full ones the host got: with [`VllmV1Params::host_kv`] alone.
    hashes: Vec<u64>,
    offloaded: u32,
}

impl Seq {
    fn num_tokens(&self) -> u32 {
        self.prompt + self.outputs
    }

    fn urgency(&self) -> (i32, SimTime, u64) {
        (self.priority, self.arrival, self.ticket)
    }
}

/// Waiting requests, the next one first.
#[derive(Debug)]
enum Waiting {
    Fcfs(VecDeque<(ReqId, u64)>),
    Priority(BTreeSet<(i32, SimTime, u64, ReqId)>),
}

impl Waiting {
    fn push_back(&mut self, id: ReqId, seq: &Seq) {
        match self {
            Waiting::Fcfs(q) => q.push_back((id, seq.ticket)),
            Waiting::Priority(q) => {
                q.insert((seq.priority, seq.arrival, seq.ticket, id));
            }
        }
    }

    fn push_front(&mut self, id: ReqId, seq: &Seq) {
        match self {
            Waiting::Fcfs(q) => q.push_front((id, seq.ticket)),
            Waiting::Priority(_) => self.push_back(id, seq),
        }
    }

    fn pop(&mut self) -> Option<(ReqId, u64)> {
        match self {
            Waiting::Fcfs(q) => q.pop_front(),
            Waiting::Priority(q) => q.pop_first().map(|(_, _, ticket, id)| (id, ticket)),
        }
    }
}

/// The scheduler of one vLLM V1 engine.
#[derive(Debug)]
pub struct VllmV1 {
    params: VllmV1Params,
    budget: u32,
    kv: KvManager,
    seqs: Vec<Seq>,
    /// In order of admission.
    running: Vec<ReqId>,
    waiting: Waiting,
    /// Waiting requests that are not stale, and the prompt tokens of those that never ran.
    waiting_count: u32,
    waiting_tokens: u64,
    tickets: u64,
    /// Requests that phase B looked at and left for the next step, in order.
    set_aside: Vec<ReqId>,
    /// Waiting requests that hold blocks for KV from another replica, in order (WAITING_FOR_REMOTE_KVS).
    receiving: Vec<ReqId>,
    host: Option<HostTier>,
}

impl VllmV1 {
    /// An empty engine.
    pub fn new(params: VllmV1Params) -> VllmV1 {
        VllmV1 {
            budget: params.budget(),
            kv: KvManager::new(params.kv()),
            seqs: Vec::new(),
            running: Vec::new(),
            waiting: match params.scheduling_policy {
                SchedulingPolicy::Fcfs => Waiting::Fcfs(VecDeque::new()),
                SchedulingPolicy::Priority => Waiting::Priority(BTreeSet::new()),
            },
            waiting_count: 0,
            waiting_tokens: 0,
            tickets: 0,
            set_aside: Vec::new(),
            receiving: Vec::new(),
            host: params.host_kv.map(HostTier::new),
            params,
        }
    }

    /// The KV manager, for checks.
    pub fn kv(&self) -> &KvManager {
        &self.kv
    }

    /// Tokens that `id` still lacks, those in flight taken as known under asynchronous scheduling (1.2 A 1).
    fn missing(&self, id: ReqId) -> u32 {
        let s = &self.seqs[id as usize];
        let placeholders = if self.params.async_scheduling {
            // 1.4: a request sure to reach max_tokens is not given another step.
            if s.outputs + s.pending >= s.max_tokens {
                return 0;
            }
            s.pending
        } else {
            0
        };
        (s.num_tokens() + placeholders).saturating_sub(s.computed)
    }

    /// 1.2 A 2 and B 3: the share of a step that one long request may take.
    fn limit_long(&self, n: u32) -> u32 {
        let threshold = self.params.long_prefill_token_threshold;
        let alone = self.params.version >= VllmVersion::V0_33
            && self.running.len() as u32 + self.waiting_count <= 1;
        if threshold > 0 && n > threshold && !alone {
            threshold
        } else {
            n
        }
    }

    fn preempt(&mut self, index: usize, plan: &mut StepPlan) -> ReqId {
        let id = self.running.remove(index);
        self.kv.release(id);
        let seq = &mut self.seqs[id as usize];
        seq.computed = 0;
        seq.state = State::Waiting;
        self.waiting_count += 1;
        self.waiting.push_front(id, &self.seqs[id as usize]);
        plan.preempted.push(id);
        id
    }

    /// Phase A: the running requests, in order. True if nobody was preempted.
    fn serve_running(&mut self, budget: &mut u32, plan: &mut StepPlan) -> bool {
        let preempted = plan.preempted.len();
        let mut i = 0;
        'requests: while i < self.running.len() && *budget > 0 {
            let id = self.running[i];
            let computed = self.seqs[id as usize].computed;
            let n = self.limit_long(self.missing(id)).min(*budget).min(
                self.params
                    .max_model_len
                    .saturating_sub(1)
                    .saturating_sub(computed),
            );
            if n == 0 {
                i += 1;
                continue;
            }
            while !self.kv.grow(id, computed + n) {
                let victim = match self.params.scheduling_policy {
                    SchedulingPolicy::Fcfs => self.running.len() - 1,
                    SchedulingPolicy::Priority => self.least_urgent(),
                };
                let gone = self.preempt(victim, plan);
                if let Some(at) = plan.entries.iter().position(|e| e.id == gone) {
                    *budget += plan.entries.remove(at).tokens;
                }
                if gone == id {
                    if self.params.scheduling_policy == SchedulingPolicy::Priority
                        && self.params.version >= VllmVersion::V0_33
                    {
                        continue 'requests;
                    }
                    break 'requests;
                }
                if victim < i {
                    i -= 1;
                }
            }
            self.schedule(id, n, plan);
            *budget -= n;
            i += 1;
        }
        plan.preempted.len() == preempted
    }

    fn least_urgent(&self) -> usize {
        let urgency = |i: &usize| self.seqs[self.running[*i] as usize].urgency();
        (0..self.running.len()).max_by_key(urgency).unwrap_or(0)
    }

    /// Phase B: admissions.
    fn admit_waiting(&mut self, now: SimTime, budget: &mut u32, plan: &mut StepPlan) {
        self.admit_received(budget, plan);
        while *budget > 0 && (self.running.len() as u32) < self.params.max_num_seqs {
            let Some((id, ticket)) = self.waiting.pop() else {
                break;
            };
            let seq = &self.seqs[id as usize];
            if seq.ticket != ticket || seq.state != State::Waiting {
                continue;
            }
            if let Remote::Wanted(tokens) = seq.remote {
                if self.receive(id, tokens, plan) {
                    continue;
                }
                self.set_aside.push(id);
                break;
            }
            match self.load_from_host(id, now, plan) {
                Some(true) => continue,
                Some(false) => {
                    self.set_aside.push(id);
                    break;
                }
                None => {}
            }
            if !self.try_admit(id, budget, plan) {
                let refused_for_budget = !self.params.enable_chunked_prefill
                    && self.params.version < VllmVersion::V0_33
                    && self.uncached(id).1 > *budget;
                self.set_aside.push(id);
                if !refused_for_budget {
                    break;
                }
            }
        }
        while let Some(id) = self.set_aside.pop() {
            self.waiting.push_front(id, &self.seqs[id as usize]);
        }
    }

    /// Cached blocks, and tokens to compute after them within the long-prefill limit.
    fn uncached(&self, id: ReqId) -> (u32, u32) {
        let tokens = self.seqs[id as usize].num_tokens();
        let hits = self.kv.hits(id, tokens);
        let n = tokens - hits * self.params.block_size;
        (hits, self.limit_long(n))
    }

    fn try_admit(&mut self, id: ReqId, budget: &mut u32, plan: &mut StepPlan) -> bool {
        if self.seqs[id as usize].pending > 0 {
            // Preempted while a step of it was in flight: its token first.
            return false;
        }
        let (hits, mut n) = self.uncached(id);
        if n > *budget {
            if !self.params.enable_chunked_prefill {
                return false;
            }
            n = *budget;
        }
        let cached = hits * self.params.block_size;
        let tokens = self.seqs[id as usize].num_tokens();
        let room_for = if self.params.reserves_full_prompt() {
            tokens
        } else {
            cached + n
        };
        let keep = if self.running.is_empty() {
            0
        } else {
            self.params.watermark_blocks()
        };
        if !self.kv.can_admit(id, room_for, hits, keep) || !self.kv.admit(id, cached + n, hits) {
            plan.blocked = Blocked::KvFull;
            return false;
        }
        self.running.push(id);
        self.waiting_count -= 1;
        let seq = &mut self.seqs[id as usize];
        seq.state = State::Running;
        seq.computed = cached;
        if !seq.started {
            seq.started = true;
            self.waiting_tokens -= u64::from(seq.prompt);
            plan.admitted.push(id);
            plan.cached_tokens += u64::from(cached);
        }
        self.schedule(id, n, plan);
        *budget -= n;
        true
    }

    fn schedule(&mut self, id: ReqId, n: u32, plan: &mut StepPlan) {
        let seq = &self.seqs[id as usize];
        let after = seq.computed + n;
        let known = after.min(seq.num_tokens());
        self.kv.publish(id, known);
        plan.entries.push(Scheduled {
            id,
            tokens: n,
            context: seq.computed,
            samples: after >= seq.num_tokens() + seq.pending,
            decode: n == 1 && seq.computed >= seq.prompt && after >= seq.num_tokens(),
        });
        self.offload(id, known);
    }

    fn forget(&mut self, id: ReqId) {
        self.kv.release(id);
        self.seqs[id as usize].state = State::Gone;
    }
}

impl Scheduler for VllmV1 {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        self.params
            .accepts(params.prompt_tokens, params.max_tokens)?;
        let over = |limit: Option<u64>, value: u64| limit.is_some_and(|l| value > l);
        if over(
            self.params.max_num_queued_reqs.map(u64::from),
            u64::from(self.waiting_count) + 1,
        ) || over(
            self.params.max_num_queued_tokens,
            self.waiting_tokens + u64::from(params.prompt_tokens),
        ) {
            return Err(RejectReason::QueueFull);
        }
        let i = id as usize;
        if self.seqs.len() <= i {
            self.seqs.resize_with(i + 1, Seq::default);
        }
        self.tickets += 1;
        self.seqs[i] = Seq {
            state: State::Waiting,
            ticket: self.tickets,
            prompt: params.prompt_tokens,
            max_tokens: params.max_tokens,
            priority: params.priority,
            arrival: params.arrival,
            hashes: match self.host {
                Some(_) => params.block_hashes.clone(),
                None => Vec::new(),
            },
            ..Seq::default()
        };
        self.kv.register(id, params.block_hashes);
        self.waiting.push_back(id, &self.seqs[i]);
        self.waiting_count += 1;
        self.waiting_tokens += u64::from(params.prompt_tokens);
        Ok(())
    }

    fn plan(&mut self, now: SimTime, plan: &mut StepPlan) -> bool {
        plan.clear();
        self.end_loads(now);
        loop {
            let (mut budget, preempted) = (self.budget, plan.preempted.len());
            if self.serve_running(&mut budget, plan) {
                self.admit_waiting(now, &mut budget, plan);
            } else {
                plan.blocked = Blocked::KvFull;
            }
            // By priority the first running request may have preempted itself: then nothing is scheduled, and vLLM's
            // engine loop asks again at once.
            if !plan.entries.is_empty() || plan.preempted.len() == preempted {
                break;
            }
        }
        if plan.blocked == Blocked::Nothing && self.waiting_count > self.receiving.len() as u32 {
            plan.blocked = if self.running.len() as u32 >= self.params.max_num_seqs {
                Blocked::MaxSeqs
            } else {
                Blocked::TokenBudget
            };
        }
        // 1.2: computed tokens advance as soon as the step is scheduled.
        for e in &plan.entries {
            let seq = &mut self.seqs[e.id as usize];
            seq.computed += e.tokens;
            seq.pending += u32::from(e.samples);
            if e.decode {
                plan.stats.add_decode(e.context + 1);
            } else {
                plan.stats.add_prefill(e.tokens, e.context, e.samples);
            }
        }
        !plan.entries.is_empty()
    }

    fn complete(&mut self, plan: &StepPlan, given: Given<'_>) {
        for (i, e) in plan.entries.iter().enumerate().filter(|(_, e)| e.samples) {
            let seq = &mut self.seqs[e.id as usize];
            if seq.state == State::Gone {
                continue;
            }
            seq.outputs += given.to(i, e);
            seq.pending -= 1;
            if self.params.async_scheduling && seq.state == State::Running {
                let known = seq.computed.min(seq.num_tokens());
                self.kv.publish(e.id, known);
            }
        }
        if given.stopped.is_empty() && given.kept.is_empty() {
            return;
        }
        self.keep_kv(given.kept);
        for &id in given.stopped {
            if self.seqs[id as usize].state == State::Waiting {
                // Preempted while its last step was in flight.
                self.waiting_count -= 1;
            }
            self.forget(id);
        }
        let seqs = &self.seqs;
        self.running
            .retain(|&id| seqs[id as usize].state == State::Running);
    }

    fn cancel(&mut self, id: ReqId) {
        let Some(seq) = self.seqs.get(id as usize) else {
            return;
        };
        match seq.state {
            State::Gone => return,
            State::Sending => {}
            State::Waiting => {
                self.waiting_count -= 1;
                self.receiving.retain(|&r| r != id);
                if !seq.started {
                    self.waiting_tokens -= u64::from(seq.prompt);
                }
                if let Waiting::Priority(q) = &mut self.waiting {
                    q.remove(&(seq.priority, seq.arrival, seq.ticket, id));
                }
            }
            State::Running => self.running.retain(|&r| r != id),
        }
        self.forget(id);
    }

    fn expect_kv(&mut self, id: ReqId, remote: RemoteKv) {
        self.wait_for_kv(id, remote);
    }

    fn received(&mut self, id: ReqId) {
        self.end_reception(id);
    }

    fn kv_lost(&mut self, id: ReqId) -> bool {
        self.compute_again(id);
        true
    }

    fn sent(&mut self, id: ReqId) {
        if self.seqs[id as usize].state == State::Sending {
            self.forget(id);
        }
    }

    fn takes_part_in_transfers(&self) -> bool {
        true
    }

    fn take_failed(&mut self, _out: &mut Vec<ReqId>) {
        // What can never run is refused by `add`.
    }

    fn next_wake(&self) -> Option<SimTime> {
        self.host.as_ref().and_then(HostTier::next_end)
    }

    fn load(&self) -> Load {
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting_count,
            kv_used_blocks: self.kv.used(),
            kv_total_blocks: self.kv.usable(),
        }
    }

    fn kv_manager(&self) -> Option<&KvManager> {
        Some(&self.kv)
    }

    fn kv_manager_mut(&mut self) -> Option<&mut KvManager> {
        Some(&mut self.kv)
    }

    fn depth(&self) -> u32 {
        self.params.depth()
    }
}
