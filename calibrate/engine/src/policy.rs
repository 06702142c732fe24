//! The simulator's schedulers, started for an engine that computes.

use std::sync::Arc;

use sim::policy::Scheduler;
use sim::policy::check::ParamError;
use sim::policy::llama_cpp::LlamaCpp;
use sim::policy::static_batch::StaticBatch;
use sim::policy::tgi::Tgi;
use sim::policy::tgi_neuron::TgiNeuron;
use sim::policy::trt_llm::TrtLlm;
use sim::policy::vllm_v0::VllmV0;
use sim::policy::vllm_v1::{VllmV1, VllmV1Params, VllmVersion};
use sim::scenario::engine::{EngineParams, VllmV1Keys};

/// Where the parameter errors of this file come from.
const ENGINE: &str = "servetwin";
/// Releases from here on follow the rules of 0.33 (as the simulator's scenarios do).
const RULES_OF_0_33: u32 = 22;
/// `max_num_seqs` and `max_num_batched_tokens` where nothing says otherwise: vLLM's for devices below 70 GiB.
const MAX_NUM_SEQS: u32 = 256;
const MAX_NUM_BATCHED_TOKENS: u32 = 2048;
/// Tokens per block of policies that know no blocks [tokens].
const ROW_BLOCK: u32 = 16;

/// Makes the scheduler of one replica. True: requests come with block hashes that can be equal.
pub type MakeScheduler = Arc<dyn Fn(bool) -> Box<dyn Scheduler> + Send + Sync>;

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
        params: &EngineParams,
        kv_blocks: u64,
        model_max_tokens: u32,
        pp: u32,
    ) -> Result<Policy, ParamError> {
        let tokens = |block: u32| kv_blocks.saturating_mul(u64::from(block));
        let (make, block_size, cache_blocks, hash_block, max_model_len): (
            MakeScheduler,
            _,
            _,
            _,
            _,
        );
        let mut vllm_v1 = None;
        match params {
            EngineParams::VllmV1(keys) => {
                let p = resolve_vllm_v1(keys, kv_blocks, model_max_tokens, pp)?;
                (block_size, max_model_len) = (p.block_size, p.max_model_len);
                cache_blocks = kv_blocks.saturating_sub(1);
                hash_block = p.enable_prefix_caching.then_some(p.block_size);
                vllm_v1 = Some(p);
                make = Arc::new(move |shared| {
                    Box::new(VllmV1::new(VllmV1Params {
                        shared_content: shared && p.enable_prefix_caching,
                        ..p
                    }))
                });
            }
            EngineParams::VllmV0(p) => {
                let config = p.resolve(
                    tokens(p.block_size),
                    model_max_tokens.min(clamp(tokens(p.block_size))),
                )?;
                (block_size, max_model_len) = (config.block_size, config.max_model_len);
                cache_blocks = config.blocks;
                hash_block = config.enable_prefix_caching.then_some(block_size);
                make = Arc::new(move |shared| Box::new(VllmV0::new(config.clone(), shared)));
            }
            EngineParams::Tgi(p) => {
                let block = p.resolve(u64::from(u32::MAX), model_max_tokens)?.block_size;
                let config = p.resolve(tokens(block), model_max_tokens)?;
                max_model_len = config.max_total_tokens;
                hash_block = config.prefix_caching.then_some(config.block_size);
                if config.paged {
                    block_size = config.block_size;
                    cache_blocks = config.max_batch_total_tokens / u64::from(block_size);
                } else {
                    block_size = ROW_BLOCK;
                    cache_blocks = rows(
                        config.max_batch_total_tokens,
                        config.max_concurrent_requests,
                    );
                }
                make = Arc::new(move |shared| Box::new(Tgi::new(config.clone(), shared)));
            }
            EngineParams::TgiNeuron(p) => {
                let p = p.resolve()?;
                TgiNeuron::new(&p)?;
                if p.sequence_length > model_max_tokens {
                    return Err(ParamError::new(
                        ENGINE,
                        "sequence_length",
                        format!(
                            "must be at most what the model allows ({model_max_tokens} tokens), got {}",
                            p.sequence_length
                        ),
                    ));
                }
                (block_size, hash_block, max_model_len) = (ROW_BLOCK, None, p.sequence_length);
                cache_blocks =
                    u64::from(p.batch_size) * u64::from(p.sequence_length.div_ceil(ROW_BLOCK));
                make = Arc::new(move |_| match TgiNeuron::new(&p) {
                    Ok(s) => Box::new(s),
                    Err(e) => unreachable!("these parameters have started before: {e}"),
                });
            }
            EngineParams::TrtLlm(p) => {
                let config = p.resolve(tokens(p.tokens_per_block), model_max_tokens, pp)?;
                (block_size, max_model_len) = (p.tokens_per_block, config.max_seq_len);
                cache_blocks = config.blocks;
                hash_block = p.enable_kv_cache_reuse.then_some(block_size);
                make = Arc::new(move |shared| Box::new(TrtLlm::new(config.clone(), shared)));
            }
            EngineParams::LlamaCpp(p) => {
                if p.cache_prompt {
                    return Err(ParamError::new(
                        ENGINE,
                        "cache_prompt",
                        "must be false: this engine keeps no prompt in a slot that nobody uses"
                            .into(),
                    ));
                }
                let config = p.resolve(tokens(ROW_BLOCK), model_max_tokens, 0.0)?;
                (block_size, hash_block, max_model_len) = (ROW_BLOCK, None, config.n_ctx_slot);
                cache_blocks = rows(u64::from(config.n_ctx), config.n_parallel);
                make = Arc::new(move |_| Box::new(LlamaCpp::new(config.clone())));
            }
            EngineParams::Static(p) => {
                let kv_tokens = tokens(ROW_BLOCK);
                let config = p.resolve(kv_tokens, model_max_tokens)?;
                (block_size, hash_block, max_model_len) = (ROW_BLOCK, None, config.max_seq_len);
                cache_blocks = rows(kv_tokens, config.max_batch_size);
                make = Arc::new(move |_| Box::new(StaticBatch::new(config.clone())));
            }
        }
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
            params: params.clone(),
            make,
            block_size,
            cache_blocks,
            kv_blocks,
            hash_block,
            max_model_len,
            model_max_tokens,
            pp,
            vllm_v1,
        })
    }
}

