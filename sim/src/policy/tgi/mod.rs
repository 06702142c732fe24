//! Text Generation Inference: the router's queue and batching loop, versions 2 and 3 (serving-policies 2).
//!
//! Admission reserves the worst case (prompt + max_new_tokens), so nothing is ever preempted. Without chunked prefill
//! the new requests of a batch are prefilled in a step of their own while the running ones stand still; the ratio of
//! waiting to running requests and a counter of decode steps decide how often that may happen.
//! `2.x` in this file are the sections of the serving-policies page in `docs/`.

mod params;

use std::collections::VecDeque;

use hwmodels::BatchStats;

pub use params::{TgiConfig, TgiParams, TgiVersion};

use super::{Blocked, Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::SimTime;
use crate::kv::{KvConfig, KvManager};
use crate::request::{RejectReason, ReqId};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Gone,
    Waiting,
    Running,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seq {
    state: State,
    prompt: u32,
    max_new: u32,
    /// Tokens whose KV exists [tokens].
    done: u32,
    generated: u32,
    /// Tokens of its next forward [tokens].
    next: u32,
    /// Named by the step in flight.
    in_step: bool,
    /// Its client left while a step held it.
    left: bool,
}

impl Seq {
    fn tokens(&self) -> u32 {
        self.prompt.saturating_add(self.max_new)
    }
}

/// What the loop of 2.4 is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing in flight.
    None,
    /// The prefill that starts a batch.
    First,
    /// A prefill that joins the running batch.
    Join,
    Decode,
}

#[derive(Debug)]
enum Memory {
    /// Rows of a padded batch, counted in tokens.
    Padded,
    /// Rows of a compiled length [tokens], whatever is in them.
    Static(u32),
    Paged(KvManager),
}

/// TGI's router over one server.
#[derive(Debug)]
pub struct Tgi {
    config: TgiConfig,
    memory: Memory,
    seqs: Vec<Seq>,
    waiting: VecDeque<ReqId>,
    /// Oldest first.
    running: Vec<ReqId>,
    /// The requests that `next_batch` chose, with the tokens of their first forward.
    batch: Vec<(ReqId, u32)>,
    failed: Vec<ReqId>,
    /// What ended the last `next_batch`.
    blocked: Blocked,
    permits: u32,
    waiting_tokens: u32,
    /// A prefill has just joined: the next step is a decode, whoever waits.
    decode_due: bool,
    step: Step,
}

impl Tgi {
    /// A server that has started with `config`. `shared_content`: requests carry block hashes that can be equal.
    pub fn new(config: TgiConfig, shared_content: bool) -> Tgi {
        let memory = if config.paged {
            let reserved = u64::from(config.version == TgiVersion::V3);
            Memory::Paged(KvManager::new(KvConfig {
                blocks: config.max_batch_total_tokens / u64::from(config.block_size) + reserved,
                reserved,
                block_size: config.block_size,
                fixed_blocks: 0,
                prefix_caching: config.prefix_caching,
                shared_content,
            }))
        } else {
            Memory::Padded
        };
        Tgi {
            config,
            memory,
            seqs: Vec::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            batch: Vec::new(),
            failed: Vec::new(),
            blocked: Blocked::Nothing,
            permits: 0,
            waiting_tokens: 0,
            decode_due: false,
            step: Step::None,
        }
    }

    /// The padded router in front of a server with compiled rows of `row_tokens` tokens (2.5).
    pub(super) fn with_static_rows(config: TgiConfig, row_tokens: u32) -> Tgi {
        let mut tgi = Tgi::new(config, false);
        tgi.memory = Memory::Static(row_tokens);
        tgi
    }

    /// The configuration it started with.
    pub fn config(&self) -> &TgiConfig {
        &self.config
    }

    fn round_up(&self, tokens: u32) -> u64 {
        let b = u64::from(self.config.block_size);
        u64::from(tokens).div_ceil(b) * b
    }

    /// Longest row of a padded batch, its newest token included [tokens].
    fn padded_length(&self) -> u64 {
        let rows = self.running.iter().map(|&id| &self.seqs[id as usize]);
        rows.map(|s| u64::from(s.prompt) + u64::from(s.generated))
            .max()
            .unwrap_or(0)
    }

