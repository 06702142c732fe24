//! Which prompts the next step computes: `get_new_batch_prefill` and its `PrefillAdder` (serving-policies 7.2, 7.3).

use std::cmp::Reverse;
use std::collections::HashSet;

use super::{ReqId, SchedulePolicy, Sglang, State, StepPlan};
use crate::policy::Blocked;

/// Waiting requests beyond which `lpm` is not worth its time (`SchedulePolicy._determine_active_policy`).
const LPM_QUEUE: usize = 128;
/// Prompts that find at most this much in the cache are held against each other (`IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD`,
/// `IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD`) [tokens].
const IN_BATCH_PREFIX: u32 = 32;

/// What a prefill step may still take.
struct Adder {
    /// Tokens before `max_prefill_tokens` [tokens].
    input: u64,
    /// Tokens before `chunked_prefill_size` [tokens].
    chunk: Option<u64>,
    /// Tokens that running and admitted requests are reckoned to want yet [tokens].
    reserved: f64,
    /// Tokens for the decodes of the same step [tokens].
    decodes: u64,
    taken: usize,
}

/// Why a request was not added.
enum Stop {
    /// The KV cache is spoken for (`AddReqResult.NO_TOKEN`).
    NoToken,
    /// The step is (`AddReqResult.OTHER`).
    Other,
}

impl Sglang {
    /// Plans a step of prompts; false: there is none to compute, or no room.
    pub(super) fn plan_prefill(&mut self, plan: &mut StepPlan) -> bool {
        if (self.full.is_some() || self.waiting.is_empty()) && self.chunked.is_none() {
            return false;
        }
        let batch = self.running.len() + self.ended + self.seats_held();
        let seats = (self.config.max_running_requests as usize).saturating_sub(batch);
        if seats == 0 && self.chunked.is_none() {
            self.full = Some(Blocked::MaxSeqs);
            return false;
        }
        self.sort_waiting();
        let mixed = match self.config.enable_mixed_chunk {
            true => batch as u64,
            false => 0,
        };
        let mut adder = Adder {
            input: u64::from(self.config.max_prefill_tokens).saturating_sub(mixed),
            chunk: (self.config.chunked_prefill_size).map(|c| u64::from(c).saturating_sub(mixed)),
            reserved: self.reserved() + mixed as f64,
            decodes: mixed,
            taken: 0,
        };
        if let Some(id) = self.chunked {
            self.add_chunked(id, &mut adder, plan);
        }
        let mut at = 0;
        while at < self.waiting.len() {
            if adder.taken >= seats {
                self.full = Some(Blocked::MaxSeqs);
                break;
            }
            let most = self.config.prefill_max_requests;
            if most.is_some_and(|most| adder.taken >= most as usize) {
                plan.blocked = Blocked::TokenBudget;
                break;
            }
            let id = self.waiting[at];
            // Those that were added leave the queue when the step is put together.
            at += 1;
            match self.add_one(id, &mut adder, plan) {
                Ok(()) => {}
                Err((added, stop)) => {
                    at -= usize::from(!added);
                    match stop {
                        Stop::NoToken => self.full = Some(Blocked::KvFull),
                        Stop::Other => plan.blocked = Blocked::TokenBudget,
                    }
                    break;
                }
            }
        }
        self.waiting.drain(..at);
        if self.waiting.is_empty() {
            plan.blocked = Blocked::Nothing;
        }
        if adder.taken > 0 && self.config.enable_mixed_chunk {
            self.decode_beside(plan);
        }
        adder.taken > 0
    }

    /// Tokens that the running batch is reckoned to want yet [tokens].
    fn reserved(&self) -> f64 {
        let to_come = self.running.iter().map(|&id| &self.seqs[id as usize]);
        let to_come: u64 = to_come.map(|s| u64::from(s.to_come())).sum();
        to_come as f64 * self.new_token_ratio
    }

    /// Tokens of the KV cache that nobody holds [tokens].
    fn free_tokens(&self) -> u64 {
        self.kv.free() * u64::from(self.config.page_size)
    }

    /// The next chunk of the one prompt that is split: it comes before all others.
    fn add_chunked(&mut self, id: ReqId, adder: &mut Adder, plan: &mut StepPlan) {
        let page = self.config.page_size;
        let s = &self.seqs[id as usize];
        let rest = u64::from(s.context() - s.done);
        let chunk = adder.chunk.unwrap_or(rest);
        let free = self.free_tokens().saturating_sub(adder.decodes);
        let left = free as f64 - adder.reserved;
        let budget = if left >= 1.0 {
            chunk.min(left as u64)
        } else {
            chunk
        };
        // What its last page has left is there already.
        let room = (free + u64::from(s.done.next_multiple_of(page) - s.done)).min(budget);
        let tokens = match rest <= room {
            true => rest,
            false => room / u64::from(page) * u64::from(page),
        };
        let (tokens, last) = (tokens as u32, tokens == rest);
        let grown = self.kv.grow(id, s.done + tokens);
        debug_assert!(grown, "no room for the chunk of {id}");
        if tokens == 0 || !grown {
            return;
        }
        if last {
            adder.reserved += f64::from(s.to_come());
            self.chunked = None;
            self.seqs[id as usize].state = State::Prefilled;
            self.prefilled.push(id);
        }
        self.take(id, tokens, adder, plan);
    }

