//! vLLM's V0 scheduler (0.8.5 and before), prefill-first and chunked (serving-policies 1.8).
//!
//! Prefill-first: a step is either a batch of whole prompts or a decode of everything that runs. Chunked: decodes
//! first, then running prefills, then new ones, within one token budget. Blocks are taken as sequences grow; when they
//! run out the last of the running list loses its blocks and is recomputed.

mod params;

use std::collections::VecDeque;

pub use params::{PreemptionMode, VllmV0Config, VllmV0Params};

use super::{Blocked, Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::{SimDuration, SimTime};
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
    arrival: SimTime,
    prompt: u32,
    generated: u32,
    /// Tokens whose KV exists [tokens].
    done: u32,
    /// It has been scheduled before.
    has_run: bool,
}

impl Seq {
    /// Tokens known, the newest output included.
    fn len(&self) -> u32 {
        self.prompt + self.generated
    }

    fn is_prefill(&self) -> bool {
        self.done + 1 < self.len() || self.generated == 0
    }
}

/// vLLM V0's scheduler over one engine.
#[derive(Debug)]
pub struct VllmV0 {
    config: VllmV0Config,
    kv: KvManager,
    seqs: Vec<Seq>,
    waiting: VecDeque<ReqId>,
    running: Vec<ReqId>,
    failed: Vec<ReqId>,
    /// When the scheduler last ran, whether it chose prefills then, and how long they took.
    prev_time: SimTime,
    prev_prompt: bool,
    last_prompt_latency: SimDuration,
    in_flight: bool,
}

/// Token and seat budget of one step.
struct Budget {
    tokens: u32,
    seqs: usize,
    /// Most tokens that one prefill may take.
    prefill: u32,
    long_prefills: u32,
}

impl VllmV0 {
    /// A scheduler that has started with `config`. `shared_content`: requests carry block hashes that can be equal.
    pub fn new(config: VllmV0Config, shared_content: bool) -> VllmV0 {
        let kv = KvManager::new(KvConfig {
            blocks: config.blocks,
            reserved: 0,
            block_size: config.block_size,
            fixed_blocks: 0,
            prefix_caching: config.enable_prefix_caching,
            shared_content,
        });
        VllmV0 {
            config,
            kv,
            seqs: Vec::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            failed: Vec::new(),
            prev_time: SimTime::ZERO,
            prev_prompt: false,
            last_prompt_latency: SimDuration::ZERO,
            in_flight: false,
        }
    }

    /// The configuration it started with.
    pub fn config(&self) -> &VllmV0Config {
        &self.config
    }

    /// Whether new prompts have waited long enough (the delay factor's gate).
    fn passed_delay(&self, now: SimTime, anyone_running: bool) -> bool {
        if self.config.scheduler_delay_factor <= 0.0 || !anyone_running {
            return true;
        }
        let arrivals = self
            .waiting
            .iter()
            .map(|&id| self.seqs[id as usize].arrival);
        let Some(earliest) = arrivals.min() else {
            return true;
        };
        let needed = self.config.scheduler_delay_factor * self.last_prompt_latency.as_secs();
        now.since(earliest).as_secs() > needed
    }

    /// Tokens of the next chunk when `rest` are missing (chunked), rounded to blocks for the prefix cache.
    fn chunk(&self, rest: u32, budget: &Budget) -> u32 {
        let mut room = budget.tokens.min(budget.prefill);
        if self.config.enable_prefix_caching && rest > room {
            room = room / self.config.block_size * self.config.block_size;
        }
        rest.min(room)
    }

    fn is_long(&self, tokens: u32) -> bool {
        tokens > self.config.long_prefill_token_threshold
    }