    /// Tokens held by the running batch (2.4 item 1).
    fn held_tokens(&self) -> u64 {
        match &self.memory {
            Memory::Paged(kv) => kv.used() * u64::from(self.config.block_size),
            Memory::Static(row) => self.running.len() as u64 * u64::from(*row),
            Memory::Padded => {
                let rows = self.running.iter().map(|&id| &self.seqs[id as usize]);
                let to_come: u64 = rows
                    .map(|s| u64::from(s.max_new.saturating_sub(s.generated)))
                    .sum();
                self.running.len() as u64 * self.padded_length() + to_come
            }
        }
    }

    /// Takes requests from the queue into `self.batch` (2.3). False: nothing taken.
    fn next_batch(
        &mut self,
        min_size: Option<usize>,
        max_size: Option<usize>,
        prefill_budget: u32,
        token_budget: u64,
    ) -> bool {
        self.batch.clear();
        self.blocked = Blocked::Nothing;
        if max_size == Some(0) {
            self.blocked = Blocked::MaxSeqs;
            return false;
        }
        if self.waiting.is_empty() || min_size.is_some_and(|m| self.waiting.len() < m) {
            return false;
        }
        let prefill_budget = u64::from(prefill_budget);
        let (mut longest, mut prefill, mut decode) = (0u64, 0u64, 0u64);
        while let Some(&id) = self.waiting.front() {
            let seq = self.seqs[id as usize];
            let accepted = if self.config.version == TgiVersion::V3 {
                self.take_v3(id, prefill_budget.saturating_sub(prefill))
            } else {
                let (p, d) = if self.config.paged {
                    (
                        prefill + self.round_up(seq.prompt),
                        decode + self.round_up(seq.max_new),
                    )
                } else {
                    longest = longest.max(u64::from(seq.prompt));
                    (
                        (self.batch.len() as u64 + 1) * longest,
                        decode + u64::from(seq.max_new),
                    )
                };
                (prefill, decode) = (p, d);
                if p > prefill_budget {
                    self.blocked = Blocked::TokenBudget;
                    None
                } else if p + d > token_budget || !self.reserve(id) {
                    self.blocked = Blocked::KvFull;
                    None
                } else {
                    Some(seq.prompt)
                }
            };
            let Some(chunk) = accepted else {
                if self.batch.is_empty() && self.running.is_empty() {
                    // With everything free it does not fit: it would block the queue for ever (2.3).
                    self.waiting.pop_front();
                    self.drop_seq(id);
                    self.failed.push(id);
                    (longest, prefill, decode) = (0, 0, 0);
                    continue;
                }
                break;
            };
            self.waiting.pop_front();
            self.batch.push((id, chunk));
            if self.config.version == TgiVersion::V3 {
                prefill += u64::from(chunk);
                let s = &self.seqs[id as usize];
                if chunk < s.prompt - s.done {
                    self.blocked = Blocked::TokenBudget;
                    break;
                }
            }
            if Some(self.batch.len()) == max_size {
                self.blocked = Blocked::MaxSeqs;
                break;
            }
        }
        if min_size.is_some_and(|m| self.batch.len() < m) {
            while let Some((id, _)) = self.batch.pop() {
                if let Memory::Paged(kv) = &mut self.memory {
                    kv.release(id);
                }
                self.seqs[id as usize].done = 0;
                self.waiting.push_front(id);
            }
        }
        !self.batch.is_empty()
    }

    fn blocked_if_waiting(&self) -> Blocked {
        if self.waiting.is_empty() {
            Blocked::Nothing
        } else {
            self.blocked
        }
    }

    /// Reserves blocks for the worst case of a v2 request: its last token is never written (2.3).
    fn reserve(&mut self, id: ReqId) -> bool {
        match &mut self.memory {
            Memory::Padded | Memory::Static(_) => true,
            Memory::Paged(kv) => kv.admit(id, self.seqs[id as usize].tokens() - 1, 0),
        }
    }

