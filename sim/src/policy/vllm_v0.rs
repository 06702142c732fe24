//! vLLM's V0 scheduler (0.8.5 and before), prefill-first and chunked (serving-policies 1.8).
//!
//! Prefill-first: a step is either a batch of whole prompts or a decode of everything that runs. Chunked: decodes
//! first, then running prefills, then new ones, within one token budget. Blocks are taken as sequences grow; when they
//! run out the last of the running list loses its blocks and is recomputed.

use std::collections::VecDeque;

use hwmodels::units::plain;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::ParamError;
use super::{Blocked, Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::{SimDuration, SimTime};
use crate::kv::{KvConfig, KvManager};
use crate::request::{RejectReason, ReqId};

const ENGINE: &str = "vLLM V0";

/// What happens to a preempted sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreemptionMode {
    /// Its KV is dropped and computed again.
    #[default]
    Recompute,
    /// Its KV goes to host memory. Refused: see [`VllmV0Params::resolve`].
    Swap,
}

/// The engine's arguments, by their own names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VllmV0Params {
    /// Tokens of one step [tokens]. Default: 2048 when chunked, else at least `max_model_len`.
    pub max_num_batched_tokens: Option<u32>,
    /// Sequences that run at once (default 256).
    pub max_num_seqs: u32,
    /// Longest prompt + output [tokens]. Default: what the model allows.
    pub max_model_len: Option<u32>,
    /// Tokens per KV block [tokens] (default 16).
    pub block_size: u32,
    /// Whether prompts may be split. Default: only for contexts above 32768 tokens.
    pub enable_chunked_prefill: Option<bool>,
    /// Whether blocks of earlier requests can be found (default off).
    pub enable_prefix_caching: bool,
    /// New prompts wait until the oldest has waited this many times the last prefill's duration (default 0).
    pub scheduler_delay_factor: f64,
    /// Share of all blocks that must stay free when a request is admitted (0.01 in the engine).
    pub watermark: f64,
    /// Chunked: prompts in progress at once (default 1).
    pub max_num_partial_prefills: u32,
    /// Chunked: of those, prompts above the threshold (default 1).
    pub max_long_partial_prefills: u32,
    /// Chunked: what counts as long [tokens]. 0 (default): 4 % of `max_model_len` when several prompts may be in progress.
    pub long_prefill_token_threshold: u32,
    /// What happens to a preempted sequence (default recompute).
    pub preemption_mode: PreemptionMode,
}

impl Default for VllmV0Params {
    fn default() -> VllmV0Params {
        VllmV0Params {
            max_num_batched_tokens: None,
            max_num_seqs: 256,
            max_model_len: None,
            block_size: 16,
            enable_chunked_prefill: None,
            enable_prefix_caching: false,
            scheduler_delay_factor: 0.0,
            watermark: 0.01,
            max_num_partial_prefills: 1,
            max_long_partial_prefills: 1,
            long_prefill_token_threshold: 0,
            preemption_mode: PreemptionMode::Recompute,
        }
    }
}

/// [`VllmV0Params`] after start-up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VllmV0Config {
    /// Tokens of one step [tokens].
    pub max_num_batched_tokens: u32,
    /// Sequences that run at once.
    pub max_num_seqs: u32,
    /// Longest prompt + output [tokens].
    pub max_model_len: u32,
    /// Tokens per KV block [tokens].
    pub block_size: u32,
    /// KV blocks there are.
    pub blocks: u64,
    /// Blocks that must stay free when a request is admitted.
    pub watermark_blocks: u64,
    /// Whether prompts may be split.
    pub enable_chunked_prefill: bool,
    /// Whether blocks of earlier requests can be found.
    pub enable_prefix_caching: bool,
    /// Multiple of the last prefill's duration that the oldest waiting request must have waited.
    pub scheduler_delay_factor: f64,
    /// Prompts in progress at once.
    pub max_num_partial_prefills: u32,
    /// Long prompts in progress at once.
    pub max_long_partial_prefills: u32,
    /// What counts as long [tokens].
    pub long_prefill_token_threshold: u32,
}