    /// The budget of a step; with several partial prefills each gets an equal share of the tokens.
    fn budget(&self) -> Budget {
        let c = &self.config;
        let mut budget = Budget {
            tokens: c.max_num_batched_tokens,
            seqs: 0,
            prefill: c.max_num_batched_tokens,
            long_prefills: 0,
        };
        if c.max_num_partial_prefills > 1 {
            let mut prefills = 0;
            for s in self.running.iter().map(|&id| &self.seqs[id as usize]) {
                if s.is_prefill() {
                    prefills += 1;
                    budget.long_prefills += u32::from(self.is_long(s.len() - s.done));
                }
            }
            let mut long = budget.long_prefills;
            for s in self.waiting.iter().map(|&id| &self.seqs[id as usize]) {
                if prefills >= c.max_num_partial_prefills {
                    break;
                }
                if self.is_long(s.len()) {
                    if long >= c.max_long_partial_prefills {
                        continue;
                    }
                    long += 1;
                }
                prefills += 1;
            }
            budget.prefill =
                c.max_num_batched_tokens / prefills.clamp(1, c.max_num_partial_prefills);
        }
        budget
    }

    /// Running sequences in list order, preempting from the end of the list when blocks run out.
    fn schedule_running(&mut self, budget: &mut Budget, plan: &mut StepPlan) {
        let chunked = self.config.enable_chunked_prefill;
        let queue = std::mem::take(&mut self.running);
        let (mut i, mut end) = (0, queue.len());
        let (mut decodes, mut finishing, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
        while i < end {
            let id = queue[i];
            let s = self.seqs[id as usize];
            let rest = s.len() - s.done;
            let prefill = s.is_prefill();
            let tokens = if !chunked {
                rest
            } else if prefill {
                self.chunk(rest, budget)
            } else {
                rest.min(budget.tokens)
            };
            if tokens == 0 {
                break;
            }
            i += 1;
            // A prompt got all its blocks on admission; a decode needs one when it crosses a boundary.
            let mut fits = prefill || self.kv.grow(id, s.done + tokens);
            while !fits && i < end {
                end -= 1;
                self.preempt(queue[end], plan);
                fits = self.kv.grow(id, s.done + tokens);
            }
            if !fits {
                self.preempt(id, plan);
                break;
            }
            self.schedule(id, tokens, !prefill, plan);
            budget.tokens = budget.tokens.saturating_sub(tokens);
            if !prefill {
                decodes.push(id);
            } else if tokens == rest {
                finishing.push(id);
            } else {
                unfinished.push(id);
            }
        }
        // What the budget did not reach stays in front.
        self.running.extend_from_slice(&queue[i..end]);
        self.running.append(&mut decodes);
        self.running.append(&mut finishing);
        self.running.append(&mut unfinished);
        budget.seqs = self.running.len();
    }

    /// New prompts in queue order (1.8); returns whether any was taken.
    fn schedule_prefills(
        &mut self,
        now: SimTime,
        budget: &mut Budget,
        plan: &mut StepPlan,
    ) -> bool {
        let c = &self.config;
        let chunked = c.enable_chunked_prefill;
        let limit = if chunked {
            c.max_model_len
        } else {
            c.max_model_len.min(c.max_num_batched_tokens)
        };
        let (block, watermark, seats) = (c.block_size, c.watermark_blocks, c.max_num_seqs as usize);
        // In chunked mode the running list has been emptied by now, and the gate with it.
        let anyone = if chunked {
            false
        } else {
            !self.running.is_empty()
        };
        let mut taken = Vec::new();
        let mut aside = Vec::new();
        while self.passed_delay(now, anyone)
            && let Some(&id) = self.waiting.front()
        {
            let s = self.seqs[id as usize];
            let length = s.len();
            if self.config.max_num_partial_prefills > 1
                && self.is_long(length)
                && budget.long_prefills >= self.config.max_long_partial_prefills
            {
                self.waiting.pop_front();
                aside.push(id);
                continue;
            }
            let need = self.kv.blocks_for(length);
            if length > limit || self.kv.usable().saturating_sub(need) < watermark {
                self.waiting.pop_front();
                self.seqs[id as usize].state = State::Gone;
                self.failed.push(id);
                continue;
            }
            if self.kv.free() < need + watermark {
                plan.blocked = Blocked::KvFull;
                break;
            }
            let hits = self.kv.hits(id, length);
            let rest = length - hits * block;
            let tokens = if chunked {
                self.chunk(rest, budget)
            } else {
                rest
            };
            if tokens == 0 || tokens > budget.tokens || budget.seqs >= seats {
                plan.blocked = if budget.seqs >= seats {
                    Blocked::MaxSeqs
                } else {
                    Blocked::TokenBudget
                };
                break;
            }
            if !self.kv.admit(id, length, hits) {
                plan.blocked = Blocked::KvFull;
                break;
            }
            self.waiting.pop_front();
            budget.tokens -= tokens;
            budget.seqs += 1;
            budget.long_prefills += u32::from(self.is_long(length));
            let s = &mut self.seqs[id as usize];
            s.done = hits * block;
            s.state = State::Running;
            if !s.has_run {
                s.has_run = true;
                plan.cached_tokens += u64::from(s.done);
                plan.admitted.push(id);
            }
            self.schedule(id, tokens, false, plan);
            taken.push(id);
        }
        for id in aside.into_iter().rev() {
            self.waiting.push_front(id);
        }
        self.prev_prompt = !taken.is_empty();
        self.running.append(&mut taken);
        self.prev_prompt
    }

    /// Takes all blocks from `id`; it goes back to the queue at the end of the step.
    fn preempt(&mut self, id: ReqId, plan: &mut StepPlan) {
        self.kv.release(id);
        let s = &mut self.seqs[id as usize];
        s.done = 0;
        s.state = State::Waiting;
        plan.preempted.push(id);
    }

    fn schedule(&mut self, id: ReqId, tokens: u32, decode: bool, plan: &mut StepPlan) {
        let s = &self.seqs[id as usize];
        let samples = s.done + tokens == s.len();
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

    fn drop_seq(&mut self, id: ReqId) {
        let Some(seq) = self.seqs.get_mut(id as usize) else {
            return;
        };
        match std::mem::take(&mut seq.state) {
            State::Gone => {}
            State::Waiting => self.waiting.retain(|&w| w != id),
            State::Running => {
                self.kv.release(id);
                self.running.retain(|&r| r != id);
            }
        }
    }
}

impl Scheduler for VllmV0 {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        let prompt = params.prompt_tokens.max(1);
        if prompt.saturating_add(params.max_tokens.max(1)) > self.config.max_model_len {
            return Err(RejectReason::TooLong);
        }
        let i = id as usize;
        if self.seqs.len() <= i {
            self.seqs.resize(i + 1, Seq::default());
        }
        self.seqs[i] = Seq {
            state: State::Waiting,
            arrival: params.arrival,
            prompt,
            ..Seq::default()
        };
        self.kv.register(id, params.block_hashes);
        self.waiting.push_back(id);
        Ok(())
    }

    fn plan(&mut self, now: SimTime, plan: &mut StepPlan) -> bool {
        plan.clear();
        if self.in_flight {
            return false;
        }
        if self.prev_prompt {
            self.last_prompt_latency = now.since(self.prev_time);
        }
        self.prev_time = now;
        self.prev_prompt = false;
        let mut budget = self.budget();
        if self.config.enable_chunked_prefill {
            self.schedule_running(&mut budget, plan);
            self.schedule_prefills(now, &mut budget, plan);
        } else {
            budget.seqs = self.running.len();
            if !self.schedule_prefills(now, &mut budget, plan) {
                self.schedule_running(&mut budget, plan);
            }
        }
        // The last one preempted is the earliest arrival: it ends up in front.
        for &id in &plan.preempted {
            plan.blocked = Blocked::KvFull;
            self.waiting.push_front(id);
        }
        self.in_flight = !plan.entries.is_empty();
        self.in_flight
    }

    fn complete(&mut self, plan: &StepPlan, given: Given<'_>) {
        self.in_flight = false;
        for (i, e) in plan.entries.iter().enumerate() {
            let s = &mut self.seqs[e.id as usize];
            if s.state != State::Running {
                continue;
            }
            s.done = e.context + e.tokens;
            s.generated += given.to(i, e);
            self.kv.publish(e.id, s.done);
        }
        for &id in given.stopped {
            self.drop_seq(id);
        }
    }

    fn cancel(&mut self, id: ReqId) {
        self.drop_seq(id);
    }

    fn take_failed(&mut self, out: &mut Vec<ReqId>) {
        out.append(&mut self.failed);
    }

    fn load(&self) -> Load {
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
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
}

#[cfg(test)]
mod tests;
