//! SGLang's scheduler (serving-policies 7): prefill before decode, each a step of its own.
//!
//! Sources: sgl-project/sglang 0.5, `python/sglang/srt/managers/scheduler.py` (`get_next_batch_to_run`, `event_loop_overlap`),
//! `schedule_policy.py` (`PrefillAdder`) and `schedule_batch.py` (`retract_decode`). While requests wait and fit, the next step computes prompts and
//! nothing else; otherwise every running request gets a token. The KV cache is counted in tokens (pages of one token), and what a request leaves in
//! it can be found again token by token. With drafts a decode verifies several tokens of each request (7.8). Servers of prompts alone and of decodes
//! alone are `transfer.rs` (6.4).

mod decode;
mod params;
mod prefill;
mod speculation;
mod transfer;
mod under_way;

use std::collections::VecDeque;

use params::CLIP_MAX_NEW_TOKENS;
pub(crate) use params::ENGINE;
pub use params::{
    DisaggregationMode, SchedulePolicy, SglangConfig, SglangFrontEnd, SglangParams, SglangRelease,
    SpeculativeAlgorithm,
};
use under_way::Transfers;

use super::{Blocked, Given, Load, RemoteKv, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::SimTime;
use crate::kv::{KvConfig, KvManager};
use crate::request::{RejectReason, ReqId};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Gone,
    Waiting,
    /// The one request whose prompt is being computed in chunks.
    Chunked,
    /// Its prompt was in the step planned last.
    Prefilled,
    Running,
    /// On a server of prompts: its first token is made, and its KV stays until another server has fetched it.
    Sending,
    /// On a server of decodes: its KV is on the way.
    Coming,
    /// Its KV is there, and it waits to join the batch.
    Arrived,
    /// It was retracted on a server of decodes: its KV is in the host's memory.
    Parked,
}

#[derive(Clone, Debug, Default)]
struct Seq {
    state: State,
    prompt: u32,
    max_new: u32,
    /// Outputs that have ended with their step: what SGLang's books say while the next step is chosen.
    generated: u32,
    /// Outputs of steps in flight.
    pending: u32,
    /// Tokens whose KV exists, those of steps in flight included [tokens].
    done: u32,
    /// It has been scheduled before.
    has_run: bool,
    /// What another server has made of it.
    remote: Option<RemoteKv>,
    /// Names of its first tokens' content, where requests of the run can share any.
    hashes: Vec<u64>,
}

impl Seq {
    /// Tokens to compute before the next output comes: the prompt, and after a retraction the earlier outputs too [tokens].
    fn context(&self) -> u32 {
        self.prompt + self.generated + self.pending
    }

    /// Outputs that admission reckons it to want yet [tokens].
    fn to_come(&self) -> u32 {
        (self.max_new.saturating_sub(self.generated)).min(CLIP_MAX_NEW_TOKENS)
    }

    fn in_batch(&self) -> bool {
        matches!(
            self.state,
            State::Chunked | State::Prefilled | State::Running
        )
    }
}

/// SGLang's scheduler over one engine.
#[derive(Debug)]
pub struct Sglang {
    config: SglangConfig,
    kv: KvManager,
    /// Requests of the run can share content.
    shared: bool,
    seqs: Vec<Seq>,
    waiting: VecDeque<ReqId>,
    /// The running batch.
    running: Vec<ReqId>,
    /// Requests that have ended and that the running batch still counts: it is looked through when a decode step is chosen.
    ended: usize,
    /// Those whose prompts were completed in the step planned last; on a server of prompts, in the steps in flight.
    prefilled: Vec<ReqId>,
    chunked: Option<ReqId>,
    /// Prompts are not looked at until the running batch has shrunk (`batch_is_full`), and why.
    full: Option<Blocked>,
    /// Share of `max_new_tokens` that running requests are taken to want yet [ratio].
    new_token_ratio: f64,
    transfers: Transfers,
    in_flight: u32,
}

