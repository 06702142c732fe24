//! llama.cpp's server: a fixed number of slots, one batch of all of them per step (serving-policies 4).
//!
//! A request needs a slot; those without one wait in order. Each step takes the next token of every slot that generates, then
//! prompt tokens slot by slot until `n_batch` tokens are in the batch. A slot keeps its last prompt and output, and a
//! request goes to the free slot that shares enough of its beginning, else to the one that has been idle longest.

use std::collections::VecDeque;

use hwmodels::BatchStats;
use rand::seq::SliceRandom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::ParamError;
use super::{Blocked, Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::rng::{Stream, stream};
use crate::kernel::time::SimTime;
use crate::request::{RejectReason, ReqId};

const ENGINE: &str = "llama.cpp server";

/// The server's parameters, by the names of its command line (`--parallel`, `--batch-size`, ...).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlamaCppParams {
    /// Slots, i.e. requests that run at once (default 4, what `--parallel -1` means).
    pub n_parallel: u32,
    /// Tokens of a step at most [tokens] (default 2048).
    pub n_batch: u32,
    /// Tokens of one pass through the model at most [tokens] (default 512): a step of more is computed in several.
    pub n_ubatch: u32,
    /// KV cells of the whole server [tokens]. Default: what fits in memory, or `kv_blocks`.
    pub n_ctx: Option<u32>,
    /// Whether all slots share the cells (default true); otherwise each has `n_ctx / n_parallel` of its own, and a step
    /// over slots that are not neighbours, or of unequal numbers of tokens, is computed in several passes.
    pub kv_unified: bool,
    /// Whether prompts enter a step beside running slots (default true); otherwise only a step without them.
    pub cont_batching: bool,
    /// Whether a slot keeps its prompt and output, so that a prompt that begins alike is computed only from where it
    /// differs (default true).
    pub cache_prompt: bool,
    /// Share of a prompt that must be found in a free slot for it to be preferred [ratio] (default 0.1); 0: never.
    pub slot_prompt_similarity: f64,
    /// Whether slots have served requests before the run, so that they are taken in no particular order at first (drawn from
    /// the scenario's seed); otherwise (default) from the last on, as by a server that has just started.
    pub slots_used: bool,
}

impl Default for LlamaCppParams {
    fn default() -> LlamaCppParams {
        LlamaCppParams {
            n_parallel: 4,
            n_batch: 2048,
            n_ubatch: 512,
            n_ctx: None,
            kv_unified: true,
            cont_batching: true,
            cache_prompt: true,
            slot_prompt_similarity: 0.1,
            slots_used: false,
        }
    }
}

/// [`LlamaCppParams`] after start-up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LlamaCppConfig {
    /// Slots.
    pub n_parallel: u32,
    /// Tokens of a step at most [tokens].
    pub n_batch: u32,
    /// Tokens of one pass at most [tokens].
    pub n_ubatch: u32,
    /// KV cells of the whole server [tokens].
    pub n_ctx: u32,
    /// Whether slots share the cells.
    pub kv_unified: bool,
    /// Longest prompt + output of a slot [tokens].
    pub n_ctx_slot: u32,
    /// Whether prompts enter a step beside running slots.
    pub cont_batching: bool,
    /// Whether slots keep their prompts.
    pub cache_prompt: bool,
    /// Share of a prompt that makes a slot preferred [ratio].
    pub slot_prompt_similarity: f64,
    /// What is known of the slots before the run.
    pub slots: Slots,
}

/// What is known of the slots of a server before the run, with the seed of what is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Slots {
    /// None was ever used: they are taken from the last on.
    #[default]
    Fresh,
    /// They have been left in some order.
    Used(u64),
    /// Nothing, at no time: each step is computed as if its sequences were in any slots. For fits: the passes of a step
    /// (4.5) are right on average, and do not follow one course of the slots among many.
    Anywhere(u64),
}