    /// Blocks and a first chunk for a v3 request (2.3), or nothing.
    fn take_v3(&mut self, id: ReqId, budget: u64) -> Option<u32> {
        let Memory::Paged(kv) = &mut self.memory else {
            return None;
        };
        let seq = &mut self.seqs[id as usize];
        // TGI finds a prompt whole and then computes its last token again, where vLLM stops a block earlier.
        let hits = kv.hits(id, seq.prompt + 1);
        if !kv.admit(id, seq.tokens() - 1, hits) {
            self.blocked = Blocked::KvFull;
            return None;
        }
        let prefix = (hits * self.config.block_size).min(seq.prompt - 1);
        let rest = seq.prompt - prefix;
        let chunk = if u64::from(rest) <= budget {
            rest
        } else if self.config.prefill_chunking && budget > 0 {
            budget as u32
        } else {
            kv.release(id);
            self.blocked = Blocked::TokenBudget;
            return None;
        };
        seq.done = prefix;
        Some(chunk)
    }

    /// Frees what `id` holds and forgets it. A v3 prompt that was computed stays findable.
    fn drop_seq(&mut self, id: ReqId) {
        let seq = &mut self.seqs[id as usize];
        if seq.state == State::Gone {
            return;
        }
        if let Memory::Paged(kv) = &mut self.memory {
            kv.publish(id, seq.done.min(seq.prompt));
            kv.release(id);
        }
        seq.state = State::Gone;
        if !seq.left {
            self.permits -= 1;
        }
    }

    /// Adds `id` with `tokens` new tokens to the plan.
    fn schedule(&mut self, id: ReqId, tokens: u32, plan: &mut StepPlan) {
        let s = &mut self.seqs[id as usize];
        s.in_step = true;
        let decode = s.generated > 0;
        let samples = s.done + tokens >= s.prompt;
        plan.entries.push(Scheduled {
            id,
            tokens,
            context: s.done,
            samples,
            decode,
        });
        if decode {
            plan.stats.add_decode(s.done + 1);
        } else {
            plan.stats.add_prefill(tokens, s.done, samples);
        }
    }

    /// The new requests' forward, alone or with the running ones.
    fn plan_prefill(&mut self, with_running: bool, plan: &mut StepPlan) {
        if with_running {
            self.plan_decode(plan);
        }
        let batch = std::mem::take(&mut self.batch);
        for &(id, chunk) in &batch {
            self.seqs[id as usize].state = State::Running;
            plan.cached_tokens += u64::from(self.seqs[id as usize].done);
            plan.admitted.push(id);
            self.schedule(id, chunk, plan);
        }
        if !self.config.paged {
            let longest = batch.iter().map(|&(id, _)| self.seqs[id as usize].prompt);
            let longest = longest.max().unwrap_or(0);
            plan.stats = BatchStats::default();
            for _ in &batch {
                plan.stats.add_prefill(longest, 0, true);
            }
        }
        self.running.extend(batch.iter().map(|&(id, _)| id));
        self.batch = batch;
    }

    fn plan_decode(&mut self, plan: &mut StepPlan) {
        for i in 0..self.running.len() {
            let id = self.running[i];
            let tokens = self.seqs[id as usize].next;
            self.schedule(id, tokens, plan);
        }
        if !self.config.paged {
            let length = u32::try_from(self.padded_length()).unwrap_or(u32::MAX);
            plan.stats = BatchStats::default();
            for _ in 0..self.running.len() {
                plan.stats.add_decode(length);
            }
        }
    }

    /// Tokens each running request computes next: one, or a chunk of its prompt. Older prompts take what the others
    /// leave of the prefill budget (2.4).
    fn share_prefill_budget(&mut self) {
        let others = (self.running.len() as u32).saturating_sub(1);
        let mut budget = self.config.max_batch_prefill_tokens.saturating_sub(others);
        for &id in &self.running {
            let s = &mut self.seqs[id as usize];
            let rest = s.prompt.saturating_sub(s.done);
            s.next = rest.min(budget).max(1);
            if rest > 0 {
                budget = budget.saturating_sub(s.next);
            }
        }
    }
}