impl Sglang {
    /// A scheduler that has started with `config`. `shared_content`: requests carry block hashes that can be equal.
    pub fn new(config: SglangConfig, shared_content: bool) -> Sglang {
        let kv = KvManager::new(KvConfig {
            blocks: config.pages,
            reserved: 0,
            block_size: config.page_size,
            fixed_blocks: 0,
            prefix_caching: config.radix_cache,
            shared_content,
        });
        Sglang {
            new_token_ratio: config.init_new_token_ratio,
            shared: shared_content && config.radix_cache,
            config,
            kv,
            seqs: Vec::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            ended: 0,
            prefilled: Vec::new(),
            chunked: None,
            full: None,
            transfers: Transfers::default(),
            in_flight: 0,
        }
    }

    /// The configuration it started with.
    pub fn config(&self) -> &SglangConfig {
        &self.config
    }

    /// The prompts of the step before join the running batch; what a chunk has computed can be found by others.
    fn merge_prefilled(&mut self) {
        // A server of prompts has no batch that they could join.
        if self.config.disaggregation_mode == DisaggregationMode::Prefill {
            return self.publish_chunk();
        }
        // A step of prompts becomes the running batch where there was none, and what was noted of that one is gone.
        if self.running.is_empty() && self.ended == 0 && !self.prefilled.is_empty() {
            self.full = None;
        }
        for &id in &self.prefilled {
            self.seqs[id as usize].state = State::Running;
        }
        self.running.append(&mut self.prefilled);
        self.publish_chunk();
    }

    fn publish_chunk(&mut self) {
        if let Some(id) = self.chunked {
            self.kv.publish(id, self.seqs[id as usize].done);
        }
    }

    /// Puts `id` into the plan. Its tokens count at once: with the overlap scheduler the next step is chosen before this one ends.
    fn schedule(&mut self, id: ReqId, tokens: u32, decode: bool, plan: &mut StepPlan) {
        let s = &mut self.seqs[id as usize];
        let context = s.done;
        // With drafts it is not known how many outputs the steps in flight make.
        let samples = context + tokens == s.context() || (decode && tokens > 1);
        s.done += tokens;
        let entry = Scheduled {
            id,
            tokens,
            context,
            samples,
            decode,
        };
        s.pending += entry.tokens_at_most();
        plan.entries.push(entry);
        if decode && tokens > 1 {
            plan.stats.add_verification(tokens, context);
        } else if decode {
            plan.stats.add_decode(context + 1);
        } else {
            plan.stats.add_prefill(tokens, context, samples);
        }
    }

    /// Frees what `id` holds and forgets it, but for its place in the lists. What it computed can be found again.
    fn end(&mut self, id: ReqId) {
        let s = &mut self.seqs[id as usize];
        let state = std::mem::take(&mut s.state);
        // The last output's KV is not there, or was computed by a step too many.
        let known = s.done.min(s.prompt + s.generated.saturating_sub(1));
        match state {
            State::Gone => return,
            State::Waiting => return self.waiting.retain(|&w| w != id),
            State::Parked => return self.transfers.parked.retain(|&p| p != id),
            State::Sending => self.transfers.sending -= 1,
            State::Coming => self.transfers.coming -= 1,
            State::Arrived => self.transfers.arrived.retain(|&a| a != id),
            State::Chunked => self.chunked = None,
            State::Prefilled => {
                self.full = None;
                self.prefilled.retain(|&p| p != id);
            }
            // A mixed step is looked through before the next is chosen.
            State::Running if self.config.enable_mixed_chunk => self.full = None,
            State::Running => self.ended += 1,
        }
        self.kv.publish(id, known);
        self.kv.release(id);
    }

    /// Takes those that have ended out of the list of running requests; the batch counts them until the next decode step.
    fn forget_ended(&mut self) {
        let seqs = &self.seqs;
        self.running
            .retain(|&id| seqs[id as usize].state == State::Running);
    }
}