impl LlamaCppParams {
    /// Start-up with `kv_tokens`, what fits in memory beside the weights [tokens], and a model whose longest sequence is
    /// `model_max_tokens` [tokens].
    ///
    /// # Errors
    /// A parameter that the server refuses, or a context that does not fit.
    pub fn resolve(
        &self,
        kv_tokens: u64,
        model_max_tokens: u32,
    ) -> Result<LlamaCppConfig, ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        for (param, value) in [
            ("n_parallel", self.n_parallel),
            ("n_batch", self.n_batch),
            ("n_ubatch", self.n_ubatch),
        ] {
            if value == 0 {
                return err(param, "must be at least 1, got 0".into());
            }
        }
        if self.n_parallel > self.n_batch {
            return err(
                "n_batch",
                format!(
                    "a step holds one token of every slot: must be at least n_parallel ({}), got {}",
                    self.n_parallel, self.n_batch
                ),
            );
        }
        if !(0.0..=1.0).contains(&self.slot_prompt_similarity) {
            return err(
                "slot_prompt_similarity",
                format!("must lie in [0, 1], got {}", self.slot_prompt_similarity),
            );
        }
        let n_ctx = self
            .n_ctx
            .unwrap_or_else(|| u32::try_from(kv_tokens).unwrap_or(u32::MAX));
        if u64::from(n_ctx) > kv_tokens {
            return err(
                "n_ctx",
                format!("memory holds {kv_tokens} tokens beside the weights, got {n_ctx}"),
            );
        }
        let own = if self.kv_unified {
            n_ctx
        } else {
            n_ctx / self.n_parallel
        };
        let n_ctx_slot = own.min(model_max_tokens);
        if n_ctx_slot < 2 {
            return err(
                "n_ctx",
                format!(
                    "a slot needs at least 2 tokens, got {n_ctx_slot} ({n_ctx} over {} slots)",
                    self.n_parallel
                ),
            );
        }
        Ok(LlamaCppConfig {
            n_parallel: self.n_parallel,
            n_batch: self.n_batch,
            n_ubatch: self.n_ubatch,
            n_ctx,
            kv_unified: self.kv_unified,
            n_ctx_slot,
            cont_batching: self.cont_batching,
            cache_prompt: self.cache_prompt,
            slot_prompt_similarity: self.slot_prompt_similarity,
            slots: if self.slots_used {
                Slots::Used(0)
            } else {
                Slots::Fresh
            },
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Gone,
    Waiting,
    /// In the slot of this index.
    Running(u32),
}

#[derive(Clone, Debug, Default)]
struct Seq {
    state: State,
    prompt: u32,
    /// Names of its tokens, one by one (prompt, then output); empty: shared with nobody.
    hashes: Vec<u64>,
    /// Tokens whose KV exists.
    computed: u32,
    /// Tokens produced.
    outputs: u32,
    /// Marks this use of the id, so that a step planned before a cancellation does not touch the next user.
    ticket: u64,
}

/// A place for one request.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Who is in it.
    user: Option<ReqId>,
    /// Names of the tokens that its cells hold, where they can be shared.
    kept: Vec<u64>,
    /// When it was last left, as a count of departures; 0: never used.
    left: u64,
}

/// The server's slots and its queue.
#[derive(Debug)]
pub struct LlamaCpp {
    config: LlamaCppConfig,
    seqs: Vec<Seq>,
    slots: Vec<Slot>,
    waiting: VecDeque<ReqId>,
    failed: Vec<ReqId>,
    running: u32,
    departures: u64,
    tickets: u64,
    /// Tickets of the entries of the step in flight.
    in_flight: Vec<u64>,
    /// Entries of the step being chosen, as far as no pass has them yet.
    left: Vec<Left>,
    /// Draws slots where nothing is known of them.
    anywhere: Option<Anywhere>,
}

/// Slots of sequences of which nothing is known.
#[derive(Debug)]
struct Anywhere {
    draws: Stream,
    /// Runs of slots that steps of so many decodes have had less than their share, by that number.
    owed: Vec<f64>,
}

impl Anywhere {
    /// Places the first `decodes` of `left`, then the prompts, in `slots` slots, each kind in their order.
    fn place(&mut self, left: &mut [Left], decodes: usize, slots: u32) {
        let n = left.len();
        if n == 0 {
            return;
        }
        if decodes == n {
            // n of N slots at random lie in n (N - n + 1) / N runs on average: as many, step for step, as nearly as
            // whole numbers can, so that no step differs from the mean without need.
            let (each, all) = (n as f64, f64::from(slots));
            let owed = &mut self.owed[n];
            *owed += each * (all - each + 1.0) / all;
            let runs = owed.round().clamp(1.0, each);
            *owed -= runs;
            for (i, l) in left.iter_mut().enumerate() {
                // A free slot between one run and the next.
                l.slot = (i + i * runs as usize / n) as u32;
            }
            return;
        }
        let mut order: Vec<u32> = (0..slots).collect();
        let (drawn, _) = order.partial_shuffle(&mut self.draws, n);
        let (first, then) = drawn.split_at_mut(decodes.min(n));
        first.sort_unstable();
        then.sort_unstable();
        for (l, slot) in left.iter_mut().zip(drawn.iter()) {
            l.slot = *slot;
        }
    }
}

/// What no pass of a step has yet of one of its entries.
#[derive(Clone, Copy, Debug)]
struct Left {
    slot: u32,
    tokens: u32,
    /// Tokens before them whose KV exists by then.
    context: u32,
    samples: bool,
}

impl LlamaCpp {
    /// A server that has started with `config`.
    pub fn new(config: LlamaCppConfig) -> LlamaCpp {
        let mut slots = vec![Slot::default(); config.n_parallel as usize];
        let mut departures = 0;
        if let Slots::Used(seed) = config.slots {
            let mut order: Vec<usize> = (0..slots.len()).collect();
            order.shuffle(&mut stream(seed, "slots used before"));
            for i in order {
                departures += 1;
                slots[i].left = departures;
            }
        }
        LlamaCpp {
            seqs: Vec::new(),
            slots,
            waiting: VecDeque::new(),
            failed: Vec::new(),
            running: 0,
            departures,
            tickets: 0,
            in_flight: Vec::new(),
            left: Vec::new(),
            anywhere: match config.slots {
                // Where the cells are shared, slots make no difference.
                Slots::Anywhere(seed) if !config.kv_unified => Some(Anywhere {
                    draws: stream(seed, "slots of a step"),
                    owed: vec![0.0; config.n_parallel as usize + 1],
                }),
                _ => None,
            },
            config,
        }
    }