    /// Adds a waiting request, all of it or its first chunk. The error says whether it was added, and that nothing more can be.
    fn add_one(
        &mut self,
        id: ReqId,
        adder: &mut Adder,
        plan: &mut StepPlan,
    ) -> Result<(), (bool, Stop)> {
        let page = self.config.page_size;
        let s = &self.seqs[id as usize];
        let context = s.context();
        let hits = self.kv.hits(id, context);
        let rest = u64::from(context - hits * page);
        let to_come = s.to_come();
        // What it takes and is reckoned to want must be less than what nobody holds or is reckoned to want, its own hits not counted.
        let keep = (adder.reserved / f64::from(page)).floor() as u64 + 1;
        let all = context.saturating_add(to_come);
        if !self.kv.can_admit(id, all, hits, keep) {
            return Err((false, Stop::NoToken));
        }
        if rest >= adder.input && adder.taken > 0 {
            return Err((false, Stop::Other));
        }
        let whole = adder.chunk.is_none_or(|chunk| rest <= chunk);
        let tokens = match (whole, adder.chunk) {
            (false, Some(chunk)) => chunk / u64::from(page) * u64::from(page),
            _ => rest,
        };
        if tokens == 0 {
            return Err((false, Stop::Other));
        }
        let tokens = tokens as u32;
        let admitted = self.kv.admit(id, hits * page + tokens, hits);
        debug_assert!(admitted, "no room for {id}");
        if !admitted {
            return Err((false, Stop::NoToken));
        }
        let s = &mut self.seqs[id as usize];
        s.done = hits * page;
        if !s.has_run {
            s.has_run = true;
            plan.cached_tokens += u64::from(s.done);
            plan.admitted.push(id);
        }
        if whole {
            s.state = State::Prefilled;
            self.prefilled.push(id);
            adder.reserved += f64::from(to_come);
        } else {
            s.state = State::Chunked;
            self.chunked = Some(id);
        }
        self.take(id, tokens, adder, plan);
        let free = self.free_tokens();
        if free as f64 <= adder.reserved || free <= adder.decodes {
            return Err((true, Stop::NoToken));
        }
        if adder.input == 0 || adder.chunk == Some(0) {
            return Err((true, Stop::Other));
        }
        Ok(())
    }

    fn take(&mut self, id: ReqId, tokens: u32, adder: &mut Adder, plan: &mut StepPlan) {
        let paged = u64::from(tokens.next_multiple_of(self.config.page_size));
        adder.input = adder.input.saturating_sub(paged);
        adder.chunk = adder.chunk.map(|c| c.saturating_sub(paged));
        adder.taken += 1;
        self.schedule(id, tokens, false, plan);
    }

    /// Puts the queue into the policy's order (7.3).
    fn sort_waiting(&mut self) {
        match self.config.schedule_policy {
            SchedulePolicy::Fcfs => {}
            SchedulePolicy::Lof => {
                let seqs = &self.seqs;
                (self.waiting.make_contiguous())
                    .sort_by_key(|&id| Reverse(seqs[id as usize].max_new));
            }
            SchedulePolicy::Lpm if self.shared && self.waiting.len() <= LPM_QUEUE => {
                let mut seen = HashSet::new();
                let page = self.config.page_size;
                let mut keys: Vec<(bool, Reverse<u32>, ReqId)> = Vec::new();
                for &id in &self.waiting {
                    let s = &self.seqs[id as usize];
                    let found = self.kv.hits(id, s.context()) * page;
                    // Of prompts that begin alike and find little, one goes first, so that the others find what it leaves.
                    let start = (IN_BATCH_PREFIX.div_ceil(page) - 1) as usize;
                    let begins = s.hashes.get(start).filter(|_| found <= IN_BATCH_PREFIX);
                    let later = begins.is_some_and(|hash| !seen.insert(*hash));
                    keys.push((later, Reverse(if later { 0 } else { found }), id));
                }
                keys.sort_by_key(|&(later, found, _)| (later, found));
                self.waiting.clear();
                self.waiting.extend(keys.iter().map(|k| k.2));
            }
            SchedulePolicy::Lpm => {}
        }
    }
}