impl Scheduler for Tgi {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        if self.permits >= self.config.max_concurrent_requests {
            return Err(RejectReason::Overloaded);
        }
        let (prompt, max_new) = (params.prompt_tokens.max(1), params.max_tokens.max(1));
        if prompt > self.config.max_input_tokens
            || prompt.saturating_add(max_new) > self.config.max_total_tokens
        {
            return Err(RejectReason::TooLong);
        }
        let i = id as usize;
        if self.seqs.len() <= i {
            self.seqs.resize(i + 1, Seq::default());
        }
        self.seqs[i] = Seq {
            state: State::Waiting,
            prompt,
            max_new,
            ..Seq::default()
        };
        if let Memory::Paged(kv) = &mut self.memory {
            kv.register(id, params.block_hashes);
        }
        self.permits += 1;
        self.waiting.push_back(id);
        Ok(())
    }

    fn plan(&mut self, _now: SimTime, plan: &mut StepPlan) -> bool {
        plan.clear();
        if self.step != Step::None {
            return false;
        }
        let c = &self.config;
        let (prefill, total) = (c.max_batch_prefill_tokens, c.max_batch_total_tokens);
        let cap = c.max_batch_size.map(|m| m as usize);
        if self.running.is_empty() {
            if !self.next_batch(None, cap, prefill, total) {
                return false;
            }
            self.plan_prefill(false, plan);
            plan.blocked = self.blocked_if_waiting();
            self.step = Step::First;
            return true;
        }
        if !self.decode_due {
            let budget = total.saturating_sub(self.held_tokens());
            let joins = if c.prefill_chunking {
                let rows = self.running.iter().map(|&id| self.seqs[id as usize].next);
                let prefill = prefill.saturating_sub(rows.sum());
                self.next_batch(None, None, prefill, budget)
            } else {
                let running = self.running.len();
                let min = (self.waiting_tokens < c.max_waiting_tokens)
                    .then(|| (running as f32 * c.waiting_served_ratio).floor() as usize);
                self.next_batch(min, cap.map(|m| m.saturating_sub(running)), prefill, budget)
            };
            if joins {
                self.plan_prefill(self.config.prefill_chunking, plan);
                plan.blocked = self.blocked_if_waiting();
                self.step = Step::Join;
                return true;
            }
            plan.blocked = self.blocked_if_waiting();
        }
        self.plan_decode(plan);
        self.step = Step::Decode;
        true
    }

    fn complete(&mut self, plan: &StepPlan, given: Given<'_>) {
        for (i, e) in plan.entries.iter().enumerate() {
            let s = &mut self.seqs[e.id as usize];
            if s.state != State::Running {
                continue;
            }
            s.in_step = false;
            s.done = e.context + e.tokens;
            s.generated += given.to(i, e);
        }
        self.share_prefill_budget();
        for &id in given.stopped {
            self.drop_seq(id);
        }
        for e in &plan.entries {
            if self.seqs[e.id as usize].left {
                self.drop_seq(e.id);
            }
        }
        let seqs = &self.seqs;
        self.running
            .retain(|&id| seqs[id as usize].state == State::Running);
        match self.step {
            Step::First | Step::Join => self.waiting_tokens = 1,
            Step::Decode | Step::None => self.waiting_tokens += 1,
        }
        self.decode_due = self.step == Step::Join;
        self.step = Step::None;
    }

    fn cancel(&mut self, id: ReqId) {
        let Some(seq) = self.seqs.get_mut(id as usize) else {
            return;
        };
        match seq.state {
            State::Gone => {}
            State::Waiting => {
                self.waiting.retain(|&w| w != id);
                self.drop_seq(id);
            }
            // The server notices when it cannot send the next token (2.4 item 5).
            State::Running if seq.in_step => {
                if !seq.left {
                    seq.left = true;
                    self.permits -= 1;
                }
            }
            State::Running => {
                self.drop_seq(id);
                self.running.retain(|&r| r != id);
            }
        }
    }

    fn take_failed(&mut self, out: &mut Vec<ReqId>) {
        out.append(&mut self.failed);
    }

    fn load(&self) -> Load {
        let (used, total) = match &self.memory {
            Memory::Paged(kv) => (kv.used(), kv.usable()),
            Memory::Padded | Memory::Static(_) => {
                let rows = self.running.iter().map(|&id| &self.seqs[id as usize]);
                let reserved = rows.map(|s| u64::from(s.tokens())).sum();
                (reserved, self.config.max_batch_total_tokens)
            }
        };
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            kv_used_blocks: used,
            kv_total_blocks: total,
        }
    }

    fn kv_manager(&self) -> Option<&KvManager> {
        match &self.memory {
            Memory::Paged(kv) => Some(kv),
            Memory::Padded | Memory::Static(_) => None,
        }
    }

    fn kv_manager_mut(&mut self) -> Option<&mut KvManager> {
        match &mut self.memory {
            Memory::Paged(kv) => Some(kv),
            Memory::Padded | Memory::Static(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
