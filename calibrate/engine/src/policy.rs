//! The simulator's schedulers, started for an engine that computes.

use hwmodels::memory::{MemorySettings, VllmRelease};
use hwmodels::{Dtype, EngineKind};
use sim::engines::{EngineParams, Start, Started, Storage, VllmV1Keys};
use sim::policy::check::ParamError;
use sim::policy::sglang::SglangParams;
use sim::policy::vllm_v1::{VllmV1, VllmV1Params};
use sim::simulation::{EngineSpec, MakeScheduler};

/// Where the parameter errors of this file come from.
const ENGINE: &str = "servetwin";
/// `max_num_seqs` and `max_num_batched_tokens` where nothing says otherwise: vLLM's for devices below 70 GiB.
const MAX_NUM_SEQS: u32 = 256;
const MAX_NUM_BATCHED_TOKENS: u32 = 2048;
/// Tokens per block of policies that know no blocks [tokens].
const ROW_BLOCK: u32 = 16;

/// A policy with all its parameters decided.
#[derive(Clone)]
pub struct Policy {
    /// Its parameters as a scenario's `[engine]` would give them.
    pub params: EngineParams,
    /// Makes a replica's scheduler.
    pub make: MakeScheduler,
    /// Tokens per KV block [tokens].
    pub block_size: u32,
    /// Blocks that the forward pass needs storage for.
    pub cache_blocks: u32,
    /// KV blocks as the system counts them, reserved ones included.
    pub kv_blocks: u64,
    /// Tokens per block of the content hashes that it wants; none: it caches no prefixes.
    pub hash_block: Option<u32>,
    /// Longest prompt and output together [tokens].
    pub max_model_len: u32,
    /// What the model allows [tokens].
    pub model_max_tokens: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Whether it is the simulator's vLLM V1, with these parameters.
    pub vllm_v1: Option<VllmV1Params>,
}

impl Policy {
    /// Starts a policy on `kv_blocks` blocks of its block size, for a model of at most `model_max_tokens` tokens per
    /// sequence on `pp` pipeline stages.
    ///
    /// # Errors
    /// What the named system would refuse at start-up, or what a computing engine cannot do.
    pub fn start(
        given: &EngineParams,
        kv_blocks: u64,
        model_max_tokens: u32,
        pp: u32,
    ) -> Result<Policy, ParamError> {
        let params = &own(given, kv_blocks, model_max_tokens)?;
        let settings = vllm_settings(params);
        let started = params.engine().start(&Start {
            // llama.cpp and SGLang count cells of one token, unless told otherwise.
            kv_blocks: match params {
                EngineParams::LlamaCpp(_) => kv_blocks.saturating_mul(u64::from(ROW_BLOCK)),
                EngineParams::Sglang(p) if p.page_size == 1 => {
                    kv_blocks.saturating_mul(u64::from(ROW_BLOCK))
                }
                _ => kv_blocks,
            },
            kv_given: true,
            model_tokens: model_max_tokens,
            has_model: true,
            kv_bytes_per_token: 0.0,
            host_link: 0.0,
            device: None,
            fraction_given: false,
            tp: 1,
            pp,
            dp: 1,
            role: sim::cluster::pools::Role::Both,
            cuda_graphs: None,
            seed: 0,
            settings: settings.as_ref(),
        })?;
        if matches!(params, EngineParams::TgiNeuron(_))
            && started.sequence_tokens > model_max_tokens
        {
            return Err(ParamError::new(
                ENGINE,
                "sequence_length",
                format!(
                    "must be at most what the model allows ({model_max_tokens} tokens), got {}",
                    started.sequence_tokens
                ),
            ));
        }
        let (block_size, cache_blocks) = storage(&started);
        let mut vllm_v1 = None;
        let (make, hash_block): (MakeScheduler, _) = match started.engine {
            EngineSpec::VllmV1(p) => {
                vllm_v1 = Some(p);
                let make = move |shared| -> Box<dyn sim::policy::Scheduler> {
                    Box::new(VllmV1::new(VllmV1Params {
                        shared_content: shared && p.enable_prefix_caching,
                        ..p
                    }))
                };
                let hash = p.enable_prefix_caching.then_some(p.block_size);
                (std::sync::Arc::new(make), hash)
            }
            EngineSpec::Policy { make, hash_block } => (make, hash_block),
        };
        let cache_blocks = u32::try_from(cache_blocks)
            .ok()
            .filter(|&b| b > 0 && b < u32::MAX / 2)
            .ok_or_else(|| {
                ParamError::new(
                    ENGINE,
                    "num_kv_blocks",
                    format!("must be from 2 to 2147483646, got {kv_blocks}"),
                )
            })?;
        Ok(Policy {
            params: given.clone(),
            make,
            block_size,
            cache_blocks,
            kv_blocks,
            hash_block,
            max_model_len: started.sequence_tokens,
            model_max_tokens,
            pp,
            vllm_v1,
        })
    }
}