impl Scheduler for Sglang {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        let (prompt, max_new) = (params.prompt_tokens.max(1), params.max_tokens.max(1));
        if prompt.saturating_add(max_new) > self.config.max_req_len {
            return Err(RejectReason::TooLong);
        }
        if (self.config.max_queued_requests).is_some_and(|most| self.waiting.len() >= most as usize)
        {
            return Err(RejectReason::QueueFull);
        }
        let i = id as usize;
        if self.seqs.len() <= i {
            self.seqs.resize_with(i + 1, Seq::default);
        }
        self.seqs[i] = Seq {
            state: State::Waiting,
            prompt,
            max_new,
            hashes: match self.shared && self.config.schedule_policy == SchedulePolicy::Lpm {
                true => params.block_hashes.clone(),
                false => Vec::new(),
            },
            ..Seq::default()
        };
        self.kv.register(id, params.block_hashes);
        self.waiting.push_back(id);
        Ok(())
    }

    fn plan(&mut self, _now: SimTime, plan: &mut StepPlan) -> bool {
        plan.clear();
        if self.in_flight >= self.depth() {
            return false;
        }
        if self.config.disaggregation_mode == DisaggregationMode::Decode {
            return self.plan_received(plan);
        }
        // A second look when the first only found that the running batch has ended.
        for _ in 0..2 {
            self.merge_prefilled();
            if self.plan_prefill(plan) || self.plan_decode(plan) {
                self.in_flight += 1;
                break;
            }
            if self.in_flight == 0 {
                self.new_token_ratio = self.config.init_new_token_ratio;
            }
        }
        if let Some(blocked) = self.full.filter(|_| !self.waiting.is_empty()) {
            plan.blocked = blocked;
        }
        !plan.entries.is_empty()
    }

    fn complete(&mut self, plan: &StepPlan, given: Given<'_>) {
        self.in_flight -= 1;
        for (i, e) in plan.entries.iter().enumerate() {
            let s = &mut self.seqs[e.id as usize];
            // The step that was chosen before the last token was seen has computed one more, which nobody gets.
            if s.state == State::Gone {
                continue;
            }
            // One that was retracted meanwhile keeps the token: SGLang computes it again, at the same price.
            let tokens = given.to(i, e);
            s.generated += tokens;
            s.pending -= e.tokens_at_most();
            // The KV of drafts that were refused is written over.
            s.done -= e.tokens_at_most().saturating_sub(tokens).min(s.done);
            if !e.decode && e.samples && s.in_batch() {
                self.kv.publish(e.id, e.context + e.tokens);
            }
        }
        for &id in given.kept {
            self.keep(id);
        }
        for &id in given.stopped {
            self.end(id);
        }
        if !given.stopped.is_empty() {
            self.forget_ended();
        }
    }

    fn cancel(&mut self, id: ReqId) {
        if self.seqs.get(id as usize).is_some() {
            self.end(id);
            self.forget_ended();
        }
    }

    fn take_failed(&mut self, _out: &mut Vec<ReqId>) {}

    fn load(&self) -> Load {
        let chunked = usize::from(self.chunked.is_some());
        Load {
            running: (self.running.len() + self.prefilled.len() + chunked) as u32,
            waiting: self.waiting.len() as u32 + self.transfers.waiting(),
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

    fn expect_kv(&mut self, id: ReqId, remote: RemoteKv) {
        if let Some(s) = self.seqs.get_mut(id as usize) {
            s.remote = Some(remote);
        }
    }

    fn received(&mut self, id: ReqId) {
        self.end_reception(id);
    }

    fn sent(&mut self, id: ReqId) {
        self.end(id);
        self.full = None;
    }

    fn takes_part_in_transfers(&self) -> bool {
        self.config.disaggregation_mode != DisaggregationMode::Null
    }

    fn acceptance(&self) -> &[f64] {
        &self.config.accept_rates
    }

    fn depth(&self) -> u32 {
        if self.config.overlap { 2 } else { 1 }
    }
}

#[cfg(test)]
mod apart_tests;
#[cfg(test)]
mod tests;
