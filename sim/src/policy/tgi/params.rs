//! TGI's parameters and what its launcher makes of them (serving-policies 2.1).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::check::ParamError;

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
    /// Refuses values that the launcher refuses by themselves.
    fn check_alone(&self) -> Result<(), ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        let v3 = self.version == TgiVersion::V3;
        if !self.paged && v3 {
            return err("paged", "false needs version = \"v2\"; v3 is paged".into());
        }
        if self.prefill_chunking == Some(true) && !v3 {
            return err(
                "prefill_chunking",
                "version v2 has no chunked prefill; use version = \"v3\"".into(),
            );
        }
        if self.prefix_caching == Some(true) && !v3 {
            return err(
                "prefix_caching",
                "version v2 has no prefix cache; use version = \"v3\"".into(),
            );
        }
        if self.max_batch_size.is_some() && self.prefill_chunking.unwrap_or(v3) {
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
        let ratio = self.waiting_served_ratio.unwrap_or(0.0);
        if !ratio.is_finite() || ratio < 0.0 {
            return err(
                "waiting_served_ratio",
                format!("must be a number >= 0, got {ratio}"),
            );
        }
        Ok(())
    }

    /// Token budget of the running batch where KV is not paged: as given, else 16000 but at least `least` [tokens].
    fn unpaged_total(&self, least: u64, kv_tokens: u64) -> Result<u64, ParamError> {
        let total = self.max_batch_total_tokens.unwrap_or(least.max(16000));
        if total > kv_tokens {
            return Err(ParamError::new(
                ENGINE,
                "max_batch_total_tokens",
                format!("{total} tokens do not fit: memory holds {kv_tokens}"),
            ));
        }
        Ok(total)
    }

    /// The launcher's start-up (2.1): fills defaults from `kv_tokens`, what fits in memory beside the weights
    /// [tokens], and `model_max_tokens`, the model's longest sequence [tokens]; refuses what the launcher refuses.
    pub fn resolve(&self, kv_tokens: u64, model_max_tokens: u32) -> Result<TgiConfig, ParamError> {
        let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
        self.check_alone()?;
        let v3 = self.version == TgiVersion::V3;
        let mut warnings = Vec::new();
        let prefill_chunking = self.prefill_chunking.unwrap_or(v3);
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
            let room = 4096.min(model_max_tokens).min(usable_u32);
            match (v3, prefill_chunking) {
                (false, _) => max_input_tokens.saturating_add(50).max(4096),
                (true, true) => room,
                (true, false) => room.max(max_input_tokens),
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
            let least = max_total_tokens.max(max_batch_prefill_tokens);
            self.unpaged_total(u64::from(least), kv_tokens)?
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
            waiting_served_ratio: (self.waiting_served_ratio).unwrap_or(if v3 { 0.3 } else { 1.2 }),
            max_waiting_tokens: self.max_waiting_tokens,
            max_batch_size: self.max_batch_size,
            prefill_chunking,
            prefix_caching: self.prefix_caching.unwrap_or(v3),
            block_size,
            paged: self.paged,
            warnings,
        })
    }
}
