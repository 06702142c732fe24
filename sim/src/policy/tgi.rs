//! Text Generation Inference: the router's queue and batching loop, versions 2 and 3 (serving-policies 2).
//!
//! Admission reserves the worst case (prompt + max_new_tokens), so nothing is ever preempted. Without chunked prefill
//! the new requests of a batch are prefilled in a step of their own while the running ones stand still; the ratio of
//! waiting to running requests and a counter of decode steps decide how often that may happen.
//! `2.x` in this file are the sections of the serving-policies page in `docs/`.

use std::collections::VecDeque;

use hwmodels::BatchStats;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::ParamError;
use super::{Blocked, Given, Load, Scheduled, Scheduler, SeqParams, StepPlan};
use crate::kernel::time::SimTime;
use crate::kv::{KvConfig, KvManager};
use crate::request::{RejectReason, ReqId};

const ENGINE: &str = "TGI";

/// Which generation of the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TgiVersion {
    /// 1.x and 2.x (late 2023 to 2024): token sums against a budget, no chunking.
    #[default]
    V2,
    /// 3.x: a block allocator, prefix cache, chunked prefill.
    V3,
}

/// The launcher's options, by their own names in lower case. What is left out gets the version's default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TgiParams {
    /// Generation of the router.
    pub version: TgiVersion,
    /// Requests served or waiting at once; one more is answered 429 (default 128).
    pub max_concurrent_requests: u32,
    /// Longest prompt [tokens]; longer is answered 422. Default: v2 1024, v3 `max_total_tokens` - 1.
    pub max_input_tokens: Option<u32>,
    /// Longest prompt + max_new_tokens [tokens]; more is answered 422. Default: v2 2048, v3 what model and memory allow.
    pub max_total_tokens: Option<u32>,
    /// Prompt tokens of one prefill [tokens]. Default: v2 max(4096, `max_input_tokens` + 50), v3 4096 at most.
    pub max_batch_prefill_tokens: Option<u32>,
    /// Tokens of the running batch [tokens]. Paged servers infer it from memory and ignore it; padded ones default to
    /// max(16000, `max_total_tokens`, `max_batch_prefill_tokens`).
    pub max_batch_total_tokens: Option<u64>,
    /// New requests wait until they number this share of the running ones (2.4). Default: v2 1.2, v3 0.3.
    pub waiting_served_ratio: Option<f32>,
    /// ... or until this many decode steps have passed (default 20).
    pub max_waiting_tokens: u32,
    /// Hard cap on the requests of a batch. Default: none.
    pub max_batch_size: Option<u32>,
    /// Whether a prompt may be split over several steps that it shares with decodes. v3 only, default on.
    pub prefill_chunking: Option<bool>,
    /// Whether finished prompts stay findable. v3 only, default on.
    pub prefix_caching: Option<bool>,
    /// Tokens per KV block [tokens]. Default: v2 16, v3 1 (flashinfer).
    pub block_size: Option<u32>,
    /// Whether the back-end has paged attention. False (v2 only): prompts are padded to the longest of the batch.
    pub paged: bool,
}

impl Default for TgiParams {
    fn default() -> TgiParams {
        TgiParams {
            version: TgiVersion::V2,
            max_concurrent_requests: 128,
            max_input_tokens: None,
            max_total_tokens: None,
            max_batch_prefill_tokens: None,
            max_batch_total_tokens: None,
            waiting_served_ratio: None,
            max_waiting_tokens: 20,
            max_batch_size: None,
            prefill_chunking: None,
            prefix_caching: None,
            block_size: None,
            paged: true,
        }
    }
}

