//! vLLM V0's arguments and what its start-up makes of them (serving-policies 1.8).

use hwmodels::units::plain;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::check::ParamError;

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
    /// Refuses values that start-up refuses by themselves.
    fn check_alone(&self) -> Result<(), ParamError> {
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
        Ok(())
    }

    /// Refuses numbers of partial prefills that `budget` tokens a step do not carry.
    fn check_partial(&self, budget: u32, chunked: bool) -> Result<(), ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
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
        Ok(())
    }

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
        self.check_alone()?;
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
        self.check_partial(budget, chunked)?;
        let partial = self.max_num_partial_prefills;
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
