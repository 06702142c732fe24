//! TensorRT-LLM in-flight batching (serving-policies 3.1 to 3.4), with the queue limit of its executor (3.5).
//!
//! Two schedulers run in every iteration: the capacity scheduler says which requests may own KV, the micro-batch
//! scheduler says which of those run now. Pipeline parallelism keeps as many micro-batches in rotation as there are
//! stages; a request is in at most one of them.

mod transfer;

use std::cmp::Ordering;
use std::collections::VecDeque;

use hwmodels::ops::{Kernels, Products};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::ParamError;
use super::{Blocked, Given, KvMove, Load, RemoteKv, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::SimTime;
use crate::kv::{KvConfig, KvManager};
use crate::request::{RejectReason, ReqId};

const ENGINE: &str = "TensorRT-LLM";

/// Who may own KV (3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchSchedulerPolicy {
    /// A request starts only if it and all others can run to their end.
    #[default]
    GuaranteedNoEvict,
    /// A request starts if the next step fits; later starters are paused and recomputed when it no longer does.
    MaxUtilization,
    /// As `guaranteed_no_evict`, but new requests wait until all running ones have ended.
    StaticBatch,
}

/// How the token budget is split among prompts that do not all fit (3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContextChunkingPolicy {
    /// The first takes what it needs, then the next.
    #[default]
    FirstComeFirstServed,
    /// One chunk unit for each in turn.
    EqualProgress,
}

/// How data-parallel attention ranks wait for each other's prompts (5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionDpConfig {
    /// Whether prompts wait until every rank has one (default off).
    pub enable_balance: bool,
    /// Steps that they wait at most (default 50).
    pub timeout_iters: u32,
    /// Further steps that they wait for more prompts (default 10).
    pub batching_wait_iters: u32,
}

impl Default for AttentionDpConfig {
    fn default() -> AttentionDpConfig {
        AttentionDpConfig {
            enable_balance: false,
            timeout_iters: 50,
            batching_wait_iters: 10,
        }
    }
}

/// Parameters of engine and executor, by their own names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrtLlmParams {
    /// Requests of one micro-batch (default 2048).
    pub max_batch_size: u32,
    /// Tokens of one step [tokens] (default 8192).
    pub max_num_tokens: u32,
    /// Longest prompt + output [tokens]. Default: what the model allows.
    pub max_seq_len: Option<u32>,
    /// Tokens per KV block [tokens], a power of two (default 32; 64 in 2024).
    pub tokens_per_block: u32,
    /// KV tokens at most [tokens]. Default: what memory allows.
    pub max_tokens_in_paged_kv_cache: Option<u64>,
    /// Whether blocks of earlier requests can be reused (default off).
    pub enable_kv_cache_reuse: bool,
    /// Whether prompts may be split over steps (default off).
    pub enable_chunked_context: bool,
    /// How they are split.
    pub context_chunking_policy: ContextChunkingPolicy,
    /// Who may own KV (default `guaranteed_no_evict`).
    pub batch_scheduler_policy: BatchSchedulerPolicy,
    /// Requests that may wait to start; one more is answered 503. 0 (default): unlimited.
    pub max_queue_size: u32,
    /// Whether host work of a step hides behind the device's next one (the PyTorch backend, the default since 1.0, does so unless
    /// `disable_overlap_scheduler` is set; the C++ executor of compiled engines, which is meant here, does not). Default off.
    pub overlap_scheduler: bool,
    /// Whether cuBLASLt multiplies (`--gemm_plugin auto`), choosing a kernel for each shape (default). Without the plugin TensorRT chooses
    /// 16-bit kernels once, as the engine is built, and long prompts run on kernels made for `opt_num_tokens`.
    pub gemm_plugin: bool,
    /// Tokens that an engine without the GEMM plugin was tuned for [tokens]. Default: `max_batch_size`, at most `max_num_tokens`.
    pub opt_num_tokens: Option<u32>,
    /// Whether gate and up projection are one product (default; off before 0.13 unless asked for).
    pub use_fused_mlp: bool,
    /// Whether decode attention splits the KV of a sequence over idle processors (default; off before 0.13 unless asked for).
    pub multi_block_mode: bool,
    /// Batch sizes for which decode graphs are captured (`cuda_graph_config.batch_sizes`, with `enable_padding`); larger batches run without.
    /// A size above `max_batch_size` counts as that. Turns graphs on. Default: with `cuda_graphs`, 1, 2, 4, multiples of 8 to 256, then of 16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_graph_batch_sizes: Option<Vec<u32>>,
    /// Steps that prompts wait at most for others while requests decode, without data-parallel ranks (the PyTorch backend's key; 0: they do not wait).
    /// Needs `batch_wait_max_tokens_ratio`. Default: 0.
    pub batch_wait_timeout_iters: u32,
    /// They no longer wait once the tokens of waiting prompts and decodes reach this share of `max_num_tokens`, 0 to 1. Default: 0, which
    /// never waits.
    pub batch_wait_max_tokens_ratio: f64,
    /// With `layout.dp` (`enable_attention_dp`): how its ranks wait for each other's prompts: `{ enable_balance = true, timeout_iters = 50,
    /// batching_wait_iters = 10 }`, the latter two being defaults. Default: they do not wait.
    pub attention_dp_config: AttentionDpConfig,
}