/// [`TgiParams`] after start-up: every default filled in and checked (2.1).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TgiConfig {
    /// Generation of the router.
    pub version: TgiVersion,
    /// Requests served or waiting at once.
    pub max_concurrent_requests: u32,
    /// Longest prompt [tokens].
    pub max_input_tokens: u32,
    /// Longest prompt + max_new_tokens [tokens].
    pub max_total_tokens: u32,
    /// Prompt tokens of one prefill [tokens].
    pub max_batch_prefill_tokens: u32,
    /// Tokens of the running batch [tokens].
    pub max_batch_total_tokens: u64,
    /// Share of the running requests that new ones must number.
    pub waiting_served_ratio: f32,
    /// Decode steps after which new requests no longer need to.
    pub max_waiting_tokens: u32,
    /// Hard cap on the requests of a batch.
    pub max_batch_size: Option<u32>,
    /// Whether prompts are split over steps shared with decodes.
    pub prefill_chunking: bool,
    /// Whether finished prompts stay findable.
    pub prefix_caching: bool,
    /// Tokens per KV block [tokens].
    pub block_size: u32,
    /// Whether KV is paged.
    pub paged: bool,
    /// What the launcher would have warned about.
    pub warnings: Vec<String>,
}

impl TgiParams {
    /// The launcher's start-up (2.1): fills defaults from `kv_tokens`, what fits in memory beside the weights
    /// [tokens], and `model_max_tokens`, the model's longest sequence [tokens]; refuses what the launcher refuses.
    pub fn resolve(&self, kv_tokens: u64, model_max_tokens: u32) -> Result<TgiConfig, ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        let v3 = self.version == TgiVersion::V3;
        let mut warnings = Vec::new();
        if !self.paged && v3 {
            return err("paged", "false needs version = \"v2\"; v3 is paged".into());
        }
        let prefill_chunking = self.prefill_chunking.unwrap_or(v3);
        if prefill_chunking && !v3 {
            return err(
                "prefill_chunking",
                "version v2 has no chunked prefill; use version = \"v3\"".into(),
            );
        }
        let prefix_caching = self.prefix_caching.unwrap_or(v3);
        if prefix_caching && !v3 {
            return err(
                "prefix_caching",
                "version v2 has no prefix cache; use version = \"v3\"".into(),
            );
        }
        if self.max_batch_size.is_some() && prefill_chunking {
            return err(
                "max_batch_size",
                "back-ends that chunk prefill ignore it; set prefill_chunking = false or leave it out"
                    .into(),
            );
        }
        for (param, value) in [
            (
                "max_concurrent_requests",
                Some(self.max_concurrent_requests),
            ),
            ("max_input_tokens", self.max_input_tokens),
            ("max_total_tokens", self.max_total_tokens),
            ("max_batch_prefill_tokens", self.max_batch_prefill_tokens),
            ("max_batch_size", self.max_batch_size),
            ("block_size", self.block_size),
        ] {
            if value == Some(0) {
                return err(param, "must be at least 1, got 0".into());
            }
        }
        let waiting_served_ratio = self
            .waiting_served_ratio
            .unwrap_or(if v3 { 0.3 } else { 1.2 });
        if !waiting_served_ratio.is_finite() || waiting_served_ratio < 0.0 {
            return err(
                "waiting_served_ratio",
                format!("must be a number >= 0, got {waiting_served_ratio}"),
            );
        }
        let block_size = match (self.paged, self.block_size) {
            (false, _) => 1,
            (true, given) => given.unwrap_or(if v3 { 1 } else { 16 }),
        };
        // v3 sets block 0 aside (2.3).
        let usable = (kv_tokens / u64::from(block_size)).saturating_sub(u64::from(v3))
            * u64::from(block_size);
        let usable_u32 = u32::try_from(usable).unwrap_or(u32::MAX);
        let max_total_tokens = self.max_total_tokens.unwrap_or(if v3 {
            model_max_tokens.min(usable_u32)
        } else {
            model_max_tokens.min(2048)
        });
        if max_total_tokens > model_max_tokens {
            return err(
                "max_total_tokens",
                format!(
                    "{max_total_tokens} is beyond the model's longest sequence, {model_max_tokens} tokens"
                ),
            );
        }
        let max_input_tokens = self.max_input_tokens.unwrap_or(if v3 {
            max_total_tokens.saturating_sub(1)
        } else {
            1024
        });
        if max_input_tokens >= max_total_tokens {
            return err(
                "max_input_tokens",
                format!(
                    "must be < max_total_tokens ({max_total_tokens}), got {max_input_tokens}; TGI would not start"
                ),
            );
        }
        let max_batch_prefill_tokens = self.max_batch_prefill_tokens.unwrap_or_else(|| {
            if !v3 {
                max_input_tokens.saturating_add(50).max(4096)
            } else if prefill_chunking {
                4096.min(model_max_tokens).min(usable_u32)
            } else {
                4096.min(model_max_tokens)
                    .min(usable_u32)
                    .max(max_input_tokens)
            }
        });
        if max_batch_prefill_tokens < max_input_tokens && !prefill_chunking {
            return err(
                "max_batch_prefill_tokens",
                format!(
                    "must be >= max_input_tokens ({max_input_tokens}) without prefill_chunking, got \
                     {max_batch_prefill_tokens}; TGI would not start"
                ),
            );
        }
        let max_batch_total_tokens = if self.paged {
            if let Some(given) = self.max_batch_total_tokens {
                warnings.push(format!(
                    "TGI infers max_batch_total_tokens for paged models ({usable}); the given {given} is ignored"
                ));
            }
            usable
        } else {
            let given = self.max_batch_total_tokens.unwrap_or(
                16000
                    .max(u64::from(max_total_tokens))
                    .max(u64::from(max_batch_prefill_tokens)),
            );
            if given > kv_tokens {
                return err(
                    "max_batch_total_tokens",
                    format!("{given} tokens do not fit: memory holds {kv_tokens}"),
                );
            }
            given
        };
        for (param, value) in [
            ("max_total_tokens", max_total_tokens),
            ("max_batch_prefill_tokens", max_batch_prefill_tokens),
        ] {
            if u64::from(value) > max_batch_total_tokens {
                return err(
                    param,
                    format!(
                        "must be <= max_batch_total_tokens ({max_batch_total_tokens}), got {value}"
                    ),
                );
            }
        }
        Ok(TgiConfig {
            version: self.version,
            max_concurrent_requests: self.max_concurrent_requests,
            max_input_tokens,
            max_total_tokens,
            max_batch_prefill_tokens,
            max_batch_total_tokens,
            waiting_served_ratio,
            max_waiting_tokens: self.max_waiting_tokens,
            max_batch_size: self.max_batch_size,
            prefill_chunking,
            prefix_caching,
            block_size,
            paged: self.paged,
            warnings,
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
mod tests {
    use proptest::prelude::*;

    use super::super::testkit::{Checks, Req, Run, STEP, assert_fifo, req, run, workload};
    use super::*;

    fn v2() -> TgiParams {
        TgiParams {
            max_input_tokens: Some(100),
            max_total_tokens: Some(200),
            max_batch_prefill_tokens: Some(200),
            block_size: Some(1),
            ..TgiParams::default()
        }
    }

    fn v3() -> TgiParams {
        TgiParams {
            version: TgiVersion::V3,
            ..v2()
        }
    }

    fn server(params: &TgiParams, kv_tokens: u64) -> Tgi {
        Tgi::new(params.resolve(kv_tokens, 4096).unwrap(), true)
    }

    fn go(params: &TgiParams, kv_tokens: u64, reqs: &[Req]) -> Run {
        let checks = Checks {
            exact_stats: params.paged,
            // Without shared content there is nothing to hit, and blocks cover what is computed.
            block: (params.paged && reqs.iter().all(|r| r.hashes.is_empty()))
                .then(|| params.block_size.unwrap_or(16)),
        };
        run(&mut server(params, kv_tokens), reqs, checks)
    }

    #[test]
    fn start_up_fills_the_defaults_of_each_version_2_1() {
        let c = TgiParams::default().resolve(20_000, 4096).unwrap();
        assert_eq!((c.max_input_tokens, c.max_total_tokens), (1024, 2048));
        assert_eq!(c.max_batch_prefill_tokens, 4096);
        assert_eq!((c.waiting_served_ratio, c.max_waiting_tokens), (1.2, 20));
        assert_eq!((c.max_concurrent_requests, c.block_size), (128, 16));
        assert_eq!(c.max_batch_total_tokens, 20_000);
        assert!(!c.prefill_chunking && c.warnings.is_empty());

        let p = TgiParams {
            version: TgiVersion::V3,
            ..TgiParams::default()
        };
        let c = p.resolve(20_001, 131_072).unwrap();
        assert_eq!((c.max_input_tokens, c.max_total_tokens), (19_999, 20_000));
        assert_eq!((c.max_batch_prefill_tokens, c.block_size), (4096, 1));
        assert_eq!(c.waiting_served_ratio, 0.3);
        assert!(c.prefill_chunking && c.prefix_caching);

        let p = TgiParams {
            paged: false,
            ..TgiParams::default()
        };
        assert_eq!(
            p.resolve(20_000, 4096).unwrap().max_batch_total_tokens,
            16_000
        );
    }

    #[test]
    fn start_up_refuses_what_the_launcher_refuses_2_1() {
        let refused = |change: &dyn Fn(&mut TgiParams)| {
            let mut p = v2();
            change(&mut p);
            p.resolve(1000, 4096).unwrap_err().param
        };
        assert_eq!(
            refused(&|p| p.max_input_tokens = Some(200)),
            "max_input_tokens"
        );
        assert_eq!(
            refused(&|p| p.max_batch_prefill_tokens = Some(99)),
            "max_batch_prefill_tokens"
        );
        assert_eq!(
            refused(&|p| p.max_batch_prefill_tokens = Some(1001)),
            "max_batch_prefill_tokens"
        );
        assert_eq!(
            refused(&|p| p.max_total_tokens = Some(1001)),
            "max_total_tokens"
        );
        assert_eq!(
            refused(&|p| p.max_total_tokens = Some(5000)),
            "max_total_tokens"
        );
        assert_eq!(
            refused(&|p| p.prefill_chunking = Some(true)),
            "prefill_chunking"
        );
        assert_eq!(
            refused(&|p| p.prefix_caching = Some(true)),
            "prefix_caching"
        );
        assert_eq!(refused(&|p| p.block_size = Some(0)), "block_size");
        assert_eq!(
            refused(&|p| p.waiting_served_ratio = Some(f32::NAN)),
            "waiting_served_ratio"
        );
        let mut p = v3();
        p.max_batch_size = Some(4);
        assert_eq!(p.resolve(1000, 4096).unwrap_err().param, "max_batch_size");
        let e = v2().resolve(150, 4096).unwrap_err().to_string();
        assert_eq!(
            e,
            "TGI: max_total_tokens: must be <= max_batch_total_tokens (150), got 200"
        );
        // A prefill budget below the longest prompt is fine once prompts can be split.
        let mut p = v3();
        p.max_batch_prefill_tokens = Some(32);
        assert!(p.resolve(1000, 4096).is_ok());
    }

    #[test]
    fn a_given_total_budget_is_ignored_with_a_warning_on_paged_servers_2_1() {
        let mut p = v2();
        p.max_batch_total_tokens = Some(500);
        let c = p.resolve(1000, 4096).unwrap();
        assert_eq!(c.max_batch_total_tokens, 1000);
        assert_eq!(c.warnings.len(), 1);
    }

    #[test]
    fn one_request_more_than_max_concurrent_requests_is_overloaded_2_1() {
        let mut p = v2();
        p.max_concurrent_requests = 2;
        let r = go(
            &p,
            1000,
            &[
                req(0, 10, 5),
                req(0, 10, 5),
                req(0, 10, 5),
                req(9 * STEP, 10, 1),
            ],
        );
        assert_eq!(r.fates[2].rejected, Some(RejectReason::Overloaded));
        assert_eq!(
            r.fates[3].rejected, None,
            "a finished request gives its place back"
        );
    }

    #[test]
    fn too_long_prompts_and_totals_are_refused_2_1() {
        let r = go(
            &v2(),
            1000,
            &[req(0, 101, 5), req(0, 100, 101), req(0, 100, 100)],
        );
        assert_eq!(r.fates[0].rejected, Some(RejectReason::TooLong));
        assert_eq!(r.fates[1].rejected, Some(RejectReason::TooLong));
        assert_eq!(r.fates[2].tokens, 100);
    }

    #[test]
    fn the_first_token_comes_with_the_prefill_2_4() {
        let r = go(&v2(), 1000, &[req(0, 50, 3)]);
        assert_eq!(r.rows.len(), 3);
        assert_eq!(r.rows[0].prefills(), [(0, 50)]);
        assert_eq!(r.fates[0].first_token, Some(STEP));
        assert_eq!(r.fates[0].finished, Some(3 * STEP));
        assert_eq!(r.rows[1].plan.stats.decode_ctx_sum, 51);
    }

    #[test]
    fn without_chunking_new_requests_are_prefilled_alone_and_then_all_decode_2_4() {
        let mut p = v2();
        p.waiting_served_ratio = Some(1.0);
        let r = go(&p, 1000, &[req(0, 50, 10), req(1, 60, 10)]);
        assert_eq!(r.rows[0].prefills(), [(0, 50)]);
        assert_eq!(
            (r.rows[1].prefills(), r.rows[1].decodes()),
            (vec![(1, 60)], vec![])
        );
        assert_eq!(r.rows[2].decodes(), [0, 1]);
    }

    #[test]
    fn a_prefill_that_joins_is_followed_by_a_decode_even_if_more_wait_2_4() {
        let mut p = v2();
        p.waiting_served_ratio = Some(0.0);
        p.max_batch_prefill_tokens = Some(100);
        let r = go(
            &p,
            1000,
            &[req(0, 90, 9), req(0, 90, 9), req(0, 90, 9), req(0, 90, 9)],
        );
        let kinds: Vec<usize> = r.rows[..6].iter().map(|r| r.decodes().len()).collect();
        // The first prefill may be followed by another at once; after that one decode comes between any two.
        assert_eq!(kinds, [0, 0, 2, 0, 3, 0]);
    }

    #[test]
    fn new_requests_wait_until_they_number_a_share_of_the_running_ones_2_4() {
        // Four run; floor(4 x 1.2) = 4 must wait before they may interrupt.
        let mut reqs: Vec<Req> = (0..4).map(|_| req(0, 10, 40)).collect();
        reqs.extend((0..4).map(|i| req(3 * STEP + i * STEP, 10, 40)));
        let r = go(&v2(), 2000, &reqs);
        let first = r.fates[4].first_step.unwrap();
        assert_eq!(r.fates[7].first_step, Some(first), "all four join at once");
        assert_eq!(r.rows[first].at, 6 * STEP, "when the fourth is there");
    }

    #[test]
    fn after_max_waiting_tokens_steps_even_one_request_joins_2_4() {
        let mut reqs: Vec<Req> = (0..4).map(|_| req(0, 10, 60)).collect();
        reqs.push(req(2 * STEP, 10, 5));
        let mut p = v2();
        p.max_waiting_tokens = 7;
        let r = go(&p, 2000, &reqs);
        // The counter is 1 after the prefill and grows by one per decode: 7 after six decodes.
        assert_eq!(r.fates[4].first_step, Some(7));
    }

    #[test]
    fn admission_reserves_prompt_and_max_new_tokens_2_3() {
        // 150 tokens to be taken in, 149 held once running: the last one is never written. Real outputs do not matter.
        let mut a = req(0, 100, 2);
        a.max = 50;
        let b = a.clone();
        let r = go(&v2(), 298, &[a.clone(), b.clone()]);
        assert_eq!(r.fates[1].first_step, Some(2));
        let r = go(&v2(), 300, &[a, b]);
        assert_eq!(r.fates[1].first_step, Some(0));
    }

    #[test]
    fn a_v2_budget_rounds_prompt_and_output_up_to_blocks_apart_2_3() {
        // 17 + 15 tokens are two blocks of 16, but count as 32 + 16.
        let p = TgiParams {
            block_size: Some(16),
            max_input_tokens: Some(20),
            max_total_tokens: Some(40),
            max_batch_prefill_tokens: Some(64),
            ..TgiParams::default()
        };
        let r = go(&p, 80, &[req(0, 17, 15), req(0, 17, 15)]);
        assert_eq!(r.rows[0].prefills(), [(0, 17)]);
        assert_eq!(r.rows[0].load.kv_used_blocks, 2);
        // Once the first runs it holds its two real blocks, and the second's 48 fit the remaining 48.
        assert_eq!(r.rows[1].prefills(), [(1, 17)]);
    }

    #[test]
    fn the_prefill_budget_stops_a_batch_and_order_is_kept_2_3() {
        // 100 + 90 fit into 200, 20 more do not; the small fourth one does not overtake.
        let r = go(
            &v2(),
            2000,
            &[req(0, 100, 5), req(0, 90, 5), req(0, 20, 5), req(0, 5, 5)],
        );
        assert_eq!(r.rows[0].prefills(), [(0, 100), (1, 90)]);
        assert_fifo(&r);
    }

    #[test]
    fn padded_back_ends_count_and_compute_the_longest_prompt_2_3() {
        let p = TgiParams {
            paged: false,
            max_batch_total_tokens: Some(1000),
            ..v2()
        };
        // 2 x 100 fits the prefill budget of 200, 3 x 100 does not, although 100 + 10 + 10 would.
        let r = go(&p, 1000, &[req(0, 100, 5), req(0, 10, 5), req(0, 10, 5)]);
        assert_eq!(r.rows[0].prefills(), [(0, 100), (1, 10)]);
        let s = r.rows[0].plan.stats;
        assert_eq!((s.prefill_seqs, s.prefill_tokens), (2, 200));
        let d = r.rows.iter().find(|r| !r.decodes().is_empty()).unwrap();
        assert_eq!(d.plan.stats.decode_ctx_sum, 101 * d.decodes().len() as u64);
    }

    #[test]
    fn max_batch_size_caps_the_running_batch_2_4() {
        let p = TgiParams {
            max_batch_size: Some(2),
            waiting_served_ratio: Some(0.0),
            ..v2()
        };
        let r = go(&p, 2000, &[req(0, 10, 5), req(0, 10, 9), req(0, 10, 5)]);
        assert!(r.rows.iter().all(|r| r.load.running <= 2));
        assert_eq!(r.rows[0].prefills().len(), 2);
    }

    #[test]
    fn a_request_that_rounding_makes_too_big_fails_instead_of_blocking_for_ever_2_3() {
        let p = TgiParams {
            block_size: Some(16),
            max_input_tokens: Some(63),
            max_total_tokens: Some(64),
            max_batch_prefill_tokens: Some(64),
            ..TgiParams::default()
        };
        let r = go(&p, 64, &[req(0, 33, 31), req(0, 16, 4)]);
        assert!(r.fates[0].failed, "48 + 32 > 64");
        assert_eq!(r.fates[1].tokens, 4);
    }

    #[test]
    fn v3_prompts_share_a_forward_with_decodes_and_fill_the_budget_2_3() {
        let p = TgiParams {
            max_batch_prefill_tokens: Some(40),
            ..v3()
        };
        let r = go(&p, 2000, &[req(0, 30, 20), req(0, 50, 5)]);
        // 30 fit whole, the second gets the 10 that are left.
        assert_eq!(r.rows[0].prefills(), [(0, 30), (1, 10)]);
        assert_eq!(r.fates[0].first_token, Some(STEP));
        // Its rest is 40, one token of the budget is left to the other request.
        assert_eq!(r.rows[1].decodes(), [0]);
        assert_eq!(r.rows[1].prefills(), [(1, 39)]);
        assert_eq!(r.rows[2].prefills(), [(1, 1)]);
        assert_eq!(r.fates[1].first_token, Some(3 * STEP));
    }

    #[test]
    fn v3_new_requests_get_what_the_running_batch_leaves_of_the_budget_2_4() {
        let p = TgiParams {
            max_batch_prefill_tokens: Some(40),
            ..v3()
        };
        let r = go(&p, 2000, &[req(0, 10, 20), req(0, 10, 20), req(1, 60, 5)]);
        assert_eq!(r.rows[1].decodes(), [0, 1]);
        assert_eq!(r.rows[1].prefills(), [(2, 38)]);
    }

    #[test]
    fn v3_admission_is_bound_by_blocks_with_block_zero_set_aside_2_3() {
        // 100 + 50 - 1 blocks each.
        let reqs = [req(0, 100, 50), req(0, 100, 50)];
        assert_eq!(go(&v3(), 298, &reqs).rows[0].load.running, 1);
        assert_eq!(go(&v3(), 299, &reqs).rows[0].load.running, 2);
    }

    #[test]
    fn v3_finds_a_finished_prompt_whole_but_computes_its_last_token_2_3() {
        let p = TgiParams {
            block_size: Some(4),
            ..v3()
        };
        let with = |at, prompt| Req {
            hashes: vec![1, 2, 3, 4],
            ..req(at, prompt, 2)
        };
        let r = go(
            &p,
            2000,
            &[
                with(0, 16),
                with(1, 16),
                with(9 * STEP, 16),
                with(20 * STEP, 15),
            ],
        );
        assert_eq!(r.fates[0].prefilled, 16);
        assert_eq!(
            r.fates[1].prefilled, 16,
            "a prompt becomes findable when its request ends"
        );
        assert_eq!(r.fates[2].prefilled, 1);
        assert_eq!(r.fates[3].prefilled, 3, "three blocks of four");
        assert_eq!(
            r.rows.iter().map(|r| r.plan.cached_tokens).sum::<u64>(),
            15 + 12
        );
    }

    #[test]
    fn a_client_that_leaves_frees_its_place_at_once_and_its_kv_after_the_forward_2_4() {
        let mut p = v2();
        p.max_concurrent_requests = 1;
        let mut gone = req(0, 50, 100);
        gone.leaves = Some(STEP + 1);
        let r = go(&p, 1000, &[gone, req(STEP + 2, 50, 2)]);
        assert!(r.fates[0].cancelled);
        assert_eq!(r.fates[1].rejected, None);
        assert_eq!(r.fates[1].first_token, Some(3 * STEP));
    }

    #[test]
    fn a_step_tells_what_kept_the_queue_out_2_3() {
        let why = |p: &TgiParams, kv, reqs: &[Req]| go(p, kv, reqs).rows[0].plan.blocked;
        let two = [req(0, 100, 50), req(0, 90, 50)];
        assert_eq!(why(&v2(), 2000, &two), Blocked::Nothing);
        assert_eq!(why(&v2(), 220, &two), Blocked::KvFull);
        assert_eq!(why(&v3(), 220, &two), Blocked::KvFull);
        let mut p = v2();
        p.max_batch_prefill_tokens = Some(120);
        assert_eq!(why(&p, 2000, &two), Blocked::TokenBudget);
        p.max_batch_size = Some(1);
        assert_eq!(why(&p, 2000, &two), Blocked::MaxSeqs);
    }

    fn any_params() -> impl Strategy<Value = TgiParams> {
        let knobs = (
            0..4u8,
            1..=16u32,
            prop::option::of(1..6u32),
            0.0..2.0f32,
            0..30u32,
            64..300u32,
            3..40u32,
        );
        knobs.prop_map(
            |(kind, block, cap, ratio, wait, prefill, permits)| TgiParams {
                version: [TgiVersion::V2, TgiVersion::V3][usize::from(kind >= 2)],
                max_concurrent_requests: permits,
                max_input_tokens: Some(64),
                max_total_tokens: Some(128),
                max_batch_prefill_tokens: Some(prefill),
                max_batch_total_tokens: (kind == 1).then_some(300),
                waiting_served_ratio: Some(ratio),
                max_waiting_tokens: wait,
                max_batch_size: if kind == 3 { None } else { cap },
                prefill_chunking: Some(kind == 3),
                prefix_caching: None,
                block_size: Some(block),
                paged: kind != 1,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn every_admitted_request_finishes_in_order_within_its_reservation(
            p in any_params(),
            reqs in workload(30, 64, 64, 60),
        ) {
            let r = go(&p, 400, &reqs);
            assert_fifo(&r);
            for (row, next) in r.rows.iter().zip(&r.rows[1..]) {
                prop_assert!(row.plan.preempted.is_empty());
                let c = p.prefill_chunking == Some(true);
                prop_assert!(c || row.prefills().is_empty() || row.decodes().is_empty());
                prop_assert!(row.at < next.at);
            }
        }
    }
}