    /// The configuration it started with.
    pub fn config(&self) -> &LlamaCppConfig {
        &self.config
    }

    /// Leading tokens of the prompt of `id` that `slot` holds.
    fn common(&self, slot: &Slot, id: ReqId) -> u32 {
        let s = &self.seqs[id as usize];
        let prompt = s.hashes.iter().take(s.prompt as usize);
        prompt.zip(&slot.kept).take_while(|(a, b)| a == b).count() as u32
    }

    /// The free slot that `id` gets: the most alike, else the one left longest ago, the last of equals (4.2).
    fn choose(&self, id: ReqId) -> Option<usize> {
        let free = || (0..self.slots.len()).filter(|&i| self.slots[i].user.is_none());
        let prompt = f64::from(self.seqs[id as usize].prompt.max(1));
        let mut best: Option<(usize, u32)> = None;
        if self.config.slot_prompt_similarity > 0.0 && !self.seqs[id as usize].hashes.is_empty() {
            for i in free() {
                let common = self.common(&self.slots[i], id);
                let enough = f64::from(common) / prompt > self.config.slot_prompt_similarity;
                if enough && best.is_none_or(|b| common > b.1) {
                    best = Some((i, common));
                }
            }
        }
        best.map(|b| b.0)
            .or_else(|| free().rev().min_by_key(|&i| self.slots[i].left))
    }