impl Default for TrtLlmParams {
    fn default() -> TrtLlmParams {
        TrtLlmParams {
            max_batch_size: 2048,
            max_num_tokens: 8192,
            max_seq_len: None,
            tokens_per_block: 32,
            max_tokens_in_paged_kv_cache: None,
            enable_kv_cache_reuse: false,
            enable_chunked_context: false,
            context_chunking_policy: ContextChunkingPolicy::FirstComeFirstServed,
            batch_scheduler_policy: BatchSchedulerPolicy::GuaranteedNoEvict,
            max_queue_size: 0,
            overlap_scheduler: false,
            gemm_plugin: true,
            opt_num_tokens: None,
            use_fused_mlp: true,
            multi_block_mode: true,
            cuda_graph_batch_sizes: None,
            batch_wait_timeout_iters: 0,
            batch_wait_max_tokens_ratio: 0.0,
            attention_dp_config: AttentionDpConfig::default(),
        }
    }
}

/// [`TrtLlmParams`] after start-up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrtLlmConfig {
    /// The parameters as given.
    pub params: TrtLlmParams,
    /// Longest prompt + output [tokens].
    pub max_seq_len: u32,
    /// Longest prompt [tokens]: `max_num_tokens` at most without chunked context.
    pub max_input_len: u32,
    /// KV blocks there are.
    pub blocks: u64,
    /// Micro-batches in rotation: the pipeline stages.
    pub micro_batches: u32,
    /// What the executor would have warned about.
    pub warnings: Vec<String>,
}

impl TrtLlmParams {
    /// Which kernels the engine runs.
    pub fn kernels(&self) -> Kernels {
        Kernels {
            products: if self.gemm_plugin {
                Products::PerShape
            } else {
                Products::Compiled {
                    tokens: (self.opt_num_tokens)
                        .unwrap_or(self.max_batch_size.min(self.max_num_tokens)),
                }
            },
            gate_with_up: self.use_fused_mlp,
            split_kv: self.multi_block_mode,
            ..Kernels::trt_llm()
        }
    }

    /// Start-up with `kv_tokens`, what fits in memory beside the engine [tokens], a model whose longest sequence is
    /// `model_max_tokens` [tokens], and `pipeline_parallel` stages (3.4).
    pub fn resolve(
        &self,
        kv_tokens: u64,
        model_max_tokens: u32,
        pipeline_parallel: u32,
    ) -> Result<TrtLlmConfig, ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        for (param, value) in [
            ("max_batch_size", self.max_batch_size),
            ("max_num_tokens", self.max_num_tokens),
            ("tokens_per_block", self.tokens_per_block),
        ] {
            if value == 0 {
                return err(param, "must be at least 1, got 0".into());
            }
        }
        match self.opt_num_tokens {
            Some(_) if self.gemm_plugin => {
                return err(
                    "opt_num_tokens",
                    "has no effect with the GEMM plugin; add `gemm_plugin = false` or leave it out"
                        .into(),
                );
            }
            Some(n) if n == 0 || n > self.max_num_tokens => {
                return err(
                    "opt_num_tokens",
                    format!(
                        "must be 1 to max_num_tokens ({}), got {n}",
                        self.max_num_tokens
                    ),
                );
            }
            _ => {}
        }
        let ratio = self.batch_wait_max_tokens_ratio;
        if !(0.0..=1.0).contains(&ratio) {
            return err(
                "batch_wait_max_tokens_ratio",
                format!("must lie in 0 to 1, got {ratio}"),
            );
        }
        if !self.tokens_per_block.is_power_of_two() {
            return err(
                "tokens_per_block",
                format!("must be a power of two, got {}", self.tokens_per_block),
            );
        }
        if self.enable_chunked_context && self.max_num_tokens < self.tokens_per_block {
            return err(
                "max_num_tokens",
                format!(
                    "must hold one chunk unit (tokens_per_block = {}) with enable_chunked_context, got {}",
                    self.tokens_per_block, self.max_num_tokens
                ),
            );
        }
        let mut max_seq_len = self.max_seq_len.unwrap_or(model_max_tokens);
        if max_seq_len > model_max_tokens {
            return err(
                "max_seq_len",
                format!(
                    "{max_seq_len} is beyond the model's longest sequence, {model_max_tokens} tokens"
                ),
            );
        }
        let mut warnings = Vec::new();
        // TensorRT-LLM warns in these words and starts (BaseLlmArgs.validate_runtime_args).
        if self.max_batch_size > self.max_num_tokens {
            warnings.push(format!(
                "max_batch_size [{}] should be less than or equal to max_num_tokens [{}]: a step never holds more requests than tokens",
                self.max_batch_size, self.max_num_tokens
            ));
        }
        let tokens = self
            .max_tokens_in_paged_kv_cache
            .map_or(kv_tokens, |t| t.min(kv_tokens));
        let blocks = tokens / u64::from(self.tokens_per_block);
        let capacity = blocks * u64::from(self.tokens_per_block);
        if capacity < u64::from(max_seq_len) {
            warnings.push(format!(
                "KV cache holds {capacity} tokens: max_seq_len lowered from {max_seq_len} to that"
            ));
            max_seq_len = capacity as u32;
        }
        if max_seq_len < 2 {
            return err(
                "max_seq_len",
                format!(
                    "must be at least 2 tokens, got {max_seq_len} (KV cache of {blocks} blocks of {} tokens)",
                    self.tokens_per_block
                ),
            );
        }
        let max_input_len = if self.enable_chunked_context {
            max_seq_len - 1
        } else {
            (max_seq_len - 1).min(self.max_num_tokens)
        };
        Ok(TrtLlmConfig {
            params: self.clone(),
            max_seq_len,
            max_input_len,
            blocks,
            micro_batches: pipeline_parallel.max(1),
            warnings,
        })
    }
}

