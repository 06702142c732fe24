//! What an endpoint's scheduler allows: the discrete half of a black-box fit.

use std::sync::Arc;

use hwmodels::EngineKind;
use serde::{Deserialize, Serialize};
use sim::policy::llama_cpp::{LlamaCpp, LlamaCppConfig, LlamaCppParams, Slots};
use sim::policy::vllm_v1::VllmV1Params;
use sim::simulation::EngineSpec;

/// How a fact about the endpoint is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The endpoint said so (`/metrics`, `/props`, `/v1/models`) or the caller did.
    Read,
    /// The measured loads tell it from every other value tried.
    Inferred,
    /// The measured loads never came near it: it is at least this.
    AtLeast,
    /// The measured loads say nothing about it: the engine's default.
    Default,
}

impl Source {
    /// In a word or two.
    pub fn words(self) -> &'static str {
        match self {
            Source::Read => "read",
            Source::Inferred => "inferred",
            Source::AtLeast => "at least",
            Source::Default => "default",
        }
    }
}

/// A fact with how it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known<T> {
    /// The value.
    pub value: T,
    /// How it is known.
    pub source: Source,
}

impl<T> Known<T> {
    /// What the endpoint or the caller said.
    pub fn read(value: T) -> Known<T> {
        Known {
            value,
            source: Source::Read,
        }
    }

    /// The engine's default.
    pub fn default_of(value: T) -> Known<T> {
        Known {
            value,
            source: Source::Default,
        }
    }
}

/// The scheduler of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Whose rules it follows: vLLM's or those of llama.cpp's server.
    pub kind: Known<EngineKind>,
    /// Requests that run at once: `max_num_seqs`, `n_parallel`.
    pub max_num_seqs: Known<u32>,
    /// Tokens of a step at most [tokens]: `max_num_batched_tokens`, `n_batch`.
    pub max_num_batched_tokens: Known<u32>,
    /// Whether a prompt may take several steps. Always so under llama.cpp.
    pub chunked_prefill: Known<bool>,
    /// Whether prompts that begin like earlier ones are computed only from where they differ.
    pub prefix_caching: Known<bool>,
    /// Whether the slots of llama.cpp's server share their KV cells; otherwise steps are computed in several passes.
    pub kv_unified: Known<bool>,
    /// KV capacity [tokens].
    pub kv_tokens: Known<u64>,
    /// Tokens per KV block [tokens].
    pub block_size: Known<u32>,
    /// Longest prompt and output together [tokens].
    pub max_model_len: Known<u32>,
}

/// Unlimited, for practical purposes [tokens].
pub const PLENTY_TOKENS: u64 = 1 << 23;

impl Default for Server {
    /// vLLM's rules and defaults, with as much KV as anyone can fill.
    fn default() -> Server {
        Server {
            kind: Known::default_of(EngineKind::VllmV1),
            max_num_seqs: Known::default_of(256),
            max_num_batched_tokens: Known::default_of(2048),
            chunked_prefill: Known::default_of(true),
            prefix_caching: Known::default_of(true),
            kv_unified: Known::default_of(true),
            kv_tokens: Known::default_of(PLENTY_TOKENS),
            block_size: Known::default_of(16),
            max_model_len: Known::default_of(1 << 20),
        }
    }
}

/// More requests at once than any server admits, and as many slots as are worth the memory to simulate.
pub const MOST_SEATS: u32 = 100_000;

impl Server {
    /// What is impossible about it, in words; it may have been read from a file.
    ///
    /// # Errors
    /// The first value that no server has.
    pub fn check(&self) -> Result<(), String> {
        if !matches!(self.kind.value, EngineKind::VllmV1 | EngineKind::LlamaCpp) {
            return Err(format!(
                "server.kind: a black-box fit knows vllm_v1 and llama_cpp, got {}",
                self.kind.value
            ));
        }
        let plenty = 1 << 40;
        for (field, value, most) in [
            (
                "max_num_seqs",
                u64::from(self.max_num_seqs.value),
                u64::from(MOST_SEATS),
            ),
            (
                "max_num_batched_tokens",
                self.max_num_batched_tokens.value.into(),
                plenty,
            ),
            ("kv_tokens", self.kv_tokens.value, plenty),
            ("block_size", self.block_size.value.into(), 1 << 16),
            ("max_model_len", self.max_model_len.value.into(), plenty),
        ] {
            if value < 1 || value > most {
                return Err(format!("server.{field}: must be 1 to {most}, got {value}"));
            }
        }
        Ok(())
    }

