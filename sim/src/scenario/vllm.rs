//! vLLM's start-up: limits whose defaults depend on each other, and what it refuses.
//!
//! The rules are those of `EngineArgs` (`_set_default_max_num_seqs_and_batched_tokens_args`, before that
//! `_set_default_args_v1`) and of `SchedulerConfig.verify_max_model_len`, whose words the messages keep.

use hwmodels::memory::MemorySettings;
use hwmodels::ops::Sampler;

use super::engine::VllmV1Keys;

/// First minor release whose V1 engine can do without chunked prefill: from 0.8 to 0.11 it sets it to true whatever is asked
/// (`# V1 always uses chunked prefills`, vllm/engine/arg_utils.py of 0.11.0).
const CHUNKING_OPTIONAL: u32 = 12;

/// Whose kernels cut the distribution of the next token: Triton's from 0.16 on (pull request 33538), FlashInfer's from 0.20 on (40376).
pub(super) fn sampler(minor: u32) -> Sampler {
    match minor {
        0..16 => Sampler::Sort,
        16..20 => Sampler::Triton,
        _ => Sampler::FlashInfer,
    }
}

/// The limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepLimits {
    /// `max_num_batched_tokens`.
    pub(super) tokens: u32,
    /// `max_num_seqs`.
    pub(super) seqs: u32,
}

/// What vLLM makes of the keys as given and of the device's defaults, which stand in `s`; settling again what has been settled
/// changes nothing.
///
/// # Errors
/// The key that it refuses to start with, and why.
pub(super) fn settle(
    p: &VllmV1Keys,
    s: &MemorySettings,
) -> Result<StepLimits, (&'static str, String)> {
    if !p.enable_chunked_prefill && p.version.minor < CHUNKING_OPTIONAL {
        return Err((
            "enable_chunked_prefill",
            format!(
                "vLLM {} always splits prompts under the V1 scheduler and ignores false; leave it out, or set version = \"0.{CHUNKING_OPTIONAL}\" \
                 or later",
                p.version
            ),
        ));
    }
    let length = s.max_model_len;
    let tokens = p.max_num_batched_tokens.unwrap_or_else(|| {
        let least = if p.enable_chunked_prefill { 1 } else { length };
        (s.max_num_batched_tokens.max(least)).min(s.max_num_seqs.saturating_mul(length))
    });
    let seqs = p.max_num_seqs.unwrap_or(s.max_num_seqs.min(tokens));
    if tokens < length && !p.enable_chunked_prefill {
        return Err((
            "max_num_batched_tokens",
            format!(
                "max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}) and chunked prefill is disabled; vLLM \
                 would not start. Raise max_num_batched_tokens, lower max_model_len, or leave enable_chunked_prefill out"
            ),
        ));
    }
    if tokens < seqs {
        return Err((
            "max_num_batched_tokens",
            format!(
                "max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs}); vLLM would not start"
            ),
        ));
    }
    Ok(StepLimits { tokens, seqs })
}

/// What vLLM logs about limits that it takes, though they make little sense.
pub(super) fn warnings(limits: StepLimits, max_model_len: u32) -> Vec<String> {
    let most = u64::from(limits.seqs) * u64::from(max_model_len);
    if u64::from(limits.tokens) <= most {
        return Vec::new();
    }
    vec![format!(
        "max_num_batched_tokens ({}) exceeds max_num_seqs x max_model_len ({most}), more than a step can ever hold",
        limits.tokens
    )]
}