    /// Gives free slots to waiting requests, in order.
    fn admit(&mut self, plan: &mut StepPlan) {
        while let Some(&id) = self.waiting.front() {
            let Some(i) = self.choose(id) else {
                break;
            };
            self.waiting.pop_front();
            let found = if self.config.cache_prompt {
                self.common(&self.slots[i], id)
            } else {
                0
            };
            let slot = &mut self.slots[i];
            slot.user = Some(id);
            slot.kept.clear();
            let s = &mut self.seqs[id as usize];
            // The last token is always computed: it yields the first output.
            s.computed = found.min(s.prompt - 1);
            s.state = State::Running(i as u32);
            self.running += 1;
            plan.cached_tokens += u64::from(s.computed);
            plan.admitted.push(id);
        }
    }

    /// Cells that running requests hold [tokens].
    fn held(&self) -> u64 {
        let users = self.slots.iter().filter_map(|s| s.user);
        users
            .map(|id| u64::from(self.seqs[id as usize].computed))
            .sum()
    }

    /// Takes `id` out of its slot; what it computed stays there if `keep`.
    fn leave(&mut self, id: ReqId, keep: bool) {
        let s = &mut self.seqs[id as usize];
        if let State::Running(i) = s.state {
            let slot = &mut self.slots[i as usize];
            slot.user = None;
            slot.kept.clear();
            if keep && !s.hashes.is_empty() {
                slot.kept.extend(s.hashes.iter().take(s.computed as usize));
            }
            self.departures += 1;
            slot.left = self.departures;
            self.running -= 1;
        }
        s.state = State::Gone;
        s.hashes.clear();
    }

    /// Chooses the tokens of the step (4.3).
    fn fill(&mut self, plan: &mut StepPlan) {
        let mut room = self.config.n_batch;
        let mut decodes = false;
        for slot in &self.slots {
            let Some(id) = slot.user else { continue };
            let s = &mut self.seqs[id as usize];
            if s.outputs == 0 {
                continue;
            }
            decodes = true;
            plan.entries.push(Scheduled {
                id,
                tokens: 1,
                context: s.computed,
                samples: true,
                decode: true,
            });
            s.computed += 1;
            plan.stats.add_decode(s.computed);
            room -= 1;
        }
        if decodes && !self.config.cont_batching {
            return;
        }
        for slot in &self.slots {
            let Some(id) = slot.user else { continue };
            let s = &mut self.seqs[id as usize];
            if s.outputs > 0 || room == 0 {
                continue;
            }
            let tokens = (s.prompt - s.computed).min(room);
            let samples = s.computed + tokens == s.prompt;
            plan.entries.push(Scheduled {
                id,
                tokens,
                context: s.computed,
                samples,
                decode: false,
            });
            plan.stats.add_prefill(tokens, s.computed, samples);
            s.computed += tokens;
            room -= tokens;
        }
    }

    /// Cuts the step into the passes in which it is computed (4.5).
    fn cut(&mut self, plan: &mut StepPlan) {
        let of = |e: &Scheduled| match self.seqs[e.id as usize].state {
            State::Running(slot) => slot,
            _ => u32::MAX,
        };
        self.left.clear();
        self.left.extend(plan.entries.iter().map(|e| Left {
            slot: of(e),
            tokens: e.tokens,
            context: e.context,
            samples: e.samples,
        }));
        let decodes = plan.entries.iter().filter(|e| e.decode).count();
        if let Some(anywhere) = &mut self.anywhere {
            anywhere.place(&mut self.left, decodes, self.config.n_parallel);
        }
        while self.left.iter().any(|l| l.tokens > 0) {
            let pass = if self.config.kv_unified {
                shared_pass(&mut self.left, self.config.n_ubatch)
            } else {
                equal_pass(&mut self.left, self.config.n_ubatch)
            };
            plan.passes.push(pass);
        }
        if plan.passes.len() == 1 {
            plan.passes.clear();
        }
    }

