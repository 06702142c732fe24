//! TensorRT-LLM in-flight batching (serving-policies 3.1 to 3.4), with the queue limit of its executor (3.5).
//!
//! Two schedulers run in every iteration: the capacity scheduler says which requests may own KV, the micro-batch
//! scheduler says which of those run now. Pipeline parallelism keeps as many micro-batches in rotation as there are
//! stages; a request is in at most one of them.

mod capacity;
mod micro_batch;
mod params;
mod transfer;

use std::collections::VecDeque;

use super::{Blocked, Given, KvMove, Load, RemoteKv, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::SimTime;
use crate::kv::{KvConfig, KvManager};
use crate::request::{RejectReason, ReqId};

pub use params::{
    AttentionDpConfig, BatchSchedulerPolicy, ContextChunkingPolicy, TrtLlmConfig, TrtLlmParams,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Gone,
    Waiting,
    Started,
    /// Ended here; its blocks wait to be fetched.
    Sending,
}

#[derive(Clone, Debug, Default)]
struct Seq {
    state: State,
    /// Order of the active list: priority, then arrival (3.2).
    key: (i32, u64),
    prompt: u32,
    max_new: u32,
    generated: u32,
    /// Tokens whose KV exists [tokens].
    done: u32,
    /// Tokens to compute before the next one comes: the prompt, and after a pause the earlier outputs too [tokens].
    context: u32,
    /// Tokens of the context chunk chosen for this step [tokens].
    chunk: u32,
    /// Steps in flight that hold it; two at most, and two only under the overlap scheduler.
    flights: u8,
    /// Tokens that they will give.
    pending: u32,
    /// Leading blocks that it found in the cache when it started.
    reused: u32,
    /// It has held KV before.
    has_started: bool,
    /// To be paused when its step ends.
    pause_due: bool,
    /// Its client left while a step held it.
    left: bool,
    /// Content of its blocks, when reuse is on.
    hashes: Vec<u64>,
    remote: transfer::Remote,
}

impl Seq {
    fn generating(&self) -> bool {
        self.state == State::Started && self.done >= self.context
    }

    /// Whether no further step may hold it now. Without the overlap scheduler that is so while one does. With it the next step is chosen while
    /// one runs (3.1): a request whose last token is on its way (`GENERATION_TO_COMPLETE`) keeps its place and its KV, but is left out.
    fn held_back(&self, overlap: bool) -> bool {
        let sure_to_end = self.generated + self.pending >= self.max_new;
        self.remote == transfer::Remote::Coming
            || self.flights > 0 && (!overlap || self.pause_due || sure_to_end)
    }
}

/// TensorRT-LLM's executor over one engine.
#[derive(Debug)]
pub struct TrtLlm {
    config: TrtLlmConfig,
    kv: KvManager,
    seqs: Vec<Seq>,
    arrivals: u64,
    /// Requests without KV, in list order; paused ones go back here.
    waiting: VecDeque<ReqId>,
    /// Those of `waiting` that never started.
    queued: u32,
    /// Requests that wait for blocks to receive KV into, in list order (DISAGG_GENERATION_INIT).
    inits: VecDeque<ReqId>,
    /// Receptions that may begin and were not told yet.
    moves: Vec<KvMove>,
    /// Requests with KV, in list order.
    started: Vec<ReqId>,
    /// Scratch: the capacity scheduler's choice, the micro-batch, the blocks being produced.
    fitting: Vec<ReqId>,
    /// What kept requests out of the step being chosen.
    blocked: Blocked,
    /// Steps that prompts have waited for others (3.3).
    waited: u32,
    /// Paused since the last step was told.
    lost: Vec<ReqId>,
    contexts: Vec<ReqId>,
    generations: Vec<ReqId>,
    producing: Vec<u64>,
}

impl TrtLlm {
    /// An executor that has started with `config`. `shared_content`: requests carry block hashes that can be equal.
    pub fn new(config: TrtLlmConfig, shared_content: bool) -> TrtLlm {
        let kv = KvManager::new(KvConfig {
            blocks: config.blocks,
            reserved: 0,
            block_size: config.params.tokens_per_block,
            fixed_blocks: 0,
            prefix_caching: config.params.enable_kv_cache_reuse,
            shared_content,
        });
        TrtLlm {
            config,
            kv,
            seqs: Vec::new(),
            arrivals: 0,
            waiting: VecDeque::new(),
            queued: 0,
            inits: VecDeque::new(),
            moves: Vec::new(),
            started: Vec::new(),
            fitting: Vec::new(),
            blocked: Blocked::Nothing,
            waited: 0,
            lost: Vec::new(),
            contexts: Vec::new(),
            generations: Vec::new(),
            producing: Vec::new(),
        }
    }

    /// The configuration it started with.
    pub fn config(&self) -> &TrtLlmConfig {
        &self.config
    }

    /// Requests that have never started.
    pub(super) fn queued(&self) -> u32 {
        self.queued
    }

    /// Takes all KV from a started request and puts it back in line, to recompute prompt and outputs.
    fn pause(&mut self, id: ReqId) {
        self.give_back(id);
        let key = self.seqs[id as usize].key;
        self.started.retain(|&s| s != id);
        let s = &mut self.seqs[id as usize];
        s.state = State::Waiting;
        s.pause_due = false;
        s.done = 0;
        s.context = s.prompt + s.generated;
        let seqs = &self.seqs;
        let at = self
            .waiting
            .partition_point(|&w| seqs[w as usize].key < key);
        self.waiting.insert(at, id);
    }

    /// Takes `id` out of the queue, which is in list order.
    fn leave_queue(&mut self, id: ReqId) {
        let (seqs, key) = (&self.seqs, self.seqs[id as usize].key);
        let at = self
            .waiting
            .partition_point(|&w| seqs[w as usize].key < key);
        debug_assert_eq!(self.waiting.get(at), Some(&id));
        self.waiting.remove(at);
    }

    /// Returns the blocks of `id`; what was computed can be reused.
    fn give_back(&mut self, id: ReqId) {
        let s = &self.seqs[id as usize];
        // A token that is still being computed is in nobody's content yet.
        self.kv.publish(id, s.done.min(s.prompt + s.generated));
        self.kv.release(id);
    }

    fn drop_seq(&mut self, id: ReqId) {
        match self.seqs[id as usize].state {
            State::Gone | State::Sending => return,
            State::Waiting => {
                self.leave_queue(id);
                self.queued -= u32::from(!self.seqs[id as usize].has_started);
            }
            State::Started => {
                self.give_back(id);
                self.started.retain(|&s| s != id);
            }
        }
        self.seqs[id as usize].state = State::Gone;
        self.lost.retain(|&l| l != id);
    }

    /// Chooses the next step, but takes no blocks for it yet; its contexts and generations.
    pub(super) fn choose(&mut self) -> (usize, usize) {
        self.start_receptions();
        let mut lost = std::mem::take(&mut self.lost);
        self.choose_owners(&mut lost);
        self.choose_micro_batch();
        self.lost = lost;
        (self.contexts.len(), self.generations.len())
    }

    /// Leaves the contexts of the chosen step for a later one.
    pub(super) fn leave_contexts_out(&mut self) {
        self.contexts.clear();
    }

    /// Writes the chosen step into `plan`; false: it is empty.
    pub(super) fn run(&mut self, plan: &mut StepPlan) -> bool {
        plan.clear();
        plan.moves.append(&mut self.moves);
        self.launch(plan);
        let runs = !plan.entries.is_empty();
        // Without a step there is no plan to tell losses in: the next one will.
        if runs {
            plan.preempted.append(&mut self.lost);
        }
        if !self.waiting.is_empty() {
            plan.blocked = self.blocked;
        }
        runs
    }

    /// Gives blocks to the micro-batch and writes it into the plan, contexts first (3.1).
    fn launch(&mut self, plan: &mut StepPlan) {
        let block = self.config.params.tokens_per_block;
        for k in 0..self.contexts.len() {
            let id = self.contexts[k];
            if self.seqs[id as usize].state == State::Waiting {
                let s = &self.seqs[id as usize];
                let (done, context) = (s.done, s.context);
                // An earlier context of this step may have taken blocks that this one was to reuse: next round then.
                let hits = done / block;
                if self.kv.hits(id, context) != hits || !self.kv.admit(id, context, hits) {
                    debug_assert!(k > 0, "the capacity scheduler promised blocks to {id}");
                    continue;
                }
                self.leave_queue(id);
                let key = self.seqs[id as usize].key;
                let seqs = &self.seqs;
                let at = self
                    .started
                    .partition_point(|&s| seqs[s as usize].key < key);
                self.started.insert(at, id);
                let s = &mut self.seqs[id as usize];
                s.state = State::Started;
                s.reused = hits;
                if !s.has_started {
                    s.has_started = true;
                    self.queued -= 1;
                    plan.cached_tokens += u64::from(done);
                    plan.admitted.push(id);
                }
            }
            let samples = {
                let s = &self.seqs[id as usize];
                s.done + s.chunk == s.context
            };
            let entry = self.fly(id, self.seqs[id as usize].chunk, samples, false);
            plan.stats.add_prefill(entry.tokens, entry.context, samples);
            plan.entries.push(entry);
        }
        for k in 0..self.generations.len() {
            let id = self.generations[k];
            let grown = self.kv.grow(id, self.seqs[id as usize].done + 1);
            debug_assert!(grown, "the capacity scheduler promised a block to {id}");
            if !grown {
                continue;
            }
            let entry = self.fly(id, 1, true, true);
            plan.stats.add_decode(entry.context + 1);
            plan.entries.push(entry);
        }
    }

    /// Puts `id` into the step being launched. Under the overlap scheduler the tokens of the step count at once: the next one is chosen before
    /// it ends.
    fn fly(&mut self, id: ReqId, tokens: u32, samples: bool, decode: bool) -> Scheduled {
        let overlap = self.config.overlaps();
        let s = &mut self.seqs[id as usize];
        let context = s.done;
        s.flights += 1;
        s.pending += u32::from(samples);
        if overlap {
            s.done += tokens;
        }
        Scheduled {
            id,
            tokens,
            context,
            samples,
            decode,
        }
    }
}

impl Scheduler for TrtLlm {
    fn add(&mut self, id: ReqId, params: SeqParams) -> Result<(), RejectReason> {
        let (prompt, max_new) = (params.prompt_tokens.max(1), params.max_tokens.max(1));
        self.config.admits(prompt, max_new, self.queued)?;
        let i = id as usize;
        if self.seqs.len() <= i {
            self.seqs.resize_with(i + 1, Seq::default);
        }
        let key = (params.priority, self.arrivals);
        self.arrivals += 1;
        self.seqs[i] = Seq {
            state: State::Waiting,
            key,
            prompt,
            max_new,
            context: prompt,
            hashes: if self.config.params.enable_kv_cache_reuse {
                params.block_hashes.clone()
            } else {
                Vec::new()
            },
            ..Seq::default()
        };
        self.kv.register(id, params.block_hashes);
        let seqs = &self.seqs;
        let at = self
            .waiting
            .partition_point(|&w| seqs[w as usize].key < key);
        self.waiting.insert(at, id);
        self.queued += 1;
        Ok(())
    }

    fn plan(&mut self, _now: SimTime, plan: &mut StepPlan) -> bool {
        self.choose();
        self.wait_for_more();
        self.run(plan)
    }

    fn complete(&mut self, plan: &StepPlan, given: Given<'_>) {
        for (i, e) in plan.entries.iter().enumerate() {
            let s = &mut self.seqs[e.id as usize];
            if s.state != State::Started {
                continue;
            }
            s.flights -= 1;
            s.pending -= u32::from(e.samples);
            s.done = s.done.max(e.context + e.tokens);
            s.generated += given.to(i, e);
            if e.samples && !e.decode {
                // Context blocks can be reused once the whole context is there.
                self.kv.publish(e.id, e.context + e.tokens);
            }
        }
        for &id in given.stopped {
            self.drop_seq(id);
        }
        for &id in given.kept {
            self.keep_kv(id);
        }
        for e in &plan.entries {
            let s = &self.seqs[e.id as usize];
            if s.left {
                self.drop_seq(e.id);
            } else if s.pause_due && s.state == State::Started && s.flights == 0 {
                self.pause(e.id);
                self.lost.push(e.id);
            }
        }
    }

    fn cancel(&mut self, id: ReqId) {
        let Some(s) = self.seqs.get_mut(id as usize) else {
            return;
        };
        if s.state == State::Gone || self.leave_reception(id) {
            return;
        }
        let s = &mut self.seqs[id as usize];
        if s.state == State::Started && s.flights > 0 {
            s.left = true;
        } else {
            self.drop_seq(id);
        }
    }

    fn expect_kv(&mut self, id: ReqId, remote: RemoteKv) {
        self.wait_to_receive(id, remote);
    }

    fn received(&mut self, id: ReqId) {
        self.end_reception(id);
    }

    fn sent(&mut self, id: ReqId) {
        self.release_kept(id);
    }

    fn takes_part_in_transfers(&self) -> bool {
        true
    }

    fn take_failed(&mut self, _out: &mut Vec<ReqId>) {}

    fn load(&self) -> Load {
        Load {
            running: self.started.len() as u32,
            waiting: (self.waiting.len() + self.inits.len()) as u32,
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

    fn extend_content(&mut self, id: ReqId, hashes: &[u64]) {
        if self.config.params.enable_kv_cache_reuse {
            self.kv.extend_content(id, hashes);
            self.seqs[id as usize].hashes.extend_from_slice(hashes);
        }
    }

    fn depth(&self) -> u32 {
        self.config.depth()
    }
}

#[cfg(test)]
mod tests;