fn clamp(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

/// Blocks for rows of `tokens` tokens together: each of `count` rows may leave one block unfilled.
fn rows(tokens: u64, count: u32) -> u64 {
    tokens.div_ceil(u64::from(ROW_BLOCK)) + u64::from(count)
}

/// vLLM V1's parameters with every default filled in.
fn resolve_vllm_v1(
    k: &VllmV1Keys,
    kv_blocks: u64,
    model_max_tokens: u32,
    pp: u32,
) -> Result<VllmV1Params, ParamError> {
    let err = |param, problem| Err(ParamError::new("vLLM V1", param, problem));
    for (param, value) in [
        ("max_num_batched_tokens", k.max_num_batched_tokens),
        ("max_num_seqs", k.max_num_seqs),
        ("block_size", Some(k.block_size)),
        ("max_num_queued_reqs", k.max_num_queued_reqs),
    ] {
        if value == Some(0) {
            return err(param, "must be at least 1, got 0".into());
        }
    }
    if k.async_scheduling == Some(true) {
        return err(
            "async_scheduling",
            "must be false: this engine knows a step's tokens before it plans the next".into(),
        );
    }
    if !(0.0..1.0).contains(&k.watermark) {
        return err(
            "watermark",
            format!("must be from 0 to below 1, got {}", k.watermark),
        );
    }
    let fits = clamp(
        kv_blocks
            .saturating_sub(1)
            .saturating_mul(u64::from(k.block_size)),
    );
    let max_model_len = k.max_model_len.unwrap_or(model_max_tokens.min(fits));
    if max_model_len < 2 || max_model_len > model_max_tokens || max_model_len > fits {
        return err(
            "max_model_len",
            format!(
                "must be from 2 to what the model ({model_max_tokens}) and {kv_blocks} KV blocks of {} tokens, one of \
                 them reserved ({fits}), allow; got {max_model_len}",
                k.block_size
            ),
        );
    }
    Ok(VllmV1Params {
        version: if k.version.minor >= RULES_OF_0_33 {
            VllmVersion::V0_33
        } else {
            VllmVersion::V0_11
        },
        max_num_batched_tokens: k.max_num_batched_tokens.unwrap_or(MAX_NUM_BATCHED_TOKENS),
        max_num_seqs: k.max_num_seqs.unwrap_or(MAX_NUM_SEQS),
        max_model_len,
        enable_chunked_prefill: k.enable_chunked_prefill,
        long_prefill_token_threshold: k.long_prefill_token_threshold,
        scheduling_policy: k.scheduling_policy,
        enable_prefix_caching: k.enable_prefix_caching,
        async_scheduling: false,
        pipeline_parallel_size: pp,
        max_num_queued_reqs: k.max_num_queued_reqs,
        max_num_queued_tokens: k.max_num_queued_tokens,
        scheduler_reserve_full_isl: k.scheduler_reserve_full_isl,
        watermark: k.watermark,
        block_size: k.block_size,
        num_gpu_blocks: kv_blocks,
        shared_content: false,
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
            (K::VllmV0, "", 16, 512),
            (K::Tgi, "max_total_tokens = 2048", 16, 512),
            (K::TrtLlm, "", 32, 512),
            (K::LlamaCpp, "cache_prompt = false", 16, 516),
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