    /// Whether the tokens that the next step would add fit into the shared cells.
    fn fits(&self) -> bool {
        let (mut decodes, mut prompts) = (0u64, 0u64);
        for id in self.slots.iter().filter_map(|s| s.user) {
            let s = &self.seqs[id as usize];
            if s.outputs > 0 {
                decodes += 1;
            } else {
                prompts += u64::from(s.prompt - s.computed);
            }
        }
        let prompts = prompts.min(u64::from(self.config.n_batch).saturating_sub(decodes));
        let prompts = if decodes > 0 && !self.config.cont_batching {
            0
        } else {
            prompts
        };
        self.held() + decodes + prompts <= u64::from(self.config.n_ctx)
    }
}

impl Left {
    /// Moves `tokens` of it into `pass`.
    fn take(&mut self, tokens: u32, pass: &mut BatchStats) {
        let ends = tokens == self.tokens;
        let samples = self.samples && ends;
        if tokens == 1 {
            // Nothing tells the only token of a sequence in a pass from a decode, but for its sampling.
            pass.add_decode(self.context + 1);
            pass.sampled_seqs -= u32::from(!samples);
        } else {
            pass.add_prefill(tokens, self.context, samples);
        }
        self.tokens -= tokens;
        self.context += tokens;
    }
}

/// The next pass where slots share the cells: the next `n_ubatch` tokens, whosever they are.
fn shared_pass(left: &mut [Left], n_ubatch: u32) -> BatchStats {
    let (mut pass, mut room) = (BatchStats::default(), n_ubatch);
    for l in left {
        let tokens = l.tokens.min(room);
        if tokens > 0 {
            l.take(tokens, &mut pass);
            room -= tokens;
        }
    }
    pass
}

/// The next pass where each slot has cells of its own: the same number of tokens of each of some slots with successive
/// numbers, beginning with the first that has any left.
fn equal_pass(left: &mut [Left], n_ubatch: u32) -> BatchStats {
    let mut chosen: Vec<usize> = Vec::new();
    for (i, l) in left.iter().enumerate() {
        let next = chosen
            .last()
            .is_none_or(|&c| left[c].slot.checked_add(1) == Some(l.slot));
        if l.tokens > 0 && next && chosen.len() < n_ubatch as usize {
            chosen.push(i);
        }
    }
    let shortest = chosen.iter().map(|&i| left[i].tokens).min().unwrap_or(0);
    let tokens = shortest.min((n_ubatch / chosen.len().max(1) as u32).max(1));
    let mut pass = BatchStats::default();
    for i in chosen {
        left[i].take(tokens, &mut pass);
    }
    pass
}

impl Scheduler for LlamaCpp {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        let (prompt, output) = (params.prompt_tokens.max(1), params.max_tokens.max(1));
        if prompt.saturating_add(output) > self.config.n_ctx_slot {
            return Err(RejectReason::TooLong);
        }
        let i = id as usize;
        if self.seqs.len() <= i {
            self.seqs.resize_with(i + 1, Seq::default);
        }
        self.tickets += 1;
        self.seqs[i] = Seq {
            state: State::Waiting,
            prompt,
            hashes: params.block_hashes,
            ticket: self.tickets,
            ..Seq::default()
        };
        self.waiting.push_back(id);
        Ok(())
    }

