//! Servers of prompts and of decodes (serving-policies 6.4): `python/sglang/srt/disaggregation/{prefill,decode}.py`.
//!
//! A server of prompts never decodes; a request keeps its seat and its KV until a server of decodes has fetched it. A server of decodes sets the KV of a prompt
//! aside before it comes, and reserves room for some decodes of each request; what has come joins the batch before the next step.

use super::params::{CLIP_MAX_NEW_TOKENS, DisaggregationMode};
use super::{ReqId, Sglang, State, StepPlan};
use crate::policy::{Blocked, KvMove};

/// Tokens that are kept free for the decodes of each request (`--num-reserved-decode-tokens`) [tokens].
const RESERVED_DECODE_TOKENS: u64 = 512;
/// A server of decodes with this many seats or fewer has twice as many more for requests whose KV is on the way (`DecodeReqToTokenPool`).
const FEW_SEATS: u64 = 32;

impl Sglang {
    /// Requests that hold a seat of a server of prompts beside those of its batch.
    pub(super) fn seats_held(&self) -> usize {
        match self.config.disaggregation_mode {
            DisaggregationMode::Prefill => self.transfers.sending + self.prefilled.len(),
            _ => 0,
        }
    }

    /// `id` has its first token and goes on elsewhere.
    pub(super) fn keep(&mut self, id: ReqId) {
        let s = &mut self.seqs[id as usize];
        if s.state == State::Gone {
            return;
        }
        s.state = State::Sending;
        self.prefilled.retain(|&p| p != id);
        self.transfers.sending += 1;
    }

    /// The KV of `id` is there.
    pub(super) fn end_reception(&mut self, id: ReqId) {
        let s = &mut self.seqs[id as usize];
        if s.state == State::Coming {
            s.state = State::Arrived;
            self.transfers.coming -= 1;
            self.transfers.arrived.push_back(id);
        }
    }

    /// Plans a step of a server of decodes.
    pub(super) fn plan_received(&mut self, plan: &mut StepPlan) -> bool {
        self.resume();
        if self.transfers.parked.is_empty() {
            self.set_aside(plan);
        }
        self.join(plan);
        let runs = self.plan_decode(plan);
        if self.waiting.is_empty() {
            plan.blocked = Blocked::Nothing;
        }
        self.in_flight += u32::from(runs);
        runs
    }

    /// Requests that may hold KV here at once.
    fn seats(&self) -> u64 {
        let seats = u64::from(self.config.max_running_requests);
        match seats <= FEW_SEATS {
            true => 3 * seats,
            false => seats,
        }
    }

    /// Those that hold KV here.
    fn held(&self) -> u64 {
        (self.running.len() + self.transfers.coming + self.transfers.arrived.len()) as u64
    }

    /// Tokens of the running requests, all of which a retraction would give back [tokens].
    fn retractable(&self) -> u64 {
        let seqs = self.running.iter().map(|&id| &self.seqs[id as usize]);
        seqs.map(|s| u64::from(s.prompt + s.generated)).sum()
    }

    /// Tokens that a request may take up in all, as far as it is reckoned with [tokens].
    fn in_all(&self, id: ReqId) -> u64 {
        let s = &self.seqs[id as usize];
        u64::from(s.prompt) + u64::from(s.max_new.min(CLIP_MAX_NEW_TOKENS))
    }

    /// Tokens that are neither held nor reserved for decodes (`_allocatable_tokens`) [tokens].
    fn allocatable(&self) -> u64 {
        // Any one request can finish when all others are retracted.
        let largest = self.running.iter().map(|&id| self.in_all(id)).max();
        let one = largest.unwrap_or(0).saturating_sub(self.retractable());
        let reserved = (RESERVED_DECODE_TOKENS * self.held()).max(one);
        let free = self.kv.free() * u64::from(self.config.page_size);
        free.saturating_sub(reserved)
    }

    /// Those that were retracted come back, the first first, while they have room (`resume_retracted_reqs`).
    fn resume(&mut self) {
        while let Some(&id) = self.transfers.parked.front() {
            let done = self.seqs[id as usize].done;
            let need = u64::from(done) + RESERVED_DECODE_TOKENS;
            // Alone it needs no reserve.
            let fits = self.held() == 0 || need <= self.allocatable();
            if !fits || self.held() >= self.seats() || !self.kv.admit(id, done, 0) {
                return;
            }
            self.transfers.parked.pop_front();
            self.seqs[id as usize].state = State::Arrived;
            self.transfers.arrived.push_back(id);
        }
    }

    /// Sets KV aside for prompts in the order of the queue, as far as seats and room go (`pop_preallocated`).
    fn set_aside(&mut self, plan: &mut StepPlan) {
        let mut allocatable = self.allocatable();
        let retractable = self.retractable();
        while let Some(&id) = self.waiting.front() {
            let Some(remote) = self.seqs[id as usize].remote else {
                return;
            };
            if self.held() >= self.seats() {
                plan.blocked = Blocked::MaxSeqs;
                return;
            }
            let need = u64::from(remote.tokens) + RESERVED_DECODE_TOKENS;
            let alone = self.in_all(id).saturating_sub(retractable);
            // An empty server takes what fits it at all.
            let is_first = self.held() == 0;
            let fits = need.max(alone) <= allocatable || is_first;
            if !fits || !self.kv.admit(id, remote.tokens, 0) {
                plan.blocked = Blocked::KvFull;
                return;
            }
            allocatable = allocatable.saturating_sub(need);
            self.waiting.pop_front();
            plan.moves.push(KvMove {
                id,
                tokens: remote.tokens,
                inwards: true,
            });
            let s = &mut self.seqs[id as usize];
            s.state = State::Coming;
            s.generated = remote.outputs;
            s.done = remote.tokens;
            self.transfers.coming += 1;
        }
    }

    /// What has come joins the batch (`get_new_prebuilt_batch`).
    fn join(&mut self, plan: &mut StepPlan) {
        while (self.running.len() as u64) < u64::from(self.config.max_running_requests)
            && let Some(id) = self.transfers.arrived.pop_front()
        {
            let s = &mut self.seqs[id as usize];
            s.state = State::Running;
            self.running.push(id);
            if !std::mem::replace(&mut s.has_run, true) {
                plan.admitted.push(id);
            }
        }
    }
}
