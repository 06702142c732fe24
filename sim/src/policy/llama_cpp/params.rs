//! The parameters of llama.cpp's server and what its start-up makes of them (serving-policies 4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::check::ParamError;
use super::CacheRam;

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
    /// Memory of the host for prompts that slots held before [MiB] (default 8192); -1: no limit but that of tokens, 0: none.
    pub cache_ram_mib: i64,
    /// Whether free slots are copied to the host's memory (`cache_ram_mib`) as soon as another request starts (default true);
    /// slots that share the cells are emptied then.
    pub cache_idle_slots: bool,
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
            cache_ram_mib: 8192,
            cache_idle_slots: true,
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
    /// Host memory for prompts that slots held before.
    pub cache_ram: Option<CacheRam>,
    /// Whether free slots are copied there as soon as another request starts.
    pub cache_idle_slots: bool,
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
    /// `model_max_tokens` [tokens] and whose KV takes `kv_bytes_per_token` [bytes] (0: not known, so that host memory never
    /// fills).
    ///
    /// # Errors
    /// A parameter that the server refuses, or a context that does not fit.
    pub fn resolve(
        &self,
        kv_tokens: u64,
        model_max_tokens: u32,
        kv_bytes_per_token: f64,
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
        if self.cache_ram_mib < -1 {
            return err(
                "cache_ram_mib",
                format!(
                    "must be -1 (no limit), 0 (none) or a size, got {}",
                    self.cache_ram_mib
                ),
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
            cache_ram: (self.cache_prompt && self.cache_ram_mib != 0).then_some(CacheRam {
                bytes: u64::try_from(self.cache_ram_mib)
                    .ok()
                    .map(|mib| mib.saturating_mul(1 << 20)),
                bytes_per_token: kv_bytes_per_token,
                tokens: n_ctx.into(),
            }),
            cache_idle_slots: self.cache_idle_slots,
            slots: if self.slots_used {
                Slots::Used(0)
            } else {
                Slots::Fresh
            },
        })
    }
}