    fn plan(&mut self, _now: SimTime, plan: &mut StepPlan) -> bool {
        plan.clear();
        if !self.in_flight.is_empty() {
            return false;
        }
        self.admit(plan);
        while !self.fits() {
            // 4.4: a step that finds no cells fails every request that is running.
            let users: Vec<ReqId> = self.slots.iter().filter_map(|s| s.user).collect();
            for id in users {
                self.leave(id, false);
                self.failed.push(id);
            }
            plan.admitted.clear();
            plan.cached_tokens = 0;
            self.admit(plan);
        }
        self.fill(plan);
        self.cut(plan);
        if !self.waiting.is_empty() {
            plan.blocked = Blocked::MaxSeqs;
        }
        self.in_flight
            .extend(plan.entries.iter().map(|e| self.seqs[e.id as usize].ticket));
        !plan.entries.is_empty()
    }

    fn complete(&mut self, plan: &StepPlan, given: Given<'_>) {
        for ((i, e), ticket) in (plan.entries.iter().enumerate()).zip(self.in_flight.drain(..)) {
            let s = &mut self.seqs[e.id as usize];
            if s.ticket == ticket && matches!(s.state, State::Running(_)) {
                s.outputs += given.to(i, e);
            }
        }
        // Departures are told apart in the order of the slots.
        let mut gone: Vec<(u32, ReqId)> = (given.stopped)
            .iter()
            .filter_map(|&id| match self.seqs[id as usize].state {
                State::Running(i) => Some((i, id)),
                _ => None,
            })
            .collect();
        gone.sort_unstable();
        for (_, id) in gone {
            self.leave(id, true);
        }
    }

    fn cancel(&mut self, id: ReqId) {
        match self.seqs.get(id as usize).map(|s| s.state) {
            Some(State::Waiting) => {
                self.waiting.retain(|&w| w != id);
                self.leave(id, false);
            }
            Some(State::Running(_)) => self.leave(id, true),
            _ => {}
        }
    }

    fn take_failed(&mut self, out: &mut Vec<ReqId>) {
        out.append(&mut self.failed);
    }