    /// The same server with its slots' KV cells shared, or not. What llama.cpp's server says of its context is a slot's.
    pub fn with_kv_unified(mut self, unified: Known<bool>) -> Server {
        self.kv_unified = unified;
        if self.kind.value == EngineKind::LlamaCpp && self.kv_tokens.source == Source::Read {
            let slots = if unified.value {
                1
            } else {
                u64::from(self.max_num_seqs.value)
            };
            self.kv_tokens.value = u64::from(self.max_model_len.value) * slots;
        }
        self
    }

    /// KV blocks, those set aside included.
    pub fn kv_blocks(&self) -> u64 {
        let block = u64::from(self.block_size.value.max(1));
        match self.kind.value {
            EngineKind::LlamaCpp => self.kv_tokens.value,
            // vLLM sets one block aside.
            _ => self.kv_tokens.value.div_ceil(block) + 1,
        }
    }

    /// The engine to simulate; which slots requests are in is drawn from `seed`.
    pub fn engine(&self, seed: u64) -> EngineSpec {
        let seqs = self.max_num_seqs.value.max(1);
        let tokens = self.max_num_batched_tokens.value.max(1);
        match self.kind.value {
            EngineKind::LlamaCpp => {
                let n_ctx = u32::try_from(self.kv_tokens.value).unwrap_or(u32::MAX);
                let defaults = LlamaCppParams::default();
                let config = LlamaCppConfig {
                    n_parallel: seqs,
                    n_batch: tokens.max(seqs),
                    n_ubatch: defaults.n_ubatch,
                    n_ctx,
                    kv_unified: self.kv_unified.value,
                    n_ctx_slot: n_ctx.min(self.max_model_len.value).max(2),
                    cont_batching: true,
                    cache_prompt: self.prefix_caching.value,
                    slot_prompt_similarity: defaults.slot_prompt_similarity,
                    cache_ram: None,
                    cache_idle_slots: defaults.cache_idle_slots,
                    slots: Slots::Anywhere(seed),
                };
                EngineSpec::Policy {
                    hash_block: config.cache_prompt.then_some(1),
                    make: Arc::new(move |_| Box::new(LlamaCpp::new(config.clone()))),
                }
            }
            _ => EngineSpec::VllmV1(VllmV1Params {
                max_num_batched_tokens: tokens,
                max_num_seqs: seqs,
                max_model_len: self.max_model_len.value,
                enable_chunked_prefill: self.chunked_prefill.value,
                enable_prefix_caching: self.prefix_caching.value,
                block_size: self.block_size.value.max(1),
                num_gpu_blocks: self.kv_blocks(),
                ..VllmV1Params::default()
            }),
        }
    }

    /// The keys of `[engine]` that say so in a scenario, in order. Limits that the measurement never came near are left to
    /// the reader: they are given, as lower bounds.
    pub fn scenario_keys(&self) -> Vec<(&'static str, toml::Value)> {
        let int = |v: u64| toml::Value::Integer(i64::try_from(v).unwrap_or(i64::MAX));
        let kind = toml::Value::String(self.kind.value.name().into());
        let mut keys = vec![("kind", kind)];
        if self.kind.value == EngineKind::LlamaCpp {
            keys.extend([
                ("n_parallel", int(self.max_num_seqs.value.into())),
                (
                    "n_batch",
                    int(self
                        .max_num_batched_tokens
                        .value
                        .max(self.max_num_seqs.value)
                        .into()),
                ),
                ("cache_prompt", self.prefix_caching.value.into()),
                ("kv_blocks", int(self.kv_blocks())),
                ("kv_unified", self.kv_unified.value.into()),
                ("slots_used", true.into()),
            ]);
        } else {
            keys.extend([
                ("max_num_seqs", int(self.max_num_seqs.value.into())),
                (
                    "max_num_batched_tokens",
                    int(self.max_num_batched_tokens.value.into()),
                ),
                ("enable_chunked_prefill", self.chunked_prefill.value.into()),
                ("enable_prefix_caching", self.prefix_caching.value.into()),
                ("async_scheduling", false.into()),
                ("block_size", int(self.block_size.value.into())),
                ("kv_blocks", int(self.kv_blocks())),
            ]);
            if self.max_model_len.source == Source::Read {
                keys.push(("max_model_len", int(self.max_model_len.value.into())));
            }
        }
        keys
    }
}
