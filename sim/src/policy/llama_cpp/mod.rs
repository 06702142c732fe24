//! llama.cpp's server: a fixed number of slots, one batch of all of them per step (serving-policies 4).
//!
//! A request needs a slot; those without one wait in order. Each step takes the next token of every slot that generates, then
//! prompt tokens slot by slot until `n_batch` tokens are in the batch. A slot keeps its last prompt and output, and a
//! request goes to the free slot that shares enough of its beginning, else to the one that has been idle longest.

mod params;
mod prompt_cache;

use std::collections::VecDeque;

use hwmodels::BatchStats;
use rand::seq::SliceRandom;

pub use params::{LlamaCppConfig, LlamaCppParams, Slots};
pub use prompt_cache::CacheRam;
use prompt_cache::{PromptCache, common};

use super::{Blocked, Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::rng::{Stream, stream};
use crate::kernel::time::SimTime;
use crate::request::{RejectReason, ReqId};

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
    /// Prompts that slots held before.
    cache: Option<PromptCache>,
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
            cache: config.cache_ram.map(PromptCache::new),
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

    /// Names of the prompt's tokens of `id`; none where nothing is shared.
    fn prompt(&self, id: ReqId) -> &[u64] {
        let s = &self.seqs[id as usize];
        &s.hashes[..s.hashes.len().min(s.prompt as usize)]
    }

    /// The free slot that `id` gets: the most alike, with what they share [tokens], else the one left longest ago, the last of
    /// equals (4.2).
    fn choose(&self, id: ReqId) -> Option<(usize, Option<usize>)> {
        let free = || (0..self.slots.len()).filter(|&i| self.slots[i].user.is_none());
        let prompt = f64::from(self.seqs[id as usize].prompt.max(1));
        let mut best: Option<(usize, usize)> = None;
        if self.config.slot_prompt_similarity > 0.0 && !self.seqs[id as usize].hashes.is_empty() {
            for i in free() {
                let common = common(&self.slots[i].kept, self.prompt(id));
                let enough = common as f64 / prompt > self.config.slot_prompt_similarity;
                if enough && best.is_none_or(|b| common > b.1) {
                    best = Some((i, common));
                }
            }
        }
        best.map(|(i, common)| (i, Some(common))).or_else(|| {
            let longest_ago = free().rev().min_by_key(|&i| self.slots[i].left);
            longest_ago.map(|i| (i, None))
        })
    }

    /// Before `id` starts in slot `i`: what would be lost there goes to host memory, and what serves better comes back (4.6).
    fn exchange(&mut self, id: ReqId, i: usize, alike: Option<usize>) {
        let kept = std::mem::take(&mut self.slots[i].kept);
        // A slot that keeps half of what it holds is left alone.
        let loses = alike.is_none_or(|common| (common as f32 / kept.len() as f32) < 0.5);
        let mut found = None;
        if let Some(mut cache) = self.cache.take() {
            if loses {
                cache.save(&kept);
                found = cache.load(&kept, self.prompt(id));
            }
            self.cache = Some(cache);
        }
        self.slots[i].kept = found.unwrap_or(kept);
    }

    /// After a request has started: free slots are copied to host memory, and emptied where they share the cells (4.6).
    fn put_away(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        if !self.config.cache_idle_slots {
            return;
        }
        for slot in self.slots.iter_mut().filter(|s| s.user.is_none()) {
            cache.save(&slot.kept);
            if self.config.kv_unified {
                slot.kept.clear();
            }
        }
    }

    /// Gives free slots to waiting requests, in order.
    fn admit(&mut self, plan: &mut StepPlan) {
        while let Some(&id) = self.waiting.front() {
            let Some((i, alike)) = self.choose(id) else {
                break;
            };
            self.waiting.pop_front();
            self.exchange(id, i, alike);
            let found = if self.config.cache_prompt {
                common(&self.slots[i].kept, self.prompt(id)) as u32
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
            self.put_away();
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
mod tests;