impl VllmV0Params {
    /// Start-up with `kv_tokens`, what fits in memory beside the weights [tokens], and a model whose longest sequence is
    /// `model_max_tokens` [tokens] (1.8).
    ///
    /// Swapping is refused: V0 swaps only request groups of several sequences (beam search, n > 1), which servetwin
    /// does not model; single sequences were always recomputed by default.
    pub fn resolve(
        &self,
        kv_tokens: u64,
        model_max_tokens: u32,
    ) -> Result<VllmV0Config, ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        if self.preemption_mode == PreemptionMode::Swap {
            return err(
                "preemption_mode",
                "swap is not modelled; use \"recompute\", V0's default for single sequences".into(),
            );
        }
        for (param, value) in [
            ("max_num_seqs", self.max_num_seqs),
            ("block_size", self.block_size),
            ("max_num_partial_prefills", self.max_num_partial_prefills),
            ("max_long_partial_prefills", self.max_long_partial_prefills),
        ] {
            if value == 0 {
                return err(param, "must be at least 1, got 0".into());
            }
        }
        if !(self.scheduler_delay_factor.is_finite() && self.scheduler_delay_factor >= 0.0) {
            return err(
                "scheduler_delay_factor",
                format!(
                    "must be a number >= 0, got {}",
                    plain(self.scheduler_delay_factor)
                ),
            );
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return err(
                "watermark",
                format!(
                    "must lie between 0 and 1 (1 excluded), got {}",
                    plain(self.watermark)
                ),
            );
        }
        let max_model_len = self.max_model_len.unwrap_or(model_max_tokens);
        let blocks = kv_tokens / u64::from(self.block_size);
        let capacity = blocks * u64::from(self.block_size);
        if max_model_len < 2 || max_model_len > model_max_tokens {
            return err(
                "max_model_len",
                format!(
                    "must lie between 2 and the model's {model_max_tokens} tokens, got {max_model_len}"
                ),
            );
        }
        if u64::from(max_model_len) > capacity {
            return err(
                "max_model_len",
                format!(
                    "{max_model_len} tokens do not fit into the KV cache of {capacity}; lower it"
                ),
            );
        }
        let chunked = self
            .enable_chunked_prefill
            .unwrap_or(max_model_len > 32_768);
        let budget = self.max_num_batched_tokens.unwrap_or(if chunked {
            2048
        } else {
            max_model_len.max(2048)
        });
        if budget < max_model_len && !chunked {
            return err(
                "max_num_batched_tokens",
                format!(
                    "max_num_batched_tokens ({budget}) is smaller than max_model_len ({max_model_len}) and chunked prefill is disabled; \
                     vLLM would not start"
                ),
            );
        }
        if budget < self.max_num_seqs {
            return err(
                "max_num_batched_tokens",
                format!(
                    "max_num_batched_tokens ({budget}) must be greater than or equal to max_num_seqs ({}); vLLM would not start",
                    self.max_num_seqs
                ),
            );
        }
        let partial = self.max_num_partial_prefills;
        let share = budget / partial;
        let least = if self.enable_prefix_caching {
            self.block_size
        } else {
            1
        };
        if chunked && share < least {
            return err(
                "max_num_batched_tokens",
                format!(
                    "{budget} over {partial} partial prefills leaves {share} tokens each, must be >= {least}: no \
                     prompt could make progress"
                ),
            );
        }
        if partial > 1 && !chunked {
            return err(
                "max_num_partial_prefills",
                format!("{partial} needs enable_chunked_prefill = true"),
            );
        }
        if self.max_long_partial_prefills > partial {
            return err(
                "max_long_partial_prefills",
                format!(
                    "must be <= max_num_partial_prefills ({partial}), got {}",
                    self.max_long_partial_prefills
                ),
            );
        }
        let mut threshold = self.long_prefill_token_threshold;
        if threshold > max_model_len {
            return err(
                "long_prefill_token_threshold",
                format!("must be <= max_model_len ({max_model_len}), got {threshold}"),
            );
        }
        if partial > 1 && threshold == 0 {
            threshold = (f64::from(max_model_len) * 0.04) as u32;
        }
        Ok(VllmV0Config {
            max_num_batched_tokens: budget,
            max_num_seqs: self.max_num_seqs,
            max_model_len,
            block_size: self.block_size,
            blocks,
            watermark_blocks: (blocks as f64 * self.watermark) as u64,
            enable_chunked_prefill: chunked,
            enable_prefix_caching: self.enable_prefix_caching,
            scheduler_delay_factor: self.scheduler_delay_factor,
            max_num_partial_prefills: partial,
            max_long_partial_prefills: self.max_long_partial_prefills,
            long_prefill_token_threshold: threshold,
        })
    }
}

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
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{
        Checks, Req, Row, Run, STEP, assert_fifo, req, run, run_timed, workload,
    };
    use super::*;

    fn params() -> VllmV0Params {
        VllmV0Params {
            max_num_batched_tokens: Some(128),
            max_num_seqs: 8,
            max_model_len: Some(128),
            enable_chunked_prefill: Some(false),
            ..VllmV0Params::default()
        }
    }

    fn chunked(budget: u32) -> VllmV0Params {
        VllmV0Params {
            max_num_batched_tokens: Some(budget),
            enable_chunked_prefill: Some(true),
            ..params()
        }
    }

    fn start(p: &VllmV0Params, kv_tokens: u64) -> VllmV0 {
        VllmV0::new(p.resolve(kv_tokens, 4096).unwrap(), true)
    }

    fn go(p: &VllmV0Params, kv_tokens: u64, reqs: &[Req]) -> Run {
        let mut v = start(p, kv_tokens);
        let checks = Checks {
            block: (!p.enable_prefix_caching).then_some(p.block_size),
            ..Checks::default()
        };
        let r = run(&mut v, reqs, checks);
        v.kv.check();
        r
    }

    #[test]
    fn defaults_depend_on_context_length_and_chunking_1_8() {
        let c = VllmV0Params::default().resolve(100_000, 4096).unwrap();
        assert_eq!((c.max_num_batched_tokens, c.max_num_seqs), (4096, 256));
        assert!(!c.enable_chunked_prefill);
        assert_eq!((c.blocks, c.watermark_blocks), (6250, 62));
        let c = VllmV0Params::default().resolve(200_000, 131_072).unwrap();
        assert!(c.enable_chunked_prefill);
        assert_eq!(c.max_num_batched_tokens, 2048);
        let p = VllmV0Params {
            max_num_partial_prefills: 3,
            ..VllmV0Params::default()
        };
        let c = p.resolve(200_000, 131_072).unwrap();
        assert_eq!(
            c.long_prefill_token_threshold, 5242,
            "4 % of the context length"
        );
    }

    #[test]
    fn start_up_refuses_what_the_engine_refuses_1_8() {
        let refused = |change: &dyn Fn(&mut VllmV0Params)| {
            let mut p = params();
            change(&mut p);
            p.resolve(1000, 4096).unwrap_err().param
        };
        assert_eq!(
            refused(&|p| p.preemption_mode = PreemptionMode::Swap),
            "preemption_mode"
        );
        assert_eq!(refused(&|p| p.block_size = 0), "block_size");
        assert_eq!(
            refused(&|p| p.max_num_batched_tokens = Some(127)),
            "max_num_batched_tokens"
        );
        assert_eq!(
            refused(&|p| {
                p.max_num_seqs = 129;
            }),
            "max_num_batched_tokens"
        );
        assert_eq!(refused(&|p| p.max_model_len = Some(1001)), "max_model_len");
        assert_eq!(refused(&|p| p.max_model_len = Some(5000)), "max_model_len");
        assert_eq!(
            refused(&|p| p.max_num_partial_prefills = 2),
            "max_num_partial_prefills"
        );
        assert_eq!(
            refused(&|p| p.max_long_partial_prefills = 2),
            "max_long_partial_prefills"
        );
        assert_eq!(
            refused(&|p| p.scheduler_delay_factor = -1.0),
            "scheduler_delay_factor"
        );
        assert_eq!(refused(&|p| p.watermark = 1.0), "watermark");
        assert_eq!(
            refused(&|p| {
                *p = chunked(24);
                p.enable_prefix_caching = true;
                p.max_num_partial_prefills = 2;
            }),
            "max_num_batched_tokens"
        );
        assert_eq!(
            refused(&|p| p.long_prefill_token_threshold = 129),
            "long_prefill_token_threshold"
        );
    }

    #[test]
    fn a_step_is_either_prefills_or_decodes_1_8() {
        let r = go(
            &params(),
            1000,
            &[req(0, 50, 9), req(1, 60, 9), req(1, 70, 9)],
        );
        assert_eq!(
            (r.rows[1].prefills(), r.rows[1].decodes()),
            (vec![(1, 60)], vec![])
        );
        assert_eq!(
            r.rows[2].prefills(),
            [(2, 70)],
            "130 > 128: the third takes a step of its own"
        );
        assert_eq!(r.rows[3].decodes(), [0, 1, 2]);
    }

    #[test]
    fn seats_limit_new_prompts_1_8() {
        let mut p = params();
        p.max_num_seqs = 2;
        let r = go(&p, 1000, &[req(0, 8, 3), req(0, 8, 5), req(0, 8, 2)]);
        assert_eq!(r.rows[0].prefills().len(), 2);
        assert_eq!(r.fates[2].first_step, Some(3));
    }

    #[test]
    fn admission_keeps_the_watermark_free_and_holds_the_queue_1_8() {
        let mut p = params();
        p.watermark = 0.2;
        // 10 blocks, 2 to stay free: 5 + 3 go, 1 more does not, nor does it let the next one pass.
        let reqs = [req(0, 80, 2), req(0, 48, 2), req(0, 16, 2), req(0, 1, 2)];
        p.max_num_batched_tokens = Some(512);
        let r = go(&p, 160, &reqs);
        assert_eq!(r.rows[0].prefills(), [(0, 80), (1, 48)]);
        assert_fifo(&r);
    }

    #[test]
    fn a_prompt_that_would_break_the_watermark_even_alone_is_dropped_1_8() {
        let mut p = params();
        p.watermark = 0.5;
        let r = go(&p, 160, &[req(0, 81, 2), req(0, 80, 2)]);
        assert!(r.fates[0].failed);
        assert_eq!(r.fates[1].tokens, 2);
    }

    #[test]
    fn lack_of_blocks_preempts_the_last_and_recomputes_it_1_8() {
        let mut p = params();
        p.watermark = 0.0;
        p.max_model_len = Some(80);
        // Five blocks; both grow from 1 to 3.
        let r = go(&p, 80, &[req(0, 16, 33), req(0, 16, 33)]);
        assert_eq!((r.fates[0].preempted, r.fates[1].preempted), (0, 1));
        let at = r
            .rows
            .iter()
            .position(|r| !r.plan.preempted.is_empty())
            .unwrap();
        assert_eq!(at, 17);
        assert_eq!(r.rows[at].decodes(), [0]);
        assert_eq!(r.fates[1].prefilled, 16 + 33);
        assert_eq!(r.fates[1].tokens, 33);
    }

    #[test]
    fn preempted_requests_go_to_the_front_in_the_order_of_arrival_1_8() {
        let mut p = params();
        p.watermark = 0.0;
        p.max_model_len = Some(96);
        let mut reqs: Vec<Req> = (0..3).map(|_| req(0, 31, 50)).collect();
        reqs.push(req(5 * STEP, 90, 2));
        let r = go(&p, 96, &reqs);
        assert_eq!(r.fates[0].preempted, 0);
        assert!(r.fates[1].preempted > 0 && r.fates[2].preempted > 0);
        let ends: Vec<u64> = r.fates.iter().filter_map(|f| f.finished).collect();
        assert!(ends.is_sorted(), "{ends:?}");
    }

    #[test]
    fn the_delay_factor_holds_new_prompts_while_others_run_1_8() {
        let mut p = params();
        p.scheduler_delay_factor = 2.0;
        let mut v = start(&p, 1000);
        // Prefills take 10 us, decodes 1 us.
        let took = |plan: &StepPlan| {
            if plan.stats.prefill_seqs > 0 {
                10_000
            } else {
                1_000
            }
        };
        let reqs = [req(0, 16, 100), req(12_500, 16, 5)];
        let r = run_timed(&mut v, &reqs, Checks::default(), took);
        let at = r.rows[r.fates[1].first_step.unwrap()].at;
        assert_eq!(
            at, 33_000,
            "first step boundary more than 20 us after its arrival"
        );
    }

    #[test]
    fn chunked_steps_hold_decodes_first_and_fill_up_with_prefills_1_8() {
        let r = go(
            &chunked(32),
            1000,
            &[req(0, 20, 9), req(0, 50, 9), req(0, 30, 9)],
        );
        assert_eq!(r.rows[0].prefills(), [(0, 20), (1, 12)]);
        assert_eq!(
            (r.rows[1].decodes(), r.rows[1].prefills()),
            (vec![0], vec![(1, 31)])
        );
        assert_eq!(r.rows[2].prefills(), [(1, 7), (2, 24)]);
        assert_eq!(r.rows[3].prefills(), [(2, 6)]);
        assert!(r.rows.iter().all(|r| r.plan.stats.tokens() <= 32));
    }

    #[test]
    fn with_prefix_caching_unfinished_chunks_are_whole_blocks_1_8() {
        let mut p = chunked(40);
        p.enable_prefix_caching = true;
        let r = go(&p, 1000, &[req(0, 100, 3)]);
        let chunks: Vec<(u32, u32)> = r.rows.iter().flat_map(Row::prefills).collect();
        assert_eq!(chunks, [(0, 32), (0, 32), (0, 36)]);
    }

    #[test]
    fn several_partial_prefills_share_the_budget_and_long_ones_are_limited_1_8() {
        let mut p = chunked(60);
        p.max_num_partial_prefills = 3;
        p.long_prefill_token_threshold = 50;
        let r = go(
            &p,
            1000,
            &[req(0, 100, 3), req(0, 90, 3), req(0, 25, 3), req(0, 25, 3)],
        );
        // 20 tokens each; the second long prompt stands aside until the rest of the first is short.
        assert_eq!(r.rows[0].prefills(), [(0, 20), (2, 20), (3, 20)]);
        let before = &r.rows[..r.fates[1].first_step.unwrap()];
        let first: Vec<u32> = before
            .iter()
            .flat_map(Row::prefills)
            .filter(|p| p.0 == 0)
            .map(|p| p.1)
            .collect();
        assert!(
            first.iter().sum::<u32>() >= 50,
            "its rest is no longer long: {first:?}"
        );
        assert!(
            first[..first.len() - 1].iter().sum::<u32>() < 50,
            "and was until then: {first:?}"
        );
    }

    #[test]
    fn prefix_hits_skip_computation_but_not_the_block_test_1_8() {
        let mut p = params();
        p.enable_prefix_caching = true;
        let with = |at| Req {
            hashes: vec![1, 2, 3, 4],
            ..req(at, 60, 3)
        };
        let r = go(&p, 1000, &[with(0), with(1)]);
        assert_eq!(r.fates[0].prefilled, 60);
        assert_eq!(r.fates[1].prefilled, 12);
        assert_eq!(r.rows[1].plan.cached_tokens, 48);
    }

    #[test]
    fn a_step_tells_what_kept_the_queue_out_1_8() {
        let why = |p: &VllmV0Params, kv, reqs: &[Req]| go(p, kv, reqs).rows[0].plan.blocked;
        let two = [req(0, 60, 40), req(0, 80, 40)];
        assert_eq!(why(&params(), 128, &two), Blocked::KvFull);
        assert_eq!(why(&params(), 1000, &two), Blocked::TokenBudget);
        let mut p = params();
        p.max_num_seqs = 1;
        assert_eq!(why(&p, 1000, &two), Blocked::MaxSeqs);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn every_admitted_request_finishes_unless_the_watermark_forbids_it(
            is_chunked: bool,
            caching: bool,
            seqs in 1..9u32,
            budget in 48..120u32,
            partial in 1..4u32,
            watermark in 0.0..0.1f64,
            delay in 0..3u32,
            kv in 128..400u64,
            mut reqs in workload(30, 64, 64, 60),
        ) {
            let mut p = if is_chunked { chunked(budget) } else { params() };
            p.max_num_seqs = seqs;
            p.watermark = watermark;
            p.enable_prefix_caching = caching;
            p.scheduler_delay_factor = f64::from(delay);
            if is_chunked {
                p.max_num_partial_prefills = partial;
                p.long_prefill_token_threshold = 30;
            }
            for (i, r) in reqs.iter_mut().enumerate() {
                r.hashes = (0..8).map(|b| b * 1000 + if b < 2 { 0 } else { i as u64 % 3 }).collect();
            }
            let r = go(&p, kv, &reqs);
            let usable = kv / 16 - ((kv / 16) as f64 * watermark) as u64;
            for (f, q) in r.fates.iter().zip(&reqs) {
                prop_assert!(!f.failed || u64::from((q.prompt + f.tokens).div_ceil(16)) > usable);
            }
            for row in &r.rows {
                prop_assert!(row.load.running <= seqs);
                prop_assert!(!is_chunked || row.plan.stats.tokens() <= budget);
                prop_assert!(is_chunked || row.prefills().is_empty() || row.decodes().is_empty());
            }
            if !is_chunked || partial == 1 {
                assert_fifo(&r);
            }
        }
    }
}