fn clamp(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

/// Tokens per block of the forward pass's storage, and how many blocks it needs.
fn storage(started: &Started) -> (u32, u64) {
    match started.storage {
        Storage::Blocks(blocks) => (started.block_tokens, blocks),
        Storage::Rows { tokens, rows } => (ROW_BLOCK, blocks_of_rows(tokens, rows)),
        Storage::Slots { slots, tokens } => (
            ROW_BLOCK,
            u64::from(slots) * u64::from(tokens.div_ceil(ROW_BLOCK)),
        ),
    }
}

/// Blocks for rows of `tokens` tokens together: each of `count` rows may leave one block unfilled.
fn blocks_of_rows(tokens: u64, count: u32) -> u64 {
    tokens.div_ceil(u64::from(ROW_BLOCK)) + u64::from(count)
}

/// vLLM's keys with what this engine decides by itself.
fn own_vllm_v1(
    keys: &VllmV1Keys,
    kv_blocks: u64,
    model_max_tokens: u32,
) -> Result<VllmV1Keys, ParamError> {
    let err = |param, problem| Err(ParamError::new(ENGINE, param, problem));
    if keys.async_scheduling == Some(true) {
        return err(
            "async_scheduling",
            "must be false: this engine knows a step's tokens before it plans the next".into(),
        );
    }
    let block = u64::from(keys.block_size);
    let fits = clamp(kv_blocks.saturating_sub(1).saturating_mul(block));
    let max_model_len = keys.max_model_len.unwrap_or(model_max_tokens.min(fits));
    // Start-up says what is wrong with blocks of no tokens.
    let possible = block == 0 || (2..=model_max_tokens.min(fits)).contains(&max_model_len);
    if !possible {
        return err(
            "max_model_len",
            format!(
                "must be from 2 to what the model ({model_max_tokens}) and {kv_blocks} KV blocks of {block} tokens, one of \
                 them reserved ({fits}), allow; got {max_model_len}"
            ),
        );
    }
    Ok(VllmV1Keys {
        max_model_len: Some(max_model_len),
        async_scheduling: Some(false),
        ..keys.clone()
    })
}

/// What the engine makes of the parameters: it computes one step at a time.
fn own(
    given: &EngineParams,
    kv_blocks: u64,
    model_max_tokens: u32,
) -> Result<EngineParams, ParamError> {
    match given {
        EngineParams::VllmV1(keys) => {
            let keys = own_vllm_v1(keys, kv_blocks, model_max_tokens)?;
            Ok(EngineParams::VllmV1(keys))
        }
        EngineParams::LlamaCpp(p) if p.cache_prompt => Err(ParamError::new(
            ENGINE,
            "cache_prompt",
            "must be false: this engine keeps no prompt in a slot that nobody uses".into(),
        )),
        EngineParams::Sglang(p) => Ok(EngineParams::Sglang(SglangParams {
            disable_overlap_schedule: true,
            ..p.clone()
        })),
        other => Ok(other.clone()),
    }
}

/// The limits that vLLM takes from its device: those of a small one.
fn vllm_settings(params: &EngineParams) -> Option<MemorySettings> {
    let EngineParams::VllmV1(keys) = params else {
        return None;
    };
    Some(MemorySettings {
        engine: EngineKind::VllmV1,
        vllm: VllmRelease::DEFAULT,
        weights: Dtype::Bf16,
        kv_cache: Dtype::Bf16,
        memory_fraction: 0.9,
        max_num_batched_tokens: MAX_NUM_BATCHED_TOKENS,
        max_num_seqs: MAX_NUM_SEQS,
        max_model_len: keys.max_model_len?,
        block_size: keys.block_size,
        state_blocks: 0,
        cuda_graphs: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(kind: hwmodels::EngineKind, keys: &str, blocks: u64) -> Result<Policy, String> {
        let table: toml::Table = toml::from_str(keys).unwrap();
        let params = EngineParams::read(kind, table).map_err(|e| e.to_string())?;
        Policy::start(&params, blocks, 4096, 1).map_err(|e| e.to_string())
    }

    #[test]
    fn every_policy_starts_and_has_storage_for_what_it_accounts_for() {
        use hwmodels::EngineKind as K;
        for (kind, keys, block, cache) in [
            (K::VllmV1, "", 16, 511),
            (K::Tgi, "max_total_tokens = 2048", 16, 512),
            (K::TrtLlm, "", 32, 512),
            (K::LlamaCpp, "cache_prompt = false", 16, 516),
            (K::Sglang, "", 1, 8192),
            (K::Sglang, "page_size = 16", 16, 512),
            (K::Static, "max_batch_size = 8", 16, 520),
            (
                K::TgiNeuron,
                "batch_size = 4\nsequence_length = 1000",
                16,
                252,
            ),
        ] {
            let p = start(kind, keys, 512).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
            assert_eq!(p.block_size, block, "{kind:?}");
            if kind != K::TrtLlm {
                assert_eq!(p.cache_blocks, cache, "{kind:?}");
            }
            let mut s = (p.make)(true);
            if let Some(kv) = s.kv_manager_mut() {
                kv.name_blocks();
                assert!(kv.usable() <= u64::from(p.cache_blocks), "{kind:?}");
                assert_eq!(kv.block_size(), p.block_size, "{kind:?}");
            }
        }
    }

    #[test]
    fn a_sequence_as_long_as_the_model_allows_is_cut_to_what_the_cache_holds() {
        let p = start(hwmodels::EngineKind::VllmV1, "", 11).unwrap();
        assert_eq!(p.max_model_len, 160);
        let e = start(hwmodels::EngineKind::VllmV1, "max_model_len = 200", 11);
        assert!(e.err().unwrap().contains("max_model_len: must be from 2"));
        let e = start(hwmodels::EngineKind::VllmV1, "async_scheduling = true", 11);
        assert!(e.err().unwrap().contains("async_scheduling"));
    }
}