impl TrtLlmConfig {
    /// Requests that may run or wait for KV.
    pub(super) fn max_requests(&self) -> usize {
        (u64::from(self.params.max_batch_size) * u64::from(self.micro_batches)) as usize
    }

    /// Whether the executor takes in a request while `queued` others have not started.
    pub(super) fn admits(
        &self,
        prompt: u32,
        max_tokens: u32,
        queued: u32,
    ) -> Result<(), RejectReason> {
        let prompt = prompt.max(1);
        if prompt > self.max_input_len
            || prompt.saturating_add(max_tokens.max(1)) > self.max_seq_len
        {
            return Err(RejectReason::TooLong);
        }
        let limit = self.params.max_queue_size;
        if limit > 0 && queued >= limit {
            return Err(RejectReason::QueueFull);
        }
        Ok(())
    }
}

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
    in_flight: bool,
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

    /// Blocks that `id` still lacks to run to its end (3.2).
    fn blocks_to_completion(&self, id: ReqId) -> u64 {
        let s = &self.seqs[id as usize];
        let all = self.kv.blocks_for(s.prompt.saturating_add(s.max_new));
        all.saturating_sub(self.kv.held(id))
    }

    /// Blocks that `id` lacks for its next step; two steps ahead with several micro-batches (3.2).
    fn blocks_for_step(&self, id: ReqId) -> u64 {
        let s = &self.seqs[id as usize];
        let tokens = if s.generating() {
            let ahead = if self.config.micro_batches > 1 { 2 } else { 1 };
            s.done + ahead.min(s.max_new.saturating_sub(s.generated).max(1))
        } else {
            s.context
        };
        self.kv.blocks_for(tokens).saturating_sub(self.kv.held(id))
    }

    /// First full block of the context of `id` that nobody can reuse yet.
    fn new_block(&self, id: ReqId) -> Option<u64> {
        let s = &self.seqs[id as usize];
        let full = (s.context / self.config.params.tokens_per_block) as usize;
        // Blocks can be found when the whole context is there, so a started one has contributed none.
        let known = if s.state == State::Started {
            s.reused
        } else {
            self.kv.hits(id, s.context)
        };
        let hashes = &s.hashes[..full.min(s.hashes.len())];
        hashes.get(known as usize).copied()
    }

    /// Whether to leave `id` for a later round, because a scheduled request is producing the block it needs next (3.2).
    /// Otherwise its own next block counts as being produced.
    fn better_later(&mut self, id: ReqId) -> bool {
        if !self.config.params.enable_kv_cache_reuse
            || self.config.params.batch_scheduler_policy == BatchSchedulerPolicy::StaticBatch
        {
            return false;
        }
        match self.new_block(id) {
            Some(block) if self.producing.contains(&block) => true,
            Some(block) => {
                self.producing.push(block);
                false
            }
            None => false,
        }
    }

    /// Blocks that started contexts are producing.
    fn note_running_contexts(&mut self) {
        self.producing.clear();
        if !self.config.params.enable_kv_cache_reuse {
            return;
        }
        for i in 0..self.started.len() {
            let id = self.started[i];
            if !self.seqs[id as usize].generating()
                && let Some(block) = self.new_block(id)
            {
                self.producing.push(block);
            }
        }
    }

    /// The capacity scheduler (3.2): fills `fitting`, pauses into `paused`.
    fn choose_owners(&mut self, paused: &mut Vec<ReqId>) {
        self.fitting.clear();
        self.blocked = Blocked::Nothing;
        self.note_running_contexts();
        match self.config.params.batch_scheduler_policy {
            BatchSchedulerPolicy::MaxUtilization => self.choose_max_utilization(paused),
            BatchSchedulerPolicy::GuaranteedNoEvict | BatchSchedulerPolicy::StaticBatch => {
                self.choose_no_evict();
            }
        }
    }

    fn choose_no_evict(&mut self) {
        let max = self.config.max_requests();
        let mut available = self.kv.free();
        for &id in &self.started {
            if self.fitting.len() >= max {
                break;
            }
            if self.seqs[id as usize].generating() {
                self.fitting.push(id);
                available = available.saturating_sub(self.blocks_to_completion(id));
            }
        }
        let is_static =
            self.config.params.batch_scheduler_policy == BatchSchedulerPolicy::StaticBatch;
        if is_static && !self.fitting.is_empty() {
            self.blocked = Blocked::MaxSeqs;
            return;
        }
        let (mut i, mut j) = (0, 0);
        while self.fitting.len() < max {
            while i < self.started.len() && self.seqs[self.started[i] as usize].generating() {
                i += 1;
            }
            let Some((id, from_started)) = self.first_of(i, j) else {
                break;
            };
            if from_started {
                i += 1;
            } else {
                j += 1;
                if self.better_later(id) {
                    continue;
                }
            }
            let need = self.blocks_to_completion(id);
            if need > available {
                self.blocked = Blocked::KvFull;
                return;
            }
            available -= need;
            self.fitting.push(id);
        }
        if self.fitting.len() >= max {
            self.blocked = Blocked::MaxSeqs;
        }
    }

    fn choose_max_utilization(&mut self, paused: &mut Vec<ReqId>) {
        let max = self.config.max_requests();
        let mut needed = 0;
        let mut limit = None;
        let mut admissible = None;
        let (mut i, mut j) = (0, 0);
        while let Some((id, from_started)) = self.first_of(i, j) {
            if limit.is_some_and(|l| self.seqs[id as usize].key >= l) {
                break;
            }
            if !from_started && admissible != Some(id) {
                if self.better_later(id) {
                    j += 1;
                    continue;
                }
                admissible = Some(id);
            }
            let need = self.blocks_for_step(id);
            if self.fitting.len() < max && needed + need <= self.kv.free() {
                needed += need;
                self.fitting.push(id);
                if from_started {
                    i += 1;
                } else {
                    j += 1;
                }
                continue;
            }
            self.blocked = if self.fitting.len() >= max {
                Blocked::MaxSeqs
            } else {
                Blocked::KvFull
            };
            // Pausing puts the victim behind everything looked at so far, so the cursors stay valid.
            let Some(&victim) = self.started[i..].last() else {
                break;
            };
            if self.seqs[victim as usize].in_flight {
                // Its blocks come free only when its step ends.
                self.seqs[victim as usize].pause_due = true;
                break;
            }
            limit = Some(self.seqs[victim as usize].key);
            self.pause(victim);
            paused.push(victim);
        }
    }

    /// The earlier in list order of `started[i]` and `waiting[j]`, and whether it is the former.
    fn first_of(&self, i: usize, j: usize) -> Option<(ReqId, bool)> {
        let started = self.started.get(i).copied();
        let waiting = self.waiting.get(j).copied();
        match (started, waiting) {
            (Some(s), Some(w)) => {
                let first = self.seqs[s as usize].key.cmp(&self.seqs[w as usize].key);
                Some(if first == Ordering::Less {
                    (s, true)
                } else {
                    (w, false)
                })
            }
            (Some(s), None) => Some((s, true)),
            (None, w) => w.map(|w| (w, false)),
        }
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
        self.kv.publish(id, self.seqs[id as usize].done);
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

    /// The micro-batch scheduler (3.3): fills `contexts` (with their chunks) and `generations` from `fitting`.
    fn choose_micro_batch(&mut self) {
        self.contexts.clear();
        self.generations.clear();
        let p = &self.config.params;
        let budget = p.max_num_tokens;
        let (mut tokens, mut context_tokens, mut size) = (0u32, 0u64, 0u32);
        for k in 0..self.fitting.len() {
            let id = self.fitting[k];
            let s = &self.seqs[id as usize];
            if s.in_flight {
                continue;
            }
            if s.generating() {
                if tokens + 1 > budget {
                    self.blocked = Blocked::TokenBudget;
                    break;
                }
                tokens += 1;
                self.generations.push(id);
            } else {
                let cached = if s.state == State::Started {
                    s.done
                } else {
                    self.kv.hits(id, s.context) * p.tokens_per_block
                };
                let rest = s.context - cached;
                if !p.enable_chunked_context {
                    // A paused request may have outgrown the budget: it then runs alone (3.2).
                    let alone = rest > budget && self.contexts.is_empty() && tokens == 0;
                    if u64::from(tokens) + u64::from(rest) > u64::from(budget) && !alone {
                        self.blocked = Blocked::TokenBudget;
                        break;
                    }
                    tokens = tokens.saturating_add(rest);
                } else {
                    context_tokens += u64::from(rest);
                }
                let s = &mut self.seqs[id as usize];
                s.chunk = rest;
                if s.state != State::Started {
                    s.done = cached;
                }
                self.contexts.push(id);
            }
            size += 1;
            if size >= p.max_batch_size {
                self.blocked = Blocked::MaxSeqs;
                break;
            }
        }
        let room = budget.saturating_sub(tokens);
        if p.enable_chunked_context && context_tokens > u64::from(room) {
            self.blocked = Blocked::TokenBudget;
            self.split_budget(room);
        }
        let seqs = &self.seqs;
        self.contexts.retain(|&id| seqs[id as usize].chunk > 0);
    }

    /// Chunk sizes when the contexts exceed `room` tokens together (3.3).
    fn split_budget(&mut self, mut room: u32) {
        let unit = self.config.params.tokens_per_block;
        match self.config.params.context_chunking_policy {
            ContextChunkingPolicy::FirstComeFirstServed => {
                for &id in &self.contexts {
                    let s = &mut self.seqs[id as usize];
                    if s.chunk > room {
                        s.chunk = room / unit * unit;
                    }
                    room -= s.chunk;
                }
            }
            ContextChunkingPolicy::EqualProgress => {
                let rests: Vec<u32> = self
                    .contexts
                    .iter()
                    .map(|&id| std::mem::take(&mut self.seqs[id as usize].chunk))
                    .collect();
                loop {
                    let mut progress = false;
                    for (&id, &rest) in self.contexts.iter().zip(&rests) {
                        let s = &mut self.seqs[id as usize];
                        let more = unit.min(rest - s.chunk);
                        if more > 0 && more <= room {
                            s.chunk += more;
                            room -= more;
                            progress = true;
                        }
                    }
                    if !progress || room == 0 {
                        break;
                    }
                }
            }
        }
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

    /// Leaves the contexts of the chosen step for a later one while they are to wait for more (3.3, `PyExecutor._waiting_requests`).
    fn wait_for_more(&mut self) {
        let p = &self.config.params;
        if p.batch_wait_timeout_iters == 0
            || self.contexts.is_empty()
            || self.generations.is_empty()
        {
            return;
        }
        let of = |id: &ReqId| u64::from(self.seqs[*id as usize].context);
        let tokens = self.contexts.iter().map(of).sum::<u64>() + self.generations.len() as u64;
        let enough = p.batch_wait_max_tokens_ratio * f64::from(p.max_num_tokens);
        if self.waited < p.batch_wait_timeout_iters && (tokens as f64) < enough {
            self.waited += 1;
            self.leave_contexts_out();
        } else {
            self.waited = 0;
        }
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
            let s = &mut self.seqs[id as usize];
            s.in_flight = true;
            let samples = s.done + s.chunk == s.context;
            plan.entries.push(Scheduled {
                id,
                tokens: s.chunk,
                context: s.done,
                samples,
                decode: false,
            });
            plan.stats.add_prefill(s.chunk, s.done, samples);
        }
        for k in 0..self.generations.len() {
            let id = self.generations[k];
            let s = &mut self.seqs[id as usize];
            let grown = self.kv.grow(id, s.done + 1);
            debug_assert!(grown, "the capacity scheduler promised a block to {id}");
            if !grown {
                continue;
            }
            s.in_flight = true;
            plan.entries.push(Scheduled {
                id,
                tokens: 1,
                context: s.done,
                samples: true,
                decode: true,
            });
            plan.stats.add_decode(s.done + 1);
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
            s.in_flight = false;
            s.done = e.context + e.tokens;
            s.generated += given.to(i, e);
            if e.samples && !e.decode {
                // Context blocks can be reused once the whole context is there.
                self.kv.publish(e.id, s.done);
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
            } else if s.pause_due && s.state == State::Started {
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
        if s.state == State::Started && s.in_flight {
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
        self.config.micro_batches
    }
}

#[cfg(test)]
mod tests {
    use hwmodels::ops::{Experts, Sampler};
    use proptest::prelude::*;

    use super::super::testkit::{Checks, Req, Run, STEP, assert_fifo, req, run, workload};
    use super::*;

    fn params() -> TrtLlmParams {
        TrtLlmParams {
            max_batch_size: 8,
            max_num_tokens: 128,
            tokens_per_block: 16,
            ..TrtLlmParams::default()
        }
    }

    fn max_utilization() -> TrtLlmParams {
        TrtLlmParams {
            batch_scheduler_policy: BatchSchedulerPolicy::MaxUtilization,
            ..params()
        }
    }

    fn chunked() -> TrtLlmParams {
        TrtLlmParams {
            enable_chunked_context: true,
            ..params()
        }
    }

    fn staged(p: &TrtLlmParams, kv_tokens: u64, pp: u32, reqs: &[Req]) -> Run {
        let mut t = TrtLlm::new(p.resolve(kv_tokens, 256, pp).unwrap(), true);
        let checks = Checks {
            block: (!p.enable_kv_cache_reuse).then_some(p.tokens_per_block),
            ..Checks::default()
        };
        let r = run(&mut t, reqs, checks);
        t.kv.check();
        r
    }

    fn go(p: &TrtLlmParams, kv_tokens: u64, reqs: &[Req]) -> Run {
        staged(p, kv_tokens, 1, reqs)
    }

    #[test]
    fn prompts_wait_for_others_only_while_requests_decode_3_3() {
        let steps_of_the_late_one = |p: TrtLlmParams, late: u64| {
            let r = go(&p, 4096, &[req(0, 16, 60), req(late * STEP, 16, 4)]);
            r.fates[1].first_token.unwrap() / STEP - late
        };
        let waiting = |iters, ratio| TrtLlmParams {
            batch_wait_timeout_iters: iters,
            batch_wait_max_tokens_ratio: ratio,
            ..params()
        };
        let at_once = steps_of_the_late_one(params(), 5);
        assert_eq!(steps_of_the_late_one(waiting(10, 0.5), 5), at_once + 10);
        // Without a share to reach nobody waits; 17 tokens are enough for a tenth of 128; and nobody waits for nothing.
        assert_eq!(steps_of_the_late_one(waiting(10, 0.0), 5), at_once);
        assert_eq!(steps_of_the_late_one(waiting(10, 0.1), 5), at_once);
        assert_eq!(
            steps_of_the_late_one(waiting(10, 0.5), 100),
            steps_of_the_late_one(params(), 100)
        );
        let p = TrtLlmParams {
            batch_wait_max_tokens_ratio: 1.5,
            ..params()
        };
        assert_eq!(
            p.resolve(4096, 256, 1).unwrap_err().param,
            "batch_wait_max_tokens_ratio"
        );
    }

    #[test]
    fn defaults_are_those_of_the_llm_api_3_4() {
        let p = TrtLlmParams::default();
        assert_eq!(
            (p.max_batch_size, p.max_num_tokens, p.tokens_per_block),
            (2048, 8192, 32)
        );
        assert!(!p.enable_kv_cache_reuse && !p.enable_chunked_context);
        assert_eq!(
            p.batch_scheduler_policy,
            BatchSchedulerPolicy::GuaranteedNoEvict
        );
        let c = p.resolve(1_000_000, 131_072, 2).unwrap();
        assert_eq!(
            (c.max_seq_len, c.max_input_len, c.micro_batches),
            (131_072, 8192, 2)
        );
        assert_eq!(c.blocks, 31_250);
    }

    #[test]
    fn kernels_are_compiled_for_the_largest_batch_unless_told_otherwise_3_4() {
        let mut p = TrtLlmParams::default();
        let current = Kernels {
            xqa: true,
            fused_quantisation: true,
            fused_rotary: true,
            experts: Experts::Cutlass,
            sampler: Sampler::FlashInfer,
            ..Kernels::default()
        };
        assert_eq!(p.kernels(), current);
        p.gemm_plugin = false;
        p.max_batch_size = 8;
        assert_eq!(p.kernels().products, Products::Compiled { tokens: 8 });
        p.opt_num_tokens = Some(512);
        assert_eq!(p.kernels().products, Products::Compiled { tokens: 512 });
        p.opt_num_tokens = None;
        p.max_num_tokens = 4;
        assert_eq!(p.kernels().products, Products::Compiled { tokens: 4 });
    }

    #[test]
    fn start_up_refuses_impossible_parameters_3_4() {
        let refused = |change: &dyn Fn(&mut TrtLlmParams)| {
            let mut p = params();
            change(&mut p);
            p.resolve(10_000, 256, 1).unwrap_err().param
        };
        assert_eq!(refused(&|p| p.max_batch_size = 0), "max_batch_size");
        assert_eq!(refused(&|p| p.tokens_per_block = 24), "tokens_per_block");
        assert_eq!(refused(&|p| p.opt_num_tokens = Some(8)), "opt_num_tokens");
        for tokens in [0, params().max_num_tokens + 1] {
            let with = |p: &mut TrtLlmParams| {
                p.gemm_plugin = false;
                p.opt_num_tokens = Some(tokens);
            };
            assert_eq!(refused(&with), "opt_num_tokens");
        }
        assert_eq!(refused(&|p| p.max_seq_len = Some(257)), "max_seq_len");
        assert_eq!(
            refused(&|p| p.max_tokens_in_paged_kv_cache = Some(10)),
            "max_seq_len"
        );
        assert_eq!(
            refused(&|p| {
                p.enable_chunked_context = true;
                p.max_num_tokens = 8;
            }),
            "max_num_tokens"
        );
    }

    #[test]
    fn the_smaller_of_memory_and_max_tokens_in_paged_kv_cache_counts_3_4() {
        let p = TrtLlmParams {
            max_tokens_in_paged_kv_cache: Some(100),
            ..params()
        };
        let c = p.resolve(10_000, 256, 1).unwrap();
        assert_eq!((c.blocks, c.max_seq_len), (6, 96));
        assert_eq!(c.warnings.len(), 1);
    }

    #[test]
    fn prompts_beyond_the_step_budget_are_refused_unless_chunked_3_4() {
        let reqs = [req(0, 129, 5), req(0, 128, 5)];
        let r = go(&params(), 10_000, &reqs);
        assert_eq!(r.fates[0].rejected, Some(RejectReason::TooLong));
        assert_eq!(r.fates[1].tokens, 5);
        assert_eq!(go(&chunked(), 10_000, &reqs).fates[0].tokens, 5);
    }

    #[test]
    fn a_full_queue_answers_503_3_5() {
        let p = TrtLlmParams {
            max_queue_size: 1,
            max_batch_size: 1,
            ..params()
        };
        let r = go(&p, 10_000, &[req(0, 10, 9), req(1, 10, 9), req(2, 10, 9)]);
        assert_eq!(r.fates[2].rejected, Some(RejectReason::QueueFull));
        assert_eq!(r.fates[1].rejected, None);
    }

    #[test]
    fn contexts_and_generations_share_a_step_contexts_first_3_1() {
        let r = go(&params(), 10_000, &[req(0, 20, 9), req(1, 30, 9)]);
        let kinds: Vec<(u32, bool)> = r.rows[1]
            .plan
            .entries
            .iter()
            .map(|e| (e.id, e.decode))
            .collect();
        assert_eq!(kinds, [(1, false), (0, true)]);
        assert_eq!(r.rows[1].plan.stats.tokens(), 31);
    }

    #[test]
    fn no_evict_admits_only_what_can_run_to_its_end_3_2() {
        // 16 + 32 tokens are 3 blocks each; 5 blocks hold one of them, whatever the outputs really are.
        let mut a = req(0, 16, 2);
        a.max = 32;
        let reqs = [a.clone(), a];
        let r = go(&params(), 5 * 16, &reqs);
        assert_eq!(r.fates[1].first_step, Some(2));
        let r = go(&params(), 6 * 16, &reqs);
        assert_eq!(r.fates[1].first_step, Some(0));
    }

    #[test]
    fn the_first_request_that_does_not_fit_stops_admission_3_2() {
        let reqs = [req(0, 16, 32), req(0, 48, 32), req(0, 16, 8)];
        let r = go(&params(), 5 * 16, &reqs);
        assert_eq!(r.rows[0].prefills(), [(0, 16)]);
        assert_fifo(&r);
    }

    #[test]
    fn max_utilization_starts_what_fits_the_next_step_and_pauses_the_last_starter_3_2() {
        // Prompts of 16 and outputs of 32: 3 blocks each, 2 x 3 > 5.
        let reqs = [req(0, 16, 33), req(0, 16, 33)];
        let r = go(&max_utilization(), 5 * 16, &reqs);
        assert_eq!(r.rows[0].prefills().len(), 2);
        assert_eq!((r.fates[0].preempted, r.fates[1].preempted), (0, 1));
        let paused = r
            .rows
            .iter()
            .position(|r| !r.plan.preempted.is_empty())
            .unwrap();
        // Both hold 32 tokens after 17 steps; the next one needs a third block each, one is free.
        assert_eq!(paused, 17);
        assert_eq!(r.rows[paused].decodes(), [0]);
        // It comes back with prompt and outputs to compute, and its old outputs are not repeated.
        assert_eq!(r.fates[1].prefilled, 16 + 33);
        assert_eq!(r.fates[1].tokens, 33);
    }

    #[test]
    fn no_evict_never_pauses_and_max_utilization_batches_more_3_2() {
        let reqs: Vec<Req> = (0..12).map(|_| req(0, 16, 48)).collect();
        let guaranteed = go(&params(), 16 * 16, &reqs);
        let greedy = go(&max_utilization(), 16 * 16, &reqs);
        assert!(guaranteed.fates.iter().all(|f| f.preempted == 0));
        assert!(greedy.fates.iter().any(|f| f.preempted > 0));
        let most = |r: &Run| r.rows.iter().map(|r| r.load.running).max();
        assert!(most(&greedy) > most(&guaranteed));
    }

    #[test]
    fn static_batch_lets_nobody_in_before_all_have_ended_3_2() {
        let p = TrtLlmParams {
            batch_scheduler_policy: BatchSchedulerPolicy::StaticBatch,
            max_batch_size: 2,
            ..params()
        };
        let r = go(
            &p,
            10_000,
            &[req(0, 16, 3), req(0, 16, 9), req(0, 16, 3), req(0, 16, 2)],
        );
        assert_eq!(r.fates[2].first_step, Some(9));
        assert_eq!(r.fates[3].first_step, Some(9));
    }

    #[test]
    fn without_chunking_a_prompt_waits_for_room_in_the_step_3_3() {
        let r = go(
            &params(),
            10_000,
            &[req(0, 100, 5), req(0, 29, 5), req(0, 5, 5)],
        );
        assert_eq!(
            r.rows[0].prefills(),
            [(0, 100)],
            "29 do not fit, and 5 may not pass"
        );
        assert_eq!(r.rows[1].prefills(), [(1, 29), (2, 5)]);
        assert_eq!(r.rows[1].decodes(), [0]);
    }

    #[test]
    fn first_come_first_served_chunks_are_rounded_down_to_blocks_3_3() {
        let r = go(&chunked(), 10_000, &[req(0, 100, 5), req(0, 60, 5)]);
        // 28 tokens are left: one block of 16.
        assert_eq!(r.rows[0].prefills(), [(0, 100), (1, 16)]);
        assert_eq!(
            r.rows[1].prefills(),
            [(1, 44)],
            "the chunk that completes a prompt is not rounded"
        );
        assert_eq!(r.fates[1].first_token, Some(2 * STEP));
    }

    #[test]
    fn equal_progress_gives_one_unit_to_each_in_turn_3_3() {
        let p = TrtLlmParams {
            context_chunking_policy: ContextChunkingPolicy::EqualProgress,
            ..chunked()
        };
        let r = go(&p, 10_000, &[req(0, 100, 5), req(0, 60, 5), req(0, 20, 5)]);
        // Rounds: 16 16 16, then 16 16 4, then 16 16: 116 used, no unit of 16 fits the 12 left; 60 - 48 = 12 does.
        assert_eq!(r.rows[0].prefills(), [(0, 48), (1, 60), (2, 20)]);
    }

    #[test]
    fn generations_beyond_max_num_tokens_wait_3_3() {
        let p = TrtLlmParams {
            max_num_tokens: 16,
            max_batch_size: 20,
            ..params()
        };
        let reqs: Vec<Req> = (0..20).map(|_| req(0, 1, 40)).collect();
        let r = go(&p, 10_000, &reqs);
        assert!(r.rows.iter().all(|r| r.plan.stats.tokens() <= 16));
    }

    #[test]
    fn a_request_is_in_one_micro_batch_at_a_time_and_stages_overlap_3_4() {
        let p = TrtLlmParams {
            max_batch_size: 2,
            ..params()
        };
        let reqs: Vec<Req> = (0..4).map(|_| req(0, 16, 10)).collect();
        let r = staged(&p, 10_000, 2, &reqs);
        // Two micro-batches of two requests take turns.
        let turns: Vec<u32> = r.rows[2..6].iter().map(|r| r.decodes()[0]).collect();
        assert_eq!(turns, [0, 2, 0, 2]);
        assert_eq!(r.rows[3].load.running, 4, "max_batch_size x stages");
    }

    #[test]
    fn max_utilization_looks_two_steps_ahead_with_several_micro_batches_3_2() {
        let p = max_utilization();
        let one = TrtLlm::new(p.resolve(1000, 256, 1).unwrap(), false);
        let two = TrtLlm::new(p.resolve(1000, 256, 2).unwrap(), false);
        let need = |mut t: TrtLlm| {
            let params = SeqParams {
                prompt_tokens: 15,
                max_tokens: 50,
                priority: 0,
                arrival: SimTime::ZERO,
                block_hashes: Vec::new(),
            };
            t.add(0, params).unwrap();
            let mut plan = StepPlan::default();
            t.plan(SimTime::ZERO, &mut plan);
            t.complete(&plan, Given::default());
            t.blocks_for_step(0)
        };
        assert_eq!(
            (need(one), need(two)),
            (0, 1),
            "15 computed: the 17th opens a block"
        );
    }

    #[test]
    fn reuse_covers_at_most_all_but_the_last_prompt_token_3_4() {
        let p = TrtLlmParams {
            enable_kv_cache_reuse: true,
            ..params()
        };
        let with = |at, prompt| Req {
            hashes: vec![1, 2, 3, 4, 5],
            ..req(at, prompt, 2)
        };
        let r = go(
            &p,
            10_000,
            &[with(0, 64), with(9 * STEP, 64), with(20 * STEP, 70)],
        );
        assert_eq!(r.fates[1].prefilled, 16, "three of four blocks");
        assert_eq!(r.fates[2].prefilled, 6, "four blocks");
    }

    #[test]
    fn a_request_whose_next_block_is_being_produced_waits_for_it_3_2() {
        for policy in [
            BatchSchedulerPolicy::GuaranteedNoEvict,
            BatchSchedulerPolicy::MaxUtilization,
        ] {
            let p = TrtLlmParams {
                enable_kv_cache_reuse: true,
                batch_scheduler_policy: policy,
                ..params()
            };
            let with = |last| Req {
                hashes: vec![1, 2, last],
                ..req(0, 50, 4)
            };
            let mut other = req(0, 20, 4);
            other.hashes = vec![9];
            let r = go(&p, 10_000, &[with(3), with(4), other]);
            assert_eq!(r.rows[0].prefills(), [(0, 50), (2, 20)]);
            assert_eq!(
                r.rows[1].prefills(),
                [(1, 18)],
                "two blocks found one step later"
            );
        }
    }

    #[test]
    fn urgent_requests_come_first_in_the_active_list_3_2() {
        let mut late = req(0, 16, 4);
        late.priority = -1;
        let p = TrtLlmParams {
            max_batch_size: 1,
            ..params()
        };
        let r = go(&p, 10_000, &[req(0, 16, 4), late]);
        assert_eq!(r.fates[1].first_step, Some(0));
    }

    #[test]
    fn a_step_tells_what_kept_the_queue_out_3_2() {
        let why = |p: &TrtLlmParams, kv, reqs: &[Req]| go(p, kv, reqs).rows[0].plan.blocked;
        let two = [req(0, 60, 40), req(0, 80, 40)];
        assert_eq!(why(&params(), 128, &two), Blocked::KvFull);
        assert_eq!(why(&max_utilization(), 128, &two), Blocked::KvFull);
        assert_eq!(why(&params(), 1000, &two), Blocked::TokenBudget);
        let mut p = params();
        p.max_batch_size = 1;
        assert_eq!(why(&p, 1000, &two), Blocked::MaxSeqs);
    }

    fn any_params() -> impl Strategy<Value = TrtLlmParams> {
        (
            1..8u32,
            64..200u32,
            0..3u32,
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            0..3u8,
        )
            .prop_map(|(batch, tokens, block, chunked, equal, reuse, policy)| {
                TrtLlmParams {
                    max_batch_size: batch,
                    max_num_tokens: tokens,
                    tokens_per_block: 8 << block,
                    enable_chunked_context: chunked,
                    context_chunking_policy: if equal {
                        ContextChunkingPolicy::EqualProgress
                    } else {
                        ContextChunkingPolicy::FirstComeFirstServed
                    },
                    enable_kv_cache_reuse: reuse,
                    batch_scheduler_policy: [
                        BatchSchedulerPolicy::GuaranteedNoEvict,
                        BatchSchedulerPolicy::MaxUtilization,
                        BatchSchedulerPolicy::StaticBatch,
                    ][usize::from(policy)],
                    ..TrtLlmParams::default()
                }
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn every_admitted_request_finishes_within_the_limits(
            p in any_params(),
            pp in 1..4u32,
            mut reqs in workload(30, 64, 64, 60),
            shared in 0..4u64,
            kv in 160..600u64,
        ) {
            for (i, r) in reqs.iter_mut().enumerate() {
                // Some share a first block or more, some nothing.
                let own = if shared == 0 { i as u64 } else { i as u64 % (shared + 1) };
                r.hashes = (0..20).map(|b| b * 1000 + if b < shared { 0 } else { own }).collect();
            }
            let r = staged(&p, kv, pp, &reqs);
            for row in &r.rows {
                let outgrown = row.plan.entries.len() == 1;
                prop_assert!(row.plan.stats.tokens() <= p.max_num_tokens || outgrown);
                prop_assert!(row.plan.entries.len() as u32 <= p.max_batch_size);
                prop_assert!(row.load.running <= p.max_batch_size * pp);
            }
            if p.batch_scheduler_policy != BatchSchedulerPolicy::MaxUtilization {
                prop_assert!(r.fates.iter().all(|f| f.preempted == 0));
                // What is too little for a unit of one prompt may complete a later one.
                if !p.enable_kv_cache_reuse && !p.enable_chunked_context {
                    let firsts: Vec<usize> = r.fates.iter().filter_map(|f| f.first_step).collect();
                    prop_assert!(firsts.is_sorted());
                }
            }
        }
    }
}