    fn load(&self) -> Load {
        Load {
            running: self.running,
            waiting: self.waiting.len() as u32,
            kv_used_blocks: self.held(),
            kv_total_blocks: u64::from(self.config.n_ctx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Checks, Req, Run, req, run, workload};
    use super::*;
    use proptest::prelude::*;

    fn config(n_parallel: u32, n_batch: u32, n_ctx: u32) -> LlamaCppConfig {
        LlamaCppParams {
            n_parallel,
            n_batch,
            n_ctx: Some(n_ctx),
            ..LlamaCppParams::default()
        }
        .resolve(1 << 20, 1 << 20)
        .unwrap()
    }

    fn go(config: LlamaCppConfig, reqs: &[Req]) -> Run {
        let checks = Checks {
            block: Some(1),
            ..Checks::default()
        };
        run(&mut LlamaCpp::new(config), reqs, checks)
    }

    #[test]
    fn no_more_requests_run_than_there_are_slots_4_2() {
        let reqs: Vec<Req> = (0..5).map(|_| req(0, 10, 5)).collect();
        let r = go(config(2, 64, 1000), &reqs);
        assert!(r.rows.iter().all(|row| row.load.running <= 2));
        assert_eq!(r.rows[0].plan.blocked, Blocked::MaxSeqs);
        // The third starts in the step after the first two have ended.
        assert_eq!(r.fates[2].first_step, Some(5));
    }

    #[test]
    fn a_step_takes_every_decode_and_then_prompt_tokens_up_to_n_batch_4_3() {
        let r = go(config(3, 16, 1000), &[req(0, 4, 9), req(1, 30, 3)]);
        assert_eq!(r.rows[0].prefills(), [(0, 4)]);
        assert_eq!(
            (r.rows[1].decodes(), r.rows[1].prefills()),
            (vec![0], vec![(1, 15)])
        );
        assert_eq!(r.rows[2].prefills(), [(1, 15)]);
        assert_eq!(r.rows[3].decodes().len(), 2);
    }

    /// Passes of a step as (sequences, tokens, sampled rows).
    fn passes(
        entries: &[(u32, u32, bool)],
        kv_unified: bool,
        n_ubatch: u32,
    ) -> Vec<(u32, u32, u32)> {
        let mut left: Vec<Left> = entries
            .iter()
            .map(|&(slot, tokens, samples)| Left {
                slot,
                tokens,
                context: 7,
                samples,
            })
            .collect();
        let mut out = Vec::new();
        while left.iter().any(|l| l.tokens > 0) {
            let p = if kv_unified {
                shared_pass(&mut left, n_ubatch)
            } else {
                equal_pass(&mut left, n_ubatch)
            };
            out.push((p.decode_seqs + p.prefill_seqs, p.tokens(), p.sampled_seqs));
        }
        out
    }

    #[test]
    fn with_shared_cells_a_step_is_cut_every_n_ubatch_tokens_4_5() {
        let step = [(0, 1, true), (2, 1, true), (1, 20, true)];
        assert_eq!(passes(&step, true, 512), [(3, 22, 3)]);
        assert_eq!(passes(&step, true, 10), [(3, 10, 2), (1, 10, 0), (1, 2, 1)]);
    }

    #[test]
    fn with_cells_of_their_own_neighbours_are_computed_together_as_far_as_they_are_equally_long_4_5()
     {
        let decodes = |slots: &[u32]| -> Vec<(u32, u32, bool)> {
            slots.iter().map(|&s| (s, 1, true)).collect()
        };
        assert_eq!(passes(&decodes(&[0, 1, 2]), false, 512), [(3, 3, 3)]);
        assert_eq!(
            passes(&decodes(&[0, 2, 3]), false, 512),
            [(1, 1, 1), (2, 2, 2)]
        );
        assert_eq!(passes(&decodes(&[0, 2, 4]), false, 512), [(1, 1, 1); 3]);
        // Slots 0 and 2 decode, slot 1 has a prompt: its first token goes along with slot 0.
        let step = [(0, 1, true), (2, 1, true), (1, 20, true)];
        assert_eq!(
            passes(&step, false, 512),
            [(2, 2, 1), (1, 1, 1), (1, 19, 1)]
        );
        // Prompts of 5 and 8 tokens, three rows of each at most.
        let prompts = [(0, 5, true), (1, 8, true)];
        assert_eq!(
            passes(&prompts, false, 6),
            [(2, 6, 0), (2, 4, 1), (1, 3, 1)]
        );
    }

    #[test]
    fn without_continuous_batching_prompts_wait_for_the_running_slots_4_3() {
        let c = LlamaCppConfig {
            cont_batching: false,
            ..config(3, 16, 1000)
        };
        let r = go(c, &[req(0, 4, 4), req(1, 8, 3)]);
        assert_eq!(r.fates[1].first_step, Some(4));
    }

    #[test]
    fn unused_slots_are_taken_from_the_last_and_prompts_served_from_the_first_4_2() {
        // Both arrive together; the second request sits in slot 1 of 0..=2, before the first in slot 2.
        let r = go(config(3, 10, 1000), &[req(0, 8, 2), req(0, 8, 2)]);
        assert_eq!(r.rows[0].prefills(), [(1, 8), (0, 2)]);
    }

    #[test]
    fn slots_used_before_are_taken_in_an_order_that_only_the_seed_decides_4_2() {
        let first = |seed: u64| -> Vec<u64> {
            let c = LlamaCppConfig {
                slots: Slots::Used(seed),
                ..config(8, 64, 1000)
            };
            let left = |s: &Slot| s.left;
            LlamaCpp::new(c).slots.iter().map(left).collect()
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        let mut all = first(1);
        all.sort_unstable();
        assert_eq!(all, (1..=8).collect::<Vec<u64>>(), "each was left once");
    }

    #[test]
    fn in_slots_anywhere_a_step_has_as_many_passes_on_average_as_drawn_slots_have_runs_4_5() {
        let c = LlamaCppConfig {
            slots: Slots::Anywhere(3),
            kv_unified: false,
            ..config(8, 64, 10_000)
        };
        let r = go(c, &[req(0, 4, 2000), req(0, 4, 2000), req(0, 4, 2000)]);
        let passes = |row: &super::super::testkit::Row| row.plan.passes.len().max(1) as f64;
        let mean = r.rows.iter().map(passes).sum::<f64>() / r.rows.len() as f64;
        assert!((mean - 3.0 * 6.0 / 8.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn a_prompt_that_begins_like_a_free_slot_is_computed_from_where_it_differs_4_2() {
        let with = |at, prompt: u32, output, hashes: Vec<u64>| Req {
            hashes,
            ..req(at, prompt, output)
        };
        let first: Vec<u64> = (0..25).collect();
        let mut second: Vec<u64> = (0..15).collect();
        second.extend(900..920);
        let far = 100 * super::super::testkit::STEP;
        let reqs = [
            with(0, 20, 5, first.clone()),
            with(far, 30, 5, second),
            with(2 * far, 20, 5, first),
        ];
        let r = go(config(4, 64, 1000), &reqs);
        assert_eq!(r.fates[1].prefilled, 15, "15 of 30 tokens were there");
        // The slot has gone on to other content: only what is common with that is left.
        assert_eq!(r.fates[2].prefilled, 5);
        let c = LlamaCppConfig {
            cache_prompt: false,
            ..config(4, 64, 1000)
        };
        assert_eq!(go(c, &reqs).fates[1].prefilled, 30);
    }

    #[test]
    fn running_out_of_shared_cells_fails_everything_that_runs_4_4() {
        let r = go(
            config(2, 64, 50),
            &[req(0, 20, 20), req(0, 20, 20), req(1, 5, 5)],
        );
        assert!(r.fates[0].failed && r.fates[1].failed);
        assert!(r.fates[2].finished.is_some());
    }

    #[test]
    fn a_request_beyond_its_slot_is_refused_4_1() {
        let c = LlamaCppParams {
            n_parallel: 4,
            kv_unified: false,
            n_ctx: Some(400),
            ..LlamaCppParams::default()
        };
        let c = c.resolve(400, 4096).unwrap();
        assert_eq!(c.n_ctx_slot, 100);
        let r = go(c, &[req(0, 90, 11), req(0, 90, 10)]);
        assert_eq!(r.fates[0].rejected, Some(RejectReason::TooLong));
        assert!(r.fates[1].finished.is_some());
    }

    #[test]
    fn start_up_refuses_what_cannot_run_4_1() {
        let refused = |p: LlamaCppParams| p.resolve(1000, 4096).unwrap_err().param;
        let base = LlamaCppParams::default;
        assert_eq!(
            refused(LlamaCppParams {
                n_parallel: 0,
                ..base()
            }),
            "n_parallel"
        );
        assert_eq!(
            refused(LlamaCppParams {
                n_batch: 3,
                ..base()
            }),
            "n_batch"
        );
        assert_eq!(
            refused(LlamaCppParams {
                n_ctx: Some(2000),
                ..base()
            }),
            "n_ctx"
        );
        let p = LlamaCppParams {
            slot_prompt_similarity: 1.5,
            ..base()
        };
        assert_eq!(refused(p), "slot_prompt_similarity");
    }

    proptest! {
        #[test]
        fn every_request_ends_and_every_cell_comes_back(
            reqs in workload(30, 60, 20, 40),
            slots in 1u32..6,
            n_batch in 8u32..64,
            n_ctx in 80u32..400,
            n_ubatch in 1u32..32,
            kv_unified: bool,
        ) {
            let c = LlamaCppConfig {
                n_ubatch,
                kv_unified,
                ..config(slots, n_batch, n_ctx)
            };
            go(c, &reqs);
        }
    }
}
