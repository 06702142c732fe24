//! Parameters of TensorRT-LLM by their own names, and its start-up (serving-policies 3.4).

use hwmodels::ops::{Kernels, Products};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::check::ParamError;
use crate::request::RejectReason;

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
    /// Whether the next step is chosen and prepared while one runs, so that host work hides behind the device's, and what arrives or ends during a step
    /// is seen one step later (the PyTorch backend, the default since 1.0, does so unless
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

    /// Whether each value can stand by itself and beside the others.
    fn check(&self) -> Result<(), ParamError> {
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
        Ok(())
    }

    /// Start-up with `kv_tokens`, what fits in memory beside the engine [tokens], a model whose longest sequence is
    /// `model_max_tokens` [tokens], and `pipeline_parallel` stages (3.4).
    pub fn resolve(
        &self,
        kv_tokens: u64,
        model_max_tokens: u32,
        pipeline_parallel: u32,
    ) -> Result<TrtLlmConfig, ParamError> {
        self.check()?;
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
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
    /// Whether the next step is chosen while one runs: the overlap scheduler, which the executor has without pipeline stages.
    pub(super) fn overlaps(&self) -> bool {
        self.params.overlap_scheduler && self.micro_batches == 1
    }

    /// Steps in flight at once.
    pub(super) fn depth(&self) -> u32 {
        if self.overlaps() {
            2
        } else {
            self.micro_batches
        }
    }

    /// Requests that may run or wait for KV.
    pub(in crate::policy) fn max_requests(&self) -> usize {
        (u64::from(self.params.max_batch_size) * u64::from(self.micro_batches)) as usize
    }

    /// Whether the executor takes in a request while `queued` others have not started.
    pub(in crate::policy) fn admits(
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
